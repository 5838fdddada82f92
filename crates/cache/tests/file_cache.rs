//! A `FileCache` against a model: files as byte vectors, and what programs have open.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicUsize, Ordering};

use goanna_cache::{FileCache, FileSource, Limits};
use goanna_vfs::{CachedContent, Errno, FileKind, Native, Node, Result};
use proptest::prelude::*;

const BLOCK: usize = 4096;

/// Files by number. Zero blocks are not read; the content of a file may stand in a host file.
struct Files {
    contents: Vec<Vec<u8>>,
    host_file: Option<(File, u64)>,
    is_damaged: bool,
    reads: AtomicUsize,
}

impl Files {
    fn of(contents: Vec<Vec<u8>>) -> Self {
        Self {
            contents,
            host_file: None,
            is_damaged: false,
            reads: AtomicUsize::new(0),
        }
    }

    fn content(&self, file: &Node) -> Result<&[u8], Errno> {
        let content = self.contents.get(file.ino() as usize);
        Ok(content.ok_or(Errno::ESTALE)?)
    }
}

impl FileSource for Files {
    type Key = u64;

    fn key(&self, file: &Node) -> Result<u64, Errno> {
        Ok(file.ino())
    }

    fn size(&self, file: &Node) -> Result<u64, Errno> {
        Ok(self.content(file)?.len() as u64)
    }

    fn read_at(&self, file: &Node, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.is_damaged && offset > 0 {
            return Err(Errno::EUCLEAN);
        }
        let rest = &self.content(file)?[offset as usize..];
        // Not all at once: a source may read in pieces of its own.
        let len = rest.len().min(buf.len()).min(3 * BLOCK);
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn next_data(&self, file: &Node, offset: u64) -> Result<Option<u64>, Errno> {
        let content = self.content(file)?;
        let first = (offset as usize..content.len()).find(|&at| content[at] != 0);
        Ok(first.map(|at| at as u64))
    }

    fn in_host_file(&self, _: &Node) -> Option<(&File, u64)> {
        let (file, offset) = self.host_file.as_ref()?;
        Some((file, *offset))
    }
}

fn node(ino: usize) -> Node {
    Node::bare(ino as u64, FileKind::Regular)
}

fn open(cache: &FileCache<Files>, ino: usize) -> File {
    let opened = cache.open(&node(ino), libc::O_RDONLY).unwrap();
    assert!(matches!(opened.native, Native::Reads { .. }));
    File::from(opened.into_fd().unwrap())
}

fn all_of(file: &File) -> Vec<u8> {
    let mut content = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut content, 0).unwrap();
    content
}

/// Blocks of a file: zeros, or bytes that differ; and how much of the last block it has.
fn contents() -> impl Strategy<Value = Vec<u8>> {
    (prop::collection::vec(any::<bool>(), 0..12), 0..BLOCK).prop_map(|(blocks, cut)| {
        let blocks: Vec<u8> = (1_u8..)
            .zip(blocks)
            .flat_map(|(n, is_data)| vec![if is_data { n } else { 0 }; BLOCK])
            .collect();
        let len = blocks.len().saturating_sub(cut);
        blocks[..len].to_vec()
    })
}

#[derive(Debug, Clone)]
enum Step {
    Open(usize),
    Close(usize),
    Released(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..8_usize).prop_map(Step::Open),
        (0..8_usize).prop_map(Step::Close),
        (0..8_usize).prop_map(Step::Released),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every descriptor shows the file, whatever was dropped in between; all descriptors of a file are of one object.
    #[test]
    fn descriptors_show_the_files(
        contents in prop::collection::vec(contents(), 8),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        // So little that objects are dropped, and the larger files lie on disk.
        let limits = Limits { large_file_bytes: 8 * BLOCK as u64, bytes: 10 * BLOCK as u64, objects: 4 };
        let cache = FileCache::with_limits(Files::of(contents.clone()), limits);
        let mut held: Vec<(usize, File)> = Vec::new();
        for step in steps {
            match step {
                Step::Open(ino) => held.push((ino, open(&cache, ino))),
                Step::Close(at) if !held.is_empty() => {
                    let (ino, file) = held.swap_remove(at % held.len());
                    drop(file);
                    cache.released(&node(ino));
                }
                Step::Close(_) => {}
                Step::Released(ino) => cache.released(&node(ino)),
            }
            for (ino, file) in &held {
                prop_assert_eq!(&all_of(file), &contents[*ino]);
                let again = open(&cache, *ino).metadata().unwrap().ino();
                prop_assert_eq!(again, file.metadata().unwrap().ino());
            }
        }
    }
}

#[test]
fn zeros_that_the_source_knows_of_are_holes() {
    let mut content = vec![0; 64 * BLOCK];
    content[60 * BLOCK] = 1;
    let cache = FileCache::new(Files::of(vec![content.clone()]));
    let file = open(&cache, 0);
    assert_eq!(all_of(&file), content);
    assert!(file.metadata().unwrap().blocks() * 512 <= 4 * BLOCK as u64);
}

#[test]
fn the_kernel_copies_what_stands_in_a_host_file() {
    let content: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    let host_file = tempfile::tempfile().unwrap();
    host_file.write_all_at(&content, 777).unwrap();
    for large_file_bytes in [u64::MAX, 1000] {
        let mut files = Files::of(vec![content.clone()]);
        files.host_file = Some((host_file.try_clone().unwrap(), 777));
        let limits = Limits {
            large_file_bytes,
            ..Limits::default()
        };
        let cache = FileCache::with_limits(files, limits);
        assert_eq!(all_of(&open(&cache, 0)), content);
        let reads = cache.source().reads.load(Ordering::Relaxed);
        assert_eq!(reads, 0);
    }
}

#[test]
fn nothing_is_handed_out_of_a_file_that_cannot_be_read_whole() {
    let mut files = Files::of(vec![vec![1; 10 * BLOCK]]);
    files.is_damaged = true;
    let cache = FileCache::new(files);
    for _ in 0..2 {
        let opened = cache.open(&node(0), libc::O_RDONLY);
        assert_eq!(opened.map(drop), Err(Errno::EUCLEAN));
    }
}

#[test]
fn what_could_change_a_file_is_refused() {
    let cache = FileCache::new(Files::of(vec![vec![1; 10]]));
    let open = |flags| cache.open(&node(0), flags);
    for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_TRUNC] {
        assert_eq!(open(flags).map(drop), Err(Errno::EROFS));
    }
    let directory = Node::bare(0, FileKind::Directory);
    let opened = cache.open(&directory, libc::O_RDONLY);
    assert_eq!(opened.map(drop), Err(Errno::ENXIO));
    // Root could reopen the descriptor for writing; the object itself refuses.
    let fd = open(libc::O_RDONLY).unwrap().into_fd().unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    let file = File::options().write(true).open(path).unwrap();
    assert!(file.write_at(b"x", 0).is_err() && file.write_at(b"x", 10).is_err());
}

#[test]
fn threads_that_open_a_file_at_the_same_time_get_one_object() {
    let content = vec![7; 100 * BLOCK];
    let cache = FileCache::new(Files::of(vec![content.clone()]));
    let objects = std::thread::scope(|scope| {
        let open = || {
            let file = open(&cache, 0);
            assert_eq!(all_of(&file), content);
            (file.metadata().unwrap().ino(), file)
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        let opened = threads.into_iter().map(|thread| thread.join().unwrap());
        opened.collect::<Vec<_>>()
    });
    assert!(objects.iter().all(|(ino, _)| *ino == objects[0].0));
}
