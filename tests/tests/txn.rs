//! `amino run --txn`: the whole command commits when it exits with 0, and leaves no trace otherwise.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use goanna_tests::{Backend, Engine, Intercept, Place, User, finish, is_root, same_tree, tree};
use rustix::process::{Pid, Signal, kill_process_group};

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
        if is_root() {
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
    for (moment, owner_too) in moments.into_iter().flat_map(|at| [(at, false), (at, true)]) {
        let place = Place::amino();
        finish(&mut place.shell(BEFORE)).expect(0);
        let before = exported(&place, "before");
        let done = place.make_dir("host-marker").join("done");
        let mut run = place.transaction(&format!("{CHANGE} && touch {}; sleep 60", done.display()));
        std::os::unix::process::CommandExt::process_group(&mut run, 0);
        let mut child = run
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        match moment {
            Some(after) => std::thread::sleep(after),
            None => {
                let limit = Instant::now() + Duration::from_secs(60);
                while !done.exists() {
                    assert!(Instant::now() < limit, "the command did not get through");
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
        let owner = place.owner().filter(|_| owner_too);
        if let Some(owner) = owner.and_then(|(pid, _)| Pid::from_raw(pid)) {
            rustix::process::kill_process(owner, Signal::KILL).unwrap();
        }
        kill_process_group(Pid::from_child(&child), Signal::KILL).unwrap();
        child.wait().unwrap();
        same_tree(&before, &exported(&place, "after"));
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
fn what_nobody_has_open_takes_no_descriptor_of_the_monitor() {
    let place = Place::amino();
    let count = "pid=$PPID; for i in $(seq 3000); do echo $i > f$i; done; sleep 1.2; ls /proc/$pid/fd | wc -l; \
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
    finish(&mut place.transaction(&format!("{fill} && exit 4"))).expect(4);
    same_tree(&before, &exported(&place, "aborted"));
    finish(&mut place.transaction(&format!("{fill} && rm -r d && echo new > f"))).expect(0);
    let text = finish(&mut place.shell("cat f; ls")).expect(0).text();
    assert_eq!(text, "new\nf\n");
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

/// With a second store in the table the run's transaction used to begin on either of the two.
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

#[test]
fn changes_outside_of_the_store_are_told_or_refused() {
    let place = Place::new(Backend::Amino(Engine::Fjall), Intercept::Notify, User::Own);
    let host = place.make_dir("host");
    let script = format!(
        "cd {} && echo x > f && mkdir d && echo y > /dev/null && cat f > /dev/null && echo z > \"$OLDPWD\"/inside",
        host.display()
    );
    let warned = finish(&mut place.shell_with(&["--txn", "--outside", "warn"], &script)).expect(0);
    let told: Vec<_> = warned.errors().lines().map(str::to_owned).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("does not cover f:") && told[1].contains("does not cover d:"));
    assert!(host.join("d").is_dir());
    std::fs::remove_dir_all(&host).unwrap();
    std::fs::create_dir(&host).unwrap();
    finish(&mut place.shell_with(&["--txn", "--outside", "deny"], &script)).expect(1);
    assert_eq!(std::fs::read_dir(&host).unwrap().count(), 0);
}
