//! The wait for a lock: its limit, and its errnos, ETIMEDOUT after the limit and EDEADLK for the operation that a deadlock ends.

use std::sync::Arc;
use std::time::Duration;

use amino_txn::locks::Conflict;
use goanna_vfs::{Blocker, Done, Errno, Result, TxnId};

use super::Transactions;

/// Maximum time that a call waits for locks, in all its attempts.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// The wait for the lock that has blocked an operation.
pub(super) struct LockWait {
    pub transactions: Arc<Transactions>,
    pub conflict: Conflict,
    /// The operation's transaction.
    pub txn: Option<TxnId>,
}

impl Blocker for LockWait {
    fn wait(&self, waited: Duration, slice: Duration) -> Result<bool, Errno> {
        let all = &self.transactions;
        if self.txn.is_some_and(|id| all.find(id).is_none()) {
            // The transaction has ended meanwhile; the next attempt of the operation will find that out.
            return Ok(true);
        }
        let outcome = match WAIT_LIMIT.checked_sub(waited) {
            None | Some(Duration::ZERO) => Err(Errno::ETIMEDOUT),
            Some(left) => {
                let free = all.locks.wait(&self.conflict, slice.min(left));
                free.map_err(|_| Errno::EDEADLK)
            }
        };
        if outcome.is_err() {
            all.count_conflict(self.txn);
        }
        outcome
    }

    fn notify(&self, done: Done) {
        let (all, txn) = (Arc::clone(&self.transactions), self.txn);
        if txn.is_some_and(|id| all.find(id).is_none()) {
            return done(Ok(true));
        }
        self.transactions
            .locks
            .notify(&self.conflict, move |outcome| {
                if outcome.is_err() {
                    all.count_conflict(txn);
                }
                done(outcome.map_err(|_| Errno::EDEADLK));
            });
    }

    fn limit(&self) -> Duration {
        WAIT_LIMIT
    }

    fn cancel(&self) {
        self.transactions.locks.cancel(&self.conflict);
    }
}
