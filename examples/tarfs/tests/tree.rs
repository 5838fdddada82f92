//! A tree in an archive is the tree that tar(1) makes of the archive.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// What find(1) and the checksums say of the tree in `$1`.
const LOOK: &str = r"cd $1 && find . -printf '%P %y %m %n %U %G %T@ %l\n' | sort && find . -type f -printf '%P %s\n' | sort &&
    find . -type f -exec sha256sum {} + | sort && stat -c '%n %t %T' p; find d -samefile d/hard; cd d/e && pwd -P | sed s,.*/d/,d/,";

fn sh(script: &str, args: &[&Path]) -> Output {
    Command::new("sh")
        .args(["-ec", script, "sh"])
        .args(args)
        .output()
        .unwrap()
}

fn tarfs(archive: &Path, script: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tarfs"))
        .arg(archive)
        .args(["/tar", "sh", "-c", script, "sh", "/tar"])
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_tree_is_what_tar_extracts() {
    let dir = tempfile::tempdir().unwrap();
    let (archive, out) = (dir.path().join("a.tar"), dir.path().join("out"));
    let make = r"mkdir -p $1/d/e && cd $1 && echo text > d/f && ln d/f d/hard && ln -s ../d/f d/link && mkfifo p && chmod 4750 d/f && chmod 1777 d/e
        head -c 3000000 /dev/urandom > big && : > empty && touch -d '2001-02-03 04:05:06' big d d/e && n=$(printf 'n%.0s' $(seq 150)) && mkdir $n && echo > $n/$n
        tar cf $2 --exclude=./d/e . && tar rf $2 ./d/e ./d/f && mkdir $3 && tar xpf $2 -C $3";
    let made = sh(make, &[&dir.path().join("in"), &archive, &out]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let (ours, theirs) = (tarfs(&archive, LOOK), sh(LOOK, &[&out]));
    // The link count of a directory is that of its file system.
    let without_links = |output: &Output| {
        let lines = text(&output.stdout);
        let mut kept: Vec<_> = lines.lines().map(str::to_owned).collect();
        for line in &mut kept {
            let words: Vec<_> = line.split(' ').collect();
            if words.get(1) == Some(&"d") {
                *line = [&words[..3], &words[4..]].concat().join(" ");
            }
        }
        kept
    };
    assert_eq!(text(&ours.stderr), text(&theirs.stderr));
    assert_eq!(without_links(&ours), without_links(&theirs));
    assert!(ours.stdout.len() > 1000, "{}", text(&ours.stdout));
}

#[test]
fn nothing_can_be_changed_and_a_wrong_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("a.tar");
    assert!(
        sh("cd $1 && echo > f && tar cf $2 f", &[dir.path(), &archive])
            .status
            .success()
    );
    let ended = tarfs(&archive, "rm -f /tar/f; echo > /tar/new; cat /tar/f");
    assert_eq!(
        text(&ended.stderr).matches("Read-only file system").count(),
        2
    );
    fs::write(&archive, [b'x'; 1024]).unwrap();
    let ended = tarfs(&archive, "true");
    assert_eq!(ended.status.code(), Some(125));
    let message = text(&ended.stderr);
    assert!(
        message.starts_with(&format!("tarfs: {}: ", archive.display())),
        "{message}"
    );
}
