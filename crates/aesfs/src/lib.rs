//! The AES back end: encrypted directories in gocryptfs's format, as a layer over another back end.
//!
//! * [`format`](mod@format) says how everything is encrypted, and reads and writes no file.
//! * [`AesFs`] is the layer: it decrypts names and contents of a lower file system. Read `fs/mod.rs` next.
//! * [`Volume`] is a volume in a directory of the host: its config file, passwords, and how it is made.
//!
//! What the format protects, and what it does not, is in `docs/aes.md`.

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
