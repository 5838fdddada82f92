//! Named transactions, and transactions without participants.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use goanna_tests::held::command_in_path;
use goanna_tests::{Ended, Held, Place, finish, may_become_another_user, tools::has};
use serde_json::Value;

/// Runs `script` in the mount.
fn run(place: &Place, options: &[&str], script: &str) -> Ended {
    let script = format!("cd {}; umask 022; {script}", place.top());
    let mut command = command_in_path(place, options);
    command.env("HOSTDIR", place.path("host"));
    finish(command.args(["bash", "-ec", &script]))
}

fn listing(place: &Place) -> String {
    let mut command = place.amino_command("ls");
    finish(command.args(["-R", "/"])).expect(0).text()
}

#[test]
fn a_transaction_whose_shell_ends_is_reported() {
    for place in Place::stores() {
        let script = "id=$(amino txn begin || echo failed); echo x > f; amino txn commit || echo \"none: $?\"; test -e f";
        let ended = run(&place, &[], script).expect(0);
        assert_eq!(ended.text(), "none: 1\n");
        let errors = ended.errors();
        let told = "was aborted, because the last process that took part in it, process ";
        assert!(errors.contains(told), "{errors}");
        assert!(errors.contains("(bash), ended"), "{errors}");
        assert!(errors.contains("amino txn begin --name NAME"), "{errors}");

        let python =
            "import subprocess as s; s.run('amino txn begin; true', shell=True, check=True)";
        let ended = run(&place, &[], &format!("python3 -c \"{python}\"")).expect(0);
        assert_eq!(
            ended.errors().matches(told).count(),
            1,
            "{}",
            ended.errors()
        );
        // One that is ended is not.
        let ended = run(
            &place,
            &[],
            "amino txn run -- true; amino txn begin >id; amino txn abort",
        )
        .expect(0);
        assert_eq!(ended.errors(), "");
        let mut quiet = command_in_path(&place, &["-q"]);
        let ended = finish(quiet.args(["sh", "-c", "(amino txn begin; true)"])).expect(0);
        assert_eq!(ended.errors(), "");
        let ended = run(
            &place,
            &[],
            "for i in $(seq 30); do (amino txn begin; true) >/dev/null; done",
        )
        .expect(0);
        assert_eq!(
            ended.errors().matches(told).count(),
            20,
            "{}",
            ended.errors()
        );
        assert!(ended.errors().contains("further transactions were aborted"));
        place.fsck();
    }
}

#[test]
fn new_shells_work_in_one_transaction() {
    for place in Place::stores() {
        let python = "
import subprocess as s
def sh(text): return s.run(text, shell=True, stdout=s.PIPE, check=True).stdout
assert len(sh('amino txn begin --name build-1; true')) == 33
sh('amino txn run --in build-1 -- sh -c \"echo one > a; mkdir d\"')
assert s.run('amino txn run --in build-1 -- sh -c \"echo two > d/b; exit 7\"', shell=True).returncode == 7
assert s.run('amino txn run --in build-1 -- sh -c \"kill -TERM \\\\$\\\\$\"', shell=True).returncode == 143
assert s.run('amino txn run --in build-1 -- ./none', shell=True).returncode == 127
sh('amino txn run --in build-1 -- amino txn run -- sh -c \"echo inner > inner\"')
s.run('amino txn run --in build-1 -- amino -q txn run -- sh -c \"echo x > lost; false\"', shell=True)
assert sh('amino txn run --in build-1 -- sh -c \"cat a d/b; ls\"') == b'one\\ntwo\\na\\nd\\ninner\\n'
OUTSIDE
sh('amino txn END --name build-1')
";
        // Within a run transaction, programs outside wait for locks of those inside.
        let outside = "assert sh('ls') == b''";
        for (options, outside) in [(&[][..], outside), (&["--txn"], "")] {
            for (end, left) in [("abort", ""), ("commit", "a\nd\ninner\n")] {
                std::fs::write(
                    place.path("host/tool.py"),
                    python.replace("END", end).replace("OUTSIDE", outside),
                )
                .unwrap();
                let script = "python3 $HOSTDIR/tool.py; ls; rm -rf *";
                let ended = run(&place, options, script).expect(0);
                assert_eq!(ended.text(), left, "{end} {}", ended.errors());
            }
        }
        place.fsck();
    }
}

