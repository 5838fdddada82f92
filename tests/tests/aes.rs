//! `goanna run --mount aes=DIR:/secret` and `goanna aes`: volumes that gocryptfs reads, and volumes that it wrote.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use goanna_tests::{Ended, Facility, binary, differences, finish, is_root, skip, tools::has};
use tempfile::TempDir;

/// What gocryptfs makes the kinds of volumes with, and the same for `goanna aes init`.
const KINDS: [(&str, &[&str], &[&str]); 7] = [
    ("usual", &[], &[]),
    ("siv", &["-aessiv"], &["--cipher", "aes-siv"]),
    ("xchacha", &["-xchacha"], &["--cipher", "xchacha"]),
    (
        "deterministic",
        &["-deterministic-names"],
        &["--names", "deterministic"],
    ),
    ("plain", &["-plaintextnames"], &["--names", "plain"]),
    (
        "short",
        &["-longnamemax", "100"],
        &["--long-name-max", "100"],
    ),
    (
        "plain_xchacha",
        &["-plaintextnames", "-xchacha"],
        &["--names", "plain", "--cipher", "xchacha"],
    ),
];

/// Makes a tree in the working directory with all that the format has a word about.
const MAKE: &str = r#"
set -e
: > empty; printf x > one
for n in 15 16 17 4095 4096 4097 8192 12287 1000000; do
    head -c $n /dev/zero | openssl enc -aes-128-ctr -K 00 -iv $(printf %032x $n) > size.$n 2>/dev/null
done
truncate -s 1M sparse; printf end >> sparse; truncate -s 40000 hole; printf x | dd of=hole bs=1 seek=20000 conv=notrunc 2>/dev/null
mkdir -p d/e/f; echo deep > d/e/f/file; mkdir empty.dir
for n in 15 16 17 100 143 144 175 176 177 254 255; do echo $n > "$(printf "n%.0s" $(seq $n))"; done
mkdir "$(printf "D%.0s" $(seq 200))"; echo in > "$(printf "D%.0s" $(seq 200))/file"
printf latin > "$(printf 'caf\351')"; printf odd > "$(printf 'a\nb\tc')"; echo dot > .hidden; echo dash > -x
ln one hard; ln "$(printf "n%.0s" $(seq 255))" "$(printf "h%.0s" $(seq 255))"
ln -s one link; ln -s /no/such/place dangling; ln -s "$(printf "t%.0s" $(seq 500))" longlink
setfattr -n user.text -v value one; setfattr -n user.empty one; setfattr -n user.bin -v 0x00ff0a d
mkfifo fifo
chmod 640 one; chmod 700 d; chmod 4755 size.17; chmod 400 size.16
touch -d '2001-02-03 04:05:06.789' empty; touch -h -d '2002-02-03' link; touch -d '2003-02-03' d
"#;

/// Changes a tree in the ways that programs do.
const CHANGE: &str = r#"
set -e
echo more >> size.4095; echo more >> size.4096; printf y | dd of=size.1000000 bs=1 seek=4095 conv=notrunc 2>/dev/null
truncate -s 5000 size.12287; truncate -s 4096 size.8192; truncate -s 0 size.4097; truncate -s 100000 size.15
fallocate -l 50000 size.17
mv d/e moved; rmdir empty.dir; mkdir other; mv -T other "$(printf "O%.0s" $(seq 230))"
mv "$(printf "n%.0s" $(seq 254))" "$(printf "m%.0s" $(seq 254))"; rm "$(printf "n%.0s" $(seq 176))"
mkdir full empty2; echo x > full/x; mv -T full empty2; rm link; ln -s other link
rm -r "$(printf "D%.0s" $(seq 200))"; setfattr -x user.empty one; setfattr -n user.text -v other one
cp -a moved copied; : > one
"#;

