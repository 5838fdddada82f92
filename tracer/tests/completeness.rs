//! Each call that `strace -f` sees in a run of a program is captured in another run, with the same arguments and the same result.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod capturing;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use capturing::{calls, capture, of_command};
use goanna_skip::{Facility, skip};
use goanna_syscalls::{Kind, Returns, Signature, by_name, signature};
use goanna_tracer::capture::ptrace::Recorded;
use goanna_tracer::capture::{CaptureEnd, Data};
use goanna_tracer::event::Call;
use goanna_tracer::select::Filter;

/// The compared parts of a call: its name, the arguments that are neither addresses nor process ids, and its result.
fn normal(signature: &Signature, args: &[u64], result: Option<i64>) -> String {
    let values = signature.params.iter().zip(args).map(|(param, &value)| {
        let value = match param.bits {
            16 => value & 0xffff,
            32 => value & 0xffff_ffff,
            _ => value,
        };
        match param.kind {
            Kind::Signed
            | Kind::Unsigned
            | Kind::Descriptor
            | Kind::Directory
            | Kind::Flags(_)
            | Kind::Choice(_)
            | Kind::Offset
            | Kind::Size
            | Kind::Count
            | Kind::Signal => format!("{value:#x}"),
            _ => "_".into(),
        }
    });
    let values: Vec<String> = values.collect();
    let result = match (signature.returns, result) {
        (_, None) => "?".into(),
        (_, Some(result)) if result < 0 => result.to_string(),
        (Returns::Address, _) => "ADDRESS".into(),
        (Returns::Pid, Some(result)) if result > 0 => "PID".into(),
        (_, Some(result)) => result.to_string(),
    };
    format!("{}({}) = {result}", signature.name, values.join(", "))
}

fn of_call(call: &Call) -> String {
    let signature = call.call.signature.unwrap();
    let result = call.outcome.map(|outcome| outcome.result);
    normal(signature, &call.call.raw, result)
}

/// A call with the descriptors that it takes and returns left out: threads that run at the same time get each other's numbers.
fn without_descriptors(call: &str) -> String {
    let (name, rest) = call.split_once('(').unwrap();
    let (args, result) = rest.rsplit_once(" = ").unwrap();
    let signature = by_name(name).unwrap();
    let args = args
        .strip_suffix(')')
        .unwrap()
        .split(", ")
        .zip(signature.params);
    let args = args.map(|(value, param)| match param.kind {
        Kind::Descriptor | Kind::Directory => "_",
        _ => value,
    });
    let args: Vec<&str> = args.collect();
    let result = match signature.returns {
        Returns::Descriptor if !result.starts_with('-') => "FD",
        _ => result,
    };
    format!("{name}({}) = {result}", args.join(", "))
}

/// A line of `strace -e raw=all`.
fn of_line(line: &str, errnos: &HashMap<String, i64>) -> Option<String> {
    let (name, rest) = line.split_once('(')?;
    let (args, result) = rest.rsplit_once(" = ")?;
    let args = args.trim_end().strip_suffix(')')?;
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    let args: Vec<u64> = args.split(", ").filter_map(number).collect();
    let mut words = result.split_ascii_whitespace();
    let result = match (words.next()?, words.next()) {
        ("-1", Some(errno)) => Some(errnos[errno]),
        ("?", Some(errno)) => Some(errnos[errno]),
        ("?", None) => None,
        (number_text, _) => Some(number(number_text)? as i64),
    };
    Some(normal(by_name(name)?, &args, result))
}

fn errnos() -> HashMap<String, i64> {
    let known = (1..134).map(|errno| {
        (
            format!("{:?}", goanna_sys::Errno::from_raw(errno)),
            -i64::from(errno),
        )
    });
    let kernels = [
        ("ERESTARTSYS", -512),
        ("ERESTARTNOINTR", -513),
        ("ERESTARTNOHAND", -514),
        ("ERESTART_RESTARTBLOCK", -516),
    ];
    known
        .chain(kernels.map(|(name, errno)| (name.to_string(), errno)))
        .collect()
}

/// The calls of each thread that strace saw, sorted.
fn by_strace(command: &[&str], names: &[&str]) -> Vec<Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("strace");
    let names: Vec<String> = names.iter().map(|name| format!("?{name}")).collect();
    let status = Command::new("strace")
        .args([
            "-ff",
            "-q",
            "-a0",
            "-e",
            "raw=all",
            "-e",
            "signal=none",
            "-o",
        ])
        .arg(&output)
        .args(["-e", &format!("trace={}", names.join(","))])
        .args(command)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let errnos = errnos();
    let mut threads = Vec::new();
    for entry in fs::read_dir(directory.path()).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        // Of a thread that is killed as it enters a call, strace may not learn the number.
        let is_call = |line: &&str| !line.starts_with(['+', '-']) && !line.starts_with("???(");
        let lines = text.lines().filter(is_call);
        let read = |line: &str| of_line(line, &errnos).unwrap_or_else(|| panic!("{line}"));
        threads.push(lines.map(read).collect());
    }
    threads.sort();
    threads
}

