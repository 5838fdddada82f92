//! Images with false records: each is an error that names the position, and costs little time and memory.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says so by failing"
)]

mod support;

use std::ops::ControlFlow;
use std::sync::Arc;

use goanna_isofs::{Entry, Error, Iso, Namespace, Options, Visit, read_everything};
use support::{
    FREE, Image, ROOT, Rec, SECTOR, ce, cl, content, directory, field, find, names, nm, px, sp,
    starts,
};

/// The error of listing the root.
fn root_error(image: &Image) -> String {
    let iso = image.open().unwrap();
    iso.list(iso.root()).unwrap_err().to_string()
}

/// The error of the only name of the root. The name is listed nevertheless, but every other use of it fails.
fn name_error(image: &Image) -> String {
    let iso = image.open().unwrap();
    let entries = iso.list(iso.root()).unwrap();
    let [entry] = &entries[..] else {
        panic!("{entries:?}");
    };
    let error = iso.check_record(entry).unwrap_err();
    assert_eq!(error.errno(), goanna_vfs::Errno::EUCLEAN);
    let error = error.to_string();
    let others = [
        iso.check_content(entry),
        iso.read_at(entry, 0, &mut [0]).map(|_| ()),
        iso.readlink(entry).map(|_| ()),
    ];
    for other in others {
        assert_eq!(other.unwrap_err().to_string(), error);
    }
    let (entries, errors) = walk(&iso);
    assert_eq!((entries, errors), (1, vec![error.clone()]));
    error
}

/// The errors of a walk over everything.
fn walk(iso: &Iso) -> (usize, Vec<String>) {
    let (mut entries, mut errors) = (0, Vec::new());
    iso.walk(iso.root(), &mut |visit| {
        match visit {
            Visit::Entry(_) => entries += 1,
            Visit::Unreadable(_, error) => errors.push(error.to_string()),
        }
        assert!(entries < 10_000, "the walk does not end");
        ControlFlow::Continue(())
    });
    (entries, errors)
}

const ROOT_AT: usize = ROOT as usize * SECTOR;

#[test]
fn no_image_at_all() {
    for bytes in [
        vec![],
        vec![0; 2048],
        vec![0xff; 40 * SECTOR],
        vec![0; 16 * SECTOR + 7],
    ] {
        let error = Iso::open(bytes, &Options::default()).unwrap_err();
        assert!(matches!(error, Error::NotIso { offset: 32768 }), "{error}");
    }
}

#[test]
fn descriptors_without_an_end() {
    let mut image = Image::new(200);
    for sector in 16..200 {
        image.descriptor(sector, 3, b"   ");
    }
    image.descriptor(16, 1, b"   ");
    let error = image.open().unwrap_err().to_string();
    starts(
        &error,
        "volume descriptor at byte 163840: no terminator within 64",
    );
}

#[test]
fn a_block_size_that_is_none() {
    let mut image = Image::new(30);
    image.put(16 * SECTOR + 128, &[0, 3, 3, 0]);
    let error = image.open().unwrap_err().to_string();
    assert_eq!(
        error,
        "volume descriptor at byte 32768: a logical block of 768 bytes"
    );
}

#[test]
fn a_root_that_is_not_there() {
    let image = Image::new(30);
    let error = image.open().unwrap_err().to_string();
    starts(&error, "directory record at byte 40960: 0 bytes long");
    let mut image = Image::new(30);
    image.rock(&[]);
    image.bytes.truncate(19 * SECTOR);
    let error = image.open().unwrap_err().to_string();
    starts(
        &error,
        "directory at byte 40960: its 34 bytes end beyond the image, which has 38912",
    );
}

/// Of the root's record in the descriptor only the place counts.
#[test]
fn a_root_record_of_another_length() {
    for (len, name_len) in [(68, 1), (0, 0), (34, 255)] {
        let mut image = Image::new(30);
        image.rock(&[Rec::file(b"A", FREE, 0)]);
        image.put(16 * SECTOR + 156, &[len]);
        image.put(16 * SECTOR + 156 + 32, &[name_len]);
        let iso = image.open().unwrap();
        assert_eq!(names(&iso, iso.root()), ["a"]);
    }
}

