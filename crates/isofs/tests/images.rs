//! Images made by genisoimage and xorriso, compared with the original trees and with the results of other readers.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says so by failing"
)]

mod support;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use goanna_isofs::{Iso, Namespace, Options};
use support::tools::{
    ALL, Compared, Work, add_non_utf8, bytes, genisoimage, open, run_with, same, xorriso,
};
use support::{FREE, Image, Rec, SECTOR, content, find, names};

fn same_tree(iso: &Iso, tree: &Path, compared: &Compared) {
    same(iso, iso.root(), tree, compared);
}

#[test]
fn rock_ridge_of_genisoimage() {
    let work = Work::full();
    let image = work.path("i.iso");
    for args in [
        "-R",
        "-R -J -joliet-long",
        "-R -hide-rr-moved",
        "-R -D",
        "-R -iso-level 4",
        "-R -udf",
    ] {
        genisoimage(args, &image, &work.tree);
        let iso = open(&image, Options::default());
        assert_eq!(iso.namespace(), Namespace::RockRidge, "{args}");
        same_tree(&iso, &work.tree, &ALL);
        let moved = iso.resolve(b"rr_moved").unwrap();
        let shown = moved.map(|moved| names(&iso, &moved));
        let relocates = matches!(args, "-R" | "-R -J -joliet-long" | "-R -udf");
        // Relocated directories appear only at their original place.
        assert_eq!(shown, relocates.then(Vec::new), "{args}");
        let info = iso.info();
        assert_eq!(info.namespaces.rock_ridge.as_deref(), Some("RRIP_1991A"));
        assert_eq!(info.namespaces.joliet.is_some(), args.contains("-J"));
        assert_eq!(info.namespaces.udf, args.contains("-udf"));
        assert_eq!(info.namespaces.enhanced, args.contains("level 4"));
    }
    add_non_utf8(&work.tree);
    genisoimage("-R", &image, &work.tree);
    let iso = open(&image, Options::default());
    same_tree(&iso, &work.tree, &ALL);
    let (first, second) = (find(&iso, "readme.txt"), find(&iso, "dir/hard"));
    assert_eq!(first.ino, second.ino, "hard links");
    assert_eq!(
        find(&iso, "1/2/3/4/5/6/7/8/9").parent().unwrap().ino,
        find(&iso, "1/2/3/4/5/6/7/8").ino
    );
}

#[test]
fn rock_ridge_of_xorriso() {
    let work = Work::full();
    add_non_utf8(&work.tree);
    let long_target = format!("{}end", "some/where/".repeat(80));
    std::os::unix::fs::symlink(long_target, work.tree.join("longer")).unwrap();
    // genisoimage loses the end of a name longer than 248 bytes at level 4.
    fs::write(work.tree.join("N".repeat(255)), "longest name").unwrap();
    let image = work.path("i.iso");
    let cases = [
        ("", ""),
        ("-joliet on", ""),
        ("-hardlinks on", ""),
        ("-compliance rec_mtime:deep_paths_off", ""),
        ("-rr_reloc_dir moved -compliance deep_paths_off", ""),
        ("", "-set_filter_r --zisofs / --"),
        (
            "-zisofs level=9:block_size=128k",
            "-set_filter_r --zisofs / --",
        ),
        (
            "-zisofs version_2=on:susp_z2=off",
            "-set_filter_r --zisofs / --",
        ),
        (
            "-zisofs version_2=on:susp_z2=on:bpt_target=1k",
            "-set_filter_r --zisofs / --",
        ),
    ];
    for (args, after) in cases {
        let _ = fs::remove_file(&image);
        xorriso(args, &image, &work.tree, after);
        let iso = open(&image, Options::default());
        // Without -hardlinks every name is a file of its own.
        let links = args.contains("hardlinks");
        if iso.resolve(b"moved").unwrap().is_none() {
            same_tree(&iso, &work.tree, &Compared { posix: true, links });
        } else {
            let bottom = content(&iso, "1/2/3/4/5/6/7/8/9/10/bottom").unwrap();
            assert_eq!(bottom, b"relocated\n");
            assert_eq!(names(&iso, &find(&iso, "moved")), [""; 0]);
        }
        let compressed = find(&iso, "large.bin").is_compressed();
        assert_eq!(compressed, !after.is_empty(), "{args} {after}");
        let same_ino = find(&iso, "readme.txt").ino == find(&iso, "dir/hard").ino;
        assert!(same_ino || !links, "{args}: hard links");
    }
}

