//! The kernel as the monitor sees it: launching and seizing tracees, seccomp notifications, tracee memory,
//! memfds and per-thread credentials. No other crate has `unsafe`, except for C interfaces; each file that needs it
//! explains why.
//!
//! Everything here is a thin, checked layer over one system call or a few; no policy. Errors are [`Errno`]
//! values as the kernel gave them, so that the monitor can hand them to a tracee unchanged.
//! Operations that need a privilege fail with `EPERM` without it; all others work for an ordinary user.
//!
//! [`escape`] and [`plural`] are the exceptions: text for people, which every program of the project needs.
//!
//! Modules are grouped in directories, which their paths leave out: `goanna_sys::pidfd` is `tracees/pidfd.rs`.

#[cfg(not(all(
    target_os = "linux",
    target_arch = "x86_64",
    target_pointer_width = "64"
)))]
compile_error!(
    "goanna-sys supports x86-64 Linux only: registers, call numbers and struct layouts are that ABI's"
);

pub mod arch;
pub mod escape;
mod files;
mod intercept;
pub mod plural;
mod process;
pub mod recorder;
pub mod replay;
pub mod stub;
mod tracees;

pub use files::{
    entries, file_attr, lease, memfile, mount_attr, object_handle, replacement, socket, stat,
    withdraw,
};
pub use intercept::{filter, inherited, launch, notify, restarts};
pub use nix::errno::Errno;
pub use process::{child, clock, cred, limits, pagemap, region, sched, secret, table_holder};
pub use tracees::{
    descriptor_inbox, descriptor_tables, interrupt, mappings, page_watch, pidfd, procfs, ptrace,
    reports, signals, tracee, txncall,
};
