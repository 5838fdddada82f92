//! Commands on a store as a whole.

pub mod compact;
pub mod dump;
pub mod fsck;
pub mod info;