/// Lists all that is in the working directory, with contents.
const LIST: &str = r#"
find . -mindepth 1 -printf '%P %y %m %U %G %n %l\n' | LC_ALL=C sort
find . -type f -printf '%P %s %T@\n' -o -type l -printf '%P %s\n' | LC_ALL=C sort
find . -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum
find . -print0 | LC_ALL=C sort -z | xargs -0 getfattr -hd -m '^user' -e hex | grep -v '^$'
"#;

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("pw"), "secret\n").unwrap();
        for name in ["volume", "mount", "native"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn gocryptfs(&self, options: &[&str]) -> Command {
        let mut command = Command::new("gocryptfs");
        command.args(["-q", "-passfile"]).arg(self.path("pw"));
        command.args(options).arg(self.path("volume"));
        command
    }

    fn aes(&self, command: &str, options: &[&str]) -> Command {
        let mut aes = Command::new(binary("goanna"));
        aes.args(["aes", command, "--passfile"])
            .arg(self.path("pw"));
        aes.args(options).arg(self.path("volume"));
        aes
    }

    /// A script in the volume, under `goanna run`.
    fn ours(&self, script: &str) -> Ended {
        self.ours_with("", script)
    }

    fn ours_with(&self, options: &str, script: &str) -> Ended {
        let mut spec = OsString::from("aes=");
        spec.push(self.path("volume"));
        spec.push(":/secret,passfile=");
        spec.push(self.path("pw"));
        spec.push(options);
        let script = format!("cd /secret || exit 1\n{script}");
        let mut command = Command::new(binary("goanna"));
        command.args(["run", "--mount"]).arg(spec);
        finish(command.args(["--", "bash", "-c", &script]))
    }

    /// A script in a mount of gocryptfs.
    fn theirs(&self, script: &str) -> Ended {
        let mount = self.path("mount");
        finish(self.gocryptfs(&[]).arg(&mount)).expect(0);
        let ended = script_in(&mount, script);
        finish(Command::new("umount").arg(&mount)).expect(0);
        ended
    }

    fn checks(&self) {
        finish(&mut self.gocryptfs(&["-fsck"])).expect(0);
        finish(&mut self.aes("fsck", &[])).expect(0);
    }
}

fn script_in(dir: &Path, script: &str) -> Ended {
    finish(Command::new("bash").args(["-c", script]).current_dir(dir))
}

fn can_mount() -> bool {
    let has_fuse = Path::new("/dev/fuse").exists();
    if !has_fuse || !is_root() {
        skip(Facility::Fuse, "gocryptfs needs /dev/fuse and root");
    }
    has_fuse && is_root() && has("gocryptfs") && has("setfattr") && has("openssl")
}

/// Both ways, each kind of volume: a tree that one makes and the other changes is equal to a native one throughout.
#[test]
fn gocryptfs_and_goanna_read_and_change_volumes_of_each_other() {
    if !can_mount() {
        return;
    }
    for (kind, theirs, ours) in KINDS {
        for ours_first in [true, false] {
            let place = Place::new();
            let native = |script: &str| script_in(&place.path("native"), script);
            let both = |script: &str, by_us: bool| {
                let native = native(script).expect(0);
                let encrypted = if by_us {
                    place.ours(script)
                } else {
                    place.theirs(script)
                };
                let encrypted = encrypted.expect(0);
                (native.text(), encrypted.text())
            };
            if ours_first {
                let init = [&["--scrypt-n", "10"], ours].concat();
                finish(&mut place.aes("init", &init)).expect(0);
            } else {
                let init = [&["-init", "-scryptn", "10"], theirs].concat();
                finish(&mut place.gocryptfs(&init)).expect(0);
            }
            both(MAKE, ours_first);
            place.checks();
            same(kind, &place);
            both(CHANGE, !ours_first);
            place.checks();
            same(kind, &place);
        }
    }
}

/// What all three show.
#[track_caller]
fn same(kind: &str, place: &Place) {
    let list = |ended: Ended| ended.expect(0).text();
    let native = list(script_in(&place.path("native"), LIST));
    let ours = list(place.ours(LIST));
    let theirs = list(place.theirs(LIST));
    // The native tree was written at another time, where the times are not set.
    let is_steady = |line: &&str| {
        !line
            .rsplit(' ')
            .next()
            .is_some_and(|word| word.starts_with("17") || word.starts_with("18"))
    };
    let steady = |text: &str| {
        text.lines()
            .filter(is_steady)
            .collect::<Vec<_>>()
            .join("\n")
    };
    let (native, shown) = (steady(&native), steady(&ours));
    assert!(native == shown, "{kind}: {}", differences(&native, &shown));
    assert!(ours == theirs, "{kind}: {}", differences(&ours, &theirs));
}
