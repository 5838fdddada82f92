//! `cargo xtask fuzz`: builds the fuzz targets of tests/fuzz with the flags that libFuzzer needs, and runs one after the other.

use std::fs;
use std::process::Command;

use crate::ci::{Error, cargo, complete, workspace};

const STEP: &str = "fuzz";
/// Counters of edges and comparisons, as libFuzzer reads them. These are options of LLVM, so the stable compiler takes them.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";
/// If the platform is named, the flags do not apply to build scripts and macros, which are not linked with libFuzzer.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
const DIRECTORY: &str = "target/fuzz";
/// Maximum time for an input, in seconds.
const TIME_MAX: u32 = 20;
/// Maximum memory for an input, in MiB.
const MEMORY_MAX: u32 = 2048;
/// Longest input, in bytes.
const LEN_MAX: u32 = 24_000;

/// Runs these targets, each for so many seconds.
///
/// # Errors
///
/// A build that fails, a name that is not a target's, and an input that makes a target fail.
pub fn run(targets: &[String], seconds: u32) -> Result<(), Error> {
    for target in targets {
        eprintln!("xtask: fuzz {target}");
        complete(STEP, &mut fuzzer(target, seconds)?)?;
    }
    Ok(())
}

fn fuzzer(target: &str, seconds: u32) -> Result<Command, Error> {
    let corpus = format!("{DIRECTORY}/corpus/{target}");
    let failures = format!("{DIRECTORY}/failures");
    for directory in [&corpus, &failures] {
        let made = fs::create_dir_all(workspace().join(directory));
        made.map_err(|source| Error::Io {
            step: STEP.to_owned(),
            command: directory.clone(),
            source,
        })?;
    }
    let mut fuzzer = cargo(&["run", "--quiet", "--package", "goanna-fuzz"]);
    fuzzer
        .args(["--features", "libfuzzer", "--profile", STEP])
        .args(["--target", PLATFORM, "--target-dir", DIRECTORY, "--"])
        .arg(&corpus)
        .arg(format!("-artifact_prefix={failures}/{target}-"))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={TIME_MAX}"))
        .arg(format!("-rss_limit_mb={MEMORY_MAX}"))
        .arg(format!("-max_len={LEN_MAX}"))
        .env("RUSTFLAGS", FLAGS)
        .env("GOANNA_FUZZ_TARGET", target)
        .env("GOANNA_FUZZ_SEEDS", &corpus);
    Ok(fuzzer)
}
