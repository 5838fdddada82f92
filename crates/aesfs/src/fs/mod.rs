//! The file system: an encrypted directory of a lower file system, in plain.
//!
//! [`AesFs`] forwards operations that concern neither names nor contents. `dirs.rs`, `paths.rs` and `removed.rs` have names, `files.rs` and `state.rs` have contents;
//! `switch.rs` has the operations.

mod check;
mod dirs;
mod files;
mod lower;
mod memory;
mod paths;
mod removed;
mod state;
mod switch;

use std::sync::Arc;

use goanna_vfs::{Caller, Errno, FileKind, FileSystem, FsError, Node, Result};

use crate::Error;
use crate::error::{Damage, Failure};
use crate::format::config::Features;
use crate::format::content::{BLOCK, ContentCipher};
use crate::format::keys::MasterKey;
use crate::format::names::NameCipher;

pub use check::{Checked, Finding, Problem};

use dirs::Dirs;
use files::Files;
use state::{PAGE, decrypt_read, plain_size};

/// Receives reports of damage: the plain path from the volume's root, and the kind of damage.
pub type Report = Box<dyn Fn(&[u8], Damage) + Send + Sync>;

/// An encrypted directory of a lower file system, in plain.
pub struct AesFs {
    lower: Arc<dyn FileSystem>,
    /// The volume's top directory in `lower`.
    root: Node,
    files: Arc<Files>,
    dirs: Dirs,
    report: Report,
}

/// The lower file system's node of one of our nodes.
struct Pin(Node);

impl AesFs {
    /// The volume whose top directory is `root` in `lower`. Contents that programs have open take at most `memory` bytes together; by default
    /// half of the machine's memory.
    pub fn new(
        lower: Arc<dyn FileSystem>,
        root: Node,
        features: &Features,
        master: &MasterKey,
        memory: Option<u64>,
        report: Report,
    ) -> std::result::Result<Self, Error> {
        let content = ContentCipher::new(features.cipher, master, features.hkdf)?;
        let names = NameCipher::new(features.names, master, features.hkdf)?;
        Ok(Self {
            files: Arc::new(Files::new(Arc::clone(&lower), Arc::new(content), memory)),
            dirs: Dirs::new(Arc::clone(&lower), root.clone(), names),
            lower,
            root,
            report,
        })
    }

    /// The node of the lower file system behind one of ours. EBADF for another back end's, which only a bug can pass.
    fn inner<'a>(&self, node: &'a Node) -> Result<&'a Node> {
        let pin: Option<&Pin> = node.pin();
        Ok(pin.map(|pin| &pin.0).ok_or(Errno::EBADF)?)
    }

    /// The lower node, as [`AesFs::inner`], for an operation of `caller`. EOPNOTSUPP in a transaction in which the lower file system shows
    /// other content than outside of it: a file has one decrypted content, which all programs share.
    fn inner_for<'a>(&self, caller: &Caller, node: &'a Node) -> Result<&'a Node> {
        if let Some(id) = caller.txn {
            let transactions = self.lower.transactions();
            if transactions.is_some_and(|transactions| transactions.is_explicit(id)) {
                return Err(Errno::EOPNOTSUPP.into());
            }
        }
        self.inner(node)
    }

    fn outer(&self, node: Node) -> Node {
        Node::new(node.ino(), node.kind(), Arc::new(Pin(node)))
    }

    /// The error for the caller. Reports damage with the path of `node`, or of `name` in it.
    fn error(
        &self,
        caller: &Caller,
        node: &Node,
        name: Option<&[u8]>,
        failure: Failure,
    ) -> FsError {
        match failure {
            Failure::Fs(error) => error,
            Failure::Damage(damage) => {
                let mut path = self.path_of(caller, node).unwrap_or_else(|_| b"?".to_vec());
                if let Some(name) = name {
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path.extend_from_slice(name);
                }
                (self.report)(&path, damage);
                Errno::EIO.into()
            }
        }
    }

    /// The result of an operation on `node`.
    fn on<T>(
        &self,
        caller: &Caller,
        node: &Node,
        result: std::result::Result<T, Failure>,
    ) -> Result<T> {
        result.map_err(|failure| self.error(caller, node, None, failure))
    }

    fn path_of(&self, caller: &Caller, node: &Node) -> std::result::Result<Vec<u8>, Failure> {
        let (path, _) = self.lower_path(caller, node)?;
        self.dirs.decrypt_path(caller, &path)
    }

    /// The encrypted path from the volume's top directory, and whether the name was removed. ENOENT for a file outside of the volume.
    fn lower_path(&self, caller: &Caller, node: &Node) -> Result<(Vec<u8>, bool)> {
        let (path, is_deleted) = self.lower.path(caller, node)?;
        let (top, _) = self.lower.path(caller, &self.root)?;
        let below = match path.strip_prefix(&*top) {
            Some(below) if top.is_empty() || below.is_empty() => below,
            Some([b'/', below @ ..]) => below,
            _ => return Err(Errno::ENOENT.into()),
        };
        Ok((below.to_vec(), is_deleted))
    }

    /// Reads content that no program has open, without a descriptor.
    fn read_closed(
        &self,
        caller: &Caller,
        node: &Node,
        offset: u64,
        buf: &mut [u8],
    ) -> std::result::Result<usize, Failure> {
        use crate::format::content::{HEADER, parse_header};
        let cipher = self.files.cipher();
        let encrypted = self.lower.getattr(caller, node)?.size;
        if encrypted == 0 || buf.is_empty() {
            return Ok(0);
        }
        let mut header = [0; HEADER];
        let got = self.lower.read_at(caller, node, 0, &mut header)?;
        let id = parse_header(header.get(..got).unwrap_or_default())?;
        let size = plain_size(cipher.cipher(), encrypted)?;
        let mut done = 0;
        while done < buf.len() && offset.saturating_add(done as u64) < size {
            let at = offset + done as u64;
            let first = at / PAGE;
            let wanted = (buf.len() - done).div_ceil(BLOCK) as u64 + 1;
            let last = first
                .saturating_add(wanted.min(64))
                .min(size.div_ceil(PAGE));
            let read = |offset, buf: &mut [u8]| self.lower.read_at(caller, node, offset, buf);
            let plain = decrypt_read(cipher, &id, size, first..last, read)?;
            let skipped = usize::try_from(at % PAGE).unwrap_or(0);
            let plain = plain.get(skipped..).unwrap_or_default();
            let rest = buf.get_mut(done..).unwrap_or_default();
            let len = plain.len().min(rest.len());
            if len == 0 {
                break;
            }
            rest.get_mut(..len)
                .unwrap_or_default()
                .copy_from_slice(plain.get(..len).unwrap_or_default());
            done += len;
        }
        Ok(done)
    }

    /// The value of an extended attribute, from that in the lower file system.
    fn decrypt_value(&self, value: &[u8]) -> std::result::Result<Vec<u8>, Damage> {
        let cipher = self.files.cipher();
        let len = value.len().checked_sub(cipher.cipher().overhead());
        let mut plain = vec![0; len.unwrap_or(0)];
        cipher
            .decrypt(value, 0, None, &mut plain)
            .map_err(|_| Damage::Xattr)?;
        Ok(plain)
    }

    /// EISDIR, EINVAL or ENODEV for a file of a type without content.
    fn regular(node: &Node, other: Errno) -> Result<()> {
        match node.kind() {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(Errno::EISDIR.into()),
            FileKind::Fifo if other == Errno::ENODEV => Err(Errno::ESPIPE.into()),
            _ => Err(other.into()),
        }
    }
}
