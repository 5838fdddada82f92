//! How a back end becomes a type of mount: [`Backend`] names it and its options, and opens its file systems.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{FileSystem, Node};

/// A type of mount, as users name it in a mount specification: `TYPE=SOURCE:TARGET[,option[=value]...]`.
///
/// A back end's crate has one value that implements this trait. The file `crates/cli/src/mount_types.rs` lists all of them;
/// nothing else names a back end.
///
/// ```
/// use std::path::Path;
/// use std::sync::Arc;
///
/// use goanna_vfs::{Backend, FileSystem, MountOptions, OpenError, SynthFs};
///
/// struct Empty;
///
/// impl Backend for Empty {
///     fn name(&self) -> &'static str {
///         "empty"
///     }
///
///     fn open(&self, _: &Path, _: &MountOptions) -> Result<Arc<dyn FileSystem>, OpenError> {
///         Ok(Arc::new(SynthFs::default()))
///     }
/// }
/// ```
pub trait Backend: Sync {
    /// The type's name, such as `iso`.
    fn name(&self) -> &'static str;

    /// The options beside `ro` and `noexec`, which every type has.
    fn options(&self) -> &'static [MountOption] {
        &[]
    }

    /// Whether its file systems never change, so that every mount is read-only.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Checks the values of options when a specification is parsed. The error says what is wrong.
    fn check(&self, _options: &MountOptions) -> Result<(), String> {
        Ok(())
    }

    /// Opens the file system of `source`, a path of the host. The options are among [`Backend::options`], each at most once, and
    /// [`Backend::check`] has accepted them.
    fn open(&self, source: &Path, options: &MountOptions)
    -> Result<Arc<dyn FileSystem>, OpenError>;

    /// Opens the file system of `source`, which is the directory `dir` of a file system that is mounted already. `None` where the back end
    /// reads the host only: [`Backend::open`] is called then.
    fn open_over(
        &self,
        _lower: &Arc<dyn FileSystem>,
        _dir: &Node,
        _source: &Path,
        _options: &MountOptions,
    ) -> Option<Result<Arc<dyn FileSystem>, OpenError>> {
        None
    }
}

/// An option of a type of mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountOption {
    /// Its name.
    pub name: &'static str,
    /// What messages show for its value, such as `N`; `None` where it takes none.
    pub value: Option<&'static str>,
}

/// The options of one mount, beside `ro` and `noexec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountOptions(Vec<(String, Option<Vec<u8>>)>);

impl MountOptions {
    /// Adds an option; false when it is there already.
    pub fn add(&mut self, name: &str, value: Option<&[u8]>) -> bool {
        let is_new = !self.has(name);
        if is_new {
            self.0.push((name.to_owned(), value.map(<[u8]>::to_vec)));
        }
        is_new
    }

    /// Whether the option is there.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(has, _)| has == name)
    }

    /// The option's value.
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        let option = self.0.iter().find(|(has, _)| has == name);
        option.and_then(|(_, value)| value.as_deref())
    }
}

/// Why a file system could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The host refuses to read the source.
    Host(io::Error),
    /// The source is not what the back end can read.
    Source {
        /// Why.
        why: String,
        /// What the user can do about it.
        hint: Option<&'static str>,
    },
}
