//! Acting as a tracee: credentials, effective capabilities and umask of one thread, for the time of one call.
//!
//! The kernel keeps credentials per thread; glibc's setgroups changes all threads, so the raw calls are used here.
//! A change of file-system ids clears the process's dumpable flag, as the kernel does for any such change: programs
//! launched after it can be seized and asked for their listener only with CAP_SYS_PTRACE until they have executed.
#![allow(
    unsafe_code,
    reason = "raw credential calls, which glibc would apply to every thread"
)]

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use nix::errno::Errno;

/// The credentials with which a call is performed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary groups, sorted.
    pub groups: &'a [u32],
    /// Effective capabilities, one bit each. Those that the monitor does not have itself are without effect.
    pub caps: u64,
}

/// The monitor's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnIds {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary groups, sorted.
    pub groups: Vec<u32>,
    /// Effective capabilities, one bit each.
    pub cap_eff: u64,
}

static OWN: OnceLock<(OwnIds, Option<Caps>)> = OnceLock::new();

thread_local! {
    /// The umask of this thread once it has an fs_struct of its own.
    static OWN_UMASK: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Held by a thread while its umask is changed, where all threads must share one umask: containers forbid unshare(2).
static SHARED_UMASK: Mutex<()> = Mutex::new(());

/// Credentials of this process, as they were at the first call (make it early, outside [`acting_as`]).
pub fn own_ids() -> &'static OwnIds {
    &own().0
}

fn own() -> &'static (OwnIds, Option<Caps>) {
    OWN.get_or_init(|| {
        // SAFETY: these calls take nothing and cannot fail.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let caps = Caps::get().ok();
        let ids = OwnIds {
            uid,
            gid,
            groups: own_groups(),
            cap_eff: caps.map_or(0, Caps::effective),
        };
        (ids, caps)
    })
}

/// Whether this process may act as other users at all (CAP_SETUID and CAP_SETGID).
pub fn may_change_user() -> bool {
    const CAP_SETGID: u64 = 1 << 6;
    const CAP_SETUID: u64 = 1 << 7;
    own_ids().cap_eff & (CAP_SETGID | CAP_SETUID) == CAP_SETGID | CAP_SETUID
}

fn own_groups() -> Vec<u32> {
    loop {
        // SAFETY: with a size of zero nothing is written.
        let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
        let mut groups = vec![0u32; usize::try_from(count).unwrap_or(0)];
        // SAFETY: `groups` has space for `count` ids.
        let got = unsafe { libc::getgroups(count, groups.as_mut_ptr()) };
        // Fails only if the number of groups has grown in between.
        if let Ok(got) = usize::try_from(got) {
            groups.truncate(got);
            groups.sort_unstable();
            return groups;
        }
    }
}

/// Gives this thread a umask and a working directory of its own; [`acting_as`] does so too when it must change the
/// umask. The second call does nothing. `EPERM`: something forbids it, as containers do; then threads take turns with
/// their umasks.
pub fn thread_owns_fs() -> Result<(), Errno> {
    if OWN_UMASK.get().is_some() {
        return Ok(());
    }
    // SAFETY: integers only; without CLONE_FS shared, a change of umask is this thread's alone.
    Errno::result(unsafe { libc::unshare(libc::CLONE_FS) })?;
    OWN_UMASK.set(Some(read_umask()));
    Ok(())
}

/// The umask can be read only by changing it.
fn read_umask() -> u32 {
    // SAFETY: integers only.
    unsafe {
        let umask = libc::umask(0o077);
        libc::umask(umask);
        umask
    }
}

/// The umask that this thread has now; if other threads share it, no thread changes it while the guard lives.
fn own_umask() -> (u32, Option<MutexGuard<'static, ()>>) {
    match (thread_owns_fs(), OWN_UMASK.get()) {
        (Ok(()), Some(umask)) => (umask, None),
        _ => {
            let guard = SHARED_UMASK.lock().unwrap_or_else(PoisonError::into_inner);
            (read_umask(), Some(guard))
        }
    }
}

