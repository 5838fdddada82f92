//! A file that gets its name when it is complete: what had the name before stays after a failure.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempPath};

/// The new content of a file, in a temporary file in the same directory. Removed unless it is [finished](Self::finish).
#[derive(Debug)]
pub struct Replacement {
    /// `None` for what is no regular file, such as `/dev/null`, which is written itself.
    temporary: Option<TempPath>,
    path: PathBuf,
}

impl Replacement {
    /// Creates the temporary file, empty. A symbolic link stays one: the file that it leads to is replaced.
    ///
    /// # Errors
    ///
    /// EISDIR for a directory; what creating a file in the directory gives.
    pub fn begin(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mode = match fs::metadata(&path) {
            Ok(present) if present.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(present) if !present.is_file() => {
                let temporary = None;
                return Ok(Self { temporary, path });
            }
            Ok(present) => present.permissions().mode() & 0o777,
            Err(_) => 0o666,
        };
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let file = Builder::new()
            .prefix(".replayer-")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(directory)?;
        Ok(Self {
            temporary: Some(file.into_temp_path()),
            path,
        })
    }

    /// The file to write.
    pub fn file(&self) -> &Path {
        self.temporary.as_deref().unwrap_or(&self.path)
    }

    /// Gives the file its name.
    pub fn finish(self) -> io::Result<()> {
        match self.temporary {
            Some(temporary) => Ok(temporary.persist(&self.path)?),
            None => Ok(()),
        }
    }
}
