//! The calls that give all threads of a program the filter of participants.

use goanna_sys::ptrace::Stopped;
use goanna_sys::tracee;
use goanna_vfs::{Errno, Result};

use super::Step;
use crate::ptracer::rewrite::filter_image;
use crate::table::filter::compile_participant;

/// Installs the filter of participants in all threads of a program.
#[derive(Default)]
pub(super) struct InstallFilter {
    /// The address of the filter in the tracee's memory.
    image: Option<u64>,
}

const LEN: u64 = 16384;

impl InstallFilter {
    pub fn next(&mut self, stopped: &Stopped, result: Option<i64>) -> Result<Step, Errno> {
        match (self.image, result) {
            (None, None) => {
                let access = (libc::PROT_READ | libc::PROT_WRITE) as u64;
                let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
                let args = [0, LEN, access, kind, u64::MAX, 0];
                Ok(Step::Call(libc::SYS_mmap, args))
            }
            (None, Some(address)) => {
                let address = address.cast_unsigned();
                let image = filter_image(&compile_participant(false), address);
                tracee::write_all(stopped.tid(), address, &image).map_err(|_| Errno::ENOMEM)?;
                self.image = Some(address);
                let mode = u64::from(libc::SECCOMP_SET_MODE_FILTER);
                let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
                let args = [mode, flags, address, 0, 0, 0];
                Ok(Step::Call(libc::SYS_seccomp, args))
            }
            (Some(_), Some(0)) => Ok(Step::Done),
            // A thread's number: it has filters of its own.
            (Some(_), _) => Err(Errno::EAGAIN),
        }
    }
}
