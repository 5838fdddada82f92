//! Leases (`F_SETLEASE` of fcntl(2)) of open file descriptions, and the signals that tell their owners of events.
#![allow(
    unsafe_code,
    reason = "nix has no F_SETLEASE, F_SETSIG and F_SETOWN, and rt_sigqueueinfo(2) has no safe interface"
)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;

use crate::descriptor_tables::OfThread;
use crate::pidfd;

/// The process, thread or process group that gets a signal for events of an open file description, and which signal (`F_GETOWN_EX`, `F_GETSIG`).
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    kind: i32,
    id: i32,
    /// 0 for SIGIO.
    signal: i32,
}

/// `struct f_owner_ex`.
#[repr(C)]
struct OwnerEx {
    kind: i32,
    id: i32,
}

// Kinds of owners, linux/fcntl.h.
const F_OWNER_TID: i32 = 0;
const F_OWNER_PID: i32 = 1;
const F_GETOWN_EX: i32 = 16;
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;

impl Owner {
    /// The owner of the open file description of `fd`. `None` if it has none.
    pub fn of(fd: BorrowedFd<'_>) -> Result<Option<Self>, Errno> {
        let mut owner = OwnerEx { kind: 0, id: 0 };
        // SAFETY: `owner` is live and has the layout that the kernel writes.
        let signal = unsafe {
            let fd = fd.as_raw_fd();
            Errno::result(libc::fcntl(fd, F_GETOWN_EX, &raw mut owner))?;
            Errno::result(libc::fcntl(fd, F_GETSIG))?
        };
        let OwnerEx { kind, id } = owner;
        Ok((id != 0).then_some(Self { kind, id, signal }))
    }

    /// Sends the owner the signal, as the kernel does: with the descriptor `fd` if the program has chosen a signal (F_SETSIG). ESRCH, EPERM.
    pub fn signal(self, fd: i32) -> Result<(), Errno> {
        let (signal, band, fd) = match self.signal {
            0 => (libc::SIGIO, 0, 0),
            signal => (signal, i64::from(libc::POLLIN | libc::POLLRDNORM), fd),
        };
        let info = Details {
            signal,
            errno: 0,
            // The kernel lets processes send no other code of this meaning.
            code: libc::SI_SIGIO,
            padding: 0,
            band,
            fd,
            rest: [0; 25],
        };
        // SAFETY: `info` is live, and has the size of a siginfo_t, as asserted below.
        let sent = unsafe {
            match self.kind {
                F_OWNER_TID => {
                    let process = crate::procfs::status(self.id)?.tgid;
                    let call = libc::SYS_rt_tgsigqueueinfo;
                    libc::syscall(call, process, self.id, signal, &raw const info)
                }
                F_OWNER_PID => {
                    let call = libc::SYS_rt_sigqueueinfo;
                    libc::syscall(call, self.id, signal, &raw const info)
                }
                _ => i64::from(libc::kill(-self.id, signal)),
            }
        };
        Errno::result(sent).map(drop)
    }
}

/// `siginfo_t` of a signal about a descriptor.
#[repr(C)]
struct Details {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    band: i64,
    fd: i32,
    rest: [i32; 25],
}

const _: () = assert!(size_of::<Details>() == size_of::<libc::siginfo_t>());

/// Sends the signal to the owner of the open file description behind a descriptor; `before` is the one that it had before, for a descriptor that cannot be copied.
pub fn signal_owner((process, fd): OfThread, before: Option<Owner>) {
    // A program may have changed owner and signal since.
    let now = pidfd::copy(process, fd).and_then(|copy| Owner::of(copy.as_fd()));
    if let Some(owner) = now.unwrap_or(before) {
        // A process that has ended gets no signal, nor does one that belongs to another user.
        let _ = owner.signal(fd);
    }
}

/// Makes process `pid` the owner of the open file description of `fd`, if it has none.
pub fn set_owner(fd: BorrowedFd<'_>, pid: i32) -> Result<(), Errno> {
    if Owner::of(fd)?.is_some() {
        return Ok(());
    }
    // SAFETY: integers only.
    Errno::result(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETOWN, pid) }).map(drop)
}

/// Removes owner and signal from the open file description of `fd`, as the end of a lease does.
pub fn clear_owner(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let fd = fd.as_raw_fd();
    // SAFETY: integers only.
    unsafe {
        Errno::result(libc::fcntl(fd, libc::F_SETOWN, 0))?;
        Errno::result(libc::fcntl(fd, F_SETSIG, 0)).map(drop)
    }
}

/// Sets the lease of the open file description of `fd`: `F_RDLCK`, `F_WRLCK` or `F_UNLCK`. The owner should be set before. EAGAIN: another description is in the way,
/// or there is no lease to remove; EACCES.
pub fn set(fd: BorrowedFd<'_>, kind: i32) -> Result<(), Errno> {
    // SAFETY: integers only.
    Errno::result(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, kind) }).map(drop)
}

/// How long the kernel waits for the end of a lease, seconds (proc_sys_fs(5), `lease-break-time`). `None`: without limit.
pub fn break_time() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/fs/lease-break-time");
    let seconds = text.ok().and_then(|text| text.trim().parse().ok());
    Some(seconds.unwrap_or(45)).filter(|seconds| *seconds > 0)
}
