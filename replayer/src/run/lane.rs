//! A lane: reads its commands one after the other, waits for their dependencies and for their times, performs and checks them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use amino_schema::replay::{Block, Call, Command, Content, Located, Target};
use goanna_sys::clock::monotonic_ns;

use super::options::{Until, Verify};
use super::pace::Pace;
use super::perform::{Outcome, Performer};
use super::report::{Accuracy, Difference};
use super::shared::Shared;
use super::verify;
use crate::Error;

/// The figures of a lane.
#[derive(Debug, Default)]
pub struct Done {
    pub commands: u64,
    /// How many commands of each call, in the order of [`Call::ALL`].
    pub by_call: Vec<u64>,
    /// Commands that `--only` leaves out.
    pub left_out: u64,
    pub skipped_reads: u64,
    pub skipped_owners: u64,
    /// Reads that were too long to compare their content.
    pub uncompared: u64,
    pub accuracy: Accuracy,
}

struct Lane {
    number: u32,
    shared: Arc<Shared>,
    performer: Performer,
    pace: Pace,
    tid: u64,
    done: Done,
}

/// Performs lane `number`. Marks it as ended even if it fails, so that no other lane waits for it.
pub fn run(shared: &Arc<Shared>, number: u32) -> Done {
    let mut lane = Lane {
        number,
        shared: Arc::clone(shared),
        performer: Performer::new(Arc::clone(shared)),
        pace: Pace::new(shared.options.speed, shared.start_ns),
        tid: 0,
        done: Done {
            by_call: vec![0; Call::ALL.len()],
            ..Done::default()
        },
    };
    if let Err(error) = lane.all() {
        shared.fail(error);
    }
    if let Some(progress) = shared.lanes.get(number as usize) {
        progress.advance(u64::MAX);
    }
    lane.done
}

impl Lane {
    fn all(&mut self) -> Result<(), Error> {
        // The modes in commands have the umask of the trace applied already. Each lane has its own working directory.
        let own = goanna_sys::replay::own_directory();
        own.map_err(|why| Error::System {
            what: "unshare",
            why,
        })?;
        let _ = goanna_sys::replay::umask(0);
        goanna_sys::replay::exact_timers();
        let shared = Arc::clone(&self.shared);
        let lane = shared.stored.index.lanes.get(self.number as usize);
        let blocks = lane.map(|lane| lane.blocks.as_slice()).unwrap_or_default();
        let mut after = 0;
        for (index, block) in blocks.iter().enumerate() {
            if let Some(next) = blocks.get(index + 1) {
                shared.view.expect(next.offset, next.length as usize);
            }
            match self.block(*block, after)? {
                Some(last) => after = last,
                None => break,
            }
        }
        Ok(())
    }

    /// Performs a block, and returns the order of its last command, or `None` if the replay ends here.
    fn block(&mut self, at: Located, after: u64) -> Result<Option<u64>, Error> {
        let shared = Arc::clone(&self.shared);
        let raw = shared.bytes(at.offset, at.length as usize);
        let raw =
            raw.ok_or_else(|| shared.damaged("a block extends beyond the end of the file"))?;
        let damaged = |why| shared.stored.damaged(why);
        let mut commands = Block::commands(raw, self.number, after).map_err(damaged)?;
        let mut last = after;
        let (mut command, mut following) = (Command::default(), Command::default());
        let mut is_there = commands.read(&mut command).map_err(damaged)?;
        while is_there {
            if self.shared.is_stopped() || self.is_beyond(&command) {
                return Ok(None);
            }
            shared.check(&command)?;
            for wait in &command.waits {
                if let Some(other) = shared.lanes.get(wait.lane as usize) {
                    other.wait(wait.order);
                }
            }
            let due = self
                .pace
                .due(command.start_ns)
                .filter(|_| !command.call.is_own() && !self.is_left_out(&command));
            let mut decoded = None;
            if let Some(due) = due {
                // Reads the data of the next command while this one waits for its time.
                Pace::wait(due, || {
                    decoded = Some(commands.read(&mut following));
                    self.touch(&command);
                });
                let now = monotonic_ns();
                self.done
                    .accuracy
                    .add(now.saturating_sub(shared.start_ns), now.saturating_sub(due));
            }
            self.command(&command)?;
            last = command.order;
            if let Some(own) = shared.lanes.get(self.number as usize) {
                own.advance(last);
            }
            is_there = match decoded {
                Some(is_there) => is_there,
                None => commands.read(&mut following),
            }
            .map_err(damaged)?;
            std::mem::swap(&mut command, &mut following);
        }
        Ok(Some(last))
    }

