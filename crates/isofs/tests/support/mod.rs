//! Small images that no writer makes, built byte by byte.
#![allow(dead_code, reason = "each test file uses what it needs")]

use std::sync::Arc;

use goanna_isofs::{Entry, Error, Iso, Namespace, Options};
use goanna_vfs::Caller;

pub mod oracles;
pub mod tools;

pub const SECTOR: usize = 2048;

/// Where images of this builder have their root directory, and the first block free for other things.
pub const ROOT: u32 = 20;
pub const FREE: u32 = 24;

/// A number in both byte orders.
pub fn both32(n: u32) -> Vec<u8> {
    [n.to_le_bytes(), n.to_be_bytes()].concat()
}

fn both16(n: u16) -> Vec<u8> {
    [n.to_le_bytes(), n.to_be_bytes()].concat()
}

/// A directory record.
#[derive(Clone)]
pub struct Rec {
    pub name: Vec<u8>,
    pub block: u32,
    pub len: u32,
    pub flags: u8,
    pub attributes: u8,
    pub interleave: (u8, u8),
    pub volume: u16,
    pub system_use: Vec<u8>,
}

impl Rec {
    pub fn file(name: &[u8], block: u32, len: u32) -> Self {
        Self {
            name: name.to_vec(),
            block,
            len,
            flags: 0,
            attributes: 0,
            interleave: (0, 0),
            volume: 1,
            system_use: Vec::new(),
        }
    }

    pub fn dir(name: &[u8], block: u32) -> Self {
        Self {
            flags: 2,
            ..Self::file(name, block, SECTOR as u32)
        }
    }

    pub fn flags(self, flags: u8) -> Self {
        Self { flags, ..self }
    }

    pub fn with(mut self, fields: &[Vec<u8>]) -> Self {
        self.system_use = fields.concat();
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0, self.attributes];
        bytes.extend(both32(self.block));
        bytes.extend(both32(self.len));
        bytes.extend([124, 7, 1, 12, 0, 0, 0]);
        bytes.extend([self.flags, self.interleave.0, self.interleave.1]);
        bytes.extend(both16(self.volume));
        bytes.push(self.name.len() as u8);
        bytes.extend(&self.name);
        if bytes.len() % 2 == 1 {
            bytes.push(0);
        }
        bytes.extend(&self.system_use);
        if bytes.len() % 2 == 1 {
            bytes.push(0);
        }
        bytes[0] = u8::try_from(bytes.len()).unwrap();
        bytes
    }
}

/// A System Use field.
pub fn field(signature: &[u8; 2], body: &[u8]) -> Vec<u8> {
    let len = u8::try_from(4 + body.len()).unwrap();
    [&signature[..], &[len, 1], body].concat()
}

pub fn sp() -> Vec<u8> {
    field(b"SP", &[0xbe, 0xef, 0])
}

pub fn px(mode: u32, links: u32, serial: Option<u32>) -> Vec<u8> {
    let mut numbers = vec![mode, links, 1000, 100];
    numbers.extend(serial);
    let body: Vec<u8> = numbers.into_iter().flat_map(both32).collect();
    field(b"PX", &body)
}

pub fn nm(name: &[u8]) -> Vec<u8> {
    field(b"NM", &[&[0][..], name].concat())
}

pub fn ce(block: u32, offset: u32, len: u32) -> Vec<u8> {
    field(b"CE", &[block, offset, len].map(both32).concat())
}

pub fn cl(block: u32) -> Vec<u8> {
    field(b"CL", &both32(block))
}

pub fn re() -> Vec<u8> {
    field(b"RE", &[])
}

/// An extended attribute record of owner 7 in group 9, as far as the field of its version. Made on the first of January
/// 2001, changed on the second.
pub fn attributes(permissions: u16) -> Vec<u8> {
    let mut bytes = [both16(7), both16(9)].concat();
    bytes.extend(permissions.to_be_bytes());
    bytes.extend(b"2001010100000000\0");
    bytes.extend(b"2001010200000000\0");
    bytes.resize(180, 0);
    bytes.push(1);
    bytes
}

/// A directory of `blocks` blocks at `block` with `records` after the two of its own.
pub fn directory(block: u32, parent: u32, fields: &[Vec<u8>], records: &[Rec]) -> Vec<u8> {
    let own = Rec::dir(&[0], block).with(fields);
    let mut bytes = own.bytes();
    bytes.extend(Rec::dir(&[1], parent).bytes());
    for record in records {
        let record = record.bytes();
        if bytes.len() % SECTOR + record.len() > SECTOR {
            bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
        }
        bytes.extend(record);
    }
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    bytes
}

