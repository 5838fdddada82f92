//! A connection between `aminod` and a client: messages, some with a descriptor.
//!
//! A message is its length (four bytes, little endian) and its postcard encoding; a descriptor comes with the length.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum length of a message in bytes. Command lines and environments of Linux are shorter, and data is sent in
/// pieces.
const LENGTH_MAX: u32 = 64 << 20;

/// One end of a connection. Several threads may send; one receives.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    sending: Mutex<()>,
}

impl Link {
    /// A link over `stream`.
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            sending: Mutex::new(()),
        }
    }

    /// Sends `message`, with a descriptor if one is given. `BrokenPipe`: the other end is closed.
    pub fn send(&self, message: &impl Serialize, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.send_all(message, fd, &[])
    }

    /// Sends `message`, and behind it `data`, for [`Link::receive_data`].
    pub fn send_data(&self, message: &impl Serialize, data: &[u8]) -> io::Result<()> {
        self.send_all(message, None, data)
    }

    fn send_all(
        &self,
        message: &impl Serialize,
        fd: Option<BorrowedFd<'_>>,
        data: &[u8],
    ) -> io::Result<()> {
        let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
        let length = u32::try_from(body.len()).ok();
        let length = length.filter(|length| *length <= LENGTH_MAX);
        let length = length.ok_or(io::ErrorKind::InvalidInput)?.to_le_bytes();
        let fds = fd.map(|fd| [fd]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let _sending = self.sending.lock();
        // Sent in one call, so that the other end is woken only once.
        let parts = [&length, &body[..], data];
        let slices = parts.map(IoSlice::new);
        let mut sent = loop {
            match sendmsg(&self.stream, &slices, &mut control, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                sent => break sent?,
            }
        };
        let mut stream = &self.stream;
        for part in parts {
            stream.write_all(part.get(sent..).unwrap_or_default())?;
            sent = sent.saturating_sub(part.len());
        }
        Ok(())
    }

    /// Receives the data behind the last message, which contained its length.
    pub fn receive_data(&self, data: &mut [u8]) -> io::Result<()> {
        (&self.stream).read_exact(data)
    }

    /// Sets a limit on sends: they fail if the other end does not receive for longer than `limit`.
    pub fn limit_sends(&self, limit: Duration) -> io::Result<()> {
        self.stream.set_write_timeout(Some(limit))
    }

    /// Closes this direction: the other end still receives earlier messages, and then sees the connection closed.
    pub fn shutdown_write(&self) {
        // This fails only if the connection is closed already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Closes the other direction: [`Link::receive`] answers `None` from now on. This end may continue to send.
    pub fn shutdown_read(&self) {
        // This fails only if the connection is closed already.
        let _ = self.stream.shutdown(Shutdown::Read);
    }

    /// The next message, and the descriptor that came with it; `None` when the other end is closed.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Option<OwnedFd>)>> {
        let mut length = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut head = [IoSliceMut::new(&mut length)];
            match recvmsg(
                &self.stream,
                &mut head,
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                received => break received?.bytes,
            }
        };
        if received == 0 {
            return Ok(None);
        }
        let mut fd = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                fd = fds.into_iter().next();
            }
        }
        let mut stream = &self.stream;
        stream.read_exact(length.get_mut(received..).unwrap_or_default())?;
        let length = u32::from_le_bytes(length);
        if length > LENGTH_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; length as usize];
        stream.read_exact(&mut body)?;
        let message = postcard::from_bytes(&body);
        let message = message.map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        Ok(Some((message, fd)))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn pair() -> (Link, Link) {
        let (a, b) = UnixStream::pair().unwrap();
        (Link::new(a), Link::new(b))
    }

    #[test]
    fn messages_and_descriptors_arrive_in_order() {
        let (a, b) = pair();
        let file = std::fs::File::open("/").unwrap();
        a.send(&vec![1_u8; 100_000], Some(file.as_fd())).unwrap();
        a.send(&"next", None).unwrap();
        drop(a);
        let (bytes, fd) = b.receive::<Vec<u8>>().unwrap().unwrap();
        assert_eq!(bytes.len(), 100_000);
        let came = std::fs::File::from(fd.unwrap());
        assert_eq!(
            came.metadata().unwrap().ino(),
            file.metadata().unwrap().ino()
        );
        let (text, fd) = b.receive::<String>().unwrap().unwrap();
        assert_eq!((text.as_str(), fd.is_none()), ("next", true));
        assert!(b.receive::<String>().unwrap().is_none());
    }

    #[test]
    fn data_follows_its_message() {
        let (a, b) = pair();
        let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n >> 7) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for piece in [&data[..], &data[..1], &[], &data[..500_000]] {
                    a.send_data(&piece.len(), piece).unwrap();
                }
                a.send(&"end", None).unwrap();
            });
            for length in [data.len(), 1, 0, 500_000] {
                let (said, _) = b.receive::<usize>().unwrap().unwrap();
                assert_eq!(said, length);
                let mut came = vec![0; length];
                b.receive_data(&mut came).unwrap();
                assert!(came == data[..length]);
            }
        });
        assert_eq!(b.receive::<String>().unwrap().unwrap().0, "end");
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let (a, b) = pair();
        (&a.stream).write_all(&[2, 0, 0, 0, 9, 9]).unwrap();
        assert!(b.receive::<String>().is_err());
        (&a.stream).write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(b.receive::<String>().is_err(), "longer than any message");
        (&a.stream).write_all(&[5, 0, 0, 0, 1]).unwrap();
        drop(a);
        assert!(b.receive::<String>().is_err(), "cut off");
    }
}
