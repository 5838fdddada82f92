//! `amino run --profile`: transactions inserted into programs that know nothing of them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::path::Path;
use std::process::Command;

use goanna_tests::held::Held;
use goanna_tests::{Backend, Engine, Intercept, Place, User, finish};
use rustix::process::{Pid, Signal, kill_process};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn places() -> impl Iterator<Item = Place> {
    let all = [
        (Engine::Fjall, Intercept::Notify),
        (Engine::Fjall, Intercept::Ptrace),
        (Engine::Sled, Intercept::Notify),
    ];
    all.into_iter()
        .map(|(engine, how)| Place::new(Backend::Amino(engine), how, User::Own))
}

/// The names in the store, and a check of it.
#[track_caller]
fn names(place: &Place) -> Vec<String> {
    place.fsck();
    let listed = finish(place.amino_command("ls").arg("-a").arg("/")).expect(0);
    listed.text().lines().map(str::to_owned).collect()
}

/// The content of a file of the store.
#[track_caller]
fn content(place: &Place, path: &str) -> String {
    finish(place.amino_command("cat").arg(path))
        .expect(0)
        .text()
}

/// A profile file of the host with these rules.
fn profile(place: &Place, text: &str) -> String {
    let path = place.path("profile.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn shipped(name: &str) -> String {
    format!("{ROOT}/profiles/{name}.toml")
}

#[test]
fn exec_keeps_what_succeeds_and_nothing_else() {
    for place in places() {
        let script = "sh -c 'echo a > kept'; sh -c 'echo b > failed; exit 1'; sh -c 'echo c > killed; kill -9 $$'; \
            test -e kept -a ! -e failed -a ! -e killed && echo d > own && sh -c 'rm kept; echo e > own; false'; cat kept own";
        let ended = finish(&mut place.shell_with(&["--profile", "exec"], script)).expect(0);
        assert_eq!(ended.text(), "a\nd\n");
        assert_eq!(names(&place), ["kept", "own"]);
        // What its children committed goes with the parent's.
        let ended = finish(&mut place.shell_with(
            &["--profile", "exec"],
            "sh -c 'echo a > inner' && sh -c 'test -e inner' && exit 3",
        ));
        ended.expect(3);
        assert_eq!(names(&place), ["kept", "own"]);
    }
}

/// The parent's wait returns after the child's commit or abort: thousands of moments at which it could come too early.
#[test]
fn exec_is_over_when_the_parent_learns_of_the_exit() {
    for place in places() {
        let script = "for i in $(seq 60); do sh -c \"echo $i > f; exit $((i % 2))\"; test \"$(<f)\" = $((i - i % 2)) || \
            { echo $i; cat f; exit 9; }; done";
        finish(&mut place.shell("echo 0 > f")).expect(0);
        finish(&mut place.shell_with(&["--profile", "exec"], script)).expect(0);
        assert_eq!(content(&place, "/f"), "60\n");
        place.fsck();
    }
}

/// A descriptor that a program shares with its parent gets its offset back together with the content.
#[test]
fn exec_sets_shared_offsets_back() {
    for place in places() {
        let script = "( echo one; sh -c 'echo gone; exit 1'; echo two; sh -c 'echo three' ) > log";
        finish(&mut place.shell_with(&["--profile", "exec"], script)).expect(0);
        assert_eq!(content(&place, "/log"), "one\ntwo\nthree\n");
        place.fsck();
    }
}

#[test]
fn a_program_that_another_is_executed_in_place_of_stays_one_transaction() {
    for place in places() {
        let script = "sh -c 'echo a > first; exec sh -c \"echo b > second; exit 1\"'; \
            sh -c 'echo a > third; exec sh -c \"echo b > fourth\"'; true";
        finish(&mut place.shell_with(&["--profile", "exec"], script)).expect(0);
        assert_eq!(names(&place), ["fourth", "third"]);
    }
}

/// A program that exits before one it started: its own transaction waits for that one's, and is committed then.
#[test]
fn a_child_that_stays_keeps_its_parents_transaction_open() {
    for place in places() {
        let script = "sh -c 'echo a > parent; sh -c \"sleep 0.5; echo b > child\" & exit 0'; \
            while test ! -e child; do sleep 0.1; done; cat parent child";
        // Outside of transactions, which the shell itself would have locks in.
        let rule = "[[rule]]\nprograms = [\"sh\"]\nbegin = \"exec\"\nend = \"exit\"\n";
        let options = ["--profile", &*profile(&place, rule)];
        let ended = finish(&mut place.shell_with(&options, script)).expect(0);
        assert_eq!(ended.text(), "a\nb\n");
        assert_eq!(names(&place), ["child", "parent"]);
    }
}

/// The program has exited with 0; its transaction waits for the one of a child. A run that is killed then has not ended by itself: the
/// parent's part was committed as soon as the kill had aborted the child's.
#[test]
fn a_transaction_that_waits_for_a_child_is_aborted_when_the_run_is_killed() {
    for place in places() {
        let rule = "[[rule]]\nprograms = [\"sh\"]\nbegin = \"exec\"\nend = \"exit\"\n";
        let options = ["--profile", &*profile(&place, rule)];
        let host = place.path("host");
        let script = format!(
            "sh -c 'echo a > parent; sh -c \"echo b > child; echo > {host}/inside; sleep 600\" &
             while ! test -e {host}/inside; do sleep 0.02; done; exit 0'
             grep TracerPid /proc/$$/status | cut -f2 > {host}/owner; rm {host}/inside; %GO%",
            host = host.display()
        );
        for kill_owner in [false, true] {
            let run = Held::new(&place, "killed", &options, &script);
            let owner = fs::read_to_string(host.join("owner")).unwrap();
            let victim = if kill_owner {
                owner.trim().parse().unwrap()
            } else {
                run.id().cast_signed()
            };
            kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
            assert_ne!(run.status(), 0);
            assert_eq!(names(&place), [""; 0], "kill_owner {kill_owner}");
        }
    }
}

/// What a Python program needs to take turns with the shell that started it.
const TURNS: &str = r#"
import os, time
def turn(n):
    open(f"{HOST}/did{n}", "w").close()
    while not os.path.exists(f"{HOST}/go{n}"):
        time.sleep(0.01)
def put(name, text=b"new\n", flags=os.O_WRONLY | os.O_APPEND):
    fd = os.open(name, flags)
    os.write(fd, text)
    return fd
"#;

/// A shell script that starts `program` under python3 and looks, with the commands `looks`, at each of its turns.
fn turns(place: &Place, program: &str, looks: &[&str]) -> String {
    let host = place.path("host");
    fs::write(
        host.join("program.py"),
        format!("HOST = '{}'\n{TURNS}\n{program}", host.display()),
    )
    .unwrap();
    let host = host.display();
    let mut script = format!("rm -f {host}/did* {host}/go*; python3 -I {host}/program.py & ");
    for (n, look) in looks.iter().enumerate() {
        let wait = format!("while test ! -e {host}/did{n}; do sleep 0.02; done");
        script += &format!("{wait}; echo $({look}); touch {host}/go{n}; ");
    }
    script + "wait $!"
}

const SESSION: &str = "[[rule]]\nprograms = [\"python3*\"]\nbegin = \"open\"\nend = \"close\"\n";

#[test]
fn session_is_from_the_first_open_to_the_last_close() {
    const PROGRAM: &str = r#"
os.mkdir("before")
first, second = put("a"), put("b")
turn(0)
os.close(first)
third = os.dup(second)
os.close(second)
turn(1)
os.dup2(os.open("/dev/null", os.O_RDONLY), third)
turn(2)
put("a")
os.closerange(3, 100)
turn(3)
put("a")
try:
    os.open("missing", os.O_RDONLY)
except FileNotFoundError:
    pass
turn(4)
os._exit(1)
"#;
    for place in places() {
        finish(&mut place.shell("echo old > a; echo old > b")).expect(0);
        let look = "ls; cat a b";
        let script = turns(&place, PROGRAM, &[look; 5]);
        let options = ["--profile", &*profile(&place, SESSION)];
        let ended = finish(&mut place.shell_with(&options, &script)).expect(1);
        let seen: Vec<_> = ended.text().lines().map(str::to_owned).collect();
        let expected = [
            "a b before old old",
            "a b before old old",
            "a b before old new old new",
            "a b before old new new old new",
            "a b before old new new old new",
        ];
        assert_eq!(seen, expected);
        assert_eq!(content(&place, "/a"), "old\nnew\nnew\n");
        place.fsck();
    }
}

#[test]
fn an_open_that_fails_begins_nothing() {
    const PROGRAM: &str = r#"
try:
    os.open("missing", os.O_RDONLY)
except FileNotFoundError:
    pass
os.mkdir("made")
turn(0)
os.kill(os.getpid(), 9)
"#;
    for begin in ["open", "first-write"] {
        for place in places() {
            let rules = SESSION.replace("\"open\"", &format!("\"{begin}\""));
            let options = ["--profile", &*profile(&place, &rules)];
            let script = turns(&place, PROGRAM, &["ls"]);
            let ended = finish(&mut place.shell_with(&options, &script)).expect(128 + 9);
            // To make a directory is a first write, but opens nothing.
            let is_there = begin == "open";
            assert_eq!(ended.text(), if is_there { "made\n" } else { "\n" });
            assert_eq!(names(&place).len(), usize::from(is_there));
        }
    }
}

#[test]
fn first_write_begins_with_a_change_and_not_before() {
    const PROGRAM: &str = r#"
fd = os.open("a", os.O_RDONLY)
os.read(fd, 10)
turn(0)
os.rename("b", "c")
turn(1)
os.close(put("a", b"x\n"))
turn(2)
os.close(fd)
turn(3)
os.rename("c", "d")
turn(4)
os._exit(int(os.environ["STATUS"]))
"#;
    let rules = SESSION.replace("\"open\"", "\"first-write\"") + "aborts = [3]\n";
    for place in places() {
        for (status, left) in [("3", "c"), ("4", "d")] {
            finish(&mut place.shell("rm -f a b c d; echo old > a; echo b > b")).expect(0);
            // A program outside of the transaction sees the committed state; an earlier change would be visible.
            let look = "ls; cat a";
            let script = turns(&place, PROGRAM, &[look, look, look, look, look]);
            let options = ["--profile", &*profile(&place, &rules)];
            let ended = finish(place.shell_with(&options, &script).env("STATUS", status));
            let ended = ended.expect(status.parse().unwrap());
            let seen: Vec<_> = ended.text().lines().map(str::to_owned).collect();
            let expected = ["a b old", "a b old", "a c old x", "a c old x", "a c old x"];
            assert_eq!(seen, expected);
            assert_eq!(names(&place), ["a", left]);
        }
    }
}

#[test]
fn threads_of_a_session_share_it_and_are_not_affected_by_its_end() {
    const PROGRAM: &str = r#"
import threading
def work(n):
    for i in range(100):
        os.close(put(f"f{n}", b"x", os.O_WRONLY | os.O_APPEND | os.O_CREAT))
        os.stat(f"f{n}")
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
failed = []
threading.excepthook = lambda args: failed.append(args.exc_value)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failed)
"#;
    for place in places() {
        let script = turns(&place, PROGRAM, &[]);
        let options = ["--profile", &*profile(&place, SESSION)];
        let ended = finish(&mut place.shell_with(&options, &script)).expect(0);
        assert_eq!(
            (ended.text(), ended.errors()),
            ("[]\n".into(), String::new())
        );
        assert_eq!(names(&place), ["f0", "f1", "f2", "f3"]);
        assert_eq!(content(&place, "/f2").len(), 100);
    }
}

