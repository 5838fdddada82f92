//! Seccomp user notification (seccomp_unotify(2)): receiving calls, answering them, installing descriptors.
//!
//! Threads that answer should block all signals: an `ADDFD` with `SEND` that a signal interrupts after the kernel
//! has marked the call as replied would let the tracee see result 0 without a descriptor.
#![allow(unsafe_code, reason = "ioctl(2) and poll(2) on the listener")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;

/// The listener descriptor of one seccomp filter. Any number of threads may use it at once.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// One trapped call (`struct seccomp_notif`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    /// Names this call to the kernel until it is answered; never reused by a filter.
    pub id: u64,
    /// Thread that called, in the pid namespace of the receiver; 0 when it is not visible from there.
    pub tid: i32,
    /// System call number.
    pub nr: i32,
    /// `AUDIT_ARCH_*` of the calling convention.
    pub arch: u32,
    /// Instruction pointer after the call.
    pub ip: u64,
    /// Argument registers.
    pub args: [u64; 6],
}

/// The answer to a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// The call returns this value.
    Value(i64),
    /// The call fails with this errno.
    Error(Errno),
    /// The kernel performs the call, reading its pointers again: never a security decision.
    Continue,
}

/// Result of [`Listener::wait_readable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// A notification waits (another thread may take it first).
    Notification,
    /// No task has the filter any more: no notification will come.
    HangUp,
    /// No notification came within the time.
    TimedOut,
}

impl Listener {
    /// Takes a listener descriptor, as seccomp(2) returned it.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Hands the descriptor on (to the process that owns the store).
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Switches to synchronous wake-ups, or to ordinary ones (Linux 6.6). With synchronous wake-ups the kernel wakes the
    /// receiver on the calling tracee's CPU, and the tracee on that of the thread that answers: a round trip is about six
    /// times faster. May be called at any time. `EINVAL` or `ENOTTY` on older kernels, which are only slower.
    pub fn set_sync_wake_up(&self, sync: bool) -> Result<(), Errno> {
        const SYNC_WAKE_UP: libc::c_ulong = 1;
        let flags = if sync { SYNC_WAKE_UP } else { 0 };
        // SAFETY: this request takes its argument by value.
        let r = unsafe {
            libc::ioctl(
                self.0.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
                flags,
            )
        };
        Errno::result(r).map(drop)
    }

