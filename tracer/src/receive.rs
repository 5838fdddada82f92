//! The other end of [`crate::output::SocketOutput`]: receives the streams of many senders at once, each into a file.
//!
//! Anyone who reaches the address can connect. The receiver trusts a peer once it has checked the peer's first block, with the key if it has one.
//! Before that block the peer gets no file and no entry in the table of streams; it has a limited time, and all such peers share a limited
//! memory.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use amino_schema::trace::{
    BlockHeader, FILE_HEADER_LEN, FileHeader, Footer, Indexed, Kind, MAX_BLOCK, Stored,
};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, Semaphore};

use crate::Error;
use crate::output::Address;
use crate::read::{Checker, Keys};

/// Receives streams.
pub struct Receiver {
    path: PathBuf,
    keys: Keys,
    streams: Mutex<Streams>,
    ended: Notify,
    /// Number of bytes still available to first blocks.
    unchecked: Semaphore,
    first_block_within: Duration,
    report: Box<dyn Fn(String) + Send + Sync>,
}

#[derive(Default)]
struct Streams {
    by_serial: HashMap<[u8; 16], Arc<Mutex<Storing>>>,
    count: u64,
    ended: u64,
}

/// A stream that is being stored.
struct Storing {
    path: PathBuf,
    /// `None` once the index is written: the file is complete.
    file: Option<File>,
    bytes: u64,
    next: u64,
    footer: Footer,
    ended: bool,
}

/// A block that has been checked.
struct Received {
    head: [u8; BlockHeader::LEN],
    header: BlockHeader,
    payload: Vec<u8>,
}

/// Maximum number of connections at a time. Further ones wait.
const MAX_CONNECTIONS: usize = 256;
/// Maximum number of streams in the life of a receiver.
const MAX_STREAMS: usize = 1 << 16;
/// Maximum number of blocks of a stream that its index names.
const MAX_INDEXED: usize = 1 << 20;
/// How long a connection may take until its first block is checked.
const FIRST_BLOCK_WITHIN: Duration = Duration::from_secs(30);
/// Maximum number of bytes of first blocks that are not checked yet, of all connections together.
const UNCHECKED_BYTES: usize = 2 * MAX_BLOCK as usize;
/// First blocks up to this size do not count. A new stream begins with a small block, so that unauthenticated peers with large blocks do not
/// delay it.
const SMALL_BLOCK: u32 = 64 << 10;
/// Time until the next attempt to accept a connection, after one failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

impl Receiver {
    /// Writes the first stream to `path`, and others to `path.1`, `path.2` and so on. With a key for HMAC, takes authenticated blocks only.
    /// `report` gets lines about connections.
    pub fn new(path: &Path, keys: Keys, report: Box<dyn Fn(String) + Send + Sync>) -> Self {
        Self {
            path: path.to_owned(),
            keys,
            streams: Mutex::default(),
            ended: Notify::new(),
            unchecked: Semaphore::new(UNCHECKED_BYTES),
            first_block_within: FIRST_BLOCK_WITHIN,
            report,
        }
    }

    /// Closes connections whose first block takes longer than `time` instead of 30 s. A sender connects again when it has a block.
    #[must_use]
    pub fn with_first_block_within(mut self, time: Duration) -> Self {
        self.first_block_within = time;
        self
    }

    /// Listens on `address` until `most` streams have ended, or forever. `ready` is called once the address is bound, with the port.
    pub fn listen(
        self: &Arc<Self>,
        address: &Address,
        most: Option<u64>,
        ready: impl FnOnce(&Address),
    ) -> Result<(), Error> {
        let error = |why| Error::output(address.to_string(), why);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(error)?;
        runtime.block_on(async {
            let served = async {
                match address {
                    Address::Tcp(host) => {
                        let listener = TcpListener::bind(host).await.map_err(error)?;
                        let bound = listener.local_addr().map_err(error)?;
                        ready(&Address::Tcp(bound.to_string()));
                        let accept = async || {
                            let (stream, from) = listener.accept().await?;
                            Ok((stream, from.to_string()))
                        };
                        match self.serve(accept).await {}
                    }
                    Address::Unix(path) => {
                        let listener = UnixListener::bind(path).map_err(error)?;
                        ready(address);
                        let accept = async || {
                            let (stream, _) = listener.accept().await?;
                            Ok((stream, "unix".to_owned()))
                        };
                        match self.serve(accept).await {}
                    }
                }
            };
            let result = tokio::select! {
                result = served => result,
                () = self.all_ended(most) => Ok(()),
                _ = tokio::signal::ctrl_c() => Ok(()),
            };
            if let Address::Unix(path) = address {
                let _ = std::fs::remove_file(path);
            }
            result
        })
    }