/// No program outside sees its changes before the commit.
#[test]
fn others_see_a_named_transaction_when_it_is_committed() {
    let place = Place::amino();
    let script = "amino txn begin --name n >/dev/null; amino txn run --in n -- sh -c 'echo x > f'; %GO%; amino txn commit --name n";
    let held = Held::new(&place, "one", &[], script);
    assert_eq!(listing(&place), "/:\n");
    assert_eq!(held.go(), 0);
    assert_eq!(listing(&place), "/:\nf\n");
}

#[test]
fn names_have_rules() {
    for place in Place::stores() {
        let script = "
            for name in '' -x 'a b' a/b $(printf 'n%.0s' $(seq 65)); do
              amino txn begin --name=\"$name\" 2>/dev/null || echo $?; done
            long=$(printf 'n%.0s' $(seq 64)); amino txn begin --name $long >/dev/null; amino txn abort --name $long
            amino txn begin --name n >/dev/null; amino txn begin --name n || echo taken: $?
            for command in 'commit --name m' 'abort --name m' 'status --name m' 'run --in m -- true'; do
              amino txn $command || echo none: $?; done
            amino txn run --in n --retry 3 -- true 2>/dev/null || echo retry: $?
            amino txn begin --expire 3 2>/dev/null || echo no name: $?
            amino txn begin >/dev/null; amino txn run --in n -- true || echo elsewhere: $?; amino txn commit
            amino txn run --in n -- amino txn run --in n -- true
            amino txn commit --name n; amino txn begin --name n >/dev/null; amino txn abort --name n; amino txn list";
        let ended = run(&place, &[], script).expect(0);
        let expected = "125\n125\n125\n125\n125\ntaken: 1\nnone: 1\nnone: 1\nnone: 1\nnone: 1\nretry: 125\nno name: 125\n\
                        elsewhere: 1\n";
        assert_eq!(ended.text(), expected, "{}", ended.errors());
        let taken =
            "amino: txn begin --name n: a transaction of this name is open already\namino: hint: ";
        assert!(ended.errors().contains(taken), "{}", ended.errors());
        let none = "amino: txn run --in m: there is no such transaction\namino: hint: ";
        assert!(ended.errors().contains(none), "{}", ended.errors());
    }
}

#[test]
fn a_name_belongs_to_its_user() {
    if !may_become_another_user() || !has("setpriv") {
        return;
    }
    let place = Place::amino();
    let script = "chmod 777 .; other='setpriv --reuid=65534 --regid=65534 --clear-groups'
        amino txn begin --name n >/dev/null; $other amino txn begin --name n > /dev/null
        $other amino txn run --in n -- sh -c 'echo theirs > theirs'; amino txn run --in n -- sh -c 'echo ours > ours'
        amino txn list | wc -l; $other amino txn list | wc -l
        $other amino txn commit --name n; ! $other amino txn commit --name n 2>/dev/null; amino txn abort --name n; ls";
    let ended = run(&place, &[], script).expect(0);
    assert_eq!(ended.text(), "2\n1\ntheirs\n", "{}", ended.errors());
}

#[test]
fn a_commit_never_waits_and_an_abort_cancels_participants() {
    for place in Place::stores() {
        let script = "
            mkfifo $HOSTDIR/ready $HOSTDIR/go; echo old > old; mkdir d
            amino txn begin --name n >/dev/null
            amino txn run --in n -- bash -c 'echo x > d/x; exec 3> d/held; echo > $HOSTDIR/ready; read x < $HOSTDIR/go
              { echo y > d/y; } 2>$HOSTDIR/said; echo z >&3; cat old; mkdir e; rm old; exit 5' &
            job=$!
            read x < $HOSTDIR/ready
            amino txn commit --name n || echo in use: $?
            amino txn abort --name n
            echo > $HOSTDIR/go
            wait $job || echo ended: $?
            cat old; ls d; grep -o 'Operation canceled' $HOSTDIR/said";
        let ended = run(&place, &[], script).expect(0);
        assert_eq!(
            ended.text(),
            "in use: 1\nended: 5\nold\nOperation canceled\n",
            "{}",
            ended.errors()
        );
        let message = "amino: txn commit --name n: processes take part in the transaction";
        assert!(ended.errors().contains(message), "{}", ended.errors());
        assert_eq!(listing(&place), "/:\nd\nold\n\n/d:\n");
        place.fsck();
    }
}

