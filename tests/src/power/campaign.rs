//! Records a workload, and checks the states that power cuts leave.
//!
//! The guarantees (README, "Durability"): the store opens; its state is the one after some operation of the workload; that operation is
//! not before the last one that was acknowledged as durable.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;

use super::image::{Image, Loss, Recording};
use super::plan::{Node, Op, Plan, State, differences};
use super::volume::{Kind, Volume};
use crate::{Engine, binary, finish_within, is_long, program};

/// Longest time that a command may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The same limit in a long campaign, which runs at a low priority beside other work: a command that takes longer hangs.
const LONG_LIMIT: Duration = Duration::from_secs(1200);

fn limit() -> Duration {
    if is_long() { LONG_LIMIT } else { LIMIT }
}

/// Runs on one store that a workload consists of: cuts meet the opening and the closing of the store, too.
const RUNS: usize = 3;

/// The size of a large file in bytes, and how many the store gets: together more than a log of 128 MiB.
const BULK: usize = 48 << 20;
const BULK_FILES: u8 = 3;

/// The parameters of a workload.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The file system below the store.
    pub kind: Kind,
    /// The store's engine.
    pub engine: Engine,
    /// `aci`, `commit` or `acid`.
    pub level: &'static str,
    /// Whether the first run writes so much that a checkpoint is due.
    pub is_bulky: bool,
    /// Seed of the operations. The writes to the disk depend on timing as well, so a seed does not repeat a failure; the image that a
    /// failure leaves does.
    pub seed: u64,
}

/// An operation, with its positions in the recording.
#[derive(Debug)]
struct Step {
    /// The position at which the operation began; a cut before leaves nothing of it.
    begun: usize,
    /// The position at which it was acknowledged as durable; a cut behind preserves it.
    durable: Option<usize>,
    op: String,
    /// The state after it.
    state: State,
}

/// A recorded workload.
#[derive(Debug)]
pub struct Workload {
    setting: Setting,
    disk: Arc<Mutex<Recording>>,
    steps: Vec<Step>,
    /// The position at which the workload began: the file system was made before.
    start: usize,
}

