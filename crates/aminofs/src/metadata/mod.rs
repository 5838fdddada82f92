//! Metadata of inodes: attributes, extended attributes, access control lists.

pub(crate) mod acl;
pub(crate) mod attr;
pub(crate) mod shared;
pub(crate) mod xattr;
pub(crate) mod xattr_space;
