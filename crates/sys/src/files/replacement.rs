//! Replaces a file atomically: the new file gets the name when it is complete. Until then, and after a failure, the name refers
//! to the old file.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempPath};

/// The new content of a file, in a temporary file in the same directory. Removed unless it is [finished](Self::finish).
#[derive(Debug)]
pub struct Replacement {
    /// `None` for another kind of file than a regular one, such as `/dev/null`: that file itself is written.
    temporary: Option<TempPath>,
    path: PathBuf,
}

impl Replacement {
    /// Creates the temporary file, empty. It has the mode of the file that it replaces, or else 0666 as the umask allows.
    /// A symbolic link stays one: the file that it leads to is replaced.
    ///
    /// # Errors
    ///
    /// EISDIR for a directory; the errors of creating a file in the directory.
    pub fn begin(path: &Path) -> io::Result<Self> {
        Self::create(path, None)
    }

    /// As [`begin`](Self::begin), for content that only the owner may read. The mode is 0600 in any case, and a symbolic link
    /// itself is replaced: another user's link in a shared directory cannot direct the content to another place.
    ///
    /// # Errors
    ///
    /// As for [`begin`](Self::begin).
    pub fn begin_private(path: &Path) -> io::Result<Self> {
        Self::create(path, Some(0o600))
    }

    fn create(path: &Path, mode: Option<u32>) -> io::Result<Self> {
        let path = match mode {
            None => path.canonicalize().unwrap_or_else(|_| path.to_owned()),
            Some(_) => path.to_owned(),
        };
        let usual = match fs::metadata(&path) {
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
            .prefix(".goanna-new-")
            .permissions(Permissions::from_mode(mode.unwrap_or(usual)))
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

    /// Makes the content durable, then gives the file its name: after a crash of the machine the file has the old content or
    /// all of the new content.
    ///
    /// # Errors
    ///
    /// The errors of fsync(2) and rename(2).
    pub fn finish_synced(self) -> io::Result<()> {
        if let Some(temporary) = &self.temporary {
            File::open(temporary)?.sync_all()?;
        }
        self.finish()
    }

    /// Gives the file its name, without waiting for the disk.
    ///
    /// # Errors
    ///
    /// The errors of rename(2).
    pub fn finish(self) -> io::Result<()> {
        match self.temporary {
            Some(temporary) => Ok(temporary.persist(&self.path)?),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// Neither a failure nor a link loses the old content.
    #[test]
    fn the_name_changes_hands_only_when_the_file_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();

        let given_up = Replacement::begin(&link).unwrap();
        fs::write(given_up.file(), "half").unwrap();
        drop(given_up);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);

        let complete = Replacement::begin(&link).unwrap();
        fs::write(complete.file(), "new").unwrap();
        complete.finish().unwrap();
        assert_eq!(
            (&fs::read(&path).unwrap()[..], mode(&path)),
            (&b"new"[..], 0o640)
        );

        let private = Replacement::begin_private(&link).unwrap();
        fs::write(private.file(), "private").unwrap();
        private.finish_synced().unwrap();
        assert!(link.is_file() && !link.is_symlink());
        assert_eq!(
            (fs::read(&link).unwrap(), mode(&link)),
            (b"private".to_vec(), 0o600)
        );
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn devices_are_written_and_directories_refused() {
        let null = Replacement::begin(Path::new("/dev/null")).unwrap();
        assert_eq!(null.file(), Path::new("/dev/null"));
        null.finish_synced().unwrap();
        let error = Replacement::begin(Path::new("/")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }
}