/// A command that performs operations in a store.
struct Puppet {
    run: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Puppet {
    fn start(setting: Setting, store: &Path, puppet: &Path) -> Self {
        let engine = match setting.engine {
            Engine::Fjall => "fjall",
            Engine::Sled => "sled",
        };
        let mut command = amino("run", store);
        if !store.exists() {
            command.args(["--engine", engine]);
        }
        command.args(["--durability", setting.level, "--at", "/amino-test", "--"]);
        command.arg(puppet).arg("/amino-test");
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut run = spawned.expect("a run");
        let to = run.stdin.take().expect("its input");
        let from = BufReader::new(run.stdout.take().expect("its output"));
        Self { run, to, from }
    }

    fn perform(&mut self, op: &Op) {
        writeln!(self.to, "{op}").expect("the run takes operations");
        let mut answer = String::new();
        self.from.read_line(&mut answer).expect("an answer");
        let result = answer.trim().parse::<i64>();
        assert!(result.is_ok(), "{op}: {answer:?}");
    }

    fn end(self) {
        let Self { mut run, to, from } = self;
        drop((to, from));
        let status = crate::finish::wait(&mut run, limit());
        assert_eq!(status, Some(0), "the run failed");
    }
}

fn amino(subcommand: &str, store: &Path) -> Command {
    let mut command = Command::new(binary("amino"));
    command.args([subcommand, "-q", "--store"]).arg(store);
    command
}

/// Ends the owner process of the store, so that the volume can be unmounted.
fn stop_owner(store: &Path) {
    let mut command = Command::new(binary("amino"));
    command.args(["daemon", "stop", "--store"]).arg(store);
    finish_within(&mut command, limit());
}

/// Whether the level promises that `op`, which has led to the state of `plan`, is on the disk when it returns. `before` is the state
/// before the transaction that the operation ends: a transaction that has changed nothing need not reach the disk.
fn is_durable(level: &str, op: &Op, plan: &Plan, before: &State) -> bool {
    let is_empty = matches!(op, Op::Commit) && plan.state() == before;
    match level {
        "acid" => !plan.is_inside() && !is_empty,
        "commit" => matches!(op, Op::Commit | Op::Fsync(_)) && !plan.is_inside() && !is_empty,
        _ => false,
    }
}

/// Writes more than the log may have before a checkpoint.
fn bulk() -> Vec<Op> {
    let name = |index| format!("bulk{index}");
    let write = |index| Op::Write {
        name: name(index),
        offset: 0,
        length: BULK,
        byte: index,
    };
    let files = 1..=BULK_FILES;
    files
        .flat_map(|index| {
            [
                Op::Create(name(index)),
                write(index),
                Op::Fsync(name(index)),
                Op::Unlink(name(index)),
            ]
        })
        .collect()
}

impl Workload {
    /// Performs `operations` random operations on a new store and records what its disk receives.
    ///
    /// # Panics
    ///
    /// When an operation fails.
    pub fn record(setting: Setting, operations: usize) -> Self {
        let dir = directory();
        let puppet = program("puppet", dir.path(), true);
        let volume = Volume::format(setting.kind, dir.path());
        let store = volume.path().join("store");
        let mut steps = vec![Step {
            begun: 0,
            durable: None,
            op: "start".to_owned(),
            state: State::new(),
        }];
        let start = volume.position();
        let mut plan = Plan::new(fastrand::Rng::with_seed(setting.seed));
        let mut pauses = fastrand::Rng::with_seed(setting.seed);
        for turn in 0..RUNS {
            let mut run = Puppet::start(setting, &store, &puppet);
            let mut outside = plan.state().clone();
            let mut perform = |op: Op, plan: &Plan| {
                let begun = volume.position();
                run.perform(&op);
                let is_durable = is_durable(setting.level, &op, plan, &outside);
                steps.push(Step {
                    begun,
                    durable: is_durable.then(|| volume.position()),
                    op: op.to_string(),
                    state: plan.state().clone(),
                });
                if !plan.is_inside() {
                    outside.clone_from(plan.state());
                }
            };
            let mut left = operations / RUNS;
            while left > 0 || plan.is_inside() {
                left = left.saturating_sub(1);
                let op = plan.advance();
                perform(op, &plan);
                // Long enough for the background flush, now and then.
                if pauses.usize(..40) == 0 {
                    thread::sleep(Duration::from_millis(600));
                }
            }
            if setting.is_bulky && turn == 0 {
                for op in bulk() {
                    let op = plan.perform(op);
                    perform(op, &plan);
                }
            }
            run.end();
            steps.push(Step {
                begun: volume.position(),
                durable: Some(volume.position()),
                op: "end of the run".to_owned(),
                state: plan.state().clone(),
            });
            if pauses.bool() {
                stop_owner(&store);
            }
        }
        stop_owner(&store);
        Self {
            setting,
            disk: volume.into_recording(),
            steps,
            start,
        }
    }

    /// Cuts the power at `cuts` random positions, and once more during the recovery from each.
    ///
    /// # Panics
    ///
    /// At the first violated guarantee; the message has what is needed to repeat it.
    pub fn check_cuts(&self, cuts: usize) {
        let end = self.disk.lock().position();
        self.check_cuts_until(end, cuts);
    }

    /// Cuts the power at `cuts` random positions while the store is being made, and once more during the recovery from each.
    ///
    /// # Panics
    ///
    /// As [`Workload::check_cuts`].
    pub fn check_making(&self, cuts: usize) {
        let first = self.steps.get(1).map_or(self.start, |step| step.begun);
        self.check_cuts_until(first, cuts);
    }

    fn check_cuts_until(&self, end: usize, cuts: usize) {
        for cut in 0..cuts {
            let seed = self
                .setting
                .seed
                .wrapping_mul(1000)
                .wrapping_add(cut as u64);
            let mut rng = fastrand::Rng::with_seed(seed);
            let position = rng.usize(self.start..=end);
            let loss = Loss::any(&mut rng);
            let image = self.disk.lock().cut(position, loss, &mut rng);
            let case = format!(
                "{:?}, cut {cut} at {position} of {end}, {loss:?}",
                self.setting
            );
            let recovery = self.check(&image, position, loss, &case);
            let recovery = recovery.lock();
            let again = rng.usize(..=recovery.position());
            let loss = Loss::any(&mut rng);
            let image = recovery.cut(again, loss, &mut rng);
            drop(recovery);
            let case = format!("{case}; then during the recovery at {again}, {loss:?}");
            self.check(&image, position, loss, &case);
            eprintln!("survived: {case}");
        }
    }

