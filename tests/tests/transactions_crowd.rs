//! Transactions of many processes at once: conflicts, deadlocks, kills, signals, races; and large transactions.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use goanna_tests::{
    Backend, Ended, Engine, Intercept, Place, User, command_in_path, finish, finish_within,
    is_long, may_become_another_user, program, tools::has,
};

fn store(engine: Engine, intercept: Intercept) -> Place {
    Place::new(Backend::Amino(engine), intercept, User::Own)
}

/// Where interception and the engine make a difference, and where only one of them does.
fn stores() -> [Place; 3] {
    [
        store(Engine::Fjall, Intercept::Notify),
        store(Engine::Fjall, Intercept::Ptrace),
        store(Engine::Sled, Intercept::Notify),
    ]
}

fn times(short: u32, long: u32) -> String {
    if is_long() { long } else { short }.to_string()
}

fn limit() -> Duration {
    Duration::from_secs(if is_long() { 1800 } else { 100 })
}

/// A script of bash in the mount.
fn script(place: &Place, options: &[&str], text: &str) -> Ended {
    let text = format!("cd {}; umask 022\n{text}", place.top());
    finish_within(
        command_in_path(place, options).args(["bash", "-c", &text]),
        limit(),
    )
}

/// Runs a program of `tests/programs`, which says what is not as it should be.
#[track_caller]
fn check(place: &Place, name: &str, args: &[&str]) {
    let program = program(name, &place.path("host"), false);
    let mut command = command_in_path(place, &[]);
    command.arg(program).arg(place.top()).args(args);
    let ended = finish_within(&mut command, limit()).expect(0);
    eprint!("{}", ended.errors());
    place.fsck();
}

#[test]
fn counts_are_neither_lost_nor_doubled() {
    for place in stores() {
        check(&place, "txn_count", &["16", &times(63, 2000)]);
    }
}

#[test]
fn killed_processes_leave_all_or_nothing() {
    for place in stores() {
        check(&place, "txn_count", &["6", "0", &times(60, 2000)]);
    }
}

#[test]
fn readers_outside_see_only_what_was_committed() {
    for place in stores() {
        check(&place, "txn_readers", &[&times(400, 20000)]);
    }
}

#[test]
fn commits_do_not_prolong_a_wait_with_a_limit() {
    for place in stores() {
        check(&place, "txn_patience", &[]);
    }
}

#[test]
fn a_long_write_is_one_operation() {
    for place in stores() {
        check(&place, "big_write", &[&times(4, 100)]);
    }
}

#[test]
fn nothing_slips_between_a_check_and_its_use() {
    for place in stores() {
        check(&place, "txn_race", &["inside", &times(300, 10000)]);
        // The adversary is good enough.
        check(&place, "txn_race", &["outside", &times(300, 3000)]);
    }
}

#[test]
fn signals_while_waiting_for_a_lock() {
    for place in &stores()[..2] {
        check(place, "txn_signals", &[]);
    }
}

#[test]
fn nothing_runs_for_calls_that_wait() {
    for place in &stores()[..2] {
        check(place, "txn_idle", &[]);
    }
}

#[test]
fn calls_that_wait_for_locks_and_pipes_hold_no_thread() {
    for place in &stores()[..2] {
        check(place, "txn_idle", &["threads"]);
    }
}

#[test]
fn a_process_can_be_brought_in_whatever_it_does() {
    for place in &stores()[..2] {
        check(place, "txn_target", &[]);
    }
}

/// Regression: the caller waited forever for a thread that had ended, or had vanished in an exec.
#[test]
fn a_process_can_be_brought_in_without_its_first_thread_and_while_it_executes() {
    for place in &stores()[..2] {
        check(place, "txn_exec", &[]);
    }
}

#[test]
fn anything_goes_at_random() {
    for place in stores() {
        for seed in 0..if is_long() { 200 } else { 3 } {
            check(&place, "txn_chaos", &["4", "200", &seed.to_string()]);
        }
    }
}

#[test]
fn both_of_a_cycle_get_through_with_retries() {
    let text = r#"mkdir one two; echo 0 > one/a; echo 0 > two/b
        add() { amino -q txn run --retry 20 -- sh -c 'echo $1 >> $2; sleep 0.2; echo $1 >> $3' sh "$@" 2> /dev/null; echo "$1: $?"; }
        add first one/a two/b & add second two/b one/a & wait
        sort one/a; sort two/b
        # Without retries one of two fails and leaves nothing. Each takes its second lock when the other has its first one.
        once() { amino -q txn run -- sh -ec 'echo $1 >> $2; > $5/$1; while test ! -e $5/$4; do sleep 0.02; done; echo $1 >> $3' \
                   sh "$@" "$host" 2> /dev/null; echo $?; }
        echo 0 > one/a; echo 0 > two/b
        (once first one/a two/b first; once second two/b one/a second) | sort -n
        (once third one/a two/b fourth & once fourth two/b one/a third & wait) > statuses
        grep -c '^0$' statuses; cmp <(sort one/a) <(sort two/b); wc -l < one/a"#;
    let expected = "0\nfirst\nsecond\n0\nfirst\nsecond\n0\n0\n1\n4\n";
    for place in stores() {
        let host = place.path("host");
        let text = format!("host={}\n{text}", host.display());
        let ended = script(&place, &[], &text).expect(0);
        let text: String = ended.text();
        let (statuses, rest): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.contains(": "));
        assert_eq!(rest.join("\n") + "\n", expected, "{}", ended.errors());
        assert!(statuses.iter().all(|line| line.ends_with(": 0")), "{text}");
        place.fsck();
    }
}

