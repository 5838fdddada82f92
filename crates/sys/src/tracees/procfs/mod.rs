//! Reads the state of a task from /proc (proc_pid_status(5) and others). A task that has ended gives `ESRCH`.

mod descriptor_count;

use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;

pub use descriptor_count::DescriptorCount;

/// Fields of /proc/TID/status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskStatus {
    /// Process id (thread group).
    pub tgid: i32,
    /// Process id in its own PID namespace; [`tgid`](Self::tgid) where the kernel does not say.
    pub own_pid: i32,
    /// Parent process id.
    pub ppid: i32,
    /// Tracer's thread id; 0 when there is none.
    pub tracer: i32,
    /// Real, effective, saved and file-system user id.
    pub uid: [u32; 4],
    /// Real, effective, saved and file-system group id.
    pub gid: [u32; 4],
    /// Supplementary groups, sorted.
    pub groups: Vec<u32>,
    /// Permitted capabilities, one bit each.
    pub cap_prm: u64,
    /// Effective capabilities.
    pub cap_eff: u64,
    /// File mode creation mask; 0 for a zombie, which creates nothing.
    pub umask: u32,
    /// Signals, one bit each.
    pub signals: SignalSets,
    /// Whether execve can no longer grant privileges.
    pub no_new_privs: bool,
    /// Seccomp mode: 0 none, 1 strict, 2 filter.
    pub seccomp: u32,
    /// Seccomp filters in force; 0 where the kernel does not say (before Linux 5.9).
    pub seccomp_filters: u32,
}

/// Signals of a thread, as sets: signal N is bit N-1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignalSets {
    /// For the thread or its process, and not delivered yet.
    pub pending: u64,
    /// Blocked by the thread.
    pub blocked: u64,
    /// Ignored.
    pub ignored: u64,
    /// That have a handler.
    pub caught: u64,
}

/// Reads /proc/TID/status. `EIO`: a line this kernel must have is missing or not a number.
pub fn status(tid: i32) -> Result<TaskStatus, Errno> {
    parse(&content(tid, "status")?).ok_or(Errno::EIO)
}

/// The content of /proc/TID/`name`, a file that the kernel writes in one piece. Such a file is at its end where a read returns less
/// than it could. So this takes three system calls; [`fs::read`] also asks for the size, which is 0, and reads once more.
fn content(tid: i32, name: &str) -> Result<Vec<u8>, Errno> {
    const PIECE: usize = 4096;
    let mut file = fs::File::open(format!("/proc/{tid}/{name}")).map_err(gone)?;
    let mut text = Vec::new();
    loop {
        let end = text.len();
        text.resize(end + PIECE, 0);
        let got = file.read(&mut text[end..]).map_err(gone)?;
        text.truncate(end + got);
        if got < PIECE {
            return Ok(text);
        }
    }
}

/// The lines that a status must have. Older kernels lack some of the others.
const REQUIRED: [&[u8]; 12] = [
    b"Tgid", b"PPid", b"Uid", b"Gid", b"Groups", b"CapPrm", b"CapEff", b"SigPnd", b"ShdPnd",
    b"SigBlk", b"SigIgn", b"SigCgt",
];

fn parse(text: &[u8]) -> Option<TaskStatus> {
    let mut status = TaskStatus {
        tgid: 0,
        own_pid: 0,
        ppid: 0,
        tracer: 0,
        uid: [u32::MAX; 4],
        gid: [u32::MAX; 4],
        groups: Vec::new(),
        cap_prm: 0,
        cap_eff: 0,
        umask: 0,
        signals: SignalSets::default(),
        no_new_privs: false,
        seccomp: 0,
        seccomp_filters: 0,
    };
    let mut required = 0;
    for line in text.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            continue;
        };
        let (key, value) = (&line[..colon], &line[colon + 1..]);
        // The task's own name is the only value that need not be ASCII; the kernel escapes newlines in it.
        let value = match std::str::from_utf8(value) {
            Ok(value) => value.trim_ascii(),
            Err(_) => continue,
        };
        let set = || u64::from_str_radix(value, 16).ok();
        match key {
            b"Tgid" => {
                status.tgid = value.parse().ok()?;
                status.own_pid = status.tgid;
            }
            b"NStgid" => status.own_pid = value.split_ascii_whitespace().last()?.parse().ok()?,
            b"PPid" => status.ppid = value.parse().ok()?,
            b"TracerPid" => status.tracer = value.parse().ok()?,
            b"Uid" => status.uid = four(value)?,
            b"Gid" => status.gid = four(value)?,
            b"Groups" => {
                let groups: Result<_, _> = value.split_ascii_whitespace().map(str::parse).collect();
                status.groups = groups.ok()?;
                status.groups.sort_unstable();
            }
            b"CapPrm" => status.cap_prm = set()?,
            b"CapEff" => status.cap_eff = set()?,
            b"Umask" => status.umask = u32::from_str_radix(value, 8).ok()?,
            b"SigPnd" | b"ShdPnd" => status.signals.pending |= set()?,
            b"SigBlk" => status.signals.blocked = set()?,
            b"SigIgn" => status.signals.ignored = set()?,
            b"SigCgt" => status.signals.caught = set()?,
            b"NoNewPrivs" => status.no_new_privs = value != "0",
            b"Seccomp" => status.seccomp = value.parse().ok()?,
            b"Seccomp_filters" => status.seccomp_filters = value.parse().ok()?,
            _ => continue,
        }
        required += usize::from(REQUIRED.contains(&key));
    }
    (required == REQUIRED.len()).then_some(status)
}

