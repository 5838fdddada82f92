//! Many transactions on the same few files, by many threads of one process and by many processes in a run: none is lost, none
//! takes effect twice, none hangs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use amino_fs::{AminoFs, EngineKind, Options};
use fastrand::Rng;
use goanna_tests::isolation::{Layout, Op, Seen, Site, perform, told};
use goanna_tests::{Place, finish_within, is_long, program};
use goanna_vfs::{Errno, FsError, Transactions, TxnId};

const THREADS: u8 = 16;

/// What all accounts together have: no sum of some of them is more than a byte can say.
const TOTAL: u32 = 4 * 60;

/// For each account a file with its balance, and one with a letter for each transfer from there, which names the thread that made it.
const LAYOUT: Layout = Layout {
    make: &[
        Op::Create("b0", 60),
        Op::Create("b1", 60),
        Op::Create("b2", 60),
        Op::Create("b3", 60),
        Op::Create("log0", b'-'),
        Op::Create("log1", b'-'),
        Op::Create("log2", b'-'),
        Op::Create("log3", b'-'),
        Op::Mkdir("done"),
    ],
    held: &[],
};
const BALANCES: [&str; 4] = ["b0", "b1", "b2", "b3"];
const LOGS: [&str; 4] = ["log0", "log1", "log2", "log3"];

/// A thread that makes transfers.
struct Clerk<'a> {
    site: &'a Site<'a>,
    number: u8,
    rng: Rng,
    conflicts: u64,
}

impl Clerk<'_> {
    /// Does an operation, and waits for locks as long as it takes.
    fn act(&mut self, txn: TxnId, op: &Op) -> Result<Seen, Errno> {
        let since = Instant::now();
        let tid = i32::from(self.number) + 1;
        loop {
            match perform(&mut self.site.user(tid, Some(txn)), op) {
                Err(FsError::Blocked(lock)) => {
                    lock.wait(since.elapsed(), Duration::from_millis(50))?;
                }
                outcome => {
                    assert!(outcome.is_ok(), "{op}: {}", told(&outcome));
                    return Ok(outcome.unwrap());
                }
            }
        }
    }

    fn balance(&mut self, txn: TxnId, account: usize) -> Result<u8, Errno> {
        match self.act(txn, &Op::Read(BALANCES[account]))? {
            Seen::Content(content) => Ok(content[0]),
            other => panic!("a balance is a content, not {other}"),
        }
    }

    /// Adds to an account in a transaction inside `txn`, which may be aborted once before.
    fn add(&mut self, txn: TxnId, account: usize, amount: i16) -> Result<(), Errno> {
        let mut in_vain = self.rng.u8(..4) == 0;
        loop {
            let inner = self.site.fs.begin(Some(txn)).unwrap();
            let added = self.balance(inner, account).and_then(|old| {
                let new = u8::try_from(i16::from(old) + amount).unwrap();
                self.act(inner, &Op::Write(BALANCES[account], 0, new))
            });
            if added.is_err() || in_vain {
                self.site.fs.abort(inner);
                added?;
                in_vain = false;
                continue;
            }
            self.site.fs.commit(inner).unwrap();
            return Ok(());
        }
    }

    /// Moves some money; the note at the end says that it was done.
    fn transfer(&mut self, txn: TxnId, note: &'static str) -> Result<(), Errno> {
        let from = self.rng.usize(..BALANCES.len());
        let to = (from + self.rng.usize(1..BALANCES.len())) % BALANCES.len();
        let have = self.balance(txn, from)?;
        let amount = i16::from(self.rng.u8(..=have));
        self.add(txn, from, -amount)?;
        self.add(txn, to, amount)?;
        self.act(txn, &Op::Append(LOGS[from], b'A' + self.number))?;
        self.act(txn, &Op::Create(note, b'.'))?;
        Ok(())
    }

    /// A transfer, again and again until it was committed, or given up on purpose; whether it was committed.
    fn try_transfer(&mut self, note: &'static str) -> bool {
        loop {
            let txn = self.site.fs.begin(None).unwrap();
            match self.transfer(txn, note) {
                Ok(()) if self.rng.u8(..10) == 0 => {
                    self.site.fs.abort(txn);
                    return false;
                }
                Ok(()) => {
                    self.site.fs.commit(txn).unwrap();
                    return true;
                }
                Err(errno) => {
                    assert_eq!(errno, Errno::EDEADLK, "waited for ever");
                    self.conflicts += 1;
                    self.site.fs.abort(txn);
                }
            }
        }
    }
}

