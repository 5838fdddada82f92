//! Finds out which files of the initial state are below a directory, and whether there is enough free space
//! for the others.

use std::fs::File;

use amino_schema::replay::{Index, Initial, What};
use goanna_sys::Errno;
use goanna_sys::escape::escape;
use goanna_sys::replay as sys;

use super::FILLER;
use super::make::at;
use crate::Error;

/// Refuses an initial state that exceeds the free space of the root: a hostile trace can have any size.
pub fn space(needed: u64, root: &File) -> Result<(), Error> {
    let found = nix::sys::statvfs::fstatvfs(root).map_err(|why| Error::System {
        what: "the space of the root",
        why,
    })?;
    let free = found
        .blocks_available()
        .saturating_mul(found.fragment_size());
    if needed > free {
        return Err(Error::Space { needed, free });
    }
    Ok(())
}

/// The files of the initial state that have another type below `root`, each with the reason.
pub fn conflicts(index: &Index, root: i32) -> Vec<String> {
    let differs = |file: &Initial| match is_there(index, root, file) {
        Err(why) => Some(format!("{} ({why})", escape(&file.path))),
        Ok(_) => None,
    };
    index.initial.iter().filter_map(differs).collect()
}

/// The files that a replay needs below `root` and that are missing or different, each with the reason.
pub fn missing(index: &Index, root: i32) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    for file in &index.initial {
        match is_there(index, root, file) {
            Ok(true) => {}
            Ok(false) => missing.push(escape(&file.path)),
            Err(why) => missing.push(format!("{} ({why})", escape(&file.path))),
        }
    }
    Ok(missing)
}

/// Whether a file is there; an error when another type of file is.
pub fn is_there(index: &Index, root: i32, file: &Initial) -> Result<bool, Errno> {
    let wanted = match &file.what {
        What::Regular => libc::S_IFREG,
        What::Directory => libc::S_IFDIR,
        What::Symlink(_) => libc::S_IFLNK,
        What::Fifo => libc::S_IFIFO,
        What::Link(first) => {
            let first = index.initial.get(*first as usize);
            return first.map_or(Ok(true), |first| {
                let is_other = matches!(first.what, What::Link(_));
                let found = at(root, &file.path, |directory, name| {
                    sys::stat(directory, name).map(|it| i64::from(it.mode))
                });
                found_or(found.map(|_| ())).map(|found| found || is_other)
            });
        }
    };
    if file.path.rsplit(|byte| *byte == b'/').next() == Some(FILLER) {
        return has_entries(root, &file.path);
    }
    let found = at(root, &file.path, |directory, name| {
        sys::stat(directory, name).map(|it| i64::from(it.mode))
    });
    match found {
        Ok(mode) if mode as u32 & libc::S_IFMT == wanted => Ok(true),
        Ok(_) => Err(Errno::EEXIST),
        Err(why) => found_or(Err(why)),
    }
}

fn found_or(found: Result<(), Errno>) -> Result<bool, Errno> {
    match found {
        Ok(()) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(why) => Err(why),
    }
}

/// Whether the directory that `path` is in has entries other than `.` and `..`.
fn has_entries(root: i32, path: &[u8]) -> Result<bool, Errno> {
    const DOTS: i64 = 2 * 24;
    let flags = (libc::O_RDONLY | libc::O_DIRECTORY) as u64;
    let found = at(root, path, |directory, _| {
        let opened = sys::open(directory, c".", flags, 0, sys::PLAIN)? as i32;
        let mut entries = [0; 1024];
        let bytes = sys::entries(opened, &mut entries);
        let _ = sys::close(opened);
        bytes
    });
    match found {
        Ok(bytes) => Ok(bytes > DOTS),
        Err(why) => found_or(Err(why)),
    }
}
