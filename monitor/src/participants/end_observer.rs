//! The visibility of changes in transactions, and reports of their ends, for a module that follows the changes of files
//! ([`crate::watches`]).

use std::sync::Arc;

use goanna_vfs::TxnId;

use super::Participants;

/// A transaction that is about to leave the registry.
pub struct Ended<'a> {
    /// The transaction.
    pub id: TxnId,
    /// The transaction around it; `None` for an outermost one.
    pub around: Option<TxnId>,
    /// Whether it was committed: its changes now belong to the transaction around it, or are visible to all. If not, they are
    /// undone.
    pub is_committed: bool,
    /// Whether a transaction is the ended one or inside it.
    pub is_inside: &'a dyn Fn(Option<TxnId>) -> bool,
    /// Whether the participants of a transaction, or for `None` threads without one, see the changes after a commit.
    pub is_around: &'a dyn Fn(Option<TxnId>) -> bool,
}

/// Receives the ends of transactions.
pub trait Ends: Send + Sync {
    /// Runs the back end's part of an end.
    fn during(&self, end: &mut dyn FnMut());

    /// A transaction has ended.
    fn ended(&self, ended: &Ended<'_>);
}

impl Participants {
    /// Reports the ends of transactions to `observer` from now on.
    pub fn observe(&self, observer: Arc<dyn Ends>) {
        let _ = self.observer.set(observer);
    }

    /// Whether `id` is the transaction of the whole run.
    pub fn is_run_transaction(&self, id: TxnId) -> bool {
        self.run.get() == Some(&id)
    }

    /// Whether the participants of the transaction `view`, or for `None` threads without one, see the changes of `change`
    /// before it ends.
    pub fn shows(&self, view: Option<TxnId>, change: Option<TxnId>) -> bool {
        let Some(change) = change else {
            return true;
        };
        view == Some(change)
            || view.is_some() && self.is_run_transaction(change)
            || self.registry.lock().chain(view).any(|id| id == change)
    }

    /// Calls `end`, which ends a transaction, by way of the observer.
    pub(super) fn during<R>(&self, end: impl FnOnce() -> R) -> Option<R> {
        let Some(observer) = self.observer.get() else {
            return Some(end());
        };
        let mut end = Some(end);
        let mut outcome = None;
        observer.during(&mut || outcome = end.take().map(|end| end()));
        outcome
    }

    /// Reports the end of a transaction that is still in the registry to the observer.
    pub(super) fn notify_ended(&self, id: TxnId, is_committed: bool) {
        let Some(observer) = self.observer.get() else {
            return;
        };
        let around = self
            .registry
            .lock()
            .parent(id)
            .or_else(|| self.run.get().copied());
        observer.ended(&Ended {
            id,
            around,
            is_committed,
            is_inside: &|view| view.is_some() && self.shows(view, Some(id)),
            is_around: &|view| self.shows(view, around),
        });
    }
}
