//! Resolves the arguments of an observed call to files, in the tracee's view: paths in mounts are those that the program knows.

use std::fs;
use std::io::Seek;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use goanna_sys::{procfs, stat};
use goanna_syscalls::{DecodedCall, File, Names, OpenFiles, Operation, Returns, Value};
use goanna_vfs::walk::{Last, Pos};
use goanna_vfs::{Attr, Errno, FsError, Result};

use crate::call::Call;
use crate::process::task::Task;

/// Descriptors and paths of the thread that makes a call.
pub struct TaskNames<'c, 'm>(pub &'c Call<'m>);

impl TaskNames<'_, '_> {
    fn position(&self, at: &Pos) -> Result<Box<[u8]>> {
        let (path, _) = at.path(&*self.0.caller()?)?;
        Ok(self.0.path_in_kernel(path).into())
    }

    fn of_descriptor(&self, number: i32) -> Result<Box<[u8]>> {
        if number == libc::AT_FDCWD {
            return self.position(&self.0.cwd()?.0);
        }
        match self.0.shadow(number)? {
            Some(shadow) => self.position(&Pos::Mounted(self.0.place_of(&shadow)?)),
            None => Ok(procfs::fd_link(self.0.task.tid, number)?.into()),
        }
    }

    fn of_path(&self, directory: i32, path: &[u8], follow: bool) -> Result<Box<[u8]>> {
        if path.is_empty() {
            return self.of_descriptor(directory);
        }
        if follow {
            match self.0.resolve(directory, path, true) {
                Ok(found) => return self.position(&found.at),
                // The call will make the file, or it does not exist.
                Err(FsError::Errno(Errno::ENOENT)) => {}
                Err(errno) => return Err(errno),
            }
        }
        let parent = self.0.resolve_parent(directory, path)?.at;
        let mut whole = self.position(&parent.dir)?.into_vec();
        let name: &[u8] = match &parent.last {
            Last::Name(name) => name,
            Last::Dot | Last::Root => return Ok(whole.into()),
            Last::DotDot => return self.position(&self.0.resolve(directory, path, false)?.at),
        };
        if whole != b"/" {
            whole.push(b'/');
        }
        whole.extend_from_slice(name);
        Ok(whole.into())
    }
}

impl Names for TaskNames<'_, '_> {
    fn descriptor(&self, number: i32) -> Option<Box<[u8]>> {
        self.of_descriptor(number).ok()
    }

    fn path(&self, directory: i32, path: &[u8], follow: bool) -> Option<Box<[u8]>> {
        self.of_path(directory, path, follow).ok()
    }
}

/// The open files of the thread that makes a call.
pub struct TaskFiles<'t>(pub &'t Task);

impl OpenFiles for TaskFiles<'_> {
    fn regular(&self, number: i32) -> Option<(fs::File, u64)> {
        let mut same = fs::File::from(self.0.own_copy(number).ok()?);
        let is_regular = same.metadata().ok()?.is_file();
        let offset = same.stream_position().ok()?;
        is_regular.then_some((same, offset))
    }
}

/// The identities of the files that a call has named.
pub struct Files<'c, 'm>(pub &'c Call<'m>);

impl Files<'_, '_> {
    /// The files of the arguments, and that of the result (index 6), after `call` has ended with `result`.
    pub fn of(&self, call: &DecodedCall, result: i64) -> Vec<(u8, File)> {
        let Some(signature) = call.signature else {
            return Vec::new();
        };
        let mut files = Vec::new();
        let is_removed = matches!(
            signature.operation,
            Operation::Unlink | Operation::Rmdir | Operation::Rename
        );
        for (index, arg) in (0..).zip(&call.args) {
            let file = match arg {
                Value::Descriptor {
                    number,
                    file: Some(path),
                } if *number >= 0 => self.of_descriptor(*number, path),
                Value::Path {
                    resolved: Some(path),
                    ..
                } if result >= 0 && !is_removed => self.of_path(path),
                _ => continue,
            };
            files.extend(file.ok().map(|file| (index, file)));
        }
        if signature.returns == Returns::Descriptor
            && let Ok(number) = i32::try_from(result)
            && number >= 0
        {
            let names = TaskNames(self.0);
            let path = names.of_descriptor(number);
            let file = path.and_then(|path| self.of_descriptor(number, &path));
            files.extend(file.ok().map(|file| (6, file)));
        }
        files
    }

    fn of_descriptor(&self, number: i32, path: &[u8]) -> Result<File> {
        if let Some(shadow) = self.0.shadow(number)? {
            let place = shadow.place();
            let attr = place.mount.fs.getattr(&*self.0.caller()?, &place.node)?;
            let dev = self.0.mounts.device(&place.mount, attr.dev);
            return Ok(of_attr(&Attr { dev, ..attr }, path));
        }
        let status = stat::fstat(self.0.task.own_copy(number)?.as_fd())?;
        Ok(File {
            device: status.st_dev,
            inode: status.st_ino,
            mode: status.st_mode,
            links: status.st_nlink,
            size: u64::try_from(status.st_size).unwrap_or(0),
            path: Some(path.into()),
        })
    }

    fn of_path(&self, path: &[u8]) -> Result<File> {
        let found = self.0.resolve(libc::AT_FDCWD, path, false)?;
        let host = match found.at {
            Pos::Mounted(place) => {
                let attr = place.mount.fs.getattr(&*self.0.caller()?, &place.node)?;
                let dev = self.0.mounts.device(&place.mount, attr.dev);
                return Ok(of_attr(&Attr { dev, ..attr }, path));
            }
            Pos::Host(host) if host.is_empty() => b"/".to_vec(),
            Pos::Host(host) => host,
        };
        let host = Path::new(std::ffi::OsStr::from_bytes(&host));
        let meta = std::fs::symlink_metadata(host).map_err(crate::errno::errno)?;
        Ok(File {
            device: meta.dev(),
            inode: meta.ino(),
            mode: meta.mode(),
            links: meta.nlink(),
            size: meta.size(),
            path: Some(path.into()),
        })
    }
}

fn of_attr(attr: &Attr, path: &[u8]) -> File {
    File {
        device: attr.dev,
        inode: attr.ino,
        mode: attr.mode,
        links: attr.nlink.into(),
        size: attr.size,
        path: Some(path.into()),
    }
}
