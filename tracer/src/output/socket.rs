//! The driver for receivers across a TCP or Unix socket: `goanna-trace listen`.
//!
//! The sender begins each connection with a file header, and the receiver answers with 8 bytes: the sequence number, little-endian, of the
//! block that it expects next. It answers the same after each block. So the sender knows what has arrived: it keeps everything else in a
//! spool, connects again when a connection breaks, and sends the rest of the spool again. So no block is lost or stored twice.
//!
//! The program waits for a bounded time only. When the spool is full because the receiver is slow or gone, a write waits for
//! [`SocketOptions::patience`] at most; then the block is refused, and the next one that arrives shows the gap.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use super::{Block, Output, Stream, file_header};
use crate::Error;

/// Where a receiver listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `tcp://HOST:PORT`.
    Tcp(String),
    /// `unix:PATH`.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text.strip_prefix("tcp://"), text.strip_prefix("unix:")) {
            (Some(host), _)
                if host
                    .rsplit_once(':')
                    .is_some_and(|(_, port)| port.parse::<u16>().is_ok()) =>
            {
                Ok(Self::Tcp(host.to_owned()))
            }
            (_, Some(path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            _ => Err(format!(
                "{text:?} is not an address: tcp://HOST:PORT or unix:PATH"
            )),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(host) => write!(f, "tcp://{host}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// How patient a sender is.
#[derive(Debug, Clone, Copy)]
pub struct SocketOptions {
    /// Bytes of blocks that may wait for the receiver.
    pub spool: usize,
    /// How long a write waits when the spool is full, and the end of the stream for the last answer.
    pub patience: Duration,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            spool: 64 << 20,
            patience: Duration::from_secs(10),
        }
    }
}

/// Sends blocks to a receiver.
pub struct SocketOutput {
    address: Address,
    options: SocketOptions,
    stream: Option<Stream>,
    link: Option<Link>,
    /// Blocks that the receiver has not confirmed: sequence number and bytes.
    spool: VecDeque<(u64, Vec<u8>)>,
    spooled: usize,
    /// The number of blocks of the spool that were sent through the current connection.
    sent: usize,
    answer: Vec<u8>,
    last_attempt: Option<Instant>,
}

enum Link {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// How long one read or write of a socket may take.
const STEP: Duration = Duration::from_secs(2);
/// Time between attempts to connect.
const RETRY: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_millis(5);

impl Link {
    fn open(address: &Address) -> io::Result<Self> {
        let link = match address {
            Address::Tcp(host) => {
                let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
                let mut open = None;
                for address in host.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, STEP) {
                        Ok(stream) => {
                            open = Some(stream);
                            break;
                        }
                        Err(why) => failed = why,
                    }
                }
                let stream = open.ok_or(failed)?;
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(STEP))?;
                stream.set_read_timeout(Some(STEP))?;
                Self::Tcp(stream)
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_write_timeout(Some(STEP))?;
                stream.set_read_timeout(Some(STEP))?;
                Self::Unix(stream)
            }
        };
        Ok(link)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Unix(stream) => stream.write_all(bytes),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(on),
            Self::Unix(stream) => stream.set_nonblocking(on),
        }
    }

    /// The bytes of answers that are there, without waiting.
    fn answers(&mut self, into: &mut Vec<u8>) -> io::Result<()> {
        self.set_nonblocking(true)?;
        let mut chunk = [0; 512];
        let result = loop {
            match self.read(&mut chunk) {
                Ok(0) => break Err(io::ErrorKind::ConnectionAborted.into()),
                Ok(len) => into.extend_from_slice(chunk.get(..len).unwrap_or_default()),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => break Err(why),
            }
        };
        self.set_nonblocking(false)?;
        result
    }
}

