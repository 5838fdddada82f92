//! Commands that read a store while programs write to it: each sees one state, which was committed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::process::Stdio;

use goanna_tests::{Backend, Engine, Held, Intercept, Place, User, finish};

/// Moves an amount from `a` to `b` in each transaction, renames the file `d/N` to `d/N+1`, and aborts every third transaction;
/// until `$1` exists.
const MOVE: &str = r#"n=0; while ! test -e "$1"; do
    amino -q txn run -- sh -c 'read a < a; read b < b
        echo $((a - 7)) > a; mv d/'$n' d/'$((n + 1))'; echo $((b + 7)) > b; exit '$((n % 3 == 2 ? 1 : 0)) || :
    n=$(ls d); done"#;

fn sum(texts: [&str; 2]) -> i64 {
    texts
        .map(|text| text.trim().parse::<i64>().unwrap())
        .iter()
        .sum()
}

fn commands_see_one_state(engine: Engine) {
    let place = Place::new(Backend::Amino(engine), Intercept::Notify, User::Own);
    let amino = |words: &[&str]| finish(place.amino_command(words[0]).args(&words[1..])).expect(0);
    let (stop, script) = (place.path("host/stop"), place.path("host/move"));
    fs::write(&script, MOVE).unwrap();
    // What lies between the two files keeps an export busy.
    let run = format!(
        "echo 0 > a; echo 1000 > b; mkdir d ab; echo > d/0; (cd ab; seq 150 | xargs touch); bash {} {} & %GO%; wait",
        script.display(),
        stop.display(),
    );
    let run = Held::new(&place, "run", &[], &run);
    let mut seen = BTreeSet::new();
    for round in 0..12 {
        let out = place.path("host").join(format!("out{round}"));
        amino(&["export", "/", out.to_str().unwrap()]);
        let [a, b] = ["a", "b"].map(|name| fs::read_to_string(out.join(name)).unwrap());
        assert_eq!(sum([&a, &b]), 1000, "{engine:?} {round} export");
        assert_eq!(fs::read_dir(out.join("d")).unwrap().count(), 1);
        fs::remove_dir_all(&out).unwrap();
        seen.insert(a);

        place.fsck();
    }
    assert!(seen.len() > 1, "nothing changed meanwhile");
    fs::write(&stop, "").unwrap();
    assert_eq!(run.go(), 0);
    place.fsck();
}

/// Starts a command, lets `change` happen as soon as it has printed something, and returns all that it prints. It must print
/// more than a pipe takes.
fn printed_around(place: &Place, words: &[&str], change: impl FnOnce()) -> String {
    let mut command = place.amino_command(words[0]);
    let mut child = command
        .args(&words[1..])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut text = vec![0; 1];
    out.read_exact(&mut text).unwrap();
    change();
    out.read_to_end(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    String::from_utf8(text).unwrap()
}

/// A command sees a store as it was when the command began, also where a transaction changes the rest of what it reads before
/// it comes there.
fn later_changes_do_not_show(engine: Engine) {
    let place = Place::new(Backend::Amino(engine), Intercept::Notify, User::Own);
    let make = "echo 1000 > a; head -c 3000000 /dev/zero | tr '\\0' x > large; echo 0 > z; mkdir d; \
                (cd d; seq -f %0200g 1000 | xargs touch); mkdir e; echo > e/old; %GO%";
    let run = Held::new(&place, "run", &[], make);
    let change = |script: &str| {
        place
            .run_with(&["--txn"])
            .args(["sh", "-ec", &format!("cd {}; {script}", place.top())])
            .status()
            .map(|status| assert!(status.success()))
            .unwrap();
    };
    let text = printed_around(&place, &["cat", "/a", "/large", "/z"], || {
        change("echo 0 > a; echo 1000 > z; : > large; mv e/old e/new");
    });
    let lines: Vec<_> = text
        .split(['\n', 'x'])
        .filter(|part| !part.is_empty())
        .collect();
    assert_eq!((lines, text.len()), (vec!["1000", "0"], 3_000_007));
    for listing in [&["ls", "-R", "/d", "/e"][..], &["tree", "/"]] {
        let text = printed_around(&place, listing, || change("mv e/new e/old; rm -rf d/*1"));
        assert!(text.contains("new") && !text.contains("old"), "{listing:?}");
        let files = text.lines().filter(|line| line.contains("0000")).count();
        assert_eq!(
            files,
            if listing[0] == "ls" { 1000 } else { 900 },
            "{listing:?}"
        );
        change("mv e/old e/new");
    }
    assert_eq!(run.go(), 0);
    place.fsck();
}

#[test]
fn later_changes_of_a_fjall_store_do_not_show() {
    later_changes_do_not_show(Engine::Fjall);
}

#[test]
fn later_changes_of_a_sled_store_do_not_show() {
    later_changes_do_not_show(Engine::Sled);
}

#[test]
fn commands_see_one_state_of_a_fjall_store_that_programs_change() {
    commands_see_one_state(Engine::Fjall);
}

#[test]
fn commands_see_one_state_of_a_sled_store_that_programs_change() {
    commands_see_one_state(Engine::Sled);
}
