//! `amino ls`, `cat`, `stat`, `tree`, `import` and `export` inside `amino run`: they act in the transaction of their caller,
//! and say what they say outside.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;

use goanna_tests::held::command_in_path;
use goanna_tests::{Ended, Held, Place, binary, finish, same_tree, tree};

/// Runs `script` in the mount, in a shell for which `amino` means the place's store.
fn inside(place: &Place, options: &[&str], script: &str) -> Ended {
    let script = format!("cd {}; umask 022; {script}", place.top());
    let mut command = command_in_path(place, options);
    command.env("AMINO_STORE", place.path("store"));
    command.env("HOSTDIR", place.path("host"));
    finish(command.args(["bash", "-ec", &script]))
}

/// What `amino` says outside of the run.
fn outside(place: &Place, words: &[&str]) -> (i32, String, String) {
    let ended = finish(place.amino_command(words[0]).args(&words[1..]));
    (ended.status, ended.text(), ended.errors())
}

fn listing(place: &Place) -> String {
    let (status, text, _) = outside(place, &["ls", "-aR", "/"]);
    assert_eq!(status, 0);
    text
}

/// A host directory `host/src` with what an import meets.
fn make_source(place: &Place) {
    let script = "mkdir -p src/d; echo one > src/d/a; ln src/d/a src/b; ln -s d/a src/l; mkfifo src/p
        head -c 3000000 /dev/urandom > src/big; truncate -s 8M src/sparse; printf end >> src/sparse";
    finish(place.native("bash").args(["-ec", script])).expect(0);
}

#[test]
fn an_import_in_an_aborted_run_leaves_nothing() {
    for place in Place::stores() {
        make_source(&place);
        inside(&place, &[], "echo old > old").expect(0);
        let before = listing(&place);
        let script = "amino import $HOSTDIR/src /t; test \"$(cat t/d/a)\" = one; cmp t/big $HOSTDIR/src/big; exit 3";
        inside(&place, &["--txn"], script).expect(3);
        assert_eq!(listing(&place), before);
        place.fsck();
        let script = "amino import $HOSTDIR/src /t; test \"$(amino cat /t/d/a)\" = one";
        inside(&place, &["--txn"], script).expect(0);
        let out = place.path("host/out");
        let (status, ..) = outside(&place, &["export", "/t", out.to_str().unwrap()]);
        assert_eq!(status, 0);
        same_tree(&tree(&place.path("host/src")), &tree(&out));
        place.fsck();
    }
}

#[test]
fn commands_act_in_the_transaction_of_the_shell() {
    for place in Place::stores() {
        make_source(&place);
        inside(&place, &[], "mkdir d; echo old > d/f; echo gone > gone").expect(0);
        let script = "
            amino txn begin >/dev/null
            echo new > d/f; echo more > d/more; rm gone
            test \"$(amino cat /d/f)\" = new
            test \"$(amino ls / /d)\" = $'/:\\nd\\n\\n/d:\\nf\\nmore'
            ! amino stat /gone 2>/dev/null
            test \"$(amino tree --json /d | tr , '\\n' | grep -c '\"name\"')\" = 3
            amino export /d $HOSTDIR/inner; test \"$(cat $HOSTDIR/inner/more)\" = more
            amino txn begin >/dev/null
            amino import $HOSTDIR/src /t; test \"$(amino cat /t/d/a)\" = one; amino ls /t >/dev/null
            amino txn abort
            ! amino ls /t 2>/dev/null; test ! -e t; test \"$(amino cat /d/f)\" = new
            amino import $HOSTDIR/src/d /u
            amino txn abort
            test \"$(amino cat /d/f /gone)\" = $'old\\ngone'; ! amino ls /u 2>/dev/null
            amino txn begin >/dev/null
            amino import $HOSTDIR/src/d /u
            amino txn commit
            amino txn run -- amino import $HOSTDIR/src/d /v
            amino txn run -- sh -c 'amino import $HOSTDIR/src/d /w; false' || true
            amino ls /";
        let ended = inside(&place, &[], script).expect(0);
        assert!(
            ended.text().ends_with("d\ngone\nu\nv\n"),
            "{}",
            ended.text()
        );
        assert_eq!(outside(&place, &["cat", "/u/a", "/v/a"]).1, "one\none\n");
        place.fsck();
    }
}

/// A descriptor shows what is outside of an explicit transaction, so it is not what is read.
#[test]
fn what_is_imported_from_the_mount_is_what_the_caller_sees() {
    for place in Place::stores() {
        inside(
            &place,
            &[],
            "mkdir d; echo old > d/f; head -c 5000000 /dev/urandom > d/big; echo x > d/changed",
        )
        .expect(0);
        let script = "
            amino txn begin >/dev/null
            echo new > d/f; printf Y | dd of=d/big bs=1 seek=3000000 conv=notrunc status=none
            amino import $PWD/d /copy
            test \"$(cat copy/f)\" = new; cmp d/big copy/big
            amino txn commit
            test \"$(cat copy/f)\" = new; cmp d/big copy/big";
        inside(&place, &[], script).expect(0);
        inside(
            &place,
            &["--txn"],
            "echo newer > d/f; amino import $PWD/d /again; cmp d/f again/f; cmp d/big again/big",
        )
        .expect(0);
        inside(
            &place,
            &[],
            "test $(cat again/f) = newer; cmp d/big again/big; cmp copy/big again/big",
        )
        .expect(0);
        place.fsck();
    }
}

