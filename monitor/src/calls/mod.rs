//! The calls the monitor answers, one file per family.

pub mod attr;
pub mod copy;
pub mod dir;
pub mod ioctl;
pub mod kill;
pub mod lease;
pub mod link;
pub mod map;
pub mod open;
pub mod outgrow;
pub mod process;
pub mod read;
pub mod rw;
pub mod size;
pub mod socket;
pub mod stat;
pub mod sync;
pub mod txn;
pub mod xattr;
