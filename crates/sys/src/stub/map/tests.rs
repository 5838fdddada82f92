use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread;

use std::os::fd::AsRawFd;

use super::*;

fn stat(value: u64) -> Attributes {
    let mut words = [value; STAT_SIZE / 8];
    words[1] = value >> 32;
    Attributes {
        stat: words.map(u64::to_ne_bytes).concat().try_into().unwrap(),
        statx: [value; STATX_SIZE / 8]
            .map(u64::to_ne_bytes)
            .concat()
            .try_into()
            .unwrap(),
    }
}

#[test]
fn the_code_fits_and_nobody_else_can_write() {
    let map = AttributeMap::new().unwrap();
    let code = super::super::map_code();
    assert!((200..CODE_SIZE).contains(&code.len()), "{}", code.len());
    let mut there = vec![0; code.len()];
    memfile::pread(map.file(), &mut there, 0).unwrap();
    assert_eq!(there, code);
    let path = format!("/proc/self/fd/{}", map.file().as_raw_fd());
    let again = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    assert_eq!(memfile::pwrite(again.as_fd(), b"x", 0), Err(Errno::EPERM));
    assert!(memfile::set_len(again.as_fd(), 0).is_err());
}

#[test]
fn files_do_not_displace_directories() {
    let map = AttributeMap::new().unwrap();
    let of_mode = |mode: u32, ino: u64| {
        let mut attributes = stat(ino);
        attributes.stat[8..16].copy_from_slice(&ino.to_ne_bytes());
        attributes.stat[24..28].copy_from_slice(&mode.to_ne_bytes());
        attributes
    };
    let directories = [1u64, 2, 700, 6766, 17711];
    let put = |mode: u32, ino: u64| map.put(ino, &of_mode(mode, ino), true);
    let slots = directories.map(|ino| put(libc::S_IFDIR, ino));
    for ino in (1..60_000).filter(|ino| !directories.contains(ino)) {
        put(libc::S_IFREG, ino);
    }
    for (ino, slot) in directories.into_iter().zip(slots) {
        assert_eq!(map.slot_of(ino), Some(slot), "{ino}");
    }
    // A new slot of the same inode replaces the one before.
    let again = put(libc::S_IFDIR, 700);
    assert_eq!((map.slot_of(700), map.read(slots[2])), (Some(again), None));
    map.invalidate(700);
    assert_eq!((map.slot_of(700), map.read(again)), (None, None));
}

/// The paths of a tree, with a few more than half of the entries, and names that are alike.
#[test]
fn most_paths_of_a_tree_are_there_at_once() {
    let map = AttributeMap::new().unwrap();
    map.set_closed(false);
    let dir = map.put(1, &stat(1 << 32), true);
    let target = map.put(2, &stat(2 << 32), true);
    let paths = || (0..9000).map(|n| format!("d{:02}/f{:02}.c", n / 100, n % 100));
    for path in paths() {
        map.put_path(dir.id(), path.as_bytes(), &[dir], Some(target));
    }
    let found = paths().filter(|path| {
        let found = map.find(dir.id(), path.as_bytes());
        assert!(found.is_none() || found == Some(Some(target)), "{path}");
        found.is_some()
    });
    let found = found.count();
    assert!(found > 8500, "{found}");
    // Paths that are not valid are replaced first, and those that are there already keep their entries.
    map.invalidate(1);
    let dir = map.put(1, &stat(1 << 32), true);
    for path in paths().chain(paths()) {
        map.put_path(dir.id(), path.as_bytes(), &[dir], Some(target));
    }
    let found = paths().filter(|path| map.find(dir.id(), path.as_bytes()).is_some());
    let found = found.count();
    assert!(found > 8500, "{found}");
}

