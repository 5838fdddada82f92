use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;

use super::{Engine, Entry, Snapshot, visible_from};
use crate::changes::is_empty_range;
use crate::{Changes, Error};

type Map = Arc<BTreeMap<Bytes, Bytes>>;

/// A map in memory. A snapshot shares the map, and the next batch then copies it.
#[derive(Default)]
pub(super) struct MemoryEngine {
    state: RwLock<(Map, Option<u64>)>,
}

struct MemorySnapshot(Map);

impl Engine for MemoryEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        Ok(self.state.read().0.get(key).cloned())
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, Error> {
        Ok(Box::new(MemorySnapshot(self.state.read().0.clone())))
    }

    fn apply(&self, changes: &Changes, seq: u64) -> Result<(), Error> {
        let mut state = self.state.write();
        let map = Arc::make_mut(&mut state.0);
        for (key, value) in changes.iter() {
            match value {
                Some(value) => map.insert(key.clone(), value.clone()),
                None => map.remove(key),
            };
        }
        state.1 = Some(seq);
        Ok(())
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    fn reopen(&self) -> Result<(), Error> {
        Ok(())
    }

    fn room(&self, _pending: u64) -> u64 {
        0
    }

    fn settle(&self, _unsettled: u64) -> Result<bool, Error> {
        Ok(false)
    }

    fn reclaim(&self, _available: u64) -> Result<bool, Error> {
        Ok(false)
    }

    fn applied_seq(&self) -> Result<Option<u64>, Error> {
        Ok(self.state.read().1)
    }

    fn size_on_disk(&self) -> Result<u64, Error> {
        Ok(0)
    }

    fn is_persistent(&self) -> bool {
        false
    }
}

impl Snapshot for MemorySnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        Ok(self.0.get(key).cloned())
    }

    fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Box<dyn Iterator<Item = Entry> + '_> {
        let from = visible_from(from);
        if is_empty_range(from, to) {
            return Box::new(std::iter::empty());
        }
        let entries = self.0.range::<[u8], _>((from, to));
        Box::new(entries.map(|(key, value)| Ok((key.clone(), value.clone()))))
    }
}
