//! Errors of the standard library as errno values.

use goanna_vfs::Errno;

pub fn errno(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