/// An image.
pub struct Image {
    pub bytes: Vec<u8>,
    pub block_size: usize,
}

impl Image {
    /// An image with descriptors only. The root is one sector at block [`ROOT`] (of 2048 bytes).
    pub fn new(sectors: usize) -> Self {
        Self::of_blocks(sectors, SECTOR)
    }

    pub fn of_blocks(sectors: usize, block_size: usize) -> Self {
        let mut image = Self {
            bytes: vec![0; sectors * SECTOR],
            block_size,
        };
        image.descriptor(16, 1, b"   ");
        image.put(17 * SECTOR, b"\xffCD001\x01");
        image
    }

    pub fn put(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub fn put_block(&mut self, block: u32, bytes: &[u8]) -> &mut Self {
        self.put(block as usize * self.block_size, bytes)
    }

    pub fn descriptor(&mut self, sector: usize, kind: u8, escape: &[u8; 3]) {
        let at = sector * SECTOR;
        let blocks = (self.bytes.len() / self.block_size) as u32;
        self.put(at, &[kind]).put(at + 1, b"CD001\x01");
        self.put(at + 40, &[b' '; 32]);
        self.put(at + 80, &both32(blocks));
        self.put(at + 88, escape);
        self.put(at + 120, &both16(1)).put(at + 124, &both16(1));
        self.put(at + 128, &both16(self.block_size as u16));
        let root = ROOT * (SECTOR / self.block_size) as u32;
        self.put(at + 156, &Rec::dir(&[0], root).bytes());
        self.put(at + 881, &[1]);
    }

    /// Puts a Rock Ridge root with `records` into the image.
    pub fn rock(&mut self, records: &[Rec]) -> &mut Self {
        let root = directory(ROOT, ROOT, &[sp(), px(0o40755, 2, None)], records);
        self.put_block(ROOT, &root)
    }

    /// Puts a root without Rock Ridge into the image.
    pub fn plain(&mut self, records: &[Rec]) -> &mut Self {
        let root = ROOT * (SECTOR / self.block_size) as u32;
        let bytes = directory(root, root, &[], records);
        self.put_block(root, &bytes)
    }

    /// Makes the descriptor at sector 17 a Joliet one of the same root, which holds `records`.
    pub fn joliet(&mut self, records: &[Rec]) -> &mut Self {
        self.descriptor(17, 2, b"%/E");
        self.put(18 * SECTOR, b"\xffCD001\x01");
        self.plain(records)
    }

    pub fn open(&self) -> Result<Iso, Error> {
        Iso::open(self.bytes.clone(), &Options::default())
    }

    pub fn open_as(&self, namespace: Namespace) -> Result<Iso, Error> {
        let namespace = Some(namespace);
        let options = Options {
            namespace,
            ..Options::default()
        };
        Iso::open(self.bytes.clone(), &options)
    }
}

/// The names of a directory.
pub fn names(iso: &Iso, dir: &Arc<Entry>) -> Vec<String> {
    let entries = iso.list(dir).unwrap();
    let name = |entry: &Arc<Entry>| String::from_utf8_lossy(&entry.name).into_owned();
    entries.iter().map(name).collect()
}

pub fn find(iso: &Iso, path: &str) -> Arc<Entry> {
    iso.resolve(path.as_bytes())
        .unwrap()
        .unwrap_or_else(|| panic!("{path} is missing"))
}

/// All of a file.
pub fn content(iso: &Iso, path: &str) -> Result<Vec<u8>, Error> {
    let file = find(iso, path);
    iso.check_content(&file)?;
    let mut bytes = vec![0; usize::try_from(file.size).unwrap()];
    let len = iso.read_at(&file, 0, &mut bytes)?;
    assert_eq!(len as u64, file.size);
    Ok(bytes)
}

/// A user without privileges.
pub fn caller(uid: u32, gid: u32) -> Caller {
    Caller::with_ids(uid, gid)
}

/// Fails unless `text` starts with `with`.
pub fn starts(text: &str, with: &str) {
    assert!(
        text.starts_with(with),
        "{text:?} does not start with {with:?}"
    );
}
