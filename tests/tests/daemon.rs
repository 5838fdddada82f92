//! Several `amino run` on one store: what they see of each other, and what becomes of them when one of them, or the owner
//! of the store, ends.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use goanna_tests::held::{Held, LIMIT, until};
use goanna_tests::{
    Backend, Ended, Engine, Intercept, Place, User, binary, finish, finish::wait,
    may_become_another_user,
};
use rustix::process::{Pid, Signal, kill_process};

fn everywhere() -> Vec<Place> {
    let mut places = vec![
        Place::amino(),
        Place::new(Backend::Amino(Engine::Sled), Intercept::Ptrace, User::Own),
    ];
    if may_become_another_user() {
        let nobody = |how| Place::new(Backend::Amino(Engine::Fjall), how, User::Nobody);
        places.extend([nobody(Intercept::Notify), nobody(Intercept::Ptrace)]);
    }
    places
}

fn shell(place: &Place, script: &str) -> Ended {
    finish(&mut place.shell(script)).expect(0)
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

fn is_gone(pid: i32) -> bool {
    // A zombie has ended.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .is_none_or(|rest| rest.is_empty() || rest.starts_with('Z'))
}

#[test]
fn runs_see_what_the_others_have_done() {
    for place in everywhere() {
        let first = Held::new(&place, "one", &[], "echo one > a; %GO%; cat b && rm a");
        assert_eq!(shell(&place, "cat a; echo two > b").text(), "one\n");
        assert_eq!(place.owner().map(|(_, runs)| runs), Some(1));
        assert_eq!(first.go(), 0);
        assert_eq!(shell(&place, "echo *").text(), "b\n");
        until("the owner leaves", || place.owner().is_none());
        assert!(!place.path("store/aminod.sock").exists());
        place.fsck();
    }
}

/// Through a descriptor that the reader had open before, too.
#[test]
fn readers_see_nothing_of_a_transaction_before_and_all_after() {
    for place in everywhere() {
        shell(&place, "echo old > f; mkdir d");
        for (status, after) in [(1, "old\nf\n"), (0, "new\nd/g f\n")] {
            let script = format!("echo new > f; echo g > d/g; cat f d/g; %GO%; exit {status}");
            let whole = Held::new(&place, "one", &["--txn"], &script);
            let seen = "cat f; echo d/* f | sed 's/d.\\* //'";
            assert_eq!(shell(&place, seen).text(), "old\nf\n");
            let held = format!(
                "python3 -c 'import os, time; f = os.open(\"f\", os.O_RDONLY); os.write(1, os.pread(f, 9, 0)); open(\"{}\", \"w\")\n\
                 while os.path.exists(\"/proc/{}\"): time.sleep(0.02)\nos.write(1, os.pread(f, 9, 0))'",
                place.path("host").join("held").display(),
                whole.id(),
            );
            let mut reader = place.shell(&held);
            let reader = reader.stdout(Stdio::piped()).spawn().unwrap();
            until("held", || place.path("host").join("held").exists());
            assert_eq!(whole.go(), status);
            let read = reader.wait_with_output().unwrap();
            let new = after.lines().next().unwrap();
            assert_eq!(
                String::from_utf8_lossy(&read.stdout),
                format!("old\n{new}\n")
            );
            assert_eq!(shell(&place, seen).text(), after);
            fs::remove_file(place.path("host").join("held")).unwrap();
        }
        place.fsck();
    }
}

#[test]
fn a_killed_launcher_ends_its_own_command_only() {
    for place in everywhere() {
        let other = Held::new(
            &place,
            "one",
            &[],
            "echo other > other; %GO%; echo more >> other",
        );
        let pid = place.path("host").join("pid");
        let script = format!(
            "echo $$ > {}; echo lost > f; sleep 60 & %GO%; sleep 60",
            pid.display()
        );
        let killed = Held::new(&place, "two", &["--txn"], &script);
        assert_eq!(place.owner().map(|(_, runs)| runs), Some(2));
        kill(killed.id());
        assert_eq!(killed.status(), 137);
        let pid: i32 = fs::read_to_string(pid).unwrap().trim().parse().unwrap();
        until("the command is killed", || is_gone(pid));
        until("its run ends", || {
            place.owner().map(|(_, runs)| runs) == Some(1)
        });
        assert_eq!(shell(&place, "echo *").text(), "other\n");
        assert_eq!(other.go(), 0);
        assert_eq!(shell(&place, "cat other").text(), "other\nmore\n");
        place.fsck();
    }
}

#[test]
fn an_owner_that_is_killed_loses_nothing_acknowledged() {
    for place in everywhere() {
        let children = [
            Held::new(
                &place,
                "one",
                &["--durability", "acid"],
                "echo acid > a; %GO%; sleep 60",
            ),
            Held::new(
                &place,
                "two",
                &[],
                "echo synced > f; sync f; %GO%; sleep 60",
            ),
            Held::new(&place, "three", &["--txn"], "echo gone > t; %GO%; sleep 60"),
        ];
        let (owner, runs) = place.owner().unwrap();
        assert_eq!(runs, 3);
        kill(owner.cast_unsigned());
        for child in children {
            assert_eq!(child.status(), 125);
        }
        let after = shell(&place, "cat a f; test ! -e t").text();
        assert_eq!(after, "acid\nsynced\n");
        place.fsck();
    }
}

#[test]
fn the_owner_stops_on_request() {
    let place = Place::amino();
    let daemon = |words: &[&str]| {
        let mut command = place.native(binary("amino"));
        command.arg("daemon").args(words).arg("--store");
        finish(command.arg(place.path("store")))
    };
    daemon(&["stop"]).expect(0);
    let text = daemon(&["status"]).expect(1).text();
    assert_eq!(text, "nobody uses the store\n");
    let child = Held::new(&place, "one", &["--txn"], "echo x > f; %GO%; sleep 60");
    let (owner, _) = place.owner().unwrap();
    let text = daemon(&["status"]).expect(0).text();
    assert!(
        text.starts_with(&format!("aminod is process {owner}, ")),
        "{text}"
    );
    assert!(text.contains("sleep 60"), "{text}");
    let refused = daemon(&["stop"]).expect(1).errors();
    assert!(refused.contains("in use by one command"), "{refused}");
    assert!(refused.contains("--force"), "{refused}");
    daemon(&["stop", "--force"]).expect(0);
    assert_eq!(child.status(), 137);
    assert_eq!(place.owner(), None);
    assert_eq!(shell(&place, "echo *").text(), "*\n");
    // A signal that asks it to end means the same.
    let child = Held::new(&place, "one", &[], "echo y > g; %GO%; sleep 60");
    let (owner, _) = place.owner().unwrap();
    kill_process(Pid::from_raw(owner).unwrap(), Signal::TERM).unwrap();
    assert_eq!(child.status(), 137);
    assert_eq!(shell(&place, "cat g").text(), "y\n");
    place.fsck();
}

#[test]
fn a_crowd_of_short_runs_meets_one_owner_after_another() {
    for place in everywhere() {
        let children: Vec<Child> = (0..24)
            .map(|i| {
                // Some begin while others end, and the owner with them.
                std::thread::sleep(Duration::from_millis(i % 5 * 4));
                let mut run = place.shell(&format!("echo {i} > f{i}"));
                run.stdout(Stdio::null()).spawn().unwrap()
            })
            .collect();
        for mut child in children {
            assert_eq!(wait(&mut child, LIMIT), Some(0));
        }
        assert_eq!(shell(&place, "ls | wc -l").text(), "24\n");
        until("the last owner leaves", || place.owner().is_none());
        place.fsck();
    }
}

#[test]
fn another_user_is_not_served() {
    if !may_become_another_user() {
        return;
    }
    let place = Place::new(
        Backend::Amino(Engine::Fjall),
        Intercept::Notify,
        User::Nobody,
    );
    let run = Held::new(&place, "one", &[], "%GO%");
    let (owner, _) = place.owner().unwrap();
    // The user that runs the tests may enter the store's directory.
    let store = place.path("store");
    let store = store.to_str().unwrap();
    for words in [
        &["daemon", "status", "--store", store][..],
        &["run", "--store", store, "--", "echo", "ran"],
    ] {
        let ended = finish(Command::new(binary("amino")).args(words)).expect(125);
        assert_eq!(ended.text(), "");
        let why = "in use by a process of user 65534";
        assert!(ended.errors().contains(why), "{}", ended.errors());
    }
    // A process of another user that connects nevertheless gets no answer.
    let program = format!(
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('{}/aminod.sock'); print(len(s.recv(100)))",
        place.path("store").display()
    );
    let ended = finish(Command::new("python3").args(["-c", &program])).expect(0);
    assert_eq!(ended.text(), "0\n");
    assert_eq!(place.owner().map(|(pid, _)| pid), Some(owner));
    assert_eq!(run.go(), 0);
}

/// The owner disconnects processes that are not clients, and continues to serve the others.
#[test]
fn nonsense_on_the_socket_harms_nobody() {
    let place = Place::amino();
    let run = Held::new(&place, "one", &[], "%GO%; echo done > f");
    let program = format!(
        "import os, socket\nfor data in [b'', b'\\0' * 100, b'\\xff' * 100, os.urandom(5000), b'\\x05\\0\\0\\0\\1']:\n \
         for reads in (False, True):\n  s = socket.socket(socket.AF_UNIX); s.connect('{}/aminod.sock')\n  try:\n   s.send(data)\n   reads and s.recv(1000)\n  \
         except OSError: pass\n  s.close()",
        place.path("store").display()
    );
    finish(Command::new("python3").args(["-c", &program])).expect(0);
    assert_eq!(place.owner().map(|(_, runs)| runs), Some(1));
    assert_eq!(run.go(), 0);
    assert_eq!(shell(&place, "cat f").text(), "done\n");
    assert!(!place.path("store/aminod.log").exists(), "a panic");
}

/// Each run waits for the disk according to its own options, not to those that started the owner.
#[test]
fn durability_is_each_runs_own() {
    let place = Place::amino();
    let lazy = Held::new(&place, "one", &["--durability", "aci"], "%GO%");
    let stats = |level: &str| {
        let options = ["--durability", level, "--stats=json"];
        let script = "for i in 1 2 3 4 5 6 7 8; do echo x > f$i; done";
        let errors = finish(&mut place.shell_with(&options, script))
            .expect(0)
            .errors();
        let stats: serde_json::Value = serde_json::from_str(&errors).unwrap();
        stats["stores"][0]["syncs"].as_u64().unwrap()
    };
    let (acid, aci) = (stats("acid"), stats("aci"));
    assert!(acid >= 8 && aci <= 2, "acid: {acid} syncs, aci: {aci}");
    assert_eq!(lazy.go(), 0);
}

/// How often the threads of process `pid` have gone to sleep so far.
fn sleeps(pid: i32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_thread = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.map_or(0, |count| count.trim().parse::<u64>().unwrap())
    };
    tasks.flatten().map(of_thread).sum()
}

/// A thread of the monitor once woke every 3 ms to look for calls that take long, though there were none.
#[test]
fn an_owner_whose_commands_do_nothing_sleeps() {
    let place = Place::amino();
    let mut run = place.run();
    let mut child = run.args(["sleep", "60"]).spawn().unwrap();
    let mut owner = None;
    until("the command runs", || {
        owner = place.owner().filter(|(_, runs)| *runs == 1);
        owner.is_some()
    });
    let (pid, _) = owner.unwrap();
    // Timers run, but few.
    std::thread::sleep(Duration::from_secs(1));
    let before = sleeps(pid);
    std::thread::sleep(Duration::from_secs(2));
    let often = sleeps(pid) - before;
    let _ = child.kill();
    child.wait().unwrap();
    assert!(often < 60, "{often} times in two seconds");
}
