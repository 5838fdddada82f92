//! The calls that map memory in a process: some that it shares with the monitor, from a descriptor that the monitor has installed in it, or zeros.

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

/// Maps memory in a process.
pub struct MapMemory {
    /// `None`: zeros are mapped, which a child of fork(2) gets a copy of.
    number: Option<Number>,
    memory: Memory,
    mapped: Option<Mapped>,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    Begin,
    Map(Option<i32>),
    Advise(Option<i32>, u64),
    Close,
}

impl MapMemory {
    /// Of the descriptor `number`. Where there is none when the thread is stopped, nothing happens.
    pub fn new(number: Number, memory: Memory, mapped: Mapped) -> Self {
        Self {
            number: Some(number),
            memory,
            mapped: Some(mapped),
            stage: Stage::Begin,
        }
    }

    /// Of zeros.
    pub fn of_zeros(memory: Memory, mapped: Mapped) -> Self {
        Self {
            number: None,
            memory,
            mapped: Some(mapped),
            stage: Stage::Begin,
        }
    }

    pub(super) fn next(&mut self, stopped: &Stopped, result: Option<i64>) -> Result<Step, Errno> {
        let Memory { len, access, .. } = self.memory;
        let (at, firmly) = self.memory.at.unwrap_or_default();
        match self.stage {
            Stage::Begin => {
                let number = match &self.number {
                    Some(number) => match number.get() {
                        Some(number) => Some(*number),
                        None => return Ok(Step::Done),
                    },
                    None => None,
                };
                self.stage = Stage::Map(number);
                let flags = match number {
                    Some(_) => libc::MAP_SHARED,
                    None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                };
                let args = [
                    at,
                    len as u64,
                    access as u64,
                    (flags | firmly) as u64,
                    number.unwrap_or(-1) as u64,
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
    fn close(&mut self, stopped: &Stopped, number: Option<i32>, address: Option<u64>) -> Step {
        if let (Some(address), Some(mapped)) = (address, self.mapped.take()) {
            mapped(stopped.tid(), address);
        }
        let Some(number) = number else {
            return Step::Done;
        };
        self.stage = Stage::Close;
        Step::Call(libc::SYS_close, [number as u64, 0, 0, 0, 0, 0])
    }
}
