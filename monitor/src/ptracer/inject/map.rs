//! The calls that map the attributes of a store into a process, from a descriptor that the monitor has installed in it.

use std::sync::{Arc, OnceLock};

use goanna_sys::ptrace::Stopped;
use goanna_sys::stub::map::LEN;
use goanna_vfs::{Errno, Result};

use super::Step;

/// The number of the descriptor, once it is installed.
pub type Number = Arc<OnceLock<i32>>;

/// Receives the thread and the address of the mapping, before the thread continues.
pub type Mapped = Box<dyn FnOnce(i32, u64) + Send>;

/// See the module's documentation.
pub struct MapAttributes {
    number: Number,
    mapped: Option<Mapped>,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    Begin,
    Map(i32),
    Close,
}

impl MapAttributes {
    /// Of the descriptor `number`. Where there is none when the thread is stopped, nothing happens.
    pub fn new(number: Number, mapped: Mapped) -> Self {
        let mapped = Some(mapped);
        Self {
            number,
            mapped,
            stage: Stage::Begin,
        }
    }

    pub(super) fn next(&mut self, stopped: &Stopped, result: Option<i64>) -> Result<Step, Errno> {
        match self.stage {
            Stage::Begin => {
                let Some(&number) = self.number.get() else {
                    return Ok(Step::Done);
                };
                self.stage = Stage::Map(number);
                let access = (libc::PROT_READ | libc::PROT_EXEC) as u64;
                let args = [
                    0,
                    LEN as u64,
                    access,
                    libc::MAP_SHARED as u64,
                    number as u64,
                    0,
                ];
                Ok(Step::Call(libc::SYS_mmap, args))
            }
            Stage::Map(number) => {
                let address = result.and_then(|address| u64::try_from(address).ok());
                if let (Some(address), Some(mapped)) = (address, self.mapped.take()) {
                    mapped(stopped.tid(), address);
                }
                self.stage = Stage::Close;
                Ok(Step::Call(libc::SYS_close, [number as u64, 0, 0, 0, 0, 0]))
            }
            Stage::Close => Ok(Step::Done),
        }
    }
}