/// Compressed content in pieces that are none of its blocks'.
#[test]
fn compressed_files_at_any_offset() {
    let work = Work::full();
    let image = work.path("i.iso");
    for version in ["-zisofs default", "-zisofs version_2=on:susp_z2=off"] {
        let _ = fs::remove_file(&image);
        xorriso(version, &image, &work.tree, "-set_filter_r --zisofs / --");
        let iso = open(&image, Options::default());
        let expected = fs::read(work.tree.join("large.bin")).unwrap();
        let file = find(&iso, "large.bin");
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..300 {
            let at = random.usize(..expected.len() + 10);
            let mut buf = vec![0; random.usize(..100_000)];
            let len = iso.read_at(&file, at as u64, &mut buf).unwrap();
            let rest = expected.get(at..).unwrap_or_default();
            assert_eq!(len, rest.len().min(buf.len()));
            assert!(buf[..len] == rest[..len]);
        }
    }
}

#[test]
fn joliet_names() {
    let work = Work::new();
    for name in ["short", "Grüße 日本", "semi,colon", &"l".repeat(60)] {
        fs::write(work.tree.join(name), name).unwrap();
    }
    fs::create_dir(work.tree.join("Ordner")).unwrap();
    fs::write(work.tree.join("Ordner/x.y.z"), "xyz").unwrap();
    let image = work.path("i.iso");
    let compared = Compared {
        posix: false,
        links: false,
    };
    for (args, level) in [
        ("-J", 3),
        ("-J -ucs-level 1", 1),
        ("-J -ucs-level 2", 2),
        ("-J -joliet-long", 3),
    ] {
        genisoimage(args, &image, &work.tree);
        let iso = open(&image, Options::default());
        assert_eq!(iso.namespace(), Namespace::Joliet);
        assert_eq!(iso.info().namespaces.joliet, Some(level));
        same_tree(&iso, &work.tree, &compared);
    }
    fs::remove_file(&image).unwrap();
    xorriso("-joliet on", &image, &work.tree, "");
    let namespace = Some(Namespace::Joliet);
    let options = Options {
        namespace,
        session: None,
    };
    same_tree(&open(&image, options), &work.tree, &compared);

    // Names of 103 characters, three bytes each: too long for Linux, cut and still reachable.
    let long = "語".repeat(84);
    fs::write(work.tree.join(&long), "long").unwrap();
    genisoimage("-J -joliet-long", &image, &work.tree);
    same_tree(&open(&image, Options::default()), &work.tree, &compared);
}