impl SocketOutput {
    /// Sends to `address`. The receiver must be there when the stream begins.
    pub fn new(address: Address, options: SocketOptions) -> Self {
        Self {
            address,
            options,
            stream: None,
            link: None,
            spool: VecDeque::new(),
            spooled: 0,
            sent: 0,
            answer: Vec::new(),
            last_attempt: None,
        }
    }

    fn error(&self, why: impl Into<io::Error>) -> Error {
        Error::output(self.address.to_string(), why)
    }

    fn connect(&mut self) -> io::Result<()> {
        self.last_attempt = Some(Instant::now());
        let mut link = Link::open(&self.address)?;
        let serial = self.stream.as_ref().map(|stream| stream.serial);
        link.write_all(&file_header(serial.unwrap_or_default()))?;
        let mut next = [0; 8];
        let mut read = 0;
        while let Some(rest) = next.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match link.read(rest)? {
                0 => return Err(io::ErrorKind::ConnectionRefused.into()),
                len => read += len,
            }
        }
        self.answer.clear();
        self.confirm(u64::from_le_bytes(next));
        self.sent = 0;
        self.link = Some(link);
        Ok(())
    }

    /// The receiver has all blocks before `next`.
    fn confirm(&mut self, next: u64) {
        while let Some((sequence, bytes)) = self.spool.front()
            && *sequence < next
        {
            self.spooled -= bytes.len();
            if let Some(stream) = &self.stream {
                stream.progress.add(bytes.len());
            }
            self.spool.pop_front();
            self.sent = self.sent.saturating_sub(1);
        }
    }

    /// Sends as many bytes as possible, and receives the available answers.
    fn pump(&mut self) -> io::Result<()> {
        if self.link.is_none() {
            if self.last_attempt.is_some_and(|last| last.elapsed() < RETRY) {
                return Err(io::ErrorKind::NotConnected.into());
            }
            self.connect()?;
        }
        let done = self.exchange();
        if done.is_err() {
            self.link = None;
        }
        done
    }

    fn exchange(&mut self) -> io::Result<()> {
        let link = self.link.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        while let Some((_, bytes)) = self.spool.get(self.sent) {
            link.write_all(bytes)?;
            self.sent += 1;
        }
        link.answers(&mut self.answer)?;
        let whole = self.answer.len() / 8 * 8;
        let last = self
            .answer
            .get(..whole)
            .and_then(|answers| answers.last_chunk::<8>());
        let next = last.map(|next| u64::from_le_bytes(*next));
        self.answer.drain(..whole);
        if let Some(next) = next {
            self.confirm(next);
        }
        Ok(())
    }

    /// Sends and receives until the spool has at most `bytes`, or patience has ended.
    fn wait(&mut self, bytes: usize) -> io::Result<()> {
        let begin = Instant::now();
        loop {
            let pumped = self.pump();
            if self.spooled <= bytes {
                return Ok(());
            }
            if begin.elapsed() >= self.options.patience {
                return Err(pumped
                    .err()
                    .unwrap_or_else(|| io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Output for SocketOutput {
    fn initialise(&mut self, stream: &Stream) -> Result<(), Error> {
        self.stream = Some(stream.clone());
        self.connect().map_err(|why| self.error(why))
    }

    fn write(&mut self, block: Block) -> Result<(), Error> {
        let mut bytes = Vec::new();
        block.header.encode(&block.payload, &mut bytes);
        if self.spooled > 0 && self.spooled + bytes.len() > self.options.spool {
            let free = self.options.spool.saturating_sub(bytes.len());
            self.wait(free).map_err(|why| self.error(why))?;
        }
        self.spooled += bytes.len();
        self.spool.push_back((block.header.sequence, bytes));
        // Blocks that cannot be sent now stay in the spool.
        let _ = self.pump();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        let _ = self.pump();
        Ok(())
    }

    fn release(&mut self) -> Result<(), Error> {
        self.wait(0).map_err(|why| self.error(why))?;
        self.link = None;
        Ok(())
    }

    fn preferred_block(&self) -> usize {
        16 << 10
    }
}
