//! How system calls are intercepted: the filter, the notifications, and how a program is started under them.

pub mod filter;
pub mod inherited;
pub mod launch;
pub mod notify;
pub mod restarts;
