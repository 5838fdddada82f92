//! Space on the host's disk. The store refuses a change beforehand if the disk could become too full to log it, to apply it to
//! the engine, or to let the engine rewrite its files. When other programs have filled the disk nevertheless, it deletes a
//! ballast file.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use nix::sys::statvfs::statvfs;
use parking_lot::Mutex;

use crate::Error;
use crate::host::allocate;

/// Bytes granted between two checks of the disk.
const GRANT: u64 = 1 << 20;
/// The ballast is made when less free space than this is left.
const NEARLY_FULL: u64 = 1 << 30;
const BALLAST: u64 = 16 << 20;
/// Space that a removal leaves free, for the log's and the engine's own metadata.
const REMOVAL_FLOOR: u64 = 256 << 10;
/// The purpose of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A change that keeps its space.
    Growth,
    /// A change that frees space in the end: it may use space that is kept free from other changes.
    Removal,
}

/// The disk space that the engine needs beyond its present files, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needed {
    /// For all accepted changes.
    pub(crate) accepted: u64,
    /// Maximum for each byte of later changes.
    pub(crate) each: u64,
}

impl Needed {
    /// For a byte of changes, in the log and in the engine.
    const fn each_logged(self) -> u64 {
        self.each + 1
    }
}

/// The host's file system, bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disk {
    pub(crate) available: u64,
    pub(crate) total: u64,
}

impl Disk {
    pub(crate) fn of(dir: &Path) -> Result<Self, Error> {
        let found = statvfs(dir).map_err(|errno| Error::io("look at", dir)(errno.into()))?;
        let unit = found.fragment_size();
        Ok(Self {
            available: found.blocks_available().saturating_mul(unit),
            total: found.blocks().saturating_mul(unit),
        })
    }

    /// Space that must stay free after a change that keeps its space.
    pub(crate) fn headroom(self) -> u64 {
        (self.total / 32)
            .clamp(16 << 20, 256 << 20)
            .min(self.total / 8)
    }

    fn ballast(self) -> u64 {
        BALLAST.min(self.total / 16)
    }
}

/// The disk space that a store may use.
pub(crate) struct DiskSpace {
    dir: PathBuf,
    /// Bytes that can be granted without a check of the disk.
    grant: AtomicU64,
    looking: Mutex<()>,
    ballast: Mutex<bool>,
}

impl DiskSpace {
    pub(crate) fn new(dir: &Path) -> Self {
        let held = ballast_path(dir).exists();
        Self {
            dir: dir.to_owned(),
            grant: AtomicU64::new(0),
            looking: Mutex::new(()),
            ballast: Mutex::new(held),
        }
    }

    pub(crate) fn disk(&self) -> Result<Disk, Error> {
        Disk::of(&self.dir)
    }

    /// Reserves disk space for `bytes` of changes, or fails with [`Error::NoSpace`]. Calls `needed` only when the disk must be
    /// checked. Returns the number of further bytes that have space, as of the last check.
    pub(crate) fn reserve(
        &self,
        bytes: usize,
        purpose: Purpose,
        needed: impl Fn() -> Needed,
    ) -> Result<Option<u64>, Error> {
        let taken = self
            .grant
            .fetch_update(SeqCst, SeqCst, |grant| grant.checked_sub(bytes as u64));
        if taken.is_ok() {
            return Ok(None);
        }
        self.look(bytes, purpose, needed)
    }

    /// Reserves as [`DiskSpace::reserve`] does, but checks the disk in any case.
    pub(crate) fn look(
        &self,
        bytes: usize,
        purpose: Purpose,
        needed: impl Fn() -> Needed,
    ) -> Result<Option<u64>, Error> {
        let _looking = self.looking.lock();
        let disk = self.disk()?;
        let needed = needed();
        let cost = (bytes as u64).saturating_mul(needed.each_logged());
        let floor = needed.accepted.saturating_add(disk.headroom());
        if let Some(left) = disk.available.checked_sub(floor.saturating_add(cost)) {
            let left = left / needed.each_logged();
            self.grant.store(left.min(GRANT), SeqCst);
            return Ok(Some(left));
        }
        self.grant.store(0, SeqCst);
        let fits = |disk: Disk| disk.available >= cost.saturating_add(REMOVAL_FLOOR);
        let removes = purpose == Purpose::Removal;
        if removes && (fits(disk) || self.release_ballast() && fits(self.disk()?)) {
            return Ok(None);
        }
        Err(Error::NoSpace)
    }

    pub(crate) fn has_ballast(&self) -> bool {
        *self.ballast.lock()
    }

    /// Deletes the ballast. Returns whether there was any.
    pub(crate) fn release_ballast(&self) -> bool {
        let mut held = self.ballast.lock();
        let released = *held && fs::remove_file(ballast_path(&self.dir)).is_ok();
        *held = false;
        released
    }

    /// Makes the ballast when the disk is nearly full and has space for it beside the `needed` bytes. The store also works
    /// without it.
    pub(crate) fn keep_ballast(&self, needed: Needed) {
        let mut held = self.ballast.lock();
        if *held {
            return;
        }
        let Ok(disk) = self.disk() else { return };
        let bytes = disk.ballast();
        let least = needed
            .accepted
            .saturating_add(disk.headroom())
            .saturating_add(bytes);
        if disk.available >= NEARLY_FULL || disk.available < least {
            return;
        }
        let path = ballast_path(&self.dir);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path);
        let made = file
            .map_err(Error::io("create", &path))
            .and_then(|file| allocate(&file, &path, 0, bytes));
        *held = made.is_ok();
        if made.is_err() {
            let _ = fs::remove_file(&path);
        }
    }
}

fn ballast_path(dir: &Path) -> PathBuf {
    dir.join("ballast")
}