#[test]
fn a_directory_of_four_gigabytes_in_a_small_image() {
    let mut image = Image::new(30);
    let mut own = Rec::dir(&[0], ROOT).with(&[sp(), px(0o40755, 2, None)]);
    own.len = u32::MAX - 2047;
    image.put_block(ROOT, &own.bytes());
    starts(
        &root_error(&image),
        "directory at byte 40960: 4294965248 bytes long; at most 134217728",
    );
    own.len = 100 << 20;
    image.put_block(ROOT, &own.bytes());
    starts(
        &root_error(&image),
        "directory at byte 40960: its 104857600 bytes end beyond",
    );
    assert_eq!(
        read_everything(&image.bytes),
        6,
        "the root: three choices of names, two of sessions"
    );
}

#[test]
fn records_too_short_for_what_they_hold() {
    let place = ROOT_AT
        + directory(ROOT, ROOT, &[sp(), px(0o40755, 2, None)], &[])
            .chunks(SECTOR)
            .next()
            .map_or(0, |sector| {
                sector.iter().rposition(|byte| *byte != 0).unwrap() + 1
            })
            .next_multiple_of(2);
    // The length of the record, and of the name in it.
    for (len, name_len) in [(20, 1), (33, 0), (34, 0), (40, 30), (255, 255)] {
        let mut image = Image::new(30);
        image.rock(&[Rec::file(b"A", FREE, 0)]);
        let at = image.bytes[place..]
            .iter()
            .position(|byte| *byte == 34)
            .unwrap()
            + place;
        image.put(at, &[len]).put(at + 32, &[name_len]);
        starts(
            &root_error(&image),
            &format!("directory record at byte {at}: "),
        );
    }
}

#[test]
fn continuation_areas() {
    let with = |fields: &[Vec<u8>], areas: &[(u32, Vec<u8>)]| {
        let mut image = Image::new(120);
        image.rock(&[Rec::file(b"A", FREE, 0).with(fields)]);
        for (block, bytes) in areas {
            image.put_block(*block, bytes);
        }
        name_error(&image)
    };
    let itself = with(&[ce(25, 0, 28)], &[(25, ce(25, 0, 28))]);
    assert_eq!(
        itself,
        "continuation area at byte 51200: it continues itself"
    );
    let pair = with(
        &[ce(25, 0, 28)],
        &[(25, ce(26, 0, 28)), (26, ce(25, 0, 28))],
    );
    assert_eq!(pair, "continuation area at byte 51200: it continues itself");
    let chain: Vec<_> = (25..95)
        .map(|block| (block, ce(block + 1, 0, 28)))
        .collect();
    let chain = with(&[ce(25, 0, 28)], &chain);
    starts(&chain, "continuation area at byte 182272: too many");
    let beyond = with(&[ce(4_000_000, 5, 28)], &[]);
    starts(
        &beyond,
        "continuation area at byte 8192000005: its 28 bytes end beyond",
    );
    let huge = with(&[ce(25, 0, u32::MAX)], &[]);
    assert_eq!(
        huge,
        "continuation area at byte 51200: 4294967295 bytes long"
    );
    let far = with(&[ce(u32::MAX, u32::MAX, 28)], &[]);
    starts(&far, "continuation area at byte 8800387987455");
}

#[test]
fn system_use_fields() {
    let with = |fields: &[Vec<u8>]| {
        let mut image = Image::new(30);
        image.rock(&[Rec::file(b"A", FREE, 0).with(fields)]);
        name_error(&image)
    };
    for len in [0, 3, 200] {
        let mut bad = px(0o100644, 1, None);
        bad[2] = len;
        let error = with(&[bad]);
        starts(&error, "System Use field PX at byte ");
        assert!(
            error.ends_with(&format!("its length of {len} is wrong")),
            "{error}"
        );
    }
    let short = with(&[field(b"PX", &[0; 8])]);
    starts(&short, "System Use field PX at byte ");
    assert!(short.contains("too short for 4 at 12"), "{short}");
    starts(&with(&[px(0o040755, 1, None)]), "directory record at byte ");
    starts(&with(&[px(0o150644, 1, None)]), "directory record at byte ");
    assert!(with(&[px(0o030644, 1, None)]).contains("mode 30644"));
}

