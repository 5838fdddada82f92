//! A directory with a damaged record: the valid ones beside it are listed, and the error is reported to a caller that
//! asks more than its name.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says so by failing"
)]

mod support;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use goanna_isofs::{Iso, IsoFs, Visit};
use goanna_vfs::{Errno, FileKind, FileSystem, Mount, MountFlags, Place, ops};
use support::{
    FREE, Image, ROOT, Rec, SECTOR, caller, ce, cl, content, directory, find, names, nm, px, sp,
};

/// How many names are sound, and how many are not.
fn walk(iso: &Iso) -> (usize, usize) {
    let (mut sound, mut damaged) = (0, 0);
    iso.walk(iso.root(), &mut |visit| {
        match visit {
            Visit::Entry(_) => sound += 1,
            Visit::Unreadable(..) => damaged += 1,
        }
        ControlFlow::Continue(())
    });
    (sound, damaged)
}

/// An image with three sound files and a sound directory entry, and six others, each with an error.
fn sound_and_damaged() -> Image {
    let sound = |name: &[u8], shown: &[u8]| {
        Rec::file(name, FREE, 5).with(&[px(0o100_644, 1, None), nm(shown)])
    };
    let mut wrong = px(0o100_644, 1, None);
    wrong[2] = 3;
    let beyond = ce(1 << 30, 0, 9);
    let mut image = Image::new(40);
    image.rock(&[
        sound(b"A.;1", b"first"),
        // The name precedes the wrong field.
        Rec::file(b"B.;1", FREE, 5).with(&[nm(b"Late"), wrong.clone()]),
        // The name follows the wrong field: the plain name is shown, but does not hide another entry's.
        Rec::file(b"C.;1", FREE, 5).with(&[wrong.clone(), nm(b"lost")]),
        Rec::file(b"SAME.;1", FREE, 5).with(&[wrong.clone(), nm(b"lost, too")]),
        sound(b"SAME000.;1", b"same"),
        Rec::file(b"D.;1", FREE, 5).with(&[nm(b"continued"), beyond.clone()]),
        Rec::dir(b"DIR", 26).with(&[nm(b"dir"), wrong]),
        Rec::file(b"E.;1", FREE, 5)
            .flags(0x80)
            .with(&[nm(b"parts"), beyond]),
        Rec::file(b"E.;1", FREE, 5).with(&[nm(b"parts")]),
        Rec::file(b"R.;1", FREE, 5).with(&[nm(b"elsewhere"), cl(31)]),
        sound(b"Z.;1", b"last"),
    ]);
    image.put_block(FREE, b"hello");
    image.put_block(26, &directory(26, ROOT, &[], &[sound(b"IN", b"in")]));
    image
}

#[test]
fn sound_names_beside_a_damaged_one() {
    let iso = sound_and_damaged().open().unwrap();
    let shown = [
        "first",
        "Late",
        "c",
        "same",
        "continued",
        "dir",
        "parts",
        "elsewhere",
        "last",
    ];
    assert_eq!(names(&iso, iso.root()), shown);
    let good = ["first", "same", "last"];
    for name in good {
        assert_eq!(content(&iso, name).unwrap(), b"hello", "{name}");
        assert_eq!(find(&iso, name).mode, 0o100_644);
    }
    assert_eq!(walk(&iso), (1 + good.len(), 6));
    used_through_the_file_system(iso, &shown, &good);
}

/// Each of `shown` is found; entries that are not in `good` cannot be used, and the listener receives the reason.
fn used_through_the_file_system(iso: Iso, shown: &[&str], good: &[&str]) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let fs =
        IsoFs::new(iso).with_listener(move |why| listener.lock().unwrap().push(why.to_string()));
    let fs: Arc<dyn FileSystem> = Arc::new(fs);
    let mount = Arc::new(Mount::new(
        Arc::clone(&fs),
        b"/cd".to_vec(),
        MountFlags::READ_ONLY,
        "i.iso".into(),
        0,
    ));
    let caller = caller(0, 0);
    for &name in shown {
        let node = fs.lookup(&caller, &fs.root(), name.as_bytes()).unwrap();
        let place = Place {
            node,
            mount: Arc::clone(&mount),
        };
        let stat = fs.getattr(&caller, &place.node).map(|_| ());
        let is_dir = place.node.kind() == FileKind::Directory;
        let used = if is_dir {
            ops::lookup(&caller, &place, b"in").map(|_| ())
        } else {
            ops::open_existing(&caller, &place, libc::O_RDONLY).map(|_| ())
        };
        let expected = if good.contains(&name) {
            Ok(())
        } else {
            Err(Errno::EUCLEAN.into())
        };
        assert_eq!((stat, used), (expected.clone(), expected), "{name}");
        let listed = fs.readdir(&caller, &place.node, 0, &mut |_| true);
        assert!(listed.is_err(), "{name}");
    }
    let told = told.lock().unwrap();
    assert!(
        told.iter()
            .any(|why| why.starts_with("System Use field PX at byte"))
    );
    assert!(
        told.iter()
            .any(|why| why.starts_with("continuation area at byte"))
    );
}

/// Each record has as long a chain of continuation areas as is followed: computing each error again costs no more than
/// listing them did.
#[test]
fn many_damaged_names() {
    const SECTORS: usize = 1000;
    let records: Vec<_> = (0..20_000)
        .map(|n| Rec::file(format!("F{n}").as_bytes(), FREE, 5).with(&[ce(18, 0, 28)]))
        .collect();
    let mut bytes = directory(ROOT, ROOT, &[sp(), px(0o40755, 2, None)], &records);
    let blocks = u32::try_from(bytes.len() / SECTOR).unwrap();
    // The directory's own record says how long it is.
    let mut own = Rec::dir(&[0], ROOT).with(&[sp(), px(0o40755, 2, None)]);
    own.len = blocks * SECTOR as u32;
    let own = own.bytes();
    bytes[..own.len()].copy_from_slice(&own);
    let mut image = Image::new(ROOT as usize + SECTORS);
    image.put_block(ROOT, &bytes);
    for n in 0..70 {
        image.put(18 * SECTOR + 28 * n, &ce(18, 28 * (n as u32 + 1), 28));
    }
    let iso = image.open().unwrap();
    let start = Instant::now();
    assert_eq!(names(&iso, iso.root()).len(), records.len());
    let listing = start.elapsed();
    assert_eq!(walk(&iso), (1, records.len()));
    let walking = start.elapsed() - listing;
    // Generous, since tests run side by side.
    assert!(
        walking < listing * 10 + Duration::from_secs(1),
        "{listing:?} {walking:?}"
    );
}