    fn is_beyond(&self, command: &Command) -> bool {
        match self.shared.options.until {
            None => false,
            Some(Until::Time(ns)) => command.start_ns >= ns,
            Some(Until::Command(number)) => command.order > number,
        }
    }

    /// Reads the data of a write into memory before the write is due.
    fn touch(&self, command: &Command) {
        if let Some(Content::Buffers(buffers)) = command.data.as_ref().map(|data| &data.content) {
            for (offset, length, _) in buffers {
                let bytes = self.shared.bytes(*offset, *length as usize);
                let pages = bytes.unwrap_or_default().iter().step_by(4096);
                std::hint::black_box(pages.fold(0u8, |sum, byte| sum ^ byte));
            }
        }
    }

    /// Whether `--only` leaves the command out.
    fn is_left_out(&self, command: &Command) -> bool {
        let only = self.shared.only.as_ref();
        command.call != Call::Begin && only.is_some_and(|only| !only.has(command.order))
    }

    /// Leaves a command out. A close or unmap is performed nevertheless if an earlier command has filled its slot.
    fn leave_out(&mut self, command: &Command) -> Result<(), Error> {
        let holds = match (command.call, command.targets.first()) {
            (Call::Close | Call::Release, Some(Target::Slot(slot))) => {
                self.shared.descriptor(*slot) >= 0
            }
            (Call::Unmap | Call::Drop, _) => {
                let slot = command.numbers.first().copied().unwrap_or(u64::MAX);
                let slot = usize::try_from(slot).unwrap_or(usize::MAX);
                let mapping = self.shared.mappings.get(slot);
                mapping.is_some_and(|mapping| mapping.read().is_some())
            }
            _ => false,
        };
        if holds {
            self.performer.perform(command)?;
        } else if !command.call.is_own() {
            self.done.left_out += 1;
        }
        Ok(())
    }

    fn command(&mut self, command: &Command) -> Result<(), Error> {
        if self.is_left_out(command) {
            return self.leave_out(command);
        }
        if command.call == Call::Begin {
            self.tid = command.numbers.first().copied().unwrap_or(0);
        }
        let outcome = self.performer.perform(command)?;
        if command.call.is_own() {
            return Ok(());
        }
        let verified = self.verify(command, outcome);
        self.performer.shorten();
        verified
    }

    /// Counts a command, and compares its result with that in the trace.
    fn verify(&mut self, command: &Command, outcome: Outcome) -> Result<(), Error> {
        self.done.commands += 1;
        if let Some(count) = self.done.by_call.get_mut(command.call as usize) {
            *count += 1;
        }
        let returned = match outcome {
            Outcome::Result(returned) => returned,
            Outcome::SkippedRead => {
                self.done.skipped_reads += 1;
                return Ok(());
            }
            Outcome::SkippedOwner => {
                self.done.skipped_owners += 1;
                return Ok(());
            }
        };
        let policy = self.shared.options.verify;
        if policy == Verify::Off {
            return Ok(());
        }
        if command.is_racy {
            let mut differences = self.shared.differences.lock();
            for wait in &command.waits {
                differences.raced(wait.order);
            }
        }
        let read = &self.performer.buffer;
        let is_long =
            returned.is_ok_and(|got| usize::try_from(got).is_ok_and(|got| got > read.len()));
        if is_long && command.call.reads() && self.performer.is_compared(command) {
            self.done.uncompared += 1;
        }
        if let Some(found) = verify::check(&self.shared, command, returned, read)? {
            let target = command.targets.first();
            let difference = Difference {
                order: command.order,
                tid: self.tid,
                call: command.call.name(),
                file: target.map_or_else(String::new, |target| self.shared.path(target)),
                expected: found.expected,
                got: found.got,
                is_race: command.is_racy,
            };
            self.shared.differences.lock().add(difference);
            if policy == Verify::Stop && !command.is_racy {
                self.shared.stop.store(true, Ordering::Release);
            }
        }
        Ok(())
    }
}
