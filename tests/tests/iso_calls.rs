//! Every call that can reach a mounted image, on paths and descriptors of every kind, compared with the same tree on a
//! read-only ext4: results and errnos, under both interceptions, as root and as an ordinary user.
//!
//! The kernel judges, so the comparison needs root, for a loop mount in a mount namespace of its own: it is gone with the
//! program, however that ends. The programs are `programs/ro_*.c`; what differs is in `known-iso.txt`, and
//! docs/compatibility.md has the reasons.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use goanna_tests::{
    Backend, Ended, Facility, Intercept, Place, User, differences, finish, finish_within, is_root,
    program, skip, tools::has,
};

/// Fifty thousand calls take some seconds, more where other tests run.
const LIMIT: Duration = Duration::from_secs(300);

/// A tree with what calls can be wrong about; a link leads to the directory $1.
const MAKE: &str = include_str!("../programs/ro_tree.sh");

/// A file system made of the tree, which is mounted where the last word says, and only for the command.
const ON_EXT4: &str = r#"mount -o loop,ro "$1" "$2"; shift 2; exec setpriv --no-new-privs "$@""#;

struct Judge {
    place: Place,
    image: PathBuf,
    ext4: PathBuf,
}

impl Judge {
    fn new(maker: &[&str]) -> Self {
        let place = Place::new(Backend::Pass, Intercept::Notify, User::Own);
        let tree = place.make_dir("tree");
        let beyond = place.make_dir("beyond");
        let mut make = place.native("sh");
        make.args(["-c", MAKE, "sh"])
            .arg(&beyond)
            .current_dir(&tree);
        finish(&mut make).expect(0);
        let image = place.path("image.iso");
        let mut command = place.native(maker[0]);
        command.args(&maker[1..]).arg("-o").arg(&image).arg(&tree);
        finish(&mut command).expect(0);
        let ext4 = place.path("ext4");
        let fill = r#"set -e; truncate -s 16M "$1"; mkfs.ext4 -q -O ^has_journal "$1"; mount -o loop "$1" "$2"
            rmdir "$2/lost+found"; cp -a "$3/." "$2""#;
        let mut command = place.native("unshare");
        command
            .args(["-m", "sh", "-c", fill, "sh"])
            .arg(&ext4)
            .arg(place.make_dir("top"))
            .arg(&tree);
        finish(&mut command).expect(0);
        Self { place, image, ext4 }
    }

    /// What is beside the tree, as it was: a program may change what is not read-only.
    fn fresh(&self) -> PathBuf {
        self.place.make_dir("beyond");
        let host = self.place.make_dir("host");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&host, open).unwrap();
        host
    }

    fn natively(&self, program: &Path, user: User) -> String {
        let host = self.fresh();
        let top = self.place.path("top");
        let mut command = self.place.native("unshare");
        command
            .args(["-m", "sh", "-c", ON_EXT4, "sh"])
            .arg(&self.ext4)
            .arg(&top);
        if user == User::Nobody {
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        command.arg(program).arg(&top).arg(host);
        text(finish_within(&mut command, LIMIT))
    }

    fn mounted(&self, program: &Path, user: User, intercept: Intercept) -> (Place, String) {
        let place = Place::new(Backend::Pass, intercept, user);
        let spec = format!("iso={}:/cd", self.image.display());
        let mut command: Command = place.run_with(&["--mount", &spec]);
        command.arg(program).arg("/cd").arg(self.fresh());
        let ended = finish_within(&mut command, LIMIT);
        (place, text(ended))
    }
}

/// The differences with a reason.
const KNOWN: &str = include_str!("../known-iso.txt");

fn text(ended: Ended) -> String {
    let text = ended.expect(0).text();
    assert!(text.ends_with("end\n"), "stopped half way:\n{text}");
    text
}

fn check(name: &str, at_least: usize) {
    if !is_root() {
        skip(
            Facility::Root,
            "only root can mount the file system to compare with",
        );
        return;
    }
    let makers: [&[&str]; 2] = [
        &["genisoimage", "-quiet", "-R"],
        &["xorriso", "-as", "mkisofs", "-quiet", "-R"],
    ];
    for maker in makers {
        if !has(maker[0]) || !has("mkfs.ext4") {
            continue;
        }
        let judge = Judge::new(maker);
        let program = program(name, &judge.place.path("."), false);
        for user in [User::Own, User::Nobody] {
            let expected = judge.natively(&program, user);
            let lines = expected.lines().count();
            assert!(lines > at_least, "{name} made {lines} calls only");
            for intercept in [Intercept::Notify, Intercept::Ptrace] {
                let (place, text) = judge.mounted(&program, user, intercept);
                let found = differences(&expected, &text);
                let surprises = differences(&place.known(KNOWN, name), &found);
                assert!(
                    surprises.is_empty(),
                    "{name}, {}, {user:?}, {intercept:?}: differences that docs/compatibility.md does not explain (+), or \
                     explains though there are none (-); in each, - is on ext4 and + here:\n{surprises}",
                    maker[0]
                );
            }
        }
    }
}

#[test]
fn changes() {
    check("ro_change", 60_000);
}

#[test]
fn opens() {
    check("ro_open", 50_000);
}

#[test]
fn looks() {
    check("ro_look", 30_000);
}

#[test]
fn descriptors() {
    check("ro_fds", 1_800);
}