#[test]
fn a_path_is_invalid_as_soon_as_something_on_its_way_changes() {
    let map = AttributeMap::new().unwrap();
    map.set_closed(false);
    let run = map.new_id();
    let put = |ino: u64| map.put(ino, &stat(ino << 32), true);
    let (root, dir, file) = (put(1), put(2), put(3));
    map.put_path(run, b"/amino/d/f", &[root, dir], Some(file));
    map.put_path(dir.id(), b"f", &[dir], Some(file));
    map.put_path(run, b"/amino/d/no", &[root, dir], None);
    assert_eq!(map.find(run, b"/amino/d/f"), Some(Some(file)));
    assert_eq!(map.find(dir.id(), b"f"), Some(Some(file)));
    assert_eq!(map.find(run, b"/amino/d/no"), Some(None));
    assert_eq!(map.find(run + 1000, b"/amino/d/f"), None, "another run's");
    assert_eq!(map.read(file), Some(stat(3 << 32)));
    assert_eq!(map.slot_of(3), Some(file));
    map.invalidate(3);
    assert_eq!((map.read(file), map.slot_of(3)), (None, None));
    let changed = 3 << 32 | 1;
    let file = map.put(3, &stat(changed), true);
    assert_eq!(map.read(file), Some(stat(changed)));
    map.invalidate(2);
    assert_eq!(map.find(run, b"/amino/d/f"), None);
    assert_eq!(map.find(run, b"/amino/d/no"), None);
    assert_eq!(map.find(dir.id(), b"f"), None);
    assert_eq!((map.slot_of(1), map.slot_of(2)), (Some(root), None));
    map.put_path(run, &[b'a'; PATH_MAX + 1], &[root], None);
    map.put_path(run, b"deep", &[root; DIRS_MAX + 1], None);
    assert_eq!(map.find(run, b"deep"), None);
}

#[test]
fn an_object_displaces_one_that_leads_nowhere_first() {
    let map = AttributeMap::new().unwrap();
    let slot = |ino: u64| map.put(ino, &stat(ino << 32), true);
    let of_set = |first: u64| {
        let same = move |ino: &u64| first_of_ways(*ino) == first_of_ways(first);
        (first..).filter(same).take(WAYS + 2)
    };
    let inos: Vec<u64> = of_set(1).collect();
    let [others @ .., late, last] = &*inos else {
        panic!()
    };
    let kept = slot(77);
    for ino in others {
        map.put_object(0, *ino, kept);
    }
    let all_kept = || {
        others
            .iter()
            .filter(|ino| map.object(0, **ino) == Some(kept))
    };
    assert_eq!(all_kept().count(), WAYS);
    let gone = slot(78);
    map.put_object(0, others[0], gone);
    map.invalidate(78);
    map.put_object(0, *late, kept);
    assert_eq!(
        (map.object(0, *late), all_kept().count()),
        (Some(kept), WAYS - 1)
    );
    map.put_object(0, *last, kept);
    assert_eq!(map.object(0, *last), Some(kept));
    map.forget_object(0, *last);
    assert_eq!(map.object(0, *last), None);
    assert_eq!(map.object(5, others[1]), None, "of another space");
}

#[test]
fn paths_on_the_host_lead_to_a_slot_with_the_hosts_attributes() {
    let map = AttributeMap::new().unwrap();
    map.set_closed(false);
    let run = map.new_id();
    let host = [7; STAT_SIZE];
    let slot = map.put_with_host(3, &stat(3 << 32), (&host, false));
    map.put_path_on_host(run, b"/m/f", b"/host/f", slot);
    assert_eq!(map.find(run, b"/m/f"), Some(Some(slot)));
    // Another name of the same file.
    assert_eq!(map.put_with_host(3, &stat(3 << 32), (&host, false)), slot);
    let again = map.put_with_host(3, &stat(3 << 32), (&[8; STAT_SIZE], false));
    assert_eq!(
        (map.read(slot), map.read(again)),
        (None, Some(stat(3 << 32)))
    );
    let start = map.start_on_host(run, 17);
    assert_eq!(map.start_on_host(run, 17), start);
    assert_ne!(map.start_on_host(run, 18), start);
    map.forget_object(run, 17);
    assert_ne!(
        map.start_on_host(run, 17),
        start,
        "another directory's number"
    );
    let at = paths_at(hash(run, b"/m/f")).find(|at| map.word(at + 48).load(Relaxed) != 0);
    let mut text = [0; 8];
    memfile::pread(
        map.file(),
        &mut text,
        (at.unwrap() + HOST_PATHS_AT - PATHS_AT) as u64,
    )
    .unwrap();
    assert_eq!(&text, b"/host/f\0");
    map.put_path_on_host(run, b"/m/long", &[b'a'; HOST_PATHS_MAX + 1], again);
    assert_eq!(map.find(run, b"/m/long"), None);
    map.put_object_on_host(99, b"/host/f", again);
    let object = map.object(0, 99).unwrap();
    let entry = object.offset as usize;
    assert_eq!(map.word(entry).load(Relaxed), object.id);
    assert!(
        map.is_valid_path(entry)
            && paths_at(hash(NO_START, &99u64.to_ne_bytes())).any(|at| at == entry)
    );
    map.put_object_on_host(98, &[b'a'; HOST_PATHS_MAX + 1], again);
    assert_eq!(map.object(0, 98), None);
}