#[test]
fn names_that_no_directory_can_show() {
    for name in [&b"a/b"[..], b"a\0b", b".", b"..", b""] {
        let mut image = Image::new(30);
        image.rock(&[Rec::file(b"A", FREE, 0).with(&[px(0o100644, 1, None), nm(name)])]);
        starts(&root_error(&image), "directory record at byte 41");
    }
    let mut image = Image::new(30);
    image.joliet(&[Rec::file(b"\0A\0", FREE, 0)]);
    let error = root_error(&image);
    assert!(
        error.contains("a Joliet name of 3 bytes, an odd number"),
        "{error}"
    );
}

#[test]
fn directories_within_themselves() {
    let mut image = Image::new(40);
    image.rock(&[Rec::dir(b"D", 24)]);
    image.put_block(
        24,
        &directory(24, ROOT, &[], &[Rec::dir(b"E", 25), Rec::dir(b"UP", ROOT)]),
    );
    image.put_block(
        25,
        &directory(25, 24, &[], &[Rec::dir(b"F", 24), Rec::dir(b"G", 25)]),
    );
    let iso = image.open().unwrap();
    for path in ["d/e/f", "d/e/g", "d/up"] {
        let error = iso.list(&find(&iso, path)).unwrap_err().to_string();
        assert!(error.ends_with("it lies within itself"), "{path}: {error}");
        let inside = format!("{path}/e");
        assert!(iso.resolve(inside.as_bytes()).is_err(), "{inside}");
    }
    let (entries, errors) = walk(&iso);
    assert_eq!((entries, errors.len()), (6, 3), "{errors:?}");
}

/// A cached directory may have been read by another path; a loop must be detected on each path.
#[test]
fn a_loop_entered_in_two_places() {
    let mut image = Image::new(40);
    image.rock(&[Rec::dir(b"X", 24), Rec::dir(b"Z", 25)]);
    image.put_block(24, &directory(24, ROOT, &[], &[Rec::dir(b"Z", 25)]));
    image.put_block(25, &directory(25, ROOT, &[], &[Rec::dir(b"X", 24)]));
    let iso = image.open().unwrap();
    assert_eq!(names(&iso, &find(&iso, "z")), ["x"]);
    assert_eq!(names(&iso, &find(&iso, "x")), ["z"]);
    for path in ["x/z/x", "z/x/z"] {
        let entry = find(&iso, path);
        assert_eq!(entry.path(), path.as_bytes());
        assert!(iso.list(&entry).is_err(), "{path}");
    }
}

#[test]
fn relocated_directories_that_lead_back() {
    let mut image = Image::new(40);
    let placeholder = Rec::file(b"R", 30, 0).with(&[cl(ROOT)]);
    image.rock(&[placeholder, Rec::file(b"S", 30, 0).with(&[cl(24)])]);
    let again = Rec::file(b"T", 30, 0).with(&[cl(24)]);
    image.put_block(24, &directory(24, ROOT, &[px(0o40700, 2, None)], &[again]));
    let iso = image.open().unwrap();
    assert_eq!(names(&iso, iso.root()), ["r", "s"]);
    for path in ["r", "s/t"] {
        let error = iso.list(&find(&iso, path)).unwrap_err().to_string();
        assert!(error.ends_with("it lies within itself"), "{error}");
    }
    for (target, what) in [
        (31, "directory record"),
        (4_000_000, "directory"),
        (u32::MAX, "directory"),
    ] {
        let mut image = Image::new(40);
        image.rock(&[Rec::file(b"R", 30, 0).with(&[cl(target)])]);
        let place = u64::from(target) * 2048;
        starts(&name_error(&image), &format!("{what} at byte {place}: "));
    }
}

