//! `amino compact`.

use std::os::unix::ffi::OsStrExt;

use goanna_daemon::client;
use goanna_offline::facts::disk_bytes;
use goanna_session::{credentials, store};
use indicatif::HumanBytes;
use serde_json::{Map, json};

use crate::args::{Verbosity, amino};
use crate::commands::open::{EXISTING, store_dir};
use crate::error::Error;
use crate::report::messages::note;
use crate::report::names;
use crate::report::output::Output;

/// `amino compact`.
pub fn compact(args: &amino::Compact, verbosity: Verbosity) -> Result<u8, Error> {
    let dir = store_dir(&args.store)?;
    store::must_exist(&dir)?;
    let before = disk_bytes(&dir);
    client::reach(&dir, client::compact, || {
        let fs = store::open(&dir, EXISTING, &credentials::current())?;
        let compacted = store::compact(&dir, &fs);
        store::close(&dir, &fs)?;
        compacted
    })?;
    let after = disk_bytes(&dir);
    if args.json {
        let mut map = Map::new();
        names::put(&mut map, "store", dir.as_os_str().as_bytes());
        map.insert("before".into(), json!(before));
        map.insert("after".into(), json!(after));
        Output::new().json(&map.into())?;
    } else {
        let [before, after] = [before, after].map(HumanBytes);
        let dir = names::escape_path(&dir);
        note(
            &format!("{dir}: {after} on disk, {before} before"),
            verbosity,
        );
    }
    Ok(0)
}
