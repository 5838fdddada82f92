//! `amino run --trace FILE` (through aminod) and `goanna run --trace FILE`: the trace has each call of the program once, with its result. And `goanna-trace` records calls inside programs with other C
//! libraries.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use goanna_skip::{Facility, skip};
use goanna_syscalls::by_name;
use goanna_tests::{Backend, Place, fill_padding, finish, in_every_place, program};
use serde_json::Value as Json;

in_every_place! {
    calls => each_call_is_in_the_trace_with_its_result;
    crowd => the_calls_of_many_processes_are_in_the_trace;
    status => the_trace_ends_with_the_command;
    cpus => programs_have_their_own_cpus_whenever_they_ask;
}

/// The program `goanna-trace`.
fn tool() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let tool = own.ancestors().nth(2).unwrap().join("goanna-trace");
    assert!(
        tool.is_file(),
        "build it with: cargo build --workspace --bins"
    );
    tool
}

/// The records of a trace.
fn records(trace: &Path) -> Vec<Json> {
    let output = Command::new(tool())
        .args(["export", "--format", "json", "-o", "-"])
        .arg(trace)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A record of a call, as the program `observed` writes it down.
fn line(record: &Json) -> String {
    let result = match record["result"].as_i64() {
        // What a signal has ended has the kernel's own result.
        Some(-512 | -4) => "EINTR -4".to_owned(),
        result => result.unwrap_or(0).to_string(),
    };
    format!("{} {result}", record["message"].as_str().unwrap())
}

/// The calls of each thread between its markers.
fn between_markers(records: &[Json]) -> BTreeMap<i64, Vec<&Json>> {
    let mut open = BTreeMap::new();
    let mut all = BTreeMap::new();
    for record in records {
        let (Some(tid), Some(name)) = (record["tid"].as_i64(), record["message"].as_str()) else {
            continue;
        };
        match record["filename"].as_str().or(record["pathname"].as_str()) {
            Some("/begin") if name == "access" => drop(open.insert(tid, Vec::new())),
            Some("/end") if name == "access" => {
                all.extend(open.remove(&tid).map(|calls| (tid, calls)));
            }
            _ => open
                .get_mut(&tid)
                .into_iter()
                .for_each(|calls: &mut Vec<&Json>| calls.push(record)),
        }
    }
    all
}

/// Runs the program `observed` in `place`; its own log of each thread, and the records of the trace.
fn run(place: &Place, processes: usize) -> (BTreeMap<i64, Vec<String>>, Vec<Json>) {
    let program = program("observed", &place.path(""), false);
    let (logs, trace) = (place.make_dir("logs"), place.path("host").join("trace"));
    let mut command = place.run_with(&["--trace", trace.to_str().unwrap()]);
    command.arg(program).arg(place.top()).arg(&logs);
    finish(command.arg(processes.to_string())).expect(0);
    let mut made = BTreeMap::new();
    for entry in fs::read_dir(&logs).unwrap() {
        let entry = entry.unwrap();
        let tid = entry.file_name().to_str().unwrap().parse().unwrap();
        let text = fs::read_to_string(entry.path()).unwrap();
        made.insert(tid, text.lines().map(str::to_owned).collect());
    }
    (made, records(&trace))
}

fn compare(made: &BTreeMap<i64, Vec<String>>, records: &[Json]) {
    let mut seen = between_markers(records);
    for (tid, made) in made {
        let seen = seen.remove(tid).unwrap_or_default();
        let seen: Vec<String> = seen.into_iter().map(line).collect();
        assert_eq!(&seen, made, "thread {tid}");
    }
    assert!(seen.is_empty(), "{seen:?}");
}

fn each_call_is_in_the_trace_with_its_result(place: Place) {
    let (made, records) = run(&place, 0);
    assert_eq!(made.len(), 1);
    compare(&made, &records);
    let seen = between_markers(&records);
    let calls = || seen.values().flatten();
    assert!(calls().all(|call| call["time"].is_u64() && call["duration"].is_u64()));
    // The monitor answers calls on a mount, the kernel the others.
    let performers: Vec<u64> = calls().filter_map(|it| it["treatment"].as_u64()).collect();
    assert!(performers.contains(&0) && performers.contains(&1));
    if let Some(native) = by_strace(&place) {
        let names = calls().filter_map(|call| call["message"].as_str());
        let names: Vec<&str> = names.filter(|name| concerns_files(name)).collect();
        assert_eq!(names, native);
    }
}

fn concerns_files(name: &str) -> bool {
    by_name(name).is_some_and(goanna_syscalls::Signature::concerns_files)
}

/// The names of the calls on files that the program's first thread makes natively, as strace sees them.
fn by_strace(place: &Place) -> Option<Vec<String>> {
    let program = place.path("observed");
    let (directory, logs) = (place.make_dir("native"), place.make_dir("logs"));
    let output = place.make_dir("strace");
    let mut strace = place.native("strace");
    strace
        .args(["-ff", "-q", "-a0", "-o"])
        .arg(output.join("of"))
        .arg(program);
    let status = strace.args([&directory, &logs]).arg("0").status();
    if status.is_err() {
        skip(Facility::Program, "strace");
        return None;
    }
    assert!(status.unwrap().success());
    let files = fs::read_dir(output).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let tid = |path: &PathBuf| path.extension()?.to_str()?.parse::<i32>().ok();
    let text = fs::read_to_string(files.min_by_key(tid).unwrap()).unwrap();
    let calls = text.lines().filter_map(|line| line.split_once('('));
    let is_marker = |call: &(&str, &str), marker: &str| {
        call.0 == "access" && call.1.starts_with(&format!("\"{marker}\""))
    };
    let calls = calls
        .skip_while(|call| !is_marker(call, "/begin"))
        .skip(1)
        .take_while(|call| !is_marker(call, "/end"));
    let calls: Vec<_> = calls.filter(|call| concerns_files(call.0)).collect();
    // The kernel restarts a call that a signal has ended; for the monitor that is one call.
    let begins = |call: &(&str, &str)| {
        (
            call.0.to_owned(),
            call.1.split(',').next().map(str::to_owned),
        )
    };
    let is_restarted = |at: usize| {
        let (call, next) = (&calls[at], calls.get(at + 1));
        call.1.contains("ERESTART") && next.is_some_and(|next| begins(next) == begins(call))
    };
    let once = (0..calls.len()).filter(|&at| !is_restarted(at));
    Some(once.map(|at| calls[at].0.to_owned()).collect())
}

fn the_calls_of_many_processes_are_in_the_trace(place: Place) {
    let (made, records) = run(&place, 5);
    assert_eq!(made.len(), 11);
    compare(&made, &records);
}

fn the_trace_ends_with_the_command(place: Place) {
    let trace = place.path("host").join("trace");
    let options = ["--trace", trace.to_str().unwrap()];
    let mut command = place.shell_with(&options, "echo text > file; exit 3");
    finish(&mut command).expect(3);
    let records = records(&trace);
    let of = |message: &'static str| {
        let all = records.iter();
        all.filter(move |record| record["message"] == message)
    };
    let file = format!("{}/file", place.top());
    let created = of("openat")
        .find(|call| call["pathname"] == "file")
        .unwrap();
    assert_eq!(created["pathname.resolved"], file.as_str());
    let is_amino = matches!(place.backend(), Backend::Amino(_));
    assert_eq!(created["result.path"] == file.as_str(), is_amino);
    // A call that does not return has the time of its entry.
    let exit = of("exit_group").next_back().unwrap();
    assert_eq!(exit["status"], 3);
    assert!(exit["time"].is_u64() && exit["result"].is_null(), "{exit}");
    let ended = of("ended").next_back().unwrap();
    assert_eq!(ended["status"], 3 << 8);
}

