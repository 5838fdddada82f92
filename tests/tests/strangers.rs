//! Other local users have no access to a run's files on the host.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use goanna_tests::{Place, may_become_another_user, place::NOBODY, tools::has};

/// Everything below `dir` that is not a directory.
fn objects(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(objects(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

/// Those of `paths` that another user may read, write or execute.
fn reached(paths: &[PathBuf]) -> String {
    let test = "for f; do if [ -r $f ] || [ -w $f ] || [ -x $f ]; then ls -ld $f; fi; done";
    let found = Command::new("/bin/sh")
        .args(["-c", test, "sh"])
        .args(paths)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    String::from_utf8_lossy(&found.stdout).into_owned()
}

/// A run of root makes private objects, tells a pid by whose first descriptor the run-time directory is found, and waits for
/// `others`, which another user among its own tracees may run, and then for the end.
#[test]
fn private_objects_are_out_of_reach() {
    if !may_become_another_user() || !has("python3") {
        return;
    }
    let place = Place::amino();
    let script = r#"umask 077; mkdir private; cd private; mkfifo fifo; exec 3<>fifo
        mknod null c 1 3 && exec 4<>null; cp /bin/true prog; ./prog
        exec 5< <(exec python3 -c 'import socket,time
s = socket.socket(socket.AF_UNIX); s.bind("socket"); s.listen(); print(flush=True); time.sleep(1000)'); bound=$!; read <&5
        echo $$; read
        setpriv --reuid=1 --regid=1 --clear-groups sh -c 'cd / && cd /amino-test && ls' > /dev/null; echo; read; kill $bound"#;
    let mut run = place
        .shell(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut output) = (
        run.stdin.take().unwrap(),
        BufReader::new(run.stdout.take().unwrap()),
    );
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let fifo = fs::read_link(format!("/proc/{}/fd/3", line.trim())).unwrap();
    let run_dir = fifo.ancestors().nth(2).unwrap();
    let paths = objects(run_dir);
    assert!(
        paths.len() > 4,
        "what should be private is not there: {paths:?}"
    );
    assert_eq!(reached(&paths), "", "while all processes are root's");
    input.write_all(b"\n").unwrap();
    output.read_line(&mut line).unwrap();
    assert_eq!(
        reached(&objects(run_dir)),
        "",
        "with a process of another user"
    );
    let names = fs::read_to_string("/proc/net/unix").unwrap();
    assert!(
        !names.contains(&*run_dir.to_string_lossy()),
        "the kernel's list of sockets tells where the run keeps them"
    );
    input.write_all(b"\n").unwrap();
    assert!(run.wait().unwrap().success());
}
