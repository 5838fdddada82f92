//! Reports on transactions to users: the open ones, as JSON (`amino txn status` and `list`), and notes of those that the
//! monitor has aborted without a program's request.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use goanna_sys::procfs;
use goanna_vfs::{Errno, Result, TxnId};
use serde::Serialize;

use super::Participants;

/// Maximum number of notes of aborted transactions.
const NOTES_MAX: usize = 20;

/// An open transaction.
#[derive(Serialize)]
struct OpenTransaction {
    id: String,
    depth: usize,
    names: usize,
    inodes: usize,
    bytes: u64,
    shared_locks: usize,
    exclusive_locks: usize,
    conflicts: u64,
    /// The processes that participate.
    processes: Vec<i32>,
}

/// The transactions of a thread, outermost first.
#[derive(Serialize)]
struct Status {
    current: Vec<OpenTransaction>,
    suspended: Vec<String>,
}

/// An open transaction of a user.
#[derive(Serialize)]
struct Listed {
    name: Option<String>,
    parent: Option<String>,
    /// The time in seconds until the run aborts it.
    expires_s: Option<u64>,
    #[serde(flatten)]
    open: OpenTransaction,
}

/// The transactions of a user, outermost first.
#[derive(Serialize)]
struct List {
    transactions: Vec<Listed>,
}

impl Participants {
    fn open_transaction(&self, id: TxnId, depth: usize, tids: Vec<i32>) -> OpenTransaction {
        let process = |tid: i32| procfs::status(tid).map_or(tid, |status| status.tgid);
        let mut processes: Vec<i32> = tids.into_iter().map(process).collect();
        processes.sort_unstable();
        processes.dedup();
        let figures = self.transactions().and_then(|all| all.status(id));
        // The transaction has ended meanwhile.
        let figures = figures.unwrap_or_default();
        OpenTransaction {
            id: id.to_string(),
            depth,
            names: figures.names,
            inodes: figures.inodes,
            bytes: figures.bytes,
            shared_locks: figures.shared_locks,
            exclusive_locks: figures.exclusive_locks,
            conflicts: figures.conflicts,
            processes,
        }
    }

    /// The transactions of a thread, as JSON.
    pub fn describe(&self, tid: i32) -> Result<String, Errno> {
        let (chain, suspended) = {
            let registry = self.registry.lock();
            let participant = registry.threads.get(&tid).cloned().unwrap_or_default();
            let mut chain: Vec<_> = registry.chain(participant.current).collect();
            chain.reverse();
            let with_tids = |id| (id, registry.participants(id));
            let chain: Vec<_> = chain.into_iter().map(with_tids).collect();
            (chain, participant.suspended)
        };
        let chain = chain.into_iter().zip(1..);
        let open = |((id, tids), depth)| self.open_transaction(id, depth, tids);
        json(&Status {
            current: chain.map(open).collect(),
            suspended: suspended.iter().map(ToString::to_string).collect(),
        })
    }

    /// The open transactions of a user, of all users for root, as JSON.
    pub fn list(&self, uid: u32) -> Result<String, Errno> {
        let now = Instant::now();
        let mut listed: Vec<_> = {
            let registry = self.registry.lock();
            let open = registry.open.iter();
            let own = open.filter(|(_, open)| uid == 0 || open.uid == uid);
            own.map(|(id, open)| {
                let held = open.held.as_ref();
                let name = held.map(|held| held.name.to_string());
                let at = held.and_then(|held| held.expires).map(|(at, _)| at);
                let left = at.map(|at| at.saturating_duration_since(now).as_secs());
                let depth = registry.depth(Some(*id));
                let tids = registry.participants(*id);
                (depth, name, *id, open.parent, left, tids)
            })
            .collect()
        };
        listed.sort_unstable();
        let listed = listed.into_iter();
        let transactions = listed.map(|(depth, name, id, parent, expires_s, tids)| Listed {
            name,
            parent: parent.map(|parent| parent.to_string()),
            expires_s,
            open: self.open_transaction(id, depth, tids),
        });
        json(&List {
            transactions: transactions.collect(),
        })
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
            .filter_map(|id| transactions.take_bytes_refused(id))
        {
            if let Some(note) = &self.note {
                let limit = limit >> 20;
                note.line(&format!(
                    "a transaction has reached its limit of {limit} MiB of changes: calls that would exceed it \
                     fail with ENOSPC, although the disk is not full; use smaller transactions"
                ));
            }
        }
    }

    /// Notes that a transaction was aborted because it has no participants any more.
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

    /// Notes that transactions were aborted with the one around them.
    pub(super) fn note_ended_inside(&self, names: &[Arc<str>]) {
        for name in names {
            self.note_abort(&format!(
                "the transaction {name} was aborted with the one around it"
            ));
        }
    }

    pub(super) fn note_abort(&self, text: &str) {
        let Some(note) = &self.note else {
            return;
        };
        match self.noted.fetch_add(1, Relaxed) {
            before if before < NOTES_MAX => note.line(text),
            NOTES_MAX => note.line("further transactions were aborted"),
            _ => {}
        }
    }
}

/// EIO: never with the types here, whose keys are strings.
fn json(report: &impl Serialize) -> Result<String, Errno> {
    serde_json::to_string(report).map_err(|_| Errno::EIO)
}
