//! Copies a trace to a new one, and applies a change to it. `recover.rs` changes nothing, `anonymize/` hides fields.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use amino_schema::trace::pairs::Pairs;
use amino_schema::trace::record::{Record, Value};
use amino_schema::trace::{BlockHeader, Codec, Schema};

use super::Consumer;
use crate::Error;
use crate::assemble::{Writer, WriterOptions};
use crate::codec::Zstd;
use crate::output::{FileOptions, FileOutput, Output, Transformed};

/// The change that a copy applies to the contents of a trace.
pub(super) trait Change {
    /// The schema of the changed records. Messages keep their numbers, and each message the number of its arguments.
    fn schema(&mut self, schema: &Schema) -> Result<Schema, Error>;

    /// The changed context.
    fn context(&mut self, context: Pairs) -> Result<Pairs, Error>;

    /// Replaces the values of a record, one for each argument of its message; `false` to leave the record out.
    fn record(&mut self, record: &Record<'_>, values: &mut Vec<Changed>) -> Result<bool, Error>;
}

/// A value of a changed record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Changed {
    Absent,
    Null,
    Unread(u64),
    Number(u64),
    Bytes(Vec<u8>),
}

impl Changed {
    pub(super) fn same(value: Value<'_>) -> Self {
        match value {
            Value::Absent => Self::Absent,
            Value::Null => Self::Null,
            Value::Unread(address) => Self::Unread(address),
            Value::Number(number) => Self::Number(number),
            Value::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
        }
    }

    fn value(&self) -> Value<'_> {
        match self {
            Self::Absent => Value::Absent,
            Self::Null => Value::Null,
            Self::Unread(address) => Value::Unread(*address),
            Self::Number(number) => Value::Number(*number),
            Self::Bytes(bytes) => Value::Bytes(bytes),
        }
    }
}

/// Writes the changed contents to a new trace, compressed with zstd.
pub(super) struct Rewrite<'a, C> {
    path: PathBuf,
    pub change: &'a mut C,
    writer: Option<Writer>,
    context: Pairs,
    /// The schema of the record before, and the changed one.
    current: Option<(Arc<Schema>, Schema)>,
    values: Vec<Changed>,
    /// Bytes of the blocks of records that were read, before codecs.
    pub bytes_read: u64,
    /// Bytes of the blocks of records that were written, before codecs.
    pub bytes_written: u64,
}

impl<'a, C: Change> Rewrite<'a, C> {
    /// The new trace is the file at `path`.
    pub fn new(path: &Path, change: &'a mut C) -> Self {
        Self {
            path: path.to_owned(),
            change,
            writer: None,
            context: Pairs::new(),
            current: None,
            values: Vec::new(),
            bytes_read: 0,
            bytes_written: 0,
        }
    }

    fn writer(&mut self) -> Result<&mut Writer, Error> {
        if self.writer.is_none() {
            let file = FileOutput::new(&self.path, FileOptions::default());
            let zstd = Box::new(Zstd::new(Zstd::LEVEL));
            let out: Box<dyn Output> = Box::new(Transformed::new(zstd, 0, Box::new(file)));
            let mut context = std::mem::take(&mut self.context);
            context.retain(|(name, _)| !matches!(name.as_str(), "segment" | "sequence"));
            let context = self.change.context(context)?;
            let options = WriterOptions::default();
            let codecs = [Codec::Zstd];
            let writer = Writer::begin(options, Schema::default(), context, &codecs, out)?;
            self.writer = Some(writer);
        }
        self.writer.as_mut().ok_or(Error::Ended)
    }

    /// Defines the messages of the record's schema, if they are others than those of the record before.
    fn enter(&mut self, schema: &Arc<Schema>) -> Result<(), Error> {
        let known = |(known, _): &(Arc<Schema>, Schema)| Arc::ptr_eq(known, schema);
        if self.current.as_ref().is_some_and(known) {
            return Ok(());
        }
        let changed = self.change.schema(schema)?;
        self.writer()?.define(&changed)?;
        self.current = Some((Arc::clone(schema), changed));
        Ok(())
    }
}

impl<C: Change> Consumer for Rewrite<'_, C> {
    fn block(&mut self, header: &BlockHeader) {
        self.bytes_read = self.bytes_read.saturating_add(header.raw_len.into());
    }

    fn context(&mut self, context: &Pairs) -> Result<(), Error> {
        if self.context.is_empty() && self.writer.is_none() {
            self.context.clone_from(context);
        }
        Ok(())
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), Error> {
        self.enter(record.schema())?;
        let mut values = std::mem::take(&mut self.values);
        values.clear();
        let kept = self.change.record(record, &mut values)?;
        if kept {
            let Some((_, schema)) = &self.current else {
                return Ok(());
            };
            let (thread, time) = thread_and_time(schema, record.message.id, &values);
            let writer = self.writer.as_mut().ok_or(Error::Ended)?;
            let position = writer.position(record.message.id).ok_or(Error::Ended)?;
            let borrowed = values.iter().map(Changed::value).collect::<Vec<_>>();
            writer.put(position, thread, time, &borrowed)?;
        }
        self.values = values;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        let writer = self.writer()?;
        writer.finish()?;
        self.bytes_written = writer.raw_bytes();
        Ok(())
    }
}

/// The thread and the time of a record, which the writer needs.
fn thread_and_time(schema: &Schema, id: u32, values: &[Changed]) -> (u64, u64) {
    let (mut thread, mut time) = (0, 0);
    let arguments = schema.message(id).into_iter().flat_map(|it| &it.arguments);
    for (&argument, value) in arguments.zip(values) {
        let Changed::Number(number) = value else {
            continue;
        };
        match schema
            .argument(argument)
            .map(|it| (it.name.as_str(), it.role.as_str()))
        {
            Some(("tid", "tid")) => thread = *number,
            Some(("pid", "pid")) if thread == 0 => thread = *number,
            Some(("time", "time")) => time = *number,
            _ => {}
        }
    }
    (thread, time)
}
