//! How calls reach the threads that answer them: notifications, and the pool of threads that receives them.
//!
//! Start with [`pool`].

pub mod executor;
pub mod in_flight;
pub mod pool;
pub mod receiver;
pub mod waiting;
