//! This process: credentials, limits, scheduling, its memory, and the clock.

pub mod child;
pub mod clock;
pub mod cred;
pub mod limits;
pub mod pagemap;
pub mod region;
pub mod sched;
pub mod secret;
pub mod table_holder;
