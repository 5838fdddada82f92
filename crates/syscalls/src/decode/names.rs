//! The files that arguments name.

use crate::signature::{Kind, LastLink};
use crate::structures::OPEN_HOW;
use crate::{DecodedCall, Value};

/// What descriptors and paths of a thread name, at this moment.
pub trait Names {
    /// The path of the file that descriptor `number` names; of the working directory for `AT_FDCWD`.
    fn descriptor(&self, number: i32) -> Option<Box<[u8]>>;

    /// Where `path` leads from `directory` (a descriptor or `AT_FDCWD`): absolute, without symbolic links, except for the last component
    /// where `follow` is false. The last component need not exist. An empty path is `directory` itself.
    fn path(&self, directory: i32, path: &[u8], follow: bool) -> Option<Box<[u8]>>;
}

impl DecodedCall {
    /// Adds to each descriptor the file that it names, and to each path where it leads. A directory before an absolute path is left out: the
    /// kernel does not look at it. To be called before the kernel performs the call: afterwards a path may lead elsewhere.
    pub fn name(&mut self, names: &dyn Names) {
        let Some(signature) = self.signature else {
            return;
        };
        let mut directory = libc::AT_FDCWD;
        for index in 0..self.args.len() {
            let is_before_absolute = self.is_before_absolute_path(index);
            let param = signature.params.get(index);
            let kind = param.map_or(Kind::Address, |param| param.kind);
            let follow = match kind {
                Kind::Path(last) => self.follows(last),
                _ => true,
            };
            match self.args.get_mut(index) {
                Some(Value::Descriptor { number, file }) => {
                    let asked = *number >= 0 || matches!(kind, Kind::Directory);
                    let asked = asked && !is_before_absolute;
                    *file = asked.then(|| names.descriptor(*number)).flatten();
                    directory = *number;
                }
                Some(Value::Path { given, resolved }) => {
                    let start = match index.checked_sub(1).and_then(|at| signature.params.get(at)) {
                        Some(before) if matches!(before.kind, Kind::Directory) => directory,
                        _ => libc::AT_FDCWD,
                    };
                    *resolved = names.path(start, given, follow);
                }
                _ => {}
            }
        }
    }

    /// Whether an absolute path follows argument `index`: the kernel does not look at the directory that it names.
    fn is_before_absolute_path(&self, index: usize) -> bool {
        let param = self.signature.and_then(|one| one.params.get(index));
        let next = self.args.get(index + 1);
        matches!(param, Some(param) if matches!(param.kind, Kind::Directory))
            && matches!(next, Some(Value::Path { given, .. }) if given.first() == Some(&b'/'))
    }

    /// Whether the call follows a symbolic link that is the last component of a path.
    pub fn follows(&self, last: LastLink) -> bool {
        // The structure has been read: the address is that of the argument.
        let how = |_| {
            self.args.iter().find_map(|arg| match arg {
                Value::Bytes { data, .. } => OPEN_HOW.field(data, "flags"),
                _ => None,
            })
        };
        last.follows(&self.raw, how)
    }
}
