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

use goanna_tests::{
    Backend, Ended, Facility, Intercept, User, binary, differences, finish, is_root, skip,
    tools::has,
};
use tempfile::TempDir;

/// What gocryptfs makes the kinds of volumes with, and the same for `goanna aes init`; `None` for kinds that only gocryptfs makes.
type Kind = (
    &'static str,
    &'static [&'static str],
    Option<&'static [&'static str]>,
);
const KINDS: [Kind; 10] = [
    ("usual", &[], Some(&[])),
    ("siv", &["-aessiv"], Some(&["--cipher", "aes-siv"])),
    ("xchacha", &["-xchacha"], Some(&["--cipher", "xchacha"])),
    (
        "deterministic",
        &["-deterministic-names"],
        Some(&["--names", "deterministic"]),
    ),
    ("plain", &["-plaintextnames"], Some(&["--names", "plain"])),
    (
        "short",
        &["-longnamemax", "100"],
        Some(&["--long-name-max", "100"]),
    ),
    (
        "plain_xchacha",
        &["-plaintextnames", "-xchacha"],
        Some(&["--names", "plain", "--cipher", "xchacha"]),
    ),
    (
        "deterministic_siv",
        &["-deterministic-names", "-aessiv"],
        Some(&["--names", "deterministic", "--cipher", "aes-siv"]),
    ),
    ("padded", &["-raw64=false"], None),
    (
        "padded_deterministic_xchacha",
        &["-raw64=false", "-deterministic-names", "-xchacha"],
        None,
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
            if ours_first && ours.is_none() {
                continue;
            }
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
                let init = [&["--scrypt-n", "10"], ours.unwrap_or_default()].concat();
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

fn volume(kind: &[&str]) -> Place {
    let place = Place::new();
    let init = [&["--scrypt-n", "10"], kind].concat();
    finish(&mut place.aes("init", &init)).expect(0);
    place
}

/// The exit statuses of gocryptfs, and the failure on stderr.
#[test]
fn commands_end_with_the_statuses_of_gocryptfs() {
    let place = volume(&[]);
    let config = place.path("volume/gocryptfs.conf");
    let original = fs::read_to_string(&config).unwrap();
    let status = |command: &mut Command, status: i32, text: &str| {
        let errors = finish(command).expect(status).errors();
        assert!(errors.contains(text), "{errors}");
    };
    status(&mut place.aes("init", &[]), 6, "the directory is not empty");
    status(&mut place.aes("fsck", &[]), 0, "");
    fs::write(place.path("pw"), "wrong\n").unwrap();
    status(&mut place.aes("fsck", &[]), 12, "the password is wrong");
    fs::write(place.path("pw"), "\n").unwrap();
    status(&mut place.aes("fsck", &[]), 9, "its first line is empty");
    fs::remove_file(place.path("pw")).unwrap();
    status(&mut place.aes("fsck", &[]), 9, "cannot read the password");
    fs::write(place.path("pw"), "secret\n").unwrap();
    let info = |expected: i32, text: &str| {
        let mut info = Command::new(binary("goanna"));
        status(
            info.args(["aes", "info"]).arg(place.path("volume")),
            expected,
            text,
        );
    };
    fs::remove_file(&config).unwrap();
    for (from, to, expected, text) in [
        ("\"Version\": 2", "\"Version\": 3", 27, "version 3"),
        ("\"Raw64\"", "\"FIDO2\"", 27, "the feature FIDO2"),
        ("\"N\": 1024", "\"N\": 1000", 8, "ScryptObject"),
        ("{", "", 8, "gocryptfs.conf"),
    ] {
        fs::write(&config, original.replacen(from, to, 1)).unwrap();
        info(expected, text);
    }
    fs::remove_file(&config).unwrap();
    info(23, "No such file");
}

/// Memory for the key that the system does not give is an error: it once ended the process, which in a run on a store is `aminod`.
#[test]
fn a_key_that_takes_more_memory_than_there_is() {
    let place = volume(&[]);
    let config = place.path("volume/gocryptfs.conf");
    let original = fs::read_to_string(&config).unwrap();
    let costly = original.replacen("\"N\": 1024", "\"N\": 4194304", 1);
    fs::write(&config, costly).unwrap();
    let aes = place.aes("fsck", &[]);
    let mut limited = Command::new("bash");
    limited.args(["-c", "ulimit -v 3000000; exec \"$0\" \"$@\""]);
    limited.arg(aes.get_program()).args(aes.get_args());
    let errors = finish(&mut limited).expect(125).errors();
    assert!(errors.contains("it takes 4096 MiB"), "{errors}");
}

/// The password changes by the old one and by the master key; the old config file stays beside the new one. A detached config
/// file, standard input and a command as sources.
#[test]
fn passwords_change() {
    let place = Place::new();
    let config = place.path("detached.conf");
    let config = config.to_str().unwrap();
    let made = finish(&mut place.aes("init", &["--scrypt-n", "10", "--config", config])).expect(0);
    let master = made.text();
    let master = master.split_whitespace().last().unwrap().to_owned();
    assert!(!place.path("volume/gocryptfs.conf").exists());
    fs::write(place.path("new"), "another\n").unwrap();
    let new = place.path("new");
    let new = new.to_str().unwrap();
    let passwd = ["--config", config, "--new-passfile", new];
    let told = finish(&mut place.aes("passwd", &passwd)).expect(0);
    assert!(
        told.errors().contains("detached.conf.bak"),
        "{}",
        told.errors()
    );
    finish(&mut place.aes("fsck", &["--config", config])).expect(12);
    finish(&mut place.aes("fsck", &["--config", &format!("{config}.bak")])).expect(0);
    let run = |script: &str| {
        let script = format!("{script}; exit ${{PIPESTATUS[-1]}}");
        let mut bash = Command::new("bash");
        bash.env("GOANNA", binary("goanna")).env("CONFIG", config);
        bash.env("DIR", place.path("volume")).env("KEY", &master);
        finish(bash.args(["-c", &script]))
    };
    run("echo another | $GOANNA aes fsck --passfile - --config $CONFIG $DIR").expect(0);
    run("$GOANNA aes fsck --extpass 'echo another' --config $CONFIG $DIR").expect(0);
    run("echo $KEY | $GOANNA aes fsck --masterkey stdin --config $CONFIG $DIR").expect(0);
    run("echo 1234 | $GOANNA aes fsck --masterkey stdin --config $CONFIG $DIR").expect(14);
    run("echo $KEY | $GOANNA aes passwd --masterkey stdin --new-extpass 'echo third' --config $CONFIG $DIR").expect(0);
    run("$GOANNA aes fsck --extpass 'echo third' --config $CONFIG $DIR").expect(0);
    // Without an option, standard input that is not a terminal has the passwords, one per line.
    run("printf 'third\\nfourth\\n' | $GOANNA aes passwd --config $CONFIG $DIR").expect(0);
    run("echo fourth | $GOANNA aes fsck --config $CONFIG $DIR").expect(0);
    run("printf 'fourth\\nthird\\n' | $GOANNA aes passwd --config $CONFIG $DIR").expect(0);
    run("$GOANNA run --mount \"aes=$DIR:/s,extpass=echo third,config=$CONFIG\" -- sh -c 'echo x > /s/f; cat /s/f'").expect(0);
}

/// A damaged block is EIO, and stderr and fsck name the plain path; the other file is as it was.
#[test]
fn damage_is_reported_with_the_plain_path() {
    let place = volume(&["--names", "plain"]);
    place
        .ours("mkdir d; seq 5000 > d/damaged; seq 5000 > d/other")
        .expect(0);
    let path = place.path("volume/d/damaged");
    let mut bytes = fs::read(&path).unwrap();
    bytes[5000] ^= 1;
    fs::write(&path, bytes).unwrap();
    let ended =
        place.ours("cat d/damaged || echo status $?; seq 5000 | cmp - d/other && echo same");
    let ended = ended.expect(0);
    assert_eq!(ended.text(), "status 1\nsame\n");
    let errors = ended.errors();
    assert!(
        errors.contains("/d/damaged: block 1 is damaged"),
        "{errors}"
    );
    assert!(errors.contains("Input/output error"), "{errors}");
    let found = finish(&mut place.aes("fsck", &[])).expect(26).text();
    assert!(found.contains("/d/damaged: block 1 is damaged"), "{found}");
}

/// A read-only mount changes nothing; programs of the volume run; what is written through a mapping and never synced is stored.
#[test]
fn mounts_read_only_execute_and_map() {
    let place = volume(&[]);
    let program =
        "cp /bin/echo e; ./e executed; printf '#!/bin/sh\necho script' > s; chmod +x s; ./s";
    let ended = place.ours(program).expect(0);
    assert_eq!(ended.text(), "executed\nscript\n");
    if has("python3") {
        let map = "python3 -c \"import mmap, os
f = open('m', 'w+b'); f.truncate(9000)
m = mmap.mmap(f.fileno(), 9000); m[5000:5006] = b'mapped'
os._exit(0)\"";
        place.ours(map).expect(0);
        let read = place.ours("tail -c +5001 m | head -c 6").expect(0);
        assert_eq!(read.text(), "mapped");
    }
    let ended = place.ours_with(",ro", "./e still; echo x > new; rm e; mkdir d; true");
    let ended = ended.expect(0);
    assert_eq!(ended.text(), "still\n");
    assert_eq!(ended.errors().matches("Read-only file system").count(), 3);
}

/// A program of the run cannot read the keys out of the monitor, which is of its own user.
#[test]
fn the_monitor_is_not_readable() {
    if !goanna_tests::may_become_another_user() {
        return;
    }
    let place = volume(&[]);
    let dir = place.dir.path();
    finish(Command::new("chown").arg("-R").arg("65534:65534").arg(dir)).expect(0);
    let mut spec = OsString::from("aes=");
    spec.push(place.path("volume"));
    spec.push(":/secret,passfile=");
    spec.push(place.path("pw"));
    let script = "cat /proc/$PPID/mem > /dev/null || cat /proc/$PPID/maps || echo refused; echo x > /secret/f; cat /secret/f";
    let mut run = Command::new("setpriv");
    run.args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(binary("goanna"))
        .args(["run", "--mount"])
        .arg(spec)
        .args(["--", "bash", "-c", script]);
    assert_eq!(finish(&mut run).expect(0).text(), "refused\nx\n");
}

/// A mkdir that failed with EEXIST left its temporary directory behind when the mode of the new one forbade its owner to search it.
#[test]
fn a_failed_mkdir_leaves_nothing_behind() {
    if !goanna_tests::may_become_another_user() {
        return;
    }
    let place = goanna_tests::Place::new(Backend::Aes, Intercept::Notify, User::Nobody);
    let mut run = place.shell("touch name && mkdir -m 0 name; test $? = 1");
    finish(&mut run).expect(0);
    place.fsck();
}

/// A program that often looks at a file is answered in its process. Changes of the encrypted files by others are seen at once all the same.
#[test]
fn changes_of_the_encrypted_files_are_seen_at_once() {
    const PROGRAM: &str = "
import ctypes, os, sys
volume, = sys.argv[1:]
def same(a, b):
    # Access times may change at any look.
    return a[:7] == b[:7] and a[8:] == b[8:]
def often(path):
    seen = [find() for _ in range(200) for find in (lambda: os.stat(path), lambda: os.fstat(fd))]
    assert all(same(one, seen[0]) for one in seen)
    return seen[0]
os.mkdir('d')
fd = os.open('d/f', os.O_RDWR | os.O_CREAT)
os.write(fd, b'x' * 5000)
lower = [os.path.join(d, f) for d, _, fs in os.walk(volume) for f in fs if not f.startswith('gocryptfs.')]
lower, = lower
for round in range(20):
    assert often('d/f').st_size == 5000 and often(os.getcwd() + '/d/f').st_size == 5000
    os.utime(lower, (round, round))
    assert os.fstat(fd).st_mtime == round and os.stat('d/f').st_mtime == round
    often('d/f')
    os.chmod(lower, 0o600 + round % 2)
    assert os.fstat(fd).st_mode & 0o777 == os.stat('d/f').st_mode & 0o777 == 0o600 + round % 2
    often('d/f')
    os.truncate(lower, 18 + 4128)
    assert os.fstat(fd).st_size == 4096 and os.stat('d/f').st_size == 4096
    with open('d/f', 'a') as f: f.write('y' * 904); f.flush(); assert os.fstat(fd).st_size == os.stat('d/f').st_size == 5000
    often('d/f')
    os.link('d/f', 'd/g')
    assert os.fstat(fd).st_nlink == os.stat('d/f').st_nlink == 2
    os.unlink('d/g')
    often('d/f')
    os.rename(lower, lower + 'x')
    assert os.fstat(fd).st_size == 5000
    assert not os.path.exists('d/f') and not os.access('d/f', os.F_OK)
    os.rename(lower + 'x', lower)
    often('d/f')
    os.rename('d', 'e')
    assert not os.path.exists('d/f') and os.stat('e/f').st_size == 5000
    os.rename('e', 'd')
libc = ctypes.CDLL(None)
for _ in range(3):
    often('d/f')
    # As an ordinary user, or in a container, this fails.
    if libc.mount(b'none', b'd', b'tmpfs', 0, None) == 0:
        assert not os.access('d/f', os.F_OK) and not os.path.exists('d/f')
        assert libc.umount2(b'd', 0) == 0
often('d/f')
os.unlink('d/f')
assert [os.fstat(fd).st_nlink for _ in range(10)] == [0] * 10
with open('d/f', 'w') as f: f.write('another')
assert [(os.fstat(fd).st_size, os.fstat(f.fileno()).st_size) for f in [open('d/f')] for _ in range(10)] == [(5000, 7)] * 10
print('seen')
";
    let place = volume(&[]);
    let script = format!(
        "python3 - \"{}\" <<'EOF'{PROGRAM}EOF",
        place.path("volume").display()
    );
    let ended = place.ours(&script).expect(0);
    assert_eq!(ended.text(), "seen\n");
}

/// A run that may have few descriptors reads more files than these within the time between two sweeps.
#[test]
fn many_files_with_few_descriptors() {
    let script = "for i in {1..800}; do echo $i > $i; done; cat {1..800} | sha1sum; cat {1..800} | sha1sum; seq 800 | sha1sum";
    let place = goanna_tests::Place::new(Backend::Aes, Intercept::Notify, User::Own);
    let run = place.shell(script);
    let mut limited = Command::new("prlimit");
    limited
        .arg("--nofile=1024:1024")
        .arg(run.get_program())
        .args(run.get_args())
        .envs(
            run.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
    if let Some(dir) = run.get_current_dir() {
        limited.current_dir(dir);
    }
    let ended = finish(&mut limited).expect(0);
    let text = ended.text();
    let sums: Vec<_> = text.lines().collect();
    assert!(
        sums.len() == 3 && sums[0] == sums[2] && sums[1] == sums[2],
        "{text} {}",
        ended.errors()
    );
}
