//! Programs of a run see its mounts: in /proc, by statx(2) and statfs(2), and with the tools that ask there.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::path::Path;
use std::process::Command;

use goanna_tests::{
    Backend, Intercept, Place, User, binary, differences, finish, in_every_place, program,
};

/// What `program` prints natively in a directory that is a mount point in a mount name space of its own; `None` where there
/// can be none.
fn in_a_bind_mount(place: &Place, program: &Path) -> Option<String> {
    let (top, host) = (place.make_dir("native"), place.make_dir("host"));
    // Only root can mount without a user name space, whose first process would have capabilities.
    let (options, exec) = match (goanna_tests::is_root(), place.user()) {
        (true, User::Own) => (&["-m"][..], "exec"),
        (true, User::Nobody) => (
            &["-m"][..],
            "exec setpriv --reuid=65534 --regid=65534 --clear-groups",
        ),
        (false, _) => (
            &["-c", "--keep-caps", "-m"][..],
            "exec setpriv --inh-caps=-all --ambient-caps=-all",
        ),
    };
    let script = format!(r#"mount --bind "$1" "$1" && cd / && {exec} "$0" "$@""#);
    let mut native = Command::new("unshare");
    native.args(options).args(["sh", "-c", &script]);
    let ended = finish(native.arg(program).arg(top).arg(host));
    if ended.errors().contains("unshare failed") {
        goanna_tests::skip(
            goanna_tests::Facility::UserNamespaces,
            "no mount name space for an ordinary user",
        );
        return None;
    }
    let text = ended.expect(0).text();
    assert!(text.ends_with("end\n"), "stopped half way:\n{text}");
    Some(text)
}

fn shown_as_a_mount(place: &Place) {
    let program = program("mountlist", &place.path("."), false);
    let Some(expected) = in_a_bind_mount(place, &program) else {
        return;
    };
    let host = place.make_dir("host");
    let mut run = place.run();
    let ended = finish(run.arg(&program).arg(place.top()).arg(host));
    let found = differences(&expected, &ended.text());
    assert!(
        found.is_empty() && ended.status == 0,
        "{}: - is natively, in a bind mount, and + here:\n{found}\n{}",
        ended.how(),
        ended.errors()
    );
}

in_every_place! {
    a_mount_is_shown_as_the_kernel_shows_one => |place| shown_as_a_mount(&place);
}

#[test]
fn an_encrypted_directory_is_shown_as_a_mount() {
    shown_as_a_mount(&Place::new(Backend::Aes, Intercept::Notify, User::Own));
}

/// What users see with the tools that read these lists, for mount points that the host has and has not, and whose names need quoting.
#[test]
fn tools_show_the_mounts() {
    let place = Place::amino();
    let there = place.path("host").join("there");
    fs::create_dir_all(place.path("pass/below")).unwrap();
    fs::create_dir(&there).unwrap();
    let mut run = place.native(binary("goanna"));
    run.arg("run");
    let mut mount = |what: &str, source: &Path, at: &str| {
        run.arg("--mount");
        run.arg(format!("{what}={}:{at}", source.display()));
    };
    mount("amino", &place.path("store"), there.to_str().unwrap());
    mount("amino", &place.path("other"), "/on-the-way/not there#");
    mount("pass", &place.path("pass"), "/on-the-way/pass");
    let script = format!(
        r#"set -f
        for at in {there} '/on-the-way/not there#' /on-the-way/pass; do
            findmnt -n -o TARGET,FSTYPE --raw "$at"
            df --output=target "$at/." | tail -n 1
            mountpoint "$at"
            case "$at" in */pass) ;; *) stat -c '%m' "$at";; esac
            mkdir "$at/sub" && cd "$at/sub" && mkdir -p deep/er && cd deep/er && /bin/pwd
            findmnt -n -o TARGET --raw -T . ; df -T . | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2
        done
        ls / | grep on-the; compgen -f /on-t; compgen -f /on-the-way/n
        mountpoint /on-the-way; df --output=target /on-the-way | tail -n 1
        find /on-the-way -maxdepth 1 | sort
        findmnt -n -o PROPAGATION,OPTIONS /on-the-way/pass | grep -c rw"#,
        there = there.display()
    );
    let ended = finish(run.args(["--", "/bin/bash", "-c", &script])).expect(0);
    let of = |target: &str, kind: &str| {
        let raw = target.replace(' ', "\\x20");
        // stat(1) asks for the device, which a bind mount has from the host.
        let found = if kind == "amino" {
            format!("{target}\n")
        } else {
            String::new()
        };
        format!(
            "{raw} {kind}\n{target}\n{target} is a mountpoint\n{found}{target}/sub/deep/er\n{raw}\n{kind}\n"
        )
    };
    let host = finish(
        place
            .native("stat")
            .args(["-f", "-c", "%T"])
            .arg(place.path("pass")),
    )
    .text();
    let expected = [
        of(there.to_str().unwrap(), "amino"),
        of("/on-the-way/not there#", "amino"),
        of(
            "/on-the-way/pass",
            if host == "ext2/ext3\n" {
                "ext4"
            } else {
                host.trim()
            },
        ),
        "on-the-way\n/on-the-way\n/on-the-way/not there#\n".into(),
        "/on-the-way is not a mountpoint\n/\n".into(),
        "/on-the-way\n/on-the-way/not there#\n/on-the-way/pass\n1\n".into(),
    ];
    assert_eq!(ended.text(), expected.concat(), "{}", ended.errors());
}

/// A process outside of the run does not see the mounts, and neither does a program of the run in that process's lists.
#[test]
fn processes_outside_have_no_mount() {
    let place = Place::pass();
    let script = format!(
        "grep -c /mnt-test /proc/{0}/mounts; grep -c /mnt-test /proc/self/mounts; grep /mnt-test /proc/$$/mountinfo | wc -l",
        std::process::id()
    );
    let ended = finish(place.run().args(["/bin/sh", "-c", &script]));
    assert_eq!(ended.text(), "0\n1\n1\n");
}

/// Calls that are answered in the process do not read the kernel's list.
#[test]
fn calls_in_the_process_do_not_hide_mounts() {
    let place = Place::amino();
    let script = "for i in {1..300}; do test -e /etc/passwd; read -r line < /etc/hostname; done
        for list in /proc/mounts /proc/self/mountinfo /etc/mtab; do while read -r line; do
            case $line in */amino-test*) echo $list;; esac; done < $list; done
        cd /proc/self && while read -r line; do case $line in */amino-test*) echo here;; esac; done < mounts
        shopt -s nullglob; cd /; for name in amino-t*; do echo $name; done";
    for options in [&[][..], &["--no-fast-path"]] {
        let ended = finish(place.run_with(options).args(["/bin/bash", "-c", script])).expect(0);
        assert_eq!(
            ended.text(),
            "/proc/mounts\n/proc/self/mountinfo\n/etc/mtab\nhere\namino-test\n"
        );
    }
}