/// What each thread has committed, and how often a transfer was restarted.
fn transfers(fs: &AminoFs, each: usize) -> (Vec<Vec<&'static str>>, u64) {
    let site = Site::new(fs, "bank", &LAYOUT);
    let mut all = Vec::new();
    let mut conflicts = 0;
    std::thread::scope(|scope| {
        let work = |number: u8| {
            let mut clerk = Clerk {
                site: &site,
                number,
                rng: Rng::with_seed(u64::from(number)),
                conflicts: 0,
            };
            let notes = (0..each).map(|at| &*format!("done/{number}-{at}").leak());
            let done: Vec<_> = notes.filter(|note| clerk.try_transfer(note)).collect();
            (done, clerk.conflicts)
        };
        let threads: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || work(number)))
            .collect();
        for thread in threads {
            let (done, met) = thread.join().unwrap();
            all.push(done);
            conflicts += met;
        }
    });
    site.close();
    (all, conflicts)
}

fn content(site: &Site<'_>, path: &'static str) -> Vec<u8> {
    match perform(&mut site.user(1, None), &Op::Read(path)).unwrap() {
        Seen::Content(content) => content,
        other => panic!("a read shows content, not {other}"),
    }
}

/// Each transfer that was committed took effect once, and nothing else did.
fn check_balances(fs: &AminoFs, done: &[Vec<&'static str>]) {
    let site = Site::open(fs, "bank");
    let balances = BALANCES.map(|path| u32::from(content(&site, path)[0]));
    assert_eq!(balances.iter().sum::<u32>(), TOTAL, "{balances:?}");
    let mut logged = BTreeMap::new();
    for letter in LOGS.iter().flat_map(|log| content(&site, log).split_off(1)) {
        *logged.entry(letter).or_insert(0) += 1;
    }
    for (letter, done) in (b'A'..).zip(done) {
        let logged = logged.remove(&letter).unwrap_or(0);
        assert_eq!(logged, done.len(), "transfers of {}", char::from(letter));
    }
    let Seen::Names(names) = perform(&mut site.user(1, None), &Op::List("done")).unwrap() else {
        panic!("a listing shows names");
    };
    let names: BTreeSet<_> = names
        .into_iter()
        .map(|(name, _)| format!("done/{name}"))
        .collect();
    let expected: BTreeSet<_> = done
        .iter()
        .flatten()
        .map(|note| (*note).to_owned())
        .collect();
    assert_eq!(names, expected);
}

fn open(dir: &Path) -> Arc<AminoFs> {
    let options = Options {
        engine: Some(EngineKind::Fjall),
        create: true,
        ..Options::default()
    };
    AminoFs::open(dir, options).unwrap()
}

#[test]
fn no_transaction_of_sixteen_threads_is_lost_or_doubled() {
    let each = if is_long() { 500 } else { 72 };
    let limit = Duration::from_secs(if is_long() { 1800 } else { 120 });
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let (tell, told) = mpsc::channel();
    // Not a scoped thread, because the scope would wait for a thread that hangs.
    std::thread::spawn(move || {
        let fs = open(&path);
        let (done, conflicts) = transfers(&fs, each);
        check_balances(&fs, &done);
        fs.close().unwrap();
        drop(fs);
        let report = amino_fs::fsck::fsck(&path, &mut |_| {}).unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
        let fs = open(&path);
        check_balances(&fs, &done);
        fs.close().unwrap();
        tell.send((done, conflicts)).unwrap();
    });
    let (done, conflicts) = told.recv_timeout(limit).expect("hangs, or failed above");
    let committed: usize = done.iter().map(Vec::len).sum();
    eprintln!("{committed} transfers were committed, {conflicts} were begun anew");
    assert!(committed >= 1000 && conflicts > 0);
}

#[test]
fn no_transaction_of_sixteen_processes_is_lost_or_doubled() {
    let each = if is_long() { "500" } else { "72" };
    let limit = Duration::from_secs(if is_long() { 1800 } else { 240 });
    let place = Place::amino();
    let transfers = program("transfers", &place.path("host"), true);
    let script = format!("{} {THREADS} {each}", transfers.display());
    let ended = finish_within(&mut place.shell(&script), limit).expect(0);
    eprint!("{}", ended.text());
    place.fsck();
}
