//! Watches (inotify) in mounts, as Debian's tools and node use them, and what transactions and other runs do to watched files.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;

use goanna_tests::held::{command_in_path, until};
use goanna_tests::tools::has;
use goanna_tests::{Backend, Held, Intercept, Place, User, finish, is_long, program};

/// Functions of the scripts. `watch NAME ARGUMENT...` starts inotifywait, whose events go to NAME.out; `sees NAME LINE` waits for a
/// line there; `shows NAME` prints all.
const PRELUDE: &str = r#"
    watch() { local name=$1; shift
        inotifywait -m "$@" --format '%w %e %f' >"$HOSTDIR/$name.out" 2>"$HOSTDIR/$name.err" &
        watchers="$watchers $!"
        until grep -q established "$HOSTDIR/$name.err"; do kill -0 $! || { cat "$HOSTDIR/$name.err"; exit 9; }; sleep 0.02; done; }
    sees() { until grep -qxF -- "$2" "$HOSTDIR/$1.out"; do sleep 0.02; done; }
    shows() { cat "$HOSTDIR/$1.out"; }
    trap 'kill $watchers 2>/dev/null || true' EXIT
"#;

fn inside(place: &Place, script: &str) -> String {
    let script = format!("cd {}; umask 022; {PRELUDE}{script}", place.top());
    let mut command = command_in_path(place, &[]);
    command.env("HOSTDIR", place.path("host"));
    finish(command.args(["bash", "-ec", &script]))
        .expect(0)
        .text()
}

fn all_places() -> Vec<Place> {
    let mut places = Place::stores();
    places.push(Place::pass());
    places.push(Place::new(Backend::Aes, Intercept::Notify, User::Own));
    places
}

#[test]
fn inotifywait_reports_what_happens_below_a_directory() {
    if !has("inotifywait") {
        return;
    }
    for place in all_places() {
        let script = r#"
            mkdir -p tree/a/b
            watch out -r -e create,close_write,move,delete,attrib tree
            echo x > tree/a/b/file; mv tree/a/b/file tree/moved; chmod 600 tree/moved; rm tree/moved
            mkdir tree/new; sees out 'tree/ CREATE,ISDIR new'; rmdir tree/a/b; sees out 'tree/a/ DELETE,ISDIR b'; shows out"#;
        assert_eq!(
            inside(&place, script),
            "tree/a/b/ CREATE file\ntree/a/b/ CLOSE_WRITE,CLOSE file\ntree/a/b/ MOVED_FROM file\ntree/ MOVED_TO moved\n\
             tree/ ATTRIB moved\ntree/ DELETE moved\ntree/ CREATE,ISDIR new\ntree/a/ DELETE,ISDIR b\n"
        );
        place.fsck();
    }
}

/// As many directories as a large project has.
#[test]
fn one_watcher_watches_very_many_directories() {
    if !has("inotifywait") {
        return;
    }
    let directories = if is_long() { 10_000 } else { 500 };
    let place = Place::amino();
    let script = format!(
        "mkdir -p $(seq -f tree/d%g {directories}); for i in $(seq {directories}); do : > tree/d$i/old; done
         watch out -r -e create,delete tree
         rm tree/d{directories}/old; : > tree/d1/new; sees out 'tree/d1/ CREATE new'; shows out"
    );
    let expected = format!("tree/d{directories}/ DELETE old\ntree/d1/ CREATE new\n");
    assert_eq!(inside(&place, &script), expected);
}

#[test]
fn node_watches_a_tree() {
    if !has("node") {
        return;
    }
    for place in all_places() {
        let script = r#"
            mkdir tree
            cat > "$HOSTDIR/watch.js" <<'END'
            const fs = require('fs'); const seen = new Set();
            const watcher = fs.watch('tree', (kind, name) => {
                seen.add(kind + ' ' + name);
                if (name === 'last') { watcher.close(); console.log([...seen].sort().join('\n')); }
            });
            fs.writeFileSync('tree/a', 'x'); fs.renameSync('tree/a', 'tree/b'); fs.unlinkSync('tree/b'); fs.mkdirSync('tree/last');
END
            node "$HOSTDIR/watch.js""#;
        assert_eq!(
            inside(&place, script),
            "change a\nrename a\nrename b\nrename last\n"
        );
    }
}

#[test]
fn tail_follows_a_rotated_file() {
    for place in all_places() {
        let script = r#"
            echo one > log; tail -n +1 -F log > "$HOSTDIR/out" 2>/dev/null & watchers=$!
            sees() { until grep -qx "$1" "$HOSTDIR/out"; do sleep 0.02; done; }
            sees one; echo two >> log; sees two; mv log old; echo three > log; sees three; cat "$HOSTDIR/out""#;
        assert_eq!(inside(&place, script), "one\ntwo\nthree\n");
    }
}

/// A watcher that belongs to no transaction is started first; `outside NAME` makes a directory in `marks` outside of all, too.
const OUTSIDE: &str = r#"
    mkdir d marks; echo old > d/kept; echo old > d/gone; mkfifo "$HOSTDIR/names"
    watch out -e create,delete,move,modify d marks
    { while read -r name; do mkdir "marks/$name"; done; } < "$HOSTDIR/names" & watchers="$watchers $!"
    exec 7> "$HOSTDIR/names"
    outside() { echo "$1" >&7; sees out "marks/ CREATE,ISDIR $1"; }
