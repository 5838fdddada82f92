//! Writes what is intact of a damaged trace to a new one.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use amino_schema::trace::pairs::Pairs;
use amino_schema::trace::record::Record;
use amino_schema::trace::{Codec, Schema};

use super::fields::Fields;
use super::{Consumer, consume};
use crate::Error;
use crate::assemble::{Writer, WriterOptions};
use crate::codec::Zstd;
use crate::output::{FileOptions, FileOutput, Output, Transformed};
use crate::read::{Finding, Reader};

/// What became of a damaged trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// Records that are in the new trace.
    pub records: u64,
    /// Records that are lost, as far as their number is known.
    pub lost: u64,
}

/// Writes every record that can be read to a new trace at `path`, compressed with zstd. `report` gets what is lost or altered.
pub fn recover<R: Read>(
    reader: &mut Reader<R>,
    path: &Path,
    report: &mut dyn FnMut(&Finding),
) -> Result<Recovered, Error> {
    let mut copy = Copy {
        path,
        writer: None,
        schema: None,
        context: Pairs::new(),
    };
    let mut lost = 0u64;
    let records = consume(reader, &mut copy, &mut |finding| {
        lost = lost.saturating_add(finding.what.lost_records());
        report(finding);
    })?;
    Ok(Recovered { records, lost })
}

struct Copy<'a> {
    path: &'a Path,
    writer: Option<Writer>,
    schema: Option<Arc<Schema>>,
    context: Pairs,
}

impl Copy<'_> {
    /// Begins the new trace with the schema of its first record.
    fn writer(&mut self, schema: &Schema) -> Result<&mut Writer, Error> {
        if self.writer.is_none() {
            let file = FileOutput::new(self.path, FileOptions::default());
            let zstd = Box::new(Zstd::new(Zstd::LEVEL));
            let out: Box<dyn Output> = Box::new(Transformed::new(zstd, 0, Box::new(file)));
            let own =
                |(name, _): &(String, Vec<u8>)| !matches!(name.as_str(), "segment" | "sequence");
            let mut context = self.context.clone();
            context.retain(own);
            context.push(("recovered".into(), b"yes".to_vec()));
            let options = WriterOptions::default();
            let codecs = [Codec::Zstd];
            let writer = Writer::begin(options, schema.clone(), context, &codecs, out)?;
            self.writer = Some(writer);
            self.schema = Some(Arc::new(schema.clone()));
        }
        self.writer.as_mut().ok_or(Error::Ended)
    }
}

impl Consumer for Copy<'_> {
    fn context(&mut self, context: &Pairs) -> Result<(), Error> {
        if self.context.is_empty() {
            self.context.clone_from(context);
        }
        Ok(())
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let same = self
            .schema
            .as_ref()
            .is_none_or(|schema| **schema == *record.schema());
        if !same {
            let why = "the trace has several schemas, which one trace cannot hold";
            return Err(Error::Setup(why.to_owned()));
        }
        let messages = &record.schema().messages;
        let position = messages.binary_search_by_key(&record.message.id, |it| it.id);
        let fields = Fields::of(record);
        let (thread, time) = (fields.thread() as u64, fields.time.unwrap_or(0));
        let values = record.fields().map(|(_, value)| value).collect::<Vec<_>>();
        let position = position.unwrap_or(usize::MAX);
        self.writer(record.schema())?
            .put(position, thread, time, &values)
    }

    fn finish(&mut self) -> Result<(), Error> {
        let empty = Schema::default();
        let schema = self.schema.clone();
        self.writer(schema.as_deref().unwrap_or(&empty))?.finish()
    }
}
