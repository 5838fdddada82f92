//! Makes a store that can be opened from the readable part of a damaged one.

use std::path::Path;

use amino_schema::{PathRecord, Super, key};
use amino_txn::{Changes, Loss, Records, Salvaged, Store};

use crate::{Error, Options, open_store, root_record, superblock};

/// An upper bound of the inode numbers that a store allocates.
const INO_LIMIT: u64 = 1 << 62;

/// Copies the readable part of the store in `store_dir` to a new store, and does not change the original. No process may have it open. The
/// resulting store can always be opened: a missing superblock or root directory is created. Open it read-only.
pub fn salvage(store_dir: &Path) -> Result<Salvaged, Error> {
    let mut salvaged = amino_txn::salvage(store_dir)?;
    let store = open_store(&salvaged.store(), &Options::default())?;
    let made = add_missing_records(&store)?;
    store.close()?;
    salvaged.losses.extend(made);
    Ok(salvaged)
}

/// Adds the records that a store needs to be opened.
fn add_missing_records(store: &Store) -> Result<Vec<Loss>, Error> {
    let mut losses = Vec::new();
    let mut changes = Changes::new();
    let found = store.get(&key::super_key())?;
    if found.is_none_or(|raw| Super::decode(&raw).is_err()) {
        let mut superblock = superblock(store);
        superblock.next_ino = INO_LIMIT;
        changes.put(key::super_key(), superblock.encode());
        losses.push(Loss {
            place: "superblock".to_owned(),
            what: "it is missing; another one was made".to_owned(),
        });
    }
    let found = store.get(&key::root_key())?;
    if found.is_none_or(|raw| PathRecord::decode(&raw).is_err()) {
        changes.put(key::root_key(), root_record(&Options::default()).encode());
        losses.push(Loss {
            place: "/".to_owned(),
            what: "the root directory's mode, owner and times are missing".to_owned(),
        });
    }
    store.submit(&store.enter(), changes)?;
    Ok(losses)
}