#[test]
fn a_transaction_whose_time_is_over_is_aborted() {
    for place in Place::stores() {
        let script = "
            amino txn begin --name n --expire 1 >/dev/null; amino txn begin --name long --expire 1000 >/dev/null
            amino txn run --in n -- sh -c 'echo x > f'; amino txn run --in long -- sh -c 'echo x > g'
            while amino txn status --name n >/dev/null 2>&1; do sleep .1; done
            amino txn commit --name n || echo none: $?
            amino txn commit --name long; ls";
        let ended = run(&place, &[], script).expect(0);
        assert_eq!(ended.text(), "none: 1\ng\n", "{}", ended.errors());
        let told = "the transaction n was aborted, because its 1 s are over";
        assert!(ended.errors().contains(told), "{}", ended.errors());
    }
}

#[test]
fn the_end_of_the_run_aborts_and_says_so() {
    for place in Place::stores() {
        for options in [&[][..], &["--txn"]] {
            let script = "amino txn begin --name n >/dev/null; amino txn run --in n -- sh -c 'echo x > f'; echo y > kept";
            let ended = run(&place, options, script).expect(0);
            let told = "the transaction n was still open at the end of the run, and was aborted";
            assert!(ended.errors().contains(told), "{}", ended.errors());
            assert_eq!(listing(&place), "/:\nkept\n");
        }
        place.fsck();
    }
}

#[test]
fn a_named_transaction_is_nested_in_the_one_around_it() {
    for place in Place::stores() {
        let script = "
            amino txn begin >/dev/null; echo outer > outer
            amino txn begin --name n >/dev/null
            amino txn run --in n -- sh -c 'cat outer; echo inner > inner'
            amino txn commit || echo open: $?
            amino txn commit --name n; cat inner
            amino txn begin --name m >/dev/null; amino txn run --in m -- amino txn begin --name k >/dev/null
            amino txn list | cut -d ' ' -f 1,5,6; amino txn commit --name m || echo inside: $?
            amino txn abort; ls";
        let ended = run(&place, &[], script).expect(0);
        let expected = "outer\nopen: 1\ninner\n- depth 1\nm depth 2\nk depth 3\ninside: 1\n";
        assert_eq!(ended.text(), expected, "{}", ended.errors());
        for name in ["m", "k"] {
            let told = format!("the transaction {name} was aborted with the one around it");
            assert!(ended.errors().contains(&told), "{}", ended.errors());
        }
    }
}

#[test]
fn lists_have_the_same_content_as_text_and_as_json() {
    let place = Place::amino();
    let script = "
        amino txn begin --name n --expire 1000 > id; amino txn run --in n -- sh -c 'echo x > f; amino txn list --json; echo'
        amino txn status --name n --json; amino txn status --name n | grep -A1 '^  name'; echo $(cat id) > $HOSTDIR/id; amino txn list >&2
        amino txn abort --name n";
    let ended = run(&place, &[], script).expect(0);
    let text = ended.text();
    let (first, rest) = text.split_once("\n\n").unwrap();
    let list: Value = serde_json::from_str(first).unwrap();
    let listed = &list["transactions"][0];
    assert_eq!(listed["name"], "n");
    assert!(listed["parent"].is_null());
    assert_eq!(listed["depth"], 1);
    assert!((900..=1000).contains(&listed["expires_s"].as_u64().unwrap()));
    assert_eq!(listed["processes"].as_array().unwrap().len(), 3);
    let id = std::fs::read_to_string(place.path("host/id")).unwrap();
    assert_eq!(listed["id"], id.trim_end());
    let (json, lines) = rest.split_once("\n  name").unwrap();
    let status: Value = serde_json::from_str(json).unwrap();
    assert_eq!(status["id"], listed["id"]);
    assert_eq!(status["processes"].as_array().unwrap().len(), 0);
    assert!(lines.contains("n\n  expires    in "), "{lines}");
    assert!(
        ended
            .errors()
            .starts_with(&format!("n  {}  depth 1  ", id.trim_end())),
        "{}",
        ended.errors()
    );
}
