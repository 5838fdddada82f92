//! Calls answered inside the tracee: calls that concern no mount run natively, without a notification.
//!
//! In a process that makes many calls a site of libc or its loader (`goanna-callsites`) is patched, when it is used for the second time, to
//! jump to a stub (`goanna_sys::stub`) behind the library's code, or in memory that the process maps for stubs ([ADR 0143](../../../docs/decisions/0143-memory-for-stubs.md)). The stub makes the call under a cookie that the seccomp filter lets pass,
//! and keeps the result only where the monitor would have passed the call on; otherwise it continues with the site's
//! `syscall`, which notifies. Code that is not patched notifies as well, so patching is never needed for a right answer. The rules and their reasons are in docs/decisions/0053.
//!
//! * `calls` says which calls have stubs, and what each must look at.
//! * `goanna-callsites` analyses a library; `libraries` keeps what it finds, for the run.
//! * A process of a run that makes many calls gets stubs of its loader when it begins ([ADR 0125](../../../docs/decisions/0125-stubs-of-the-loader.md)).
//! * A process that starts its second thread gets all likely stubs of libc before that ([ADR 0142](../../../docs/decisions/0142-stubs-in-processes-with-threads.md)).
//! * `area` makes the bytes, and `space` keeps what is in an address space.
//! * [`run_map`] is the map of attributes from which stubs answer for files in a store, `shared` fills it; or for files of the host in a mount, `on_host` fills it then.
//! * A process that often writes to files of a store gets an area for grants, by which it writes without the monitor
//!   ([ADR 0121](../../../docs/decisions/0121-writes-by-grants.md)). The back end makes the grants.
//!   `memory` asks for them.
//! * [`opens`] lets a thread open a descriptor of the monitor, which then need not wait for it, and keeps what it opens meanwhile.
//! * `mount_points` learns whether mount points exist on the host, because a link may lead into one then.
//! * `leave` takes a thread out of a stub before a signal's handler runs, so that a handler never sees one.

mod area;
pub mod calls;
mod leave;
mod libraries;
mod memory;
pub mod mount_points;
mod on_host;
pub mod opens;
pub mod run_map;
mod shared;
mod space;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use goanna_callsites::library::content;
use goanna_sys::mappings::{self, Mapping};
use goanna_sys::{memfile, stat, stub};
use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, Mounts};
use parking_lot::Mutex;

use crate::Monitor;
use crate::call::{Call, shows_host_read_only};
use crate::ptracer::inject::map::MapMemory;
use area::{Constants, MountNames};
pub use leave::StubPosition;
use libraries::{Examined, Libraries};
use mount_points::MountPoints;
use opens::Opens;
use opens::shared_files::SharedFiles;
use run_map::RunMap;
use space::{Space, Wanted};

/// Notified calls of a process before anything is patched in it. Most processes make fewer, and never pay for patches.
const CALLS_BEFORE: u32 = 64;

/// Notified calls of all processes of a run before a library is analysed. That takes 2 to 3 ms of CPU time, which stubs do not save in a run with fewer calls.
const CALLS_OF_RUN_BEFORE: u32 = 1024;

/// Time from the first stubs of a run to the watch for mount points on the host. The end of an inotify(7) instance that has watched something takes some
/// milliseconds, which the end of the run waits for: too long for a run that ends soon.
const WATCH_AFTER: Duration = Duration::from_millis(20);
/// Calls that come to the monitor only because there is no memory for their stubs, before a process gets some.
const STUBS_AFTER: u32 = 16;
/// Calls of patched sites that come to the monitor all the same, before a process gets the map of attributes.
const MAP_AFTER: u32 = 32;
/// Writes to files of a store from patched sites before a process gets an area for writes.
const WRITES_AFTER: u32 = 32;

/// The reason why no call of a run is answered in the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unused {
    /// The user does not want it.
    Option,
    /// The run reports changes outside of the store, inserts transactions, or has an observer of calls: every call must be seen.
    Watched,
    /// Descriptors cannot be distinguished by their device, or there are more mounts than a stub looks for.
    Indistinct,
}

