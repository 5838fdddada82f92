//! The format of an image: descriptors, directory records, and the extensions. Start with [`volume`].

pub(crate) mod attributes;
pub(crate) mod boot;
pub(crate) mod fields;
pub(crate) mod names;
pub(crate) mod namespace;
pub(crate) mod record;
pub(crate) mod rockridge;
pub(crate) mod session;
pub(crate) mod susp;
pub(crate) mod volume;
pub(crate) mod zisofs;
