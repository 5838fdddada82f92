//! Isolation of transactions: random histories are serialisable, and many transactions on the same files lose nothing.
//!
//! `ISOLATION_HISTORIES` says how many histories; 100,000 with `GOANNA_LONG=1`. History number N is the same each time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use amino_fs::{AminoFs, EngineKind, Options};
use goanna_tests::is_long;
use goanna_tests::isolation::{History, Plan, Stage};

/// Histories that are played on one store before it is closed and checked.
const BATCH: u64 = 500;

/// One history in this many is played with threads, which takes longer and differs from run to run.
const THREADED: u64 = 10;

fn open(dir: &Path) -> Arc<AminoFs> {
    let options = Options {
        engine: Some(EngineKind::Memory),
        create: true,
        ..Options::default()
    };
    AminoFs::open(dir, options).unwrap()
}

fn close_and_check(fs: Arc<AminoFs>, dir: &Path) {
    fs.close().unwrap();
    drop(fs);
    let report = amino_fs::fsck::fsck(dir, &mut |_| {}).unwrap();
    let findings: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "fsck: {findings:#?}");
}

fn histories() -> u64 {
    match std::env::var("ISOLATION_HISTORIES") {
        Ok(count) => count.parse().expect("ISOLATION_HISTORIES is a number"),
        Err(_) if is_long() => 100_000,
        Err(_) => 5_000,
    }
}

/// Plays numbers from `next` on to `end`, on stores of its own.
fn play_batches(next: &AtomicU64, end: u64, play: impl Fn(&Stage<'_>, u64)) {
    loop {
        let first = next.fetch_add(BATCH, SeqCst);
        if first >= end {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path());
        let stage = Stage::new(&fs);
        for number in first..end.min(first + BATCH) {
            play(&stage, number);
        }
        close_and_check(fs, dir.path());
    }
}

fn on_all_cores(end: u64, play: impl Fn(&Stage<'_>, u64) + Sync) {
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| play_batches(&next, end, &play));
        }
    });
}

/// The smallest plan that fails as `plan` does, and what happened.
fn smallest(stage: &Stage<'_>, mut plan: Plan, mut history: History) -> (Plan, History) {
    loop {
        let failing = plan.smaller().into_iter().find_map(|plan| {
            let history = stage.play(&plan);
            (!history.is_serialisable()).then_some((plan, history))
        });
        match failing {
            Some(less) => (plan, history) = less,
            None => return (plan, history),
        }
    }
}

#[test]
fn random_histories_are_serialisable() {
    let committed = AtomicU64::new(0);
    on_all_cores(histories(), |stage, number| {
        let plan = Plan::random(number, false);
        let history = stage.play(&plan);
        committed.fetch_add(history.committed() as u64, SeqCst);
        if !history.is_serialisable() {
            let (plan, history) = smallest(stage, plan, history);
            panic!("history {number} has no serial order\n{history}\n{plan:#?}");
        }
    });
    eprintln!("{} transactions were committed", committed.into_inner());
}

#[test]
fn random_histories_of_threads_are_serialisable() {
    on_all_cores(histories() / THREADED, |stage, number| {
        let plan = Plan::random(number, true);
        let history = stage.play_threaded(&plan);
        assert!(
            history.is_serialisable(),
            "history {number} has no serial order\n{history}"
        );
    });
}
