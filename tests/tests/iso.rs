//! `goanna run --mount iso=IMAGE:/cd`: programs on an image, compared with the same programs on the tree it was made of.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use goanna_tests::{
    Backend, Ended, Facility, Intercept, Place, User, binary, finish, is_root,
    may_become_another_user, skip,
};

/// Both ways to intercept, by the user that runs the tests and by an ordinary one.
fn everywhere(body: fn(&Place)) {
    let users: &[User] = if may_become_another_user() {
        &[User::Own, User::Nobody]
    } else {
        &[User::Own]
    };
    for user in users {
        for intercept in [Intercept::Notify, Intercept::Ptrace] {
            body(&Place::new(Backend::Pass, intercept, *user));
        }
    }
}

/// A tree of the user's, and what looks at it.
const MAKE: &str = r#"
set -e
mkdir -p d/1/2/3/4/5/6/7/8/9 bin empty
echo bottom > d/1/2/3/4/5/6/7/8/9/f
echo hello > a; ln a d/hard; ln -s ../a d/up; ln -s /no/such dangling; : > nothing
seq 100000 > large
mkfifo fifo; chmod 600 fifo; chmod 640 a; chmod 400 nothing
cp /bin/ls /usr/bin/md5sum bin
printf '#!/bin/sh\necho script "$@"; exit 5\n' > bin/script; chmod 755 bin/script
touch -d '2001-02-03 04:05:06' a
"#;

const LOOK: &str = r#"
cd "$1" || exit 1
find . -name rr_moved -prune -o -printf '%P %y %m %U %G %Ts %l\n' | sort
find . -type f -printf '%P %s %n\n' | sort
find . -type f | sort | xargs md5sum
bin/script x y; echo status $?
bin/ls d; bin/md5sum a large
tail -c 20 large; head -c 7 large; dd if=large bs=1000 skip=300 count=1 2>/dev/null | md5sum
cat d/up dangling 2>&1
cd d/1/2/3/4/5/6/7/8/9 && cat f && cd ../.. && ls && cat ../../../../../../../../a && cd ../../../../../../../.. && ls | grep -v rr_moved
test "$(stat -c %i a)" = "$(stat -c %i d/hard)" && echo one file
python3 - <<'P'
import mmap, os
with open('large', 'rb') as f:
    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    private = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    private[0:1] = b'x'
    print(len(m), m[:6], m[-6:], private[:6], f.read(6))
for call in [lambda: os.listdir('a'), lambda: open('missing'), lambda: os.readlink('a'), lambda: os.lseek(os.open('a', 0), -1, 0),
             lambda: os.open('d', os.O_RDWR), lambda: os.write(os.open('a', 0), b'x'), lambda: os.ftruncate(os.open('a', 0), 0),
             lambda: os.stat('a/b'), lambda: os.open('d/up', os.O_NOFOLLOW)]:
    try: print(call())
    except OSError as e: print(e.errno)
P
"#;

fn shell(place: &Place, script: &str, dir: &Path) -> Ended {
    finish(place.native("sh").args(["-c", script, "sh"]).arg(dir))
}

/// An image of a tree, and the tree.
fn image(place: &Place) -> (PathBuf, PathBuf) {
    let tree = place.make_dir("tree");
    finish(place.native("sh").args(["-c", MAKE]).current_dir(&tree)).expect(0);
    let image = place.path("native/i.iso");
    let mut make = place.native("genisoimage");
    make.args(["-quiet", "-R", "-J", "-o"])
        .arg(&image)
        .arg(&tree);
    finish(&mut make).expect(0);
    (image, tree)
}

fn in_image(place: &Place, image: &Path, options: &str, script: &str) -> Ended {
    let spec = format!("iso={}:/cd{options}", image.display());
    finish(
        place
            .run_with(&["--mount", &spec])
            .args(["sh", "-c", script, "sh", "/cd"]),
    )
}

