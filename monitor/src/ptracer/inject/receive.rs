//! The calls that bring a descriptor to a tracee that may not open it by way of the monitor's `/proc` entry: it has become
//! another user, has no `/proc`, or the file's mode does not let it in. A tracee for which no path leads to a backing directory enters that by its descriptor.
//!
//! The tracee makes a pair of sockets, and the monitor sends by a copy of the second. The tracee moves the first one to the number of the second, closes the
//! first number, the lowest that was free, and receives: the descriptor gets that number. No copy of it is closed, since that would
//! release the process's record locks on the file (fcntl_locking(2)).

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use goanna_sys::arch::Registers;
use goanna_sys::descriptor_inbox::{DescriptorInbox, Expected};
use goanna_sys::ptrace::Stopped;
use goanna_sys::tracee;
use goanna_vfs::{Errno, Result};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::Step;
use super::fetch::{message, text};
use crate::process::task::Task;
use crate::ptracer::rewrite::{Purpose, Refused};

/// Makes a thread receive a descriptor over a socket pair.
pub struct Receive {
    task: Arc<Task>,
    refused: Refused,
    pid: i32,
    descriptor_inbox: Arc<DescriptorInbox>,
    stage: Stage,
}

enum Stage {
    Begin,
    Pair,
    /// Of a tracee whose descriptors we may not copy: the second socket comes to us first.
    Send {
        ends: [i32; 2],
        expected: Expected,
    },
    /// The receiving socket gets the second number.
    Move {
        ends: [i32; 2],
    },
    /// The first number becomes free.
    Free {
        second: i32,
    },
    Receive {
        second: i32,
    },
    /// fchdir(2) to the directory that was received as `fd`.
    Enter {
        second: i32,
        fd: i32,
    },
    Close {
        left: Vec<i32>,
    },
}

// Layout of the scratch area: the pair, the message and its parts.
const MESSAGE: u64 = 64;
const VECTOR: u64 = 128;
const BYTE: u64 = 160;
const CONTROL: u64 = 192;
/// `CMSG_SPACE(sizeof(int))`.
const CONTROL_LEN: u64 = 24;
/// Where a `struct msghdr` says how much of the control buffer is used, and where in that the descriptor is.
const USED: u64 = 40;
const DESCRIPTOR: u64 = 16;

/// What a call returns when a process has no descriptors left.
const NO_NUMBERS: i64 = -(Errno::EMFILE as i64);

impl Receive {
    /// For `task`, a thread of process `pid`, whose error stays when this fails, too.
    pub fn new(
        task: Arc<Task>,
        refused: Refused,
        pid: i32,
        descriptor_inbox: Arc<DescriptorInbox>,
    ) -> Self {
        Self {
            task,
            refused,
            pid,
            descriptor_inbox,
            stage: Stage::Begin,
        }
    }