/// Plain names, of which isoinfo lists the raw form.
#[test]
fn plain_names_as_isoinfo_lists_them() {
    let work = Work::full();
    let image = work.path("i.iso");
    let levels = [
        "-iso-level 1 -D",
        "-iso-level 2 -D",
        "-iso-level 3 -D",
        "-iso-level 4 -D",
        "-N -D",
        "-d -D",
        "-l -relaxed-filenames -allow-lowercase -D",
    ];
    for args in levels {
        genisoimage(args, &image, &work.tree);
        let options = Options {
            namespace: Some(Namespace::Plain),
            session: None,
        };
        let iso = open(&image, options);
        let listed = run_with("isoinfo", "-f -i", &[&image]);
        let listed: BTreeSet<Vec<u8>> = listed
            .split(|byte| *byte == b'\n')
            .filter(|path| !path.is_empty())
            .map(|path| {
                let path = path[1..].to_ascii_lowercase();
                let path = path.strip_suffix(b";1").unwrap_or(&path);
                path.strip_suffix(b".").unwrap_or(path).to_vec()
            })
            .collect();
        let mut ours = BTreeSet::new();
        let mut contents = Vec::new();
        iso.walk(iso.root(), &mut |visit| {
            match visit {
                goanna_isofs::Visit::Entry(entry) => {
                    ours.insert(entry.path());
                    if entry.kind == goanna_vfs::FileKind::Regular {
                        contents.push(content(&iso, &String::from_utf8_lossy(&entry.path())).ok());
                    }
                }
                goanna_isofs::Visit::Unreadable(_, error) => panic!("{error}"),
            }
            std::ops::ControlFlow::Continue(())
        });
        ours.remove(&b""[..]);
        let lossy = |paths: &BTreeSet<Vec<u8>>| -> Vec<String> {
            paths
                .iter()
                .map(|path| path.escape_ascii().to_string())
                .collect()
        };
        assert_eq!(lossy(&ours), lossy(&listed), "{args}");
        let large = fs::read(work.tree.join("large.bin")).unwrap();
        assert!(contents.contains(&Some(large)), "{args}");
    }
}

#[test]
fn sessions_of_xorriso() {
    let work = Work::full();
    let image = work.path("i.iso");
    xorriso("-volid FIRST", &image, &work.tree, "");
    let second = work.path("second");
    fs::create_dir(&second).unwrap();
    fs::write(second.join("added"), "in the second").unwrap();
    for (n, name) in [(2, "two"), (3, "three")] {
        let args = format!("-abort_on SORRY -report_about SORRY -volid S{n} -dev");
        let mut all: Vec<&std::ffi::OsStr> = args.split_whitespace().map(AsRef::as_ref).collect();
        let target = format!("/{name}");
        all.extend([
            image.as_os_str(),
            "-map".as_ref(),
            second.as_os_str(),
            target.as_ref(),
            "-commit".as_ref(),
        ]);
        support::tools::run("xorriso", &all);
    }
    let toc = run_with(
        "xorriso",
        "-report_about SORRY -indev",
        &[&image, Path::new("-toc")],
    );
    let toc = String::from_utf8_lossy(&toc);
    let starts: Vec<u64> = toc
        .lines()
        .filter_map(|line| line.strip_prefix("ISO session  :"))
        .map(|line| line.split(',').nth(1).unwrap().trim().parse().unwrap())
        .collect();
    let iso = open(&image, Options::default());
    let info = iso.info();
    let ours: Vec<u64> = info.sessions.iter().map(|session| session.start).collect();
    assert_eq!(ours, starts, "{toc}");
    assert_eq!((info.session, ours.len()), (3, 3));
    assert_eq!(content(&iso, "three/added").unwrap(), b"in the second");
    let at = |session| {
        let options = Options {
            namespace: None,
            session: Some(session),
        };
        open(&image, options)
    };
    same_tree(
        &at(1),
        &work.tree,
        &Compared {
            posix: true,
            links: false,
        },
    );
    assert!(at(2).resolve(b"three").unwrap().is_none());
    assert_eq!(content(&at(2), "two/added").unwrap(), b"in the second");
    assert_eq!(content(&at(3), "readme.txt").unwrap(), b"hello\n");
}