fn by_us(command: &[&str], filter: &str, recorded: Recorded) -> Vec<Vec<String>> {
    let source = of_command(command).recorded(recorded);
    let (ending, events) = capture(source, filter, Data::None);
    assert_eq!(ending.unwrap(), CaptureEnd::Ended(0));
    let mut threads: HashMap<i32, Vec<String>> = HashMap::new();
    for call in calls(&events) {
        threads
            .entry(call.subject.tid)
            .or_default()
            .push(of_call(call));
    }
    let mut threads: Vec<_> = threads.into_values().collect();
    threads.sort();
    threads
}

fn has(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !found {
        skip(Facility::Program, program);
    }
    found
}

/// Compares two runs of a script in a new directory each, at the same addresses: where a compiler's heap begins decides whether it
/// makes one more brk(2).
fn compare(script: &str, filter: &str, per_thread: bool) {
    for recorded in [Recorded::Never, Recorded::Often, Recorded::AtOnce] {
        compare_one(script, filter, per_thread, recorded);
    }
}

fn compare_one(script: &str, filter: &str, per_thread: bool, recorded: Recorded) {
    let names: Vec<&str> = {
        let wanted = Filter::parse(filter).unwrap().traced_calls();
        let numbers = (0..512).filter(|&nr| wanted.contains(nr));
        numbers.filter_map(signature).map(|one| one.name).collect()
    };
    let in_new_directory = |run: &dyn Fn(&[&str]) -> Vec<Vec<String>>| {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().to_str().unwrap().to_string();
        run(&[
            "setarch",
            "-R",
            "/bin/sh",
            "-c",
            &format!("cd {place} && exec </dev/null >out 2>err && {script}"),
        ])
    };
    let mut theirs = in_new_directory(&|command| by_strace(command, &names));
    let mut ours = in_new_directory(&|command| by_us(command, filter, recorded));
    if !per_thread {
        for side in [&mut theirs, &mut ours] {
            let all = std::mem::take(side).into_iter().flatten();
            let mut all: Vec<String> = all.map(|call| without_descriptors(&call)).collect();
            all.sort();
            *side = vec![all];
        }
    }
    let sizes = |side: &[Vec<String>]| side.iter().map(Vec::len).collect::<Vec<_>>();
    for (theirs, ours) in theirs.iter().zip(&ours) {
        for (at, (one, other)) in theirs.iter().zip(ours).enumerate() {
            let around = at.saturating_sub(3);
            assert_eq!(
                one,
                other,
                "call {at}: strace {:#?}, we {:#?}",
                &theirs[around..=at],
                &ours[around..=at]
            );
        }
    }
    assert_eq!(sizes(&theirs), sizes(&ours));
    assert!(sizes(&ours).iter().sum::<usize>() > 20);
}

#[test]
fn a_shell_script_is_captured_as_strace_does() {
    if has("strace") {
        compare(
            "mkdir a; echo x > a/b; cat a/b; ln a/b a/c; mv a/c d; rm -r a; ls -l | wc -l; cd /nowhere; true",
            "",
            true,
        );
    }
}

#[test]
fn git_is_captured_as_strace_does() {
    if has("strace") && has("git") {
        let script = "export HOME=$PWD GIT_AUTHOR_DATE='1000000000 +0000' GIT_COMMITTER_DATE='1000000000 +0000'; \
            git init -q . && echo a > a && touch -d @1000000000 a && git add a && \
            git -c user.name=a -c user.email=a@b -c gc.auto=0 commit -qm one && git log --oneline && git status -s";
        compare(script, "", true);
    }
}

#[test]
fn sqlite_is_captured_as_strace_does() {
    if has("strace") && has("sqlite3") {
        let script = "sqlite3 db 'create table t (a); insert into t values (1); begin; insert into t select a + 1 from t; commit; select * from t'";
        compare(script, "", true);
    }
}

#[test]
fn a_build_is_captured_as_strace_does() {
    if has("strace") && has("make") && has("gcc") {
        let script = "printf 'int f(void){return 0;}' > f.c; printf 'int f(void);int main(void){return f();}' > m.c; \
            printf 'm: m.o f.o\\n\\tgcc -o m m.o f.o\\n%%.o: %%.c\\n\\tgcc -c $<\\n' > Makefile; make -s && ./m";
        compare(script, "", true);
    }
}

#[test]
fn a_go_program_is_captured_as_strace_does() {
    if !has("go") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("main.go");
    fs::write(&source, include_str!("programs/files.go")).unwrap();
    let program = directory.path().join("files");
    let built = Command::new("go")
        .args(["build", "-o"])
        .args([&program, &source])
        .env("GOFLAGS", "-mod=mod")
        .env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"))
        .status()
        .unwrap();
    assert!(built.success());
    // Which thread of the runtime makes a call, and how it waits, differs from run to run.
    let filter = "op in {open, create, mkdir, unlink, rmdir, rename, readdir, truncate} or call in {pwrite64, pread64}";
    // A pending signal, such as one of the runtime's preemption, makes getdents64 return a part of the entries.
    let script = format!(
        "GODEBUG=asyncpreemptoff=1,updatemaxprocs=0,containermaxprocs=0 {}",
        program.display()
    );
    compare(&script, filter, false);
}
