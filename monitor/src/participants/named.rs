//! Transactions with a name: the run holds them, so that they outlive the process that has begun them, and programs that start
//! a new shell for each step find them again.
//!
//! A name belongs to a user of the run. A named transaction stays open until it is committed, aborted, or its time has passed;
//! at the end of the run it is aborted. A participant of one that was aborted by name does not continue outside: it keeps the
//! identifier of the transaction as its current one, and the back end answers ECANCELED to each of its calls.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use goanna_vfs::{Errno, Result, TxnId};

use super::{AfterAbort, Offset, Open, Participants, Registry, describe_one};

/// How many notes of aborted transactions there are at most.
const NOTES_MAX: usize = 20;

/// What keeps a transaction open without participants.
#[derive(Debug)]
pub(super) struct Held {
    pub name: Arc<str>,
    /// When it is aborted, and how long it was to be held.
    expires: Option<(Instant, u32)>,
    /// It is being committed, so no thread can join it any more.
    ending: bool,
}

impl Registry {
    /// The open transaction of this user and name.
    pub(super) fn named(&self, uid: u32, name: &str) -> Option<TxnId> {
        let is_it = |open: &Open| {
            open.uid == uid && open.held.as_ref().is_some_and(|held| &*held.name == name)
        };
        let mut open = self.open.iter();
        open.find(|(_, open)| is_it(open)).map(|(id, _)| *id)
    }

    /// The names of transactions that are open inside `id`.
    pub(super) fn held_inside(&self, id: TxnId) -> Vec<Arc<str>> {
        let inside = self.open.iter().filter(|(inner, open)| {
            open.held.is_some() && **inner != id && self.chain(Some(**inner)).any(|at| at == id)
        });
        let held = inside.filter_map(|(_, open)| open.held.as_ref());
        held.map(|held| Arc::clone(&held.name)).collect()
    }

    fn held_mut(&mut self, id: TxnId) -> Option<&mut Held> {
        self.open.get_mut(&id)?.held.as_mut()
    }
}

impl Participants {
    /// Begins a transaction that the run holds as `name`, in the current one of the first of `tids`, for `seconds` if that
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
            let current = registry.threads.get(tid).and_then(|member| member.current);
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
            (id, registry.around(id))
        };
        let outcome = self.commit_one(id, None);
        if let Some(held) = self.registry.lock().held_mut(id) {
            // Another one is open inside it.
            held.ending = false;
        }
        outcome?;
        self.commit_deferred(around);
        Ok(())
    }

    /// Aborts the transaction of this user and name. What its participants do afterwards on the store fails. ENOENT.
    pub fn abort_named(&self, uid: u32, name: &str) -> Result<(), Errno> {
        let id = self.registry.lock().named(uid, name);
        self.abort_with(id.ok_or(Errno::ENOENT)?, AfterAbort::Fail);
        Ok(())
    }

    /// The threads leave a current transaction that was aborted by its name.
    pub(super) fn leave_ended(&self, tids: &[i32]) {
        let mut registry = self.registry.lock();
        let Registry { threads, open } = &mut *registry;
        for tid in tids {
            if let Some(member) = threads.get_mut(tid) {
                member.current = member.current.filter(|id| open.contains_key(id));
            }
        }
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

    /// The run has ended: aborts what is still open.
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

    /// Reports transactions whose calls have failed because of their size, each once.
    pub fn note_refused(&self) {
        let Ok(transactions) = self.transactions() else {
            return;
        };
        let mut outermost: Vec<_> = self.run.get().copied().into_iter().collect();
        if self.used.load(Relaxed) {
            let registry = self.registry.lock();
            let open = registry.open.iter();
            outermost.extend(
                open.filter(|(_, open)| open.parent.is_none())
                    .map(|(id, _)| *id),
            );
        }
        for limit in outermost
            .into_iter()
            .filter_map(|id| transactions.take_refused(id))
        {
            if let Some(note) = &self.note {
                let limit = limit >> 20;
                note.line(&format!(
                    "a transaction has reached its limit of {limit} MiB of changes: what would add to it fails \
                     (No space left on device), the disk is not full; smaller transactions have room"
                ));
            }
        }
    }

    /// A transaction was aborted because it has no participants any more.
    pub(super) fn note_deserted(&self, id: TxnId, last: &str) {
        let first = self.noted.load(Relaxed) == 0;
        let hint = match first {
            true => "; amino txn begin --name NAME begins one that no process has to stay for",
            false => "",
        };
        self.note_abort(&format!(
            "the transaction {id} was aborted, because the last process that took part in it, {last}{hint}"
        ));
    }

    /// Transactions were aborted with the one around them.
    pub(super) fn note_ended_inside(&self, names: &[Arc<str>]) {
        for name in names {
            self.note_abort(&format!(
                "the transaction {name} was aborted with the one around it"
            ));
        }
    }

    fn note_abort(&self, text: &str) {
        let Some(note) = &self.note else {
            return;
        };
        match self.noted.fetch_add(1, Relaxed) {
            before if before < NOTES_MAX => note.line(text),
            NOTES_MAX => note.line("further transactions were aborted"),
            _ => {}
        }
    }

    /// The open transactions of a user, of all users for root, as JSON, outermost first.
    pub fn list(&self, uid: u32) -> String {
        let now = Instant::now();
        let mut listed: Vec<_> = {
            let registry = self.registry.lock();
            let open = registry.open.iter();
            let own = open.filter(|(_, open)| uid == 0 || open.uid == uid);
            own.map(|(id, open)| {
                let held = open.held.as_ref();
                let name = held.map(|held| Arc::clone(&held.name));
                let at = held.and_then(|held| held.expires).map(|(at, _)| at);
                let left = at.map(|at| at.saturating_duration_since(now).as_secs());
                let depth = registry.depth(Some(*id));
                (
                    depth,
                    name,
                    *id,
                    open.parent,
                    left,
                    registry.participants(*id),
                )
            })
            .collect()
        };
        listed.sort_unstable();
        let mut text = String::from("{\"transactions\":[");
        for (index, (depth, name, id, parent, left, tids)) in listed.into_iter().enumerate() {
            text.push_str(if index > 0 { ",{" } else { "{" });
            let quoted = |text: String| format!("\"{text}\"");
            let or_null = |text: Option<String>| text.unwrap_or_else(|| "null".to_owned());
            // A name has no character that JSON escapes.
            let name = or_null(name.map(|name| quoted(name.to_string())));
            let parent = or_null(parent.map(|parent| quoted(parent.to_string())));
            let left = or_null(left.map(|seconds| seconds.to_string()));
            let _ = write!(
                text,
                "\"name\":{name},\"parent\":{parent},\"expires_s\":{left},"
            );
            describe_one(&mut text, id, depth, &self.figures(id), tids);
            text.push('}');
        }
        text.push_str("]}");
        text
    }
}

impl Registry {
    fn name(&self, id: TxnId) -> Option<Arc<str>> {
        let held = self.open.get(&id)?.held.as_ref();
        held.map(|held| Arc::clone(&held.name))
    }
}
