//! Writes the intact records of a damaged trace to a new trace.

use std::io::Read;
use std::path::Path;

use amino_schema::trace::Schema;
use amino_schema::trace::pairs::Pairs;
use amino_schema::trace::record::Record;

use super::consume;
use super::rewrite::{Change, Changed, Rewrite};
use crate::Error;
use crate::read::{Finding, Reader};

/// The totals of a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// Records that are in the new trace.
    pub records: u64,
    /// Records that are lost, as far as their number is known.
    pub lost: u64,
}

/// Writes every record that can be read to a new trace at `path`, compressed with zstd. `report` receives a finding for each
/// lost or altered place.
pub fn recover<R: Read>(
    reader: &mut Reader<R>,
    path: &Path,
    report: &mut dyn FnMut(&Finding),
) -> Result<Recovered, Error> {
    let mut mark = Mark;
    let mut copy = Rewrite::new(path, &mut mark);
    let mut lost = 0u64;
    let records = consume(reader, &mut copy, &mut |finding| {
        lost = lost.saturating_add(finding.what.lost_records());
        report(finding);
    })?;
    Ok(Recovered { records, lost })
}

/// Marks the context, and changes nothing else.
struct Mark;

impl Change for Mark {
    fn schema(&mut self, schema: &Schema) -> Result<Schema, Error> {
        Ok(schema.clone())
    }

    fn context(&mut self, mut context: Pairs) -> Result<Pairs, Error> {
        context.push(("recovered".into(), b"yes".to_vec()));
        Ok(context)
    }

    fn record(&mut self, record: &Record<'_>, values: &mut Vec<Changed>) -> Result<bool, Error> {
        values.extend(record.fields().map(|(_, value)| Changed::same(value)));
        Ok(true)
    }
}
