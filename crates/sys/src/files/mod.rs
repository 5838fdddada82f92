//! Files, sockets and directory entries, where they need more than a safe call.

pub mod entries;
pub mod file_attr;
pub mod lease;
pub mod memfile;
pub mod mount_attr;
pub mod object_handle;
pub mod replacement;
pub mod socket;
pub mod stat;
pub mod withdraw;