/// As growisofs does it on a disc, and cdrecord with the output of mkisofs.
#[test]
fn sessions_of_genisoimage() {
    let work = Work::full();
    let image = work.path("i.iso");
    genisoimage("-R -J -joliet-long -V FIRST", &image, &work.tree);
    let second = work.path("second");
    fs::create_dir(&second).unwrap();
    fs::write(second.join("added"), "in the second").unwrap();
    let sectors = fs::metadata(&image).unwrap().len() / 2048;
    let start = sectors.next_multiple_of(16);
    let file = File::options().append(true).open(&image).unwrap();
    file.set_len(start * 2048).unwrap();
    let more = work.path("more.iso");
    let args = format!(
        "-quiet -R -J -joliet-long -V SECOND -C 0,{start} -M {} -o {} -graft-points two={}",
        image.display(),
        more.display(),
        second.display()
    );
    run_with("genisoimage", &args, &[]);
    (&file).write_all(&fs::read(&more).unwrap()).unwrap();
    let iso = open(&image, Options::default());
    let info = iso.info();
    let found: Vec<_> = info
        .sessions
        .iter()
        .map(|s| (s.start, s.volume_id.as_str()))
        .collect();
    assert_eq!(found, [(0, "FIRST"), (start, "SECOND")]);
    assert_eq!(content(&iso, "two/added").unwrap(), b"in the second");
    assert_eq!(content(&iso, "readme.txt").unwrap(), b"hello\n");
    let options = Options {
        namespace: None,
        session: Some(1),
    };
    same_tree(&open(&image, options), &work.tree, &ALL);
}

/// An image within an image, and one behind another, are not sessions.
#[test]
fn what_looks_like_a_session() {
    let work = Work::new();
    let inner = work.path("inner.iso");
    fs::write(work.tree.join("x"), "inner").unwrap();
    genisoimage("-R", &inner, &work.tree);
    fs::rename(&inner, work.tree.join("inner.iso")).unwrap();
    let image = work.path("i.iso");
    genisoimage("-R", &image, &work.tree);
    let mut bytes = fs::read(&image).unwrap();
    let embedded = (16..bytes.len() / SECTOR).filter(|s| &bytes[s * SECTOR + 1..][..5] == b"CD001");
    assert!(
        embedded.count() >= 4,
        "the inner image's descriptors are there"
    );
    bytes.resize(bytes.len().next_multiple_of(32 * SECTOR), 0);
    let two = [bytes.clone(), bytes].concat();
    let iso = Iso::open(two, &Options::default()).unwrap();
    assert_eq!(iso.info().sessions.len(), 1);
    // At the very place where xorriso begins.
    let mut image = Image::new(100);
    image.plain(&[Rec::file(b"IN", 32, 60 * SECTOR as u32)]);
    let inner = Image::new(20).bytes;
    image.put_block(32, &inner);
    assert_eq!(image.open().unwrap().info().sessions.len(), 1);
}

#[test]
fn boot_images_of_genisoimage() {
    let work = Work::full();
    fs::create_dir(work.tree.join("boot")).unwrap();
    fs::write(work.tree.join("boot/bios.img"), bytes(4096, 9)).unwrap();
    let image = work.path("i.iso");
    genisoimage(
        "-R -b boot/bios.img -c boot/catalog -no-emul-boot -boot-load-size 4",
        &image,
        &work.tree,
    );
    let iso = open(&image, Options::default());
    let images = iso.boot_images().unwrap();
    assert_eq!(images.len(), 1);
    let boot = &images[0];
    assert!(boot.bootable && boot.emulation == 0 && boot.platform == 0);
    assert_eq!(boot.load_sectors, 4);
    let file = fs::read(&image).unwrap();
    let at = boot.block as usize * SECTOR;
    assert!(file[at..at + 4096] == fs::read(work.tree.join("boot/bios.img")).unwrap());

    fs::remove_file(&image).unwrap();
    fs::write(work.tree.join("boot/efi.img"), bytes(8192, 10)).unwrap();
    let args = "-boot_image any bin_path=/boot/bios.img -boot_image any next \
                -boot_image any platform_id=0xef -boot_image any bin_path=/boot/efi.img";
    xorriso("", &image, &work.tree, args);
    let images = open(&image, Options::default()).info().boot;
    let platforms: Vec<u8> = images.iter().map(|boot| boot.platform).collect();
    assert_eq!(platforms, [0, 0xef]);
}

