//! What tracing costs a program: a program that does what Postmark does, native, under `goanna-trace` and under `strace`, in turns. Prints
//! the table of `docs/overhead.md`. `GOANNA_ROUNDS=N` sets how often each runs.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const LIGHT: [&str; 4] = ["openat", "close", "read", "write"];
const MEDIUM: [&str; 5] = ["openat", "close", "read", "write", "unlink"];

/// A way to run the program: its name, and what stands before the program.
type Way = (&'static str, Vec<String>);

fn ways(trace: &str) -> Vec<Way> {
    let ours = |filter: &str, more: &[&str]| {
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
    };
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
        ("full, zstd", ours("", &["--compress", "zstd"])),
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
    ]
}

fn run(way: &[String], program: &[&str], directory: &Path) -> Option<Duration> {
    let mut words = way
        .iter()
        .map(String::as_str)
        .chain(program.iter().copied());
    let began = Instant::now();
    let status = Command::new(words.next()?)
        .args(words)
        .current_dir(directory)
        .stdin(Stdio::null())
        .status()
        .ok()?;
    status.success().then(|| began.elapsed())
}

fn main() -> ExitCode {
    // `cargo test` runs benches, too, to see that they start.
    if !std::env::args().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let rounds = std::env::var("GOANNA_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let rounds = rounds.unwrap_or(7_usize).max(1);
    let Ok(directory) = tempfile::tempdir() else {
        return ExitCode::FAILURE;
    };
    let place = directory.path();
    let program = place.join("postmark");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/postmark.c");
    let compiled = Command::new("cc")
        .args(["-O2", "-o"])
        .args([program.as_os_str(), source.as_ref()])
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        return ExitCode::FAILURE;
    }
    let trace = place.join("trace").display().to_string();
    let program = program.display().to_string();
    let work = [program.as_str(), "500", "2000"];
    println!("| | median | to native |\n|---|---|---|");
    let ways = ways(&trace);
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for ((_, way), times) in ways.iter().zip(&mut times) {
            times.extend(run(way, &work, place));
        }
    }
    let mut native = None;
    for ((name, _), times) in ways.iter().zip(&mut times) {
        times.sort();
        let Some(&median) = times.get(times.len() / 2) else {
            println!("| {name} | not run | |");
            continue;
        };
        let native = *native.get_or_insert(median);
        let ratio = median.as_secs_f64() / native.as_secs_f64();
        println!(
            "| {name} | {:.1} ms | {ratio:.2} |",
            median.as_secs_f64() * 1e3
        );
    }
    unselected(&program, &trace, place, rounds);
    ExitCode::SUCCESS
}

/// A long run of calls that the filter does not select: what is left is the start of the tracer.
fn unselected(program: &str, trace: &str, place: &Path, rounds: usize) {
    let work = [program, "1", "100000", "only"];
    let ours: Vec<String> = [env!("CARGO_BIN_EXE_goanna-trace"), "-o", trace, "--"]
        .map(String::from)
        .to_vec();
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        times[0].extend(run(&[], &work, place));
        times[1].extend(run(&ours, &work, place));
    }
    for times in &mut times {
        times.sort();
    }
    if let [Some(native), Some(traced)] = times.map(|times| times.get(times.len() / 2).copied()) {
        let ratio = traced.as_secs_f64() / native.as_secs_f64();
        println!(
            "\n10,000,000 calls that are not selected: {native:.2?} native, {traced:.2?} traced, {ratio:.3}"
        );
    }
}