fn four(value: &str) -> Option<[u32; 4]> {
    let mut fields = value
        .split_ascii_whitespace()
        .map(|field| field.parse().ok());
    let ids = [
        fields.next()??,
        fields.next()??,
        fields.next()??,
        fields.next()??,
    ];
    fields.next().is_none().then_some(ids)
}

/// The task's name, at most 15 bytes; a zombie keeps it.
pub fn comm(tid: i32) -> Result<Vec<u8>, Errno> {
    let mut name = content(tid, "comm")?;
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    Ok(name)
}

/// Device and inode of the user namespace (user_namespaces(7)). `EACCES`: we may not ptrace the task. `EOPNOTSUPP`: the
/// kernel has no user namespaces.
pub fn user_namespace(tid: i32) -> Result<(u64, u64), Errno> {
    match fs::metadata(format!("/proc/{tid}/ns/user")) {
        Ok(meta) => Ok((meta.dev(), meta.ino())),
        Err(error) if errno(&error) == Errno::ENOENT && exists(tid) => Err(Errno::EOPNOTSUPP),
        Err(error) => Err(gone(error)),
    }
}

/// The ranges of ids in `file`, `uid_map` or `gid_map`, of a task in another user namespace: first id there, first id here,
/// how many. A map that was not written yet has none.
pub fn id_map(tid: i32, file: &str) -> Result<Vec<[u32; 3]>, Errno> {
    let text = fs::read_to_string(format!("/proc/{tid}/{file}")).map_err(gone)?;
    let range = |line: &str| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(inside)), Some(Ok(outside)), Some(Ok(count))) => Ok([inside, outside, count]),
            _ => Err(Errno::EIO),
        }
    };
    text.lines().map(range).collect()
}

/// What a thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It runs, in its program or in the kernel.
    Running,
    /// It sleeps in the kernel.
    Sleeping,
    /// Its tracer, or a stopping signal, has stopped it.
    Stopped,
    /// It has ended.
    Ended,
}

/// The state that /proc/TID/stat shows.
pub fn activity(tid: i32) -> Result<Activity, Errno> {
    let text = content(tid, "stat")?;
    // The name of the program is in parentheses, and may itself contain some.
    let state = text.rsplit(|&byte| byte == b')').next();
    Ok(match state.and_then(|rest| rest.get(1)) {
        Some(b'R') => Activity::Running,
        Some(b't' | b'T') => Activity::Stopped,
        Some(b'Z' | b'X') => Activity::Ended,
        _ => Activity::Sleeping,
    })
}

/// A call that a thread sleeps in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SleepingCall {
    /// Its number; -1 if the thread sleeps elsewhere in the kernel, as for a page. Then the rest is 0.
    pub number: i64,
    /// The arguments.
    pub args: [u64; 6],
    /// The stack pointer of the thread.
    pub stack_pointer: u64,
}

/// The call that a thread sleeps in. `None`: it runs. `EPERM` and the like: it may not be seen.
pub fn sleeping_call(tid: i32) -> Result<Option<SleepingCall>, Errno> {
    let text = content(tid, "syscall")?;
    Ok(str::from_utf8(&text).ok().and_then(parsed_call))
}

/// A line of /proc/TID/syscall: the number, six arguments, the stack pointer and the instruction pointer.
fn parsed_call(line: &str) -> Option<SleepingCall> {
    let mut fields = line.split_ascii_whitespace();
    let mut call = SleepingCall {
        number: fields.next()?.parse().ok()?,
        args: [0; 6],
        stack_pointer: 0,
    };
    if call.number < 0 {
        return Some(call);
    }
    for value in call.args.iter_mut().chain([&mut call.stack_pointer]) {
        let digits = fields.next()?.strip_prefix("0x")?;
        *value = u64::from_str_radix(digits, 16).ok()?;
    }
    Some(call)
}