impl Unused {
    /// The reason, for messages.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Option => "switched off",
            Self::Watched => "--outside, --profile and --trace see every call",
            Self::Indistinct => {
                "the run-time directory is on the device of the root directory, or there are too many mounts"
            }
        }
    }
}

/// The stubs of a run.
#[derive(Debug)]
pub struct InProcess {
    /// `None`: not used.
    constants: Option<Constants>,
    libraries: Libraries,
    /// Notified calls that stubs could have looked at.
    calls: AtomicU32,
    threads: Mutex<HashMap<i32, Arc<Thread>>>,
    /// A process is to get memory for stubs.
    stubs_are_due: AtomicBool,
    /// A process is to get the map of attributes. Most calls come when none is, and look at no space for it.
    map_is_due: AtomicBool,
    /// A process is to get an area for writes.
    area_is_due: AtomicBool,
    /// The map of attributes, once a process has asked for it.
    shared: OnceLock<Option<Arc<RunMap>>>,
    /// The files that processes open without a notification.
    shared_files: SharedFiles,
    /// How many file systems programs have mounted on directories in mounts. Held while the map is opened or closed for them.
    covered: Mutex<isize>,
    answered: AtomicU64,
}

/// A thread of a run.
#[derive(Debug)]
struct Thread {
    space: Arc<Space>,
    /// It runs in the memory of its parent until it executes a program (vfork(2)).
    is_guest: bool,
    opens: Opens,
}

impl Thread {
    fn of(space: Space) -> Arc<Self> {
        Self::in_space(Arc::new(space), false)
    }

    fn in_space(space: Arc<Space>, is_guest: bool) -> Arc<Self> {
        let opens = Opens::default();
        Arc::new(Self {
            space,
            is_guest,
            opens,
        })
    }
}

impl InProcess {
    /// For a run over `mounts`, whose run-time directory is `run_dir`; not used where `unused` says why. `counts`: stubs count
    /// their calls. `notifies` says whether a call comes to the monitor if it is not answered in the process.
    pub fn new(
        mounts: &Mounts,
        run_dir: &Path,
        unused: Option<Unused>,
        counts: bool,
        notifies: impl Fn(u32) -> bool,
    ) -> Self {
        let constants = match unused {
            Some(_) => None,
            None => constants(mounts, run_dir, counts, notifies).ok(),
        };
        Self {
            constants,
            libraries: Libraries::default(),
            calls: AtomicU32::new(0),
            threads: Mutex::default(),
            stubs_are_due: AtomicBool::new(false),
            map_is_due: AtomicBool::new(false),
            area_is_due: AtomicBool::new(false),
            shared: OnceLock::new(),
            shared_files: SharedFiles::default(),
            covered: Mutex::default(),
            answered: AtomicU64::new(0),
        }
    }

    /// The key of the cookies, for the filter.
    pub fn key(&self) -> Option<u64> {
        self.constants.as_ref().map(|constants| constants.key)
    }

