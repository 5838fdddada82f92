//! The code that answers system calls inside a tracee (`stub.S`), as bytes, and the offsets of its parts. Nothing of it runs in this
//! process: the monitor writes it into a tracee's memory.
#![allow(
    unsafe_code,
    reason = "the code is written in assembly language and read by its symbols"
)]

use std::arch::global_asm;

pub mod map;
pub mod opens;
pub(crate) mod words;
pub mod writes;

global_asm!(
    include_str!("frame.S"),
    include_str!("stub.S"),
    include_str!("map.S"),
    include_str!("writes.S"),
    include_str!("opens.S"),
    options(att_syntax)
);

unsafe extern "C" {
    static goanna_stub_start: u8;
    static goanna_stub_enter: u8;
    static goanna_stub_saved: u8;
    static goanna_stub_slow_jump: u8;
    static goanna_stub_final: u8;
    static goanna_stub_done: u8;
    static goanna_stub_done_jump: u8;
    static goanna_stub_data: u8;
    static goanna_stub_magic: u8;
    static goanna_stub_key: u8;
    static goanna_stub_devices: u8;
    static goanna_stub_names: u8;
    static goanna_stub_list_inode: u8;
    static goanna_stub_counter: u8;
    static goanna_stub_flags: u8;
    static goanna_stub_map: u8;
    static goanna_stub_run: u8;
    static goanna_stub_mount: u8;
    static goanna_stub_writes: u8;
    static goanna_stub_owner: u8;
    static goanna_stub_end: u8;
    static goanna_stub_site: u8;
    static goanna_stub_site_framed: u8;
    static goanna_stub_site_saved: u8;
    static goanna_stub_site_return: u8;
    static goanna_stub_site_kind: u8;
    static goanna_stub_site_number: u8;
    static goanna_stub_site_jump: u8;
    static goanna_stub_site_end: u8;
    static goanna_map_start: u8;
    static goanna_map_list_moved: u8;
    static goanna_map_list_made: u8;
    static goanna_map_list_end: u8;
    static goanna_map_list_undone: u8;
    static goanna_map_write_made: u8;
    static goanna_map_write_kept: u8;
    static goanna_stub_dispatch: u8;
    static goanna_stub_other_jump: u8;
    static goanna_stub_kinds: u8;
    static goanna_stub_dispatch_end: u8;
    static goanna_stub_shared_site: u8;
    static goanna_stub_shared_framed: u8;
    static goanna_stub_shared_moved: u8;
    static goanna_stub_shared_saved: u8;
    static goanna_stub_shared_return: u8;
    static goanna_stub_shared_jump: u8;
    static goanna_stub_shared_site_end: u8;
    static goanna_map_write_end: u8;
    static goanna_map_open_shared: u8;
    static goanna_map_open_unshared: u8;
    static goanna_map_open_closed: u8;
    static goanna_map_open_asked: u8;
    static goanna_map_open_answered: u8;
    static goanna_map_open_made: u8;
    static goanna_map_open_resumed: u8;
    static goanna_map_open_failed: u8;
    static goanna_map_end: u8;
}

/// What a stub must look at for a call: the constants of `frame.S` of the same names.
pub mod kind {
    /// The path is the second argument, and a directory the first.
    pub const IN_RSI: u32 = 1;
    /// A link at the path's end is not followed.
    pub const NO_FOLLOW: u32 = 2;
    /// The fourth argument has `AT_*` flags.
    pub const FLAGS_R10: u32 = 4;
    /// The third argument has `AT_*` flags.
    pub const FLAGS_RDX: u32 = 8;
    /// The third argument points to a `struct stat`.
    pub const STAT_RDX: u32 = 16;
    /// access(2) and its variants.
    pub const ACCESS: u32 = 32;
    /// openat(2).
    pub const OPEN: u32 = 128;
    /// The first argument is a descriptor, and there is no path.
    pub const DESCRIPTOR: u32 = 256;
    /// Depends on the working directory alone.
    pub const CWD: u32 = 512;
    /// fstat(2).
    pub const STAT_RSI: u32 = 1024;
    /// As [`DESCRIPTOR`] if the second argument is NULL.
    pub const NO_PATH: u32 = 2048;
    /// ioctl(2).
    pub const REQUEST: u32 = 4096;
    /// copy_file_range(2).
    pub const COPY: u32 = 8192;
    /// getdents64(2).
    pub const LIST: u32 = 16384;
    /// readlink(2) and readlinkat(2).
    pub const LINK: u32 = 32768;
    /// The fifth argument points to a `struct statx`.
    pub const STATX: u32 = 65536;
    /// write(2) and pwrite64(2).
    pub const WRITE: u32 = 131_072;
    /// An open whose directory is `AT_FDCWD`: the jump to the stub has replaced the instruction that says so.
    pub const FROM_CWD: u32 = 262_144;
}

