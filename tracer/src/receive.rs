//! The other end of [`crate::output::SocketOutput`]: receives the streams of many senders at once, each into a file.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amino_schema::trace::{
    BlockHeader, FILE_HEADER_LEN, FileHeader, Footer, Indexed, Kind, Stored,
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
    file: File,
    bytes: u64,
    next: u64,
    footer: Footer,
    ended: bool,
    /// The index is written: the file is complete.
    is_closed: bool,
}

/// Maximum number of connections at a time. Further ones wait.
const MAX_CONNECTIONS: usize = 256;
/// Maximum number of streams in the life of a receiver.
const MAX_STREAMS: usize = 1 << 16;
/// Maximum number of blocks of a stream that its index names.
const MAX_INDEXED: usize = 1 << 20;

impl Receiver {
    /// Writes the first stream to `path`, and others to `path.1`, `path.2` and so on. With a key for HMAC, takes authenticated blocks only.
    /// `report` gets lines about connections.
    pub fn new(path: &Path, keys: Keys, report: Box<dyn Fn(String) + Send + Sync>) -> Arc<Self> {
        Arc::new(Self {
            path: path.to_owned(),
            keys,
            streams: Mutex::default(),
            ended: Notify::new(),
            report,
        })
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
                        self.serve_tcp(listener).await.map_err(error)
                    }
                    Address::Unix(path) => {
                        let listener = UnixListener::bind(path).map_err(error)?;
                        ready(address);
                        self.serve_unix(listener).await.map_err(error)
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

    async fn serve_tcp(self: &Arc<Self>, listener: TcpListener) -> std::io::Result<()> {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let slot = Arc::clone(&slots).acquire_owned().await;
            let (stream, from) = listener.accept().await?;
            let receiver = Arc::clone(self);
            tokio::spawn(async move {
                receiver.connection(stream, &from.to_string()).await;
                drop(slot);
            });
        }
    }

    async fn serve_unix(self: &Arc<Self>, listener: UnixListener) -> std::io::Result<()> {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let slot = Arc::clone(&slots).acquire_owned().await;
            let (stream, _) = listener.accept().await?;
            let receiver = Arc::clone(self);
            tokio::spawn(async move {
                receiver.connection(stream, "unix").await;
                drop(slot);
            });
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
        let broken = |why| Error::input(from, why);
        let mut head = [0; FILE_HEADER_LEN];
        stream.read_exact(&mut head).await.map_err(broken)?;
        let serial = FileHeader::decode(&head)?.serial;
        let mut checker = Checker::new(&self.keys);
        let stored = self.stream(serial, from)?;
        let next = stored.lock().next;
        stream
            .write_all(&next.to_le_bytes())
            .await
            .map_err(broken)?;
        let mut head = [0; BlockHeader::LEN];
        loop {
            match stream.read_exact(&mut head).await {
                Ok(_) => {}
                Err(why) if why.kind() == std::io::ErrorKind::UnexpectedEof => break,
                Err(why) => return Err(broken(why)),
            }
            let block = Stored::decode(&head)?;
            let mut payload = vec![0; block.stored_len as usize];
            stream.read_exact(&mut payload).await.map_err(broken)?;
            if block.header.serial != serial || !block.matches(&payload) {
                return Err(Error::NoTrace("a block was damaged on its way"));
            }
            checker.check(&block.header, &payload)?;
            let next = stored.lock().append(&block.header, &head, &payload)?;
            stream
                .write_all(&next.to_le_bytes())
                .await
                .map_err(broken)?;
        }
        let mut stored = stored.lock();
        // A sender that has missed the confirmation of its last block connects again to a complete stream.
        if stored.ended && !stored.is_closed {
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
            file,
            bytes: header.len() as u64,
            next: 0,
            footer: Footer::default(),
            ended: false,
            is_closed: false,
        }));
        streams.by_serial.insert(serial, Arc::clone(&stored));
        Ok(stored)
    }
}

impl Storing {
    /// Appends a block, unless the file has it already. Returns the number of the next block.
    fn append(&mut self, header: &BlockHeader, head: &[u8], payload: &[u8]) -> Result<u64, Error> {
        if header.sequence < self.next {
            return Ok(self.next);
        }
        if self.ended {
            return Err(Error::NoTrace("a block follows the end of the trace"));
        }
        let written = self
            .file
            .write_all(head)
            .and_then(|()| self.file.write_all(payload));
        written.map_err(|why| Error::output(&self.path, why))?;
        if self.footer.blocks.len() < MAX_INDEXED {
            self.footer.blocks.push(Indexed {
                kind: header.kind,
                offset: self.bytes,
                sequence: header.sequence,
                first_ns: header.first_ns,
            });
        }
        self.bytes += (head.len() + payload.len()) as u64;
        self.next = header.sequence.saturating_add(1);
        self.ended = header.kind == Kind::End;
        Ok(self.next)
    }

    /// Writes the index.
    fn close(&mut self) -> Result<(), Error> {
        let footer = self.footer.encode(self.bytes);
        self.file
            .write_all(&footer)
            .map_err(|why| Error::output(&self.path, why))?;
        self.is_closed = true;
        Ok(())
    }
}