#[test]
fn programs_see_what_the_tree_holds() {
    everywhere(|place| {
        let (image, tree) = image(place);
        let native = shell(place, LOOK, &tree);
        let mounted = in_image(place, &image, "", LOOK).expect(native.status);
        let differing: Vec<_> = native
            .text()
            .lines()
            .map(str::to_owned)
            .zip(mounted.text().lines().map(str::to_owned))
            // The time of the root is that of the image's making.
            .filter(|(native, mounted)| native != mounted && !native.starts_with(" d "))
            .collect();
        assert!(differing.is_empty(), "{place:?}: {differing:#?}");
        let lines = (
            native.text().lines().count(),
            mounted.text().lines().count(),
        );
        assert_eq!(lines.0, lines.1, "{}\n{}", native.text(), mounted.text());
        assert!(lines.0 > 60, "{}", native.text());
    });
}

#[test]
fn nothing_can_be_changed() {
    const CHANGE: &str = r#"
python3 - <<'P'
import os, errno
os.chdir('/cd')
def op(flags): return lambda: os.open('a', flags)
calls = dict(create=lambda: os.open('new', os.O_CREAT | os.O_WRONLY), write=op(os.O_WRONLY), both=op(os.O_RDWR),
    trunc=op(os.O_TRUNC | os.O_WRONLY), append=op(os.O_APPEND | os.O_WRONLY), mkdir=lambda: os.mkdir('n'),
    unlink=lambda: os.unlink('a'), rmdir=lambda: os.rmdir('empty'), rename=lambda: os.rename('a', 'b'),
    link=lambda: os.link('a', 'b'), symlink=lambda: os.symlink('a', 'b'), mkfifo=lambda: os.mkfifo('b'),
    forbidden=lambda: os.open('nothing', os.O_WRONLY), forbidden_both=lambda: os.open('nothing', os.O_RDWR),
    chmod=lambda: os.chmod('a', 0o777), chown=lambda: os.chown('a', os.getuid(), os.getgid()),
    utime=lambda: os.utime('a'), truncate=lambda: os.truncate('a', 0), fchmod=lambda: os.fchmod(os.open('a', 0), 0o777),
    setxattr=lambda: os.setxattr('a', 'user.x', b'x'), tmpfile=lambda: os.open('d', os.O_TMPFILE | os.O_RDWR))
for name, call in calls.items():
    try: call(); print(name, 'done')
    except OSError as e: print(name, errno.errorcode[e.errno])
P
"#;
    everywhere(|place| {
        let (image, _) = image(place);
        let ended = in_image(place, &image, "", CHANGE).expect(0);
        let text = ended.text();
        assert_eq!(text.lines().count(), 21, "{text}{}", ended.errors());
        for line in text.lines() {
            assert!(line.ends_with(" EROFS"), "{place:?}: {text}");
        }
    });
}

/// Name spaces and sessions can be chosen, and an input that is not an image is named.
#[test]
fn options_and_what_is_no_image() {
    let place = Place::new(Backend::Pass, Intercept::Notify, User::Own);
    let (image, _) = image(&place);
    for (options, mode) in [
        ("", "640"),
        (",rockridge", "640"),
        (",joliet", "555"),
        (",plain,ro", "555"),
    ] {
        let ended = in_image(&place, &image, options, "stat -c %a /cd/a").expect(0);
        assert_eq!(ended.text().trim(), mode, "{options}");
    }
    let refused = in_image(&place, &image, ",session=2", "true").expect(125);
    assert!(
        refused.errors().contains("no session 2: the image has 1"),
        "{}",
        refused.errors()
    );
    let refused = in_image(&place, Path::new("/etc/passwd"), "", "true").expect(125);
    assert!(
        refused
            .errors()
            .contains("/etc/passwd: not an ISO 9660 image"),
        "{}",
        refused.errors()
    );
    let missing = in_image(&place, Path::new("/no/such"), "", "true").expect(125);
    assert!(
        missing.errors().contains("/no/such: No such file"),
        "{}",
        missing.errors()
    );
}

/// An image on a block device, by way of a loop device; detached when dropped.
struct Device(PathBuf);

impl Device {
    /// `None`, and says so, where there are no loop devices.
    fn new(image: &Path) -> Option<Self> {
        let output = Command::new("losetup")
            .args(["--find", "--show", "--read-only"])
            .arg(image)
            .output();
        match output {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8(output.stdout).unwrap();
                Some(Self(path.trim().into()))
            }
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).into_owned();
                skip(Facility::LoopDevices, why);
                None
            }
            Err(why) => {
                skip(Facility::Program, format!("losetup: {why}"));
                None
            }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .status();
    }
}