/// Bits of the data at [`Layout::flags`].
pub mod flag {
    /// All calls notify.
    pub const OFF: u8 = 1;
    /// The working directory may be another than the host's.
    pub const CWD_UNKNOWN: u8 = 2;
    /// No mount point of the run exists on the host.
    pub const NO_MOUNT_POINT: u8 = 4;
    /// The words from [`Layout::map`](super::Layout::map) on are valid. They are eight bytes each, which a running thread might see half written.
    pub const HAS_MAP: u8 = 8;
}

/// Where the parts of the common code begin, in bytes from its start.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Where the sites' code jumps to.
    pub enter: usize,
    /// From here on the frame has the argument registers.
    pub saved: usize,
    /// The last instruction of the way to the site's `syscall`; the frame is gone.
    pub slow_jump: usize,
    /// Behind the call with an effect.
    pub final_call: usize,
    /// From here on the call is over, with its result in rax.
    pub done: usize,
    /// The last instruction of the way back; the frame is gone.
    pub done_jump: usize,
    /// Behind the code.
    pub data: usize,
    /// 16 bytes by which the area is recognised.
    pub magic: usize,
    /// The cookie's key.
    pub key: usize,
    /// Three device numbers.
    pub devices: usize,
    /// [`NAMES_MAX`] hashes of names, and a zero.
    pub names: usize,
    /// The inode of the only host directories whose lists show mount points, or zero where that is not known.
    pub list_inode: usize,
    /// The address of the counter, or zero.
    pub counter: usize,
    /// [`flag`].
    pub flags: usize,
    /// The address of the map of attributes ([`map`]), if there is one.
    pub map: usize,
    /// The number of the run in the map, or zero if the map has no attributes.
    pub run: usize,
    /// The mount's ID, which statx(2) reports.
    pub mount: usize,
    /// The address of the area for writes ([`writes`]), or zero.
    pub writes: usize,
    /// The process that has the area.
    pub owner: usize,
}

/// Where the parts of a list are in the code of the map, in bytes from its start.
#[derive(Debug, Clone, Copy)]
pub struct ListLayout {
    /// Behind the call that moves the position, whose result is in rax. The program has read the entries if it equals r10.
    pub moved: usize,
    /// From here on it has.
    pub made: usize,
    /// Behind the rest of such a list. From here on the stub moves the position back, by r10.
    pub end: usize,
    /// Behind the call that does.
    pub undone: usize,
}

/// Where the parts of a write are in the code of the map, in bytes from its start.
#[derive(Debug, Clone, Copy)]
pub struct WriteLayout {
    /// Behind the call, whose result is in rax.
    pub made: usize,
    /// From here on the result is in the frame.
    pub kept: usize,
    /// Behind the code.
    pub end: usize,
}

/// Where the parts of an open are in the code of the map, in bytes from its start ([`opens`]).
#[derive(Debug, Clone, Copy)]
pub struct OpenLayout {
    /// Behind the call that opens a shared file without a notification.
    pub shared: usize,
    /// From here on that descriptor, which is in rdi, is closed if it is of another object.
    pub unshared: usize,
    /// Behind that.
    pub closed: usize,
    /// Behind the call that notifies.
    pub asked: usize,
    /// From here on the thread opens a descriptor of the monitor.
    pub answered: usize,
    /// Behind that call.
    pub made: usize,
    /// From here on that call has failed, or was not made, and the thread makes one that notifies.
    pub resumed: usize,
    /// Behind the latter.
    pub failed: usize,
    /// Behind the code.
    pub end: usize,
}

/// Where the parts of a site's code are, in bytes from its start.
#[derive(Debug, Clone, Copy)]
pub struct SiteLayout {
    /// From here on there is a frame.
    pub framed: usize,
    /// From here on the frame has r9.
    pub saved: usize,
    /// Behind the distance to the site's return address.
    pub return_address: usize,
    /// Behind the kind.
    pub kind: usize,
    /// Behind the call's number.
    pub number: usize,
    /// Behind the distance to [`Layout::enter`].
    pub jump: usize,
}

/// Where the parts of the code of a shared site are, in bytes from its start.
#[derive(Debug, Clone, Copy)]
pub struct SharedSiteLayout {
    /// From here on there is a frame.
    pub framed: usize,
    /// Behind the site's own instruction, of which only the operand's place in the frame differs: it ends in four bytes of that.
    pub moved: usize,
    /// From here on the frame has r9.
    pub saved: usize,
    /// Behind the distance to the site's return address.
    pub return_address: usize,
    /// Behind the distance to [`DispatchLayout::start`].
    pub jump: usize,
}