#[test]
fn files_beyond_the_image_are_listed_and_not_read() {
    let mut image = Image::new(30);
    let far = Rec::file(b"FAR", u32::MAX, 10);
    let long = Rec::file(b"LONG", 29, 4096);
    // Where nothing is recorded, the place does not matter: bsdtar writes -16.
    let empty = Rec::file(b"EMPTY", u32::MAX - 15, 0);
    image.rock(&[far, long, empty]);
    let iso = image.open().unwrap();
    assert_eq!(names(&iso, iso.root()), ["far", "long", "empty"]);
    let far = content(&iso, "far").unwrap_err().to_string();
    starts(
        &far,
        "file data at byte 8796093020160: its 10 bytes end beyond the image",
    );
    let long = content(&iso, "long").unwrap_err().to_string();
    starts(&long, "file data at byte 59392: its 4096 bytes end beyond");
    assert_eq!(content(&iso, "empty").unwrap(), b"");
    let file = find(&iso, "long");
    let mut buf = [0; 100];
    assert_eq!(
        iso.read_at(&file, 0, &mut buf).unwrap(),
        100,
        "what is there"
    );
    assert!(iso.read_at(&file, 2000, &mut buf).is_err());
}

#[test]
fn a_file_of_more_pieces_than_the_image_has_bytes() {
    let piece = Rec::file(b"A;1", 0, 60 * SECTOR as u32);
    let mut image = Image::new(60);
    let mut records = vec![piece.clone().flags(0x80); 5];
    records.push(piece);
    image.rock(&records);
    let iso = image.open().unwrap();
    assert_eq!(find(&iso, "a").size, 6 * 60 * SECTOR as u64);
    let error = content(&iso, "a").unwrap_err().to_string();
    assert!(error.ends_with("more bytes than the image"), "{error}");
}

#[test]
fn pieces_that_do_not_belong_together() {
    let first = Rec::file(b"A", FREE, 5).flags(0x80);
    let mut image = Image::new(30);
    image.rock(&[first.clone(), Rec::file(b"B", FREE, 5)]);
    assert!(root_error(&image).ends_with("another file's record was to follow here"));
    image.rock(&[first]);
    assert!(root_error(&image).ends_with("announced, and there is none"));
}

#[test]
fn what_is_refused_by_name() {
    let plain = Rec::file(b"I", FREE, 5);
    let interleaved = Rec {
        interleave: (1, 1),
        ..plain.clone()
    };
    let sparse = Rec::file(b"S", FREE, 5).with(&[field(b"SF", &[0; 17])]);
    let xz = field(b"ZF", b"XZ\x06\x0f\0\0\0\0\0\0\0\0");
    let mut xz_2 = xz.clone();
    xz_2[3] = 2;
    let packed = Rec::file(b"Z", FREE, 5).with(&[xz_2]);
    let host = field(b"SL", b"\0\x20\x04host");
    let link = Rec::file(b"L", FREE, 0).with(&[px(0o120777, 1, None), host]);
    let mut image = Image::new(30);
    image.rock(&[interleaved, sparse, packed, link]);
    let iso = image.open().unwrap();
    let why = |path| content(&iso, path).unwrap_err().to_string();
    assert!(why("i").ends_with("an interleaved file cannot be read"));
    assert!(why("s").ends_with("a sparse file (SF) cannot be read"));
    assert!(why("z").ends_with("a zisofs file compressed with xz cannot be read"));
    let error = iso.readlink(&find(&iso, "l")).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("a link to a host's name (HOST) cannot be read")
    );
    assert_eq!(error.errno(), goanna_vfs::Errno::EOPNOTSUPP);

    let mut image = Image::new(30);
    let elsewhere = Rec { volume: 2, ..plain };
    image
        .rock(&[elsewhere])
        .put(16 * SECTOR + 120, &[2, 0, 0, 2]);
    let iso = image.open().unwrap();
    let error = content(&iso, "i").unwrap_err().to_string();
    assert!(error.ends_with("a file on another volume of the set cannot be read"));
}

