//! `amino run --txn`: the whole command commits when it exits with 0, and leaves no trace otherwise.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use goanna_tests::finish::wait;
use goanna_tests::held::{LIMIT, until};

use goanna_tests::{
    Backend, Engine, Intercept, Place, User, finish, may_become_another_user, same_tree, tree,
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// What there was before.
const BEFORE: &str = "umask 022; mkdir -p d/sub && echo one > d/f && echo two > d/sub/g && ln d/f hard && ln -s d link && chmod 640 d/f";
/// Changes all of it in every way, with more data than is kept back otherwise, synced.
const CHANGE: &str = "echo more >> d/f; rm -r d/sub; mv d e; chmod 600 hard; echo new > new; rm link; mkdir -p x/y; \
    head -c 20000000 /dev/zero | tr '\\0' z > x/big; sync x/big; sync; sleep 1.2; test -s x/big && test ! -e d";

fn places() -> Vec<Place> {
    let mut places = Vec::new();
    for engine in [Engine::Fjall, Engine::Sled] {
        for intercept in [Intercept::Notify, Intercept::Ptrace] {
            places.push(Place::new(Backend::Amino(engine), intercept, User::Own));
        }
        if may_become_another_user() {
            places.push(Place::new(
                Backend::Amino(engine),
                Intercept::Notify,
                User::Nobody,
            ));
        }
    }
    places
}

fn exported(place: &Place, name: &str) -> BTreeMap<Vec<u8>, String> {
    place.fsck();
    let out = place.make_dir(name);
    finish(place.amino_command("export").arg("/").arg(out.join("all"))).expect(0);
    tree(&out.join("all"))
}

#[test]
fn a_command_that_fails_leaves_no_trace_and_one_that_succeeds_everything() {
    for place in places() {
        finish(&mut place.shell(BEFORE)).expect(0);
        let before = exported(&place, "before");

        let ended = finish(&mut place.transaction(&format!("{CHANGE} && exit 3"))).expect(3);
        assert!(
            ended
                .errors()
                .contains("exited with 3; the transaction was aborted"),
            "{}",
            ended.errors()
        );
        same_tree(&before, &exported(&place, "failed"));

        finish(&mut place.transaction(&format!("{CHANGE} && kill -9 $$"))).expect(128 + 9);
        same_tree(&before, &exported(&place, "killed"));

        finish(&mut place.transaction(CHANGE)).expect(0);
        let after = exported(&place, "after");
        finish(&mut place.shell("cmp -n 20000000 x/big <(head -c 20000000 /dev/zero | tr '\\0' z) && test \"$(cat e/f)\" = $'one\\nmore' && test ! -e d -a ! -e link"))
            .expect(0);
        assert!(after.len() > before.len());
    }
}

#[test]
fn a_monitor_that_is_killed_leaves_no_trace() {
    let moments = [
        Some(Duration::from_millis(300)),
        Some(Duration::from_millis(900)),
        None,
    ];
    const LAUNCHER: (bool, bool) = (true, false);
    const OWNER: (bool, bool) = (false, true);
    const BOTH: (bool, bool) = (true, true);
    for (moment, killed) in moments
        .into_iter()
        .flat_map(|at| [(at, LAUNCHER), (at, OWNER), (at, BOTH)])
    {
        let place = Place::amino();
        finish(&mut place.shell(BEFORE)).expect(0);
        let before = exported(&place, "before");
        let done = place.make_dir("host-marker").join("done");
        let mut run = place.transaction(&format!("{CHANGE} && touch {}; sleep 60", done.display()));
        run.process_group(0);
        let mut child = run
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        match moment {
            Some(after) => std::thread::sleep(after),
            None => until("the command gets through", || done.exists()),
        }
        let (launcher, owner) = killed;
        let group = Pid::from_child(&child);
        if owner {
            let mut found = None;
            until("there is an owner", || {
                found = place.owner();
                found.is_some()
            });
            let (pid, _) = found.unwrap();
            if launcher {
                // It ends with 125 if it sees the end of the owner before its own.
                kill_process_group(group, Signal::STOP).unwrap();
            }
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        }
        if launcher {
            kill_process_group(group, Signal::KILL).unwrap();
        }
        // Long before the command's sleep ends: a launcher without an owner ends its command.
        let ended = wait(&mut child, Duration::from_secs(30));
        let expected = if launcher { 128 + libc::SIGKILL } else { 125 };
        assert_eq!(ended, Some(expected));
        same_tree(&before, &exported(&place, "after"));
        place.fsck();
    }
}

/// A run with --txn whose messages go to a file, and whose processes are killed with this.
struct Watched {
    child: Child,
    errors: PathBuf,
}

impl Watched {
    fn new(place: &Place, options: &[&str], script: &str) -> Self {
        let errors = place.path("host").join("errors");
        let mut run = place.shell_with(options, script);
        let run = run.stdin(Stdio::null()).stdout(Stdio::null());
        let run = run.stderr(File::create(&errors).unwrap()).process_group(0);
        let child = run.spawn().unwrap();
        Self { child, errors }
    }

    fn errors(&self) -> String {
        fs::read_to_string(&self.errors).unwrap()
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn status(mut self) -> (i32, String) {
        let status = wait(&mut self.child, LIMIT).expect("it goes on");
        (status, self.errors())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// The process that has written its number to `file`.
fn written_pid(file: &Path) -> Pid {
    let pid = fs::read_to_string(file).unwrap();
    Pid::from_raw(pid.trim().parse().unwrap()).unwrap()
}

/// Regression: when the command ended, the run committed, even if a process that the command left running was killed.
#[test]
fn half_finished_work_is_aborted_when_the_processes_left_are_killed() {
    type Kill = fn(&Watched, Pid);
    let kills: [(&str, &[i32], Kill); 6] = [
        ("the launcher", &[137], |run, _| run.send(Signal::KILL)),
        ("the launcher's group", &[137, 143], |run, _| {
            kill_process_group(Pid::from_child(&run.child), Signal::TERM).unwrap();
        }),
        ("SIGTERM to amino alone", &[137], |run, _| {
            run.send(Signal::TERM)
        }),
        ("SIGINT to amino alone", &[137], |run, _| {
            run.send(Signal::INT)
        }),
        ("SIGTERM to the process", &[143], |_, left| {
            kill_process(left, Signal::TERM).unwrap();
        }),
        ("SIGKILL to the process", &[137], |_, left| {
            kill_process(left, Signal::KILL).unwrap();
        }),
    ];
    for intercept in [Intercept::Notify, Intercept::Ptrace] {
        let place = Place::new(Backend::Amino(Engine::Fjall), intercept, User::Own);
        let marks = place.make_dir("marks");
        let left = marks.join("left");
        let script = format!(
            "(echo half > part; echo $BASHPID > {}; exec sleep 1000) & exit 0",
            left.display()
        );
        for (what, statuses, kill) in kills {
            let run = Watched::new(&place, &["--txn"], &script);
            // It is said one second after the command's end.
            until("it says what goes on", || run.errors().contains("sleep ("));
            let pid = written_pid(&left);
            let told = format!("sleep ({})", pid.as_raw_nonzero());
            assert!(run.errors().contains(&told), "{}", run.errors());
            assert!(run.errors().contains("committed when they have ended"));
            kill(&run, pid);
            let (ended, errors) = run.status();
            assert!(statuses.contains(&ended), "{what}: {ended} {errors}");
            if what != "the launcher" {
                assert!(errors.contains("the transaction was aborted"), "{errors}");
            }
            assert_eq!(
                finish(&mut place.shell("ls")).expect(0).text(),
                "",
                "{what}"
            );
        }
    }
}

#[test]
fn processes_that_end_by_themselves_or_kill_each_other_commit() {
    let place = Place::amino();
    let ready = place.make_dir("marks").join("ready");
    let at_hand_of_its_parent = format!(
        "setpriv --pdeathsig KILL sh -c 'touch {0}; exec sleep 1000' & until test -e {0}; do sleep 0.02; done",
        ready.display()
    );
    let scripts = [
        "(sleep 0.3; echo late > late) &",
        "sleep 1000 & kill -9 $!",
        "sleep 1000 & kill $!",
        "(sleep 1000 & sleep 0.3; kill -9 $!; wait) &",
        "(sleep 1000 & sleep 0.3; kill -TERM $!; wait) &",
        "(setsid sh -c 'sleep 1000 & sleep 1000' & sleep 0.3; kill -9 -- -$!) &",
        "(sh -c 'sleep 0.3; kill -SEGV $$') &",
        &at_hand_of_its_parent,
    ];
    for (number, script) in scripts.into_iter().enumerate() {
        let run = format!("echo done > f{number}\n{script}\nexit 0");
        let ended = finish(&mut place.transaction(&run)).expect(0);
        assert!(
            !ended.errors().contains("aborted"),
            "{script}: {}",
            ended.errors()
        );
        finish(&mut place.shell(&format!("test -e f{number}"))).expect(0);
    }
    finish(&mut place.shell("test -e late")).expect(0);
}

/// A signal that a process handles is a request to finish, not a kill.
#[test]
fn a_process_left_that_ends_well_when_it_is_asked_to_commits() {
    let place = Place::amino();
    let left = place.make_dir("marks").join("left");
    let script = format!(
        "(trap 'echo whole > f; exit 0' TERM; echo $BASHPID > {0}.new; mv {0}.new {0}; while :; do sleep 0.05; done) & exit 0",
        left.display()
    );
    let run = Watched::new(&place, &["--txn"], &script);
    until("it is there", || left.exists());
    kill_process(written_pid(&left), Signal::TERM).unwrap();
    let (status, errors) = run.status();
    assert_eq!(status, 0, "{errors}");
    assert_eq!(
        finish(&mut place.shell("cat f")).expect(0).text(),
        "whole\n"
    );
}

#[test]
fn signals_to_amino_alone_reach_the_command_and_a_second_one_aborts() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::amino();
        let marks = place.make_dir("marks");
        let (ready, got) = (marks.join("ready"), marks.join("got"));
        let script = format!(
            "trap 'touch {}' TERM INT; echo x > f; touch {}; while :; do sleep 0.02; done",
            got.display(),
            ready.display()
        );
        let run = Watched::new(&place, &["--txn"], &script);
        until("the command is ready", || ready.exists());
        run.send(signal);
        until("the signal reaches the command", || got.exists());
        // What comes at once is taken for the same request.
        std::thread::sleep(Duration::from_millis(500));
        run.send(signal);
        let (status, errors) = run.status();
        assert_eq!(status, 137, "{errors}");
        assert!(errors.contains("the transaction was aborted"), "{errors}");
        assert_eq!(finish(&mut place.shell("ls")).expect(0).text(), "");

        // Outside of a transaction the command alone decides, however often it is asked.
        fs::remove_file(&ready).unwrap();
        let script = format!(
            "n=0; trap 'n=$((n + 1)); touch {}.$n; test $n = 3 && exit 7' TERM INT; touch {}; while :; do sleep 0.02; done",
            got.display(),
            ready.display()
        );
        let run = Watched::new(&place, &[], &script);
        until("the command is ready", || ready.exists());
        for number in 1..=3 {
            run.send(signal);
            let mark = marks.join(format!("got.{number}"));
            until("the signal reaches the command", || mark.exists());
        }
        assert_eq!(run.status().0, 7);
    }
}

#[test]
fn mapped_writes_belong_to_the_transaction() {
    const MAP: &str = "python3 -c 'import mmap; f = open(\"m\", \"r+b\"); m = mmap.mmap(f.fileno(), 0); m[0:5] = b\"hello\"; m.flush()'";
    let place = Place::amino();
    finish(&mut place.shell("head -c 8192 /dev/zero > m")).expect(0);
    let before = exported(&place, "before");
    finish(&mut place.transaction(&format!("{MAP} && grep -q hello m && false"))).expect(1);
    same_tree(&before, &exported(&place, "failed"));
    finish(&mut place.transaction(MAP)).expect(0);
    finish(&mut place.shell("grep -q hello m")).expect(0);
}

/// A program of several calls, as the command of a run, and a second one that fails afterwards.
const TWO_DESCRIPTORS: &str = r#"
import mmap, os
w = os.open("f", os.O_RDWR)
r = os.open("f", os.O_RDONLY)
assert os.pread(r, 100, 0) == b"before\n"
os.pwrite(w, b"within", 0)
assert os.pread(r, 100, 0) == b"within\n"
os.write(w, b"longer than that\n")
assert os.read(r, 100) == b"longer than that\n"
assert os.lseek(r, 0, os.SEEK_END) == 17
seen = mmap.mmap(r, 0, mmap.MAP_SHARED, mmap.PROT_READ)
m = mmap.mmap(w, 0)
m[:6] = b"mapped"
assert os.pread(r, 6, 0) == b"mapped" and seen[:6] == b"mapped"
os.pwrite(w, b"PWRITE", 0)
assert m[:6] == b"PWRITE" and seen[:6] == b"PWRITE"
m[:6] = b"mapped"
os.truncate("f", 10)
assert os.fstat(r).st_size == 10 and os.pread(r, 100, 0) == b"mapped tha"
new = os.open("new", os.O_RDWR | os.O_CREAT)
os.ftruncate(new, 1 << 20)
mmap.mmap(new, 0)[:4] = b"page"
assert open("new", "rb").read(4) == b"page"
"#;

#[test]
fn reads_and_mappings_see_what_was_just_written() {
    for intercept in [Intercept::Notify, Intercept::Ptrace] {
        let place = Place::new(Backend::Amino(Engine::Fjall), intercept, User::Own);
        finish(&mut place.shell("echo before > f")).expect(0);
        let before = exported(&place, "before");
        let python = format!("python3 -c '{TWO_DESCRIPTORS}'");
        finish(&mut place.transaction(&format!("{python} && false"))).expect(1);
        same_tree(&before, &exported(&place, "failed"));
        finish(&mut place.transaction(&python)).expect(0);
        let text = finish(&mut place.shell("cat f; head -c 4 new; stat -c %s new")).expect(0);
        assert_eq!(text.text(), "mapped thapage1048576\n");
        place.fsck();
    }
}

#[test]
fn programs_written_inside_are_executed() {
    let place = Place::amino();
    const PROGRAM: &str = "cp /bin/echo prog && ./prog one && printf '#!/bin/sh\\necho two\\n' > script && chmod +x script && ./script \
        && cp /bin/true prog && ./prog three && exec 3>>script && ! ./script 2> /dev/null && exec 3>&- && ./script";
    let ended = finish(&mut place.transaction(PROGRAM)).expect(0);
    assert_eq!(ended.text(), "one\ntwo\ntwo\n");
    finish(&mut place.shell("./prog && ./script")).expect(0);
    place.fsck();
}

#[test]
fn explicit_transactions_nest_in_the_runs() {
    const NESTED: &str = r#"
        echo run > f; echo kept > g
        amino txn commit 2> err && exit 10; grep -q "no current transaction" err || exit 11
        amino txn abort 2> err && exit 12; amino txn suspend 2> err && exit 13; amino txn detach 2> err && exit 14
        test "$(amino txn status)" = "no current transaction" || exit 24
        exec 3<> f
        amino txn begin > id
        echo nested > f; echo nested > made; rm g
        test "$(cat f)" = nested -a "$(cat <&3)" = nested -a ! -e g || exit 15
        amino txn abort || exit 16
        test "$(cat f)" = run -a "$(cat g)" = kept -a ! -e made || exit 17
        amino txn begin > /dev/null
        echo more >> f
        amino txn commit || exit 18
        test "$(cat f)" = $'run\nmore' || exit 19
        amino txn run -- sh -c 'echo x > f; exit 3' ; test $? = 3 -a "$(cat f)" = $'run\nmore' || exit 20
        id=$(amino txn begin) && echo set-aside > aside && test "$(amino txn suspend)" = "$id" || exit 21
        echo run2 > beside && amino txn resume "$id" && test -e aside || exit 22
        amino txn commit && test -e aside || exit 23
        amino txn begin > /dev/null; echo never > never
    "#;
    let place = Place::amino();
    let amino = goanna_tests::binary("amino").parent().unwrap().to_owned();
    let in_path = format!("PATH={}:$PATH", amino.display());
    finish(&mut place.shell("echo old > f")).expect(0);
    let before = exported(&place, "before");
    finish(&mut place.transaction(&format!("{in_path}; {NESTED} exit 5"))).expect(5);
    same_tree(&before, &exported(&place, "failed"));
    finish(&mut place.transaction(&format!("{in_path}; {NESTED} exit 0"))).expect(0);
    let left = finish(&mut place.shell("cat f g aside beside; ls")).expect(0);
    assert!(
        left.text()
            .starts_with("run\nmore\nkept\nset-aside\nrun2\n"),
        "{}",
        left.text()
    );
    assert!(!left.text().contains("never"), "its shell has gone");
    place.fsck();
}

#[test]
fn unused_files_take_no_descriptor_of_the_monitor() {
    let place = Place::amino();
    let count = "pid=$PPID; for i in $(seq 3000); do echo $i > f$i; done; \
        for i in $(seq 100); do test $(ls /proc/$pid/fd | wc -l) -ge 1500 || break; sleep 0.2; done; ls /proc/$pid/fd | wc -l; \
        cat f2999; for i in $(seq 3000); do echo more >> f$i; done";
    let ended = finish(&mut place.transaction(count)).expect(0);
    let lines: Vec<_> = ended.text().lines().map(str::to_owned).collect();
    let fds: usize = lines
        .first()
        .and_then(|line| line.trim().parse().ok())
        .unwrap();
    assert!(fds < 1500, "{fds}");
    assert_eq!(lines.get(1).map(String::as_str), Some("2999"));
    finish(&mut place.shell("test \"$(cat f2999)\" = $'2999\nmore' && ls | wc -l | grep -q 3000"))
        .expect(0);
    place.fsck();
}

#[test]
fn what_does_not_fit_is_refused_and_the_rest_commits() {
    let place = Place::amino();
    finish(&mut place.shell("echo old > f")).expect(0);
    let before = exported(&place, "before");
    let fill = "python3 -c '
import errno, os
os.mkdir(\"d\")
piece = bytes(range(256)) * (1 << 14)
try:
    for n in range(400):
        with open(\"d/%d\" % n, \"wb\", 0) as f: f.write(piece)
    raise SystemExit(9)
except OSError as e:
    assert e.errno == errno.ENOSPC, e
'";
    let limit = "a transaction has reached its limit of 1024 MiB of changes";
    let ended = finish(&mut place.transaction(&format!("{fill} && exit 4"))).expect(4);
    assert_eq!(
        ended.errors().matches(limit).count(),
        1,
        "{}",
        ended.errors()
    );
    same_tree(&before, &exported(&place, "aborted"));
    finish(&mut place.transaction(&format!("{fill} && rm -r d && echo new > f"))).expect(0);
    let text = finish(&mut place.shell("cat f; ls")).expect(0).text();
    assert_eq!(text, "new\nf\n");
    // Of one that a shell begins it is said, too.
    let explicit = format!("amino txn begin >/dev/null; {fill}; amino txn abort; ls");
    let mut command = goanna_tests::command_in_path(&place, &[]);
    command.args(["bash", "-c", &format!("cd {}; {explicit}", place.top())]);
    let ended = finish(&mut command).expect(0);
    assert_eq!(ended.text(), "f\n");
    assert_eq!(
        ended.errors().matches(limit).count(),
        1,
        "{}",
        ended.errors()
    );
    place.fsck();
}

#[test]
fn a_transaction_belongs_to_one_store() {
    let place = Place::amino();
    let other = place.make_dir("other");
    let mut run = place.run_with(&[
        "--txn",
        "--mount",
        &format!("amino={}:/db", other.join("s").display()),
    ]);
    let ended = finish(run.arg("true")).expect(125);
    assert!(
        ended.errors().contains("--txn") && ended.errors().contains("/db"),
        "{}",
        ended.errors()
    );
}

/// Regression: with a second store in the mount table, the run's transaction began on either of the two.
#[test]
fn a_second_store_leaves_the_transaction_with_the_first() {
    let place = Place::amino();
    finish(&mut place.shell("true")).expect(0);
    let other = place.make_dir("other").join("s");
    let mut fill = place.native(goanna_tests::binary("amino"));
    fill.args(["run", "--at", place.top(), "--store"])
        .arg(&other);
    finish(fill.args(["--", "true"])).expect(0);
    let mount = format!("amino={}:/aref,ro", other.display());
    for _ in 0..8 {
        let options = ["--txn", "--mount", &mount];
        finish(&mut place.shell_with(&options, "echo x > f && ls /aref && false")).expect(1);
        assert_eq!(finish(&mut place.shell("ls")).expect(0).text(), "");
    }
    let options = ["--txn", "--mount", &mount];
    finish(&mut place.shell_with(&options, "echo x > f")).expect(0);
    assert_eq!(finish(&mut place.shell("ls")).expect(0).text(), "f\n");
}

/// Regression: the list had directories that were only read, calls that failed, and relative names. It lacked changes that the
/// monitor made on the host itself, and these were not refused.
#[test]
fn changes_outside_of_the_store_are_reported_or_refused() {
    for intercept in [Intercept::Notify, Intercept::Ptrace] {
        let place = Place::new(Backend::Amino(Engine::Fjall), intercept, User::Own);
        let (host, further) = (place.make_dir("host"), place.make_dir("further"));
        fs::create_dir(host.join("old")).unwrap();
        let mount = format!("pass={}:/afurther", further.display());
        let shown = host.display();
        let looks = format!(
            "echo z > inside; cd {shown}; mkdir -p old; ! mkdir old 2> /dev/null; ! rmdir none 2> /dev/null; \
             ! echo x 2> /dev/null > none/f; echo y > /dev/null; cat < /dev/null"
        );
        let changes = [
            format!("mkdir -p {shown}/old/new/deep"),
            format!("cd {shown} && echo x > f && echo y >> f"),
            // By the monitor: the kernel does not know where the path starts.
            format!("mkdir -p d && cd d && echo x > ../..{shown}/g"),
            "echo x > /afurther/h".to_owned(),
            format!("cd {shown} && rm f && ln -sf g link"),
        ];
        let all = changes.each_ref().map(|change| format!("({change})"));
        let script = format!("{looks}; cd {}; {}", place.top(), all.join(" && "));
        let run = |what: &str, script: &str| {
            let options = ["--txn", "--outside", what, "--mount", &mount];
            finish(&mut place.shell_with(&options, script))
        };
        let told = run("warn", &script).expect(0).errors();
        let told: Vec<_> = told
            .lines()
            .filter_map(|line| {
                line.split_once("does not cover ")?
                    .1
                    .split_once(": it is outside")
            })
            .map(|(path, _)| path.to_owned())
            .collect();
        let in_host = |name: &str| format!("{shown}/{name}");
        let expected = [
            in_host("old/new"),
            in_host("old/new/deep"),
            in_host("f"),
            in_host("g"),
            "/afurther/h".to_owned(),
            in_host("link"),
        ];
        assert_eq!(told, expected);

        // Without --outside the first change is reported, once.
        let told = run("allow", &script).expect(0).errors();
        assert_eq!(told.matches("outside of the store").count(), 1, "{told}");
        // The directories are there from the run before.
        assert!(told.contains(&format!("{},", in_host("f"))), "{told}");
        let told = run("allow", &looks).expect(0).errors();
        assert!(!told.contains("outside of the store"), "{told}");

        for dir in [&host, &further] {
            fs::remove_dir_all(dir).unwrap();
            fs::create_dir(dir).unwrap();
        }
        for change in &changes {
            let ended = run("deny", change);
            assert_ne!(ended.status, 0, "{change}");
        }
        for dir in [&host, &further] {
            assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
        }
    }
}
