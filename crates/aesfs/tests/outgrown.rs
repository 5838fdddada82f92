//! An encrypted file that outgrows the memory of a lower file system with a content cache, such as a store.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use goanna_sys::memfile;
use goanna_sys::object_handle::ObjectHandle;
use goanna_vfs::{
    CachedContent, Caller, FileSystem, Native, Node, OpenFile, Opened, Result, WritePosition,
    forward,
};
use support::Place;

/// A host directory whose files count as outgrown until they are moved.
struct Cached {
    lower: Arc<dyn FileSystem>,
    asked: AtomicU64,
    moved: AtomicU64,
    refuses: AtomicBool,
}

impl Cached {
    fn cached(opened: Opened) -> Result<Opened> {
        let reader = memfile::reopen(opened.fd()?.as_fd(), libc::O_RDONLY)?;
        let handle = Arc::new(ObjectHandle::new(reader)?);
        let native = Native::Reads { handle };
        Ok(Opened {
            description: opened.description,
            native,
        })
    }
}

impl FileSystem for Cached {
    forward! {
        lower: lower;
        forward: root checks_access is_read_only opens_host_files largest_file transactions identity lookup parent path
            getattr getattr_at readlink readdir read_at mknod mkdir symlink link unlink rmdir rename truncate fallocate setattr setxattr removexattr
            sync behind_link host_path flags statfs getxattr listxattr link_open write_at tmpfile;
        own: kind shared_attributes on_host host_file host_dir content open create write;
    }

    fn kind(&self) -> &'static str {
        "cached"
    }

    fn content(&self) -> Option<&dyn CachedContent> {
        Some(self)
    }

    fn open(&self, caller: &Caller, node: &Node, flags: i32) -> Result<Opened> {
        Self::cached(self.lower.open(caller, node, flags)?)
    }

    fn create(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        let (node, opened) = self.lower.create(caller, dir, name, mode, flags)?;
        Ok((node, Self::cached(opened)?))
    }

    fn write(
        &self,
        _: &Caller,
        file: OpenFile<'_>,
        position: WritePosition,
        data: &[u8],
    ) -> Result<usize> {
        let WritePosition::At(offset) = position else {
            return Ok(0);
        };
        Ok(memfile::pwrite(file.ofd, data, offset)?)
    }
}

impl CachedContent for Cached {
    fn released(&self, _: &Node) {}

    fn outgrown(&self, _: &Caller, _: &Node) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.moved.load(Ordering::Relaxed) == 0
    }

    fn relocate_unused(&self, caller: &Caller, node: &Node, flags: i32) -> Result<Option<Opened>> {
        let probe = self.lower.open(caller, node, libc::O_RDONLY)?;
        let handle = ObjectHandle::new(memfile::reopen(probe.fd()?.as_fd(), libc::O_RDONLY)?)?;
        drop(probe);
        assert!(
            !handle.open_for_write_elsewhere(),
            "the layer has closed its descriptor"
        );
        if self.refuses.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.moved.fetch_add(1, Ordering::Relaxed);
        self.open(caller, node, flags).map(Some)
    }
}

#[test]
fn a_large_encrypted_file_leaves_the_lower_file_systems_memory() {
    let place = Place::usual();
    let cached = Arc::new(Cached {
        lower: place.host(),
        asked: AtomicU64::new(0),
        moved: AtomicU64::new(0),
        refuses: AtomicBool::new(true),
    });
    let mounted = place.mount_over(Arc::clone(&cached) as Arc<dyn FileSystem>);
    let file = mounted.create(b"f");
    let piece = vec![5; 64 << 10];
    let write = |count: u64, at: u64| {
        for number in 0..count {
            let at = (at + number) * (64 << 10);
            assert_eq!(mounted.write(&file, at, &piece), Ok(64 << 10));
        }
    };
    // The check happens only every 256 KiB; while a program has the encrypted file open, it stays.
    write(8, 0);
    assert_eq!(cached.asked.load(Ordering::Relaxed), 2);
    cached.refuses.store(false, Ordering::Relaxed);
    write(8, 8);
    assert_eq!(cached.moved.load(Ordering::Relaxed), 1);
    write(8, 16);
    assert_eq!(cached.moved.load(Ordering::Relaxed), 1);
    mounted.close(file);
    assert!(place.mount().get(b"f").unwrap() == vec![5; 24 * (64 << 10)]);
}
