//! The mounts of a run: mount specifications ([`MountSpec`]), mount files ([`parse`] reads both), and the mount table made of
//! them ([`build`]). The caller passes the available types of mounts ([`MountTypes`]).

mod mount_file;
mod spec;
mod table;
mod types;

pub(crate) use self::spec::path_as_bytes;
pub use self::spec::{MountSpec, Source, SpecError};
pub use self::table::{
    Builder, MountedStores, OpenStore, build, build_on, hides_host, of_store, parse, real,
    store_on_host,
};
pub use self::types::{MountType, MountTypes};
