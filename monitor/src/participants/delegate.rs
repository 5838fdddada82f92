//! Operations on a store that the monitor's process performs for a tracee that has requested them over a socket: `aminod`
//! does so for offline commands, such as `amino import`, that run inside `amino run`. They belong to the tracee's transaction, as its calls do.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use goanna_vfs::{Errno, Place, Result, TxnId};
use parking_lot::RwLock;

use crate::Monitor;

/// Whether the run continues. Each operation holds this lock shared, so that none is in progress once the run has ended.
#[derive(Debug, Default)]
pub(crate) struct DelegateLock {
    closed: RwLock<bool>,
}

impl DelegateLock {
    /// Waits for the operations in progress, and refuses further ones.
    pub(crate) fn close(&self) {
        *self.closed.write() = true;
    }
}

/// Performs operations for the tracees of one run.
#[derive(Debug, Clone)]
pub struct Delegate(pub(crate) Arc<Monitor>);

impl Delegate {
    /// Whether thread `tid` belongs to the run.
    pub fn follows(&self, tid: i32) -> bool {
        self.0.alive.contains(tid)
    }

    /// Performs `operation` for thread `tid` with the transaction that a call of `tid` would belong to now. ECANCELED when
    /// the run has ended.
    pub fn perform<T>(
        &self,
        tid: i32,
        operation: impl FnOnce(Option<TxnId>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let closed = self.0.delegate_lock.closed.read();
        if *closed {
            return Err(Errno::ECANCELED);
        }
        operation(self.0.participants.current(tid))
    }

    /// The file in a mount that `fd`, a tracee's descriptor, stands for; `None` for a file of the host.
    pub fn mounted(&self, fd: &OwnedFd) -> Result<Option<Place>> {
        let shadow = self.0.shadows.of_descriptor(fd)?;
        Ok(shadow.map(|shadow| shadow.place().clone()))
    }
}