/// Both have looked at the directory before either makes a file in it; each would wait for the other.
#[test]
fn shells_in_one_directory_are_not_in_each_others_way() {
    for place in stores() {
        let host = place.path("host");
        let host = host.display();
        let text = format!(
            r#"work() {{ amino -q txn run -- sh -ec 'test $(stat -c %h .) = 2; > {host}/$1; while test ! -e {host}/$2; do sleep 0.02; done
                n=0; while test $n -lt 40; do n=$((n + 1)); echo x > $1$n; done; mkdir $1; test $(stat -c %h .) -ge 3' sh "$@"; echo $?; }}
            work a b & work b a & wait; ls | wc -l; stat -c %h ."#
        );
        let ended = script(&place, &[], &text).expect(0);
        assert_eq!(ended.text(), "0\n0\n82\n4\n", "{}", ended.errors());
        place.fsck();
    }
}

#[test]
fn a_wait_that_takes_too_long_fails() {
    // Signals do not prolong it: with each of them the call is restarted.
    let text = r#"mkdir d; bash -c 'amino txn begin > /dev/null; echo x > d/f; sleep 60' & holder=$!; sleep 0.5; SECONDS=0
        alarms='signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)'
        python3 -c "import signal; $alarms; open('d/f', 'w')" > alarms 2>&1 & other=$!
        python3 -c 'open("d/f", "w")' 2>&1 | tail -n 1; echo $((SECONDS >= 29 && SECONDS < 40))
        wait $other; tail -n 1 alarms; echo $((SECONDS >= 29 && SECONDS < 40)); kill $holder; wait"#;
    let place = Place::amino();
    let ended = script(&place, &[], text);
    let expected = "TimeoutError: [Errno 110] Connection timed out: 'd/f'\n1\n";
    assert_eq!(ended.text(), expected.repeat(2), "{}", ended.errors());
}

#[test]
fn many_small_writes_and_a_large_file() {
    let megabytes = 200;
    let text = format!(
        r#"set -eu; part=$HOME/part; head -c 1000000 /dev/urandom > $part
        large() {{ for i in $(seq {megabytes}); do cat $part; done; }}
        large > $HOME/large; cp $HOME/large $HOME/other; printf 'X%.0s' $(seq 5000) | dd of=$HOME/other bs=1 seek=77777777 conv=notrunc status=none
        truncate -s 150000000 $HOME/other; echo end >> $HOME/other
        change() {{ printf 'X%.0s' $(seq 5000) | dd of=large bs=1 seek=77777777 conv=notrunc status=none; truncate -s 150000000 large; echo end >> large; }}
        amino txn begin > /dev/null; cat $HOME/large > large; cmp large $HOME/large; amino txn abort; test ! -e large
        amino txn begin > /dev/null; cat $HOME/large > large; amino txn commit; cmp large $HOME/large
        amino txn begin > /dev/null; change; cmp large $HOME/other; amino txn abort; cmp large $HOME/large
        amino txn begin > /dev/null; change; amino txn commit; cmp large $HOME/other
        amino txn begin > /dev/null; for i in $(seq 2000); do echo "line $i"; done > lines; amino txn commit
        seq 2000 | sed 's/^/line /' | cmp - lines"#
    );
    let place = Place::amino();
    script(&place, &[], &text).expect(0);
    // And what was stored is what was seen.
    script(&place, &[], "cmp large $HOME/other").expect(0);
    place.fsck();
}

#[test]
fn transactions_in_a_run_that_is_one_itself() {
    let place = Place::amino();
    let text = "echo x > f; amino txn begin > /dev/null; echo y >> f; amino txn abort; cat f
        amino txn begin > /dev/null; echo z >> f; amino txn commit; cat f; exit $1";
    let both = |status: &str| text.replace("$1", status);
    let ended = script(&place, &["--txn"], &both("3")).expect(3);
    assert_eq!(ended.text(), "x\nx\nz\n", "{}", ended.errors());
    assert_eq!(script(&place, &[], "ls").expect(0).text(), "");
    script(&place, &["--txn"], &both("0")).expect(0);
    assert_eq!(script(&place, &[], "cat f").expect(0).text(), "x\nz\n");
    place.fsck();
}

