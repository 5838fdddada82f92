//! What is mounted: mount specifications ([`MountSpec`]), mount files ([`parse`] reads both), and the mount table made of them
//! ([`build`]).

mod mount_file;
mod spec;
mod table;

pub(crate) use self::spec::path_as_bytes;
pub use self::spec::{MountSpec, Source, SpecError};
pub use self::table::{MountedStores, OpenStore, build, hides_host, of_store, parse, real};
