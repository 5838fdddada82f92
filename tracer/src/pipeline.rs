//! A tracer: input filter, assembly, output filters and driver, put together. [`Pipeline`] is a [`Sink`].

use amino_schema::trace::{Codec, pairs};
use parking_lot::Mutex;

use crate::assemble::{Assembly, Writer, WriterOptions};
use crate::codec::{Authenticate, Encrypt, Key, Transform, Zstd};
use crate::output::{Asynchronous, FailureStage, OnFailure, Output, Transformed};
use crate::select::Filter;
use crate::selection::Selection;
use crate::{Error, Event, Sink};

/// An output filter.
#[derive(Debug, Clone)]
pub enum OutputFilter {
    /// Compresses each block at this level.
    Zstd(i32),
    /// Encrypts each block.
    Encrypt(Key),
    /// Appends an HMAC to each block.
    Authenticate(Key),
    /// Moves the later filters and the driver to a thread of their own, with a queue of this many blocks.
    Asynchronous(usize),
}

impl OutputFilter {
    fn name(&self) -> &'static str {
        match self {
            Self::Zstd(_) => "zstd",
            Self::Encrypt(_) => "aes-256-gcm",
            Self::Authenticate(_) => "hmac-sha-256",
            Self::Asynchronous(_) => "asynchronous",
        }
    }

    fn transform(self) -> Result<Box<dyn Transform>, usize> {
        Ok(match self {
            Self::Zstd(level) => Box::new(Zstd::new(level)),
            Self::Encrypt(key) => Box::new(Encrypt::new(key)),
            Self::Authenticate(key) => Box::new(Authenticate::new(key)),
            Self::Asynchronous(queue) => return Err(queue),
        })
    }
}

/// How a pipeline is put together.
pub struct PipelineOptions {
    /// How records become blocks.
    pub writer: WriterOptions,
    /// Output filters, in the order in which blocks pass them.
    pub filters: Vec<OutputFilter>,
    /// The reaction to a failure of the driver.
    pub on_failure: OnFailure,
    /// Called for errors after which the trace continues.
    pub report: Box<dyn Fn(&Error) + Send>,
    /// The input filter. Without one the trace has all events, also calls that only another tracer of the same capture has asked for.
    pub select: Option<Filter>,
    /// The pairs of the context block. [`crate::context::of_machine`] has those that do not depend on the command.
    pub context: pairs::Pairs,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self {
            writer: WriterOptions::default(),
            filters: Vec::new(),
            on_failure: OnFailure::default(),
            report: Box::new(|_| {}),
            select: None,
            context: pairs::Pairs::new(),
        }
    }
}

/// The totals of a finished trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Records that went to the output.
    pub records: u64,
    /// Records among them in blocks that could not be written.
    pub dropped: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// Writes a trace of the events that it receives.
pub struct Pipeline {
    inner: Mutex<Inner>,
}

struct Inner {
    select: Option<Selection>,
    assembly: Box<dyn Assembly>,
    writer: Writer,
    ended: bool,
}

impl Pipeline {
    /// Begins a trace.
    pub fn start(
        mut options: PipelineOptions,
        mut assembly: Box<dyn Assembly>,
        driver: Box<dyn Output>,
    ) -> Result<Self, Error> {
        let mut context = std::mem::take(&mut options.context);
        for (name, value) in assembly.describe() {
            context.push((name, value.into_bytes()));
        }
        let select = options.select.map(Selection::new);
        let text = select.as_ref().map(|selection| selection.filter().text());
        if let Some(text) = text.filter(|text| !text.trim().is_empty()) {
            context.push(("filter".to_owned(), text.as_bytes().to_vec()));
        }
        let names = options
            .filters
            .iter()
            .map(OutputFilter::name)
            .collect::<Vec<_>>();
        context.push(("outputs".into(), names.join(",").into_bytes()));
        let failure_stage = FailureStage::new(options.on_failure, options.report, driver);
        let mut codecs: Vec<Codec> = Vec::new();
        let mut stages = Vec::new();
        for filter in options.filters {
            let stage = filter.transform();
            codecs.extend(stage.as_ref().ok().map(|it| it.codec()));
            stages.push((stage, codecs.len().saturating_sub(1) as u32));
        }
        let mut out: Box<dyn Output> = Box::new(failure_stage);
        for (stage, position) in stages.into_iter().rev() {
            out = match stage {
                Ok(transform) => Box::new(Transformed::new(transform, position, out)),
                Err(queue) => Box::new(Asynchronous::new(queue, out)),
            };
        }
        let writer = Writer::begin(options.writer, assembly.schema(), context, &codecs, out)?;
        let inner = Inner {
            select,
            assembly,
            writer,
            ended: false,
        };
        Ok(Self {
            inner: Mutex::new(inner),
        })
    }

    /// Ends the trace. Events that come later are ignored.
    pub fn finish(&self) -> Result<Summary, Error> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        if !inner.ended {
            inner.ended = true;
            let assembled = inner.assembly.finish(&mut inner.writer);
            let written = inner.writer.finish();
            assembled.and(written)?;
        }
        Ok(Summary {
            records: inner.writer.records(),
            dropped: inner.writer.progress().dropped(),
            bytes: inner.writer.progress().bytes(),
        })
    }
}

impl Sink for Pipeline {
    fn take(&self, event: &Event) -> Result<(), Error> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let is_selected = |selection: &mut Selection| selection.selects(event);
        if inner.ended || !inner.select.as_mut().is_none_or(is_selected) {
            return Ok(());
        }
        inner.assembly.event(event, &mut inner.writer)
    }

    fn flush(&self) -> Result<(), Error> {
        let mut inner = self.inner.lock();
        if inner.ended {
            Ok(())
        } else {
            inner.writer.flush()
        }
    }
}
