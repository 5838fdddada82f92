//! Files of a store that outgrow memory while they are written: their content moves to the host's disk if nobody else uses the object, and
//! nothing is lost if somebody does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use goanna_tests::held::Held;
use goanna_tests::{Backend, Engine, Intercept, Place, User, finish, program};

/// A program that has written a large file, and what its descriptor refers to.
struct Writer {
    child: Child,
    object: String,
}

impl Writer {
    fn new(mut command: Command, program: &Path, file: &str) -> Self {
        let mut child = command
            .arg(program)
            .args([file, "70"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        answers.read_line(&mut line).unwrap();
        let (pid, fd) = line.trim().split_once(' ').unwrap();
        let object = fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
        Self {
            child,
            object: object.to_str().unwrap().to_owned(),
        }
    }

    fn is_in_memory(&self) -> bool {
        self.object.starts_with("/memfd:")
    }

    fn go_on(mut self) {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

const LINES: &str = "stat -c %s big; tail -c 5 big; head -c 4 big";

#[test]
fn the_file_of_one_writer_leaves_memory() {
    for engine in [Engine::Sled, Engine::Fjall] {
        let place = Place::new(Backend::Amino(engine), Intercept::Notify, User::Own);
        let program = program("outgrows", &place.make_dir("programs"), true);
        let native = Writer::new(place.native("env"), &program, "/dev/shm/outgrows-native");
        native.go_on();
        fs::remove_file("/dev/shm/outgrows-native").unwrap();
        let file = format!("{}/big", place.top());
        let writer = Writer::new(place.run(), &program, &file);
        assert!(!writer.is_in_memory(), "{place:?}: {}", writer.object);
        writer.go_on();
        let ended = finish(&mut place.shell(LINES));
        assert_eq!(ended.text(), "73400323\nAAendAAAA", "{place:?}");
    }
}

#[test]
fn a_program_of_another_run_keeps_the_file_in_memory() {
    let place = Place::amino();
    let program = program("outgrows", &place.make_dir("programs"), true);
    let script = "exec 7<>big; %GO%; test $(stat -L -c %s /dev/fd/7) = 73400320; printf BBBB >&7; \
                  test $(tail -c 70000000 <&7 | head -c 3) = AAA; exec 7>&-";
    let other = Held::new(&place, "other", &[], script);
    let file = format!("{}/big", place.top());
    let writer = Writer::new(place.run(), &program, &file);
    assert!(writer.is_in_memory(), "{}", writer.object);
    assert_eq!(other.go(), 0);
    writer.go_on();
    let ended = finish(&mut place.shell(LINES));
    assert_eq!(ended.text(), "73400323\nAAendBBBB");
}

#[test]
fn an_open_at_the_moment_of_the_move_loses_nothing() {
    let place = Place::amino();
    let program = program("outgrows", &place.make_dir("programs"), true);
    let file = format!("{}/big", place.top());
    let mut command = place.run();
    command.arg(program).args([&file, "66", "100", "8"]);
    let ended = finish(&mut command);
    assert_eq!(ended.status, 0, "{}", ended.errors());
}
