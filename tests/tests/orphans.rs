//! Files without a name are removed from the store while their run continues.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use goanna_tests::held::until;
use goanna_tests::{Held, Place, finish};

fn orphans(place: &Place) -> u64 {
    let ended = finish(place.amino_command("info").arg("--json")).expect(0);
    let info: serde_json::Value = serde_json::from_str(&ended.text()).unwrap();
    info["orphans"].as_u64().unwrap()
}

/// A directory that was listed has a backing directory, which kept it in memory, and in the store as an orphan, until the run
/// had ended.
#[test]
fn directories_that_were_listed_and_removed() {
    let place = Place::amino();
    let script = "for i in $(seq 50); do mkdir d; ls d; rmdir d; done; %GO%";
    let held = Held::new(&place, "lists", &[], script);
    until("no orphan is left", || orphans(&place) == 0);
    assert_eq!(held.go(), 0);
    place.fsck();
}

/// As above, for a file that was mapped shared.
#[test]
fn files_that_were_mapped_and_removed() {
    let place = Place::amino();
    let program = "import mmap\nf=open('f','w+b')\nf.truncate(100000)\nm=mmap.mmap(f.fileno(),100000)\nm[9]=1\nm.flush()";
    let script = format!("python3 -c \"{program}\"; sync; rm f; sync; %GO%");
    let held = Held::new(&place, "maps", &[], &script);
    until("no orphan is left", || orphans(&place) == 0);
    assert_eq!(held.go(), 0);
    place.fsck();
}

/// Files that a program of the run has opened again and again, without the monitor, and that were removed: while the run lasts, and at its end, when another
/// run keeps the store open.
#[test]
fn files_that_were_opened_again_and_removed() {
    let place = Place::amino();
    let opens = "for i in $(seq 20); do echo text > f$i; done
        for j in {1..300}; do for i in {1..20}; do read -r line < f$i; done; done; rm f*";
    let held = Held::new(&place, "opens", &[], &format!("{opens}; %GO%"));
    until("no orphan is left", || orphans(&place) == 0);
    finish(&mut place.shell(opens)).expect(0);
    until("the second run has left none", || orphans(&place) == 0);
    assert_eq!(held.go(), 0);
    place.fsck();
}
