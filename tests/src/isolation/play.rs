//! Plays a plan on a store.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use amino_fs::AminoFs;
use goanna_vfs::{Errno, FsError, Transactions, TxnId, Wait};

use super::history::{Event, History, What};
use super::op::{Op, perform};
use super::plan::{Item, Plan, Program};
use super::user::Site;

/// How long a thread waits for a lock at a time.
const SLICE: Duration = Duration::from_millis(50);

/// Longer than any call waits.
const FOREVER: Duration = Duration::from_secs(3600);

/// A store to play on; each history gets a directory of its own.
pub struct Stage<'a> {
    fs: &'a AminoFs,
    played: AtomicUsize,
    tids: AtomicU64,
}

/// One history while it is played.
struct Scene<'a> {
    site: Site<'a>,
    clock: AtomicU64,
    transactions: AtomicUsize,
    parties: AtomicUsize,
    events: Mutex<Vec<Event>>,
}

/// A transaction, as the store and as the history know it.
#[derive(Clone, Copy)]
struct Open {
    id: TxnId,
    number: usize,
}

struct Party {
    number: usize,
    tid: i32,
    program: std::vec::IntoIter<Item>,
    /// The step that is being tried.
    item: Option<Item>,
    /// The transaction that the program runs in.
    around: Option<Open>,
    /// The transactions that it has begun, the innermost last.
    stack: Vec<Open>,
    /// The lock that its last operation met.
    lock: Option<Wait>,
}

/// The result of a step.
enum Step {
    Moved,
    /// It has met a lock.
    Waits,
    /// These must run before it continues.
    Forked(Vec<Program>),
    Ended,
}

impl<'a> Stage<'a> {
    /// A stage on `fs`.
    pub fn new(fs: &'a AminoFs) -> Self {
        Self {
            fs,
            played: AtomicUsize::new(0),
            tids: AtomicU64::new(1),
        }
    }

    fn scene(&self, plan: &Plan) -> Scene<'a> {
        let number = self.played.fetch_add(1, SeqCst);
        Scene {
            site: Site::new(self.fs, &format!("history{number}"), plan.layout),
            clock: AtomicU64::new(0),
            transactions: AtomicUsize::new(0),
            parties: AtomicUsize::new(0),
            events: Mutex::default(),
        }
    }

    fn party(&self, scene: &Scene<'_>, program: Program, around: Option<Open>) -> Party {
        Party {
            number: scene.parties.fetch_add(1, SeqCst),
            tid: self.tids.fetch_add(1, SeqCst) as i32,
            program: program.into_iter(),
            item: None,
            around,
            stack: Vec::new(),
            lock: None,
        }
    }

    /// Plays a plan on this thread, step by step. When all transactions wait, one operation is refused.
    pub fn play(&self, plan: &Plan) -> History {
        let scene = self.scene(plan);
        let mut cast = Cast::default();
        for program in &plan.programs {
            cast.join(self.party(&scene, program.clone(), None), None);
        }
        for pick in &plan.picks {
            let at = pick % cast.parties.len().max(1);
            self.turn(&scene, &mut cast, at);
        }
        loop {
            let mut moved = false;
            for at in 0..cast.parties.len() {
                moved |= self.turn(&scene, &mut cast, at);
            }
            if moved {
                continue;
            }
            let waits = |party: &&mut Party| party.lock.is_some();
            let Some(victim) = cast.parties.iter_mut().rfind(waits) else {
                break;
            };
            let told = victim.wait(FOREVER, Duration::ZERO);
            assert_eq!(told, Err(Errno::ETIMEDOUT), "everybody waits");
            victim.refuse(&scene, Errno::ETIMEDOUT);
        }
        self.finish(scene, plan)
    }

    /// Lets a party do its next step. Returns whether it did.
    fn turn(&self, scene: &Scene<'_>, cast: &mut Cast, at: usize) -> bool {
        let away = cast.is_away(at);
        let Some(party) = cast.parties.get_mut(at).filter(|_| !away) else {
            return false;
        };
        if party.wait(Duration::ZERO, Duration::ZERO) != Ok(true) {
            return false;
        }
        match party.step(scene) {
            Step::Moved => true,
            Step::Waits => false,
            Step::Ended => {
                let newly = !cast.ended[at];
                cast.ended[at] = true;
                newly
            }
            Step::Forked(programs) => {
                let around = party.current();
                for program in programs {
                    cast.join(self.party(scene, program, around), Some(at));
                }
                true
            }
        }
    }

    /// Plays a plan with a thread for each party. An operation may be refused only for a deadlock.
    pub fn play_threaded(&self, plan: &Plan) -> History {
        let scene = self.scene(plan);
        self.run_all(&scene, plan.programs.clone(), None);
        self.finish(scene, plan)
    }

    fn run_all(&self, scene: &Scene<'_>, programs: Vec<Program>, around: Option<Open>) {
        std::thread::scope(|scope| {
            for program in programs {
                let party = self.party(scene, program, around);
                scope.spawn(move || self.run(scene, party));
            }
        });
    }

    fn run(&self, scene: &Scene<'_>, mut party: Party) {
        let mut since = Instant::now();
        loop {
            match party.step(scene) {
                Step::Moved => since = Instant::now(),
                Step::Ended => return,
                Step::Forked(programs) => self.run_all(scene, programs, party.current()),
                Step::Waits => match party.wait(since.elapsed(), SLICE) {
                    Ok(_) => {}
                    Err(errno) => {
                        assert_eq!(
                            errno,
                            Errno::EDEADLK,
                            "waited for ever:\n{}",
                            scene.so_far()
                        );
                        party.refuse(scene, errno);
                    }
                },
            }
        }
    }

    /// Reads the whole tree at the end.
    fn finish(&self, scene: Scene<'_>, plan: &Plan) -> History {
        let mut last = self.party(&scene, vec![Item::Op(Op::Tree)], None);
        while !matches!(last.step(&scene), Step::Ended) {}
        let Scene { site, events, .. } = scene;
        site.close();
        History {
            layout: plan.layout,
            events: events.into_inner().unwrap(),
        }
    }
}

