//! Histories: the events of a run, and the search for a serial order that explains them.

use std::collections::HashSet;
use std::fmt;

use goanna_vfs::Errno;

use super::model::{Model, Window, apply};
use super::op::{Op, Outcome, told};
use super::plan::Layout;

/// An event of a history. Times are counted, not measured: each number occurs once in a history.
#[derive(Debug, Clone)]
pub struct Event {
    /// The party that did it.
    pub party: usize,
    /// The transaction to which the event belongs; for a begin or an end, the enclosing transaction.
    pub txn: Option<usize>,
    /// The kind of the event.
    pub what: What,
    /// When it began; for an event that waited, the begin of the last attempt.
    pub from: u64,
    /// When it ended.
    pub to: u64,
}

/// The kind of an [`Event`]. Transactions have numbers in the order in which they began.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "they say it")]
pub enum What {
    Begin(usize),
    End {
        txn: usize,
        committed: bool,
    },
    Op(Op, Outcome),
    /// An operation is blocked by a lock and must be retried.
    Waits(Op),
    /// An operation was given up, without effect, because it would have waited forever.
    Refused(Op, Errno),
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub struct History {
    /// The state before the history.
    pub layout: &'static Layout,
    /// The events, in the order in which they ended.
    pub events: Vec<Event>,
}

/// An operation, or a transaction with its content.
#[derive(Debug, Clone)]
struct Unit {
    from: u64,
    to: u64,
    /// When its changes became those of the enclosing transaction.
    took_effect: Window,
    what: Inside,
}

#[derive(Debug, Clone)]
enum Inside {
    Op(Op, Outcome),
    Txn { units: Vec<Unit>, committed: bool },
}

impl History {
    /// Whether there is a serial order in which each operation returns the recorded outcome; see the documentation of this module's
    /// parent.
    pub fn is_serialisable(&self) -> bool {
        let mut roots = self.units(None);
        let mut ghosts = Vec::new();
        for root in &mut roots {
            take_aborted(root, &mut ghosts);
        }
        roots.extend(ghosts);
        roots.sort_by_key(|unit| unit.to);
        assert!(roots.len() <= 64, "a bit for each");
        let model = Model::new(self.layout);
        let mut dead = HashSet::new();
        linearise(&roots, 0, &model, &mut dead, &mut |_| true)
    }

    /// The units directly within a transaction, or outside of all, in the order in which they ended.
    fn units(&self, within: Option<usize>) -> Vec<Unit> {
        let mut units = Vec::new();
        for event in self.events.iter().filter(|event| event.txn == within) {
            match &event.what {
                What::Op(op, outcome) => units.push(Unit {
                    from: event.from,
                    to: event.to,
                    took_effect: (event.from, event.to),
                    what: Inside::Op(op.clone(), outcome.clone()),
                }),
                What::End { txn, committed } => units.push(Unit {
                    from: self.begin_of(*txn),
                    to: event.to,
                    took_effect: (event.from, event.to),
                    what: Inside::Txn {
                        units: self.units(Some(*txn)),
                        committed: *committed,
                    },
                }),
                What::Begin(_) | What::Waits(_) | What::Refused(..) => {}
            }
        }
        units
    }

    fn begin_of(&self, txn: usize) -> u64 {
        let begins = |event: &&Event| matches!(event.what, What::Begin(begun) if begun == txn);
        let begin = self.events.iter().find(begins);
        begin.expect("what has ended has begun").from
    }

    /// How often a party has met a lock.
    pub fn waits_of(&self, party: usize) -> usize {
        let waits = |event: &&Event| event.party == party && matches!(event.what, What::Waits(_));
        self.events.iter().filter(waits).count()
    }

    /// The outcomes of a party's operations, without those that were refused.
    pub fn outcomes_of(&self, party: usize) -> Vec<&Outcome> {
        let of_party = self.events.iter().filter(|event| event.party == party);
        let outcomes = of_party.filter_map(|event| match &event.what {
            What::Op(_, outcome) => Some(outcome),
            _ => None,
        });
        outcomes.collect()
    }

