//! `amino run` and `goanna run` inside of a run: the command's processes have further mounts, and no others have them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;

use goanna_tests::held::command_in_path;
use goanna_tests::{Ended, Place, binary, finish, is_root};

/// Runs `script` in a run on the place's store, with $D for the directory of the stores of nested runs, and $TOP for its mount point, which nested runs
/// use, too ($AT).
fn inside(place: &Place, options: &[&str], script: &str) -> Ended {
    place.make_dir("stores");
    let mut command = command_in_path(place, options);
    command.env("D", place.path("stores"));
    command.env("STORE", place.path("store"));
    command.env("TOP", place.top());
    command.env("AT", format!("--at {}", place.top()));
    finish(command.args(["bash", "-uc", script]))
}

/// What the store `name` has, after the run.
fn listed(place: &Place, name: &str) -> String {
    let mut command = place.native(binary("amino"));
    let dir = place.path("stores").join(name);
    let ended = finish(command.args(["ls", "--store"]).arg(dir));
    ended.expect(0).text()
}

#[test]
fn a_store_is_there_for_the_command_alone() {
    for place in Place::stores() {
        let script = r#"
            set -e
            echo outer > $TOP/outer
            exec 3> $TOP/by-descriptor
            amino run $AT --store $D/b -- bash -ec 'echo sent >&3; echo inner > $TOP/inner; cp /bin/true $TOP/program
                $TOP/program; mkdir $TOP/dir; cd $TOP/dir; pwd; ls $TOP; grep " $TOP " /proc/self/mounts | cut -d" " -f1'
            exec 3>&-
            cat $TOP/by-descriptor
            ls $TOP
            echo other:
            amino run --store $D/b --at /other/place -- bash -ec 'cd /other/place/dir; cat ../inner; ls -d /oth*; ls $TOP'
            ls -d /other 2>&1 || true
        "#;
        let b = place.path("stores/b");
        let expected = format!(
            "{top}/dir\ndir\ninner\nprogram\n{}\nsent\nby-descriptor\nouter\nother:\ninner\n/other\nby-descriptor\nouter\n",
            b.display(),
            top = place.top()
        );
        let missing = "ls: cannot access '/other': No such file or directory\n";
        let text = inside(&place, &[], script).expect(0).text();
        assert_eq!(
            text.replace("/opt\n", ""),
            expected.replace("/opt\n", "") + missing
        );
        assert_eq!(listed(&place, "b"), "dir\ninner\nprogram\n");
        place.fsck();
    }
}

#[test]
fn the_changes_are_there_when_the_command_has_ended() {
    for place in Place::stores() {
        let script = r#"
            amino run $AT --store $D/b -- bash -c 'echo 1 > $TOP/f; exit 7'
            echo $?
            amino ls --store $D/b /
            amino fsck -q --store $D/b || exit 1
            amino run $AT --store $D/b -- no-such-command 2> /dev/null
            echo $?
            for i in 1 2 3 4 5 6; do amino run $AT --store $D/b -- bash -c "echo $i > $TOP/$i" & done
            wait
            amino run $AT --store $D/b -- bash -c 'cat $TOP/[1-6]' | tr '\n' ' '
        "#;
        let ended = inside(&place, &[], script).expect(0);
        assert_eq!(
            ended.text(),
            "7\nf\n127\n1 2 3 4 5 6 ",
            "{}",
            ended.errors()
        );
    }
}

#[test]
fn a_process_that_is_left_behind_keeps_its_mounts() {
    for place in Place::stores() {
        let script = r#"
            set -e
            mkfifo $D/go $D/done
            amino run $AT --store $D/b -- bash -c '{ read line < $D/go; echo late > $TOP/late; echo > $D/done; } > /dev/null 2>&1 &'
            ! amino ls --store $D/b / 2> /dev/null
            amino run $AT --store $D/b -- bash -c 'echo meanwhile > $TOP/meanwhile'
            echo > $D/go
            read line < $D/done
            until amino ls --store $D/b / 2> /dev/null; do sleep 0.05; done
            # A run that is killed ends as well.
            amino run $AT --store $D/b -- bash -c 'echo 2 > $TOP/killed; kill -9 $PPID; echo > $D/done' &
            read line < $D/done
            wait $! || true
            until amino cat --store $D/b /killed 2> /dev/null; do sleep 0.05; done
        "#;
        let ended = inside(&place, &[], script).expect(0);
        assert_eq!(ended.text(), "late\nmeanwhile\n2\n", "{}", ended.errors());
    }
}

#[test]
fn runs_are_nested_in_nested_runs() {
    for place in Place::stores() {
        let script = r#"
            amino run $AT --store $D/b -- amino run $AT --store $D/c -- bash -c '
                echo c > $TOP/c
                amino run $AT --store $STORE -- true
                echo $?
                amino run $AT -- ls $TOP
                amino run --store $D/b --at /b -- true
                echo $?'
            amino run $AT --store $STORE --txn -- bash -c 'echo 1 > $TOP/aborted; exit 3'
            echo $?
            amino run $AT --store $D/b --txn -- true
            echo $?
            amino run $AT --store $D/b -- amino txn begin
            echo $?
            ls $TOP
        "#;
        let ended = inside(&place, &[], script).expect(0);
        assert_eq!(ended.text(), "125\nc\n125\n3\n125\n125\n");
        let errors = ended.errors();
        let elsewhere = "the store is mounted at another place of this run";
        assert_eq!(errors.matches(elsewhere).count(), 2, "{errors}");
        assert!(
            errors.contains("whose transactions are those of its own store"),
            "{errors}"
        );
        assert_eq!(listed(&place, "c"), "c\n");
    }
}

