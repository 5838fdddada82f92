//! Named transactions: the run holds them, so that they outlive the process that has begun them, and tools that start a new shell
//! for each step can use them.
//!
//! A name belongs to a user of the run. A named transaction stays open until it is committed, aborted, or its time has passed; at
//! the end of the run it is aborted. A participant of a transaction that was aborted by name does not continue outside of it: it
//! keeps the identifier of the transaction as its current one, and the back end answers ECANCELED to each of its calls.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use goanna_vfs::{Errno, Result, TxnId};

use super::Participants;
use super::offsets::Offset;
use super::registry::{AfterAbort, Held, Open};

impl Participants {
    /// Begins a transaction that the run holds as `name`, nested in the current one of the first of `tids`, for `seconds` if that
    /// is not 0. Returns its depth. EEXIST, EMLINK.
    pub fn begin_named(
        &self,
        tids: &[i32],
        uid: u32,
        name: &str,
        seconds: u32,
        offsets: Vec<Offset>,
    ) -> Result<(TxnId, usize), Errno> {
        let expires = Instant::now().checked_add(Duration::from_secs(seconds.into()));
        let expires = expires.filter(|_| seconds > 0).map(|at| (at, seconds));
        let open = Open {
            parent: tids.first().and_then(|tid| self.own(*tid)),
            uid,
            offsets,
            deferred: None,
            held: Some(Held {
                name: Arc::from(name),
                expires,
                ending: false,
            }),
        };
        self.open(open, &[])
    }

    /// Joins the transaction of this user and name, also from one around it. ENOENT, EBUSY.
    pub fn attach_named(&self, tids: &[i32], uid: u32, name: &str) -> Result<(), Errno> {
        let mut registry = self.registry.lock();
        let id = registry.named(uid, name).ok_or(Errno::ENOENT)?;
        if registry.held_mut(id).is_some_and(|held| held.ending) {
            return Err(Errno::ENOENT);
        }
        let around: Vec<_> = registry.chain(Some(id)).collect();
        let elsewhere = |tid: &i32| {
            let current = registry
                .threads
                .get(tid)
                .and_then(|participant| participant.current);
            current.is_some_and(|current| !around.contains(&current))
        };
        if tids.iter().any(elsewhere) {
            return Err(Errno::EBUSY);
        }
        for tid in tids {
            registry.threads.entry(*tid).or_default().current = Some(id);
        }
        Ok(())
    }

    /// Commits the transaction of this user and name. ENOENT; EBUSY while it has participants, or a nested one is open;
    /// after any other failure it is aborted.
    pub fn commit_named(&self, uid: u32, name: &str) -> Result<(), Errno> {
        let (id, around) = {
            let mut registry = self.registry.lock();
            let id = registry.named(uid, name).ok_or(Errno::ENOENT)?;
            if !registry.participants(id).is_empty() {
                return Err(Errno::EBUSY);
            }
            if let Some(held) = registry.held_mut(id) {
                held.ending = true;
            }
            (id, registry.parent(id))
        };
        let outcome = self.commit_one(id, None);
        if let Some(held) = self.registry.lock().held_mut(id) {
            // Another transaction is open inside it.
            held.ending = false;
        }
        outcome?;
        self.commit_deferred(around);
        Ok(())
    }

    /// Aborts the transaction of this user and name. Afterwards, operations of its participants on the store fail. ENOENT.
    pub fn abort_named(&self, uid: u32, name: &str) -> Result<(), Errno> {
        let id = self.registry.lock().named(uid, name);
        self.abort_with(id.ok_or(Errno::ENOENT)?, AfterAbort::Fail);
        Ok(())
    }

    /// Aborts the transactions whose time has passed.
    pub fn expire(&self) {
        if !self.used.load(Relaxed) {
            return;
        }
        let now = Instant::now();
        let over: Vec<_> = {
            let registry = self.registry.lock();
            let held = |open: &Open| {
                let (at, seconds) = open.held.as_ref()?.expires?;
                (at <= now).then_some(seconds)
            };
            let open = registry.open.iter();
            let over = open.filter_map(|(id, open)| Some((*id, held(open)?)));
            over.filter_map(|(id, seconds)| Some((id, registry.name(id)?, seconds)))
                .collect()
        };
        for (id, name, seconds) in over {
            self.abort_with(id, AfterAbort::Fail);
            self.note_abort(&format!(
                "the transaction {name} was aborted, because its {seconds} s are over"
            ));
        }
    }

    /// Aborts all named transactions that are still open, at the end of the run.
    pub fn end_named(&self) {
        if !self.used.load(Relaxed) {
            return;
        }
        let mut left: Vec<_> = {
            let registry = self.registry.lock();
            let named = registry
                .open
                .keys()
                .filter_map(|id| Some((*id, registry.name(*id)?)));
            named
                .map(|(id, name)| (registry.depth(Some(id)), name, id))
                .collect()
        };
        left.sort_unstable_by(|a, b| b.cmp(a));
        for (_, name, id) in left {
            self.abort_one(id);
            self.note_abort(&format!(
                "the transaction {name} was still open at the end of the run, and was aborted"
            ));
        }
    }
}
