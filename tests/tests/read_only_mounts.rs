//! Every call on paths and descriptors of every kind in a read-only pass-through mount, compared with a read-only bind mount of the same tree: results and errnos, as root and as
//! an ordinary user. The kernel has opened the files of the pass-through mount in one that can be written, so only the monitor refuses changes by their descriptors.
//!
//! The programs are `programs/ro_*.c`; what differs is in `known-read-only.txt`, and docs/compatibility.md has the reasons.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use goanna_tests::{
    Backend, Facility, Intercept, Place, User, differences, finish, finish_within, is_root,
    program, skip,
};

/// Fifty thousand calls take some seconds, more where other tests run.
const LIMIT: Duration = Duration::from_secs(300);

/// A tree with what calls can be wrong about; a link leads to the directory $1.
const MAKE: &str = include_str!("../programs/ro_tree.sh");

/// The directory $1 is mounted at $2 for the command.
const BOUND: &str = r#"mount --bind "$1" "$2"; mount -o remount,bind,ro "$2"; shift 2; exec setpriv --no-new-privs "$@""#;

/// The differences with a reason.
const KNOWN: &str = include_str!("../known-read-only.txt");

struct Judge {
    place: Place,
    tree: PathBuf,
    program: PathBuf,
}

impl Judge {
    fn new(name: &str) -> Self {
        let place = Place::pass();
        let tree = place.make_dir("tree");
        let mut make = place.native("sh");
        make.args(["-c", MAKE, "sh"]).arg(place.make_dir("beyond"));
        finish(make.current_dir(&tree)).expect(0);
        let program = program(name, &place.path("."), false);
        Self {
            place,
            tree,
            program,
        }
    }

    /// A directory beside the tree that every user may change.
    fn fresh(&self) -> PathBuf {
        let host = self.place.make_dir("host");
        fs::set_permissions(&host, fs::Permissions::from_mode(0o777)).unwrap();
        host
    }

    fn natively(&self, user: User) -> String {
        let top = self.place.make_dir("top");
        let mut command = self.place.native("unshare");
        command.args(["-m", "sh", "-c", BOUND, "sh"]);
        command.arg(&self.tree).arg(&top);
        if user == User::Nobody {
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        command.arg(&self.program).arg(&top).arg(self.fresh());
        text(command)
    }

    fn mounted(&self, place: &Place) -> String {
        let spec = format!("pass={}:/cd,ro", self.tree.display());
        let mut command = place.run_with(&["--mount", &spec]);
        command.arg(&self.program).arg("/cd").arg(self.fresh());
        text(command)
    }
}

fn text(mut command: Command) -> String {
    let text = finish_within(&mut command, LIMIT).expect(0).text();
    assert!(text.ends_with("end\n"), "stopped half way:\n{text}");
    text
}

fn check(name: &str, intercepts: &[Intercept], at_least: usize) {
    if !is_root() {
        skip(
            Facility::Root,
            "only root can mount the tree to compare with",
        );
        return;
    }
    let judge = Judge::new(name);
    for user in [User::Own, User::Nobody] {
        let expected = judge.natively(user);
        let lines = expected.lines().count();
        assert!(lines > at_least, "{name} made {lines} calls only");
        for intercept in intercepts {
            let place = Place::new(Backend::Pass, *intercept, user);
            let found = differences(&expected, &judge.mounted(&place));
            let surprises = differences(&place.known(KNOWN, name), &found);
            assert!(
                surprises.is_empty(),
                "{name}, {user:?}, {intercept:?}: differences that docs/compatibility.md does not explain (+), or explains though there are none (-); in each, - is in \
                 the bind mount and + here:\n{surprises}"
            );
        }
    }
}

const NOTIFY: [Intercept; 1] = [Intercept::Notify];

#[test]
fn changes() {
    check("ro_change", &NOTIFY, 60_000);
}

#[test]
fn opens() {
    check("ro_open", &NOTIFY, 50_000);
}

#[test]
fn looks() {
    check("ro_look", &NOTIFY, 30_000);
}

#[test]
fn descriptors() {
    check("ro_fds", &[Intercept::Notify, Intercept::Ptrace], 1_800);
}
