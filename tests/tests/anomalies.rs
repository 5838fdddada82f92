//! The anomalies of isolation: for each, a schedule that would show it, the required result, and the transactions that wait.
//!
//! `cargo xtask isolation-mutants` shows that each of these tests fails when the locks are broken in a way that lets its anomaly happen.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use amino_fs::{AminoFs, EngineKind, Options};
use goanna_tests::isolation::Item::{Abort, Begin, Commit, Fork};
use goanna_tests::isolation::Op::{
    Append, Chmod, Create, Link, List, Look, Mkdir, Read, Rename, Rmdir, Stat, Unlink, Where, Write,
};
use goanna_tests::isolation::{History, Item, Layout, Op, Plan, Stage, told};

/// Two files, and two directories that have each a file and a directory.
const LAYOUT: Layout = Layout {
    make: &[
        Create("x", b'0'),
        Create("y", b'0'),
        Mkdir("d"),
        Create("d/f", b'f'),
        Mkdir("d/in"),
        Mkdir("e"),
        Mkdir("e/in"),
    ],
    held: &["x", "d", "d/in", "e/in", "y"],
};

// The parties.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

fn op(op: Op) -> Item {
    Item::Op(op)
}

/// Plays the steps, in the given order until one waits. What comes of them must have a serial order, and the store
/// be sound.
fn play(steps: &[(usize, Item)]) -> History {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        engine: Some(EngineKind::Memory),
        create: true,
        ..Options::default()
    };
    let fs = AminoFs::open(dir.path(), options).unwrap();
    let history = Stage::new(&fs).play(&Plan::of(&LAYOUT, steps));
    assert!(history.is_serialisable(), "no serial order\n{history}");
    fs.close().unwrap();
    drop(fs);
    let report = amino_fs::fsck::fsck(dir.path(), &mut |_| {}).unwrap();
    let findings: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "fsck: {findings:#?}\n{history}");
    history
}

/// What a party's operations answered, as people read it.
#[track_caller]
fn assert_answers(history: &History, party: usize, expected: &[&str]) {
    let answers: Vec<_> = history.outcomes_of(party).into_iter().map(told).collect();
    assert_eq!(answers, expected, "party {party}\n{history}");
}

#[track_caller]
fn assert_waits(history: &History, parties: &[usize]) {
    let all = [A, B, C].into_iter();
    let waiting: Vec<_> = all.filter(|party| history.waits_of(*party) > 0).collect();
    assert_eq!(waiting, parties, "parties that wait\n{history}");
}

/// What others have written is written over before it is committed, so that the files end up with one of each. They are open
/// before, so that no lock is asked for but to write.
#[test]
fn dirty_write() {
    let history = play(&[
        (A, Begin),
        (B, Begin),
        (A, op(Write("@0", 0, b'a'))),
        (B, op(Write("@0", 0, b'b'))),
        (B, op(Write("@4", 0, b'b'))),
        (B, Commit),
        (A, op(Write("@4", 0, b'a'))),
        (A, Commit),
        (C, op(Read("x"))),
        (C, op(Read("y"))),
    ]);
    assert_waits(&history, &[B]);
}

/// What others have written is read before it is committed; the other way round it would not be there.
#[test]
fn dirty_read() {
    let history = play(&[
        (A, Begin),
        (B, Begin),
        (A, op(Write("x", 0, b'a'))),
        (B, op(Read("x"))),
        (B, op(Read("y"))),
        (B, Commit),
        (A, op(Write("y", 0, b'a'))),
        (A, Commit),
    ]);
    assert_waits(&history, &[B]);
    assert_answers(&history, B, &["\"a\"", "\"a\""]);
}

/// A read returns data of a transaction that is aborted later.
#[test]
fn aborted_read() {
    let history = play(&[
        (A, Begin),
        (B, Begin),
        (A, op(Write("x", 0, b'a'))),
        (B, op(Read("x"))),
        (A, Abort),
        (B, op(Create("copied", b'c'))),
        (B, Commit),
    ]);
    assert_waits(&history, &[B]);
    assert_answers(&history, B, &["\"0\"", "done"]);
}

