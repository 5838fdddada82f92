//! Measures the cost of tracing a program: native, under `goanna-trace`, `strace` and `perf trace`, in turns. Prints the tables of `docs/overhead.md`.
//!
//! The programs are a reimplementation of Postmark, and a build: `GOANNA_BUILD=DIR` names a configured source of OpenSSH, of which the bench
//! makes `ssh`. `GOANNA_ROUNDS=N` sets how often each program runs in each way, `GOANNA_WAYS=TEXT` leaves out the ways without that text in their name.
//! Besides the time on the clock, each table has the time on the CPU, which other programs disturb less: that of the program, of the tracer, and
//! of all their children.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

const LIGHT: [&str; 4] = ["openat", "close", "read", "write"];
const MEDIUM: [&str; 5] = ["openat", "close", "read", "write", "unlink"];

/// A way to run the program: its name, and the command that precedes the program.
type Way = (&'static str, Vec<String>);

/// The command that traces a program into `trace` by goanna-trace.
fn goanna_trace(trace: &str, filter: &str, more: &[&str]) -> Vec<String> {
    let mut all = vec![
        env!("CARGO_BIN_EXE_goanna-trace").into(),
        "-o".into(),
        trace.into(),
    ];
    if !filter.is_empty() {
        all.extend(["--filter".into(), filter.into()]);
    }
    all.extend(more.iter().map(|more| more.to_string()));
    all.push("--".into());
    all
}

fn ways(trace: &str, key: &str) -> Vec<Way> {
    let ours = |filter: &str, more: &[&str]| goanna_trace(trace, filter, more);
    let selecting = |calls: &[&str]| format!("call in {{{}}}", calls.join(", "));
    let strace = |more: &[&str]| {
        let all = [&["strace", "-f", "-o", trace], more].concat();
        all.into_iter().map(String::from).collect::<Vec<_>>()
    };
    let seccomp = |calls: &[&str]| {
        let calls = format!("trace={}", calls.join(","));
        strace(&["--seccomp-bpf", "-e", &calls])
    };
    let all = "trace=%file,%desc,%memory,%process";
    vec![
        ("native", Vec::new()),
        ("full", ours("", &[])),
        ("full, --no-fast-path", ours("", &["--no-fast-path"])),
        ("full, zstd", ours("", &["--compress", "zstd"])),
        ("full, HMAC-SHA-256", ours("", &["--hmac-key", key])),
        ("full, AES-256-GCM", ours("", &["--encrypt-key", key])),
        (
            "full, zstd, AES, HMAC",
            ours(
                "",
                &[
                    "--compress",
                    "zstd",
                    "--encrypt-key",
                    key,
                    "--hmac-key",
                    key,
                ],
            ),
        ),
        ("full, --sync-writes", ours("", &["--sync-writes"])),
        ("full, aggregate", ours("", &["--assemble", "aggregate"])),
        (
            "full, --fields time,process,arguments,results",
            ours("", &["--fields", "time,process,arguments,results"]),
        ),
        ("medium", ours(&selecting(&MEDIUM), &[])),
        ("light", ours(&selecting(&LIGHT), &[])),
        ("nothing selected", ours("call == mount", &[])),
        ("strace -f -o", strace(&[])),
        (
            "strace --seccomp-bpf, full",
            strace(&["--seccomp-bpf", "-e", all]),
        ),
        (
            "strace --seccomp-bpf -y -T, full",
            strace(&["--seccomp-bpf", "-y", "-T", "-e", all]),
        ),
        ("strace --seccomp-bpf, medium", seccomp(&MEDIUM)),
        ("strace --seccomp-bpf, light", seccomp(&LIGHT)),
        (
            "perf trace",
            ["perf", "trace", "-o", trace, "--"]
                .map(String::from)
                .to_vec(),
        ),
    ]
}

/// How long a run took: on the clock, and on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    clock: Duration,
    cpu: Duration,
}

/// The time on the CPU of all children that have ended.
fn cpu() -> Option<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    let both = usage.user_time() + usage.system_time();
    Some(Duration::from_micros(
        both.num_microseconds().unsigned_abs(),
    ))
}

fn run(way: &[String], program: &[&str], directory: &Path) -> Option<Cost> {
    let mut words = way
        .iter()
        .map(String::as_str)
        .chain(program.iter().copied());
    let before = cpu()?;
    let began = Instant::now();
    let status = Command::new(words.next()?)
        .args(words)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .ok()?;
    let clock = began.elapsed();
    let cpu = cpu()?.saturating_sub(before);
    status.success().then_some(Cost { clock, cpu })
}

/// The runs of a way, one a round; `None` for a run that failed.
type Runs = Vec<Option<Cost>>;

/// A part of [`Cost`].
type Part = fn(&Cost) -> Duration;

const CLOCK: Part = |it| it.clock;
const CPU: Part = |it| it.cpu;