/// The parties of a history that is played on one thread.
#[derive(Default)]
struct Cast {
    parties: Vec<Party>,
    /// The parent of each.
    parents: Vec<Option<usize>>,
    ended: Vec<bool>,
}

impl Cast {
    fn join(&mut self, party: Party, parent: Option<usize>) {
        self.parties.push(party);
        self.parents.push(parent);
        self.ended.push(false);
    }

    /// Whether a party waits for the parties that it has forked, or has ended.
    fn is_away(&self, at: usize) -> bool {
        let children = self.parents.iter().zip(&self.ended);
        let busy = children.filter(|(parent, ended)| **parent == Some(at) && !**ended);
        self.ended.get(at) == Some(&true) || busy.count() > 0
    }
}

impl Scene<'_> {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    fn log(&self, party: usize, txn: Option<Open>, from: u64, what: What) {
        let mut events = self.events.lock().unwrap();
        events.push(Event {
            party,
            txn: txn.map(|txn| txn.number),
            what,
            from,
            to: self.now(),
        });
    }

    fn so_far(&self) -> String {
        let events = self.events.lock().unwrap();
        format!("{events:#?}")
    }
}

impl Party {
    fn current(&self) -> Option<Open> {
        self.stack.last().copied().or(self.around)
    }

    /// Waits for the lock that blocked the last operation, if one did. Returns whether to retry.
    fn wait(&self, waited: Duration, slice: Duration) -> Result<bool, Errno> {
        let lock = self.lock.as_ref();
        lock.map_or(Ok(true), |lock| lock.wait(waited, slice))
    }

    fn step(&mut self, scene: &Scene<'_>) -> Step {
        self.lock = None;
        let Some(item) = self.item.take().or_else(|| self.program.next()) else {
            return Step::Ended;
        };
        match item {
            Item::Op(op) => self.operate(scene, op),
            Item::Begin => {
                self.begin(scene);
                Step::Moved
            }
            Item::Commit => {
                self.end(scene, true);
                Step::Moved
            }
            Item::Abort => {
                self.end(scene, false);
                Step::Moved
            }
            Item::Fork(programs) => Step::Forked(programs),
        }
    }

    fn operate(&mut self, scene: &Scene<'_>, op: Op) -> Step {
        let txn = self.current();
        let from = scene.now();
        let mut user = scene.site.user(self.tid, txn.map(|txn| txn.id));
        let outcome = perform(&mut user, &op);
        if let Err(FsError::Blocked(lock)) = outcome {
            scene.log(self.number, txn, from, What::Waits(op.clone()));
            self.item = Some(Item::Op(op));
            self.lock = Some(lock);
            return Step::Waits;
        }
        scene.log(self.number, txn, from, What::Op(op, outcome));
        Step::Moved
    }

    fn begin(&mut self, scene: &Scene<'_>) {
        let around = self.current();
        let from = scene.now();
        let number = scene.transactions.fetch_add(1, SeqCst);
        let id = scene.site.fs.begin(around.map(|txn| txn.id)).unwrap();
        self.stack.push(Open { id, number });
        scene.log(self.number, around, from, What::Begin(number));
    }

    fn end(&mut self, scene: &Scene<'_>, committed: bool) {
        let Open { id, number } = self.stack.pop().expect("it has begun one");
        let from = scene.now();
        if committed {
            scene.site.fs.commit(id).unwrap();
        } else {
            scene.site.fs.abort(id);
        }
        let what = What::End {
            txn: number,
            committed,
        };
        scene.log(self.number, self.current(), from, what);
    }

    /// Gives up the waiting operation, and with it the innermost transaction, if the program has begun that one.
    fn refuse(&mut self, scene: &Scene<'_>, errno: Errno) {
        self.lock = None;
        let Some(Item::Op(op)) = self.item.take() else {
            return;
        };
        let what = What::Refused(op, errno);
        scene.log(self.number, self.current(), scene.now(), what);
        if self.stack.is_empty() {
            return;
        }
        self.end(scene, false);
        let mut depth = 1;
        while depth > 0 {
            match self.program.next() {
                Some(Item::Begin) => depth += 1,
                Some(Item::Commit | Item::Abort) => depth -= 1,
                Some(Item::Op(_) | Item::Fork(_)) => {}
                None => return,
            }
        }
    }
}