/// Root reads a device as the file behind it; other users get an error.
#[test]
fn on_a_block_device() {
    if !is_root() {
        skip(Facility::Root, "only root can attach a loop device");
        return;
    }
    let place = Place::new(Backend::Pass, Intercept::Notify, User::Own);
    let (image, tree) = image(&place);
    let Some(device) = Device::new(&image) else {
        return;
    };
    let device = device.0.as_path();
    let goanna = |place: &Place, words: &[&str], image: &Path| {
        let mut command = place.native(binary("goanna"));
        finish(command.arg("iso").args(words).arg(image))
    };
    // The file behind the device has the same bytes, and so has what is said of it except for its name.
    let size = fs::metadata(&image).unwrap().len();
    for words in [&["info", "--json"][..], &["ls", "--json", "-R"]] {
        let [of_file, of_device] = [&image, device].map(|image| {
            let text = goanna(&place, words, image).expect(0).text();
            text.replace(image.to_str().unwrap(), "IMAGE")
        });
        assert_eq!(of_file, of_device, "{words:?}");
        let names_size = of_device.contains(&format!("\"image_bytes\": {size},"));
        assert!(words[0] == "ls" || names_size, "{of_device}");
    }
    let mut cat = place.native(binary("goanna"));
    let ended = finish(cat.args(["iso", "cat"]).arg(device).args(["a", "large"])).expect(0);
    let native = [tree.join("a"), tree.join("large")].map(|path| fs::read_to_string(path).unwrap());
    assert!(ended.text() == native.concat());
    let out = place.path("native/out");
    let words = ["extract", "--to", out.to_str().unwrap()];
    goanna(&place, &words, device).expect(0);
    finish(
        place
            .native("diff")
            .args(["-r", "--no-dereference", "-x", "fifo", "-x", "rr_moved"])
            .arg(&tree)
            .arg(&out),
    )
    .expect(0);

    for intercept in [Intercept::Notify, Intercept::Ptrace] {
        let place = Place::new(Backend::Pass, intercept, User::Own);
        let [of_file, of_device] = [&image, device].map(|image| in_image(&place, image, "", LOOK));
        assert_eq!(of_file.text(), of_device.text());
        assert_eq!(of_file.status, of_device.status);
        assert!(of_device.text().lines().count() > 60);

        let place = Place::new(Backend::Pass, intercept, User::Nobody);
        let refused = in_image(&place, device, "", "true").expect(125);
        let why = format!("{}: Permission denied", device.display());
        assert!(refused.errors().contains(&why), "{}", refused.errors());
        for words in [&["info"][..], &["ls"], &["extract", "--to", "out"]] {
            let refused = goanna(&place, words, device).expect(125);
            assert!(refused.errors().contains(&why), "{}", refused.errors());
        }
    }
}

/// A directory with a damaged record: programs see its name, and the others as they are.
#[test]
fn a_damaged_record_does_not_hide_the_names_beside_it() {
    const USE: &str = r#"
cd /cd; ls | grep -v rr_moved | tr '\n' ' '; cat a; stat -c %s large
python3 - <<'P'
import os
for call in [lambda: os.stat('nothing'), lambda: os.open('nothing', 0), lambda: os.listdir('nothing'), lambda: os.readlink('nothing'),
             lambda: os.open('nothing', os.O_WRONLY), lambda: os.access('nothing', os.R_OK)]:
    try: print(call())
    except OSError as e: print(e.errno)
P
"#;
    everywhere(|place| {
        let (image, _) = image(place);
        let mut bytes = fs::read(&image).unwrap();
        let find = |from: usize, what: &[u8]| {
            let found = bytes[from..].windows(what.len()).position(|at| at == what);
            from + found.unwrap()
        };
        let field = find(find(0, b"NM\x0c\x01\0nothing"), b"PX");
        bytes[field + 2] = 3;
        fs::write(&image, &bytes).unwrap();
        let text = in_image(place, &image, "", USE).expect(0).text();
        let shown = "a bin d dangling empty fifo large nothing hello\n588895\n".to_owned();
        // Known to be no directory, and the mount to be read-only.
        assert_eq!(text, shown + "117\n117\n20\n117\n30\nFalse\n", "{place:?}");
    });
}