    /// Cuts the power at the return of each operation that must then be on the disk, and loses all writes that were not flushed.
    ///
    /// # Panics
    ///
    /// As [`Workload::check_cuts`].
    pub fn check_acknowledged(&self) {
        let mut rng = fastrand::Rng::with_seed(self.setting.seed);
        for (number, step) in self.steps.iter().enumerate() {
            let Some(position) = step.durable else {
                continue;
            };
            let image = self.disk.lock().cut(position, Loss::Everything, &mut rng);
            let case = format!("{:?}, after operation {number}: {}", self.setting, step.op);
            self.check(&image, position, Loss::Everything, &case);
        }
    }

    /// Opens the state that a cut at `position` left. Returns the recording of the recovery.
    fn check(
        &self,
        image: &Image,
        position: usize,
        loss: Loss,
        case: &str,
    ) -> Arc<Mutex<Recording>> {
        let dir = directory();
        let opened = Volume::mount_image(self.setting.kind, image.clone(), dir.path());
        if let Err(why) = &opened
            && loss == Loss::Sectors
            && self.setting.kind.may_be_torn()
        {
            eprintln!("not checked, the file system is lost: {case}: {why}");
            return Arc::new(Mutex::new(Recording::new(image.clone())));
        }
        let checked = opened.and_then(|volume| {
            self.check_store(&volume.path().join("store"), dir.path(), position)?;
            Ok(volume.into_recording())
        });
        checked.unwrap_or_else(|why| {
            let kept = std::env::temp_dir().join(format!("goanna-power-{}.img", fastrand::u64(..)));
            let saved = image.save(&kept);
            panic!("{case}: {why}\nthe disk: {} ({saved:?})", kept.display());
        })
    }

    /// Checks the store after a cut at `position`; `dir` is for the exported tree.
    fn check_store(&self, store: &Path, dir: &Path, position: usize) -> Result<(), String> {
        let issued = self.steps.partition_point(|step| step.begun <= position);
        let issued = issued.max(1);
        let acknowledged = self.steps[..issued]
            .iter()
            .rposition(|step| step.durable.is_some_and(|at| at <= position));
        if acknowledged.is_none() {
            // A store need not exist yet; then one can be made. An existing store is sound.
            let ended = finish_within(&mut amino("fsck", store), limit());
            if ended.status == 1 {
                return Err(format!("fsck of a new store: {}", ended.text()));
            }
            succeed(amino("run", store).args(["--", "true"]))?;
            stop_owner(store);
        }
        succeed(&mut amino("fsck", store))?;
        let out = dir.join("out");
        succeed(amino("export", store).arg("/").arg(&out))?;
        stop_owner(store);
        let found = read(&out);
        let candidates = &self.steps[acknowledged.unwrap_or(0)..issued];
        if candidates.iter().any(|step| step.state == found) {
            return Ok(());
        }
        let closest = candidates
            .iter()
            .map(|step| (differences(&found, &step.state), &step.op))
            .min_by_key(|(differences, _)| differences.len());
        let (differences, op) = closest.ok_or("no operation had begun")?;
        let older = self.steps.iter().rposition(|step| step.state == found);
        Err(format!(
            "no state between operations {acknowledged:?} and {issued}; it is that of operation {older:?}; the closest one is that after {op:?}:\n{}",
            differences.join("\n")
        ))
    }
}

/// Runs a command that must succeed; otherwise the error is its output.
fn succeed(command: &mut Command) -> Result<(), String> {
    let ended = finish_within(command, limit());
    if ended.status == 0 {
        return Ok(());
    }
    Err(format!(
        "{command:?}: {}\n{}{}",
        ended.how(),
        ended.text(),
        ended.errors()
    ))
}

fn directory() -> TempDir {
    tempfile::Builder::new()
        .prefix("goanna-power-")
        .tempdir()
        .expect("a temporary directory")
}

/// The tree below `top`.
fn read(top: &Path) -> State {
    let mut state = State::new();
    let mut todo: Vec<PathBuf> = vec![top.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).expect("an exported directory") {
            let entry = entry.expect("an entry");
            let path = entry.path();
            let relative = path.strip_prefix(top).expect("a path below the top");
            let name = String::from_utf8_lossy(relative.as_os_str().as_bytes()).into_owned();
            let node = if entry.file_type().expect("a type").is_dir() {
                todo.push(path);
                Node::Directory
            } else {
                Node::File(Arc::new(fs::read(&path).expect("an exported file")))
            };
            state.insert(name, node);
        }
    }
    state
}
