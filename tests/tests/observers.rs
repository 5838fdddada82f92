//! What observers see of a program: each call once, with its arguments and its result, whoever performs it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use goanna_tests::program;
use serde_json::Value as Json;
use tempfile::TempDir;

/// Runs `command` with the observer of `src/bin/observe.rs`; what it has seen.
#[track_caller]
fn observe(dir: &Path, wanted: &str, mount: &str, command: &[&str]) -> Vec<Json> {
    let out = dir.join("seen");
    let output = Command::new(env!("CARGO_BIN_EXE_observe"))
        .arg(&out)
        .args([wanted, mount, "--"])
        .args(command)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let seen = fs::read_to_string(out).unwrap();
    seen.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn mounts(dir: &TempDir) -> [String; 2] {
    let host = dir.path().join("host");
    fs::create_dir(&host).unwrap();
    let store = dir.path().join("store");
    [
        format!("pass={}:/observed", host.display()),
        format!("amino={}:/observed", store.display()),
    ]
}

/// The calls of each thread between its markers, as the program `observed` writes them down.
fn between_markers(seen: &[Json]) -> BTreeMap<i64, Vec<String>> {
    let mut open = BTreeMap::new();
    let mut all = BTreeMap::new();
    for event in seen.iter().filter(|event| event["event"] == "call") {
        let tid = event["tid"].as_i64().unwrap();
        let name = event["name"].as_str().unwrap();
        match event["args"][0]["given"].as_str() {
            Some("/begin") if name == "access" => {
                open.insert(tid, Vec::new());
            }
            Some("/end") if name == "access" => {
                all.extend(open.remove(&tid).map(|calls| (tid, calls)))
            }
            _ => {
                let calls = open.get_mut(&tid);
                calls
                    .into_iter()
                    .for_each(|calls| calls.push(line(name, &event["result"])));
            }
        }
    }
    all
}

fn line(name: &str, result: &Json) -> String {
    // The libraries' fork(2) is clone(2). What a signal has ended has the kernel's own result.
    match result.as_i64() {
        Some(-512 | -4) => format!("{name} EINTR -4"),
        result => format!("{name} {}", result.unwrap_or(0)),
    }
}

fn every_call_once(processes: usize) {
    let dir = TempDir::new().unwrap();
    let program = program("observed", dir.path(), false);
    for mount in mounts(&dir) {
        let logs = dir.path().join("logs");
        fs::create_dir(&logs).unwrap();
        let (count, logs_arg) = (processes.to_string(), logs.to_str().unwrap());
        let command = [program.to_str().unwrap(), "/observed", logs_arg, &count];
        let mut seen = between_markers(&observe(dir.path(), "files", &mount, &command));
        let mut threads = 0;
        for entry in fs::read_dir(&logs).unwrap() {
            let entry = entry.unwrap();
            let tid: i64 = entry.file_name().to_str().unwrap().parse().unwrap();
            let made = fs::read_to_string(entry.path()).unwrap();
            let made: Vec<&str> = made.lines().collect();
            assert_eq!(
                seen.remove(&tid).unwrap_or_default(),
                made,
                "{mount}: thread {tid}"
            );
            threads += 1;
        }
        assert_eq!(threads, 1 + 2 * processes);
        assert!(seen.is_empty(), "{seen:?}");
        fs::remove_dir_all(&logs).unwrap();
    }
}

#[test]
fn every_call_is_seen_once_with_its_result() {
    every_call_once(0);
}

#[test]
fn twenty_processes_at_once_lose_and_double_nothing() {
    every_call_once(20);
}

#[test]
fn paths_and_descriptors_are_those_that_the_program_knows() {
    let dir = TempDir::new().unwrap();
    for mount in mounts(&dir) {
        let is_pass = mount.starts_with("pass");
        let script = "cd /observed && mkdir -p d && echo text > d/f && ln -sf d/f l && cat l";
        let seen = observe(dir.path(), "files", &mount, &["sh", "-c", script]);
        let calls = |name: &'static str| seen.iter().filter(move |event| event["name"] == name);
        let reads: Vec<_> = calls("read")
            .filter(|call| {
                // Of a pass mount the kernel has the host's own file.
                let file = call["args"][0]["file"].as_str();
                file.is_some_and(|file| {
                    file.ends_with(if is_pass {
                        "/host/d/f"
                    } else {
                        "/observed/d/f"
                    })
                })
            })
            .collect();
        assert_eq!(
            reads.first().map(|call| &call["result"]),
            Some(&Json::from(5)),
            "{mount}"
        );
        assert_eq!(reads[0]["files"][0]["size"], 5);
        let opened = calls("openat")
            .find(|call| call["args"][1]["given"] == "l")
            .unwrap();
        assert_eq!(opened["args"][1]["resolved"], "/observed/d/f", "{mount}");
        assert_eq!(opened["args"][0]["file"], "/observed", "{mount}");
        assert_eq!(opened["answered"], true, "{mount}");
        let linked = calls("symlinkat").next().unwrap();
        assert_eq!(linked["args"][2]["resolved"], "/observed/l", "{mount}");
        let of = |kind: &'static str| seen.iter().filter(|event| event["event"] == kind).count();
        assert_eq!(of("began"), of("ended"), "{mount}");
        let cat = seen
            .iter()
            .find(|event| event["event"] == "executed" && event["comm"] == "cat")
            .unwrap();
        assert_eq!(cat["program"], "/usr/bin/cat");
    }
}

#[test]
fn only_calls_of_interest_are_seen() {
    let dir = TempDir::new().unwrap();
    for mount in mounts(&dir) {
        let seen = observe(
            dir.path(),
            "unlinkat,unlink",
            &mount,
            &["sh", "-c", "cd /observed; echo a > f; rm f"],
        );
        let calls: Vec<_> = seen
            .iter()
            .filter(|event| event["event"] == "call")
            .collect();
        assert_eq!(calls.len(), 1, "{calls:?}");
        assert_eq!(calls[0]["args"][1]["resolved"], "/observed/f");
        assert_eq!(calls[0]["result"], 0);
    }
}

/// The program changes the path of its calls from another thread.
#[test]
fn the_path_of_an_answered_call_is_the_one_that_was_opened() {
    let dir = TempDir::new().unwrap();
    let program = program("changes_its_path", dir.path(), true);
    for mount in mounts(&dir) {
        let command = [program.to_str().unwrap(), "/observed"];
        let seen = observe(dir.path(), "open,openat", &mount, &command);
        let answered = seen.iter().filter(|call| {
            let is_read = call["args"][2] == 0;
            is_read && call["answered"] == true && call["result"].as_i64() >= Some(0)
        });
        let mut opened = [0, 0];
        for call in answered.filter(|call| call["args"][1]["given"] != "/etc/ld.so.cache") {
            let given = call["args"][1]["given"].as_str().unwrap();
            let files = call["files"].as_array().unwrap();
            let file = files.iter().find(|file| file["index"] == 6).unwrap();
            let path = file["path"].as_str().unwrap();
            let is_pass = mount.starts_with("pass");
            // Of a pass mount the kernel has the host's own file.
            let name = |path: &str| path.rsplit('/').next().unwrap().to_owned();
            assert!(is_pass || path == given, "{mount}: {call}");
            assert_eq!(name(path), name(given), "{mount}: {call}");
            opened[usize::from(given.ends_with('b'))] += 1;
        }
        assert_eq!(opened[0] + opened[1], 2000, "{mount}: {opened:?}");
    }
}