/// Those of `inodes` that appear in the thread's memory maps. Device numbers are not compared: on btrfs they differ from those that stat(2)
/// shows.
pub fn mapped_inodes(tid: i32, inodes: &[u64]) -> Result<Vec<u64>, Errno> {
    let text = fs::read(format!("/proc/{tid}/maps")).map_err(gone)?;
    let mut found = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        // Addresses, rights, offset, device, inode.
        let mut fields = line.split(|&byte| byte == b' ').skip(4);
        let inode = fields.next().and_then(|field| str::from_utf8(field).ok());
        let inode = inode.and_then(|field| field.parse().ok());
        if let Some(inode) = inode.filter(|inode| inodes.contains(inode) && !found.contains(inode))
        {
            found.push(inode);
        }
    }
    Ok(found)
}

/// Device and inode of the working directory.
pub fn cwd_identity(tid: i32) -> Result<(u64, u64), Errno> {
    let meta = fs::metadata(format!("/proc/{tid}/cwd")).map_err(gone)?;
    Ok((meta.dev(), meta.ino()))
}

/// The offset of the open file description behind a descriptor.
pub fn description_offset(tid: i32, fd: i32) -> Result<u64, Errno> {
    description(tid, fd, "pos:", |offset| offset.parse().ok())
}

/// The access mode and the flags of the open file description behind a descriptor, as open(2) has them.
pub fn description_flags(tid: i32, fd: i32) -> Result<i32, Errno> {
    description(tid, fd, "flags:", |flags| {
        i32::from_str_radix(flags, 8).ok()
    })
}

