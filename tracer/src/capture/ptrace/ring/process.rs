//! The recorder in the memory of a process.

use std::ops::Range;
use std::sync::Arc;

use goanna_callsites::placed::{Sizes, distance};
use goanna_callsites::{Form, Library, Moves, Placed, Site};
use goanna_sys::arch::SYSCALL;
use goanna_sys::mappings::Mapping;
use goanna_sys::ptrace::Signal;
use goanna_sys::recorder::{Ring, STATE_AT, state};
use goanna_sys::{Errno, tracee};

/// Size of the code of a site, bytes.
const SITE_CODE: usize = 40;
/// In the code of a site of the third form, the offset of what is behind its `syscall`.
const ZERO_BEHIND_CALL: u64 = 24;

/// The least number of sites that the padding behind a library's code must hold. Where it holds fewer, and the library has more, the process maps [`SITE_MEMORY`].
const SITES_MIN: usize = 32;
/// Size of the memory that is mapped for the code of a library's sites, bytes.
pub const SITE_MEMORY: u64 = 4096;

/// Mappings without such code that are remembered.
const WITHOUT_SITES_MAX: usize = 64;

/// What is known of a process.
#[derive(Debug)]
pub enum Process {
    /// It has made so many calls that stopped and that could be recorded.
    Counting(u32),
    /// A copy of a process that had a recorder, which records nothing yet; and so many calls.
    Copied(Vec<Placed>, u32),
    Recording(Recorder),
    /// All its calls stop.
    Never,
}

/// A recorder that is in use.
#[derive(Debug)]
pub struct Recorder {
    pub ring: Ring,
    pub libraries: Vec<Placed>,
    /// Mappings with code from which nothing can be recorded, at most [`WITHOUT_SITES_MAX`].
    pub without_sites: Vec<Range<u64>>,
    /// It records nothing while a child of vfork(2) uses the memory.
    pub is_paused: bool,
    /// Signals that wait until the thread has left the recorder.
    pub held_signals: Vec<Signal>,
}

impl Recorder {
    /// Records that there is no memory for the sites of the library with this code.
    pub fn forget(&mut self, code: Range<u64>) {
        self.libraries.retain(|library| library.code() != code);
        self.note_without_sites(code);
    }

    /// Records that nothing can be recorded from the code in this mapping. If another mapping takes its place, its calls are traced by stops.
    pub fn note_without_sites(&mut self, code: Range<u64>) {
        if self.without_sites.len() >= WITHOUT_SITES_MAX {
            self.without_sites.clear();
        }
        self.without_sites.push(code);
    }
}

/// Writes a word of the state at `at` in the recorder at `base`.
pub fn set(tid: i32, base: u64, at: u64, value: u64) -> Result<(), Errno> {
    tracee::write_all(tid, base + STATE_AT as u64 + at, &value.to_le_bytes())
}

/// Reads one.
pub fn get(tid: i32, base: u64, at: u64) -> Result<u64, Errno> {
    let mut word = [0; 8];
    tracee::read_exact(tid, base + STATE_AT as u64 + at, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// Looks into the library with this content, for the calls that are `wanted`.
pub fn analyse(content: &[u8], wanted: &dyn Fn(u32) -> bool) -> Option<Library> {
    let kind_of = |nr: u32| wanted(nr).then_some(0);
    let mut library = Library::analyse(content, &kind_of).ok()?;
    // glibc's `__syscall_cancel_arch` is for processes with threads, which have no recorder.
    let has_threads = |site: &Site| matches!(site.form.moves(), Some((Moves::FromR11, _)));
    library.retain(|site| !has_threads(site));
    Some(library)
}

/// `library` where `mapping` has it.
pub fn placed(library: Arc<Library>, mapping: &Mapping) -> Option<Placed> {
    let sizes = Sizes {
        common: 0,
        site: SITE_CODE,
        least: SITES_MIN.min(library.sites.len()) * SITE_CODE,
    };
    Placed::mapped(library, mapping, sizes)
}

/// Makes sites lead to the recorder at `base`.
pub fn patch(library: &mut Placed, tid: i32, sites: &[Site], base: u64) -> Result<(), Errno> {
    let code = |placed: &Placed, site: &Site, here: u64| site_code(placed, site, here, base);
    library.patch(tid, sites, Vec::new, code)
}

/// What the site does not do any more; `lea` of the address behind the site's `syscall` to rcx; and the jump to the recorder.
///
/// A site of the third form has lost its `syscall`, and the comparison behind it: they are here.
fn site_code(placed: &Placed, site: &Site, here: u64, base: u64) -> Option<Vec<u8>> {
    const LOAD_RCX: [u8; 3] = [0x48, 0x8d, 0x0d];
    const MOVE_R11: [u8; 2] = [0x49, 0xbb];
    const JUMP_R11: [u8; 3] = [0x41, 0xff, 0xe3];
    const JUMP: u8 = 0xe9;
    const BREAKPOINT: u8 = 0xcc;
    let is_here = site.form == Form::Zero;
    let mut code = site.replaced();
    let bytes = site.bytes();
    let rest = bytes.get(code.len()..)?;
    code.extend(LOAD_RCX);
    let next = here + code.len() as u64 + 4;
    let jump = [MOVE_R11.as_slice(), &base.to_le_bytes(), &JUMP_R11].concat();
    let behind = if is_here {
        next + (jump.len() + SYSCALL.len()) as u64
    } else {
        placed.return_address(site)
    };
    code.extend(distance(next, behind)?);
    code.extend(jump);
    if is_here {
        debug_assert_eq!(code.len() as u64 + 2, ZERO_BEHIND_CALL);
        code.extend_from_slice(rest);
        code.push(JUMP);
        let next = here + code.len() as u64 + 4;
        code.extend(distance(next, placed.base + site.end())?);
    }
    code.resize(SITE_CODE, BREAKPOINT);
    Some(code)
}

/// Where a thread continues that is behind the `syscall` of a site of the third form, now that this is patched.
pub fn behind_call(library: &Placed, site: &Site) -> Option<u64> {
    (site.form == Form::Zero).then_some(library.stub_of(site)? + ZERO_BEHIND_CALL)
}

/// Lets all calls of the process stop.
pub fn turn_off(tid: i32, base: u64) {
    // A process that was killed makes no calls.
    let _ = set(tid, base, state::OFF, 1);
}
