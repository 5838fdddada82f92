//! The file `synced` in the store's directory: the last transaction up to which the log is on disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use amino_schema::synced::{NOTE_LEN, SLOT_LEN, encode_slot, read_note};

use crate::Error;
use crate::host::sync_dir;

const NAME: &str = "synced";

/// The note. Without it, or when it cannot be written, the store works; damage at the end of the log is then not distinguished
/// from a torn tail.
pub(super) struct Note {
    store_id: [u8; 16],
    /// `None` where the disk has no block for it.
    file: Option<File>,
    second: AtomicBool,
    unsynced: AtomicBool,
}

/// The transaction in the note of the store's directory, up to which the log is on disk; 0 without a note.
pub(crate) fn read_synced(dir: &Path, store_id: &[u8; 16]) -> Result<u64, Error> {
    let path = dir.join(NAME);
    let mut raw = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(NOTE_LEN as u64).read_to_end(&mut raw));
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(Error::io("read", &path)(error)),
        Ok(_) => Ok(read_note(store_id, &raw).unwrap_or_default()),
    }
}

impl Note {
    /// Opens the note in the store's directory, or makes it.
    pub(super) fn open(dir: &Path, store_id: [u8; 16]) -> Result<Self, Error> {
        let path = dir.join(NAME);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let prepared = options.open(&path).and_then(|file| {
            if file.metadata()?.len() < NOTE_LEN as u64 {
                file.write_all_at(&[0; NOTE_LEN], 0)?;
                file.sync_all()?;
            }
            Ok(file)
        });
        let file = match prepared.map_err(Error::io("write", &path)) {
            Ok(file) => Some(file),
            Err(error) if error.is_no_space() => None,
            Err(error) => return Err(error),
        };
        sync_dir(dir)?;
        Ok(Self {
            store_id,
            file,
            second: AtomicBool::new(false),
            unsynced: AtomicBool::new(false),
        })
    }

    /// Notes that everything up to `seq` is on disk. It does not wait for the disk. Only one thread at a time may call it.
    pub(super) fn write(&self, seq: u64) {
        let Some(file) = &self.file else { return };
        let second = self.second.fetch_xor(true, SeqCst);
        let at = if second { SLOT_LEN as u64 } else { 0 };
        let _ = file.write_all_at(&encode_slot(&self.store_id, seq), at);
        self.unsynced.store(true, SeqCst);
    }

    /// Syncs the note if it has changed.
    pub(super) fn sync(&self) {
        if let Some(file) = &self.file
            && self.unsynced.swap(false, SeqCst)
        {
            let _ = file.sync_data();
        }
    }
}
