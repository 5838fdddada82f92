//! Host copies of programs ([ADR 0002](../../../../docs/decisions/0002-exec-from-a-host-copy.md)).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use goanna_vfs::{Caller, Place, PlaceKey, Result, Stamp};
use parking_lot::Mutex;

use super::interpreter::Interpreter;
use crate::errno::errno;
use crate::shadow::run_directory::{RunDir, make_search_only_dir};
use crate::shadow::{Identity, copy_permissions};

const COPY_PIECE: usize = 1 << 20;

#[derive(Debug)]
struct HostCopy {
    path: PathBuf,
    version: (Stamp, Stamp, u64),
    /// The host file that it has as its interpreter, if not its own one.
    interpreter: Option<PathBuf>,
}

/// Host copies of programs, and the virtual files of the programs that run.
#[derive(Debug, Default)]
pub struct Programs {
    copies: Mutex<HashMap<PlaceKey, HostCopy>>,
    behind: Mutex<HashMap<Identity, Place>>,
}

impl Programs {
    /// The virtual program behind a host file that was executed.
    pub fn behind(&self, identity: Identity) -> Option<Place> {
        self.behind.lock().get(&identity).cloned()
    }

    /// Whether the program is being executed, so that it must not be written to (ETXTBSY).
    pub fn running(&self, place: &Place) -> bool {
        let copies = self.copies.lock();
        let Some(copy) = copies.get(&place.key()) else {
            return false;
        };
        let busy = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&copy.path);
        busy.is_err_and(|error| error.raw_os_error() == Some(libc::ETXTBSY))
    }

    /// The host file to execute for `place`, named `name`, with this host file as its interpreter, if that is not its own one.
    pub(super) fn host_file(
        &self,
        rundir: &RunDir,
        caller: &Caller,
        place: &Place,
        name: &OsStr,
        interpreter: Option<(Interpreter, PathBuf)>,
    ) -> Result<PathBuf> {
        let own = place.mount.fs.host_path(&place.node);
        if let Some(path) = own.filter(|_| interpreter.is_none()) {
            self.remember(&path, place)?;
            return Ok(path);
        }
        rundir.allow_traversal(caller.uid).map_err(errno)?;
        let attr = place.mount.fs.getattr(caller, &place.node)?;
        let version = (attr.mtime, attr.ctime, attr.size);
        let mut copies = self.copies.lock();
        if let Some(copy) = copies.get(&place.key())
            && copy.version == version
            && copy.path.file_name() == Some(name)
            && copy.interpreter.as_ref() == interpreter.as_ref().map(|(_, path)| path)
        {
            return Ok(copy.path.clone());
        }
        let dir = rundir.unguessable("x").map_err(errno)?;
        make_search_only_dir(&dir).map_err(errno)?;
        let path = dir.join(name);
        copy_out(caller, place, &path, interpreter.as_ref())?;
        copy_permissions(caller, place, &path)?;
        self.remember(&path, place)?;
        if let Some(old) = copies.insert(
            place.key(),
            HostCopy {
                path: path.clone(),
                version,
                interpreter: interpreter.map(|(_, path)| path),
            },
        ) {
            // Processes that still execute the file keep it; only its name is removed.
            let _ = fs::remove_file(&old.path);
        }
        Ok(path)
    }

    fn remember(&self, path: &Path, place: &Place) -> Result<()> {
        let meta = fs::metadata(path).map_err(errno)?;
        self.behind
            .lock()
            .insert((meta.dev(), meta.ino()), place.clone());
        Ok(())
    }
}

/// Copies a program to the host file `path`. It closes the file, because the kernel refuses to execute a file
/// that is open for writing (ETXTBSY).
fn copy_out(
    caller: &Caller,
    place: &Place,
    path: &Path,
    interpreter: Option<&(Interpreter, PathBuf)>,
) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o700)
        .open(path)
        .map_err(errno)?;
    let mut piece = vec![0; COPY_PIECE];
    let mut offset = 0;
    loop {
        let got = place
            .mount
            .fs
            .read_at(caller, &place.node, offset, &mut piece)?;
        let Some(data) = piece.get(..got).filter(|data| !data.is_empty()) else {
            break;
        };
        file.write_all(data).map_err(errno)?;
        offset += got as u64;
    }
    if let Some((interpreter, path)) = interpreter {
        for (at, bytes) in interpreter.replaced_by(path.as_os_str().as_bytes(), offset) {
            file.write_all_at(&bytes, at).map_err(errno)?;
        }
    }
    Ok(())
}
