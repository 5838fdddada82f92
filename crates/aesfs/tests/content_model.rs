//! Contents against a byte vector: writes, cuts, holes, shifts, mappings, opens and new mounts in random order, with each cipher.
//! After each step a program's native reads, the size and the content as a new mount decrypts it are those of the vector.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::os::fd::AsFd;

use goanna_aesfs::format::content::Cipher;
use goanna_sys::memfile;
use goanna_vfs::FileSystem;
use proptest::prelude::*;
use support::{Handle, Mounted, NAMES, Place};

const MAX: u64 = 5 * 4096;

#[derive(Debug, Clone)]
enum Step {
    Write { at: u64, len: u64, byte: u8 },
    Append { len: u64, byte: u8 },
    Mapped { at: u64, len: u64, byte: u8 },
    Truncate(u64),
    TruncateClosed(u64),
    Punch { at: u64, len: u64 },
    Zero { at: u64, len: u64, keeps: bool },
    Allocate { at: u64, len: u64 },
    Collapse { at: u64, blocks: u64 },
    Insert { at: u64, blocks: u64 },
    Reopen,
    Remount,
}

fn step() -> impl Strategy<Value = Step> {
    let at = || prop_oneof![0..MAX, (0..5_u64).prop_map(|block| block * 4096)];
    let len = || prop_oneof![1..9000_u64, Just(4096_u64), 1..20_u64];
    let blocks = || (0..5_u64, 1..4_u64);
    prop_oneof![
        6 => (at(), len(), 1_u8..4).prop_map(|(at, len, byte)| Step::Write { at, len, byte }),
        2 => (len(), 1_u8..4).prop_map(|(len, byte)| Step::Append { len, byte }),
        2 => (at(), len(), 1_u8..4).prop_map(|(at, len, byte)| Step::Mapped { at, len, byte }),
        3 => at().prop_map(Step::Truncate),
        2 => at().prop_map(Step::TruncateClosed),
        2 => (at(), len()).prop_map(|(at, len)| Step::Punch { at, len }),
        1 => (at(), len(), any::<bool>()).prop_map(|(at, len, keeps)| Step::Zero { at, len, keeps }),
        1 => (at(), len()).prop_map(|(at, len)| Step::Allocate { at, len }),
        1 => blocks().prop_map(|(at, blocks)| Step::Collapse { at: at * 4096, blocks }),
        1 => blocks().prop_map(|(at, blocks)| Step::Insert { at: at * 4096, blocks }),
        2 => Just(Step::Reopen),
        2 => Just(Step::Remount),
    ]
}

struct Model<'a> {
    place: &'a Place,
    mounted: Mounted,
    file: Option<Handle>,
    data: Vec<u8>,
}

impl<'a> Model<'a> {
    fn new(place: &'a Place) -> Self {
        let mounted = place.mount();
        let file = Some(mounted.create(b"f"));
        Self {
            place,
            mounted,
            file,
            data: Vec::new(),
        }
    }

    fn file(&self) -> &Handle {
        self.file.as_ref().unwrap()
    }

    fn put(&mut self, at: u64, data: &[u8]) {
        let (at, end) = (at as usize, at as usize + data.len());
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[at..end].copy_from_slice(data);
    }

    fn close(&mut self) {
        if let Some(file) = self.file.take() {
            self.mounted.close(file);
        }
    }

    fn reopen(&mut self) {
        self.file = Some(self.mounted.open(b"f", libc::O_RDWR).unwrap());
    }

    fn fallocate(&self, mode: i32, at: u64, len: u64) -> bool {
        let (fs, caller) = (&self.mounted.fs, &self.mounted.caller);
        fs.fallocate(caller, &self.file().node, mode, at, len)
            .is_ok()
    }

    /// Writes as the kernel does for a mapping: the object changes without a call.
    fn write_mapped(&mut self, at: u64, len: u64, byte: u8) {
        let node = self.file().node.clone();
        let content = self.mounted.fs.content().unwrap();
        content.map_shared(&self.mounted.caller, &node).unwrap();
        let len = len.min((self.data.len() as u64).saturating_sub(at));
        let data = vec![byte; len as usize];
        if len > 0 {
            memfile::pwrite(self.file().opened.fd().unwrap().as_fd(), &data, at).unwrap();
            self.put(at, &data);
        }
        if byte == 1 {
            let content = self.mounted.fs.content().unwrap();
            content.sync_mapped(&node, at..at + len, true).unwrap();
        }
    }