#[test]
fn volume_information() {
    let work = Work::full();
    let image = work.path("i.iso");
    let args = "-R -J -joliet-long -V Name -A App -P Pub -p Prep -sysid SYS -volset Set -copyright readme.txt";
    genisoimage(args, &image, &work.tree);
    let info = open(&image, Options::default()).info();
    let primary = &info.primary;
    assert_eq!(primary.volume_id, "Name");
    assert_eq!(primary.application, "App");
    assert_eq!(
        (primary.publisher.as_str(), primary.preparer.as_str()),
        ("Pub", "Prep")
    );
    assert_eq!(
        (primary.system_id.as_str(), primary.set_id.as_str()),
        ("SYS", "Set")
    );
    assert_eq!(primary.copyright_file, "readme.txt");
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let created = support::tools::seconds(primary.created);
    assert!((now.as_secs() as i64 - created).abs() < 100, "{created}");
    assert_eq!(u64::from(primary.blocks) * 2048, info.size);
    assert_eq!(info.joliet.unwrap().volume_id, "Name");
}

#[test]
fn an_empty_image() {
    let work = Work::new();
    let image = work.path("i.iso");
    for args in ["-R", "-J", ""] {
        genisoimage(args, &image, &work.tree);
        let iso = open(&image, Options::default());
        assert_eq!(names(&iso, iso.root()), [""; 0]);
    }
}

/// A file beyond 4 GiB, in two sections: a sparse image, so that it costs nothing.
#[test]
fn beyond_four_gigabytes() {
    const FIRST: u32 = u32::MAX - 2047;
    let mut image = Image::new(30);
    image.rock(&[
        Rec::file(b"BIG", FREE, FIRST).flags(0x80),
        Rec::file(b"BIG", FREE + FIRST / 2048, 1_000_000_000),
    ]);
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&image.bytes, 0).unwrap();
    let size = u64::from(FIRST) + 1_000_000_000;
    let start = u64::from(FREE) * 2048;
    file.set_len(start + size).unwrap();
    for (at, text) in [
        (0, b"head!"),
        (u64::from(FIRST) - 2, b"seam!"),
        (size - 5, b"tail!"),
    ] {
        file.write_all_at(text, start + at).unwrap();
    }
    let iso = Iso::open(file, &Options::default()).unwrap();
    let big = find(&iso, "big");
    assert_eq!(big.size, size);
    iso.check_content(&big).unwrap();
    let mut buf = [0; 5];
    for (at, text) in [
        (0, b"head!"),
        (u64::from(FIRST) - 2, b"seam!"),
        (size - 5, b"tail!"),
    ] {
        assert_eq!(iso.read_at(&big, at, &mut buf).unwrap(), 5);
        assert_eq!(&buf, text);
    }
    assert_eq!(iso.read_at(&big, size - 2, &mut buf).unwrap(), 2);
}

#[test]
fn a_directory_of_many() {
    let count = 10_000;
    let work = Work::new();
    for n in 0..count {
        File::create(work.tree.join(format!("f{n}"))).unwrap();
    }
    let image = work.path("i.iso");
    genisoimage("-R", &image, &work.tree);
    let iso = open(&image, Options::default());
    let listed: BTreeSet<String> = names(&iso, iso.root()).into_iter().collect();
    assert_eq!(listed.len(), count);
    for n in (0..count).step_by(17) {
        assert!(listed.contains(&format!("f{n}")));
        assert_eq!(find(&iso, &format!("f{n}")).size, 0);
    }
    assert!(iso.resolve(b"f-1").unwrap().is_none());
}

/// Every tree that bsdtar reads out of an image is the one that we read.
#[test]
fn as_bsdtar_extracts_it() {
    let work = Work::full();
    let image = work.path("i.iso");
    // bsdtar loses the slash between two SL fields.
    fs::remove_file(work.tree.join("dir/long")).unwrap();
    genisoimage("-R -J -joliet-long -D", &image, &work.tree);
    let out = work.path("out");
    fs::create_dir(&out).unwrap();
    run_with("bsdtar", "-x -p -f", &[&image, Path::new("-C"), &out]);
    let iso = open(&image, Options::default());
    same_tree(&iso, &out, &ALL);
}
