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
    for moment in moments {
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