"#;

#[test]
fn changes_of_a_transaction_are_seen_outside_when_it_commits() {
    if !has("inotifywait") {
        return;
    }
    for place in Place::stores() {
        let script = format!(
            "{OUTSIDE}
            amino txn begin >/dev/null
            watch in -e create,delete,move,modify d
            mkdir d/new; rm d/gone; mv d/kept d/moved; echo more >> d/moved; sees in 'd/ MODIFY moved'
            outside before
            amino txn begin >/dev/null; mkdir d/inner; amino txn commit; sees in 'd/ CREATE,ISDIR inner'
            amino txn begin >/dev/null; mkdir d/undone; amino txn abort
            outside still
            amino txn commit; outside after
            rmdir d/new; sees in 'd/ DELETE,ISDIR new'; sees out 'd/ DELETE,ISDIR new'
            shows in; echo; shows out"
        );
        let events = "d/ CREATE,ISDIR new\nd/ DELETE gone\nd/ MOVED_FROM kept\nd/ MOVED_TO moved\nd/ MODIFY moved\nd/ CREATE,ISDIR inner\n";
        let last = "d/ DELETE,ISDIR new\n";
        assert_eq!(
            inside(&place, &script),
            format!(
                "{events}{last}\nmarks/ CREATE,ISDIR before\nmarks/ CREATE,ISDIR still\n{events}marks/ CREATE,ISDIR after\n{last}"
            )
        );
    }
}

#[test]
fn an_aborted_transaction_is_undone_for_those_inside_and_never_seen_outside() {
    if !has("inotifywait") {
        return;
    }
    for place in Place::stores() {
        let script = format!(
            "{OUTSIDE}
            amino txn begin >/dev/null
            watch in -e create,delete,move d
            mkdir d/new; rm d/gone; sees in 'd/ DELETE gone'
            amino txn abort; outside after
            sees in 'd/ CREATE gone'; sort \"$HOSTDIR/in.out\"; echo; shows out"
        );
        assert_eq!(
            inside(&place, &script),
            "d/ CREATE gone\nd/ CREATE,ISDIR new\nd/ DELETE gone\nd/ DELETE,ISDIR new\n\nmarks/ CREATE,ISDIR after\n"
        );
    }
}

#[test]
fn a_run_in_one_transaction_watches_its_own_changes() {
    if !has("inotifywait") {
        return;
    }
    let place = Place::amino();
    let script = format!(
        "cd {}; {PRELUDE} mkdir d; watch out -e create,close_write d; echo x > d/f; sees out 'd/ CLOSE_WRITE,CLOSE f'; shows out",
        place.top()
    );
    let mut command = command_in_path(&place, &["--txn"]);
    command.env("HOSTDIR", place.path("host"));
    let ended = finish(command.args(["bash", "-ec", &script])).expect(0);
    assert_eq!(ended.text(), "d/ CREATE f\nd/ CLOSE_WRITE,CLOSE f\n");
}

/// One run watches; another run, a run in one transaction and `amino import` change the files.
#[test]
fn changes_of_other_runs_and_commands_are_seen() {
    if !has("inotifywait") {
        return;
    }
    let place = Place::amino();
    let run = |options: &[&str], script: &str| {
        finish(&mut place.shell_with(options, script)).expect(0);
    };
    run(&[], "mkdir d e && echo old > d/old && echo kept > d/kept");
    let host = place.path("host");
    let script = format!(
        "export HOSTDIR={}; {PRELUDE} watch out -e create,delete,move,modify,attrib d e; %GO%",
        host.display()
    );
    let held = Held::new(&place, "watcher", &[], &script);
    let seen = || fs::read_to_string(host.join("out.out")).unwrap();
    let sees = |line: &str| {
        until(line, || seen().lines().any(|seen| seen == line));
    };
    run(
        &[],
        "mkdir d/new && rm d/old && mv d/kept e/moved && chmod 600 e/moved",
    );
    sees("e/ ATTRIB moved");
    run(
        &["--txn"],
        "echo more >> e/moved && mkdir d/last && rmdir d/new",
    );
    sees("d/ DELETE,ISDIR new");
    fs::create_dir(host.join("src")).unwrap();
    let mut import = place.amino_command("import");
    finish(import.arg(host.join("src")).arg("/d/imported")).expect(0);
    sees("d/ CREATE,ISDIR imported");
    assert_eq!(held.go(), 0);
    let seen = seen();
    for line in [
        "d/ CREATE,ISDIR new",
        "d/ DELETE old",
        "d/ MOVED_FROM kept",
        "e/ MOVED_TO moved",
        "e/ MODIFY moved",
        "d/ CREATE,ISDIR last",
    ] {
        assert!(seen.lines().any(|seen| seen == line), "{line}:\n{seen}");
    }
}

#[test]
fn fanotify_is_refused_in_mounts() {
    for place in all_places() {
        let program = program("fanotify", &place.path("."), false);
        let mut run = place.run();
        let ended = finish(run.arg(program).arg(place.top())).expect(0);
        assert_eq!(ended.text(), "fanotify EOPNOTSUPP\n");
    }
}
