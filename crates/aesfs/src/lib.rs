//! The AES back end: encrypted directories in gocryptfs's format, as a layer over another back end.
//!
//! * [`format`](mod@format) encrypts and decrypts all parts, and reads and writes no file.
//! * [`AesFs`] is the layer: it decrypts names and contents of a lower file system. Read `fs/mod.rs` next.
//! * [`Volume`] is a volume in a directory of the host: its config file, its passwords, and its creation.
//!
//! `docs/aes.md` describes the protection that the format gives, and its limits.

mod error;
pub mod format;
mod fs;
mod mount_type;
mod password;
mod volume;

pub use error::{Damage, Error};
pub use format::keys::Secret;
pub use fs::{AesFs, Checked, Finding, Problem, Report};
pub use mount_type::AesBackend;
pub use password::{Ask, PasswordSource};
pub use volume::Volume;
