//! Values that a test process makes once, because many of its tests need the same ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A value for each key. A test that needs one which another test is making waits for it.
#[derive(Debug)]
pub struct OnceEach<K, V>(Mutex<BTreeMap<K, Arc<OnceLock<Arc<V>>>>>);

impl<K: Ord, V> OnceEach<K, V> {
    /// Without values.
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The value of `key`. If it does not exist, `make` makes it. If `make` panics, the next test makes it.
    pub fn get(&self, key: K, make: impl FnOnce() -> V) -> Arc<V> {
        let slot = {
            let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(slots.entry(key).or_default())
        };
        Arc::clone(slot.get_or_init(|| Arc::new(make())))
    }
}

impl<K: Ord, V> Default for OnceEach<K, V> {
    fn default() -> Self {
        Self::new()
    }
}