/// A read returns an intermediate state of another transaction.
#[test]
fn intermediate_read() {
    let history = play(&[
        (A, Begin),
        (B, Begin),
        (A, op(Write("x", 0, b'1'))),
        (B, op(Read("x"))),
        (A, op(Write("x", 0, b'2'))),
        (A, Commit),
        (B, Commit),
    ]);
    assert_waits(&history, &[B]);
    assert_answers(&history, B, &["\"2\""]);
}

/// Two transactions read a file, and both write a value that depends on what they have read: one update is lost.
#[test]
fn lost_update() {
    let history = play(&[
        (A, Begin),
        (B, Begin),
        (A, op(Read("x"))),
        (B, op(Read("x"))),
        (A, op(Append("x", b'a'))),
        (B, op(Append("x", b'b'))),
        (A, Commit),
        (B, Commit),
        (C, op(Read("x"))),
    ]);
    // They wait for each other, and one of them ends without a trace.
    assert_waits(&history, &[A, B]);
    assert_eq!(history.committed(), 1, "{history}");
}

/// As [`lost_update`], with a writer outside of all transactions.
#[test]
fn lost_update_of_a_single_operation() {
    let history = play(&[
        (A, Begin),
        (A, op(Read("x"))),
        (B, op(Append("x", b'b'))),
        (A, op(Append("x", b'a'))),
        (A, Commit),
        (B, op(Read("x"))),
    ]);
    assert_waits(&history, &[B]);
    assert_answers(&history, B, &["done", "\"0ab\""]);
}

/// Two files are read, and another transaction changes both in between.
#[test]
fn read_skew() {
    let history = play(&[
        (A, Begin),
        (B, Begin),
        (A, op(Read("x"))),
        (B, op(Write("x", 0, b'b'))),
        (B, op(Write("y", 0, b'b'))),
        (B, Commit),
        (A, op(Read("y"))),
        (A, Commit),
    ]);
    assert_waits(&history, &[B]);
    assert_answers(&history, A, &["\"0\"", "\"0\""]);
}

/// A file is read twice, with different results.
#[test]
fn unrepeatable_read() {
    let history = play(&[
        (A, Begin),
        (A, op(Read("x"))),
        (B, op(Write("x", 0, b'b'))),
        (A, op(Read("x"))),
        (A, Commit),
    ]);
    assert_waits(&history, &[B]);
    assert_answers(&history, A, &["\"0\"", "\"0\""]);
}

/// Each transaction reads the file that the other one writes.
#[test]
fn write_skew() {
    let history = play(&[
        (A, Begin),
        (B, Begin),
        (A, op(Read("x"))),
        (B, op(Read("y"))),
        (A, op(Write("y", 0, b'a'))),
        (B, op(Write("x", 0, b'b'))),
        (A, Commit),
        (B, Commit),
    ]);
    assert_waits(&history, &[A, B]);
    assert_eq!(history.committed(), 1, "{history}");
}

/// A directory is listed twice, and the second listing has one more entry.
#[test]
fn phantom_by_listing() {
    let history = play(&[
        (A, Begin),
        (B, Begin),
        (A, op(List("d"))),
        (B, op(Create("d/new", b'n'))),
        (B, Commit),
        (A, op(List("d"))),
        (A, Commit),
    ]);
    assert_waits(&history, &[B]);
    assert_answers(&history, A, &["[f in/]", "[f in/]"]);
}

/// Two transactions list a directory, and each makes an entry that is missing in both listings.
#[test]
fn phantom_by_listing_with_two_writers() {
    let history = play(&[
        (A, Begin),
        (B, Begin),
        (A, op(List("d"))),
        (B, op(List("d"))),
        (A, op(Create("d/one", b'1'))),
        (B, op(Create("d/two", b'2'))),
        (A, Commit),
        (B, Commit),
    ]);
    assert_waits(&history, &[A, B]);
    assert_eq!(history.committed(), 1, "{history}");
}

/// A look-up finds a name that an earlier look-up in the same transaction did not find.
#[test]
fn phantom_by_absent_name() {
    let history = play(&[
        (A, Begin),
        (A, op(Look("new"))),
        (B, op(Create("new", b'n'))),
        (A, op(Look("new"))),
        (A, Commit),
    ]);
    assert_waits(&history, &[B]);
    assert_answers(&history, A, &["ENOENT", "ENOENT"]);
}