#[test]
fn a_mail_delivery_that_is_killed_leaves_nothing() {
    for place in places() {
        let agent = place.path("host/deliver_classic");
        let source = Path::new(ROOT).join("examples/mail/deliver_classic.c");
        let cc = Command::new("cc")
            .arg("-o")
            .args([&agent, &source])
            .status();
        assert!(cc.unwrap().success());
        let options = ["--profile", &*shipped("mail-delivery")];
        let deliver = format!("{} . alice", agent.display());
        finish(&mut place.shell_with(&options, &format!("echo one | {deliver}"))).expect(0);
        let before = (names(&place), content(&place, "/alice"));
        assert_eq!(before.0, ["alice", "alice.quota"]);
        // It waits for a record lock on the mailbox, with its dot-lock and its files made, and is killed there.
        let killed = |when: &str| {
            format!(
                "true; python3 -I -c 'import fcntl, time
mbox = open(\"alice\", \"r+\"); fcntl.lockf(mbox, fcntl.LOCK_EX); open(\"{host}/locked\", \"w\"); time.sleep(600)' & holder=$!
                while test ! -e {host}/locked; do sleep 0.02; done
                echo two > {host}/message; {deliver} < {host}/message 2> {host}/said & agent=$!
                {when}; kill -9 $agent; wait $agent; result=$?
                rm {host}/locked; kill $holder; ls -A; cat {host}/said; exit $result",
                host = place.path("host").display()
            )
        };
        // Only the agent sees its files.
        let ended = finish(&mut place.shell_with(&options, &killed("sleep 1"))).expect(137);
        assert_eq!(ended.text(), "alice\nalice.quota\n");
        assert_eq!((names(&place), content(&place, "/alice")), before);
        let made = "until test -e alice.lock; do sleep 0.02; done";
        let without = finish(&mut place.shell(&killed(made))).expect(137);
        assert!(without.text().contains("alice.lock"), "{}", without.text());
    }
}

#[test]
fn a_package_install_that_fails_in_the_middle_leaves_nothing() {
    for place in places() {
        let installer = place.path("host/install-package");
        let text = r#"#!/bin/sh
set -e
mkdir -p usr/bin var/db
tar xf "$1" -C usr
for file in usr/new/*; do mv "$file" usr/bin; done
rmdir usr/new
cp usr/bin/tool usr/bin/tool.bak
./postinst || test "$2" = lenient
echo package >> var/db/installed
"#;
        fs::write(&installer, text).unwrap();
        let chmod = Command::new("chmod").arg("755").arg(&installer).status();
        assert!(chmod.unwrap().success());
        let before = "mkdir -p usr/bin && echo old > usr/bin/tool && \
            printf '#!/bin/sh\necho half > usr/half; exit 1\n' > postinst && chmod 755 postinst";
        finish(&mut place.shell(before)).expect(0);
        let package = place.path("host/package.tar");
        let make = format!(
            "cd {host} && mkdir -p new && echo tool > new/tool && echo lib > new/lib && tar cf package.tar new",
            host = place.path("host").display()
        );
        assert!(
            Command::new("sh")
                .args(["-c", &make])
                .status()
                .unwrap()
                .success()
        );
        let tree = |place: &Place| {
            place.fsck();
            let out = place.make_dir("out").join("all");
            finish(place.amino_command("export").arg("/").arg(&out)).expect(0);
            goanna_tests::tree(&out)
        };
        let old = tree(&place);
        let options = ["--profile", &*shipped("package-install")];
        let install = format!("{} {}", installer.display(), package.display());
        finish(&mut place.shell_with(&options, &install)).expect(1);
        goanna_tests::same_tree(&old, &tree(&place));
        // The script's failure is its own: nothing of it, and all of the rest.
        finish(&mut place.shell_with(&options, &format!("{install} lenient"))).expect(0);
        finish(&mut place.shell(
            "test -e var/db/installed -a -e usr/bin/lib -a ! -e usr/half -a \"$(cat usr/bin/tool)\" = tool",
        ))
        .expect(0);
    }
}

#[test]
fn recipes_of_make_are_transactions() {
    let mut makefile = "all: one two three four five six\none:\n\techo 1 > one\n\
        two: one\n\tcp one two; echo x > half; exit 1\n"
        .to_owned();
    for name in ["three", "four", "five", "six"] {
        makefile += &format!("{name}:\n\techo 3 > {name}.new\n\tmv {name}.new {name}\n");
    }
    let made = ["five", "four", "one", "six", "three"];
    for place in places() {
        fs::write(place.path("host/Makefile"), &makefile).unwrap();
        // A rule for the recipes' shell alone: what make has made stays, though make fails.
        let rules = "[[rule]]\nprograms = [\"sh\"]\nbegin = \"exec\"\nend = \"exit\"\n";
        // Recipes that run at the same time work in the same directory.
        let make = format!("make -k -j2 -f {}", place.path("host/Makefile").display());
        let options = ["--profile", &*profile(&place, rules)];
        finish(&mut place.shell_with(&options, &make)).expect(2);
        assert_eq!(names(&place), made);
        let exec = ["--profile", "exec"];
        let anew = format!("rm one three four; {make}");
        finish(&mut place.shell_with(&exec, &anew)).expect(2);
        assert_eq!(names(&place), made);
        // A transaction of make around those of its recipes, which fails, and one that does not.
        finish(&mut place.shell_with(&exec, &format!("{anew} || test $? = 2"))).expect(0);
        assert_eq!(names(&place), ["five", "six"]);
        finish(&mut place.shell_with(&exec, &format!("{make} three four one"))).expect(0);
        assert_eq!(names(&place), made);
    }
}

/// The monitor, aminod, is killed as soon as the program is known to have exited.
#[test]
fn durability_says_whether_a_commit_waits_for_the_disk() {
    let survives = |store: &str, rule: &str| {
        let place = Place::amino();
        finish(&mut place.shell("true")).expect(0);
        let rules =
            format!("[[rule]]\nprograms = [\"sh\"]\nbegin = \"exec\"\nend = \"exit\"\n{rule}");
        let options = [
            "--durability",
            store,
            "--profile",
            &*profile(&place, &rules),
        ];
        let script = "sh -c 'echo x > f'; kill -9 $(grep TracerPid /proc/$$/status | cut -f2)";
        finish(&mut place.shell_with(&options, script)).expect(125);
        !names(&place).is_empty()
    };
    for _ in 0..5 {
        assert!(survives("aci", "durability = \"commit\""));
        assert!(survives("commit", ""));
    }
    // It may have reached the disk by chance.
    assert!((0..10).any(|_| !survives("commit", "durability = \"aci\"")));
}

/// A filter that stops reads comes with the rule; programs that no rule is for do without.
#[test]
fn programs_without_a_rule_are_left_alone() {
    let place = Place::amino();
    let rules = "[[rule]]\nprograms = [\"/nowhere/*\", \"sh\"]\nbegin = \"exec\"\nend = \"exit\"\n";
    let options = ["--profile", &*profile(&place, rules)];
    let filters = "grep Seccomp_filters /proc/self/status | cut -f2";
    let script = format!(
        "a=$({filters}); b=$(sh -c '{filters}'); echo $((b - a)); bash -c 'echo x > kept; exit 1'"
    );
    let ended = finish(&mut place.shell_with(&options, &script)).expect(1);
    assert_eq!(ended.text(), "1\n");
    assert_eq!(names(&place), ["kept"]);
}

#[test]
fn a_profile_that_is_wrong_runs_nothing() {
    let place = Place::amino();
    let file = profile(&place, "[[rule]]\nprograms = [\"a\"]\nbegin = \"start\"\n");
    let ended = finish(&mut place.shell_with(&["--profile", &file], "echo ran")).expect(125);
    assert!(ended.text().is_empty());
    let line =
        format!("amino: profile {file}:3: begin: must be \"exec\", \"open\" or \"first-write\"\n");
    assert_eq!(ended.errors(), line);
    let ended = finish(&mut place.shell_with(&["--profile", "no-such"], "echo ran")).expect(125);
    assert!(ended.errors().contains("--profile no-such: ") && ended.errors().contains("hint: "));
}