/// The supervisor keeps threads that stop often on its CPU.
fn programs_have_their_own_cpus_whenever_they_ask(place: Place) {
    let program = program("asks_for_cpus", &place.path(""), false);
    let answers = |name: &str, command: &mut Command| {
        let file = place.make_dir("answers").join(name);
        finish(command.arg(&program).arg(&file)).expect(0);
        fs::read_to_string(file).unwrap()
    };
    let native = answers("native", &mut place.native("env"));
    assert!(native.lines().count() > 50, "{native}");
    let trace = place.path("host").join("trace");
    let traced = ["--trace", trace.to_str().unwrap()];
    for round in 0..4 {
        let options = if round % 2 == 0 { &traced[..] } else { &[] };
        let answers = answers(&format!("{round}"), &mut place.run_with(options));
        assert_eq!(answers, native, "{options:?}");
    }
}

/// Where there is no space behind the code of the C library, the code of its sites is in memory of its own.
#[test]
fn calls_are_recorded_in_programs_with_other_c_libraries() {
    let place = Place::pass();
    let program = program("unstopped", &place.path("."), false);
    for kind in ["usual", "without space"] {
        let dir = place.make_dir("lib");
        let library = dir.join("libc.so.6");
        fs::copy("/lib/x86_64-linux-gnu/libc.so.6", &library).unwrap();
        if kind == "without space" {
            fill_padding(&library);
        }
        let trace = place.path("trace");
        let mut command = Command::new(tool());
        command.arg("-o").arg(&trace).arg("--").arg(&program);
        let ended = finish(command.env("LD_LIBRARY_PATH", &dir)).expect(0);
        let waits: u64 = ended.text().trim().parse().unwrap();
        // Without the recorder, 3,120 calls stop twice each.
        assert!(waits < 300, "{kind}: {waits}");
        let records = records(&trace);
        for (name, path) in [
            ("statx", "/etc/passwd"),
            ("access", "/etc/passwd"),
            ("faccessat", "/etc/passwd"),
            ("openat", "/etc/passwd"),
            ("unlink", "/etc/none"),
        ] {
            let is_one = |record: &&Json| record["message"] == name && record["pathname"] == path;
            let recorded = records.iter().filter(is_one).count();
            assert_eq!(recorded, 300, "{kind}: {name}");
        }
    }
}
