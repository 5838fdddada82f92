//! Opens what is left of a damaged engine, for the salvage of a store.

use std::path::Path;
use std::{fs, io};

use amino_schema::header::FileSum;
use amino_schema::holdings::Sum;

use super::fjall::remove_damaged_batches;
use super::{Engine, EngineKind};
use crate::Error;

/// The kind of the engine in this directory, by the names of its files.
pub(crate) fn kind_of(engine: &Path) -> EngineKind {
    let of_sled = ["db", "a", "b"];
    if of_sled.iter().any(|name| engine.join(name).exists()) {
        EngineKind::Sled
    } else {
        EngineKind::Fjall
    }
}

/// A way to open a copy of an engine.
pub(crate) enum Attempt {
    /// In the state of the checkpoint.
    Checkpoint(Option<Vec<FileSum>>),
    /// fjall with the undamaged batches of its journals.
    WholeBatches,
    /// fjall with its tables alone, and this journal emptied.
    Tables(Option<FileSum>),
    /// One copy of sled's, as it is.
    Side(&'static str),
}

impl Attempt {
    /// Opens `copy`, a copy of the directory of an engine of this kind.
    pub fn open(self, kind: EngineKind, copy: &Path) -> Result<Box<dyn Engine>, Error> {
        match self {
            Self::Checkpoint(files) => kind.open(copy, files.as_deref()),
            Self::WholeBatches => {
                remove_damaged_batches(copy)?;
                kind.open(copy, None)
            }
            Self::Tables(journal) => {
                let journals: Vec<_> = journal.into_iter().collect();
                kind.open(copy, Some(&journals))
            }
            Self::Side(side) => {
                let (from, to) = (copy.join(side), copy.join("a"));
                if side != "a" && from.is_dir() {
                    let moved = match fs::remove_dir_all(&to) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                        _ => fs::rename(&from, &to),
                    };
                    moved.map_err(Error::io("rename", &from))?;
                }
                kind.open(copy, None)
            }
        }
    }
}

/// The ways to open a copy of the directory `engine`, best first. `files` are those of the last checkpoint.
pub(crate) fn attempts(
    kind: EngineKind,
    engine: &Path,
    files: Option<Vec<FileSum>>,
) -> Vec<Attempt> {
    let mut attempts = vec![Attempt::Checkpoint(files)];
    match kind {
        EngineKind::Sled => attempts.extend([Attempt::Side("a"), Attempt::Side("b")]),
        EngineKind::Fjall => {
            let names = fs::read_dir(engine).into_iter().flatten();
            let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            let newest = names.filter(|name| name.ends_with(".jnl")).max();
            let emptied = newest.map(|name| FileSum {
                name,
                len: 0,
                sum: Sum::of(b""),
            });
            attempts.extend([Attempt::WholeBatches, Attempt::Tables(emptied)]);
        }
        EngineKind::Memory => {}
    }
    attempts
}
