//! The stage that runs the later stages in a thread of their own.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::{Block, Output, Stream};
use crate::Error;

/// Hands blocks to a thread, through a queue of bounded length. A full queue blocks the source: nothing is dropped.
///
/// When a later stage fails, the next call returns the error.
pub struct Asynchronous {
    queue: usize,
    next: Option<Box<dyn Output>>,
    preferred: usize,
    running: Option<Running>,
}

struct Running {
    requests: SyncSender<Request>,
    answers: Receiver<Result<(), Error>>,
    thread: JoinHandle<Result<(), Error>>,
}

enum Request {
    Write(Block),
    Flush,
    Release,
}

impl Asynchronous {
    /// Starts the thread, with a queue of this many blocks, at least one.
    pub fn new(queue: usize, next: Box<dyn Output>) -> Self {
        Self {
            queue: queue.max(1),
            preferred: next.preferred_block(),
            next: Some(next),
            running: None,
        }
    }

    fn send(&mut self, request: Request) -> Result<(), Error> {
        let running = self.running.as_ref().ok_or(Error::Ended)?;
        match running.requests.send(request) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.end()),
        }
    }

    /// Why the thread has ended.
    fn end(&mut self) -> Error {
        let Some(running) = self.running.take() else {
            return Error::Ended;
        };
        drop(running.requests);
        match running.thread.join() {
            Ok(Err(error)) => error,
            _ => Error::Ended,
        }
    }

    /// Sends a request that the thread answers.
    fn ask(&mut self, request: Request) -> Result<(), Error> {
        self.send(request)?;
        let running = self.running.as_ref().ok_or(Error::Ended)?;
        match running.answers.recv() {
            Ok(result) => result,
            Err(_) => Err(self.end()),
        }
    }
}

impl Output for Asynchronous {
    fn initialise(&mut self, stream: &Stream) -> Result<(), Error> {
        let mut next = self.next.take().ok_or(Error::Ended)?;
        next.initialise(stream)?;
        let (requests, inbox) = sync_channel(self.queue);
        let (outbox, answers) = sync_channel(1);
        let thread = std::thread::Builder::new().name("trace-output".into());
        let thread = thread.spawn(move || {
            while let Ok(request) = inbox.recv() {
                let answered = match request {
                    Request::Write(block) => {
                        next.write(block)?;
                        continue;
                    }
                    Request::Flush => outbox.send(next.flush()),
                    Request::Release => {
                        let _ = outbox.send(next.release());
                        return Ok(());
                    }
                };
                if answered.is_err() {
                    break;
                }
            }
            Ok(())
        });
        let thread =
            thread.map_err(|why| Error::Setup(format!("no thread can be started: {why}")))?;
        self.running = Some(Running {
            requests,
            answers,
            thread,
        });
        Ok(())
    }

    fn write(&mut self, block: Block) -> Result<(), Error> {
        self.send(Request::Write(block))
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.ask(Request::Flush)
    }

    fn release(&mut self) -> Result<(), Error> {
        let result = self.ask(Request::Release);
        if let Some(running) = self.running.take() {
            let _ = running.thread.join();
        }
        result
    }

    fn preferred_block(&self) -> usize {
        self.preferred
    }
}
