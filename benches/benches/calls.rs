//! `cargo bench -p goanna-benches`: the cost of a call natively, on passfs, on amino and on FUSE.
//!
//! Criterion requests samples; a [`Lockstep`] returns them from rounds that measure all settings. With `--quick` the
//! rounds are fewer and shorter, with `--test` (and under `cargo test`) each operation runs once in each setting.

use std::cell::{Cell, RefCell};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, exit};
use std::time::Duration;

use criterion::{Criterion, SamplingMode};
use goanna_benches::{Binaries, Error, Kind, Lockstep, Operation, Page, Setting, Unit, build_cli};

const TRACEE: &str = env!("CARGO_BIN_EXE_bench-tracee");

/// How thorough a run is.
struct Plan {
    /// Every operation once, no numbers.
    test: bool,
    quick: bool,
    /// Only names, nothing is run.
    list: bool,
}

impl Plan {
    fn from_env() -> Self {
        let has = |flag: &str| env::args().any(|argument| argument == flag);
        Self {
            // `cargo test` starts bench targets without `--bench`; criterion then runs each once, and so do we.
            test: has("--test") || !has("--bench"),
            quick: has("--quick") || env::var_os("GOANNA_BENCH_QUICK").is_some(),
            list: has("--list"),
        }
    }

    fn sample(&self) -> Duration {
        Duration::from_millis(if self.quick { 4 } else { 20 })
    }

    fn criterion(&self) -> Criterion {
        let criterion = Criterion::default()
            .sample_size(if self.quick { 10 } else { 30 })
            // The rounds are calibrated and warm; one sample is all criterion needs to choose its iterations.
            .warm_up_time(Duration::from_nanos(1))
            .measurement_time(Duration::from_secs(5));
        if self.quick && !self.test && !self.list {
            // Criterion's own quick mode requests samples by the wall clock, independently of rounds; ours only makes
            // the rounds fewer. So criterion reads only the filter, not its flags.
            return match env::args()
                .skip(1)
                .find(|argument| !argument.starts_with('-'))
            {
                Some(filter) => criterion.with_filter(filter),
                None => criterion,
            };
        }
        criterion.configure_from_args()
    }
}

fn main() -> ExitCode {
    match run(&Plan::from_env()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("calls: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(plan: &Plan) -> Result<(), Error> {
    let temporary = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let target = temporary.parent().unwrap_or(&temporary).to_path_buf();
    if !plan.test && !plan.list {
        build_cli(&target)?;
    }
    let place = env::var_os("GOANNA_BENCH_DIR").map_or(temporary, PathBuf::from);
    let scratch = tempfile::Builder::new()
        .prefix("goanna-bench")
        .tempdir_in(&place)
        .map_err(Error::io("make a directory in", &place))?;
    let settings = start(plan, scratch.path())?;
    let kinds = settings.iter().map(Setting::kind).collect();
    let settings = RefCell::new(settings);

    let mut criterion = plan.criterion();
    let mut rows = Vec::new();
    for operation in Operation::ALL {
        rows.extend(bench(plan, &mut criterion, operation, &settings).map(Lockstep::into_row));
    }
    criterion.final_summary();
    drop(settings);
    if rows.is_empty() {
        return Ok(());
    }
    let page = Page {
        title: "Calls".to_owned(),
        conditions: Page::conditions(scratch.path()),
        unit: Unit::Micros,
        kinds,
        rows,
    };
    publish(&page, &target.join("goanna-bench.md"))
}

/// Starts a tracee in every setting whose programs exist.
fn start(plan: &Plan, scratch: &Path) -> Result<Vec<Setting>, Error> {
    let mut settings = Vec::new();
    if plan.list {
        return Ok(settings);
    }
    let binaries = Binaries::beside(Path::new(TRACEE));
    for kind in Kind::ALL {
        if let Err(missing) = kind.program(&binaries) {
            eprintln!("calls: without {missing}");
            continue;
        }
        let mut setting = Setting::start(kind, &binaries, scratch)?;
        for failure in setting.check()? {
            eprintln!("calls: not measured: {failure}");
        }
        settings.push(setting);
    }
    Ok(settings)
}

/// Runs one benchmark of criterion per setting. Returns the rounds, if the filter selects any setting.
fn bench(
    plan: &Plan,
    criterion: &mut Criterion,
    operation: Operation,
    settings: &RefCell<Vec<Setting>>,
) -> Option<Lockstep> {
    let rounds: RefCell<Option<Lockstep>> = RefCell::new(None);
    let sample = |setting: usize, round: usize| {
        let mut settings = settings.borrow_mut();
        let mut rounds = rounds.borrow_mut();
        let lockstep = match &mut *rounds {
            Some(lockstep) => lockstep,
            empty => empty.insert(Lockstep::new(operation, &mut settings, plan.sample())?),
        };
        lockstep.sample(&mut settings, setting, round)
    };
    let once = |setting: usize| match settings.borrow_mut().get_mut(setting) {
        Some(setting) => setting
            .measure(operation, 1)
            .map(|elapsed| Some(elapsed.as_nanos() as f64)),
        None => Ok(None),
    };

    let mut group = criterion.benchmark_group(operation.name());
    group.sampling_mode(SamplingMode::Flat);
    let able: Vec<(usize, Kind)> = settings
        .borrow()
        .iter()
        .enumerate()
        .filter(|(_, setting)| setting.is_able(operation))
        .map(|(at, setting)| (at, setting.kind()))
        .collect();
    for (at, kind) in able {
        let round = Cell::new(0);
        group.bench_function(kind.name(), |bencher| {
            bencher.iter_custom(|iterations| {
                let ns = if plan.test {
                    once(at)
                } else {
                    sample(at, round.get())
                };
                round.set(round.get() + 1);
                match ns {
                    Ok(ns) => Duration::from_secs_f64(ns.unwrap_or(0.0) * iterations as f64 / 1e9),
                    Err(error) => {
                        // Criterion has no hook for this: ends tracees and mounts before the process exits.
                        settings.borrow_mut().clear();
                        eprintln!("calls: {error}");
                        exit(1)
                    }
                }
            });
        });
    }
    group.finish();
    rounds.into_inner()
}

fn publish(page: &Page, path: &Path) -> Result<(), Error> {
    let text = page.markdown();
    println!("\n{text}");
    fs::write(path, text).map_err(Error::io("write", path))?;
    println!("This page is in {}", path.display());
    Ok(())
}