#[test]
fn other_users_keep_out() {
    if !may_become_another_user() {
        return;
    }
    let text = r#"chmod 777 .; id=$(amino txn begin); echo x > f; amino txn suspend > /dev/null
        setpriv --reuid 65534 --regid 65534 --clear-groups sh -c "amino txn attach $id" 2> $HOME/message; echo $?; grep -c "another user" $HOME/message
        setpriv --reuid 65534 --regid 65534 --clear-groups python3 - $$ << 'END'
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
room = ctypes.create_string_buffer(32)
print(libc.syscall(0x616d6e, 1, int(sys.argv[1]), room, 32, 0), ctypes.get_errno())
END
        amino txn resume $id; cat f; amino txn commit"#;
    let place = Place::amino();
    let ended = script(&place, &[], text).expect(0);
    assert_eq!(ended.text(), "1\n1\n-1 1\nx\n", "{}", ended.errors());
}

/// libamino, installed for the examples.
fn client(place: &Place) -> PathBuf {
    let prefix = place.make_dir("client");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut install = Command::new(env!("CARGO"));
    install.args(["xtask", "install-client", "--prefix"]);
    finish_within(install.arg(&prefix).current_dir(workspace), limit()).expect(0);
    prefix
}

#[test]
fn the_examples_do_what_they_say() {
    if !has("pkg-config") {
        return;
    }
    let place = Place::amino();
    let prefix = client(&place);
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let build = format!(
        r#"set -e; cd {examples}; export PKG_CONFIG_PATH={prefix}/lib/pkgconfig; amino="$(pkg-config --cflags --libs amino)"
        cc -D_GNU_SOURCE -o $HOME/txn mail/deliver_txn.c $amino; cc -o $HOME/classic mail/deliver_classic.c; cc -o $HOME/helper shared/helper.c $amino"#,
        examples = examples.display(),
        prefix = prefix.display(),
    );
    finish(place.native("/bin/bash").args(["-c", &build])).expect(0);
    let text = format!(
        r#"set -e; examples={examples}; export LD_LIBRARY_PATH={prefix}/lib PYTHONDONTWRITEBYTECODE=1 SENDER=me@example.com
        export PYTHONPATH=$(PKG_CONFIG_PATH={prefix}/lib/pkgconfig pkg-config --variable=pythondir amino)
        mkdir mail both
        for n in 1 2 3; do for way in classic txn; do mkdir -p mail/$way; echo "message $n" | $HOME/$way mail/$way alice; done; done
        diff <(sed 's/ [A-Z][a-z][a-z] .*//' mail/classic/alice) <(sed 's/ [A-Z][a-z][a-z] .*//' mail/txn/alice)
        diff mail/classic/alice.quota mail/txn/alice.quota; cat mail/txn/alice.quota; ls mail/classic mail/txn
        # Ten at once: all arrive, whole, and the quota knows of each.
        for n in 0 1 2 3 4 5 6 7 8 9; do (until echo "message $n" | $HOME/txn both bob 2> /dev/null; do :; done) & done; wait
        grep -c '^From me' both/bob; grep '^message' both/bob | sort | uniq | wc -l; cat both/bob.quota
        mkdir etc; touch etc/passwd etc/shadow; for name in alice bob; do $examples/passwd/adduser.sh etc $name '!'; done
        $examples/passwd/adduser.sh etc bob '!' 2> /dev/null || echo "again: $?"; cut -d: -f1-3 etc/passwd etc/shadow | cut -d: -f1,3
        for name in c d e f g; do $examples/passwd/adduser.sh etc $name '!' 2> /dev/null & done; wait
        test $(wc -l < etc/passwd) = $(wc -l < etc/shadow); test $(cut -d: -f3 etc/passwd | sort -u | wc -l) = $(wc -l < etc/passwd)
        mkdir nested; $examples/nested.sh nested/app; ls nested/app
        mkdir shared; $examples/shared/share.sh shared/dir $HOME/helper 2>&1"#,
        examples = examples.display(),
        prefix = prefix.display(),
    );
    let ended = script(&place, &[], &text).expect(0);
    let expected = "33 52428800\nmail/classic:\nalice\nalice.quota\n\nmail/txn:\nalice\nalice.quota\n10\n10\n110 52428800\n\
        again: 1\nalice:1000\nbob:1001\n";
    assert!(
        ended.text().starts_with(expected),
        "{}{}",
        ended.text(),
        ended.errors()
    );
    let end = "version 2\nplugins no\nconfig\ncommitting: from the helper\nfrom the owner\nfrom the helper\n";
    assert!(
        ended.text().ends_with(end),
        "{}{}",
        ended.text(),
        ended.errors()
    );
    place.fsck();
}
