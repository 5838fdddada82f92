//! A host file system that does not answer, as that of a server which is away: programs that do not use it are not held up.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, INodeNo,
    ReplyAttr, ReplyEntry, Request,
};
use goanna_tests::finish::wait;
use goanna_tests::held::until;
use goanna_tests::{Facility, Place, is_root, skip};
use parking_lot::Mutex;

/// An empty directory that keeps lookups of `away` waiting.
#[derive(Clone, Default)]
struct Away(Arc<Mutex<Vec<ReplyEntry>>>);

impl Away {
    fn mount(&self, dir: &Path) -> BackgroundSession {
        fuser::spawn_mount(self.clone(), dir, &Config::default()).unwrap()
    }

    fn answer(&self) {
        for reply in self.0.lock().drain(..) {
            reply.error(Errno::ENOENT);
        }
    }
}

/// Answers when it is dropped, so that a test which fails ends.
struct Answers(Away);

impl Drop for Answers {
    fn drop(&mut self) {
        self.0.answer();
    }
}

impl Filesystem for Away {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == "away" {
            self.0.lock().push(reply);
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let attributes = FileAttr {
            ino,
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        };
        reply.attr(&Duration::ZERO, &attributes);
    }
}

/// Killed with its group where it is dropped before it has ended.
struct Run(Child);

impl Drop for Run {
    fn drop(&mut self) {
        let _ = wait(&mut self.0, Duration::ZERO);
    }
}

fn start(mut command: Command) -> Run {
    use std::os::unix::process::CommandExt;
    Run(command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap())
}

/// The supervisor waited for the call of the killed process, ten seconds at most, and all other processes stood still.
#[test]
fn a_process_killed_in_a_call_that_is_not_answered_holds_up_no_other_process() {
    if !is_root() || !Path::new("/dev/fuse").exists() {
        skip(
            Facility::Fuse,
            "the file system that does not answer is one of FUSE",
        );
        return;
    }
    let place = Place::pass();
    let away = Away::default();
    let session = away.mount(&place.path("pass"));
    let answers = Answers(away.clone());
    let script = "stat /mnt-test/away 2>/dev/null & victim=$!
        while ! test -e called; do sleep 0.02; done
        kill -9 $victim
        for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do /bin/true; done
        /bin/bash -c 'exit 3'; echo $? >alive
        wait $victim; echo $? >reaped";
    let mut command = place.run();
    command.args(["/bin/bash", "-c", script]);
    let mut run = start(command);
    until("the call", || !away.0.lock().is_empty());
    fs::write(place.path("host/called"), "").unwrap();
    let killed = Instant::now();
    until("other processes", || {
        fs::read(place.path("host/alive")).is_ok_and(|text| text == b"3\n")
    });
    let took = killed.elapsed();
    assert!(!place.path("host/reaped").exists(), "its call goes on");
    drop(answers);
    assert_eq!(wait(&mut run.0, Duration::from_secs(60)), Some(0));
    let reaped = fs::read_to_string(place.path("host/reaped")).unwrap();
    assert_eq!(reaped, "137\n");
    let _ = session.umount_and_join();
    assert!(took < Duration::from_secs(9), "{took:?}");
}