/// What fdinfo has behind `name` for a descriptor.
fn description<T>(
    tid: i32,
    fd: i32,
    name: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, Errno> {
    let info = fs::read_to_string(format!("/proc/{tid}/fdinfo/{fd}")).map_err(gone)?;
    let value = info.lines().find_map(|line| line.strip_prefix(name));
    value
        .and_then(|value| parse(value.trim()))
        .ok_or(Errno::EIO)
}

/// Bytes of files, and of shared memory, that this process has in memory.
pub fn own_file_memory() -> Result<u64, Errno> {
    const PAGE: u64 = 4096;
    let pages = fs::read_to_string("/proc/self/statm").map_err(gone)?;
    let shared = pages.split(' ').nth(2).and_then(|pages| pages.parse().ok());
    shared.map(|pages: u64| pages * PAGE).ok_or(Errno::EIO)
}

/// Path of the working directory, with " (deleted)" after it when it was removed.
pub fn cwd(tid: i32) -> Result<Vec<u8>, Errno> {
    link(&format!("/proc/{tid}/cwd")).map_err(gone)
}

/// Path of the root directory.
pub fn root(tid: i32) -> Result<Vec<u8>, Errno> {
    link(&format!("/proc/{tid}/root")).map_err(gone)
}

/// Path of the program.
pub fn exe(tid: i32) -> Result<Vec<u8>, Errno> {
    link(&format!("/proc/{tid}/exe")).map_err(gone)
}

/// What descriptor `fd` refers to, as /proc names it. `EBADF`: no such descriptor.
pub fn fd_link(tid: i32, fd: i32) -> Result<Vec<u8>, Errno> {
    link(&format!("/proc/{tid}/fd/{fd}")).map_err(|error| match errno(&error) {
        Errno::ENOENT if exists(tid) => Errno::EBADF,
        _ => gone(error),
    })
}

/// Device and inode of what descriptor `fd` refers to. `EBADF`: no such descriptor.
pub fn fd_identity(tid: i32, fd: i32) -> Result<(u64, u64), Errno> {
    fd_object(tid, fd).map(|(dev, ino, _)| (dev, ino))
}

/// Device, inode and mode of what descriptor `fd` refers to. `EBADF`: no such descriptor.
pub fn fd_object(tid: i32, fd: i32) -> Result<(u64, u64, u32), Errno> {
    match fs::metadata(format!("/proc/{tid}/fd/{fd}")) {
        Ok(meta) => Ok((meta.dev(), meta.ino(), meta.mode())),
        Err(error) if errno(&error) == Errno::ENOENT && exists(tid) => Err(Errno::EBADF),
        Err(error) => Err(gone(error)),
    }
}

/// Numbers of the open descriptors, sorted.
pub fn fds(tid: i32) -> Result<Vec<i32>, Errno> {
    numbers(&format!("/proc/{tid}/fd"))
}

/// The process IDs that this process can see, sorted.
pub fn processes() -> Result<Vec<i32>, Errno> {
    numbers("/proc")
}

/// Numbers of the threads of process `pid`, sorted.
pub fn threads(pid: i32) -> Result<Vec<i32>, Errno> {
    numbers(&format!("/proc/{pid}/task"))
}

/// The child processes of process `pid`, also such that have ended and are not reaped. Empty if it has ended, or the kernel does not say
/// (`CONFIG_PROC_CHILDREN`).
pub fn children(pid: i32) -> Vec<i32> {
    let threads = threads(pid).unwrap_or_default().into_iter();
    let of_thread = |tid| {
        // The kernel writes this file in pieces.
        let children = fs::read(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
        let children = String::from_utf8_lossy(&children);
        let parsed = children.split_ascii_whitespace().map(str::parse);
        parsed.flatten().collect::<Vec<i32>>()
    };
    threads.flat_map(of_thread).collect()
}

/// Whether thread `tid` has ended, reaped or not.
pub fn has_ended(tid: i32) -> bool {
    let stat = content(tid, "stat").unwrap_or_default();
    // The name, in parentheses, may hold anything.
    let after_name = stat.iter().rposition(|&byte| byte == b')');
    let state = after_name.and_then(|at| stat.get(at + 2));
    state.is_none_or(|state| matches!(state, b'Z' | b'X'))
}

/// A value of the auxiliary vector that the kernel gave the program (getauxval(3)).
pub fn auxiliary_value(tid: i32, key: u64) -> Result<Option<u64>, Errno> {
    let vector = fs::read(format!("/proc/{tid}/auxv")).map_err(gone)?;
    let entries = vector.as_chunks::<8>().0.as_chunks::<2>().0.iter();
    let mut entries = entries.map(|entry| entry.map(u64::from_ne_bytes));
    Ok(entries.find(|[own, _]| *own == key).map(|[_, value]| value))
}

/// More bytes than any vDSO has.
const VDSO_MAX: u64 = 1 << 20;

/// Start and end of the vDSO in the address space. `EOPNOTSUPP`: it has none; `ESRCH`: the task is ending, and has no
/// address space any more.
pub fn vdso(tid: i32) -> Result<(u64, u64), Errno> {
    let maps = fs::read(format!("/proc/{tid}/maps")).map_err(gone)?;
    if maps.is_empty() {
        return Err(Errno::ESRCH);
    }
    let mut lines = maps.split(|&byte| byte == b'\n');
    lines.find_map(vdso_in).ok_or(Errno::EOPNOTSUPP)
}

/// Start and end of the vDSO, if this line of maps is about it. Names of files may not be UTF-8, and may end in anything. The path of a
/// file has at least a slash before that.
fn vdso_in(line: &[u8]) -> Option<(u64, u64)> {
    // Addresses, rights, offset, device, inode.
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let range = fields.next()?;
    if fields.nth(4)?.trim_ascii() != b"[vdso]" {
        return None;
    }
    let (start, end) = str::from_utf8(range).ok()?.split_once('-')?;
    let parse = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (parse(start)?, parse(end)?);
    (end.checked_sub(start)? <= VDSO_MAX).then_some((start, end))
}

fn numbers(dir: &str) -> Result<Vec<i32>, Errno> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir).map_err(gone)? {
        let name = entry.map_err(gone)?.file_name();
        if let Some(number) = name.to_str().and_then(|name| name.parse().ok()) {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn exists(tid: i32) -> bool {
    fs::metadata(format!("/proc/{tid}")).is_ok()
}

fn link(path: &str) -> std::io::Result<Vec<u8>> {
    Ok(fs::read_link(path)?.into_os_string().into_vec())
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

/// /proc/TID of a task that has ended does not exist; its links and files fail with ENOENT or ESRCH.
#[expect(clippy::needless_pass_by_value, reason = "the argument of map_err")]
fn gone(error: std::io::Error) -> Errno {
    match errno(&error) {
        Errno::ENOENT => Errno::ESRCH,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_from_a_sleep_elsewhere_and_from_a_thread_that_runs() {
        let line = "257 0xffffff9c 0x7ffe 0x80000 0x0 0x5 0x6 0x7ffd934f7000 0x7f0f24fec011\n";
        let call = SleepingCall {
            number: 257,
            args: [0xffff_ff9c, 0x7ffe, 0x80000, 0, 5, 6],
            stack_pointer: 0x7ffd_934f_7000,
        };
        assert_eq!(parsed_call(line), Some(call));
        let elsewhere = parsed_call("-1 0x7ffd934f7000 0x7f0f24fec011\n");
        assert_eq!(elsewhere.map(|call| call.number), Some(-1));
        assert_eq!(parsed_call("running\n"), None);
    }
}