/// Where the parts of the dispatch are, in bytes from the start of the common code.
#[derive(Debug, Clone, Copy)]
pub struct DispatchLayout {
    /// Where shared sites jump to.
    pub start: usize,
    /// The last instruction of the way to the site's `syscall`; the frame is gone.
    pub other_jump: usize,
    /// Up to [`KINDS_MAX`] calls in the order of their numbers: the number and its [`kind`], of four bytes each. Behind the last one is -1.
    pub kinds: usize,
    /// Behind it.
    pub end: usize,
}

/// How many calls the dispatch knows at most, with the end of their list.
pub const KINDS_MAX: usize = 64;
/// How many names there is space for.
pub const NAMES_MAX: usize = 8;
/// Size of the frame on the tracee's stack, with the red zone above it.
pub const FRAME: u64 = 240 + 128;
/// `RESOLVE_NO_SYMLINKS` of openat2(2).
pub const NO_SYMLINKS: u64 = 4;
/// Offsets of the frame's words.
pub mod frame {
    /// The call's number.
    pub const NR: u64 = 0;
    /// [`super::kind`].
    pub const KIND: u64 = 8;
    /// Behind the site's `syscall`.
    pub const RET: u64 = 16;
    /// r9, rdi, rsi, rdx and r10 of the caller.
    pub const REGISTERS: u64 = 24;
    /// How an open that is made natively resolves links: [`super::NO_SYMLINKS`], or otherwise if it has met one.
    pub const RESOLVE: u64 = 88;
    /// The offset of a write under a grant.
    pub const WROTE_FROM: u64 = 88;
    /// The result of that write.
    pub const RESULT: u64 = 96;
    /// The length of the entries of a list, in bytes.
    pub const LISTED: u64 = 104;
    /// The inode number of the object that is written to.
    pub const OBJECT: u64 = 104;
    /// The inode number of the object of a shared file that is opened, or zero for any regular file.
    pub const OPENED: u64 = 80;
    /// The address of the slot or the entry by which a file is opened, until that is compared with the id behind it in the frame.
    pub const OPENED_BY: u64 = 152;
}

/// The bytes from `start` to `end`.
///
/// # Safety
/// Both are symbols of the assembly, in this order.
unsafe fn between(start: *const u8, end: *const u8) -> &'static [u8] {
    // SAFETY: the assembler laid out what is between them as one piece of read-only data.
    unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
}

/// The common code and its data, which the monitor fills in.
pub fn common() -> &'static [u8] {
    // SAFETY: the symbols are in this order.
    unsafe { between(&raw const goanna_stub_start, &raw const goanna_stub_end) }
}

/// The code of a site, whose four fields the monitor fills in.
pub fn site() -> &'static [u8] {
    // SAFETY: the symbols are in this order.
    unsafe { between(&raw const goanna_stub_site, &raw const goanna_stub_site_end) }
}

/// The common code and what follows it where stubs have memory of their own.
pub fn common_and_dispatch() -> &'static [u8] {
    // SAFETY: the symbols are in this order.
    unsafe {
        between(
            &raw const goanna_stub_start,
            &raw const goanna_stub_dispatch_end,
        )
    }
}

/// The code of a site that several calls have in common; the monitor fills in three fields.
pub fn shared_site() -> &'static [u8] {
    // SAFETY: the symbols are in this order.
    unsafe {
        between(
            &raw const goanna_stub_shared_site,
            &raw const goanna_stub_shared_site_end,
        )
    }
}

/// The code of the map of attributes.
pub fn map_code() -> &'static [u8] {
    // SAFETY: the symbols are in this order.
    unsafe { between(&raw const goanna_map_start, &raw const goanna_map_end) }
}

/// The offset of a symbol from the start of the common code.
fn in_common(symbol: *const u8) -> usize {
    symbol.addr() - (&raw const goanna_stub_start).addr()
}