    /// `saved`: the registers of the tracee's own call, which returns the descriptor or its error.
    pub(super) fn next(
        &mut self,
        stopped: &Stopped,
        result: Option<i64>,
        saved: &mut Registers,
    ) -> Result<Step, Errno> {
        let tid = stopped.tid();
        let result = result.unwrap_or(0);
        match std::mem::replace(&mut self.stage, Stage::Begin) {
            Stage::Begin => {
                self.stage = Stage::Pair;
                let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
                let args = [libc::AF_UNIX as u64, kind, 0, self.refused.scratch, 0, 0];
                Ok(Step::Call(libc::SYS_socketpair, args))
            }
            Stage::Pair if result < 0 => {
                if result == NO_NUMBERS {
                    saved.set_result(result);
                }
                Ok(Step::Done)
            }
            Stage::Pair => {
                let ends = [self.int(tid, 0)?, self.int(tid, 4)?];
                match self.task.own_copy(ends[1]) {
                    Ok(socket) => self.pass(tid, ends, &socket),
                    Err(_) => self.fetch(tid, ends),
                }
            }
            Stage::Send { ends, expected } => match expected.take() {
                Ok(socket) => self.pass(tid, ends, &socket),
                Err(_) => self.close(ends.to_vec()),
            },
            Stage::Move { ends } if result < 0 => self.close(ends.to_vec()),
            Stage::Move {
                ends: [first, second],
            } => {
                self.stage = Stage::Free { second };
                Ok(Step::Call(libc::SYS_close, [first as u64, 0, 0, 0, 0, 0]))
            }
            Stage::Free { second } => {
                self.stage = Stage::Receive { second };
                let cloexec = match self.refused.purpose {
                    Purpose::Keep { cloexec: false } => 0,
                    Purpose::Keep { cloexec: true } | Purpose::Enter => libc::MSG_CMSG_CLOEXEC,
                };
                let flags = (cloexec | libc::MSG_DONTWAIT) as u64;
                let message = self.refused.scratch + MESSAGE;
                let args = [second as u64, message, flags, 0, 0, 0];
                Ok(Step::Call(libc::SYS_recvmsg, args))
            }
            Stage::Receive { second } => {
                let used = self.int(tid, MESSAGE + USED)?;
                if result < 0 || used <= DESCRIPTOR as i32 {
                    // The kernel leaves out what it has no number for: another thread has taken the last one.
                    saved.set_result(NO_NUMBERS);
                    return self.close(vec![second]);
                }
                let fd = self.int(tid, CONTROL + DESCRIPTOR)?;
                if self.refused.purpose == Purpose::Enter {
                    self.stage = Stage::Enter { second, fd };
                    return Ok(Step::Call(libc::SYS_fchdir, [fd as u64, 0, 0, 0, 0, 0]));
                }
                saved.set_result(fd.into());
                self.close(vec![second])
            }
            Stage::Enter { second, fd } => {
                saved.set_result(result);
                self.close(vec![second, fd])
            }
            Stage::Close { left } => self.close(left),
        }
    }

    /// Has the tracee send us the second socket, which we may not copy.
    fn fetch(&mut self, tid: i32, ends: [i32; 2]) -> Result<Step, Errno> {
        let [first, second] = ends;
        let address = self.refused.scratch;
        let message = message(&self.descriptor_inbox, tid, second, address);
        tracee::write_all(tid, address, &message)?;
        self.descriptor_inbox.empty()?;
        let expected = self.descriptor_inbox.expect(self.pid, text(tid, second));
        self.stage = Stage::Send { ends, expected };
        let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u64;
        let args = [first as u64, address, flags, 0, 0, 0];
        Ok(Step::Call(libc::SYS_sendmsg, args))
    }

    /// Sends the descriptor by `socket`, our copy of the second end, for the tracee to receive by the first.
    fn pass(&mut self, tid: i32, ends: [i32; 2], socket: &OwnedFd) -> Result<Step, Errno> {
        if self
            .send(socket)
            .and_then(|()| self.put_message(tid))
            .is_err()
        {
            return self.close(ends.to_vec());
        }
        self.stage = Stage::Move { ends };
        let [first, second] = ends.map(|fd| fd as u64);
        let args = [first, second, libc::O_CLOEXEC as u64, 0, 0, 0];
        Ok(Step::Call(libc::SYS_dup3, args))
    }

    fn close(&mut self, mut left: Vec<i32>) -> Result<Step, Errno> {
        let Some(fd) = left.pop() else {
            return Ok(Step::Done);
        };
        self.stage = Stage::Close { left };
        Ok(Step::Call(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]))
    }

    fn send(&self, socket: &OwnedFd) -> Result<(), Errno> {
        let fds = [self.refused.source.fd()?.as_raw_fd()];
        let control = [ControlMessage::ScmRights(&fds)];
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<()>(
            socket.as_raw_fd(),
            &[IoSlice::new(&[0])],
            &control,
            flags,
            None,
        )?;
        Ok(())
    }

    /// The `struct msghdr` to receive by, and what it points to.
    fn put_message(&self, tid: i32) -> Result<(), Errno> {
        let at = |offset: u64| self.refused.scratch + offset;
        let message = [0, 0, at(VECTOR), 1, at(CONTROL), CONTROL_LEN, 0];
        let words = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        tracee::write_all(tid, at(MESSAGE), &words(&message))?;
        tracee::write_all(tid, at(VECTOR), &words(&[at(BYTE), 1]))
    }

    fn int(&self, tid: i32, offset: u64) -> Result<i32, Errno> {
        let mut bytes = [0; 4];
        tracee::read_exact(tid, self.refused.scratch + offset, &mut bytes)?;
        Ok(i32::from_ne_bytes(bytes))
    }
}
