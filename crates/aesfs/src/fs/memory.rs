//! The limit on the memory of decrypted contents that programs have open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use goanna_vfs::{Errno, Result};
use nix::unistd::{SysconfVar, sysconf};

/// Bytes that all contents of a volume may take together.
#[derive(Debug)]
pub(crate) struct Memory {
    limit: u64,
    taken: AtomicU64,
}

impl Memory {
    /// At most `limit` bytes, or half of the machine's memory, as a tmpfs.
    pub fn new(limit: Option<u64>) -> Self {
        let value = |name| sysconf(name).ok().flatten().map_or(0, i64::cast_unsigned);
        let half = || match value(SysconfVar::_PHYS_PAGES) / 2 * value(SysconfVar::PAGE_SIZE) {
            0 => u64::MAX,
            bytes => bytes,
        };
        Self {
            limit: limit.unwrap_or_else(half),
            taken: AtomicU64::new(0),
        }
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }
}

/// The part of a volume's memory that belongs to one content. Dropping it releases the share.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<Memory>,
    bytes: u64,
}

impl Share {
    pub fn new(memory: &Arc<Memory>) -> Self {
        Self {
            memory: Arc::clone(memory),
            bytes: 0,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the share to `bytes`. ENOMEM if it becomes larger and the limit does not allow that.
    pub fn reserve(&mut self, bytes: u64) -> Result<()> {
        let more = bytes.saturating_sub(self.bytes);
        let limit = self.memory.limit;
        let add = |taken: u64| Some(taken.saturating_add(more)).filter(|all| *all <= limit);
        if more > 0 {
            self.memory
                .taken
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
                .map_err(|_| Errno::ENOMEM)?;
            self.bytes = bytes;
        } else {
            self.set(bytes);
        }
        Ok(())
    }

    /// Changes the share to `bytes`, without a check of the limit: the memory is in use already.
    pub fn set(&mut self, bytes: u64) {
        let taken = &self.memory.taken;
        taken.fetch_add(bytes, Ordering::Relaxed);
        taken.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn shares_are_bounded_together() {
        let memory = Arc::new(Memory::new(Some(100)));
        let (mut a, mut b) = (Share::new(&memory), Share::new(&memory));
        a.reserve(60).unwrap();
        assert_eq!(b.reserve(41), Err(Errno::ENOMEM.into()));
        b.reserve(40).unwrap();
        a.reserve(10).unwrap();
        b.reserve(90).unwrap();
        assert_eq!(a.reserve(u64::MAX), Err(Errno::ENOMEM.into()));
        b.set(200);
        assert_eq!(a.reserve(11), Err(Errno::ENOMEM.into()));
        a.reserve(10).unwrap();
        drop(b);
        a.reserve(100).unwrap();
    }
}