#[test]
fn other_mounts_are_made_inside_of_a_run() {
    for place in Place::stores() {
        let script = r#"
            set -e
            mkdir $D/dir $D/secret
            echo file > $D/dir/file
            echo password > $D/password
            goanna aes init --scrypt-n 10 --passfile $D/password $D/secret > /dev/null 2>&1
            goanna run --mount pass=$D/dir:/m -- bash -ec 'cat /m/file
                goanna run --mount pass=/m:/mm,ro -- bash -c "cat /mm/file; ! echo 2> /dev/null > /mm/new; ls /m"'
            goanna run --mount aes=$D/secret:/secret,passfile=$D/password -- bash -ec 'echo secret > /secret/file; ls $TOP'
            amino run $AT --mount aes=$D/secret:/secret,passfile=$D/password --txn -- bash -ec 'cat /secret/file > $TOP/copy'
            cat $TOP/copy
            ! grep -r secret $D/secret/* || exit 1
        "#;
        let ended = inside(&place, &[], script).expect(0);
        assert_eq!(
            ended.text(),
            "file\nfile\nfile\nsecret\n",
            "{}",
            ended.errors()
        );
    }
}

#[test]
fn bad_requests_are_refused() {
    for place in Place::stores() {
        let script = r#"
            amino run $AT --store $D/no/store -- true
            amino run $AT --store $TOP/store -- true
            amino run --store $TOP/store --at /b -- true
            amino run --store $D/b --at relative -- true
            goanna run --mount pass=$D:/m,ro -- amino run $AT --store /m/b -- true
            amino run $AT --store $D/b --stats -- true
            goanna run --mount pass=$D/nothing:/m -- true
            goanna run -- true
            ls $D $TOP
        "#;
        let ended = inside(&place, &[], script).expect(0);
        let d = place.path("stores");
        assert_eq!(
            ended.text(),
            format!("{}:\n\n{}:\n", place.top(), d.display())
        );
        let expected = format!(
            "amino: {d}/no/store: there is no store here, and no directory {d}/no to make one in
amino: hint: give --create to make it with the directories above, or check the path for a mistake
amino: --at {top}: would hide the store's own directory {top}/store
amino: hint: choose another --at or another --store
amino: {top}/store: it is in a mount of the run
amino: hint: name a directory or file of the host
amino: --at relative: not an absolute path
amino: hint: give an absolute path below /, as in --at /amino
amino: /m/b: it is in a read-only mount of the run
amino: run: --stats: this process is in a run already, and the option is for the outermost run only
goanna: {d}/nothing: No such file or directory
goanna: no mounts: --mount or --config is needed
",
            d = d.display(),
            top = place.top()
        );
        let errors = ended.errors();
        let errors: Vec<&str> = errors
            .lines()
            .filter(|line| !line.contains("made a store"))
            .collect();
        assert_eq!(errors.join("\n") + "\n", expected);
    }
}

#[test]
fn a_run_that_reports_changes_refuses_further_mounts() {
    for place in Place::stores() {
        let script = "amino run $AT --store $D/b -- true";
        for outside in ["warn", "deny"] {
            let ended = inside(&place, &["--outside", outside], script).expect(125);
            let errors = ended.errors();
            assert!(errors.contains("which refuses further mounts"), "{errors}");
        }
        assert_eq!(fs::read_dir(place.path("stores")).unwrap().count(), 0);
    }
}

#[test]
fn another_user_gets_no_mounts() {
    if !is_root() {
        goanna_skip::skip(
            goanna_skip::Facility::Root,
            "only root can become another user",
        );
        return;
    }
    let place = Place::amino();
    let script =
        r#"chmod 777 $D; setpriv --reuid 65534 --clear-groups amino run $AT --store $D/b -- true"#;
    let ended = inside(&place, &[], script).expect(125);
    assert!(
        ended
            .errors()
            .contains("which refuses further mounts: Operation not permitted"),
        "{}",
        ended.errors()
    );
    // Nor one whose capabilities are fewer.
    let script = "setpriv --bounding-set -all --inh-caps -all amino run $AT --store $D/b -- true";
    inside(&place, &[], script).expect(125);
}

#[test]
fn file_systems_that_programs_mount_end_with_their_run() {
    if !is_root() {
        goanna_skip::skip(goanna_skip::Facility::Mounts, "only root can mount");
        return;
    }
    let place = Place::amino();
    let script = r#"
        set -e
        mkdir $TOP/tmp
        mount -t tmpfs none $TOP/tmp
        amino run $AT --store $D/b -- bash -ec 'mkdir $TOP/tmp; mount -t tmpfs inner $TOP/tmp; echo > $TOP/tmp/inner; ls $TOP/tmp'
        amino run --store $D/b --at /b -- bash -ec 'echo > $TOP/tmp/seen; ls /b/tmp; umount $TOP/tmp; ls $TOP/tmp'
        ls $TOP/tmp
        amino ls --store $D/b /tmp
    "#;
    let ended = inside(&place, &[], script).expect(0);
    assert_eq!(ended.text(), "inner\n", "{}", ended.errors());
}
