//! The calls that bring a tracee's descriptor to the monitor where pidfd_getfd(2) is refused, as in containers.
//!
//! The tracee sends the descriptor to the monitor's descriptor inbox.

use std::sync::Arc;

use goanna_sys::descriptor_inbox::{DescriptorInbox, Expected};
use goanna_sys::ptrace::Stopped;
use goanna_sys::tracee;
use goanna_vfs::{Errno, Result};

use super::Step;
use crate::process::task::Task;

// Layout of the message.
const VECTOR: u64 = 64;
const TEXT: u64 = 80;
const CONTROL: u64 = 96;
const NAME: u64 = 128;

/// What thread `tid` sends with its descriptor `fd`: several threads of a process may send at the same time.
pub fn text(tid: i32, fd: i32) -> u64 {
    u64::from(tid.cast_unsigned()) << 32 | u64::from(fd.cast_unsigned())
}

/// The `struct msghdr`, and all it points to, by which thread `tid` sends its descriptor `fd`, to lie at `address`.
pub fn message(descriptor_inbox: &DescriptorInbox, tid: i32, fd: i32, address: u64) -> Vec<u8> {
    let mut image = Vec::with_capacity(256);
    let mut words = |at: u64, words: &[u64]| {
        image.resize(at as usize, 0u8);
        for word in words {
            image.extend_from_slice(&word.to_ne_bytes());
        }
    };
    let name_len = descriptor_inbox.address().len() as u64;
    let (vector, control) = (address + VECTOR, address + CONTROL);
    words(0, &[address + NAME, name_len, vector, 1, control, 24, 0]);
    words(VECTOR, &[address + TEXT, 8, text(tid, fd)]);
    let rights = u64::from(libc::SOL_SOCKET as u32) | u64::from(libc::SCM_RIGHTS as u32) << 32;
    words(CONTROL, &[20, rights, u64::from(fd.cast_unsigned())]);
    words(NAME, &[]);
    image.extend_from_slice(descriptor_inbox.address());
    image
}

/// Makes a thread send a descriptor to the monitor.
pub struct Fetch {
    task: Arc<Task>,
    pid: i32,
    fd: i32,
    descriptor_inbox: Arc<DescriptorInbox>,
    /// The address of the message, and whether the memory was mapped for it.
    scratch: Option<(u64, bool)>,
    stage: Stage,
}

enum Stage {
    Begin,
    Map,
    Socket,
    Send {
        socket: i64,
        attempts: u32,
        expected: Expected,
    },
    Close,
    Unmap,
}

const LEN: u64 = 4096;
/// What sendmsg(2) returns while too many messages wait, and how often that may be.
const FULL: i64 = -(Errno::EAGAIN as i64);
const ATTEMPTS: u32 = 100;

impl Fetch {
    /// Descriptor `fd` of `task`, a thread of process `pid`. `scratch`: memory of ours in it, if there is any.
    pub fn new(
        task: Arc<Task>,
        pid: i32,
        fd: i32,
        descriptor_inbox: Arc<DescriptorInbox>,
        scratch: Option<u64>,
    ) -> Self {
        // Until it has come, or else the call would ask for it again and again.
        task.set_fetched(fd, Err(Errno::EPERM));
        Self {
            task,
            pid,
            fd,
            descriptor_inbox,
            scratch: scratch.map(|address| (address, false)),
            stage: Stage::Begin,
        }
    }

    pub(super) fn next(&mut self, stopped: &Stopped, result: Option<i64>) -> Result<Step, Errno> {
        let tid = stopped.tid();
        let result = result.unwrap_or(0);
        match std::mem::replace(&mut self.stage, Stage::Begin) {
            Stage::Begin if self.scratch.is_none() => {
                let access = (libc::PROT_READ | libc::PROT_WRITE) as u64;
                let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
                self.stage = Stage::Map;
                Ok(Step::Call(
                    libc::SYS_mmap,
                    [0, LEN, access, kind, u64::MAX, 0],
                ))
            }
            Stage::Map if result < 0 => self.fail(Errno::ENOMEM),
            stage @ (Stage::Begin | Stage::Map) => {
                if matches!(stage, Stage::Map) {
                    self.scratch = Some((result.cast_unsigned(), true));
                }
                self.stage = Stage::Socket;
                let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
                let args = [libc::AF_UNIX as u64, kind, 0, 0, 0, 0];
                Ok(Step::Call(libc::SYS_socket, args))
            }
            Stage::Socket if result < 0 => {
                self.task
                    .set_fetched(self.fd, Err(Errno::from_raw(-result as i32)));
                self.unmap()
            }
            Stage::Socket => {
                let (address, _) = self.scratch.ok_or(Errno::EIO)?;
                let message = message(&self.descriptor_inbox, tid, self.fd, address);
                tracee::write_all(tid, address, &message)?;
                self.stage = Stage::Send {
                    socket: result,
                    attempts: ATTEMPTS,
                    expected: self.descriptor_inbox.expect(self.pid, text(tid, self.fd)),
                };
                Ok(self.send(result, address))
            }
            Stage::Send {
                socket,
                attempts,
                expected,
            } if result == FULL && attempts > 0 => {
                self.descriptor_inbox.empty()?;
                let (address, _) = self.scratch.ok_or(Errno::EIO)?;
                let attempts = attempts - 1;
                self.stage = Stage::Send {
                    socket,
                    attempts,
                    expected,
                };
                Ok(self.send(socket, address))
            }
            Stage::Send {
                socket, expected, ..
            } => {
                let come = expected.take();
                let sent = Errno::from_raw(-result.min(0) as i32);
                let fetched = if result < 0 { Err(sent) } else { come };
                self.task.set_fetched(self.fd, fetched);
                self.stage = Stage::Close;
                let args = [socket.cast_unsigned(), 0, 0, 0, 0, 0];
                Ok(Step::Call(libc::SYS_close, args))
            }
            Stage::Close => self.unmap(),
            Stage::Unmap => Ok(Step::Done),
        }
    }

    fn send(&self, socket: i64, address: u64) -> Step {
        let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u64;
        let args = [socket.cast_unsigned(), address, flags, 0, 0, 0];
        Step::Call(libc::SYS_sendmsg, args)
    }

    fn fail(&self, errno: Errno) -> Result<Step, Errno> {
        self.task.set_fetched(self.fd, Err(errno));
        Ok(Step::Done)
    }

    fn unmap(&mut self) -> Result<Step, Errno> {
        match self.scratch {
            Some((address, true)) => {
                self.stage = Stage::Unmap;
                Ok(Step::Call(libc::SYS_munmap, [address, LEN, 0, 0, 0, 0]))
            }
            _ => Ok(Step::Done),
        }
    }
}
