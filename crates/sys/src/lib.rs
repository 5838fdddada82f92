//! The kernel as the monitor sees it: launching and seizing tracees, seccomp notifications, tracee memory,
//! memfds and per-thread credentials. The only crate with `unsafe` but for C interfaces; each file that needs it says why.
//!
//! Everything here is a thin, checked layer over one system call or a few; no policy. Errors are [`Errno`]
//! values as the kernel gave them, so that the monitor can hand them to a tracee unchanged.
//! What an ordinary user may do works as an ordinary user; what needs privilege fails with `EPERM`.

#[cfg(not(all(
    target_os = "linux",
    target_arch = "x86_64",
    target_pointer_width = "64"
)))]
compile_error!(
    "goanna-sys supports x86-64 Linux only: registers, call numbers and struct layouts are that ABI's"
);

pub mod clock;
pub mod cred;
pub mod descriptor_inbox;
pub mod entries;
pub mod filter;
pub mod inherited;
pub mod interrupt;
pub mod launch;
pub mod limits;
pub mod mappings;
pub mod memfile;
pub mod notify;
pub mod page_watch;
pub mod pause;
pub mod pidfd;
pub mod procfs;
pub mod ptrace;
pub mod region;
pub mod sched;
pub mod secret;
pub mod socket;
pub mod stat;
pub mod stub;
pub mod tracee;
pub mod txncall;
pub mod witness;

pub use nix::errno::Errno;