/// The parts of [`common`].
pub fn layout() -> Layout {
    let at = in_common;
    Layout {
        enter: at(&raw const goanna_stub_enter),
        saved: at(&raw const goanna_stub_saved),
        slow_jump: at(&raw const goanna_stub_slow_jump),
        final_call: at(&raw const goanna_stub_final),
        done: at(&raw const goanna_stub_done),
        done_jump: at(&raw const goanna_stub_done_jump),
        data: at(&raw const goanna_stub_data),
        magic: at(&raw const goanna_stub_magic),
        key: at(&raw const goanna_stub_key),
        devices: at(&raw const goanna_stub_devices),
        names: at(&raw const goanna_stub_names),
        list_inode: at(&raw const goanna_stub_list_inode),
        counter: at(&raw const goanna_stub_counter),
        flags: at(&raw const goanna_stub_flags),
        map: at(&raw const goanna_stub_map),
        run: at(&raw const goanna_stub_run),
        mount: at(&raw const goanna_stub_mount),
        writes: at(&raw const goanna_stub_writes),
        owner: at(&raw const goanna_stub_owner),
    }
}

/// The parts of the dispatch.
pub fn dispatch_layout() -> DispatchLayout {
    DispatchLayout {
        start: in_common(&raw const goanna_stub_dispatch),
        other_jump: in_common(&raw const goanna_stub_other_jump),
        kinds: in_common(&raw const goanna_stub_kinds),
        end: in_common(&raw const goanna_stub_dispatch_end),
    }
}

/// The parts of [`shared_site`].
pub fn shared_site_layout() -> SharedSiteLayout {
    let start = (&raw const goanna_stub_shared_site).addr();
    let at = |symbol: *const u8| symbol.addr() - start;
    SharedSiteLayout {
        framed: at(&raw const goanna_stub_shared_framed),
        moved: at(&raw const goanna_stub_shared_moved),
        saved: at(&raw const goanna_stub_shared_saved),
        return_address: at(&raw const goanna_stub_shared_return),
        jump: at(&raw const goanna_stub_shared_jump),
    }
}

/// The offset of a symbol in the code of the map of attributes.
fn in_map(symbol: *const u8) -> usize {
    symbol.addr() - (&raw const goanna_map_start).addr()
}

/// The parts of a list in the code of the map of attributes.
pub fn list_layout() -> ListLayout {
    ListLayout {
        moved: in_map(&raw const goanna_map_list_moved),
        made: in_map(&raw const goanna_map_list_made),
        end: in_map(&raw const goanna_map_list_end),
        undone: in_map(&raw const goanna_map_list_undone),
    }
}

/// The parts of a write in the code of the map of attributes.
pub fn write_layout() -> WriteLayout {
    WriteLayout {
        made: in_map(&raw const goanna_map_write_made),
        kept: in_map(&raw const goanna_map_write_kept),
        end: in_map(&raw const goanna_map_write_end),
    }
}

/// The parts of an open in the code of the map of attributes.
pub fn open_layout() -> OpenLayout {
    OpenLayout {
        shared: in_map(&raw const goanna_map_open_shared),
        unshared: in_map(&raw const goanna_map_open_unshared),
        closed: in_map(&raw const goanna_map_open_closed),
        asked: in_map(&raw const goanna_map_open_asked),
        answered: in_map(&raw const goanna_map_open_answered),
        made: in_map(&raw const goanna_map_open_made),
        resumed: in_map(&raw const goanna_map_open_resumed),
        failed: in_map(&raw const goanna_map_open_failed),
        end: in_map(&raw const goanna_map_end),
    }
}