/// A look-up misses a name that an earlier one has found, or finds another file.
#[test]
fn phantom_by_removed_name() {
    let history = play(&[
        (A, Begin),
        (A, op(Read("d/f"))),
        (B, op(Rename("x", "d/f"))),
        (C, op(Unlink("d/f"))),
        (A, op(Read("d/f"))),
        (A, Commit),
    ]);
    assert_waits(&history, &[B, C]);
    assert_answers(&history, A, &["\"f\"", "\"f\""]);
}

/// A transaction that has written over half of another one is seen, and then, in the other half, no longer.
#[test]
fn observed_transaction_vanishes() {
    let history = play(&[
        (A, Begin),
        (B, Begin),
        (C, Begin),
        (A, op(Write("@0", 0, b'a'))),
        (A, op(Write("@4", 0, b'a'))),
        (B, op(Write("@0", 0, b'b'))),
        (A, Commit),
        (C, op(Read("@0"))),
        (C, op(Read("@4"))),
        (C, Commit),
        (B, op(Write("@4", 0, b'b'))),
        (B, Commit),
    ]);
    assert_waits(&history, &[B]);
    assert_answers(&history, C, &["\"a\"", "\"a\""]);
}

/// Size and links do not belong together: a file grows, and gets a name more, between two looks.
#[test]
fn stat_skew() {
    let history = play(&[
        (A, Begin),
        (B, Begin),
        (A, op(Stat("x"))),
        (B, op(Append("x", b'b'))),
        (B, op(Link("x", "d/x"))),
        (B, Commit),
        (A, op(Stat("x"))),
        (A, Commit),
    ]);
    assert_waits(&history, &[B]);
    let file = "File 644 x1 1 bytes";
    assert_answers(&history, A, &[file, file]);
}

/// As [`stat_skew`], for what is locked of a directory: its mode.
#[test]
fn mode_skew_of_a_directory() {
    let history = play(&[
        (A, Begin),
        (A, op(Stat("@1"))),
        (B, op(Chmod("@1", 0o700))),
        (A, op(Stat("@1"))),
        (A, Commit),
    ]);
    assert_waits(&history, &[B]);
    let dir = "Dir 755 x3 0 bytes";
    assert_answers(&history, A, &[dir, dir]);
}

/// A directory exists at the first look-up, and not at the second one.
#[test]
fn a_directory_that_was_looked_at_stays() {
    let history = play(&[
        (A, Begin),
        (A, op(Stat("@2"))),
        (B, op(Rmdir("@1/in"))),
        (A, op(Stat("@2"))),
        (A, Commit),
    ]);
    assert_waits(&history, &[B]);
    let dir = "Dir 755 x2 0 bytes";
    assert_answers(&history, A, &[dir, dir]);
}

/// What is not locked of a directory, its links: the committed ones, with the transaction's own. Looking at them blocks nobody.
#[test]
fn links_of_a_directory_are_those_committed_at_that_moment() {
    let history = play(&[
        (A, Begin),
        (B, Begin),
        (A, op(Stat("@1"))),
        (B, op(Mkdir("@1/more"))),
        (A, op(Stat("@1"))),
        (B, Commit),
        (A, op(Stat("@1"))),
        (A, op(Mkdir("@1/own"))),
        (A, op(Stat("@1"))),
        (C, op(Stat("@1"))),
        (A, Commit),
        (C, op(Stat("@1"))),
    ]);
    assert_waits(&history, &[]);
    let links = |number| format!("Dir 755 x{number} 0 bytes");
    let seen = [links(3), links(3), links(4), "done".to_owned(), links(5)];
    assert_answers(&history, A, &seen.each_ref().map(|seen| &**seen));
    assert_answers(&history, C, &[&*links(4), &*links(5)]);
}

/// As [`links_of_a_directory_are_those_committed_at_that_moment`], where the transaction has changed the directory itself.
#[test]
fn links_of_a_changed_directory_are_those_committed_at_that_moment() {
    let history = play(&[
        (A, Begin),
        (A, op(Chmod("@1", 0o700))),
        (B, op(Mkdir("@1/more"))),
        (A, op(Stat("@1"))),
        (A, Commit),
    ]);
    assert_waits(&history, &[]);
    assert_answers(&history, A, &["done", "Dir 700 x4 0 bytes"]);
}

