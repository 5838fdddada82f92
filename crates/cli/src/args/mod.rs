//! The command lines: clap definitions, from which parsing, `--help`, completions and man pages are made.
//!
//! [`amino`] and [`goanna`] are the two programs, [`common`] has the options that their commands share.

pub mod aes;
pub mod amino;
pub mod common;
pub mod goanna;
pub mod iso;
pub mod txn;

pub use self::amino::Amino;
pub use self::common::{Common, Engine, Listing, Shell, StatsFormat, Verbosity};
pub use self::goanna::Goanna;
