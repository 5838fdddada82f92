//! Power cuts at block level: a store on a real file system, on a disk that records its writes and flushes.
//!
//! [`volume`] mounts ext4, XFS or btrfs on a loop device over a FUSE file ([`fuse`]) that records ([`image`]). [`campaign`] runs random
//! operations ([`plan`]) in a store there, and afterwards opens the state that a cut at any position of the recording would have left.

pub mod campaign;
pub mod fuse;
pub mod image;
pub mod plan;
pub mod volume;