/// An empty directory is removed while another transaction creates a file in it.
#[test]
fn a_removed_directory_gets_no_entries() {
    let history = play(&[
        (A, Begin),
        (B, Begin),
        (A, op(Rmdir("d/in"))),
        (B, op(Create("@2/new", b'n'))),
        (A, Commit),
        (B, Commit),
    ]);
    assert_waits(&history, &[B]);
    assert_answers(&history, B, &["ENOENT"]);
}

/// As [`a_removed_directory_gets_no_entries`], of a single operation.
#[test]
fn a_removed_directory_gets_no_entry_of_a_single_operation() {
    let history = play(&[
        (A, Begin),
        (A, op(Rmdir("d/in"))),
        (B, op(Create("@2/new", b'n'))),
        (A, Commit),
    ]);
    assert_waits(&history, &[B]);
    assert_answers(&history, B, &["ENOENT"]);
}

/// What a transaction does that is inside another one is seen by that one, and by no one else until that one commits.
#[test]
fn dirty_read_of_a_nested_transaction() {
    let history = play(&[
        (A, Begin),
        (A, Begin),
        (A, op(Write("x", 0, b'a'))),
        (A, Commit),
        (B, Begin),
        (B, op(Read("x"))),
        (A, op(Read("x"))),
        (A, Abort),
        (B, Commit),
    ]);
    assert_waits(&history, &[B]);
    assert_answers(&history, A, &["done", "\"a\""]);
    assert_answers(&history, B, &["\"0\""]);
}

/// Transactions inside the same one are as isolated from each other.
#[test]
fn lost_update_of_nested_transactions() {
    let update = |byte| {
        let ops = [Read("x"), Append("x", byte)];
        let ops = ops.into_iter().map(Item::Op);
        std::iter::once(Begin).chain(ops).chain([Commit]).collect()
    };
    let history = play(&[
        (A, Begin),
        (A, Fork(vec![update(b'1'), update(b'2')])),
        (A, op(Read("x"))),
        (A, Commit),
    ]);
    assert_waits(&history, &[B, C]);
}

/// A reader outside of all transactions that sees a part of a transaction's changes sees all of them from then on.
#[test]
fn single_operations_see_all_of_a_transaction_or_nothing() {
    let history = play(&[
        (A, Begin),
        (A, op(Write("x", 0, b'a'))),
        (B, op(Read("x"))),
        (B, op(Read("y"))),
        (A, op(Write("y", 0, b'a'))),
        (A, Commit),
        (B, op(Read("x"))),
        (B, op(Read("y"))),
    ]);
    assert_waits(&history, &[]);
    assert_answers(&history, B, &["\"0\"", "\"0\"", "\"a\"", "\"a\""]);
}

/// A removed directory that is a working directory has no links, in the transaction and after it.
#[test]
fn a_removed_directory_has_no_links() {
    let history = play(&[
        (A, Begin),
        (A, op(Rmdir("@1/in"))),
        (A, op(Stat("@2"))),
        (A, Commit),
        (A, op(Stat("@2"))),
    ]);
    let dir = "Dir 755 x0 0 bytes";
    assert_answers(&history, A, &["done", dir, dir]);
}

/// The working directory is somewhere else although the transaction has not moved it.
#[test]
fn working_directory_skew() {
    let history = play(&[
        (A, Begin),
        (A, op(Where("@2"))),
        (B, op(Rename("d", "moved"))),
        (A, op(Where("@2"))),
        (A, Commit),
    ]);
    assert_answers(&history, A, &["d/in", "d/in"]);
    assert_waits(&history, &[B]);
}

/// Two directories are moved into each other's inside: together they would hang on nothing.
#[test]
fn directories_are_not_moved_into_each_other() {
    let history = play(&[
        (A, Begin),
        (B, Begin),
        (A, op(Rename("d", "@3/d"))),
        (B, op(Rename("e", "@2/e"))),
        (A, Commit),
        (B, Commit),
    ]);
    assert_waits(&history, &[B]);
    assert_answers(&history, B, &["EINVAL"]);
}
