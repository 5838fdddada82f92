//! Where mounts lie on the host, and in each other.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use goanna_tests::{
    Backend, Ended, Engine, Intercept, Place, User, binary, finish, finish_within,
    may_become_another_user, tools::has,
};

/// A program reaches a mount point only through directories that it may search.
#[test]
fn a_mount_below_an_unsearchable_directory_is_out_of_reach() {
    if !may_become_another_user() || !has("setpriv") {
        return;
    }
    for intercept in [Intercept::Notify, Intercept::Ptrace] {
        let place = Place::new(Backend::Amino(Engine::Fjall), intercept, User::Own);
        let private = place.make_dir("private");
        let set_mode = |mode| fs::set_permissions(&private, fs::Permissions::from_mode(mode));
        set_mode(0o700).unwrap();
        let at = private.join("missing/mnt");
        let mut run = place.native(binary("amino"));
        run.args(["run", "-q", "--store"])
            .arg(place.path("store"))
            .arg("--at")
            .arg(&at);
        // The run's own working directory stays reachable.
        let script = format!(
            r#"chmod 755 {at}; echo text > {at}/f; cat {at}/f; ln -s {at} {host}/link
            user() {{ setpriv --reuid=65534 --regid=65534 --clear-groups /bin/sh -c "$1" 2>&1; }}
            user 'cat {at}/f'; user 'cd {at}'; user 'cat {host}/link/f'; user '> {at}/g'
            cd {at} && user 'cat f'; cd /
            chmod 711 {private}; for i in $(seq 100); do user 'cat {at}/f' | grep -qx text && break; sleep 0.1; done; user 'cat {at}/f'"#,
            at = at.display(),
            host = place.path("host").display(),
            private = private.display(),
        );
        fs::set_permissions(place.path("host"), fs::Permissions::from_mode(0o755)).unwrap();
        let ended = finish(run.args(["--", "/bin/sh", "-c", &script]));
        let text = ended.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7, "{text}{}", ended.errors());
        assert_eq!(
            (lines[0], lines[5], lines[6]),
            ("text", "text", "text"),
            "{text}"
        );
        let denied = "Permission denied";
        let expected = [denied, "can't cd", denied, denied];
        for (line, expected) in lines[1..5].iter().zip(expected) {
            assert!(line.contains(expected), "{text}");
        }
    }
}

/// Runs `script` with a store at `at`. When the script has made `begun` in `around`, the mount point is made on the host, with a file `hidden`,
/// and then `around/go`.
fn while_it_appears(place: &Place, at: &Path, around: &Path, script: &str) -> Ended {
    let mut run = place.native(binary("amino"));
    run.args(["run", "-q", "--store"]).arg(place.path("store"));
    run.arg("--at")
        .arg(at)
        .args(["--", "/bin/bash", "-c", script]);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20_000 {
                if around.join("begun").exists() {
                    fs::create_dir(at).unwrap();
                    fs::write(at.join("hidden"), "host").unwrap();
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
            fs::write(around.join("go"), "").unwrap();
        });
        finish_within(&mut run, Duration::from_secs(100))
    })
}

/// A mount point need not exist on the host. Where it appears there while programs run, they go on seeing the store: those that look at it
/// by its path, from its parent, and from other directories, and those that ask for what the host has there.
#[test]
fn a_mount_point_that_appears_on_the_host_stays_the_stores() {
    let place = Place::amino();
    let around = place.path("host").join("around");
    fs::create_dir_all(around.join("beside")).unwrap();
    let at = around.join("point");
    let look = r#"look() { for path in "$at/f" "$at/hidden" point/f point/hidden beside/../point/hidden "$at/../point/hidden"; do
            test -e "$path" && printf y || printf n; done; read -r line < point/f; echo "$line"; }"#;
    let script = format!(
        r#"at={at}; cd {around}; echo text > $at/f; {look}
        for i in $(seq 60); do look; done | sort | uniq -c
        : > begun; until test -e {around}/go; do :; done
        for i in $(seq 60); do look; done | sort | uniq -c"#,
        at = at.display(),
        around = around.display(),
    );
    let ended = while_it_appears(&place, &at, &around, &script);
    let text = ended.text();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert_eq!(lines, ["60 ynynnntext"; 2], "{}", ended.errors());
    assert!(at.join("hidden").exists());
}

/// The kernel finds no file by a symbolic link into a mount whose mount point does not exist, so that what it finds for a path is right as
/// long as it does not. One that appears in the root directory is noticed.
#[test]
fn links_into_a_mount_point_that_appears_on_the_host_lead_into_the_store() {
    if !may_become_another_user() {
        return;
    }
    let place = Place::amino();
    let around = place.path("host");
    let at = PathBuf::from(format!("/goanna-appears-{}", std::process::id()));
    std::os::unix::fs::symlink(&at, around.join("link")).unwrap();
    fs::write(around.join("plain"), "host").unwrap();
    std::os::unix::fs::symlink("plain", around.join("other")).unwrap();
    let script = format!(
        r#"cd {around}; echo text > link/f
        look() {{ for path in link/f link/hidden {around}/link/hidden {at}/hidden other /dev/fd/0 none; do
            for test in -s -r; do test $test "$path" && printf y || printf n; done; done; echo; }} < /dev/null
        for i in $(seq 60); do look; done | sort | uniq -c
        : > begun; until test -e go; do :; done; sleep 0.5
        for i in $(seq 60); do look; done | sort | uniq -c"#,
        at = at.display(),
        around = around.display(),
    );
    let ended = while_it_appears(&place, &at, &around, &script);
    fs::remove_dir_all(&at).unwrap();
    let text = ended.text();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert_eq!(lines, ["60 yynnnnnnyynynn"; 2], "{}", ended.errors());
}

/// The path that /proc shows of a file is the one by which the innermost mount has it.
#[test]
fn links_of_proc_show_the_innermost_mount() {
    let place = Place::pass();
    let source = place.path("pass");
    fs::create_dir_all(source.join("sub/deep")).unwrap();
    fs::create_dir_all(place.path("host").join("other")).unwrap();
    fs::write(source.join("sub/f"), "").unwrap();
    fs::write(source.join("sub/deep/f"), "").unwrap();
    let mount = |dir: &str, at: &str| format!("pass={}:{at}", source.join(dir).display());
    let mut run = place.native(binary("goanna"));
    run.args(["run", "--mount", &mount("", "/all")])
        .args(["--mount", &mount("sub", "/sub")])
        .args(["--mount", &mount("sub", "/again")])
        .arg("--mount")
        .arg(format!(
            "pass={}:/sub/deep",
            place.path("host").join("other").display()
        ));
    let script = "for f in /all/sub/f /sub/f /again/f /all/sub/deep/f; do readlink /proc/self/fd/0 < $f; done";
    let ended = finish(run.args(["--", "/bin/sh", "-c", script])).expect(0);
    assert_eq!(ended.text(), "/sub/f\n/sub/f\n/sub/f\n/again/deep/f\n");
}