#[test]
fn commands_on_another_store_act_outside() {
    for place in Place::stores() {
        make_source(&place);
        let other = place.path("other").into_os_string().into_string().unwrap();
        let script = format!(
            "amino import --store {other} $HOSTDIR/src /t; test \"$(amino cat --store {other} /t/d/a)\" = one; exit 1"
        );
        inside(&place, &["--txn"], &script).expect(1);
        let mut cat = place.native(goanna_tests::binary("amino"));
        let ended = finish(cat.args(["cat", "--store", &other, "/t/d/a"])).expect(0);
        assert_eq!(ended.text(), "one\n");
    }
}

#[test]
fn commands_say_the_same_inside_and_outside() {
    for place in Place::stores() {
        make_source(&place);
        let make = "amino import $HOSTDIR/src /t; mkdir shut; echo x > shut/in; echo y > secret; chmod 0 shut secret; \
                    ln -s l2 l1; ln -s l1 l2; touch -d @1000000000 t l1 l2 -h";
        inside(&place, &[], make).expect(0);
        let host = place.path("host/full");
        fs::create_dir_all(host.join("x")).unwrap();
        let commands: &[&[&str]] = &[
            &["ls", "/", "t", "/t/none", "/l1", "/shut"],
            &["ls", "-laR", "/t"],
            &["ls", "--json", "/t"],
            &["cat", "/t/b", "/t/none", "/t", "/secret", "/t/p", "/l1"],
            &["stat", "/t/b", "/t/l", "/none"],
            &["stat", "--json", "-L", "/t/l"],
            &["tree", "/"],
            &["tree", "--json", "/t"],
            &["tree", "/t/b"],
            &["export", "/t/b", "/nowhere/x"],
            &["export", "/t", host.to_str().unwrap()],
            &["import", "/nowhere", "/x"],
            &[
                "import",
                "--json",
                "--engine",
                "sled",
                "/etc/hostname",
                "/x",
            ],
            &["import", host.to_str().unwrap(), "/t/b/below"],
        ];
        for command in commands {
            // The error of an engine names the store, and is of this place's.
            let expected = outside(&place, command);
            let words: Vec<_> = command.iter().map(|word| format!("'{word}'")).collect();
            let words = words.join(" ");
            for options in [&[][..], &["--txn"]] {
                let script = format!("set +e; amino {words}; exit $?");
                let ended = inside(&place, options, &script);
                let mut errors = ended.errors();
                if let Some(at) = errors.find("amino: the command exited") {
                    errors.truncate(at);
                }
                let got = (ended.status, ended.text(), errors);
                assert_eq!(got, expected, "{command:?} {options:?}");
            }
        }
        place.fsck();
    }
}

/// fsck and info look at the store as a whole, which has no uncommitted changes.
#[test]
fn checks_are_of_what_is_committed() {
    for place in Place::stores() {
        inside(&place, &[], "echo a > a").expect(0);
        let script = "echo b > b; amino fsck -q; amino info --json | tr -d ' \\n' | grep -o '\"files\":[0-9]*'";
        let ended = inside(&place, &["--txn"], script).expect(0);
        assert_eq!(ended.text(), "\"files\":1\n");
    }
}

/// The client may be killed while `aminod` works for it; the run ends all the same, with what its end means.
#[test]
fn a_command_that_is_killed_leaves_no_half_file() {
    let place = Place::amino();
    let script = "mkdir src; truncate -s 300M src/large; for i in $(seq 0 299); do printf x | dd of=src/large bs=1 \
                  seek=$((i * 1048576)) conv=notrunc status=none; done; head -c 100000000 /dev/urandom > src/random";
    finish(place.native("bash").args(["-ec", script])).expect(0);
    let script = "amino import $HOSTDIR/src /t & for i in $(seq 500); do test -e t/random && break; sleep .01; done; \
                  kill -9 $! || true; wait; exit 0";
    inside(&place, &["--txn"], script).expect(0);
    place.fsck();
    let held = Held::new(&place, "one", &[], "%GO%");
    let (_, text, _) = outside(&place, &["ls", "/t"]);
    for name in text.lines() {
        let (_, stat, _) = outside(&place, &["ls", "-l", &format!("/t/{name}")]);
        let size = match name {
            "large" => " 314572800 ",
            _ => " 100000000 ",
        };
        assert!(stat.contains(size), "{name}: {stat}");
    }
    assert_eq!(held.go(), 0);
    place.fsck();
}

/// As `amino --help` says of dump, fsck and info; compact has nothing to do with what is uncommitted, and load makes another store.
#[test]
fn commands_on_whole_stores_see_the_committed_state() {
    for place in Place::stores() {
        inside(&place, &[], "echo old > old").expect(0);
        let script = "echo new > new; rm old
            amino dump > $HOSTDIR/dump; amino info --json > $HOSTDIR/info; amino fsck; amino compact
            ! amino load $HOSTDIR/dump
            amino load --store $HOSTDIR/loaded $HOSTDIR/dump; test -e new -a ! -e old; exit 3";
        let ended = inside(&place, &["--txn"], script).expect(3);
        let refused = "exists and is not empty, and a dump is loaded into a new store";
        assert!(ended.errors().contains(refused), "{}", ended.errors());
        let info = fs::read_to_string(place.path("host/info")).unwrap();
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        assert_eq!(info["files"], 1, "{info}");
        let loaded = place.path("host/loaded");
        let mut ls = place.native(binary("amino"));
        ls.args(["ls", "/", "--store"]).arg(&loaded);
        assert_eq!(finish(&mut ls).expect(0).text(), "old\n");
        assert_eq!(outside(&place, &["cat", "/old"]).1, "old\n");
        place.fsck();
    }
}
