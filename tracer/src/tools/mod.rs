//! Tools for existing traces: text, JSON, figures, exports, repair. They read the schema in the trace, and assume no other one.

pub mod anonymize;
mod ctf;
mod fields;
mod json;
mod parquet;
mod perfetto;
mod recover;
mod report;
mod rewrite;
mod statistics;
mod text;
mod top;

use std::io::Read;
use std::sync::Arc;

use amino_schema::trace::pairs::Pairs;
use amino_schema::trace::record::Record;
use amino_schema::trace::{BlockHeader, Schema};

pub use ctf::Ctf;
pub use fields::{error_name, symbolic};
pub use json::JsonLines;
pub use parquet::Parquet;
pub use perfetto::Perfetto;
pub use recover::{Recovered, recover};
pub use report::Report;
pub use statistics::Statistics;
pub use text::Text;
pub use top::{Counts, Top};

use crate::Error;
use crate::read::{Finding, Item, Problem, Reader, number};

/// Receives the content of a trace, in its order.
pub trait Consumer {
    /// A schema. Repeated schemas are passed, too.
    fn schema(&mut self, _schema: &Arc<Schema>) -> Result<(), Error> {
        Ok(())
    }

    /// A context; each segment has one.
    fn context(&mut self, _context: &Pairs) -> Result<(), Error> {
        Ok(())
    }

    /// The header of a block whose records come next.
    fn block(&mut self, _header: &BlockHeader) {}

    /// A record.
    fn record(&mut self, record: &Record<'_>) -> Result<(), Error>;

    /// The end of the trace.
    fn finish(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Passes the content that `reader` reads to `consumer`, and returns the number of records. `report` receives a finding for each lost
/// or altered place.
pub fn consume<R: Read>(
    reader: &mut Reader<R>,
    consumer: &mut dyn Consumer,
    report: &mut dyn FnMut(&Finding),
) -> Result<u64, Error> {
    let mut total = 0;
    while let Some(item) = reader.next()? {
        match item {
            Item::Schema(schema) => consumer.schema(&schema)?,
            Item::Context(context) => consumer.context(&context)?,
            Item::Records(header, mut records) => {
                consumer.block(&header);
                let mut read = 0;
                let malformed = loop {
                    match records.next() {
                        Ok(Some(record)) => consumer.record(&record)?,
                        Ok(None) => break None,
                        Err(error) => break Some(error),
                    }
                    read += 1;
                };
                total += read;
                if let Some(error) = malformed {
                    report(&Finding {
                        offset: reader.offset(),
                        what: Problem::Malformed {
                            sequence: header.sequence,
                            records: u64::from(header.records).saturating_sub(read),
                            why: error.to_string(),
                        },
                    });
                }
            }
            Item::Finding(finding) => report(&finding),
            Item::End(_) => {}
        }
    }
    consumer.finish()?;
    Ok(total)
}

/// The offset from a time of the trace to nanoseconds since 1970; `None` when the context does not have it.
pub fn clock_offset(context: &Pairs) -> Option<i64> {
    let (real, monotonic) = (
        number(context, "clock")?,
        number(context, "clock.monotonic")?,
    );
    Some(real.wrapping_sub(monotonic) as i64)
}