    /// How many outermost transactions were committed.
    pub fn committed(&self) -> usize {
        let committed = |event: &&Event| {
            event.txn.is_none()
                && matches!(
                    event.what,
                    What::End {
                        committed: true,
                        ..
                    }
                )
        };
        self.events.iter().filter(committed).count()
    }
}

/// Moves aborted transactions out of the enclosing transaction; each becomes a transaction of its own, with the units before it.
fn take_aborted(unit: &mut Unit, ghosts: &mut Vec<Unit>) {
    let from = unit.from;
    let Inside::Txn { units, .. } = &mut unit.what else {
        return;
    };
    let mut kept: Vec<Unit> = Vec::new();
    for mut inner in std::mem::take(units) {
        // Aborted transactions further inside get the events before this point as their beginning.
        let mut deeper = Vec::new();
        take_aborted(&mut inner, &mut deeper);
        let aborted = matches!(
            inner.what,
            Inside::Txn {
                committed: false,
                ..
            }
        );
        let at = if aborted { Some(inner.clone()) } else { None };
        for ghost in deeper.into_iter().chain(at) {
            let to = ghost.to;
            let before = kept.iter().filter(|unit| unit.to < to).cloned();
            let units = before.chain([ghost]).collect();
            let committed = false;
            let what = Inside::Txn { units, committed };
            let took_effect = (from, to);
            ghosts.push(Unit {
                from,
                to,
                took_effect,
                what,
            });
        }
        if !aborted {
            kept.push(inner);
        }
    }
    *units = kept;
}

/// Whether `found` accepts a state that `units` reach from `state` in one of their orders; the units in `done` came before. `dead` has the
/// sets of units from which no such state was found.
fn linearise(
    units: &[Unit],
    done: u64,
    state: &Model,
    dead: &mut HashSet<(u64, Model)>,
    found: &mut dyn FnMut(&Model) -> bool,
) -> bool {
    if done.count_ones() as usize == units.len() {
        return found(state);
    }
    if !dead.is_empty() && dead.contains(&(done, state.clone())) {
        return false;
    }
    let open = |at: &usize| done & (1 << at) == 0;
    let first_end = (0..units.len()).filter(open).map(|at| units[at].to).min();
    for at in (0..units.len()).filter(open) {
        let unit = &units[at];
        if first_end.is_some_and(|end| end < unit.from) {
            continue;
        }
        let done = done | 1 << at;
        let mut go_on = |mut after: Model| {
            after.note_links(state, unit.took_effect) && linearise(units, done, &after, dead, found)
        };
        let went_on = match &unit.what {
            Inside::Op(op, outcome) => {
                apply(state, op, outcome, (unit.from, unit.to)).is_some_and(go_on)
            }
            Inside::Txn {
                units: inner,
                committed,
            } => {
                let begun = state.begun();
                linearise(inner, 0, &begun, &mut HashSet::new(), &mut |after| {
                    go_on(after.ended(state, *committed))
                })
            }
        };
        if went_on {
            return true;
        }
    }
    dead.insert((done, state.clone()));
    false
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "before:")?;
        for op in self.layout.make {
            writeln!(f, "    {op}")?;
        }
        for (number, path) in self.layout.held.iter().enumerate() {
            writeln!(f, "    @{number} is {path}")?;
        }
        writeln!(
            f,
            "then, in the order of their ends (from, to, party, transaction):"
        )?;
        for event in &self.events {
            let Event {
                from, to, party, ..
            } = event;
            let txn = event.txn.map_or("-".to_owned(), |txn| format!("T{txn}"));
            write!(f, "    {from:3} {to:3}  P{party} {txn:3} ")?;
            match &event.what {
                What::Begin(txn) => writeln!(f, "begin T{txn}")?,
                What::End { txn, committed } => {
                    let how = if *committed { "commit" } else { "abort" };
                    writeln!(f, "{how} T{txn}")?;
                }
                What::Op(op, outcome) => writeln!(f, "{op} -> {}", told(outcome))?,
                What::Waits(op) => writeln!(f, "{op} -> waits")?,
                What::Refused(op, errno) => writeln!(f, "{op} -> refused: {errno:?}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolation::op::Op::{Append, Chmod, List, Mkdir, Read, Rmdir, Write};
    use crate::isolation::op::{Kind, Outcome, Seen, Stat};

    const LAYOUT: Layout = Layout {
        make: &[Op::Create("x", b'0'), Op::Create("y", b'0'), Op::Mkdir("d")],
        held: &[],
    };

    fn content(content: &str) -> Outcome {
        Ok(Seen::Content(content.into()))
    }

    fn begin(txn: usize, within: Option<usize>) -> (Option<usize>, What) {
        (within, What::Begin(txn))
    }

    fn end(txn: usize, within: Option<usize>, committed: bool) -> (Option<usize>, What) {
        (within, What::End { txn, committed })
    }

    fn read(txn: Option<usize>, path: &'static str, seen: &str) -> (Option<usize>, What) {
        (txn, What::Op(Read(path), content(seen)))
    }

    fn done(txn: Option<usize>, op: Op) -> (Option<usize>, What) {
        (txn, What::Op(op, Ok(Seen::Done)))
    }

    fn stat(txn: Option<usize>, perm: u32, nlink: u32) -> (Option<usize>, What) {
        let seen = Seen::Stat(Stat {
            kind: Kind::Dir,
            perm,
            nlink,
            size: 0,
        });
        (txn, What::Op(Op::Stat("d"), Ok(seen)))
    }

    fn links(txn: Option<usize>, nlink: u32) -> (Option<usize>, What) {
        stat(txn, 0o755, nlink)
    }

    /// Whether these, one after the other, have a serial order.
    fn is_serialisable(what: Vec<(Option<usize>, What)>) -> bool {
        let events = what.into_iter().enumerate().map(|(at, (txn, what))| Event {
            party: 0,
            txn,
            what,
            from: 2 * at as u64,
            to: 2 * at as u64 + 1,
        });
        let history = History {
            layout: &LAYOUT,
            events: events.collect(),
        };
        history.is_serialisable()
    }

    #[test]
    fn a_lost_update_has_no_serial_order() {
        let both = |last: &str| {
            is_serialisable(vec![
                begin(0, None),
                begin(1, None),
                read(Some(0), "x", "0"),
                read(Some(1), "x", "0"),
                done(Some(0), Write("x", 0, b'a')),
                done(Some(1), Write("x", 0, b'b')),
                end(0, None, true),
                end(1, None, true),
                read(None, "x", last),
            ])
        };
        assert!(!both("a"));
        assert!(!both("b"));
    }

    #[test]
    fn every_order_is_looked_at() {
        // The one that ended last comes first.
        let steps = |seen: &str| {
            is_serialisable(vec![
                begin(0, None),
                begin(1, None),
                done(Some(0), Append("x", b'a')),
                done(Some(1), Append("y", b'b')),
                read(Some(0), "y", seen),
                end(0, None, true),
                end(1, None, true),
                read(None, "x", "0a"),
                read(None, "y", "0b"),
            ])
        };
        assert!(steps("0"));
        assert!(steps("0b"));
        assert!(!steps("b"));
    }

    #[test]
    fn what_has_ended_comes_before_what_begins() {
        let steps = |seen: &str| {
            is_serialisable(vec![
                begin(0, None),
                done(Some(0), Append("x", b'a')),
                end(0, None, true),
                begin(1, None),
                read(Some(1), "x", seen),
                end(1, None, true),
            ])
        };
        assert!(steps("0a"));
        assert!(!steps("0"));
    }

    #[test]
    fn aborted_transactions_see_what_makes_sense_and_leave_nothing() {
        let steps = |second: &str, last: &str| {
            is_serialisable(vec![
                begin(0, None),
                read(Some(0), "x", "0"),
                done(None, Append("x", b'b')),
                done(None, Append("y", b'b')),
                read(Some(0), "y", second),
                done(Some(0), Append("y", b'a')),
                end(0, None, false),
                read(None, "y", last),
            ])
        };
        assert!(steps("0", "0b"));
        assert!(!steps("0b", "0b"), "skew");
        assert!(!steps("0", "0ba"), "its write is there");
    }

    #[test]
    fn an_aborted_nested_transaction_has_a_place_of_its_own() {
        let steps = |own: &str, inner: &str, outer: &str| {
            is_serialisable(vec![
                begin(0, None),
                done(Some(0), Append("y", b'a')),
                begin(1, Some(0)),
                read(Some(1), "x", "0"),
                read(Some(1), "y", own),
                read(Some(1), "x", inner),
                end(1, Some(0), false),
                done(None, Append("x", b'b')),
                read(Some(0), "x", outer),
                end(0, None, true),
                read(None, "y", "0a"),
            ])
        };
        assert!(steps("0a", "0", "0b"));
        assert!(steps("0a", "0", "0"), "before the single operation");
        assert!(!steps("0", "0", "0b"), "it has not seen what is around it");
        assert!(!steps("0a", "0b", "0b"), "it has seen both");
    }

    #[test]
    fn a_committed_nested_transaction_has_no_place_of_its_own() {
        assert!(!is_serialisable(vec![
            begin(0, None),
            begin(1, Some(0)),
            read(Some(1), "x", "0"),
            end(1, Some(0), true),
            done(None, Append("x", b'b')),
            read(Some(0), "x", "0b"),
            end(0, None, true),
        ]));
    }

    #[test]
    fn transactions_inside_are_not_mixed() {
        let steps = |second: &str| {
            is_serialisable(vec![
                begin(0, None),
                begin(1, Some(0)),
                begin(2, Some(0)),
                read(Some(1), "x", "0"),
                done(Some(2), Append("x", b'2')),
                done(Some(2), Append("y", b'2')),
                end(2, Some(0), true),
                read(Some(1), "y", second),
                end(1, Some(0), true),
                end(0, None, true),
            ])
        };
        assert!(steps("0"));
        assert!(!steps("02"));
    }

    #[test]
    fn links_of_a_directory_are_those_committed_at_that_moment() {
        let steps = |seen: [u32; 4]| {
            is_serialisable(vec![
                begin(0, None),
                links(Some(0), seen[0]),
                begin(1, None),
                done(Some(1), Mkdir("d/one")),
                links(Some(0), seen[1]),
                end(1, None, true),
                done(None, Mkdir("d/two")),
                links(Some(0), seen[2]),
                done(None, Rmdir("d/one")),
                done(Some(0), Mkdir("d/own")),
                links(Some(0), seen[3]),
                end(0, None, true),
                links(None, 4),
            ])
        };
        assert!(steps([2, 2, 4, 4]));
        assert!(!steps([2, 3, 4, 4]), "not committed");
        assert!(!steps([2, 2, 3, 4]), "no longer so");
        assert!(!steps([2, 2, 2, 4]), "as it was seen before");
        assert!(!steps([4, 2, 4, 4]), "not made yet");
        assert!(!steps([2, 2, 4, 3]), "without its own");
        assert!(!steps([2, 2, 4, 5]), "with what is removed");
    }

    #[test]
    fn links_of_what_is_aborted_are_not_seen() {
        let steps = |seen: u32| {
            is_serialisable(vec![
                begin(0, None),
                begin(1, None),
                done(Some(1), Mkdir("d/one")),
                links(Some(0), seen),
                end(1, None, false),
                end(0, None, true),
            ])
        };
        assert!(steps(2));
        assert!(!steps(3));
    }

    #[test]
    fn links_in_a_nested_transaction_are_those_around_it_at_that_moment() {
        let steps = |seen: [u32; 3]| {
            is_serialisable(vec![
                begin(0, None),
                done(Some(0), Mkdir("d/outer")),
                begin(1, Some(0)),
                begin(2, Some(0)),
                links(Some(1), seen[0]),
                done(Some(2), Mkdir("d/inner")),
                links(Some(1), seen[1]),
                end(2, Some(0), true),
                done(None, Mkdir("d/alone")),
                links(Some(1), seen[2]),
                end(1, Some(0), true),
                end(0, None, true),
            ])
        };
        assert!(steps([3, 3, 5]));
        assert!(!steps([2, 3, 5]));
        assert!(!steps([3, 4, 5]));
        assert!(!steps([3, 3, 3]));
        assert!(!steps([3, 3, 4]));
    }

    #[test]
    fn all_else_of_a_directory_is_in_order() {
        let mode = |second| {
            is_serialisable(vec![
                begin(0, None),
                stat(Some(0), 0o755, 2),
                done(None, Chmod("d", 0o700)),
                stat(Some(0), second, 2),
                end(0, None, true),
            ])
        };
        assert!(mode(0o755));
        assert!(!mode(0o700));
        let list = |names: Vec<(String, Kind)>| {
            is_serialisable(vec![
                begin(0, None),
                (Some(0), What::Op(List("d"), Ok(Seen::Names(Vec::new())))),
                done(None, Mkdir("d/one")),
                (Some(0), What::Op(List("d"), Ok(Seen::Names(names)))),
                end(0, None, true),
            ])
        };
        assert!(list(Vec::new()));
        assert!(!list(vec![("one".into(), Kind::Dir)]));
        let gone = |nlink| {
            is_serialisable(vec![
                begin(0, None),
                links(Some(0), 2),
                done(None, Rmdir("d")),
                links(Some(0), nlink),
                end(0, None, true),
            ])
        };
        assert!(gone(2), "in an order in which it is removed afterwards");
        assert!(!gone(0));
    }
}
