//! Readers of traces. [`Reader`] returns the contents of the blocks in order, and a [`Finding`] for each place that differs from what the
//! writer wrote.
//!
//! `scan.rs` finds blocks in damaged bytes, `codecs.rs` undoes the transformations of output filters, `order.rs` compares sequence
//! numbers.

mod codecs;
mod findings;
mod order;
mod scan;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use amino_schema::DecodeError;
use amino_schema::trace::record::Records;
use amino_schema::trace::{
    BlockHeader, FILE_HEADER_LEN, Footer, Indexed, Kind, Schema, Stored, VERSION, claimed_version,
    pairs,
};

pub use findings::{Finding, Problem};

use crate::Error;
use crate::codec::Key;
pub use codecs::Checker;
use codecs::Codecs;
use order::Order;
use scan::{Found, Scanner, What};

/// The keys of a reader.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    /// For HMAC-SHA-256. With it, only authenticated blocks are read.
    pub authenticate: Option<Key>,
    /// For AES-256-GCM.
    pub encrypt: Option<Key>,
}

/// A part of a trace, as [`Reader`] returns it.
#[derive(Debug)]
pub enum Item {
    /// Where and how it was made. Each segment has one.
    Context(pairs::Pairs),
    /// Definitions; again after each repetition.
    Schema(Arc<Schema>),
    /// The records of a block.
    Records(BlockHeader, Box<Records>),
    /// The stream, or this file of it, ends here.
    End(pairs::Pairs),
    /// A place where the trace is damaged or altered.
    Finding(Finding),
}

/// Reads a trace from its first byte to its last, with bounded memory.
pub struct Reader<R> {
    scanner: Scanner<R>,
    codecs: Codecs,
    schemas: HashMap<u32, Arc<Schema>>,
    /// Schemas that blocks name and that have not been read.
    missing: HashSet<u32>,
    order: Order,
    ready: VecDeque<Item>,
    blocks: Vec<Indexed>,
    serial: Option<[u8; 16]>,
    seen: bool,
    ended: bool,
    finished: bool,
    last_offset: u64,
    lost: u64,
}

/// Maximum number of different schemas that a reader keeps.
const MAX_SCHEMAS: usize = 64;
/// Maximum number of blocks that are compared with the index.
const MAX_INDEXED: usize = 1 << 20;

impl Reader<File> {
    /// Opens a trace. Finds a schema that comes only after records, too.
    pub fn open(path: &Path, keys: &Keys) -> Result<Self, Error> {
        let error = |why| Error::input(path, why);
        let mut file = File::open(path).map_err(error)?;
        let mut first = Self::new(file.try_clone().map_err(error)?, keys)?;
        while first.schemas.is_empty() || !first.missing.is_empty() {
            match first.next() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(Error::Input { why, .. }) => return Err(error(why)),
                Err(other) => return Err(other),
            }
        }
        file.seek(SeekFrom::Start(0)).map_err(error)?;
        let mut reader = Self::new(file, keys)?;
        reader.schemas = first.schemas;
        Ok(reader)
    }
}

impl<R: Read + 'static> Reader<R> {
    /// Converts the reader to one with a boxed source.
    pub fn boxed(self) -> Reader<Box<dyn Read>> {
        Reader {
            scanner: self.scanner.boxed(),
            codecs: self.codecs,
            schemas: self.schemas,
            missing: self.missing,
            order: self.order,
            ready: self.ready,
            blocks: self.blocks,
            serial: self.serial,
            seen: self.seen,
            ended: self.ended,
            finished: self.finished,
            last_offset: self.last_offset,
            lost: self.lost,
        }
    }
}

impl<R: Read> Reader<R> {
    /// Reads from `source`, such as a pipe.
    pub fn new(source: R, keys: &Keys) -> Result<Self, Error> {
        let mut scanner = Scanner::new(source);
        let first = scanner
            .peek(FILE_HEADER_LEN)
            .map_err(|why| Error::input("", why))?;
        match claimed_version(first) {
            Some((major, minor)) if major != VERSION => {
                return Err(Error::Version { major, minor });
            }
            _ => {}
        }
        Ok(Self {
            scanner,
            codecs: Codecs::new(keys),
            schemas: HashMap::new(),
            missing: HashSet::new(),
            order: Order::default(),
            ready: VecDeque::new(),
            blocks: Vec::new(),
            serial: None,
            seen: false,
            ended: false,
            finished: false,
            last_offset: 0,
            lost: 0,
        })
    }

