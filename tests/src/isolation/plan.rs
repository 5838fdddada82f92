//! Plans: the steps of a history's parties, and their order. Plans are random, and are reduced when they fail.

use fastrand::Rng;

use super::op::{Op, Path};

/// The state before a history begins.
#[derive(Debug)]
pub struct Layout {
    /// Made in this order.
    pub make: &'static [Op],
    /// Opened before; `@0` is the first.
    pub held: &'static [&'static str],
}

/// Layouts that random plans are for: files that are open and a directory, and directories to be moved into each other.
pub const LAYOUTS: &[Layout] = &[
    Layout {
        make: &[
            Op::Create("a", b'A'),
            Op::Create("b", b'B'),
            Op::Mkdir("d"),
            Op::Create("d/a", b'C'),
        ],
        held: &["a", "b", "d"],
    },
    Layout {
        make: &[
            Op::Mkdir("a"),
            Op::Mkdir("a/b"),
            Op::Mkdir("d"),
            Op::Mkdir("d/b"),
            Op::Create("b", b'B'),
        ],
        held: &["b", "a/b", "d/b"],
    },
];

/// Paths that random operations use.
const PATHS: [Path; 14] = [
    "a", "b", "d", "a", "b", "d", "d/a", "d/b", "a/b", "@0", "@1", "@2", "@1/a", "@2/a",
];

/// A step of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// An operation, outside of all transactions or in the innermost one.
    Op(Op),
    /// Begins a transaction, inside the current one.
    Begin,
    /// Commits the innermost one.
    Commit,
    /// Aborts the innermost one.
    Abort,
    /// Runs these programs at the same time within the innermost transaction, and continues when they have ended.
    Fork(Vec<Program>),
}

/// The steps of one party.
pub type Program = Vec<Item>;

/// See the module's documentation.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The state before; see [`LAYOUTS`].
    pub layout: &'static Layout,
    /// The parties that exist from the start. A fork adds its programs at the end.
    pub programs: Vec<Program>,
    /// The party that does each step (modulo the number of parties); a party that waits for a lock does none. Afterwards
    /// the parties take turns.
    pub picks: Vec<usize>,
}

impl Plan {
    /// A plan from steps in the order in which they are tried; a party whose step waits does its later ones when it can.
    pub fn of(layout: &'static Layout, steps: &[(usize, Item)]) -> Self {
        let parties = steps.iter().map(|(party, _)| party + 1).max().unwrap_or(0);
        let mut programs = vec![Program::new(); parties];
        for (party, item) in steps {
            programs[*party].push(item.clone());
        }
        let picks = steps.iter().map(|(party, _)| *party).collect();
        Self {
            layout,
            programs,
            picks,
        }
    }

    /// Two to six parties that have transactions, and some that have none.
    pub fn random(seed: u64, threaded: bool) -> Self {
        let mut draw = Draw {
            rng: Rng::with_seed(seed),
            bytes: 0,
            threaded,
            path: PATHS[0],
        };
        let layout = &LAYOUTS[usize::from(draw.rng.u8(..4) == 0)];
        let transactions = draw.rng.usize(2..=6);
        let others = draw.rng.usize(..=2);
        let mut programs: Vec<_> = (0..transactions).map(|_| draw.transaction()).collect();
        programs.extend((0..others).map(|_| draw.outside(1..=3)));
        let steps: usize = programs.iter().map(Vec::len).sum();
        let picks = (0..steps * 2).map(|_| draw.rng.usize(..1000)).collect();
        Self {
            layout,
            programs,
            picks,
        }
    }

    /// Plans with a few steps less than this one.
    pub fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |programs: Vec<Program>, picks: Vec<usize>| {
            all.push(Self {
                layout: self.layout,
                programs,
                picks,
            });
        };
        for at in 0..self.programs.len() {
            for program in smaller_programs(&self.programs[at]) {
                let mut programs = self.programs.clone();
                programs[at] = program;
                add(programs, self.picks.clone());
            }
        }
        for at in 0..self.picks.len() {
            let mut picks = self.picks.clone();
            picks.remove(at);
            add(self.programs.clone(), picks);
        }
        all
    }
}

/// Where the transaction that item `at` begins ends.
fn end_of(program: &[Item], at: usize) -> usize {
    let mut depth = 0;
    let ends = program[at..].iter().position(|item| {
        match item {
            Item::Begin => depth += 1,
            Item::Commit | Item::Abort => depth -= 1,
            Item::Op(_) | Item::Fork(_) => {}
        }
        depth == 0
    });
    at + ends.expect("each transaction of a program ends")
}