    /// A notified call came from the instruction before `ip`: patches its site when it is used for the second time. The caller
    /// waits in the kernel.
    pub fn observe(&self, call: &Call<'_>, ip: u64) {
        let Some(constants) = &self.constants else {
            return;
        };
        // A stub cannot tell a descriptor of a read-only mount from another one.
        let is_checked =
            || calls::changes_attributes(call.nr) && shows_host_read_only(&call.mounts);
        if calls::kind_of(call.nr).is_none() || is_checked() {
            return;
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        let thread = self.thread(call.task.tid);
        let Some(thread) = thread.filter(|thread| !thread.is_guest) else {
            return;
        };
        let space = &thread.space;
        let is_host = || has_host_directory(call);
        let library = |mapping: &Mapping| {
            if !self.has_many_calls(constants) {
                let known = self.libraries.known(mapping);
                return known.unwrap_or(Examined::NotYet);
            }
            let executor = &call.monitor.executor;
            self.libraries
                .analysed(constants, executor, call.task.tid, mapping)
        };
        let at = (call.task.tid, call.nr, ip);
        match space.observe(constants, at, library, is_host) {
            Wanted::Nothing => {}
            Wanted::Stubs => self.stubs_are_due.store(true, Ordering::Relaxed),
            Wanted::Map => self.map_is_due.store(true, Ordering::Relaxed),
        }
        if !constants.mount_points.is_asked() && space.is_patched() {
            constants.mount_points.ask();
        }
    }

    /// Whether the run has made so many calls that libraries are analysed.
    fn has_many_calls(&self, constants: &Constants) -> bool {
        self.calls.load(Ordering::Relaxed) >= constants.calls_of_run_before
    }

    /// Looks for the mount points on the host, and watches for them, a while after the first process has got stubs. `tid` is a thread of the run.
    pub fn watch_mount_points(&self, monitor: &Arc<Monitor>, tid: i32) {
        let Some(constants) = &self.constants else {
            return;
        };
        if !constants.mount_points.take_request() || !constants.mount_points.can_be_watched(tid) {
            return;
        }
        let weak = Arc::downgrade(monitor);
        let watch = Box::new(move || {
            if let Some(monitor) = weak.upgrade()
                && let Some(constants) = &monitor.in_process.constants
                && constants.mount_points.watch(&monitor)
            {
                monitor.in_process.refresh_flags(constants);
            }
        });
        // Without threads it is not known.
        let _ = monitor
            .executor
            .at(Instant::now() + WATCH_AFTER, watch)
            .map(drop);
    }

    /// Something was made in the directory of the mount points. Whether none of them exists yet.
    fn mount_points_are_absent(&self) -> bool {
        let Some(constants) = &self.constants else {
            return false;
        };
        let absent = constants.mount_points.look();
        if !absent {
            self.refresh_flags(constants);
        }
        absent
    }

    /// A mount point may exist on the host from now on.
    fn forget_mount_points(&self) {
        if let Some(constants) = &self.constants {
            constants.mount_points.forget();
            self.refresh_flags(constants);
        }
    }

    fn refresh_flags(&self, constants: &Constants) {
        for (tid, thread) in self.all_threads() {
            thread.space.refresh_flags(constants, tid);
        }
    }

    fn all_threads(&self) -> Vec<(i32, Arc<Thread>)> {
        let threads = self.threads.lock();
        let threads = threads.iter();
        threads
            .map(|(tid, thread)| (*tid, Arc::clone(thread)))
            .collect()
    }

    fn thread(&self, tid: i32) -> Option<Arc<Thread>> {
        self.threads.lock().get(&tid).cloned()
    }

    fn space(&self, tid: i32) -> Option<Arc<Space>> {
        let threads = self.threads.lock();
        Some(Arc::clone(&threads.get(&tid)?.space))
    }

    /// `tid` is followed from its first instruction on. It executes the command soon.
    pub fn add(&self, tid: i32) {
        if self.constants.is_some() {
            let thread = Thread::of(Space::unused(tid));
            self.threads.lock().insert(tid, thread);
        }
    }

    /// Thread `former` has executed a program, and is `tid` now.
    pub fn executed(&self, tid: i32, former: i32) {
        if self.constants.is_none() {
            return;
        }
        let mut threads = self.threads.lock();
        let old = threads.remove(&former);
        let new = match &old {
            Some(old) => old.space.executed(tid),
            None => Space::with_own_filters(tid),
        };
        let leader = threads.insert(tid, Thread::of(new));
        drop(threads);
        // Dropping what they keep calls the back end.
        drop((old, leader));
    }

    /// Thread `tid`, which is stopped, has just executed a program whose first instruction is at `entry`. Its loader gets stubs at once where the run makes many
    /// calls: most of the calls of a short process are the loader's.
    pub fn prepare_loader(&self, monitor: &Monitor, tid: i32, entry: u64) {
        let Some(constants) = &self.constants else {
            return;
        };
        if !self.has_many_calls(constants) {
            return;
        }
        let Some(space) = self.space(tid) else { return };
        space.patch_loader(constants, (tid, entry), |mapping| {
            let executor = &monitor.executor;
            self.libraries.loader(constants, executor, tid, mapping)
        });
        if !constants.mount_points.is_asked() && space.is_patched() {
            constants.mount_points.ask();
        }
    }

    /// Thread `tid` is about to continue after it has started `child`, by clone(2) with these flags; `None` where they cannot be
    /// told, behind which is the instruction at `at`. Neither has run since.
    /// If there is a script, `tid` is to run it before either of them does.
    pub fn forked(
        &self,
        monitor: &Arc<Monitor>,
        (tid, at): (i32, u64),
        child: i32,
        flags: Option<u64>,
    ) -> Option<MapMemory> {
        let constants = self.constants.as_ref()?;
        const THREAD: u64 = libc::CLONE_THREAD as u64;
        const SHARED: u64 = THREAD | (libc::CLONE_FS | libc::CLONE_FILES) as u64;
        const VM: u64 = libc::CLONE_VM as u64;
        const VFORK: u64 = libc::CLONE_VFORK as u64;
        let thread = self.thread(tid)?;
        let parent = &thread.space;
        // The child's counter begins where its parent's is.
        self.count(tid);
        let shares_directory = flags.is_none_or(|flags| {
            const SHARES: u64 = libc::CLONE_FS as u64;
            flags & (SHARES | THREAD) == SHARES
        });
        let is_thread = !thread.is_guest && flags.is_some_and(|flags| flags & THREAD != 0);
        let flags = flags.unwrap_or(SHARED);
        // Memory that is used by one process after the other is used by one.
        let takes_turns = flags & (VM | VFORK) == VM | VFORK && flags & SHARED == 0;
        let inherited = if flags & VM != 0 {
            Arc::clone(parent)
        } else {
            let copied = parent.copied(child);
            copied.leave_area_to(parent, constants, child);
            copied.agree_with_memory(parent, constants, child);
            Arc::new(copied)
        };
        let mut script = None;
        if is_thread {
            let stubs_at = parent.starts_threads(constants, (tid, at), |mapping| {
                self.libraries.analysed_at_once(tid, mapping)
            });
            script = stubs_at.map(|at| memory::map_stubs(monitor, at));
            if flags & libc::CLONE_FS as u64 == 0 {
                parent.separate_directories(constants, tid);
            }
        } else if flags & (SHARED | VM) != 0 && !takes_turns {
            parent.turn_off(constants, tid);
            inherited.turn_off(constants, child);
        }
        if shares_directory {
            parent.share_directory();
            inherited.share_directory();
        }
        const OTHER_VIEW: u64 =
            (libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS) as u64;
        if flags & OTHER_VIEW != 0 {
            // Owners of files look different there, and processes have other numbers.
            inherited.forget_map(constants, child);
        }
        if flags & (libc::CLONE_NEWUSER | libc::CLONE_NEWNS) as u64 != 0 {
            inherited.forget_mounts(constants, child);
        }
        let is_guest = flags & VM != 0 && !is_thread;
        let inheriting = Thread::in_space(Arc::clone(&inherited), is_guest);
        let former = self.threads.lock().insert(child, inheriting);
        // Without the lock.
        drop(former);
        if constants.mount_points.have_appeared() {
            // Perhaps after the child's memory was copied, and before this space was known.
            inherited.refresh_flags(constants, child);
        }
        if !constants.mount_points.is_asked() && inherited.is_patched() {
            constants.mount_points.ask();
        }
        script
    }

    /// Thread `tid` has not run, and its parent was killed, so what it has inherited is not known. If it has stubs, they notify.
    pub fn orphaned(&self, tid: i32) {
        let Some(constants) = &self.constants else {
            return;
        };
        for mapping in mappings::all(tid).unwrap_or_default() {
            let library = match self.libraries.known(&mapping) {
                Some(Examined::Is(library)) => Some(library),
                _ => None,
            };
            space::turn_off_unknown(constants, tid, &mapping, library);
        }
    }

    /// Whether [`InProcess::count`] is to be called when processes exit or execute a program.
    pub fn counts(&self) -> bool {
        self.constants
            .as_ref()
            .is_some_and(|constants| constants.counts)
    }

    /// Takes note of the calls that were answered in the process of `tid`, whose memory is about to go.
    pub fn count(&self, tid: i32) {
        if !self.counts() {
            return;
        }
        if let Some(space) = self.space(tid) {
            self.answered.fetch_add(space.count(tid), Ordering::Relaxed);
        }
    }

    /// Calls that stubs have answered, as the programs have counted them.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Thread `tid` has ended.
    pub fn ended(&self, tid: i32) {
        if self.constants.is_some() {
            let ended = self.threads.lock().remove(&tid);
            // Without the lock, as in `executed`.
            drop(ended);
        }
    }

    /// Neither thread `tid`, nor any process that it starts, has stubs from now on: it is about to get a seccomp filter of its own, which would judge what they
    /// do, or sees more mounts than they compare with.
    pub fn exclude(&self, tid: i32) {
        if let (Some(constants), Some(space)) = (&self.constants, self.space(tid)) {
            space.set_own_filters();
            space.turn_off(constants, tid);
        }
    }

    /// Thread `tid` sees `mounts` from now on, which are not those that the run began with. Its calls notify until it executes a program. The stubs of programs that it
    /// and its descendants execute know these mounts.
    pub fn sees(&self, tid: i32, mounts: &Mounts) {
        let (Some(constants), Some(space)) = (&self.constants, self.space(tid)) else {
            return;
        };
        if space.sees(constants, mounts).is_err() {
            self.exclude(tid);
        }
        space.turn_off(constants, tid);
        space.forget_map(constants, tid);
    }

    /// Thread `tid` is about to enter other name spaces: perhaps one of users, in which owners of files look different, or one of mounts,
    /// in which other directories have the paths of the mount points. The thread may also cease to have its working directory in common with others.
    pub fn leaves_namespaces(&self, tid: i32) {
        if let (Some(constants), Some(space)) = (&self.constants, self.space(tid)) {
            space.forget_map(constants, tid);
            space.forget_mounts(constants, tid);
            space.separate_directories(constants, tid);
        }
    }

    /// Programs have mounted `more` file systems on directories in mounts, or unmounted as many if it is negative.
    pub fn cover(&self, more: isize) {
        let mut covered = self.covered.lock();
        *covered += more;
        if let Some(Some(shared)) = self.shared.get() {
            shared.settle(*covered != 0);
        }
    }

    /// Thread `tid` is about to change its working directory to something else than a directory of the host.
    pub fn leaves_host(&self, tid: i32) {
        if let (Some(constants), Some(space)) = (&self.constants, self.space(tid)) {
            space.forget_directory(constants, tid);
        }
    }
}

/// Where C libraries are.
const LIBRARIES: [&str; 8] = [
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib64/libc.so.6",
    "/usr/lib64/libc.so.6",
    "/usr/lib/libc.so.6",
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-x86-64.so.2",
    "/usr/lib64/ld-linux-x86-64.so.2",
    "/usr/lib/ld-linux-x86-64.so.2",
];

/// The number of calls of the library with this content that can be patched; the reason if there is none.
pub fn patchable_calls(content: &[u8]) -> Result<usize, &'static str> {
    area::analyse(content).map(|library| library.sites.len())
}

