//! Programs below another root directory, with a /proc of its own, natively and in mounts.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use goanna_tests::{Backend, Engine, Intercept, Place, User, finish, is_root};

/// Makes a root directory, and runs programs in it.
const SCRIPT: &str = r##"
    mkdir -p root/bin root/etc root/proc root/tmp
    for program in bash cat ls readlink ln; do cp $(command -v $program) root/bin; done
    for library in $(ldd root/bin/* | grep -o '/lib[^ ]*' | sort -u); do
        mkdir -p root/${library%/*}
        cp $library root/$library
    done
    echo name > root/etc/name
    printf '#!/bin/bash\necho script $0 "$*"; cat ../etc/name\n' > root/etc/script
    chmod 755 root/etc/script
    mount -t proc proc root/proc
    chroot root /bin/bash -c '
        pwd; ls /; cd /etc; pwd; ./script argument; /etc/script; cat ../../../etc/name
        ln -s /etc/name /tmp/link; cat /tmp/link; readlink -f /tmp/link
        readlink -f /proc/self/exe; readlink /proc/self/root /proc/self/cwd; cat /proc/self/comm
        exec 3< /etc/name; cat /proc/self/fd/3; readlink /proc/self/fd/3
        cd /proc/self/; pwd -P > /dev/null; cat comm; cat ../../etc/name ../../../etc/name; cd /; ls proc/../etc; ls /usr 2>&1
        (cat /proc/self/mounts; ls /proc/1/) > /proc/self/fd/2 2> /tmp/out'
    status=$?
    umount root/proc
    ls root/tmp root/proc
    exit $status
"##;

fn outcome(command: &mut Command) -> (i32, String) {
    let ended = finish(command);
    (ended.status, ended.text())
}

#[test]
fn programs_run_below_another_root() {
    if !is_root() {
        goanna_skip::skip(
            goanna_skip::Facility::Root,
            "chroot(2) is for the superuser",
        );
        return;
    }
    let native = {
        let place = Place::pass();
        let script = format!("cd {} && {SCRIPT}", place.path("native").display());
        outcome(place.native("bash").args(["-c", &script]))
    };
    assert!(native.1.contains("script /etc/script \nname"), "{native:?}");
    let back_ends = [
        (Backend::Pass, Intercept::Notify),
        (Backend::Aes, Intercept::Notify),
        (Backend::Amino(Engine::Fjall), Intercept::Notify),
        (Backend::Amino(Engine::Sled), Intercept::Ptrace),
    ];
    for (backend, intercept) in back_ends {
        let place = Place::new(backend, intercept, User::Own);
        assert_eq!(outcome(&mut place.shell(SCRIPT)), native, "{backend:?}");
        // A directory of the host.
        let script = format!("cd {} && {SCRIPT}", place.path("host").display());
        assert_eq!(
            outcome(&mut place.shell(&script)),
            native,
            "{backend:?}, host"
        );
        place.fsck();
    }
}

#[test]
fn a_pipe_is_opened_by_a_link_behind_a_mount() {
    for place in Place::stores() {
        let script = format!(
            "echo text | cat {top}/../proc/self/fd/0; exec 3< /etc/passwd; cmp {top}/../proc/self/fd/3 /etc/passwd; \
             cd /etc; readlink {top}/../proc/self/cwd; cmp {top}/../proc/self/cwd/passwd /etc/passwd",
            top = place.top()
        );
        let ended = finish(&mut place.shell(&script));
        assert_eq!(ended.expect(0).text(), "text\n/etc\n");
    }
}
