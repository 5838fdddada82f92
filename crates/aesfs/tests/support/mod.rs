//! A volume in a temporary directory, as the file system's callers see it.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test fails by panicking; each test file uses a part of this"
)]

pub mod dying;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use goanna_aesfs::format::config::Features;
use goanna_aesfs::format::content::Cipher;
use goanna_aesfs::format::keys::MasterKey;
use goanna_aesfs::format::names::NameKind;
use goanna_aesfs::{AesFs, Damage, Finding, Secret, Volume};
use goanna_passfs::PassFs;
use goanna_sys::memfile;
use goanna_vfs::{Caller, FileSystem, Node, OpenFile, Opened, Result, WritePosition};
use tempfile::TempDir;

/// The plain paths that were reported, each with its damage.
pub type Reports = Arc<Mutex<Vec<(Vec<u8>, Damage)>>>;

pub struct Place {
    pub dir: TempDir,
    pub features: Features,
    pub master: MasterKey,
    /// The bound on the memory of contents.
    pub memory: Option<u64>,
}

pub const NAMES: NameKind = NameKind::Encrypted {
    has_dir_iv: true,
    has_long_names: true,
    long_name_max: 255,
    is_padded: false,
};

impl Place {
    pub fn new(cipher: Cipher, names: NameKind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let features = Features {
            cipher,
            names,
            hkdf: true,
        };
        let password = Secret::new(b"pw".to_vec());
        let (_, master) = Volume::create(dir.path(), None, &features, 10, &password).unwrap();
        Self {
            dir,
            features,
            master,
            memory: None,
        }
    }

    pub fn usual() -> Self {
        Self::new(Cipher::Gcm, NAMES)
    }

    pub fn mount(&self) -> Mounted {
        self.mount_over(self.host())
    }

    /// The encrypted directory.
    pub fn host(&self) -> Arc<dyn FileSystem> {
        Arc::new(PassFs::new(self.dir.path()).unwrap())
    }

    pub fn mount_over(&self, lower: Arc<dyn FileSystem>) -> Mounted {
        let reports = Reports::default();
        let log = Arc::clone(&reports);
        let report = Box::new(move |path: &[u8], damage| {
            log.lock().unwrap().push((path.to_vec(), damage));
        });
        let fs = AesFs::new(
            Arc::clone(&lower),
            lower.root(),
            &self.features,
            &self.master,
            self.memory,
            report,
        )
        .unwrap();
        Mounted {
            fs,
            lower,
            caller: caller(),
            reports,
        }
    }

    pub fn findings(&self) -> Vec<Finding> {
        let mounted = self.mount();
        let mut findings = Vec::new();
        mounted
            .fs
            .check(&mounted.caller, &mut |found| findings.push(found));
        findings
    }

    /// The files of the volume's top directory that are not files of the format: encrypted entries.
    pub fn entries(&self, below: &Path) -> Vec<PathBuf> {
        let mut all: Vec<_> = std::fs::read_dir(self.dir.path().join(below))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| !path.file_name().unwrap().to_string_lossy().contains('.'))
            .collect();
        all.sort();
        all
    }
}

pub struct Mounted {
    pub fs: AesFs,
    pub lower: Arc<dyn FileSystem>,
    pub caller: Caller,
    pub reports: Reports,
}

/// A file that a program has open.
pub struct Handle {
    pub node: Node,
    pub opened: Opened,
    pub flags: i32,
}

impl Mounted {
    pub fn create(&self, name: &[u8]) -> Handle {
        self.try_create(&self.fs.root(), name).unwrap()
    }

    pub fn try_create(&self, dir: &Node, name: &[u8]) -> Result<Handle> {
        let flags = libc::O_RDWR;
        let (node, opened) = self.fs.create(&self.caller, dir, name, 0o644, flags)?;
        Ok(Handle {
            node,
            opened,
            flags,
        })
    }

    pub fn lookup(&self, name: &[u8]) -> Result<Node> {
        self.fs.lookup(&self.caller, &self.fs.root(), name)
    }

    pub fn open(&self, name: &[u8], flags: i32) -> Result<Handle> {
        let node = self.lookup(name)?;
        let opened = self.fs.open(&self.caller, &node, flags)?;
        Ok(Handle {
            node,
            opened,
            flags,
        })
    }

    pub fn write(&self, file: &Handle, at: u64, data: &[u8]) -> Result<usize> {
        let open = OpenFile {
            node: &file.node,
            ofd: file.opened.fd().unwrap().as_fd(),
            flags: file.flags,
        };
        self.fs
            .write(&self.caller, open, WritePosition::At(at), data)
    }

    /// Reads a file natively, as a program does.
    pub fn read(&self, file: &Handle) -> Vec<u8> {
        let size = self.size(&file.node);
        let mut data = vec![0; size as usize + 100];
        let got = memfile::pread(file.opened.fd().unwrap().as_fd(), &mut data, 0).unwrap();
        data.truncate(got);
        data
    }

    pub fn size(&self, node: &Node) -> u64 {
        self.fs.getattr(&self.caller, node).unwrap().size
    }

    /// Closes a file, and notifies the file system as the monitor does.
    pub fn close(&self, file: Handle) {
        let Handle { node, opened, .. } = file;
        drop(opened);
        self.fs.content().unwrap().released(&node);
    }

    pub fn put(&self, name: &[u8], data: &[u8]) {
        let file = self.create(name);
        if !data.is_empty() {
            assert_eq!(self.write(&file, 0, data).unwrap(), data.len());
        }
        self.close(file);
    }

    pub fn get(&self, name: &[u8]) -> Result<Vec<u8>> {
        let file = self.open(name, libc::O_RDONLY)?;
        let data = self.read(&file);
        self.close(file);
        Ok(data)
    }

    pub fn names(&self) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        self.fs
            .readdir(&self.caller, &self.fs.root(), 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            })
            .unwrap();
        names.sort();
        names
    }

    pub fn reported(&self) -> Vec<(Vec<u8>, Damage)> {
        std::mem::take(&mut self.reports.lock().unwrap())
    }
}

pub fn caller() -> Caller {
    Caller::own()
}