/// The median time of some runs in milliseconds, and their median ratio to the native run of the same round. A disturbance that lasts longer than a
/// round affects both runs, and hardly changes the ratio.
fn medians(runs: &Runs, native: &Runs, part: Part) -> Option<(f64, f64)> {
    let times = runs.iter().flatten();
    let times = times.map(|it| part(it).as_secs_f64() * 1e3).collect();
    let pairs = runs.iter().zip(native).filter_map(|(run, native)| {
        let (run, native) = (run.as_ref()?, native.as_ref()?);
        Some(part(run).as_secs_f64() / part(native).as_secs_f64())
    });
    Some((median(times)?, median(pairs.collect())?))
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

/// Runs a program in each way, `rounds` times in turns, and prints a table. `prepare` is called before each run.
fn table(
    ways: &[Way],
    program: &[&str],
    directory: &Path,
    rounds: usize,
    prepare: &dyn Fn() -> Option<()>,
) {
    let mut all: Vec<Runs> = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for ((_, way), runs) in ways.iter().zip(&mut all) {
            runs.push(prepare().and_then(|()| run(way, program, directory)));
        }
    }
    println!("| | clock | to native | CPU | to native |\n|---|---|---|---|---|");
    let Some(native) = all.first() else { return };
    for ((name, _), runs) in ways.iter().zip(&all) {
        let both = (medians(runs, native, CLOCK), medians(runs, native, CPU));
        match both {
            (Some((clock, to_clock)), Some((cpu, to_cpu))) => {
                println!("| {name} | {clock:.0} ms | {to_clock:.2} | {cpu:.0} ms | {to_cpu:.2} |")
            }
            _ => println!("| {name} | not run | | | |"),
        }
    }
}

/// Compiles the reimplementation of Postmark.
fn postmark(place: &Path) -> Option<PathBuf> {
    let program = place.join("postmark");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/postmark.c");
    let compiled = Command::new("cc")
        .args(["-O2", "-o"])
        .args([program.as_os_str(), source.as_ref()])
        .status();
    compiled.ok()?.success().then_some(program)
}

fn main() -> ExitCode {
    // `cargo test` runs benches, too, to see that they start.
    if !env::args().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    match measure() {
        Some(()) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    }
}

fn measure() -> Option<()> {
    let rounds = env::var("GOANNA_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let rounds = rounds.unwrap_or(7_usize).max(1);
    let directory = tempfile::tempdir().ok()?;
    let place = directory.path();
    let program = postmark(place)?.display().to_string();
    let trace = place.join("trace").display().to_string();
    let key = place.join("key");
    fs::write(&key, [7; 32]).ok()?;
    let mut ways = ways(&trace, &key.display().to_string());
    if let Ok(text) = env::var("GOANNA_WAYS") {
        ways.retain(|(name, _)| *name == "native" || name.contains(&text));
    }
    println!("Postmark, {rounds} rounds:\n");
    let work = [program.as_str(), "500", "2000"];
    table(&ways, &work, place, rounds, &|| Some(()));
    unselected(&program, &trace, place, rounds);
    if let Some(source) = env::var_os("GOANNA_BUILD").map(PathBuf::from) {
        println!("\nThe build of ssh, {rounds} rounds:\n");
        let clean = || {
            let make = Command::new("make")
                .args(["-s", "clean"])
                .current_dir(&source)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            make.ok()?.success().then_some(())
        };
        table(&ways, &["make", "-s", "ssh"], &source, rounds, &clean);
    }
    Some(())
}

/// Measures programs of which the filter selects no call. The remaining costs are the start and the end of the tracer, the kernel's check of the
/// seccomp filter at each call, and the stops at the begin and the end of processes.
fn unselected(program: &str, trace: &str, place: &Path, rounds: usize) {
    let ours = [
        env!("CARGO_BIN_EXE_goanna-trace"),
        "-o",
        trace,
        "--filter",
        "call == mount",
        "--",
    ];
    let ours: Vec<String> = ours.map(String::from).to_vec();
    let processes = "i=0; while [ $i -lt 1000 ]; do /bin/true; i=$((i+1)); done";
    let programs: [(&str, &[&str]); 4] = [
        ("/bin/true", &["/bin/true"]),
        (
            "Postmark, 500 files, 40,000 transactions",
            &[program, "500", "40000"],
        ),
        ("10,000,000 getppid(2)", &[program, "1", "100000", "only"]),
        ("1,000 processes one by one", &["sh", "-c", processes]),
    ];
    println!("\nNothing selected, {rounds} rounds:\n");
    println!("| | native | traced | ratio | CPU, native | traced | ratio |");
    println!("|---|---|---|---|---|---|---|");
    for (name, work) in programs {
        let mut native = Runs::new();
        let mut traced = Runs::new();
        for _ in 0..rounds {
            native.push(run(&[], work, place));
            traced.push(run(&ours, work, place));
        }
        let cell = |part| {
            let (before, _) = medians(&native, &native, part)?;
            let (after, ratio) = medians(&traced, &native, part)?;
            Some(format!("{before:.1} ms | {after:.1} ms | {ratio:.3}"))
        };
        match (cell(CLOCK), cell(CPU)) {
            (Some(clock), Some(cpu)) => println!("| {name} | {clock} | {cpu} |"),
            _ => println!("| {name} | not run | | | | | |"),
        }
    }
}
