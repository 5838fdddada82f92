//! Two runs that have one volume: neither damages a file that the other one changes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Barrier;

use goanna_vfs::FileSystem;
use support::{Handle, Mounted, Place};

fn open_in_both<'a>(first: &'a Mounted, second: &'a Mounted, name: &[u8]) -> [Handle; 2] {
    let file = first.create(name);
    [file, second.open(name, libc::O_RDWR).unwrap()]
}

/// The stored content, read by a third run, which checks the volume.
fn stored(place: &Place, name: &[u8]) -> Vec<u8> {
    let content = place.mount().get(name);
    assert_eq!(place.findings(), []);
    content.unwrap()
}

#[test]
fn both_begin_one_empty_file() {
    let place = Place::usual();
    let (first, second) = (place.mount(), place.mount());
    let [mine, theirs] = open_in_both(&first, &second, b"f");
    first.write(&mine, 0, &[b'a'; 100]).unwrap();
    second.write(&theirs, 4000, &[b'b'; 1000]).unwrap();
    // The block ends where the first run's ended, if that run does not see that the file has grown.
    first.write(&mine, 100, &[b'c'; 10]).unwrap();
    let wanted = [
        &[b'a'; 100][..],
        &[b'c'; 10],
        &[0; 4000 - 110],
        &[b'b'; 1000],
    ];
    assert_eq!(stored(&place, b"f"), wanted.concat());
    assert_eq!(first.read(&mine), wanted.concat());
    first.close(mine);
    second.close(theirs);
}

#[test]
fn one_truncates_what_the_other_writes() {
    let place = Place::usual();
    let (first, second) = (place.mount(), place.mount());
    let [mine, theirs] = open_in_both(&first, &second, b"f");
    first.write(&mine, 0, &[b'a'; 10_000]).unwrap();
    second.fs.truncate(&second.caller, &theirs.node, 0).unwrap();
    second.write(&theirs, 0, b"new").unwrap();
    first.write(&mine, 5, b"late").unwrap();
    assert_eq!(stored(&place, b"f"), b"new\0\0late");
    first.fs.truncate(&first.caller, &mine.node, 2).unwrap();
    second.write(&theirs, 2, b"!").unwrap();
    assert_eq!(stored(&place, b"f"), b"ne!");
    first.close(mine);
    second.close(theirs);
}

/// A block is stored as a whole, so the first run has to know what the second one has written to it.
#[test]
fn both_write_to_one_block() {
    let place = Place::usual();
    let (first, second) = (place.mount(), place.mount());
    first.put(b"f", &[b'.'; 60]);
    let [mine, theirs] = [&first, &second].map(|run| run.open(b"f", libc::O_RDWR).unwrap());
    first.write(&mine, 0, b"mine").unwrap();
    second.write(&theirs, 20, b"theirs").unwrap();
    first.write(&mine, 40, b"mine again").unwrap();
    let wanted = b"mine................theirs..............mine again..........";
    assert_eq!(stored(&place, b"f"), wanted);
    assert_eq!(first.read(&mine), wanted);
    first.close(mine);
    second.close(theirs);
}

/// Size and file id stay the same.
#[test]
fn a_content_from_before_a_change_of_the_other_run_is_not_kept_after_the_close() {
    let place = Place::usual();
    let (first, second) = (place.mount(), place.mount());
    for (name, writes_too, wanted) in [(b"f", false, b"one 222"), (b"g", true, b"ONE 333")] {
        first.put(name, b"one one");
        let [mine, theirs] = [&first, &second].map(|run| run.open(name, libc::O_RDWR).unwrap());
        if writes_too {
            first.write(&mine, 0, b"ONE").unwrap();
        }
        second.write(&theirs, 4, &wanted[4..]).unwrap();
        second.close(theirs);
        first.close(mine);
        assert_eq!(first.get(name).unwrap(), wanted);
    }
}

/// The content of a mapping cannot be replaced: it is stored as a whole.
#[test]
fn one_truncates_what_the_other_maps() {
    let place = Place::usual();
    let (first, second) = (place.mount(), place.mount());
    let [mine, theirs] = open_in_both(&first, &second, b"f");
    first.write(&mine, 0, &[b'a'; 10_000]).unwrap();
    let content = first.fs.content().unwrap();
    content.map_shared(&first.caller, &mine.node).unwrap();
    second.fs.truncate(&second.caller, &theirs.node, 0).unwrap();
    second.write(&theirs, 0, b"new").unwrap();
    content.sync_mapped(&mine.node, 0..4096, true).unwrap();
    assert_eq!(stored(&place, b"f"), [b'a'; 10_000]);
    first.close(mine);
    second.close(theirs);
}

/// Both make the header at the same time, again and again.
#[test]
fn both_write_at_once() {
    let place = Place::usual();
    let (first, second) = (place.mount(), place.mount());
    let round = Barrier::new(2);
    for number in 0..200 {
        let name = format!("f{number}").into_bytes();
        let [mine, theirs] = open_in_both(&first, &second, &name);
        let write = |mounted: &Mounted, file: Handle, letter: u8| {
            round.wait();
            for at in 0..4 {
                let at = u64::from(letter == b'b') * 4096 + at * 8192;
                mounted.write(&file, at, &[letter; 4096]).unwrap();
            }
            mounted.close(file);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| write(&first, mine, b'a'));
            write(&second, theirs, b'b');
        });
        let content = place.mount().get(&name).unwrap();
        assert_eq!(content, [[b'a'; 4096], [b'b'; 4096]].concat().repeat(4));
    }
    assert_eq!(place.findings(), []);
}
