//! Cuts records into blocks, and sends those down the stages of output.

use std::sync::Arc;
use std::time::{Duration, Instant};

use amino_schema::trace::record::{Encoder, Value};
use amino_schema::trace::{BlockHeader, Codec, Kind, MAX_BLOCK, Schema, pairs};

use crate::Error;
use crate::output::{Block, Output, Progress, Stream};

/// How records are cut into blocks.
#[derive(Debug, Clone)]
pub struct WriterOptions {
    /// Bytes of payload after which a block ends. `None` for the size that the stages of output prefer.
    pub block: Option<usize>,
    /// Whether fields whose values follow from earlier records are left out.
    pub elide: bool,
    /// When a new file begins.
    pub rotate: RotateWhen,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            block: None,
            elide: true,
            rotate: RotateWhen::default(),
        }
    }
}

/// When a new segment begins: at the first block after one of these limits is reached. Never, without limits.
#[derive(Debug, Clone, Copy, Default)]
pub struct RotateWhen {
    /// Bytes in the file.
    pub bytes: Option<u64>,
    /// Time since the file began.
    pub after: Option<Duration>,
}

/// Receives the records of assemblies.
pub struct Writer {
    options: WriterOptions,
    block: usize,
    encoder: Encoder,
    /// Whether the blocks have columns. zstd compresses columns better; without zstd, more is recovered of a torn block of records.
    in_columns: bool,
    schema: Arc<Schema>,
    /// Whether the stream has records of a message, by the message's position in the schema.
    used: Vec<bool>,
    /// Whether the schema block that was written last lacks a message of the next block.
    grown: bool,
    /// Schema blocks that were written because a message was new.
    growths: u32,
    definitions: Vec<u8>,
    schema_id: u32,
    context: pairs::Pairs,
    codecs: [u8; 8],
    stream: Stream,
    out: Box<dyn Output>,
    sequence: u64,
    records: u64,
    first_ns: u64,
    last_ns: u64,
    lost: u64,
    /// Bytes of records since the schema was written.
    since_schema: usize,
    raw_bytes: u64,
    segment: u64,
    segment_began: Instant,
    begun: bool,
}

/// A schema block has only the messages that the stream's records use. After it has grown this often, it has all messages: a reader keeps a
/// limited number of schemas.
const MAX_GROWTHS: u32 = 8;
/// The schema is repeated after this many bytes of records.
const SCHEMA_EVERY: usize = 8 << 20;
/// Largest block that a user may ask for, in bytes. A record that does not fit makes it longer.
const LARGEST_BLOCK: usize = MAX_BLOCK as usize / 2;
const SMALLEST_BLOCK: usize = 256;
/// Smallest block with columns, in bytes, when the user does not choose: each block repeats its strings, and each column needs some bytes to
/// compress well.
const COLUMNS_BLOCK: usize = 512 << 10;

impl Writer {
    /// Begins a stream: initialises the stages. The first block of records brings schema and context with it.
    pub(crate) fn begin(
        options: WriterOptions,
        schema: Schema,
        context: pairs::Pairs,
        codecs: &[Codec],
        mut out: Box<dyn Output>,
    ) -> Result<Self, Error> {
        let mut serial = [0; 16];
        getrandom::fill(&mut serial)?;
        let mut named = [0; 8];
        if codecs.len() > named.len() {
            return Err(Error::Setup(format!(
                "{} output filters are more than the 8 that a trace names",
                codecs.len()
            )));
        }
        for (slot, codec) in named.iter_mut().zip(codecs) {
            *slot = codec.byte();
        }
        let stream = Stream {
            serial,
            progress: Arc::default(),
        };
        out.initialise(&stream)?;
        let in_columns = options.elide && codecs.contains(&Codec::Zstd);
        let preferred = match in_columns {
            true => out.preferred_block().max(COLUMNS_BLOCK),
            false => out.preferred_block(),
        };
        let block = options.block.unwrap_or(preferred);
        let schema = Arc::new(schema);
        Ok(Self {
            block: block.clamp(SMALLEST_BLOCK, LARGEST_BLOCK),
            encoder: encoder(&schema, in_columns, options.elide),
            in_columns,
            used: vec![false; schema.messages.len()],
            schema,
            grown: true,
            growths: 0,
            options,
            schema_id: 0,
            definitions: Vec::new(),
            context,
            codecs: named,
            stream,
            out,
            sequence: 0,
            records: 0,
            first_ns: 0,
            last_ns: 0,
            lost: 0,
            since_schema: 0,
            raw_bytes: 0,
            segment: 0,
            segment_began: Instant::now(),
            begun: false,
        })
    }

    /// Adds the messages of `schema` to those that records can have. Positions change.
    pub(crate) fn define(&mut self, schema: &Schema) -> Result<(), Error> {
        let mut all = Schema::clone(&self.schema);
        let extended = all.extend(schema);
        if !extended.map_err(|why| Error::Setup(why.to_string()))? {
            return Ok(());
        }
        if !self.encoder.is_empty() {
            self.end_block()?;
        }
        let old = std::mem::replace(&mut self.schema, Arc::new(all));
        let used = |id| {
            let known = old.messages.binary_search_by_key(&id, |it| it.id);
            known.is_ok_and(|at| self.used.get(at) == Some(&true))
        };
        self.used = self.schema.messages.iter().map(|it| used(it.id)).collect();
        self.encoder = encoder(&self.schema, self.in_columns, self.options.elide);
        Ok(())
    }

    /// Position of the message with this number in the schema.
    pub(crate) fn position(&self, id: u32) -> Option<usize> {
        self.schema
            .messages
            .binary_search_by_key(&id, |it| it.id)
            .ok()
    }

