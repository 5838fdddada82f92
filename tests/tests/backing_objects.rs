//! Backing objects, and what back ends keep of open files, go when no process can reach them any more, not only at the end of the run.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use goanna_tests::tools::has;
use goanna_tests::{Backend, Engine, Intercept, Place, User};

/// A run whose script waits for lines.
struct Held {
    run: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Held {
    fn start(mut command: Command) -> Self {
        let mut run = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = run.stdin.take().unwrap();
        let output = BufReader::new(run.stdout.take().unwrap());
        Self { run, input, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn go_on(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }
}

/// Where the objects behind the fifo are that process `pid` has as descriptor 3.
fn objects(pid: &str) -> PathBuf {
    let fifo = fs::read_link(format!("/proc/{pid}/fd/3")).unwrap();
    fifo.parent().unwrap().to_owned()
}

fn count(dir: &PathBuf) -> usize {
    fs::read_dir(dir).unwrap().count()
}

fn wait_for(dir: &PathBuf, wanted: usize) {
    let end = Instant::now() + Duration::from_secs(100);
    while count(dir) > wanted {
        assert!(
            Instant::now() < end,
            "{} objects are left, {wanted} were expected",
            count(dir)
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_long_run_does_not_collect_what_it_has_removed() {
    if !has("python3") {
        return;
    }
    let place = Place::amino();
    let script = r#"{ mkfifo kept named; exec 3<>kept; rm kept; exec 4<>named; echo $$
    python3 -c 'import os, socket
for i in range(100):
    s = socket.socket(socket.AF_UNIX); s.bind("s"); s.listen()
    c = socket.socket(socket.AF_UNIX); c.connect("s"); os.unlink("s")
    os.mkfifo("f"); os.close(os.open("f", os.O_RDWR)); os.rename("f", "g")'
    echo made; read
    echo x >&3; exec 5</proc/self/fd/3; read line <&5; echo $line
    echo y >named; read line <&4; echo $line; }"#;
    let mut held = Held::start(place.shell(script));
    let pid = held.line();
    let dir = objects(&pid);
    assert_eq!(held.line(), "made");
    // The two fifos that the shell has open, and the last one, which has a name.
    wait_for(&dir, 3);
    held.go_on();
    assert_eq!((held.line(), held.line()), ("x".into(), "y".into()));
    assert!(held.run.wait().unwrap().success());
    place.fsck();
}

#[test]
fn directories_that_were_open_when_they_were_removed_do_not_stay() {
    if !has("python3") {
        return;
    }
    for backend in [
        Backend::Pass,
        Backend::Aes,
        Backend::Amino(Engine::Fjall),
        Backend::Amino(Engine::Sled),
    ] {
        let place = Place::new(backend, Intercept::Notify, User::Own);
        let script = r#"python3 -c 'import os
for i in range(1500):
    os.makedirs("outer/inner")
    outer = os.open("outer", os.O_RDONLY); inner = os.open("outer/inner", os.O_RDONLY)
    os.rmdir("outer/inner"); os.rmdir("outer")
    os.close(outer); os.close(inner)
print("done", flush=True); input()'"#;
        let mut held = Held::start(place.shell(script));
        assert_eq!(held.line(), "done");
        let monitor = held.run.id();
        wait_for(&PathBuf::from(format!("/proc/{monitor}/fd")), 200);
        held.go_on();
        assert!(held.run.wait().unwrap().success());
    }
}

/// Of what a transaction has made, others cannot tell whether it has a name.
#[test]
fn sockets_of_a_transaction_stay() {
    if !has("python3") {
        return;
    }
    let place = Place::amino();
    let script = r#"python3 -c 'import os, socket, sys
all = []
for before in (0, 1):
    s = socket.socket(socket.AF_UNIX); s.bind("s%d" % before); s.listen()
    open("other", "w"); os.unlink("other"); all.append(s)
print("ready", flush=True); sys.stdin.readline()
for i in (0, 1):
    c = socket.socket(socket.AF_UNIX); c.connect("s%d" % i)
print("connected", flush=True)'"#;
    for command in [place.shell(script), place.transaction(script)] {
        let mut held = Held::start(command);
        assert_eq!(held.line(), "ready");
        // Several sweeps.
        std::thread::sleep(Duration::from_secs(2));
        held.go_on();
        assert_eq!(held.line(), "connected");
        assert!(held.run.wait().unwrap().success());
        assert_eq!(
            goanna_tests::finish(&mut place.shell("rm -f s0 s1")).status,
            0
        );
    }
}
