//! The offline commands on a store that `aminod` has open: their effects, output and errors are as on one that no process has open.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use goanna_tests::held::{Held, LIMIT, until};
use goanna_tests::{
    Ended, Place, User, binary, finish, finish::wait, is_long, may_become_another_user,
    place::NOBODY, tools::has,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[path = "../../crates/cli/tests/common/mod.rs"]
mod common;

fn amino(place: &Place, subcommand: &str, args: &[&str]) -> Ended {
    finish(place.amino_command(subcommand).args(args))
}

/// Everything that a command says.
fn said(place: &Place, words: &[&str]) -> (i32, String, String) {
    let ended = amino(place, words[0], &words[1..]);
    (ended.status, ended.text(), ended.errors())
}

fn has_owner(place: &Place) -> bool {
    place.owner().is_some()
}

/// A tree of the place's user with what copies get wrong.
fn source(place: &Place) -> std::path::PathBuf {
    let top = place.make_dir("source");
    if place.user() == User::Own {
        common::build(&top.join("all"));
    }
    let script = r#"cd "$0"; umask 0; mkdir -p d/e; echo one > d/a; ln d/a d/e/b; ln -s ../nowhere l; mkfifo p
        head -c 10000000 /dev/urandom > large; chmod 4751 d/a; chmod 1777 d/e; : > empty
        echo x > sparse; truncate -s 40M sparse; printf y | dd of=sparse bs=1 seek=20000000 conv=notrunc status=none
        touch -d '2001-02-03 04:05:06.123456789' d/a d l -h; touch "$(printf 'odd\n\377')""#;
    let made = finish(place.native("bash").args(["-c", script]).arg(&top));
    made.expect(0);
    top
}

fn same(expected: &Path, got: &Path) {
    common::assert_same(expected, got);
    let sparse = got.join("sparse").metadata().unwrap();
    assert_eq!(sparse.len(), 40 << 20);
    assert!(sparse.blocks() < 200, "{} blocks", sparse.blocks());
}

#[test]
fn what_goes_in_and_out_is_the_same() {
    for place in Place::stores() {
        let source = source(&place);
        let from = source.to_str().unwrap();
        let held = Held::new(
            &place,
            "one",
            &[],
            "%GO%; test $(wc -c < t/large) = 10000000; test $(cat t/d/e/b) = one",
        );
        amino(&place, "import", &[from, "/t"]).expect(0);
        let again = amino(&place, "import", &[from, "/t"]);
        assert!(again.errors().contains("--force replaces it"));
        again.expect(1);
        amino(&place, "import", &["--force", from, "/t"]).expect(0);
        let out = place.path("host").join("out");
        amino(&place, "export", &["/t", out.to_str().unwrap()]).expect(0);
        same(&source, &out);
        assert!(has_owner(&place));
        assert_eq!(held.go(), 0);
        assert!(!has_owner(&place));
        // What was imported through aminod is what one finds without.
        let out = place.path("host").join("later");
        amino(&place, "export", &["/t", out.to_str().unwrap()]).expect(0);
        same(&source, &out);
        place.fsck();
    }
}

#[test]
fn commands_say_the_same_with_and_without_an_owner() {
    for place in Place::stores() {
        let source = source(&place);
        amino(&place, "import", &[source.to_str().unwrap(), "/t"]).expect(0);
        let make = "mkdir shut; echo x > shut/in; echo y > secret; chmod 0 shut secret; ln -s l2 l1; ln -s l1 l2; \
                    ln -s t/d/a link; ln -s /t/d dir; mkdir dark; echo z > dark/z; chmod 711 dark; %GO%";
        let held = Held::new(&place, "one", &[], make);
        let other = Held::new(&place, "two", &[], "echo second > second; %GO%");
        fs::write(place.path("host/file"), "").unwrap();
        let file = place.path("host/file");
        let file = file.to_str().unwrap();
        let long = format!("/{}", "n".repeat(256));
        let nowhere = place.path("nowhere/at/all");
        let commands: &[&[&str]] = &[
            &["ls"],
            &["ls", "-la", "/", "/t", "link", "dir", "/t/d/e"],
            &["ls", "--json", "/t"],
            &[
                "ls",
                "/none",
                "/shut",
                "/l1",
                "/t/d/a/b",
                &long,
                "/dark",
                "/t/../second",
            ],
            &["cat", "/second", "/t/d/a", "/t/large", "link", "dir/e/b"],
            &[
                "cat",
                "/none",
                "/secret",
                "/shut/in",
                "/t",
                "/t/p",
                "/l1",
                "/second/x",
            ],
            &[
                "stat", "/", "/t/d/a", "/link", "/t/p", "/shut", "/secret", "/none",
            ],
            &["stat", "-L", "--json", "/link", "/t/sparse"],
            &["tree"],
            &["tree", "-a", "--json", "/t"],
            &["tree", "/second"],
            &["export", "/none", "/tmp/never"],
            &["export", "/second", "/tmp/never"],
            &["export", "/t", nowhere.to_str().unwrap()],
            &["import", "/nonexistent/dir", "/x"],
            &["import", file, "/x"],
            &["import", "--engine", "fjall", "/nonexistent", "/"],
        ];
        let all = || commands.iter().map(|words| said(&place, words));
        let through: Vec<_> = all().collect();
        assert_eq!(place.owner().map(|(_, runs)| runs), Some(2));
        // "atime" and the like don't change by a look.
        assert_eq!((held.go(), other.go()), (0, 0));
        assert!(!has_owner(&place));
        for (words, (through, direct)) in commands.iter().zip(through.iter().zip(all())) {
            assert_eq!(*through, direct, "{words:?}");
        }
        let statuses: BTreeSet<_> = through.iter().map(|(status, ..)| *status).collect();
        assert_eq!(statuses.into_iter().collect::<Vec<_>>(), [0, 1, 125]);
        let errors: String = through
            .iter()
            .map(|(_, _, errors)| errors.as_str())
            .collect();
        assert_eq!(
            errors.contains("Permission denied"),
            place.user() == User::Nobody
        );
    }
}

#[test]
fn a_missing_store_and_missing_rights_are_reported_as_without_an_owner() {
    let place = Place::amino();
    let held = Held::new(&place, "one", &[], "%GO%");
    let other = place.make_dir("other");
    fs::write(other.join("file"), "").unwrap();
    for subcommand in ["ls", "fsck", "info"] {
        let at = |dir: &Path| {
            finish(
                place
                    .native(binary("amino"))
                    .arg(subcommand)
                    .arg("--store")
                    .arg(dir),
            )
        };
        let ended = at(&other);
        assert!(
            ended.errors().contains("not an amino store"),
            "{}",
            ended.errors()
        );
        ended.expect(125);
        let ended = at(&other.join("none"));
        assert!(
            ended.errors().contains("there is no store here"),
            "{}",
            ended.errors()
        );
        ended.expect(125);
    }
    let host = place.path("host");
    let wrong = amino(
        &place,
        "import",
        &["--engine", "sled", host.to_str().unwrap(), "/"],
    );
    assert!(
        wrong
            .errors()
            .contains("made with the engine fjall, not sled")
    );
    wrong.expect(125);
    if may_become_another_user() {
        // Another user may not even read it, whichever process has it open.
        let ls = |place: &Place| {
            let mut command = Command::new(binary("amino"));
            command.args(["ls", "--store"]).arg(place.path("store"));
            let ended = finish(command.uid(NOBODY).gid(NOBODY));
            (ended.status, ended.errors())
        };
        let through = ls(&place);
        assert!(through.1.contains("Permission denied"), "{}", through.1);
        assert_eq!(held.go(), 0);
        assert_eq!(through, ls(&place));
    } else {
        assert_eq!(held.go(), 0);
    }
}

/// Root that has given up its capabilities is judged as such, by aminod, too.
#[test]
fn capabilities_that_were_given_up_do_not_count() {
    if !may_become_another_user() || !has("setpriv") {
        return;
    }
    let place = Place::amino();
    let make = "echo x > own; echo x > theirs; chmod 0 own; chmod 600 theirs; chown 7 theirs; mkdir d; chown 7 d; %GO%";
    let held = Held::new(&place, "one", &[], make);
    let host = place.make_dir("in");
    fs::write(host.join("new"), "").unwrap();
    let poor = |words: &[&str]| {
        let mut command = place.native("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all", "--"]);
        let ended = finish(
            command
                .arg(binary("amino"))
                .args(words)
                .env("AMINO_STORE", place.path("store")),
        );
        (ended.status, ended.text(), ended.errors())
    };
    let all = || {
        [
            poor(&["cat", "/own"]),
            poor(&["cat", "/theirs"]),
            poor(&["import", host.to_str().unwrap(), "/d"]),
        ]
    };
    let through = all();
    for (status, _, errors) in &through {
        assert!(
            *status == 1 && errors.contains("Permission denied"),
            "{errors}"
        );
    }
    assert_eq!(held.go(), 0);
    assert_eq!(through, all());
}

