//! The libraries that processes of a run map, each analysed once.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use goanna_callsites::Library;
use goanna_callsites::library::content;
use goanna_sys::mappings::{self, Mapping};
use parking_lot::Mutex;

use super::area::{Constants, analyse};
use crate::intercept::executor::Executor;
use crate::shadow::Identity;

/// Most files that are known.
const LIBRARIES_MAX: usize = 64;
/// Most of them that are known as programs which need no loader.
const WITHOUT_LOADER_MAX: usize = 32;

/// What is known of a file with code.
#[derive(Debug, Clone)]
pub enum Examined {
    /// A thread analyses it, or the run has made too few calls so far.
    NotYet,
    Is(Arc<Library>),
    /// It is left as it is.
    Refused,
}

/// The libraries of a run.
#[derive(Debug, Default)]
pub struct Libraries(Arc<Mutex<HashMap<Identity, Examined>>>);

impl Libraries {
    /// What is known of the file that a process maps there.
    pub fn known(&self, mapping: &Mapping) -> Option<Examined> {
        self.0.lock().get(&(mapping.dev, mapping.ino)).cloned()
    }

    /// The library that `tid` maps there. Its analysis takes some milliseconds, which another thread spends: the process makes its calls meanwhile.
    pub fn analysed(
        &self,
        constants: &Constants,
        executor: &Executor,
        tid: i32,
        mapping: &Mapping,
    ) -> Examined {
        if let Some(known) = self.known(mapping) {
            return known;
        }
        let Ok(path) = mappings::path_at(tid, mapping.start) else {
            return Examined::Refused;
        };
        let key = (mapping.dev, mapping.ino);
        if !self.insert(key, Examined::NotYet, LIBRARIES_MAX) {
            return Examined::Refused;
        }
        let all = Arc::clone(&self.0);
        let examine = Box::new(move || {
            let found = examined(Path::new(OsStr::from_bytes(&path)), key);
            all.lock().insert(key, found);
        });
        if constants.examines_at_once {
            examine();
        } else {
            executor.run_later(examine);
        }
        self.known(mapping).unwrap_or(Examined::NotYet)
    }

    /// As [`Libraries::analysed`], but the caller waits. Only a file with the name of a C library is analysed.
    pub fn analysed_at_once(&self, tid: i32, mapping: &Mapping) -> Examined {
        if let Some(known @ (Examined::Is(_) | Examined::Refused)) = self.known(mapping) {
            return known;
        }
        let path = mappings::path_at(tid, mapping.start).unwrap_or_default();
        let name = path.rsplit(|&byte| byte == b'/').next();
        let key = (mapping.dev, mapping.ino);
        let is_libc = name.is_some_and(|name| name.starts_with(b"libc"));
        if !is_libc || !self.insert(key, Examined::NotYet, LIBRARIES_MAX) {
            return Examined::Refused;
        }
        let found = examined(Path::new(OsStr::from_bytes(&path)), key);
        self.0.lock().insert(key, found.clone());
        found
    }

    /// As [`Libraries::analysed`], of the file that has the first instruction of the process of `tid`. Only one with the name of a loader is analysed.
    pub fn loader(
        &self,
        constants: &Constants,
        executor: &Executor,
        tid: i32,
        mapping: &Mapping,
    ) -> Examined {
        if let Some(known) = self.known(mapping) {
            return known;
        }
        let path = mappings::path_at(tid, mapping.start).unwrap_or_default();
        let name = path.rsplit(|&byte| byte == b'/').next();
        if name.is_some_and(|name| name.starts_with(b"ld")) {
            return self.analysed(constants, executor, tid, mapping);
        }
        let key = (mapping.dev, mapping.ino);
        self.insert(key, Examined::Refused, WITHOUT_LOADER_MAX);
        Examined::Refused
    }

    /// False where `max` files are known.
    fn insert(&self, key: Identity, examined: Examined, max: usize) -> bool {
        let mut all = self.0.lock();
        let is_space = all.len() < max;
        if is_space {
            all.entry(key).or_insert(examined);
        }
        is_space
    }
}

fn examined(path: &Path, key: Identity) -> Examined {
    let library = content(path, Some(key)).and_then(|content| analyse(&content));
    match library {
        Ok(library) => Examined::Is(Arc::new(library)),
        Err(_) => Examined::Refused,
    }
}