/// Runs `f` on this thread with `credentials`, and with `umask` if it creates something. Changes only what differs from the monitor's own credentials,
/// and restores them afterwards, also when `f` panics.
///
/// `EPERM`: the ids differ and we may not change them; `f` has not run.
pub fn acting_as<R>(
    credentials: &Credentials<'_>,
    umask: Option<u32>,
    f: impl FnOnce() -> Result<R, Errno>,
) -> Result<R, Errno> {
    let (own, own_caps) = own();
    // Released after the umask is restored.
    let mut _turn = None;
    let mut restore = Restore {
        own,
        groups: false,
        gid: false,
        uid: false,
        caps: None,
        umask: None,
    };
    if let Some(umask) = umask {
        let own_umask;
        (own_umask, _turn) = self::own_umask();
        if umask & 0o777 != own_umask {
            // SAFETY: integers only; the thread has its own fs_struct, or it is its turn.
            unsafe { libc::umask(umask) };
            restore.umask = Some(own_umask);
        }
    }
    if credentials.groups != own.groups {
        set_groups(credentials.groups)?;
        restore.groups = true;
    }
    if credentials.gid != own.gid {
        restore.gid = true;
        set_fs_id(libc::SYS_setfsgid, credentials.gid)?;
    }
    let caps = own_caps.filter(|caps| caps.effective() != 0);
    let changes_user = credentials.uid != own.uid;
    if changes_user {
        restore.uid = true;
        restore.caps = caps;
        set_fs_id(libc::SYS_setfsuid, credentials.uid)?;
    }
    // A change of user from or to root has changed capabilities, too.
    if let Some(caps) = caps
        && (changes_user || own.cap_eff & !credentials.caps != 0)
    {
        restore.caps = Some(caps);
        caps.with_effective(own.cap_eff & credentials.caps).set()?;
    }
    let result = f();
    drop(restore);
    result
}

/// The credentials to restore, in an order in which each step is permitted.
struct Restore {
    own: &'static OwnIds,
    groups: bool,
    gid: bool,
    uid: bool,
    caps: Option<Caps>,
    umask: Option<u32>,
}

impl Drop for Restore {
    fn drop(&mut self) {
        if let Some(umask) = self.umask {
            // SAFETY: integers only.
            unsafe { libc::umask(umask) };
        }
        if self.put_back().is_err() {
            // A thread of the monitor that kept another user's credentials would answer other calls with wrong permissions.
            std::process::abort();
        }
    }
}

impl Restore {
    fn put_back(&mut self) -> Result<(), Errno> {
        // Our own effective id is always permitted, and going back to root raises file capabilities, so the exact
        // set is restored after it; setgroups needs that set.
        if self.uid {
            set_fs_id(libc::SYS_setfsuid, self.own.uid)?;
        }
        if let Some(caps) = self.caps.take() {
            caps.set()?;
        }
        if self.gid {
            set_fs_id(libc::SYS_setfsgid, self.own.gid)?;
        }
        if self.groups {
            set_groups(&self.own.groups)?;
        }
        Ok(())
    }
}

fn set_groups(groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: `groups` is live and has that many ids.
    let r = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    Errno::result(r).map(drop)
}

/// setfsuid and setfsgid return the former id and no error, so a second call, with an invalid id, returns the id that is now set.
fn set_fs_id(call: libc::c_long, id: u32) -> Result<(), Errno> {
    // SAFETY: integers only.
    let now = unsafe {
        libc::syscall(call, id);
        libc::syscall(call, u32::MAX)
    };
    // The result is the id's 32 bits, sign-extended by libc's wrapper or not.
    if now as u32 == id {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Capability sets of this thread (capget(2), version 3).
#[derive(Debug, Clone, Copy)]
struct Caps([CapWord; 2]);

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct CapWord {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

impl CapHeader {
    /// This thread, `_LINUX_CAPABILITY_VERSION_3`.
    const THIS: Self = Self {
        version: 0x2008_0522,
        pid: 0,
    };
}

impl Caps {
    fn get() -> Result<Self, Errno> {
        let mut header = CapHeader::THIS;
        let mut words = [CapWord::default(); 2];
        // SAFETY: version 3 fills two words, and there are two.
        let r = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) };
        Errno::result(r).map(|_| Self(words))
    }

    fn set(self) -> Result<(), Errno> {
        let mut header = CapHeader::THIS;
        // SAFETY: version 3 reads two words, and there are two.
        let r = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, self.0.as_ptr()) };
        Errno::result(r).map(drop)
    }

    fn effective(self) -> u64 {
        u64::from(self.0[0].effective) | u64::from(self.0[1].effective) << 32
    }

    fn with_effective(mut self, effective: u64) -> Self {
        let [low, high] = &mut self.0;
        low.effective = effective as u32;
        high.effective = (effective >> 32) as u32;
        self
    }
}