#[test]
fn transactions_that_are_open_are_not_seen() {
    for place in Place::stores() {
        let first = Held::new(&place, "one", &[], "echo old > f; mkdir d; %GO%");
        let script = "amino txn begin > /dev/null; echo new > f; echo x > d/new; rm -f none; %GO%; amino txn commit";
        let inside = Held::new(&place, "two", &[], script);
        assert_eq!(amino(&place, "cat", &["/f"]).text(), "old\n");
        assert_eq!(amino(&place, "ls", &["/d"]).text(), "");
        assert_eq!(amino(&place, "stat", &["/d/new"]).status, 1);
        place.fsck();
        assert_eq!(inside.go(), 0);
        assert_eq!(amino(&place, "cat", &["/f", "/d/new"]).text(), "new\nx\n");
        assert_eq!(first.go(), 0);
    }
}

/// A command that changes something waits silently for a transaction that has changed it.
#[test]
fn an_import_waits_for_locks() {
    for place in Place::stores() {
        let from = place.make_dir("from");
        fs::write(from.join("f"), "imported").unwrap();
        fs::create_dir(from.join("d")).unwrap();
        fs::write(from.join("d/g"), "imported").unwrap();
        if place.user() == User::Nobody {
            for name in ["f", "d", "d/g"] {
                chown(from.join(name), Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        let whole = Held::new(
            &place,
            "one",
            &["--txn"],
            "echo new > f; mkdir -p d; echo g > d/g; %GO%",
        );
        let mut import = place.amino_command("import");
        let import = import.arg("--force").arg(&from).arg("/");
        let mut import = import.process_group(0).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(import.try_wait().unwrap(), None, "it does not wait");
        assert_eq!(whole.go(), 0);
        assert_eq!(wait(&mut import, LIMIT), Some(0));
        assert_eq!(
            amino(&place, "cat", &["/f", "/d/g"]).text(),
            "importedimported"
        );
        place.fsck();
    }
}

#[test]
fn the_death_of_the_owner_is_reported() {
    let place = Place::amino();
    let from = place.make_dir("from");
    fs::write(from.join("f"), "imported").unwrap();
    let whole = Held::new(&place, "one", &["--txn"], "echo new > f; %GO%");
    let mut import = place.amino_command("import");
    let import = import
        .arg("--force")
        .arg(&from)
        .arg("/")
        .stderr(Stdio::piped());
    let mut import = import.process_group(0).spawn().unwrap();
    let (pid, _) = place.owner().unwrap();
    let clients = || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let names = threads.filter_map(|thread| fs::read(thread.ok()?.path().join("comm")).ok());
        names.filter(|name| name == b"client\n").count()
    };
    until("the import is a client beside the run", || clients() == 2);
    std::thread::sleep(Duration::from_millis(200));
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert_eq!(wait(&mut import, LIMIT), Some(125));
    let mut told = String::new();
    std::io::Read::read_to_string(&mut import.stderr.take().unwrap(), &mut told).unwrap();
    assert!(
        told.contains("aminod), which owned the store, has ended"),
        "{told}"
    );
    whole.status();
    // The next one opens the store itself.
    amino(&place, "import", &[from.to_str().unwrap(), "/"]).expect(0);
    place.fsck();
}

#[test]
fn a_store_that_is_changed_all_the_time_is_clean() {
    for place in Place::stores() {
        let script = r#"
            churn() { while ! test -e ../stop && ! test -e "$STOP"; do
                mkdir $1; for i in 1 2 3 4 5 6; do echo $i > $1/$i; ln $1/$i $1/l$i; done; head -c 300000 /dev/zero > $1/zero
                head -c 200000 /dev/urandom > $1/big; truncate -s 5000 $1/big; mv $1/1 $1/2; exec 4> $1/open; rm $1/open; echo x >&4
                ln -s x $1/s; mv $1 $1.moved; rm -r $1.moved; done; }
            export -f churn; export STOP
            churn a & churn b & amino -q txn run --retry 99 -- bash -c 'echo x > c; mkdir -p in; echo y > in/y; rm -r in c'
            while ! test -e "$STOP"; do amino -q txn run --retry 99 -- bash -c 'mkdir t; for i in 1 2 3; do echo $i > t/$i; ln t/$i t/l$i; done
                rm t/1; mv t u; rm -r u; echo > kept$RANDOM' || true; done & %GO%; wait"#;
        let stop = place.path("host/stop");
        let script = script.replace("\"$STOP\"", &stop.display().to_string());
        let held = Held::new(&place, "one", &[], &script);
        let other = Held::new(
            &place,
            "two",
            &[],
            &format!(
                "while ! test -e {}; do cp -r /usr/share/doc/bash x 2> /dev/null || echo > x; rm -r x; done & %GO%; wait",
                stop.display()
            ),
        );
        let mut last = 0;
        for _ in 0..if is_long() { 500 } else { 25 } {
            let ended = amino(&place, "fsck", &["--json"]);
            let report: Value = serde_json::from_str(&ended.text())
                .unwrap_or_else(|_| panic!("{}", ended.errors()));
            assert_eq!(report["clean"], true, "{report}");
            last = last.max(report["files"].as_u64().unwrap());
            ended.expect(0);
        }
        assert!(last > 5, "they did nothing");
        assert!(has_owner(&place));
        fs::write(&stop, "").unwrap();
        assert_eq!((held.go(), other.go()), (0, 0));
        place.fsck();
    }
}

#[test]
fn open_files_without_names_are_no_errors() {
    let place = Place::amino();
    let held = Held::new(
        &place,
        "one",
        &[],
        "exec 3> gone; head -c 100000 /dev/urandom >&3; rm gone; echo > there; %GO%",
    );
    let report: Value =
        serde_json::from_str(&amino(&place, "fsck", &["--json"]).expect(0).text()).unwrap();
    assert_eq!(report["orphans"], 1, "{report}");
    let info: Value =
        serde_json::from_str(&amino(&place, "info", &["--json"]).expect(0).text()).unwrap();
    assert_eq!(
        (&info["orphans"], &info["names"]),
        (&1.into(), &1.into()),
        "{info}"
    );
    assert_eq!(held.go(), 0);
    place.fsck();
}

#[test]
fn info_knows_as_much_as_of_a_closed_store() {
    for place in Place::stores() {
        let source = source(&place);
        let one = Held::new(&place, "one", &[], "echo x > x; %GO%");
        let two = Held::new(&place, "two", &[], "mkdir y; %GO%");
        amino(&place, "import", &[source.to_str().unwrap(), "/t"]).expect(0);
        let info = || -> Value {
            let ended = amino(&place, "info", &["--json"]).expect(0);
            serde_json::from_str(&ended.text()).unwrap()
        };
        let open = info();
        let (pid, runs) = place.owner().unwrap();
        assert_eq!(
            open["open_by"],
            serde_json::json!({"pid": pid, "command": "aminod", "runs": runs})
        );
        let text = amino(&place, "info", &[]).expect(0).text();
        assert!(
            text.contains(&format!(
                "open by      process {pid} (aminod), for 2 commands"
            )),
            "{text}"
        );
        assert_eq!((one.go(), two.go()), (0, 0));
        let closed = info();
        assert_eq!(closed["open_by"], Value::Null);
        let keys = |info: &Value| {
            info.as_object()
                .unwrap()
                .keys()
                .cloned()
                .collect::<Vec<_>>()
        };
        assert_eq!(keys(&open), keys(&closed));
        for key in [
            "store",
            "id",
            "engine",
            "format",
            "created",
            "names",
            "files",
            "directories",
            "symlinks",
            "special",
            "orphans",
            "bytes",
        ] {
            assert_eq!(open[key], closed[key], "{key}");
        }
        assert!(open["names"].as_u64().unwrap() > 10);
    }
}

/// Owners come and go while commands look whether there is one.
#[test]
fn every_client_is_served() {
    for place in Place::stores() {
        amino(
            &place,
            "import",
            &[source(&place).join("d").to_str().unwrap(), "/t"],
        )
        .expect(0);
        let rounds = if is_long() { 200 } else { 12 };
        std::thread::scope(|scope| {
            for words in [&["ls", "/t"][..], &["cat", "/t/a"], &["fsck"], &["info"]] {
                let place = &place;
                scope.spawn(move || {
                    for _ in 0..rounds {
                        amino(place, words[0], &words[1..]).expect(0);
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        finish(place.run().arg("true")).expect(0);
                    }
                });
            }
        });
        place.fsck();
    }
}

/// A shell of the run may use them, too.
#[test]
fn from_inside_of_a_run() {
    let place = Place::amino();
    let script = format!(
        "echo in > f; amino cat --store {0} /f; amino ls --store {0} /; amino fsck -q --store {0}; %GO%",
        place.path("store").display()
    );
    let held = Held::new(&place, "one", &[], &script);
    assert_eq!(held.go(), 0);
}

/// A store that a run has mounted beside its own has an owner that takes no clients for it. Commands say so at once.
#[test]
fn a_store_that_another_run_has_mounted_names_the_owner_at_once() {
    let (place, lent) = (Place::amino(), Place::amino());
    assert_eq!(finish(&mut lent.shell("echo hi > f")).status, 0);
    let mount = format!("amino={}:/lent", lent.path("store").display());
    let held = Held::new(&place, "lends", &["--mount", &mount], "cat /lent/f; %GO%");
    let (pid, _) = place.owner().expect("the owner of the first store");
    let begun = std::time::Instant::now();
    let commands = [
        lent.amino_command("ls"),
        lent.amino_command("info"),
        lent.shell("true"),
    ];
    for mut command in commands {
        let ended = finish(&mut command);
        let said = format!("{}{}", ended.text(), ended.errors());
        assert!(said.contains(&format!("{pid}")), "{said}");
    }
    assert!(
        begun.elapsed() < Duration::from_secs(25),
        "a command has waited for an owner that never comes"
    );
    assert_eq!(held.go(), 0);
    assert_eq!(amino(&lent, "ls", &[]).expect(0).text(), "f\n");
}
