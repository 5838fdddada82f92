//! The matrix: images of each kind, compared with the results of three other readers. Each known difference is declared
//! here, and explained in docs/iso.md. A declared difference that no longer exists fails the test, too.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says so by failing"
)]

#[path = "../seeds/seed.rs"]
mod seed;
mod support;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use goanna_isofs::{Namespace, Options};
use support::oracles::{Differences, Field, Oracle, Tree, differences, hash, ours};
use support::tools::{Work, genisoimage, open, run_with, xorriso, xorriso_sparse};
use support::{FREE, Image, Rec, SECTOR};

const ALL: [Oracle; 4] = [
    Oracle::Bsdtar,
    Oracle::Xorriso,
    Oracle::Isoinfo,
    Oracle::Hadris,
];

/// A known difference: reader, kind, and paths (`*` means all).
type Known = (Oracle, Field, &'static str);

/// The differences in every image with Rock Ridge of the tree of [`Work::full`].
const TREE: &[Known] = &[(Oracle::Isoinfo, Field::Mode, "void")];

/// The differences in such images of genisoimage.
const GENISOIMAGE: &[Known] = &[(Oracle::Bsdtar, Field::Target, "dir/long")];

/// Compares our result for `image` with that of each of `oracles`.
fn compare_with(
    oracles: &[Oracle],
    what: &str,
    image: &Path,
    options: Options,
    known: &[&[Known]],
) -> Tree {
    let iso = open(image, options);
    let tree = ours(&iso);
    let info = iso.info();
    let start = info.sessions[info.session as usize - 1].start;
    let scratch = tempfile::tempdir().unwrap();
    for oracle in oracles {
        let dir = scratch.path().join(format!("{oracle:?}"));
        let theirs = oracle.read(image, iso.namespace(), start, &dir);
        let mut found = differences(&tree, &theirs);
        let known = known
            .iter()
            .copied()
            .flatten()
            .filter(|(who, _, _)| who == oracle);
        for (_, field, paths) in known {
            let before = found.len();
            found.retain(|(what, path)| what != field || !matches(paths, path));
            assert!(
                found.len() < before,
                "{what}: {oracle:?} does not differ any more: {field:?} {paths}"
            );
        }
        assert!(
            found.is_empty(),
            "{what}: {oracle:?} differs:\n{}",
            shown(&found, &tree, &theirs)
        );
    }
    tree
}

fn compare(what: &str, image: &Path, known: &[&[Known]]) -> Tree {
    compare_with(&ALL, what, image, Options::default(), known)
}

/// `*` at the end stands for anything.
fn matches(paths: &str, path: &[u8]) -> bool {
    match paths.strip_suffix('*') {
        Some(start) => path.starts_with(start.as_bytes()),
        None => path == paths.as_bytes(),
    }
}

fn shown(found: &Differences, ours: &Tree, theirs: &Tree) -> String {
    let line = |(field, path): &(Field, Vec<u8>)| {
        format!(
            "{field:?} {}\n    we  {:?}\n    it  {:?}\n",
            path.escape_ascii(),
            ours.get(path),
            theirs.get(path)
        )
    };
    found.iter().take(8).map(line).collect::<String>() + &format!("{} in all", found.len())
}

fn namespace(namespace: Namespace) -> Options {
    Options {
        namespace: Some(namespace),
        session: None,
    }
}

#[test]
fn plain_levels() {
    let work = Work::full();
    let image = work.path("i.iso");
    for level in 1..=4 {
        genisoimage(&format!("-iso-level {level} -D"), &image, &work.tree);
        let known: &[Known] = match level {
            // It makes names of its own of those with bytes that are not ASCII.
            4 => &[
                (Oracle::Xorriso, Field::Lacks, "dir/gr*"),
                (Oracle::Xorriso, Field::Adds, "dir/_r*"),
            ],
            _ => &[],
        };
        let tree = compare(&format!("level {level}"), &image, &[known]);
        assert!(tree.len() > 130);
    }
}

/// Of characters beyond Latin-1 it shows underscores.
const JOLIET: &[Known] = &[
    (Oracle::Isoinfo, Field::Lacks, "dir/Gr*"),
    (Oracle::Isoinfo, Field::Adds, "dir/Gr*"),
];

#[test]
fn joliet() {
    let work = Work::full();
    let image = work.path("i.iso");
    for args in ["-J", "-J -joliet-long"] {
        genisoimage(args, &image, &work.tree);
        compare(args, &image, &[JOLIET]);
    }
}

#[test]
fn rock_ridge() {
    let work = Work::full();
    let image = work.path("i.iso");
    for args in ["-R -D", "-r -D", "-R -J -joliet-long -D", "-R -udf -D"] {
        genisoimage(args, &image, &work.tree);
        // -r makes modes and owners sensible, and so drops the sticky bit.
        let tree = if args.contains("-r") { &[] } else { TREE };
        compare(args, &image, &[tree, GENISOIMAGE]);
    }
}

/// Both trees of one image.
#[test]
fn joliet_beside_rock_ridge() {
    let work = Work::full();
    let image = work.path("i.iso");
    genisoimage("-R -J -joliet-long -D", &image, &work.tree);
    let joliet = namespace(Namespace::Joliet);
    compare_with(&ALL, "joliet of both", &image, joliet, &[JOLIET]);
    let plain = namespace(Namespace::Plain);
    let readers = [Oracle::Bsdtar, Oracle::Isoinfo, Oracle::Hadris];
    compare_with(&readers, "plain of both", &image, plain, &[]);
}

#[test]
fn deep_directories() {
    let work = Work::full();
    let image = work.path("i.iso");
    genisoimage("-R", &image, &work.tree);
    let known: &[Known] = &[
        (Oracle::Bsdtar, Field::Lacks, "rr_moved"),
        (Oracle::Isoinfo, Field::Lacks, "1/2/3/4/5/6/7/8/*"),
        (Oracle::Isoinfo, Field::Adds, "rr_moved/*"),
    ];
    compare(
        "relocated by genisoimage",
        &image,
        &[TREE, GENISOIMAGE, known],
    );
    let _ = fs::remove_file(&image);
    xorriso(
        "-rr_reloc_dir moved -compliance deep_paths_off",
        &image,
        &work.tree,
        "",
    );
    let refused = Command::new("bsdtar").arg("-tf").arg(&image).output();
    let stderr = refused.unwrap().stderr;
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(stderr.contains("Invalid Rockridge RE"), "{stderr}");
    let readers = [Oracle::Xorriso, Oracle::Isoinfo, Oracle::Hadris];
    let known: &[Known] = &[
        (Oracle::Isoinfo, Field::Lacks, "1/2/3/4/5/6/7/8/*"),
        (Oracle::Isoinfo, Field::Adds, "moved*"),
    ];
    let options = Options::default();
    compare_with(
        &readers,
        "relocated by xorriso",
        &image,
        options,
        &[TREE, known],
    );
    let _ = fs::remove_file(&image);
    xorriso("-compliance deep_paths_on", &image, &work.tree, "");
    compare("deep by xorriso", &image, &[TREE]);
}

#[test]
fn names_of_all_kinds() {
    let work = Work::new();
    for name in [
        &b"latin-\xe4\xf6"[..],
        b"a b\tc\\",
        "語".repeat(85).as_bytes(),
        &[b'N'; 255],
    ] {
        fs::write(work.tree.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let image = work.path("i.iso");
    xorriso("", &image, &work.tree, "");
    let known: &[Known] = &[
        (Oracle::Hadris, Field::Lacks, "latin*"),
        (Oracle::Hadris, Field::Adds, "latin*"),
    ];
    let tree = compare("names by xorriso", &image, &[known]);
    assert_eq!(tree.len(), 4);
    genisoimage("-R", &image, &work.tree);
    compare("names by genisoimage", &image, &[known]);
}

/// The readers that do not decompress.
const COMPRESSED: &[Known] = &[
    (Oracle::Isoinfo, Field::Size, "large.bin"),
    (Oracle::Isoinfo, Field::Size, "zeros"),
    (Oracle::Hadris, Field::Size, "large.bin"),
    (Oracle::Hadris, Field::Size, "zeros"),
    (Oracle::Hadris, Field::Content, "large.bin"),
    (Oracle::Hadris, Field::Content, "zeros"),
];

#[test]
fn compressed() {
    let work = Work::full();
    let image = work.path("i.iso");
    let packed = work.path("packed");
    run_with("mkzftree", "", &[&work.tree, &packed]);
    genisoimage("-R -z -D", &image, &packed);
    let known: &[Known] = &[
        (Oracle::Isoinfo, Field::Size, "one-sector"),
        (Oracle::Hadris, Field::Size, "one-sector"),
        (Oracle::Hadris, Field::Content, "one-sector"),
    ];
    compare("mkzftree", &image, &[TREE, GENISOIMAGE, COMPRESSED, known]);
    for args in ["", "-zisofs version_2=on:susp_z2=off"] {
        let _ = fs::remove_file(&image);
        xorriso(args, &image, &work.tree, "-set_filter_r --zisofs / --");
        let known: &[Known] = match args {
            "" => &[],
            // It knows version 1 only.
            _ => &[
                (Oracle::Bsdtar, Field::Size, "large.bin"),
                (Oracle::Bsdtar, Field::Size, "zeros"),
                (Oracle::Bsdtar, Field::Content, "large.bin"),
                (Oracle::Bsdtar, Field::Content, "zeros"),
            ],
        };
        compare(args, &image, &[TREE, COMPRESSED, known]);
    }
}

#[test]
fn written_by_xorriso() {
    let work = Work::full();
    let image = work.path("i.iso");
    for args in ["", "-joliet on", "-hardlinks on"] {
        let _ = fs::remove_file(&image);
        xorriso(args, &image, &work.tree, "");
        compare(args, &image, &[TREE]);
    }
    for args in ["-R", "-r -J", "-R -iso-level 3 -full-iso9660-filenames"] {
        let args = format!("-as mkisofs -quiet {args} -o");
        run_with("xorriso", &args, &[&image, &work.tree]);
        let tree = if args.contains("-r") { &[] } else { TREE };
        compare(&args, &image, &[tree]);
    }
}

#[test]
fn hidden() {
    let work = Work::full();
    let image = work.path("i.iso");
    genisoimage("-R -D -hidden readme.txt -hide zeros", &image, &work.tree);
    let tree = compare("hidden", &image, &[TREE, GENISOIMAGE]);
    assert!(tree.contains_key(&b"readme.txt"[..]), "is shown");
    assert!(!tree.contains_key(&b"zeros"[..]), "is not in the image");
}

#[test]
fn bootable() {
    let work = Work::full();
    fs::create_dir(work.tree.join("boot")).unwrap();
    fs::write(work.tree.join("boot/bios.img"), [7; 4096]).unwrap();
    let image = work.path("i.iso");
    let args = "-R -D -b boot/bios.img -c boot/catalog -no-emul-boot -boot-load-size 4";
    genisoimage(args, &image, &work.tree);
    // It takes the empty file, which has a place, for the boot catalogue, which is at that place.
    let known: &[Known] = &[
        (Oracle::Xorriso, Field::Size, "empty"),
        (Oracle::Xorriso, Field::Content, "empty"),
    ];
    let tree = compare("boot", &image, &[TREE, GENISOIMAGE, known]);
    assert!(tree.contains_key(&b"boot/catalog"[..]));
}

#[test]
fn empty() {
    let work = Work::new();
    let image = work.path("i.iso");
    for args in ["-R", "-J", "-iso-level 4", ""] {
        genisoimage(args, &image, &work.tree);
        assert!(compare(args, &image, &[]).is_empty());
    }
}

#[test]
fn many() {
    let work = Work::new();
    let count = 100_000;
    for n in 0..count {
        fs::write(work.tree.join(format!("f{n}")), n.to_string()).unwrap();
    }
    let image = work.path("i.iso");
    genisoimage("-R", &image, &work.tree);
    assert_eq!(compare("many", &image, &[]).len(), count);
}

/// A file beyond 4 GiB, nearly all of it holes. hadris-iso is left out, because it would read the whole file into memory,
/// and genisoimage, because it records the size modulo 2^32.
#[test]
fn five_gigabytes() {
    const SIZE: u64 = 5 << 30;
    /// Where the second section of the file begins.
    const SEAM: u64 = (u32::MAX - 2047) as u64;
    let work = Work::new();
    let big = File::create(work.tree.join("big")).unwrap();
    big.set_len(SIZE).unwrap();
    for (text, at) in [("head", 0), ("seam", SEAM - 2), ("tail", SIZE - 4)] {
        big.write_all_at(text.as_bytes(), at).unwrap();
    }
    let image = work.path("i.iso");
    xorriso_sparse(&image, &work.tree);
    let oracles = [Oracle::Bsdtar, Oracle::Xorriso, Oracle::Isoinfo];
    // It lists the sections one by one.
    let known: &[Known] = &[(Oracle::Isoinfo, Field::Size, "big")];
    let tree = compare_with(&oracles, "5 GiB", &image, Options::default(), &[known]);
    assert_eq!(tree[&b"big"[..]].size, Some(SIZE));
    // Our content equals the original file, not only the results of the other readers.
    let big = File::open(work.tree.join("big")).unwrap();
    let content = hash(|at, piece| big.read_at(piece, at).unwrap());
    assert_eq!(tree[&b"big"[..]].content, Some(content));
}

/// Sections of a file that are small.
#[test]
fn several_sections() {
    let work = Work::new();
    let mut image = Image::new(40);
    image.plain(&[
        Rec::file(b"FIRST.;1", FREE, 4096).flags(0x80),
        Rec::file(b"FIRST.;1", FREE + 3, 2048).flags(0x80),
        Rec::file(b"FIRST.;1", FREE + 6, 100),
        Rec::file(b"SECOND.;1", FREE + 8, 300),
    ]);
    for block in FREE..FREE + 10 {
        image.put_block(block, &[b'a' + block as u8 - FREE as u8; 2048]);
    }
    // bsdtar refuses an image without places of path tables, or with spaces where there are to be zeros.
    let descriptor = 16 * SECTOR;
    image.put(descriptor + 88, &[0; 3]);
    image.put(descriptor + 140, &18_u32.to_le_bytes());
    image.put(descriptor + 148, &18_u32.to_be_bytes());
    let path = work.path("i.iso");
    fs::write(&path, &image.bytes).unwrap();
    // It lists the sections one by one.
    let known: &[Known] = &[(Oracle::Isoinfo, Field::Size, "first")];
    let tree = compare("sections", &path, &[known]);
    assert_eq!(tree[&b"first"[..]].size, Some(6244));
}

/// Extended attribute records, by our own script, since no writer makes them. Modes and owners are not compared: without
/// Rock Ridge the others have none.
#[test]
fn attribute_records() {
    let work = Work::new();
    let image = work.path("i.iso");
    let bytes = seed::decode(include_bytes!("../seeds/images/attributes"));
    fs::write(&image, bytes).unwrap();
    let known: &[Known] = &[
        // It reads the record before the content as the content.
        (Oracle::Bsdtar, Field::Content, "*"),
        (Oracle::Bsdtar, Field::Time, "*"),
        (Oracle::Xorriso, Field::Time, "*"),
    ];
    let joliet = namespace(Namespace::Joliet);
    let tree = compare_with(&ALL, "attribute records", &image, joliet, &[known]);
    assert_eq!(tree[&b"file0.txt"[..]].owner, Some((7, 9)));
    let plain = namespace(Namespace::Plain);
    let readers = [Oracle::Bsdtar, Oracle::Isoinfo, Oracle::Hadris];
    let tree = compare_with(&readers, "beside Joliet", &image, plain, &[&known[..2]]);
    assert_eq!(tree[&b"file0.txt"[..]].mode, Some(0o100));
}

/// Readers that always use the descriptors at sector 16: of genisoimage's image they are the first
/// session's, of xorriso's the last one's.
const CHANGED: &[Known] = &[
    (Oracle::Bsdtar, Field::Size, "changed"),
    (Oracle::Bsdtar, Field::Content, "changed"),
    (Oracle::Bsdtar, Field::Time, "changed"),
    (Oracle::Hadris, Field::Size, "changed"),
    (Oracle::Hadris, Field::Content, "changed"),
];

/// Two sessions as growisofs writes them, and as xorriso does: the first and the last.
#[test]
fn sessions() {
    let work = Work::new();
    fs::write(work.tree.join("kept"), "kept").unwrap();
    change(&work, "before", 1_000_000_000);
    let image = grown_by_genisoimage(&work);
    compare("last of genisoimage", &image, &[CHANGED]);
    let first = Options {
        namespace: None,
        session: Some(1),
    };
    compare_with(&ALL, "first of genisoimage", &image, first, &[]);
    let image = work.path("x.iso");
    change(&work, "before", 1_000_000_000);
    xorriso("", &image, &work.tree, "");
    change(&work, "after it", 1_100_000_000);
    let file = work.tree.join("changed");
    let update = "-abort_on SORRY -report_about SORRY -dev";
    let args: Vec<&Path> = [&image, Path::new("-update"), &file, Path::new("/changed")].to_vec();
    let args: Vec<&Path> = args.into_iter().chain([Path::new("-commit")]).collect();
    run_with("xorriso", update, &args);
    let last = compare("last of xorriso", &image, &[]);
    assert_eq!(last[&b"changed"[..]].size, Some(8));
    compare_with(&ALL, "first of xorriso", &image, first, &[CHANGED]);
}

/// Writes a file with a time of its own: sessions made within one second would differ in nothing else.
fn change(work: &Work, content: &str, seconds: u64) {
    let path = work.tree.join("changed");
    fs::write(&path, content).unwrap();
    let time = UNIX_EPOCH + Duration::from_secs(seconds);
    File::open(path).unwrap().set_modified(time).unwrap();
}

fn grown_by_genisoimage(work: &Work) -> PathBuf {
    let image = work.path("i.iso");
    genisoimage("-R", &image, &work.tree);
    let start = (fs::metadata(&image).unwrap().len() / 2048).next_multiple_of(16);
    let mut bytes = fs::read(&image).unwrap();
    bytes.resize(start as usize * 2048, 0);
    fs::write(&image, &bytes).unwrap();
    change(work, "after it", 1_100_000_000);
    let more = work.path("more.iso");
    let args = format!("-quiet -R -C 0,{start} -M {} -o", image.display());
    run_with("genisoimage", &args, &[&more, &work.tree]);
    bytes.extend(fs::read(&more).unwrap());
    fs::write(&image, bytes).unwrap();
    image
}