/// Both versions of the field for a compressed file, compared with headers and pointers.
#[test]
fn names_and_sessions_that_are_not_there() {
    let mut image = Image::new(30);
    image.plain(&[]);
    for namespace in [Namespace::RockRidge, Namespace::Joliet] {
        let error = image.open_as(namespace).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the image has no {namespace} names")
        );
    }
    for asked in [0, 2, u32::MAX] {
        let options = Options {
            session: Some(asked),
            ..Options::default()
        };
        let error = Iso::open(image.bytes.clone(), &options).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("no session {asked}: the image has 1")
        );
    }
}

/// Names and attributes that are unusual and no damage.
#[test]
fn what_is_odd_and_sound() {
    let fifo = Rec::file(b"P", 30, 0).with(&[px(0o010600, 1, None), nm(&[0xff, b'x'])]);
    let device = field(b"PN", &[8, 1].map(support::both32).concat());
    let device = Rec::file(b"DEV", 30, 0).with(&[px(0o060660, 1, None), device]);
    let hidden = Rec::file(b"HIDDEN", FREE, 5).flags(1);
    let fork = Rec::file(b"FORK", FREE, 5).flags(4);
    let moved = Rec::dir(b"MOVED", 26).with(&[support::re()]);
    let mut record = Rec::file(b"XAR", FREE - 1, 5);
    record.attributes = 1;
    let links = [Some(7), None].map(|serial| px(0o100644, 2, serial));
    let [with_serial, without] = links;
    let hard = |name: &[u8], px: &Vec<u8>| Rec::file(name, FREE, 5).with(std::slice::from_ref(px));
    let mut image = Image::new(30);
    image.rock(&[
        fifo,
        device,
        hidden,
        fork,
        moved,
        record,
        hard(b"H1", &with_serial),
        hard(b"H2", &with_serial),
        hard(b"H3", &without),
        hard(b"H4", &without),
        Rec::file(b"TWICE;2", FREE, 1),
        Rec::file(b"TWICE;1", FREE, 2),
        Rec::file(b"TWICE", FREE, 3),
    ]);
    image.put_block(FREE, b"hello");
    let iso = image.open().unwrap();
    let entries = iso.list(iso.root()).unwrap();
    let raw: Vec<&[u8]> = entries.iter().map(|entry| &*entry.name).collect();
    let expected: [&[u8]; 10] = [
        b"\xffx", b"dev", b"hidden", b"xar", b"h1", b"h2", b"h3", b"h4", b"twice;2", b"twice",
    ];
    assert_eq!(raw, expected);
    let entry = |name: &str| find(&iso, name);
    assert_eq!(entry("dev").rdev, libc::makedev(8, 1));
    assert!(entry("hidden").hidden);
    assert_eq!(content(&iso, "xar").unwrap(), b"hello");
    assert_eq!(entry("h1").ino, entry("h2").ino);
    assert_eq!(entry("h3").ino, entry("h4").ino);
    assert_ne!(entry("h1").ino, entry("h3").ino);
    assert_eq!(entry("twice").size, 2, "the first of one name counts");
    assert_eq!(
        (entry("h1").uid, entry("h1").gid, entry("h1").nlink),
        (1000, 100, 2)
    );
}

#[test]
fn small_logical_blocks() {
    for block_size in [512, 1024] {
        let per_sector = (SECTOR / block_size) as u32;
        let mut image = Image::of_blocks(40, block_size);
        let file = 24 * per_sector + 1;
        let records: Vec<_> = (0..100)
            .map(|n| Rec::file(format!("F{n:03}.;1").as_bytes(), file, 5))
            .collect();
        image.plain(&records);
        // The directory has more sectors than the default in its record.
        let root = ROOT * per_sector;
        let mut own = Rec::dir(&[0], root);
        own.len = 3 * SECTOR as u32;
        image.put_block(root, &own.bytes());
        image.put_block(file, b"hello");
        let iso = image.open().unwrap();
        assert_eq!(iso.block_size(), block_size as u32);
        assert_eq!(names(&iso, iso.root()).len(), 100);
        assert_eq!(content(&iso, "f099").unwrap(), b"hello");
    }
}

