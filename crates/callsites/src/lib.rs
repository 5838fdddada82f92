//! Replaces system calls of a C library, in the memory of a process, by jumps to code of a tracer.
//!
//! A site is an instruction of five bytes, which becomes a jump, with `syscall` behind it, which stays; [`Form`] has the forms, and an exception. A site is used only if a decoder that starts at the function's first byte
//! decodes exactly these instructions, and no branch leads between them. So a thread that stands anywhere else in the library never sees half of a jump, and code
//! that is to make the call unchanged can continue with the site's `syscall`.
//!
//! The jump leads to a stub in the zeros behind the library's code, the only unused memory that a jump of five bytes reaches for certain.
//!
//! * [`library`] says what is known of a library, `sites` finds the calls in its code, and [`elf`] reads its file.
//! * [`placed`] writes stubs and jumps into a process that maps a library.

pub mod elf;
pub mod library;
pub mod placed;
mod sites;

pub use library::Library;
pub use placed::Placed;
pub use sites::{ANY, Form, Moves, Site};

/// Size of a page of memory, in bytes.
pub const PAGE: u64 = 4096;

/// What a caller needs to know of a call at a site, by its number; `None` for a call that is left alone.
pub type KindOf<'a> = &'a dyn Fn(u32) -> Option<u32>;