/// The parts of [`site`].
pub fn site_layout() -> SiteLayout {
    let start = (&raw const goanna_stub_site).addr();
    let at = |symbol: *const u8| symbol.addr() - start;
    SiteLayout {
        framed: at(&raw const goanna_stub_site_framed),
        saved: at(&raw const goanna_stub_site_saved),
        return_address: at(&raw const goanna_stub_site_return),
        kind: at(&raw const goanna_stub_site_kind),
        number: at(&raw const goanna_stub_site_number),
        jump: at(&raw const goanna_stub_site_jump),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASSEMBLY: &str = concat!(
        include_str!("frame.S"),
        include_str!("stub.S"),
        include_str!("map.S"),
        include_str!("writes.S"),
        include_str!("opens.S")
    );

    #[test]
    fn the_parts_are_in_order_and_the_fields_where_they_are_said_to_be() {
        let layout = layout();
        let order = [
            layout.enter,
            layout.saved,
            layout.slow_jump,
            layout.final_call,
            layout.done,
            layout.done_jump,
            layout.data,
            layout.key,
            layout.devices,
            layout.names,
            layout.list_inode,
            layout.counter,
            layout.flags,
            layout.map,
            layout.run,
            layout.mount,
            layout.writes,
            layout.owner,
            common().len(),
        ];
        assert!(order.is_sorted() && order[0] == 0);
        assert_eq!(layout.list_inode - layout.names, 8 * (NAMES_MAX + 1));
        let parts = site_layout();
        for field in [parts.return_address, parts.kind, parts.number, parts.jump] {
            assert_eq!(site()[field - 4..field], 0x7fff_ffff_u32.to_le_bytes());
        }
        let parts = shared_site_layout();
        for field in [parts.moved, parts.return_address, parts.jump] {
            assert_eq!(
                shared_site()[field - 4..field],
                0x7fff_ffff_u32.to_le_bytes()
            );
        }
        assert_eq!(parts.moved - parts.framed, 8);
        assert!(shared_site().len() <= site().len());
        let dispatch = dispatch_layout();
        assert_eq!(dispatch.start, common().len());
        assert!(dispatch.end - dispatch.kinds >= 8 * KINDS_MAX);
        assert!(dispatch.start < dispatch.other_jump && dispatch.other_jump < dispatch.kinds);
        let words = [layout.run, layout.mount, layout.writes, layout.owner];
        assert_eq!(words.map(|at| at - layout.map), [8, 16, 24, 32]);
        let (list, write, open) = (list_layout(), write_layout(), open_layout());
        let lists = [list.moved, list.made, list.end];
        let writes = [write.made, write.kept, write.end];
        let shared = [open.shared, open.unshared, open.closed];
        assert!(shared.is_sorted() && open.closed < open.asked);
        let opens = [
            open.asked,
            open.answered,
            open.made,
            open.resumed,
            open.failed,
            open.end,
        ];
        assert!([lists.as_slice(), &writes, &opens].concat().is_sorted());
        assert_eq!(open.end, map_code().len());
        assert_eq!(kind::OPEN, 1 << 7, "the sign of the lowest byte");
        println!("{} + {} bytes", common().len(), site().len());
    }

    /// With link-time optimisation the stub is in one assembly with the whole program: its label `open` was what calls of open(2)
    /// called, and release builds died of SIGSEGV.
    #[test]
    fn labels_of_the_stub_hide_no_function() {
        let labels = ASSEMBLY.lines().filter_map(|line| line.split_once(':'));
        let labels = labels.filter(|(label, _)| !label.contains([' ', '\t', '#', '"']));
        let mut count = 0;
        for (label, _) in labels {
            let is_number = label.bytes().all(|byte| byte.is_ascii_digit());
            let own = [".Lstub_", "goanna_stub_", "goanna_map_"];
            let is_own = own.iter().any(|prefix| label.starts_with(prefix));
            assert!(is_number || is_own, "{label}");
            count += 1;
        }
        assert!(count > 30, "{count}");
    }

    /// The supervisor knows by the instruction pointer alone which register has the result of a call.
    #[test]
    fn results_stay_in_their_registers() {
        let (rax, rdi) = (["%eax", "%rax"], ["%edi", "%rdi"]);
        let parts = [
            ("stub_final", "stub_done", rax),
            ("map_open_shared", "map_open_unshared", rax),
            ("map_open_unshared", "map_open_closed", rdi),
            ("map_open_made", "map_open_resumed", rax),
        ];
        for (start, end, result) in parts {
            let (_, rest) = ASSEMBLY.split_once(&format!("\ngoanna_{start}:")).unwrap();
            let (code, _) = rest.split_once(&format!("\ngoanna_{end}:")).unwrap();
            for line in code.lines() {
                let line = line.split('#').next().unwrap_or_default();
                let instruction = line
                    .split_once(':')
                    .map_or(line, |(_, behind)| behind)
                    .trim();
                let calls = ["syscall", "native", "ask"].contains(&instruction);
                assert!(!calls || result != rax, "{start}: {line}");
                let (name, operands) = instruction.split_once([' ', '\t']).unwrap_or_default();
                let only_reads = ["cmp", "test", "bt", "j"];
                let changes = !only_reads.iter().any(|read| name.starts_with(read));
                let target = operands.rsplit(',').next().unwrap_or_default();
                assert!(!changes || !result.contains(&target), "{start}: {line}");
            }
        }
    }

    /// A release build can put what refers to a label into another object file than the assembly.
    #[test]
    fn labels_that_rust_refers_to_are_global() {
        let declared = include_str!("mod.rs").lines().map(str::trim);
        let labels =
            declared.filter_map(|line| line.strip_prefix("static ")?.strip_suffix(": u8;"));
        let global = |label: &str| {
            let mut lists = ASSEMBLY
                .lines()
                .filter_map(|line| line.trim().strip_prefix(".globl "));
            lists.any(|list| list.split(", ").any(|global| global == label))
        };
        let count = labels
            .inspect(|label| assert!(global(label), "{label}"))
            .count();
        assert!(count > 30, "{count}");
    }
}