#[test]
fn a_name_that_is_missing_on_the_host_has_both_paths() {
    let map = AttributeMap::new().unwrap();
    map.set_closed(false);
    let run = map.new_id();
    map.put_missing_on_host(run, b"/m/none", (b"/host", b"none"), (1, 2));
    assert_eq!(map.find(run, b"/m/none"), Some(None));
    let mut at = paths_at(hash(run, b"/m/none"));
    let at = at.find(|&at| map.word(at).load(Relaxed) != 0).unwrap();
    let mut texts = [0; 24];
    let from = at + HOST_PATHS_AT - PATHS_AT;
    memfile::pread(map.file(), &mut texts, from as u64).unwrap();
    assert_eq!(&texts[..17], b"/host\0/host/none\0");
    let words = [0, 8, 16].map(|offset| map.word(at + PATH_DIRS + offset).load(Relaxed));
    assert_eq!(words, [1, 2, 6]);
    let long = [b'a'; HOST_PATHS_MAX / 2];
    map.put_missing_on_host(run, b"/m/long", (&long, b"x"), (1, 2));
    assert_eq!(map.find(run, b"/m/long"), None);
}

#[test]
fn a_descriptor_is_shared_while_the_slot_has_its_id() {
    let map = AttributeMap::new().unwrap();
    let (run, other) = (map.new_id(), map.new_id());
    let slot = map.put(3, &stat(3 << 32), true);
    assert!(!map.shares_descriptor(slot, run));
    map.share_descriptor(slot, run, (17, 99));
    assert!(map.shares_descriptor(slot, run) && !map.shares_descriptor(slot, other));
    assert_eq!(map.read(slot), Some(stat(3 << 32)));
    let again = map.put(3, &stat(3 << 32), true);
    assert!(!map.shares_descriptor(slot, run) && !map.shares_descriptor(again, run));
    map.share_descriptor(slot, run, (17, 99));
    assert!(!map.shares_descriptor(again, run), "by a former id");
    map.share_descriptor(again, run, (17, 99));
    assert_eq!(map.descriptors_left(), 1);
    map.withdraw(slot, run);
    map.withdraw(again, other);
    assert!(map.shares_descriptor(again, run));
    assert_eq!(map.descriptors_left(), 1);
    map.withdraw(again, run);
    assert_eq!(map.descriptors_left(), 2);
    assert!(!map.shares_descriptor(again, run));
    assert_eq!(map.read(again), None);
}

/// Writers replace attributes, each with all words alike. A reader sees words of one of them, and never one older than what was complete before
/// it began.
#[test]
fn readers_see_whole_attributes_and_none_that_were_replaced_before() {
    let map = Arc::new(AttributeMap::new().unwrap());
    // Of each inode: its slot, as last published, and the value of that.
    let published = Arc::new([1u64, 2, 3].map(|ino| {
        let value = ino << 32;
        Mutex::new((map.put(ino, &stat(value), true), value))
    }));
    let over = Arc::new(AtomicBool::new(false));
    let writer = |seed: u64| {
        let (map, published) = (Arc::clone(&map), Arc::clone(&published));
        thread::spawn(move || {
            for round in 0..40_000 {
                let ino = 1 + (round * 7 + seed) % 3;
                let mut state = published[ino as usize - 1].lock().unwrap();
                map.invalidate(ino);
                let value = state.1 + 1;
                *state = (map.put(ino, &stat(value), true), value);
            }
        })
    };
    let reader = |index: usize| {
        let (map, published, over) = (Arc::clone(&map), Arc::clone(&published), Arc::clone(&over));
        thread::spawn(move || {
            let (mut whole, mut torn) = (0u64, 0u64);
            while !over.load(Relaxed) || whole == 0 {
                let (slot, value) = *published[index].lock().unwrap();
                match map.read(slot) {
                    Some(read) => {
                        assert_eq!(read, stat(value));
                        whole += 1;
                    }
                    None => torn += 1,
                }
            }
            (whole, torn)
        })
    };
    let readers: Vec<_> = (0..3).map(reader).collect();
    let writers: Vec<_> = (0..2).map(writer).collect();
    writers
        .into_iter()
        .for_each(|writer| writer.join().unwrap());
    over.store(true, Relaxed);
    for reader in readers {
        let (whole, _) = reader.join().unwrap();
        assert!(whole > 0);
    }
}