    /// Random number of the stream, once a block was read.
    pub fn serial(&self) -> Option<[u8; 16]> {
        self.serial
    }

    /// Where the last block or finding starts in the input, in bytes.
    pub fn offset(&self) -> u64 {
        self.last_offset
    }

    /// Reads the next part; `None` at the end. Fails when the bytes are not a trace, or the input cannot be read.
    #[allow(clippy::should_implement_trait)] // an iterator would have to end after an error
    pub fn next(&mut self) -> Result<Option<Item>, Error> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(Some(item));
            }
            if self.finished {
                return Ok(None);
            }
            match self.scanner.next().map_err(|why| Error::input("", why))? {
                Some(found) => self.found(found),
                None => self.finish()?,
            }
        }
    }

    fn find(&mut self, offset: u64, what: Problem) {
        self.ready
            .push_back(Item::Finding(Finding { offset, what }));
    }

    fn found(&mut self, Found { offset, what }: Found) {
        self.last_offset = offset;
        match what {
            What::FileHeader(header) => {
                self.serial = Some(header.serial);
                self.seen = true;
            }
            What::Block(stored, payload) => {
                self.arrive(offset, &stored);
                self.block(offset, &stored.header, payload);
            }
            What::Broken(stored) => {
                self.arrive(offset, &stored);
                let BlockHeader {
                    sequence, records, ..
                } = stored.header;
                let records = records.into();
                self.place(offset, &stored.header, None);
                self.find(offset, Problem::Broken { sequence, records });
            }
            What::Cut(stored, payload) => {
                self.arrive(offset, &stored);
                self.cut(offset, &stored.header, &payload);
            }
            What::Footer(footer, stated) => self.footer(offset, &footer, stated),
            What::Garbage(bytes) => self.find(offset, Problem::Garbage { bytes }),
        }
    }

    /// Handles an intact block header.
    fn arrive(&mut self, offset: u64, stored: &Stored) {
        let header = stored.header;
        self.seen = true;
        self.serial = Some(header.serial);
        self.ended = false;
        self.lost = self.lost.max(header.lost);
        if self.blocks.len() < MAX_INDEXED {
            self.blocks.push(Indexed {
                kind: header.kind,
                offset,
                sequence: header.sequence,
                first_ns: header.first_ns,
            });
        }
    }

    /// Compares a block's number with those before it. Returns whether its content is new.
    fn place(&mut self, offset: u64, header: &BlockHeader, start: Option<u64>) -> bool {
        let ready = &mut self.ready;
        self.order.arrive(header, start, |what| {
            ready.push_back(Item::Finding(Finding { offset, what }));
        })
    }

    fn block(&mut self, offset: u64, header: &BlockHeader, stored: Vec<u8>) {
        let (sequence, records) = (header.sequence, u64::from(header.records));
        if !self.codecs.authenticates(header) {
            self.find(offset, Problem::Unauthenticated { sequence, records });
            return;
        }
        let payload = match self.codecs.undo(header, stored) {
            Ok(payload) => payload,
            Err(why) => {
                let why = why.to_string();
                self.order.skip(header);
                self.find(
                    offset,
                    Problem::Codec {
                        sequence,
                        records,
                        why,
                    },
                );
                return;
            }
        };
        let context = match header.kind {
            Kind::Context => pairs::decode(&payload).ok(),
            _ => None,
        };
        let start = context.as_ref().and_then(|pairs| number(pairs, "sequence"));
        let fresh = self.place(offset, header, start);
        if fresh {
            self.content(offset, header, payload, context);
        }
    }

    fn content(
        &mut self,
        offset: u64,
        header: &BlockHeader,
        payload: Vec<u8>,
        context: Option<pairs::Pairs>,
    ) {
        let (sequence, records) = (header.sequence, u64::from(header.records));
        let malformed = |why: &dyn ToString| {
            let why = why.to_string();
            Problem::Malformed {
                sequence,
                records,
                why,
            }
        };
        match header.kind {
            Kind::Schema => match Schema::decode(&payload) {
                Ok(schema) => {
                    let schema = Arc::new(schema);
                    if self.schemas.len() < MAX_SCHEMAS {
                        let id = crc32c::crc32c(&payload);
                        self.schemas.insert(id, Arc::clone(&schema));
                        self.missing.remove(&id);
                    }
                    self.ready.push_back(Item::Schema(schema));
                }
                Err(why) => self.find(offset, malformed(&why)),
            },
            Kind::Context => match context {
                Some(context) => self.ready.push_back(Item::Context(context)),
                None => self.find(offset, malformed(&"the context is malformed")),
            },
            Kind::Records | Kind::Columns => match self.schemas.get(&header.schema_id) {
                Some(schema) => match records_of(header.kind, schema, payload) {
                    Ok(found) => self
                        .ready
                        .push_back(Item::Records(*header, Box::new(found))),
                    Err(why) => self.find(offset, malformed(&why)),
                },
                None => {
                    if self.missing.len() < MAX_SCHEMAS {
                        self.missing.insert(header.schema_id);
                    }
                    self.find(offset, Problem::NoSchema { sequence, records });
                }
            },
            Kind::End => match pairs::decode(&payload) {
                Ok(end) => {
                    self.ended = true;
                    self.ready.push_back(Item::End(end));
                }
                Err(why) => self.find(offset, malformed(&why)),
            },
            Kind::Other(_) => {}
        }
    }

    /// Handles an incomplete block at the end of the input: its first records may be complete.
    fn cut(&mut self, offset: u64, header: &BlockHeader, stored: &[u8]) {
        let sequence = header.sequence;
        let whole = self.codecs.prefix(header, stored);
        let schema = self.schemas.get(&header.schema_id).cloned();
        let mut recovered = 0;
        let fresh = self.place(offset, header, None);
        let has_records = matches!(header.kind, Kind::Records | Kind::Columns);
        if let (Some(payload), Some(schema), true) = (whole, schema, fresh && has_records) {
            let records = |payload| records_of(header.kind, &schema, payload);
            if let (Ok(mut trial), Ok(records)) = (records(payload.clone()), records(payload)) {
                while let Ok(Some(_)) = trial.next() {
                    recovered += 1;
                }
                let mut header = *header;
                header.records = recovered;
                let item = Item::Records(header, Box::new(records.limited(recovered)));
                self.ready.push_back(item);
            }
        }
        let recovered = u64::from(recovered);
        let records = u64::from(header.records).saturating_sub(recovered);
        self.find(
            offset,
            Problem::Cut {
                sequence,
                recovered,
                records,
            },
        );
    }

    fn footer(&mut self, offset: u64, footer: &Footer, stated: u64) {
        let fits = stated == offset && footer.blocks.iter().eq(self.blocks.iter());
        if !fits && footer.blocks.len() < MAX_INDEXED {
            self.find(offset, Problem::WrongIndex);
        } else {
            self.blocks.clear();
        }
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.finished = true;
        if !self.seen {
            return Err(Error::NoTrace("it holds neither a file header nor a block"));
        }
        let offset = self.last_offset;
        self.order.finish(|problem| {
            let what = Finding {
                offset,
                what: problem,
            };
            self.ready.push_back(Item::Finding(what));
        });
        if !self.ended {
            self.find(offset, Problem::NoEnd);
        }
        if self.lost > 0 {
            let events = self.lost;
            self.find(offset, Problem::Lost { events });
        }
        Ok(())
    }
}

/// A number among names and values.
pub fn number(pairs: &pairs::Pairs, name: &str) -> Option<u64> {
    let value = &pairs.iter().find(|(it, _)| it == name)?.1;
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Reads the payload of a block of records, or of records in columns.
fn records_of(kind: Kind, schema: &Arc<Schema>, payload: Vec<u8>) -> Result<Records, DecodeError> {
    let schema = Arc::clone(schema);
    match kind {
        Kind::Columns => Records::in_columns(schema, payload),
        _ => Ok(Records::new(schema, payload)),
    }
}