    async fn all_ended(&self, most: Option<u64>) {
        loop {
            let notified = self.ended.notified();
            if most.is_some_and(|most| self.streams.lock().ended >= most) {
                return;
            }
            notified.await;
        }
    }

    /// Receives from all peers that connect.
    async fn serve<S>(
        self: &Arc<Self>,
        mut accept: impl AsyncFnMut() -> std::io::Result<(S, String)>,
    ) -> Infallible
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let slot = Arc::clone(&slots).acquire_owned().await;
            match accept().await {
                Ok((stream, from)) => {
                    let receiver = Arc::clone(self);
                    tokio::spawn(async move {
                        receiver.connection(stream, &from).await;
                        drop(slot);
                    });
                }
                // The peer has left already, or there is no descriptor for it now. Other streams go on.
                Err(why) => {
                    (self.report)(format!("a connection was not accepted: {why}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn connection(&self, stream: impl AsyncRead + AsyncWrite + Unpin, from: &str) {
        if let Err(why) = self.receive(stream, from).await {
            (self.report)(format!("{from}: {why}"));
        }
    }

    async fn receive(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        from: &str,
    ) -> Result<(), Error> {
        let mut checker = Checker::new(&self.keys);
        let begins = self.begin(&mut stream, &mut checker, from);
        let begun = tokio::time::timeout(self.first_block_within, begins).await;
        let is_late = |_| Error::input(from, ErrorKind::TimedOut);
        let (serial, mut received) = begun.map_err(is_late)??;
        while let Some(block) = received {
            let stored = self.stream(serial, from)?;
            let next = stored.lock().append(&block)?;
            answer(&mut stream, next, from).await?;
            received = match read_head(&mut stream, from).await? {
                Some(head) => {
                    Some(read_block(&mut stream, head, serial, &mut checker, from).await?)
                }
                None => None,
            };
        }
        self.complete(serial, from)
    }

    /// Answers the header of a connection, and reads its first block. Returns the serial of the stream; no block if the sender closes before one.
    async fn begin(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        checker: &mut Checker,
        from: &str,
    ) -> Result<([u8; 16], Option<Received>), Error> {
        let broken = |why| Error::input(from, why);
        let mut head = [0; FILE_HEADER_LEN];
        stream.read_exact(&mut head).await.map_err(broken)?;
        let serial = FileHeader::decode(&head)?.serial;
        let known = self.known(serial);
        let next = known.map_or(0, |stored| stored.lock().next);
        answer(stream, next, from).await?;
        let Some(head) = read_head(stream, from).await? else {
            return Ok((serial, None));
        };
        let len = Stored::decode(&head)?.stored_len;
        let counted = if len > SMALL_BLOCK { len } else { 0 };
        // The semaphore is never closed.
        let _taken = self.unchecked.acquire_many(counted).await.ok();
        let block = read_block(stream, head, serial, checker, from).await?;
        Ok((serial, Some(block)))
    }

    fn known(&self, serial: [u8; 16]) -> Option<Arc<Mutex<Storing>>> {
        self.streams.lock().by_serial.get(&serial).map(Arc::clone)
    }

    /// Writes the index of a stream whose last block has come. A sender that has missed the confirmation of that block connects again to a
    /// stream that may be complete.
    fn complete(&self, serial: [u8; 16], from: &str) -> Result<(), Error> {
        let Some(stored) = self.known(serial) else {
            return Ok(());
        };
        let mut stored = stored.lock();
        if stored.ended && stored.file.is_some() {
            stored.close()?;
            (self.report)(format!("{from}: {} is complete", stored.path.display()));
            self.streams.lock().ended += 1;
            self.ended.notify_waiters();
        }
        Ok(())
    }

    /// The stream with this serial, which may have begun in another connection.
    fn stream(&self, serial: [u8; 16], from: &str) -> Result<Arc<Mutex<Storing>>, Error> {
        let mut streams = self.streams.lock();
        if let Some(known) = streams.by_serial.get(&serial) {
            return Ok(Arc::clone(known));
        }
        if streams.by_serial.len() >= MAX_STREAMS {
            return Err(Error::Setup(
                "the receiver has had too many streams".to_owned(),
            ));
        }
        let mut path = self.path.clone().into_os_string();
        if streams.count > 0 {
            path.push(format!(".{}", streams.count));
        }
        let path = PathBuf::from(path);
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path);
        let mut file = opened.map_err(|why| Error::output(&path, why))?;
        let header = FileHeader { serial }.encode();
        file.write_all(&header)
            .map_err(|why| Error::output(&path, why))?;
        (self.report)(format!("{from}: stored in {}", path.display()));
        streams.count += 1;
        let stored = Arc::new(Mutex::new(Storing {
            path,
            file: Some(file),
            bytes: header.len() as u64,
            next: 0,
            footer: Footer::default(),
            ended: false,
        }));
        streams.by_serial.insert(serial, Arc::clone(&stored));
        Ok(stored)
    }
}

/// Answers the sender with the number of the block that is expected next.
async fn answer(
    stream: &mut (impl AsyncWrite + Unpin),
    next: u64,
    from: &str,
) -> Result<(), Error> {
    let written = stream.write_all(&next.to_le_bytes()).await;
    written.map_err(|why| Error::input(from, why))
}

/// The head of the next block; `None` if the sender has closed the connection.
async fn read_head(
    stream: &mut (impl AsyncRead + Unpin),
    from: &str,
) -> Result<Option<[u8; BlockHeader::LEN]>, Error> {
    let mut head = [0; BlockHeader::LEN];
    match stream.read_exact(&mut head).await {
        Ok(_) => Ok(Some(head)),
        Err(why) if why.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(why) => Err(Error::input(from, why)),
    }
}

/// Reads the rest of a block, and checks it.
async fn read_block(
    stream: &mut (impl AsyncRead + Unpin),
    head: [u8; BlockHeader::LEN],
    serial: [u8; 16],
    checker: &mut Checker,
    from: &str,
) -> Result<Received, Error> {
    let block = Stored::decode(&head)?;
    let mut payload = vec![0; block.stored_len as usize];
    let read = stream.read_exact(&mut payload).await;
    read.map_err(|why| Error::input(from, why))?;
    if block.header.serial != serial || !block.matches(&payload) {
        return Err(Error::NoTrace("a block was damaged on its way"));
    }
    checker.check(&block.header, &payload)?;
    Ok(Received {
        head,
        header: block.header,
        payload,
    })
}

impl Storing {
    /// Appends a block, unless the file has it already. Returns the number of the next block.
    fn append(&mut self, block: &Received) -> Result<u64, Error> {
        let header = &block.header;
        if header.sequence < self.next {
            return Ok(self.next);
        }
        let Some(file) = self.file.as_mut().filter(|_| !self.ended) else {
            return Err(Error::NoTrace("a block follows the end of the trace"));
        };
        let written = file
            .write_all(&block.head)
            .and_then(|()| file.write_all(&block.payload));
        written.map_err(|why| Error::output(&self.path, why))?;
        if self.footer.blocks.len() < MAX_INDEXED {
            self.footer.blocks.push(Indexed {
                kind: header.kind,
                offset: self.bytes,
                sequence: header.sequence,
                first_ns: header.first_ns,
            });
        }
        self.bytes += (block.head.len() + block.payload.len()) as u64;
        self.next = header.sequence.saturating_add(1);
        self.ended = header.kind == Kind::End;
        Ok(self.next)
    }

    /// Writes the index.
    fn close(&mut self) -> Result<(), Error> {
        let footer = self.footer.encode(self.bytes);
        let written = self.file.as_mut().map(|file| file.write_all(&footer));
        let written = written.unwrap_or(Ok(()));
        written.map_err(|why| Error::output(&self.path, why))?;
        self.file = None;
        Ok(())
    }
}