#[test]
fn deeper_than_any_path() {
    const DEPTH: u32 = 3000;
    let mut image = Image::new((FREE + DEPTH + 2) as usize);
    image.plain(&[Rec::dir(b"D", FREE)]);
    for level in 0..DEPTH {
        let block = FREE + level;
        image.put_block(
            block,
            &directory(block, block - 1, &[], &[Rec::dir(b"D", block + 1)]),
        );
    }
    let iso = image.open().unwrap();
    let (entries, errors) = walk(&iso);
    assert_eq!(entries, 2050);
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].ends_with("too many directories above it"),
        "{errors:?}"
    );
}

/// Wherever an image is truncated, the rest is read or refused.
#[test]
fn truncated_anywhere() {
    let mut image = Image::new(30);
    image.rock(&[Rec::dir(b"D", 24), Rec::file(b"A", 26, 2048)]);
    image.put_block(24, &directory(24, ROOT, &[], &[Rec::file(b"B", 27, 5000)]));
    for len in (0..image.bytes.len()).step_by(97) {
        read_everything(&image.bytes[..len]);
    }
}

#[test]
fn errors_become_what_programs_get() {
    let mut image = Image::new(30);
    image.rock(&[Rec::file(b"A", FREE, 5).with(&[ce(1 << 30, 0, 9)])]);
    let iso = image.open().unwrap();
    let error = iso.check_record(&find(&iso, "a")).unwrap_err();
    assert_eq!(error.errno(), goanna_vfs::Errno::EUCLEAN);
    let root: &Arc<Entry> = iso.root();
    let error = iso.read_at(root, 0, &mut [0]).unwrap_err();
    assert_eq!(error.errno(), goanna_vfs::Errno::EISDIR);
}

/// Directories as large as they may be, with the most expensive records: memory is bounded, and the time is
/// acceptable.
#[test]
fn large_directories_of_nothing_but_trouble() {
    const SECTORS: usize = 4000;
    let full = |fields: &[Vec<u8>], record: Rec| {
        let mut image = Image::new(ROOT as usize + SECTORS);
        let mut own = Rec::dir(&[0], ROOT).with(fields);
        own.len = (SECTORS * SECTOR) as u32;
        let mut bytes = own.bytes();
        bytes.extend(Rec::dir(&[1], ROOT).bytes());
        let record = record.bytes();
        while bytes.len() + record.len() <= SECTORS * SECTOR {
            bytes.extend(&record);
        }
        image.put_block(ROOT, &bytes);
        image
    };
    let rock = [sp(), px(0o40755, 2, None)];
    let start = std::time::Instant::now();
    let sections = full(&rock, Rec::file(b"A", FREE, 5).flags(0x80));
    assert!(root_error(&sections).ends_with("a file of more than 16384 sections"));
    // Areas of zeros, so far apart that each is read separately: in turn at blocks 0 and 18.
    let mut jumping = full(&rock, Rec::file(b"A", FREE, 5).with(&[ce(0, 0, 2000)]));
    let (mut at, mut turn) = (ROOT_AT, false);
    while let Some(found) = jumping.bytes[at..]
        .windows(4)
        .position(|bytes| bytes == b"CE\x1c\x01")
    {
        at += found + 4;
        turn = !turn;
        jumping.put(at, &support::both32(if turn { 18 } else { 0 }));
    }
    assert!(root_error(&jumping).ends_with("continuation areas overlap too much"));
    let same = full(&[], Rec::file(b"A", FREE, 5));
    let iso = same.open().unwrap();
    assert_eq!(names(&iso, iso.root()), ["a"], "one of 240,000");
    let relocated = full(&rock, Rec::file(b"A", FREE, 5).with(&[cl(ROOT)]));
    let iso = relocated.open().unwrap();
    assert_eq!(names(&iso, iso.root()), ["a"]);
    let took = start.elapsed();
    assert!(took < std::time::Duration::from_secs(30), "{took:?}");
}
