//! Lets a followed thread perform calls, or run code, for the tracer.

use goanna_sys::Errno;
use goanna_sys::ptrace::Stopped;

use super::follow::Follower;
use super::inject::{Injected, Site};

impl Follower<'_> {
    /// Makes thread `tid` perform a call, and returns its result; its error if it fails. `None`: another stop came first; it is handled later.
    pub fn perform(
        &mut self,
        tid: i32,
        site: &Site,
        nr: i64,
        args: [u64; 6],
    ) -> Result<Option<u64>, Errno> {
        self.inject(tid, |stopped| site.perform(stopped, nr, args))
    }

    /// Makes thread `tid` run code ([`Site::run`]), and returns its result, as that of a call.
    pub fn run_code(
        &mut self,
        tid: i32,
        site: &Site,
        address: Option<u64>,
    ) -> Result<Option<u64>, Errno> {
        self.inject(tid, |stopped| site.run(stopped, address))
    }

    fn inject(
        &mut self,
        tid: i32,
        injection: impl FnOnce(Stopped) -> Result<Injected, Errno>,
    ) -> Result<Option<u64>, Errno> {
        let Some(stopped) = self.take(tid) else {
            return Ok(None);
        };
        match injection(stopped)? {
            Injected::Done(stopped, result) => {
                if let Some(thread) = self.threads.get_mut(&tid) {
                    thread.stopped = Some(stopped);
                }
                match result {
                    -4095..0 => Err(Errno::from_raw(-result as i32)),
                    result => Ok(Some(result.cast_unsigned())),
                }
            }
            Injected::Preempted(event) => {
                self.reports.push(event);
                Ok(None)
            }
        }
    }
}