    /// Waits for the next notification. `ENOENT`: the caller died before it was received, or (Linux 6.11 and later)
    /// no task is left; [`wait_readable`](Self::wait_readable) distinguishes the two. Older kernels block forever
    /// when no task is left, so poll first there.
    pub fn recv(&self) -> Result<Notification, Errno> {
        loop {
            // The kernel refuses a buffer that is not all zero with EINVAL, so each attempt makes a new one.
            let mut raw = libc::seccomp_notif {
                id: 0,
                pid: 0,
                flags: 0,
                data: libc::seccomp_data {
                    nr: 0,
                    arch: 0,
                    instruction_pointer: 0,
                    args: [0; 6],
                },
            };
            // SAFETY: `raw` is a live seccomp_notif, which is what this request fills.
            let r = unsafe {
                libc::ioctl(
                    self.0.as_raw_fd(),
                    libc::SECCOMP_IOCTL_NOTIF_RECV,
                    &raw mut raw,
                )
            };
            match Errno::result(r) {
                Ok(_) => {
                    return Ok(Notification {
                        id: raw.id,
                        tid: raw.pid.cast_signed(),
                        nr: raw.data.nr,
                        arch: raw.data.arch,
                        ip: raw.data.instruction_pointer,
                        args: raw.data.args,
                    });
                }
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Answers call `id`. `ENOENT`: the tracee was killed meanwhile; `EINPROGRESS`: it was answered already.
    pub fn reply(&self, id: u64, reply: Reply) -> Result<(), Errno> {
        let mut raw = libc::seccomp_notif_resp {
            id,
            val: 0,
            error: 0,
            flags: 0,
        };
        match reply {
            Reply::Value(value) => raw.val = value,
            Reply::Error(errno) => raw.error = -(errno as i32),
            Reply::Continue => raw.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        }
        retry(|| {
            // SAFETY: `raw` is a live seccomp_notif_resp, which is what this request reads.
            unsafe {
                libc::ioctl(
                    self.0.as_raw_fd(),
                    libc::SECCOMP_IOCTL_NOTIF_SEND,
                    &raw mut raw,
                )
            }
        })
        .map(drop)
    }

    /// Installs a copy of `fd` at the tracee's lowest free number and answers call `id` with that number, which is
    /// returned. On an error (`EMFILE`: the tracee's limit is reached) the call is still unanswered.
    /// `EBADF` for an `O_PATH` descriptor. The installed descriptor shares `fd`'s open file description.
    pub fn install(&self, id: u64, fd: BorrowedFd<'_>, cloexec: bool) -> Result<i32, Errno> {
        self.add(id, fd, cloexec, libc::SECCOMP_ADDFD_FLAG_SEND, 0)
    }

    /// Installs a copy of `fd` in the tracee, at number `at` (replacing what is there) or the lowest free one, and
    /// leaves call `id` unanswered. Returns the number.
    pub fn install_keep(
        &self,
        id: u64,
        fd: BorrowedFd<'_>,
        cloexec: bool,
        at: Option<i32>,
    ) -> Result<i32, Errno> {
        match at {
            None => self.add(id, fd, cloexec, 0, 0),
            Some(at) => {
                let newfd = u32::try_from(at).map_err(|_| Errno::EBADF)?;
                self.add(id, fd, cloexec, libc::SECCOMP_ADDFD_FLAG_SETFD, newfd)
            }
        }
    }

    fn add(
        &self,
        id: u64,
        fd: BorrowedFd<'_>,
        cloexec: bool,
        flags: libc::c_ulong,
        newfd: u32,
    ) -> Result<i32, Errno> {
        let mut raw = libc::seccomp_notif_addfd {
            id,
            flags: flags as u32,
            srcfd: fd.as_raw_fd().cast_unsigned(),
            newfd,
            newfd_flags: if cloexec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        retry(|| {
            // SAFETY: `raw` is a live seccomp_notif_addfd, which is what this request reads.
            unsafe {
                libc::ioctl(
                    self.0.as_raw_fd(),
                    libc::SECCOMP_IOCTL_NOTIF_ADDFD,
                    &raw mut raw,
                )
            }
        })
    }

    /// Whether call `id` still waits for its answer. Check this after every look-up by thread id and before using the
    /// result: the thread may have died, and its id may belong to another thread.
    pub fn still_valid(&self, id: u64) -> bool {
        let mut raw = id;
        retry(|| {
            // SAFETY: `raw` is a live u64, which is what this request reads.
            unsafe {
                libc::ioctl(
                    self.0.as_raw_fd(),
                    libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
                    &raw mut raw,
                )
            }
        })
        .is_ok()
    }

    /// Waits until a notification is there, every tracee is gone, or `timeout_ms` has passed (negative: no limit).
    pub fn wait_readable(&self, timeout_ms: i32) -> Result<Ready, Errno> {
        let mut poll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one live pollfd and a count of one.
        retry(|| unsafe { libc::poll(&raw mut poll, 1, timeout_ms) })?;
        if poll.revents & libc::POLLIN != 0 {
            Ok(Ready::Notification)
        } else if poll.revents & libc::POLLHUP != 0 {
            Ok(Ready::HangUp)
        } else if poll.revents & (libc::POLLERR | libc::POLLNVAL) != 0 {
            Err(Errno::EBADF)
        } else {
            Ok(Ready::TimedOut)
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The listener's requests wait for a mutex interruptibly: after a signal they fail with EINTR, without effect.
fn retry(mut call: impl FnMut() -> libc::c_int) -> Result<i32, Errno> {
    loop {
        match Errno::result(call()) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}
