//! The stage that applies the user's choice when a driver fails: continue with a gap, or stop.

use super::{Block, Output, Progress, Stream};
use crate::Error;

/// The reaction to a driver that cannot write, for example to a full disk or to a receiver that has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The program continues. Blocks that cannot be written are missing in the trace: the next block that can be written shows the gap and
    /// the number of records in it.
    #[default]
    Continue,
    /// The source gets the error and ends the program.
    Stop,
}

/// The stage before a driver.
pub struct FailureStage {
    policy: OnFailure,
    next: Box<dyn Output>,
    stream: Option<Stream>,
    report: Box<dyn Fn(&Error) + Send>,
    failing: bool,
}

impl FailureStage {
    /// Under [`OnFailure::Continue`], calls `report` for the first error, and for the first one after blocks could be written again.
    pub fn new(
        policy: OnFailure,
        report: Box<dyn Fn(&Error) + Send>,
        next: Box<dyn Output>,
    ) -> Self {
        Self {
            policy,
            next,
            stream: None,
            report,
            failing: false,
        }
    }

    fn failed(&mut self, error: Error) -> Result<(), Error> {
        if self.policy == OnFailure::Stop {
            return Err(error);
        }
        if !self.failing {
            (self.report)(&error);
        }
        self.failing = true;
        Ok(())
    }

    fn progress(&self) -> Option<&Progress> {
        self.stream.as_ref().map(|stream| &*stream.progress)
    }
}

impl Output for FailureStage {
    fn initialise(&mut self, stream: &Stream) -> Result<(), Error> {
        self.stream = Some(stream.clone());
        self.next.initialise(stream)
    }

    fn write(&mut self, block: Block) -> Result<(), Error> {
        let records = block.header.records;
        match self.next.write(block) {
            Ok(()) => {
                self.failing = false;
                Ok(())
            }
            Err(error) => {
                if let Some(progress) = self.progress() {
                    progress.drop_records(records);
                }
                self.failed(error)
            }
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        match self.next.flush() {
            Ok(()) => Ok(()),
            Err(error) => self.failed(error),
        }
    }

    /// The end of a trace that cannot be written is an error under each policy, because the trace itself could not show it.
    fn release(&mut self) -> Result<(), Error> {
        self.next.release()
    }

    fn preferred_block(&self) -> usize {
        self.next.preferred_block()
    }
}
