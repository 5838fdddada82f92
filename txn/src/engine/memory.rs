//! The engine in memory: the model for tests.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use amino_schema::header::FileSum;
use amino_schema::key::APPLIED;
use bytes::Bytes;
use parking_lot::RwLock;

use super::{Engine, Entry, Snapshot, visible_from};
use crate::changes::is_empty_range;
use crate::{Changes, Error};

type Map = Arc<BTreeMap<Bytes, Bytes>>;

/// A map in memory. A snapshot shares the map, and the next batch then copies it.
#[derive(Default)]
pub(super) struct MemoryEngine {
    map: RwLock<Map>,
}

struct MemorySnapshot(Map);

impl Engine for MemoryEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        Ok(self.map.read().get(key).cloned())
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        Ok(Box::new(MemorySnapshot(self.map.read().clone())))
    }

    fn apply(&self, changes: &Changes, applied: &[u8]) -> Result<(), Error> {
        let mut map = self.map.write();
        let map = Arc::make_mut(&mut map);
        for (key, value) in changes.iter() {
            match value {
                Some(value) => map.insert(key.clone(), value.clone()),
                None => map.remove(key),
            };
        }
        map.insert(APPLIED.into(), Bytes::copy_from_slice(applied));
        Ok(())
    }

    fn checkpoint(
        &self,
        _last: bool,
        publish: &mut dyn FnMut(Vec<FileSum>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        publish(Vec::new())
    }

    fn applied(&self) -> Result<Option<Bytes>, Error> {
        self.get(APPLIED)
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
