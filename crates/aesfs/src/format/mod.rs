//! gocryptfs's format, version 2: how a volume's config file, names and contents are encrypted. These modules read and write
//! no files.
//!
//! ```text
//! gocryptfs.conf       JSON: the master key, encrypted under a key that scrypt derives from the password     config.rs
//!                      HKDF-SHA256 derives one key for contents and one for names from the master key        keys.rs
//! directory            gocryptfs.diriv: 16 random bytes, the directory's IV
//!                      entry: base64url(EME(name padded to 16 bytes, IV)), or, where that is longer than 255 bytes,
//!                      gocryptfs.longname.base64url(SHA-256 of that), and that in a file of this name + .name names.rs
//! content              header: version (2 bytes, big endian: 2), file id (16 random bytes); none of an empty file
//!                      blocks of 4096 bytes, the last one shorter: nonce, ciphertext, tag                   content.rs
//!                      a block of zeros only is a hole
//! symbolic link        base64url(one block without file id)
//! extended attribute   user.gocryptfs.base64url(EME(name, a fixed IV)) = one block without file id
//! ```
//!
//! A block is authenticated together with its number and the file's id, so that blocks cannot be moved within a file or from
//! one to another.

mod base64_text;
pub mod config;
pub mod content;
mod eme;
pub mod keys;
pub mod names;

/// The config file's name in the volume's top directory.
pub const CONFIG_FILE: &str = "gocryptfs.conf";