/// Describes which of the usual C libraries can be patched, and tells whether any can. `run_dir` is a run-time directory, and `tid` a process that
/// has this one's memory and waits.
pub fn check(run_dir: &Path, tid: i32) -> Result<String, String> {
    let reason = |errno: Errno| match errno {
        Errno::EBUSY => Unused::Indistinct.reason().to_owned(),
        errno => errno.desc().to_owned(),
    };
    distinct_device(run_dir).map_err(reason)?;
    let code = stub::common();
    let written = code.first_chunk::<8>().map_or(Ok(()), |bytes| {
        goanna_sys::tracee::write_forced(tid, code.as_ptr().addr() as u64, bytes)
    });
    if let Err(errno) = written {
        return Err(format!("/proc/PID/mem: {}", errno.desc()));
    }
    let mut seen: Vec<Vec<u8>> = Vec::new();
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for path in LIBRARIES {
        let Ok(content) = content(Path::new(path), None) else {
            continue;
        };
        match area::analyse(&content) {
            Ok(library) if seen.contains(&library.build_id.1) => {}
            Ok(library) => {
                found.push(format!("{} calls of {path}", library.sites.len()));
                seen.push(library.build_id.1);
            }
            Err(why) => refused.push(format!("{path}: {why}")),
        }
    }
    if found.is_empty() {
        refused.push("no C library that is known".into());
        return Err(refused.join("; "));
    }
    Ok(found.join(", "))
}