fn smaller_programs(program: &Program) -> Vec<Program> {
    let mut all = Vec::new();
    if !program.is_empty() {
        all.push(Program::new());
    }
    for (at, item) in program.iter().enumerate() {
        let mut less = program.clone();
        match item {
            Item::Op(_) => {
                less.remove(at);
                all.push(less);
            }
            Item::Begin => {
                let end = end_of(program, at);
                let mut flat = program.clone();
                flat.remove(end);
                flat.remove(at);
                less.drain(at..=end);
                all.extend([less, flat]);
            }
            Item::Commit | Item::Abort => {}
            Item::Fork(inner) => {
                less.remove(at);
                all.push(less);
                for index in 0..inner.len() {
                    for program_inside in smaller_programs(&inner[index]) {
                        let mut inner = inner.clone();
                        inner[index] = program_inside;
                        let mut less = program.clone();
                        less[at] = Item::Fork(inner);
                        all.push(less);
                    }
                }
            }
        }
    }
    all
}

struct Draw {
    rng: Rng,
    bytes: u8,
    threaded: bool,
    path: Path,
}

impl Draw {
    /// Whether something happens that does so in `percent` of all cases.
    fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(..100) < percent
    }

    fn transaction(&mut self) -> Program {
        let mut program = Program::new();
        if self.chance(15) {
            program.extend(self.outside(1..=1));
        }
        let ops = self.rng.usize(1..=6);
        self.block(ops, 0, &mut program);
        if self.chance(15) {
            program.extend(self.outside(1..=1));
        }
        program
    }

    /// A transaction of this many operations, some of them in transactions inside.
    fn block(&mut self, ops: usize, depth: u32, out: &mut Program) {
        out.push(Item::Begin);
        let mut left = ops;
        while left > 0 {
            if depth < 2 && self.chance(12) {
                let inside = self.rng.usize(1..=left);
                self.block(inside, depth + 1, out);
                left -= inside;
            } else if depth < 2 && left > 1 && self.chance(6) {
                let programs = (0..2).map(|_| {
                    let mut program = Program::new();
                    let inside = self.rng.usize(1..=2);
                    self.block(inside, depth + 1, &mut program);
                    program
                });
                let programs = programs.collect();
                out.push(Item::Fork(programs));
                left = left.saturating_sub(3);
            } else {
                out.push(Item::Op(self.op()));
                left -= 1;
            }
        }
        out.push(if self.chance(80) {
            Item::Commit
        } else {
            Item::Abort
        });
    }

    fn outside(&mut self, count: std::ops::RangeInclusive<usize>) -> Program {
        let count = self.rng.usize(count);
        let op = |_| {
            loop {
                let op = self.op();
                // With a thread for each party, only an operation of one call is a single step.
                if !self.threaded || op.is_one_call() {
                    return Item::Op(op);
                }
            }
        };
        (0..count).map(op).collect()
    }

    /// Often the path of the operation before: two operations on one path find more.
    fn path(&mut self) -> Path {
        if !self.chance(35) {
            self.path = PATHS[self.rng.usize(..PATHS.len())];
        }
        self.path
    }

    fn byte(&mut self) -> u8 {
        self.bytes = (self.bytes + 1) % 26;
        b'a' + self.bytes
    }

    fn op(&mut self) -> Op {
        let path = self.path();
        match self.rng.u8(..100) {
            0..6 => Op::Look(path),
            6..20 => Op::Read(path),
            20..28 => Op::Stat(path),
            28..30 => Op::List(""),
            30..36 => Op::List(path),
            36..39 => Op::Where(path),
            39..41 => Op::ListParent(path),
            41..43 => Op::GetMark(path),
            43..52 => Op::Create(path, self.byte()),
            52..61 => Op::Write(path, self.rng.u64(..3), self.byte()),
            61..66 => Op::Append(path, self.byte()),
            66..68 => Op::Truncate(path, self.rng.u64(..3)),
            68..70 => Op::Chmod(path, if self.rng.bool() { 0o700 } else { 0o777 }),
            70..72 => Op::Mark(path, self.byte()),
            72..77 => Op::Mkdir(path),
            77..82 => Op::Unlink(path),
            82..85 => Op::Rmdir(path),
            85..89 => Op::Link(path, self.path()),
            89..97 => Op::Rename(path, self.path()),
            _ => Op::Swap(path, self.path()),
        }
    }
}
