//! Host files and the host's clock, as all parts of a store use them.

use std::fs::File;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;

use crate::Error;

/// Nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn sync_dir(dir: &Path) -> Result<(), Error> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(Error::io("sync", dir))
}

/// Preallocates disk space; [`Error::NoSpace`] when there is not enough.
pub(crate) fn allocate(file: &File, path: &Path, from: u64, to: u64) -> Result<(), Error> {
    let (Ok(offset), Ok(len)) = (i64::try_from(from), i64::try_from(to - from)) else {
        return Err(Error::NoSpace);
    };
    loop {
        match posix_fallocate(file, offset, len) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) => return Err(Error::NoSpace),
            Err(errno) => return Err(Error::io("preallocate", path)(errno.into())),
        }
    }
}