fn device(path: &Path) -> Result<u64, Errno> {
    let meta = std::fs::metadata(path);
    meta.map(|meta| meta.dev()).map_err(crate::errno::errno)
}

/// The device of the run-time directory. EBUSY where many other files have it, too.
fn distinct_device(run_dir: &Path) -> Result<u64, Errno> {
    let run = device(run_dir)?;
    if device(Path::new("/"))? == run {
        return Err(Errno::EBUSY);
    }
    Ok(run)
}

/// What stubs are to compare with. EBUSY where that does not suffice.
fn constants(
    mounts: &Mounts,
    run_dir: &Path,
    counts: bool,
    notifies: impl Fn(u32) -> bool,
) -> Result<Constants, Errno> {
    let run = distinct_device(run_dir)?;
    let memory = stat::identity(memfile::create(c"device")?.as_fd())?.0;
    let processes = device(Path::new("/proc"))?;
    let asked = calls_before_in_tests();
    let random = || getrandom::u64().map_err(|_| Errno::EAGAIN);
    Ok(Constants {
        key: random()?,
        magic: [random()?, random()?],
        devices: [run, memory, processes],
        counts,
        calls_before: asked.unwrap_or(CALLS_BEFORE),
        calls_of_run_before: asked.unwrap_or(CALLS_OF_RUN_BEFORE),
        stubs_after: asked.unwrap_or(STUBS_AFTER),
        map_after: asked.unwrap_or(MAP_AFTER),
        writes_after: asked.unwrap_or(WRITES_AFTER),
        examines_at_once: asked.is_some(),
        kinds: calls::kinds(notifies),
        names: MountNames::of(mounts)?,
        mount_points: MountPoints::of(mounts),
    })
}

/// See [`CALLS_BEFORE`]. The tests of a debug build choose another number, for most of their programs make few calls.
fn calls_before_in_tests() -> Option<u32> {
    let asked = std::env::var("GOANNA_TEST_CALLS_BEFORE").unwrap_or_default();
    asked.parse().ok().filter(|_| cfg!(debug_assertions))
}

/// Whether the kernel resolves paths from the caller's working directory as the monitor does.
fn has_host_directory(call: &Call<'_>) -> bool {
    call.cwd()
        .is_ok_and(|(at, on_host)| on_host && is_plain(call, &at))
}

/// Whether `at` is a directory of the host, not in /proc, where links lead elsewhere, and not below a mount point.
pub fn is_plain(call: &Call<'_>, at: &Pos) -> bool {
    match at {
        Pos::Host(path) => !path.starts_with(b"/proc") && !call.mounts.leads_into(path),
        Pos::Mounted(_) => false,
    }
}