    fn zero(&mut self, at: u64, len: u64, keeps_size: bool) {
        let size = self.data.len() as u64;
        let zero = libc::FALLOC_FL_ZERO_RANGE;
        if keeps_size {
            assert!(self.fallocate(zero | libc::FALLOC_FL_KEEP_SIZE, at, len));
            let len = len.min(size.saturating_sub(at));
            self.put(at.min(size), &vec![0; len as usize]);
        } else {
            assert!(self.fallocate(zero, at, len));
            self.put(at, &vec![0; len as usize]);
        }
    }

    fn run(&mut self, step: &Step) {
        let size = self.data.len() as u64;
        match *step {
            Step::Write { at, len, byte } => {
                let data = vec![byte; len as usize];
                let written = self.mounted.write(self.file(), at, &data).unwrap();
                assert_eq!(written, data.len());
                self.put(at, &data);
            }
            Step::Append { len, byte } => self.run(&Step::Write {
                at: size,
                len,
                byte,
            }),
            Step::Mapped { at, len, byte } => self.write_mapped(at, len, byte),
            Step::Truncate(to) => {
                let (fs, caller) = (&self.mounted.fs, &self.mounted.caller);
                fs.truncate(caller, &self.file().node, to).unwrap();
                self.data.resize(to as usize, 0);
            }
            Step::TruncateClosed(to) => {
                self.close();
                self.mounted = self.place.mount();
                let node = self.mounted.lookup(b"f").unwrap();
                self.mounted
                    .fs
                    .truncate(&self.mounted.caller, &node, to)
                    .unwrap();
                self.data.resize(to as usize, 0);
                self.reopen();
            }
            Step::Punch { at, len } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                assert!(self.fallocate(mode, at, len));
                let len = len.min(size.saturating_sub(at));
                self.put(at.min(size), &vec![0; len as usize]);
            }
            Step::Zero { at, len, keeps } => self.zero(at, len, keeps),
            Step::Allocate { at, len } => {
                assert!(self.fallocate(0, at, len));
                let end = (at + len) as usize;
                self.data.resize(self.data.len().max(end), 0);
            }
            Step::Collapse { at, blocks } => {
                let len = blocks * 4096;
                let done = self.fallocate(libc::FALLOC_FL_COLLAPSE_RANGE, at, len);
                assert_eq!(done, at + len < size);
                if done {
                    self.data.drain(at as usize..(at + len) as usize);
                }
            }
            Step::Insert { at, blocks } => {
                let len = blocks * 4096;
                let done = self.fallocate(libc::FALLOC_FL_INSERT_RANGE, at, len);
                assert_eq!(done, at < size);
                if done {
                    let tail = self.data.split_off(at as usize);
                    self.data.resize((at + len) as usize, 0);
                    self.data.extend(tail);
                }
            }
            Step::Reopen => {
                self.close();
                self.reopen();
            }
            Step::Remount => {
                self.close();
                self.mounted = self.place.mount();
                self.reopen();
            }
        }
    }

    fn check(&self) {
        assert_eq!(self.mounted.size(&self.file().node), self.data.len() as u64);
        assert!(self.mounted.read(self.file()) == self.data, "natively");
        // As another process sees it, without a descriptor.
        let other = self.place.mount();
        let node = other.lookup(b"f").unwrap();
        let mut stored = vec![9; self.data.len() + 10];
        let got = other
            .fs
            .read_at(&other.caller, &node, 0, &mut stored)
            .unwrap();
        stored.truncate(got);
        let is_mapped = stored != self.data;
        if is_mapped {
            // Only writes through a mapping may be missing there.
            self.mounted.fs.sync(None).unwrap();
            stored.resize(self.data.len(), 9);
            other
                .fs
                .read_at(&other.caller, &node, 0, &mut stored)
                .unwrap();
        }
        assert!(stored == self.data, "stored");
        assert_eq!(other.reported(), []);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn contents_are_those_of_a_vector(
        cipher in prop_oneof![Just(Cipher::Gcm), Just(Cipher::XChaCha), Just(Cipher::Siv)],
        steps in prop::collection::vec(step(), 1..25),
    ) {
        let place = Place::new(cipher, NAMES);
        let mut model = Model::new(&place);
        for step in &steps {
            model.run(step);
            model.check();
        }
        model.close();
        prop_assert_eq!(place.findings(), vec![]);
    }
}
