//! Converts recordings of other programs to traces: the text of strace (`strace/`), the logs of fio (`fio.rs`).

mod fio;
mod lines;
mod strace;

pub use fio::fio;
pub use strace::strace;

use std::collections::BTreeMap;
use std::path::Path;

use amino_schema::trace::pairs::Pairs;
use goanna_sys::replacement::Replacement;
use goanna_tracer::assemble::{DataMode, Groups, StreamAssembly};
use goanna_tracer::output::{FileOptions, FileOutput};
use goanna_tracer::{Event, OutputFilter, Pipeline, PipelineOptions, Sink};

use crate::Error;

/// How to import.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// The directory that is replayed by default. `None` stands for the first working directory in strace's text, and for the deepest
    /// directory that holds all files of fio's log.
    pub directory: Option<&'a Path>,
}

/// The figures and findings of an import.
#[derive(Debug, Default)]
pub struct Summary {
    /// Calls in the trace.
    pub calls: u64,
    /// Calls that concern no files, and were left out.
    pub others: u64,
    /// Buffers of which strace shows only the beginning: their content is not in the trace.
    pub cut: u64,
    /// Names of calls, flags and values that are not known, with how often they occur.
    pub unknown: BTreeMap<String, u64>,
    /// Bytes of the trace.
    pub bytes: u64,
}

/// Level of compression of the trace.
const LEVEL: i32 = 3;

/// The trace that is written. It gets its name when it is complete.
struct Trace<'a> {
    path: &'a Path,
    replacement: Replacement,
    pipeline: Pipeline,
}

impl<'a> Trace<'a> {
    /// Begins the trace. `source` is the program that has made the recording, `directory` is replayed by default.
    fn begin(path: &'a Path, source: &str, directory: &[u8]) -> Result<Self, Error> {
        // Neither strace's text nor fio's log has the ids of users.
        let groups = Groups {
            user: false,
            ..Groups::default()
        };
        let replacement = Replacement::begin(path).map_err(|why| Error::file(path, why))?;
        let output = FileOutput::new(replacement.file(), FileOptions::default());
        let pipeline = Pipeline::start(
            PipelineOptions {
                filters: vec![OutputFilter::Zstd(LEVEL)],
                context: context(source, directory),
                ..PipelineOptions::default()
            },
            Box::new(StreamAssembly::new(groups, DataMode::Full)),
            Box::new(output),
        );
        match pipeline {
            Ok(pipeline) => Ok(Self {
                path,
                replacement,
                pipeline,
            }),
            Err(why) => Err(Error::Trace {
                path: path.to_owned(),
                why,
            }),
        }
    }

    fn take(&self, event: &Event) -> Result<(), Error> {
        let taken = self.pipeline.take(event);
        taken.map_err(|why| Error::Trace {
            path: self.path.to_owned(),
            why,
        })
    }

    /// Ends the trace, and returns its size. The trace gets its name unless `filled` is an error.
    fn end<T>(self, filled: Result<T, Error>) -> Result<(T, u64), Error> {
        let filled = filled?;
        let path = self.path;
        let finished = self.pipeline.finish().map_err(|why| Error::Trace {
            path: path.to_owned(),
            why,
        })?;
        let replaced = self.replacement.finish();
        replaced.map_err(|why| Error::file(path, why))?;
        Ok((filled, finished.bytes))
    }
}

fn context(source: &str, directory: &[u8]) -> Pairs {
    let program = concat!("replayer ", env!("CARGO_PKG_VERSION"));
    vec![
        ("program".into(), program.into()),
        ("source".into(), source.into()),
        // The times are wall-clock times already.
        ("clock".into(), b"0".to_vec()),
        ("clock.monotonic".into(), b"0".to_vec()),
        ("directory".into(), directory.to_vec()),
    ]
}
