//! Ids and versions of the host's files, which stay valid after the monitor has ended.
//!
//! The host returns no generation and no change counter without a file handle, which needs a privilege. So the generation is
//! the time of creation, and the version the time of the last change: nanoseconds since 1970. Kernels before Linux 6.13 round
//! it to a clock tick, so that two changes within some milliseconds can have one version. 0 where the host does not know the
//! creation; then a file that gets the inode number of a removed one has its id.
//!
//! Changes are not reported: other programs change the host's files, and inotify(7) reports that only afterwards.

use std::os::fd::AsFd;

use goanna_vfs::{Caller, FileId, Identity, Node, Result};
use rustix::fs::StatxFlags;

use crate::PassFs;
use crate::attr::nanoseconds;
use crate::node::{Pin, os, stat};

impl Identity for PassFs {
    fn file_id(&self, _: &Caller, node: &Node) -> Result<FileId> {
        let pin = Pin::of(node)?;
        let stat = stat(pin.fd.as_fd(), StatxFlags::INO | StatxFlags::BTIME)?;
        let has_btime = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        let fs = rustix::fs::fstatvfs(&pin.fd).map_err(os)?.f_fsid;
        Ok(FileId {
            // Some file systems have no id of their own.
            fs: u128::from(if fs == 0 { pin.dev } else { fs }),
            inode: stat.stx_ino,
            generation: if has_btime {
                nanoseconds(stat.stx_btime)
            } else {
                0
            },
        })
    }
}
