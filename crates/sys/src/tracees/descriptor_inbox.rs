//! The descriptor inbox: a socket by which tracees send descriptors to the monitor.
#![allow(
    unsafe_code,
    reason = "a received descriptor is a number that somebody has to own"
)]

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, bind, getsockname,
    recvmsg, setsockopt, socket, sockopt,
};

/// A datagram socket in the abstract name space. Every process may write to it; the kernel reports the sender.
#[derive(Debug)]
pub struct DescriptorInbox {
    socket: OwnedFd,
    address: Vec<u8>,
    /// The expected messages: the sender's process and the text. Messages that have arrived also have their descriptor.
    expected: Mutex<HashMap<MessageKey, Option<OwnedFd>>>,
}

/// A process, and the 8 bytes that it sends with a descriptor.
type MessageKey = (i32, u64);

impl DescriptorInbox {
    /// A new inbox; the kernel chooses its name.
    pub fn new() -> Result<Self, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        setsockopt(&socket, sockopt::PassCred, &true)?;
        bind(socket.as_raw_fd(), &UnixAddr::new_unnamed())?;
        let name: UnixAddr = getsockname(socket.as_raw_fd())?;
        let mut address = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
        address.push(0);
        address.extend_from_slice(name.as_abstract().ok_or(Errno::EADDRNOTAVAIL)?);
        Ok(Self {
            socket,
            address,
            expected: Mutex::default(),
        })
    }

    /// The address of the inbox: a `struct sockaddr_un`, cut to its real length.
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// Expects a descriptor from process `pid`, with `text`. Unexpected messages are discarded.
    pub fn expect(self: &Arc<Self>, pid: i32, text: u64) -> Expected {
        let message = (pid, text);
        self.messages().insert(message, None);
        Expected {
            descriptor_inbox: Arc::clone(self),
            message,
        }
    }

    fn messages(&self) -> MutexGuard<'_, HashMap<MessageKey, Option<OwnedFd>>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives the messages that wait, since the kernel queues few of them (`net.unix.max_dgram_qlen`).
    pub fn empty(&self) -> Result<(), Errno> {
        loop {
            let mut text = [0; 8];
            let mut data = [IoSliceMut::new(&mut text)];
            // The kernel closes descriptors that do not fit the buffer.
            let mut control = nix::cmsg_space!([i32; 4], libc::ucred);
            let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
            let socket = self.socket.as_raw_fd();
            let received = recvmsg::<UnixAddr>(socket, &mut data, Some(&mut control), flags);
            let message = match received {
                Ok(message) => message,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            };
            let mut sender = None;
            let mut fds: Vec<OwnedFd> = Vec::new();
            for part in message.cmsgs()? {
                match part {
                    ControlMessageOwned::ScmRights(numbers) => {
                        // SAFETY: the kernel has just made these descriptors, and nothing else owns them.
                        fds.extend(
                            numbers
                                .iter()
                                .map(|&fd| unsafe { OwnedFd::from_raw_fd(fd) }),
                        );
                    }
                    ControlMessageOwned::ScmCredentials(credentials) => {
                        sender = Some(credentials.pid());
                    }
                    _ => {}
                }
            }
            let sender = sender.unwrap_or(0);
            if let Some(message) = self.messages().get_mut(&(sender, u64::from_ne_bytes(text))) {
                *message = fds.pop();
            }
        }
    }
}

/// A message that the inbox expects as long as this value exists. Drop it when the sender has died.
#[derive(Debug)]
pub struct Expected {
    descriptor_inbox: Arc<DescriptorInbox>,
    message: MessageKey,
}

impl Expected {
    /// The descriptor of the message (close-on-exec). `EAGAIN`: the message has not arrived.
    pub fn take(self) -> Result<OwnedFd, Errno> {
        self.descriptor_inbox.empty()?;
        let come = self
            .descriptor_inbox
            .messages()
            .get_mut(&self.message)
            .and_then(Option::take);
        come.ok_or(Errno::EAGAIN)
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.descriptor_inbox.messages().remove(&self.message);
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use nix::sys::socket::{ControlMessage, sendmsg};

    use super::*;

    fn send(descriptor_inbox: &DescriptorInbox, text: u64) {
        let sender = socket(
            AddressFamily::Unix,
            SockType::Datagram,
            SockFlag::empty(),
            None,
        );
        let sender = sender.unwrap();
        let name = descriptor_inbox.address().get(3..).unwrap();
        let address = UnixAddr::new_abstract(name).unwrap();
        let fds = [sender.as_raw_fd()];
        let control = [ControlMessage::ScmRights(&fds)];
        let text = text.to_ne_bytes();
        let data = [IoSlice::new(&text)];
        sendmsg(
            sender.as_raw_fd(),
            &data,
            &control,
            MsgFlags::empty(),
            Some(&address),
        )
        .unwrap();
    }

    #[test]
    fn a_message_that_is_not_expected_any_more_is_discarded() {
        let descriptor_inbox = Arc::new(DescriptorInbox::new().unwrap());
        let pid = std::process::id().cast_signed();
        let (kept, early, late) = (
            descriptor_inbox.expect(pid, 1),
            descriptor_inbox.expect(pid, 2),
            descriptor_inbox.expect(pid, 3),
        );
        send(&descriptor_inbox, 1);
        send(&descriptor_inbox, 2);
        descriptor_inbox.empty().unwrap();
        drop((early, late));
        send(&descriptor_inbox, 3);
        assert!(kept.take().is_ok());
        descriptor_inbox.empty().unwrap();
        assert!(descriptor_inbox.messages().is_empty());
    }
}
