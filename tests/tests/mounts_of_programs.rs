//! Mounts that programs of a run make in its mounts (docs/decisions/0131). What single calls answer is compared in `compat.rs`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::time::{Duration, Instant};

use goanna_skip::{Facility, skip};
use goanna_tests::{Backend, Engine, Intercept, Place, User, finish, is_root};

const LIMIT: Duration = Duration::from_secs(30);

/// The places of these tests: every back end but images, as root.
fn places() -> Vec<Place> {
    if !is_root() {
        skip(Facility::Root, "only root can mount");
        return Vec::new();
    }
    let backends = [Backend::Amino(Engine::Fjall), Backend::Pass, Backend::Aes];
    let place = |backend, intercept| Place::new(backend, intercept, User::Own);
    let intercepts = [Intercept::Notify, Intercept::Ptrace];
    let places = backends
        .into_iter()
        .flat_map(|backend| intercepts.map(|intercept| place(backend, intercept)));
    places.collect()
}

/// A source of mounts that no other process of the tests uses.
fn source() -> String {
    format!("of-test-{}", std::process::id())
}

/// Lines of the host's list of mounts with this source.
fn mounted(source: &str) -> usize {
    let list = fs::read_to_string("/proc/self/mounts").unwrap();
    list.lines().filter(|line| line.starts_with(source)).count()
}

#[test]
fn they_end_with_the_run() {
    for place in places() {
        if place.backend() == Backend::Pass {
            // They are the host's, as the directory is.
            continue;
        }
        let source = source();
        let script = format!(
            "mkdir d; mount -t tmpfs {source} d && touch d/f && mkdir d/e && cd d/e && cd ../..; mount -t tmpfs {source} d; cd d"
        );
        finish(&mut place.shell(&script)).expect(0);
        assert_eq!(mounted(&source), 0);
        let ended = finish(&mut place.shell("ls d"));
        assert_eq!((ended.text().as_str(), ended.status), ("", 0));
    }
}

/// The next run removes what a killed monitor has left, and nothing in the file systems.
#[test]
fn a_killed_monitor_leaves_them_to_the_next_run() {
    for place in places() {
        if place.backend() == Backend::Pass {
            continue;
        }
        let kept = place.make_dir("kept");
        fs::write(kept.join("file"), "").unwrap();
        // Every process that traces this one, or has made its mounts, is the monitor.
        let script = format!(
            "mkdir d && mount --bind {kept} d && mount -t tmpfs killed-{source} d; kill -9 $(sed -n 's/^TracerPid:\t//p' /proc/self/status); sleep 10",
            kept = kept.display(),
            source = source(),
        );
        let ended = finish(&mut place.shell(&script));
        assert_ne!(ended.status, 0, "{}", ended.errors());
        // While the killed process is ending, its directory still looks like one in use.
        let begun = Instant::now();
        while mounted(&format!("killed-{}", source())) > 0 {
            assert!(begun.elapsed() < LIMIT, "{}", ended.errors());
            finish(&mut place.shell("true")).expect(0);
        }
        assert!(kept.join("file").exists());
    }
}

/// Every call finds what is mounted, or what that covers.
#[test]
fn they_come_and_go_while_others_look() {
    for place in places() {
        let script = r#"
            mkdir d; echo under > d/name
            look() {
                while ! test -e stop; do
                    cat d/name || echo "cat: $?"
                    (cd d && cat name) || echo "cd: $?"
                    stat -c %F d; ls d
                done
            }
            look > one 2>&1 & look > two 2>&1 &
            for i in $(seq 10); do
                mount -t tmpfs over d || echo "mount: $?"
                echo over > d/name
                umount d 2>&- || umount -l d || echo "umount: $?"
            done
            touch stop; wait
            cat d/name; sort -u one two | grep -v "No such file"
            # Nothing keeps it busy that has ended.
            mount -t tmpfs over d; ls d; cat d/name; cp /bin/true d; d/true; umount d; echo "umount: $?"
        "#;
        let ended = finish(&mut place.shell(script));
        let text = ended.text();
        let mut lines: Vec<&str> = text.lines().collect();
        // Between mount(2) and the write the file is missing, or empty.
        lines.retain(|line| !matches!(*line, "cat: 1" | "cd: 1"));
        let expected = ["under", "directory", "name", "over", "under", "umount: 0"];
        assert_eq!(lines, expected, "{}: {}", ended.how(), ended.errors());
    }
}

/// As `bwrap --ro-bind / /` has it.
#[test]
fn a_mount_is_read_only_where_the_directory_around_it_is() {
    for place in places() {
        let script = format!(
            "unshare -m sh -c 'cd /; mount -o remount,bind,ro / && ! touch {top}/f 2>/dev/null && ls {top} && mount -o remount,bind,rw / && touch {top}/f && \
             echo written'; ls {top}",
            top = place.top(),
        );
        let ended = finish(&mut place.shell(&script));
        let found = (ended.text(), ended.status);
        assert_eq!(found, ("written\nf\n".to_owned(), 0), "{}", ended.errors());
    }
}