    /// Appends a record of the message with this position in the schema, of this thread. `time_ns` is 0 when it has no time.
    pub fn put(
        &mut self,
        message: usize,
        thread: u64,
        time_ns: u64,
        values: &[Value<'_>],
    ) -> Result<(), Error> {
        if let Some(used) = self.used.get_mut(message)
            && !*used
        {
            *used = true;
            self.grown = true;
        }
        self.encoder.put(message, thread, values);
        if time_ns != 0 {
            if self.first_ns == 0 || time_ns < self.first_ns {
                self.first_ns = time_ns;
            }
            self.last_ns = self.last_ns.max(time_ns);
        }
        if self.encoder.len() >= self.block {
            self.end_block()?;
        }
        Ok(())
    }

    /// Counts events that never became records.
    pub fn count_lost(&mut self, events: u64) {
        self.lost = self.lost.saturating_add(events);
    }

    /// Bytes of the blocks of records before the codecs.
    pub(crate) fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// Number of the file that the next record goes to, from 0.
    pub fn segment(&self) -> u64 {
        self.segment
    }

    /// Records so far.
    pub fn records(&self) -> u64 {
        self.records + u64::from(self.encoder.records())
    }

    /// The reports of the stages of output.
    pub fn progress(&self) -> &Progress {
        &self.stream.progress
    }

    /// Passes all buffered records on to the stages of output.
    pub fn flush(&mut self) -> Result<(), Error> {
        if !self.encoder.is_empty() {
            self.end_block()?;
        }
        self.out.flush()
    }

    /// Ends the stream.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        let ended = match self.encoder.is_empty() {
            true => Ok(()),
            false => self.end_block(),
        };
        let begun = ended.and_then(|()| self.begin_first());
        let ended = begun.and_then(|()| self.end_file("yes"));
        let released = self.out.release();
        ended.and(released)
    }

    fn end_block(&mut self) -> Result<(), Error> {
        let records = self.encoder.records();
        let payload = self.encoder.finish();
        self.begin_first()?;
        if self.grown {
            self.send_schema(false)?;
        }
        self.since_schema += payload.len();
        self.raw_bytes += payload.len() as u64;
        let kind = match self.in_columns {
            true => Kind::Columns,
            false => Kind::Records,
        };
        self.send(kind, records, payload, false)?;
        self.records += u64::from(records);
        (self.first_ns, self.last_ns) = (0, 0);
        let rotate = self.options.rotate;
        let full = rotate
            .bytes
            .is_some_and(|most| self.progress().file_bytes() >= most);
        let old = rotate
            .after
            .is_some_and(|most| self.segment_began.elapsed() >= most);
        if full || old {
            self.end_file("no")?;
            self.segment += 1;
            self.begin_file()
        } else if self.since_schema >= SCHEMA_EVERY {
            self.send_schema(false)
        } else {
            Ok(())
        }
    }

    /// Begins the first file.
    fn begin_first(&mut self) -> Result<(), Error> {
        if self.begun {
            return Ok(());
        }
        self.begun = true;
        self.begin_file()
    }

    fn begin_file(&mut self) -> Result<(), Error> {
        self.segment_began = Instant::now();
        let mut context = self.context.clone();
        for (name, value) in [("segment", self.segment), ("sequence", self.sequence)] {
            context.push((name.to_owned(), value.to_string().into_bytes()));
        }
        self.send_schema(true)?;
        self.send(Kind::Context, 0, pairs::encode(&context), false)
    }

    fn send_schema(&mut self, starts_file: bool) -> Result<(), Error> {
        self.since_schema = 0;
        if std::mem::take(&mut self.grown) {
            self.growths += 1;
            let all = self.growths >= MAX_GROWTHS;
            if all {
                self.used.fill(true);
            }
            let used = |position| self.used.get(position) == Some(&true);
            self.definitions = self.schema.subset(used).encode();
            self.schema_id = crc32c::crc32c(&self.definitions);
        }
        self.send(Kind::Schema, 0, self.definitions.clone(), starts_file)
    }

    fn end_file(&mut self, last: &str) -> Result<(), Error> {
        let end = [
            ("records", self.records.to_string()),
            ("lost", self.lost.to_string()),
            ("last", last.to_owned()),
        ];
        let end = end.map(|(name, value)| (name.to_owned(), value.into_bytes()));
        self.send(Kind::End, 0, pairs::encode(&end), false)
    }

    fn send(
        &mut self,
        kind: Kind,
        records: u32,
        payload: Vec<u8>,
        starts_file: bool,
    ) -> Result<(), Error> {
        let raw_len = u32::try_from(payload.len())
            .ok()
            .filter(|&len| len <= MAX_BLOCK);
        let Some(raw_len) = raw_len else {
            return Err(Error::Setup(format!(
                "a block of {} bytes is too long for a trace",
                payload.len()
            )));
        };
        let header = BlockHeader {
            kind,
            raw_len,
            codecs: self.codecs,
            serial: self.stream.serial,
            sequence: self.sequence,
            records_before: self.records,
            records,
            schema_id: self.schema_id,
            first_ns: if records == 0 { 0 } else { self.first_ns },
            last_ns: if records == 0 { 0 } else { self.last_ns },
            lost: self.lost,
        };
        self.sequence += 1;
        self.out.write(Block {
            header,
            payload,
            starts_file,
        })
    }
}

fn encoder(schema: &Arc<Schema>, in_columns: bool, elide: bool) -> Encoder {
    let schema = Arc::clone(schema);
    match in_columns {
        true => Encoder::with_columns(schema),
        false => Encoder::new(schema, elide),
    }
}
