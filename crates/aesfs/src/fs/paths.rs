//! Paths of the lower file system in plain names, also of files and directories that were removed.

use goanna_vfs::{Caller, Errno, Node};

use super::dirs::{Dirs, Result};
use crate::format::names::DirIv;

/// The directory of an entry.
enum Parent {
    Existing(Node),
    Removed(Option<DirIv>),
}

/// Whether `entry` is what the kernel shows as the name of a file that was opened with O_TMPFILE: `#` and its inode number. Encrypted names have no `#`.
fn is_unnamed(entry: &[u8]) -> bool {
    let number = entry.strip_prefix(b"#");
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

impl Dirs {
    /// Translates a path of encrypted names to one of plain names, both from the root. A name that cannot be decrypted any more, because its
    /// directory was removed, is shown encrypted.
    pub fn decrypt_path(&self, caller: &Caller, path: &[u8]) -> Result<Vec<u8>> {
        let own = self.own(caller);
        let has_temporary_names = self.cipher().kind().has_dir_iv();
        let mut parent = Parent::Existing(self.root().clone());
        let mut names: Vec<Vec<u8>> = Vec::new();
        let entries = path.split(|byte| *byte == b'/');
        let mut entries = entries.filter(|entry| !entry.is_empty()).peekable();
        while let Some(entry) = entries.next() {
            if let Some(removed) = self.removed.find(entry).filter(|_| has_temporary_names) {
                names.push(removed.name);
                parent = Parent::Removed(removed.iv);
                continue;
            }
            match &parent {
                Parent::Existing(_) if entries.peek().is_none() && is_unnamed(entry) => {
                    names.push(entry.to_vec());
                }
                Parent::Existing(dir) => {
                    let name = self.decrypt(caller, dir, entry)?;
                    names.push(name.ok_or(Errno::ENOENT)?);
                    if entries.peek().is_some() {
                        parent = Parent::Existing(self.lower().lookup(&own, dir, entry)?);
                    }
                }
                Parent::Removed(iv) => names.push(self.decrypt_removed(iv.as_ref(), entry)),
            }
        }
        Ok(names.join(&b'/'))
    }
}
