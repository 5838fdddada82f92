//! The types of mounts: the one place that picks back ends. A new back end adds a line here (and its crate to `Cargo.toml`).

use goanna_session::mounts::{MountType, MountTypes};

use crate::prompt;
use crate::report::messages;

/// All types of mounts, in the order in which messages list them.
pub const MOUNT_TYPES: MountTypes = &[
    MountType::Backend(&goanna_passfs::PassBackend),
    MountType::Store,
    MountType::Backend(&goanna_isofs::IsoBackend),
    MountType::Backend(&goanna_aesfs::AesBackend {
        ask: prompt::password,
        report: messages::damage,
    }),
];
