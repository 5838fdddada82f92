//! Makes a store of a dump.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use amino_schema::{DecodeError, Super, key};
use amino_txn::{Changes, EngineKind, Options, Store};
use bytes::Bytes;

use super::read::Reader;
use super::{DumpError, DumpTotals};

/// Makes the store `dir`, which must not exist or be an empty directory, of a dump. The store appears at `dir` only when all of it
/// was read, checked and synced; before, and after a failure, nothing exists there. `progress` receives the number of records.
pub fn load(
    from: impl Read,
    dir: &Path,
    engine: EngineKind,
    progress: &mut dyn FnMut(u64),
) -> Result<DumpTotals, DumpError> {
    must_be_free(dir)?;
    let mut reader = Reader::open(from)?;
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Beside the final place, so that it can be renamed. Its name shows its purpose, in case the machine stops before.
    let beside = tempfile::Builder::new()
        .prefix(".amino-load-")
        .tempdir_in(parent)
        .map_err(|why| host(parent, why))?;
    let made = beside.path().join("store");
    let options = Options {
        engine,
        create: true,
        ..Options::default()
    };
    let store = Store::open(&made, options)?;
    let filled = fill(&store, &mut reader, progress);
    // Also after a failure, so that no thread writes into a directory that is being removed.
    let closed = store.close();
    filled?;
    closed?;
    fs::rename(&made, dir).map_err(|why| host(dir, why))?;
    let synced = File::open(parent).and_then(|parent| parent.sync_all());
    synced.map_err(|why| host(parent, why))?;
    Ok(reader.totals())
}

fn fill(
    store: &Store,
    reader: &mut Reader<impl Read>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), DumpError> {
    let mut has_superblock = false;
    while let Some(records) = reader.next()? {
        let mut changes = Changes::new();
        for (key, value) in records {
            if *key == *key::super_key() {
                has_superblock = true;
                changes.put(
                    key,
                    superblock_of(store, &value).map_err(amino_fs::Error::from)?,
                );
            } else {
                changes.put(key, value);
            }
        }
        store.submit(&store.enter(), changes)?;
        store.throttle();
        progress(reader.totals().records);
    }
    if !has_superblock {
        return Err(DumpError::NotADump);
    }
    store.sync()?;
    Ok(())
}

/// Adapts the superblock of a dump to `store`, which has an id of its own and is complete.
fn superblock_of(store: &Store, dumped: &Bytes) -> Result<Bytes, DecodeError> {
    let info = store.info();
    let superblock = Super {
        store_id: info.store_id,
        engine: info.engine.name().to_owned(),
        closed: true,
        ..Super::decode(dumped)?
    };
    Ok(superblock.encode())
}

fn must_be_free(dir: &Path) -> Result<(), DumpError> {
    match fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(DumpError::Exists(dir.to_owned())),
        },
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(()),
        Err(why) => Err(host(dir, why)),
    }
}

fn host(path: &Path, why: std::io::Error) -> DumpError {
    DumpError::Host {
        path: PathBuf::from(path),
        why,
    }
}
