//! The calls that map memory which a process shares with the monitor, from a descriptor that the monitor has installed in it.

use std::sync::{Arc, OnceLock};

use goanna_sys::ptrace::Stopped;
use goanna_vfs::{Errno, Result};

use super::Step;

/// The number of the descriptor, once it is installed.
pub type Number = Arc<OnceLock<i32>>;

/// Receives the thread and the address of the mapping, before the thread continues.
pub type Mapped = Box<dyn FnOnce(i32, u64) + Send>;

/// Memory to map.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Its size, bytes.
    pub len: usize,
    /// `PROT_*`.
    pub access: i32,
    /// The address, and `MAP_FIXED` or `MAP_FIXED_NOREPLACE`. `None`: the kernel chooses.
    pub at: Option<(u64, i32)>,
    /// Children of fork(2) do not get it.
    pub is_private: bool,
}

/// Maps shared memory in a process.
pub struct MapMemory {
    number: Number,
    memory: Memory,
    mapped: Option<Mapped>,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    Begin,
    Map(i32),
    Advise(i32, u64),
    Close,
}

impl MapMemory {
    /// Of the descriptor `number`. Where there is none when the thread is stopped, nothing happens.
    pub fn new(number: Number, memory: Memory, mapped: Mapped) -> Self {
        let mapped = Some(mapped);
        Self {
            number,
            memory,
            mapped,
            stage: Stage::Begin,
        }
    }

    pub(super) fn next(&mut self, stopped: &Stopped, result: Option<i64>) -> Result<Step, Errno> {
        let Memory { len, access, .. } = self.memory;
        let (at, firmly) = self.memory.at.unwrap_or_default();
        match self.stage {
            Stage::Begin => {
                let Some(&number) = self.number.get() else {
                    return Ok(Step::Done);
                };
                self.stage = Stage::Map(number);
                let args = [
                    at,
                    len as u64,
                    access as u64,
                    (libc::MAP_SHARED | firmly) as u64,
                    number as u64,
                    0,
                ];
                Ok(Step::Call(libc::SYS_mmap, args))
            }
            Stage::Map(number) => {
                let address = result.and_then(|address| u64::try_from(address).ok());
                match address {
                    Some(address) if self.memory.is_private => {
                        self.stage = Stage::Advise(number, address);
                        let advice = libc::MADV_DONTFORK as u64;
                        Ok(Step::Call(
                            libc::SYS_madvise,
                            [address, len as u64, advice, 0, 0, 0],
                        ))
                    }
                    _ => Ok(self.close(stopped, number, address)),
                }
            }
            Stage::Advise(number, address) => {
                let address = Some(address).filter(|_| result == Some(0));
                Ok(self.close(stopped, number, address))
            }
            Stage::Close => Ok(Step::Done),
        }
    }

    /// The memory is at `address`, if it is there. The descriptor is not needed any more.
    fn close(&mut self, stopped: &Stopped, number: i32, address: Option<u64>) -> Step {
        if let (Some(address), Some(mapped)) = (address, self.mapped.take()) {
            mapped(stopped.tid(), address);
        }
        self.stage = Stage::Close;
        Step::Call(libc::SYS_close, [number as u64, 0, 0, 0, 0, 0])
    }
}
