//! `goanna iso`, on images made by genisoimage and xorriso.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use common::{Fixture, assert_same, is_root, snapshot};
use images::{NOBODY, Said, find, images, noise};
use serde_json::json;

mod common;
mod images;
#[path = "../../isofs/seeds/seed.rs"]
mod seed;

#[test]
fn what_is_extracted_is_what_the_image_was_made_of() {
    let fixture = images();
    for (image, to) in [("i.iso", "from genisoimage"), ("x.iso", "from xorriso")] {
        let report = fixture.json(&["extract", "--json", "--to", to, image]);
        assert_same(&fixture.path("tree"), &fixture.path(to));
        assert_eq!(report["hard_links"], 2, "{report}");
        assert_eq!(report["symlinks"], 4, "{report}");
        assert_eq!(report["directories"], 6, "{report}");
        assert_eq!(report["skipped"], json!([]));
    }
}

#[test]
fn a_path_is_extracted_under_its_own_name() {
    let fixture = images();
    fixture.write("here/kept", "");
    let mut command = fixture.command(&["extract", "../i.iso", "a/b/c", "/./a/../small"]);
    let said = Said::new(command.current_dir(fixture.path("here")).output().unwrap());
    assert_eq!(said.with(0).complaint, "");
    let names: Vec<_> = snapshot(&fixture.path("here")).into_keys().collect();
    let names: Vec<_> = names
        .iter()
        .map(|name| str::from_utf8(name).unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "",
            "a",
            "a/b",
            "a/b/c",
            "a/b/c/d",
            "a/b/c/d/deep",
            "kept",
            "small"
        ]
    );
    // The directories on the way are as in the image, too; the existing directory is not changed.
    for name in ["a", "a/b", "small"] {
        let [made, original] =
            ["here", "tree"].map(|top| fs::metadata(fixture.path(top).join(name)).unwrap());
        assert_eq!(
            (made.mode(), made.mtime()),
            (original.mode(), original.mtime())
        );
    }
    assert!(fs::metadata(fixture.path("here")).unwrap().mtime() > 1_600_000_000);

    fixture
        .iso(&["extract", "-C", "partly", "i.iso", "no/such", "small"])
        .with(1)
        .mentions("goanna: /no/such: No such file or directory\n");
    assert_eq!(fs::read(fixture.path("partly/small")).unwrap(), b"hello\n");
    // A path that does not exist selects nothing.
    fixture
        .iso(&["extract", "-C", "nothing", "i.iso", "no/such"])
        .with(1);
    assert_eq!(fs::read_dir(fixture.path("nothing")).unwrap().count(), 0);
}

#[test]
fn files_in_the_way_stay_unless_forced() {
    let fixture = images();
    fixture.write("out/small", "mine\n");
    fixture.write("out/a/mine", "mine, too\n");
    fixture.write("out/link/file", "a directory where the image has a link\n");
    fixture.write("out/void", "a file where the image has a directory\n");
    let args = ["extract", "--to", "out", "i.iso"];
    let said = fixture.iso(&args).with(1);
    for name in ["small", "link"] {
        let told = format!("goanna: /{name}: a host ");
        assert!(said.complaint.contains(&told), "{}", said.complaint);
    }
    assert!(said.complaint.contains("goanna: /void: on the host: "));
    let read = |name: &str| fs::read_to_string(fixture.path("out").join(name)).unwrap();
    assert_eq!(read("small"), "mine\n");
    assert_eq!(read("a/mine"), "mine, too\n");
    assert_eq!(read("a/b/c/d/deep"), "deep\n");

    let args = ["extract", "--force", "--to", "out", "i.iso"];
    // A directory is not removed for a link.
    fixture.iso(&args).with(1).mentions("goanna: /link: ");
    assert_eq!(read("small"), "hello\n");
    assert_eq!(read("a/mine"), "mine, too\n");
    assert!(fixture.path("out/void").is_dir());
    assert!(fixture.path("out/link/file").exists());
}

#[test]
fn names_without_modes_are_made_as_new_files() {
    let fixture = images();
    for names in ["joliet", "plain"] {
        // A shell, because a umask is the whole process's.
        let script = "umask 027; exec \"$0\" iso extract --namespace $1 --to $1 j.iso";
        let output = Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_goanna"), names])
            .current_dir(fixture.path(""))
            .output();
        assert_eq!(Said::new(output.unwrap()).with(0).complaint, "");
        let made = |name: &str| fs::metadata(fixture.path(names).join(name)).unwrap();
        assert_eq!(made("a").mode(), 0o040_750);
        assert_eq!(made("small").mode(), 0o100_640);
        let original = fs::metadata(fixture.path("tree/small")).unwrap();
        assert_eq!(made("small").mtime(), original.mtime());
        // No owner is recorded, so root is none, either.
        let own = nix::unistd::geteuid().as_raw();
        assert_eq!(made("small").uid(), own);
    }
    let unicode = fixture.path("joliet/gr\u{fc}n \u{65e5}");
    assert_eq!(fs::read(unicode).unwrap(), b"unicode\n");
}

#[test]
fn an_ordinary_user_gets_all_but_what_only_root_can_make() {
    let fixture = images();
    fixture.public("mine");
    let said = fixture.iso_as_nobody(&["extract", "--to", "mine/out", "i.iso"]);
    let out = fixture.path("mine/out");
    if is_root() {
        assert_eq!(said.status, 1, "{}", said.complaint);
        assert_eq!(
            said.complaint,
            "goanna: /null: only root can make device nodes\n"
        );
        // It would now be another user's.
        let small = fs::metadata(out.join("small")).unwrap();
        assert_eq!((small.uid(), small.mode()), (NOBODY, 0o100_755));
    } else {
        said.with(0);
    }
    let large = fs::metadata(out.join("large")).unwrap();
    assert_eq!(large.mode() & 0o777, 0o750);
    // The file is readable, although by the modes in the image only another user may read it.
    assert_eq!(fs::read(out.join("zeros")).unwrap(), vec![0; 300_000]);
    assert_eq!(fs::read(out.join("large")).unwrap(), noise(3_000_001));
    let said = fixture.iso_as_nobody(&["cat", "i.iso", "zeros", "a/b/c/d/deep"]);
    assert_eq!(said.with(0).out.len(), 300_005);
}

#[test]
fn directories_are_listed() {
    let fixture = images();
    assert_eq!(fixture.good(&["ls", "i.iso", "a"]), "b\noutside\n");
    assert_eq!(
        fixture.good(&["ls", "i.iso", "small", "a/b/c"]),
        "small\n\n/a/b/c:\nd\n".replace("small", "/small")
    );
    assert!(!fixture.good(&["ls", "i.iso"]).contains(".dot"));
    assert!(fixture.good(&["ls", "-a", "i.iso"]).contains(".dot\n"));
    assert_eq!(
        fixture.good(&["ls", "-R", "i.iso", "a"]),
        "/a:\nb\noutside\n\n/a/b:\nc\nsmall again\nup\n\n/a/b/c:\nd\n\n/a/b/c/d:\ndeep\n"
    );
    let long = fixture.good(&["ls", "-l", "i.iso", "a"]);
    assert!(long.contains(" outside -> /etc/passwd\n"), "{long}");
    assert!(long.starts_with("dr-xr-xr-x "), "{long}");
    let plain = fixture.good(&["ls", "--namespace", "plain", "i.iso"]);
    assert!(plain.contains("empty_fi"), "{plain}");

    // In a pipe names are bytes, in JSON they are exact.
    let names = fixture.iso(&["ls", "i.iso"]).with(0).out;
    assert_eq!(find(&names, b"not utf8 \xff\xfe\x80\n").len(), 1);
    let list = fixture.json(&["ls", "-R", "-a", "--json", "i.iso"]);
    let list = list.as_array().unwrap();
    let tree = snapshot(&fixture.path("tree"));
    assert_eq!(list.len(), tree.len() - 1);
    for entry in list {
        let path = match entry["path_bytes"].as_str() {
            Some(hex) => (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect(),
            None => entry["path"].as_str().unwrap().as_bytes().to_vec(),
        };
        let path = std::ffi::OsString::from_vec(path[1..].to_vec());
        let meta = fs::symlink_metadata(fixture.path("tree").join(path)).unwrap();
        assert_eq!(entry["mode"], format!("{:04o}", meta.mode() & 0o7777));
        assert_eq!(entry["mtime"]["sec"], meta.mtime());
        assert_eq!(entry["uid"], meta.uid());
        if meta.is_file() {
            assert_eq!(entry["size"], meta.len());
        }
    }
    fixture
        .iso(&["ls", "i.iso", "no", "a"])
        .with(1)
        .mentions("goanna: /no: No such file or directory\n");
}

#[test]
fn attribute_records_are_shown() {
    let fixture = Fixture::new();
    let image = seed::decode(include_bytes!("../../isofs/seeds/images/attributes"));
    fs::write(fixture.path("x.iso"), image).unwrap();
    for names in ["joliet", "plain"] {
        let list = fixture.json(&["ls", "--json", "--namespace", names, "x.iso"]);
        let list = list.as_array().unwrap();
        let entry = |path: &str| list.iter().find(|entry| entry["path"] == path).unwrap();
        let first = entry("/file0.txt");
        assert_eq!(first["mode"], "0100");
        assert_eq!((&first["uid"], &first["gid"]), (&json!(7), &json!(9)));
        assert_eq!(first["mtime"]["sec"], 978_393_600);
        assert_eq!(first["btime"]["sec"], 978_307_200);
        // With an invalid version, and without the flag of the directory record by which the attributes
        // count.
        for (path, made) in [("/file3.txt", false), ("/file5.txt", true)] {
            let entry = entry(path);
            assert_eq!((&entry["mode"], &entry["uid"]), (&json!("0555"), &json!(0)));
            assert_eq!(entry["btime"].is_object(), made, "{path}");
        }
        // A user who can read the image can read all files, whatever their modes; new files have other modes.
        let said = fixture.iso_as_nobody(&["cat", "x.iso", "/file0.txt", "/file4.txt"]);
        assert_eq!(said.with(0).out, b"content 0\ncontent 4\n");
        fixture.good(&["extract", "--namespace", names, "--to", names, "x.iso"]);
        let made = fs::metadata(fixture.path(names).join("file0.txt")).unwrap();
        assert_eq!(made.mtime(), 978_393_600);
        assert_eq!(made.mode() & 0o600, 0o600);
    }
}

#[test]
fn files_are_printed() {
    let fixture = images();
    for image in ["i.iso", "x.iso"] {
        let said = fixture.iso(&["cat", image, "a/b/up", "/large"]).with(0);
        assert_eq!(said.out, [b"hello\n", &noise(3_000_001)[..]].concat());
    }
    // A link to the outside is one within the image.
    let said = fixture.iso(&["cat", "i.iso", "a/outside", "a", "fifo", "small"]);
    let said = said.with(1);
    assert_eq!(said.out, b"hello\n");
    assert_eq!(
        said.complaint,
        "goanna: a/outside: No such file or directory\ngoanna: a: Is a directory\n\
         goanna: fifo: No such device or address\n"
    );
}

#[test]
fn the_properties_of_an_image_are_printed() {
    let fixture = images();
    let text = fixture.good(&["info", "j.iso"]);
    for line in [
        "volume        GENERATED\n",
        "publisher     Somebody\n",
        "names         Rock Ridge (RRIP_1991A), Joliet (level 3), plain\n",
        "names in use  Rock Ridge\n",
        "UDF, too      no\n",
        "damaged       0\n",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let info = fixture.json(&["info", "--json", "j.iso"]);
    let size = fs::metadata(fixture.path("j.iso")).unwrap().len();
    assert_eq!(info["image_bytes"], size);
    assert_eq!(info["volume"]["bytes"], size);
    assert_eq!(info["volume"]["block_size"], 2048);
    assert_eq!(info["volume"]["volume_id"], "GENERATED");
    assert_eq!(info["joliet_volume"]["volume_id"], "GENERATED");
    assert_eq!(info["namespace"], "rockridge");
    assert_eq!(
        info["namespaces"],
        json!({"rock_ridge": "RRIP_1991A", "joliet": 3, "enhanced": false})
    );
    assert_eq!(
        (&info["symlinks"], &info["directories"]),
        (&json!(4), &json!(6))
    );
    assert_eq!(info["damage"], json!([]));
    let made = info["volume"]["created"]["sec"].as_i64().unwrap();
    let written = fs::metadata(fixture.path("j.iso")).unwrap().mtime();
    assert!(
        (written - 600..=written + 1).contains(&made),
        "{made} {written}"
    );

    let info = fixture.json(&["info", "--json", "--namespace", "joliet", "x.iso"]);
    assert_eq!(info["namespace"], "joliet");
    assert_eq!(info["volume"]["volume_id"], "WRITTEN");
}

#[test]
fn sessions_boot_images_udf_and_compressed_files_are_printed() {
    let fixture = Fixture::new();
    fixture.write("tree/boot/bios.img", vec![7; 4096]);
    fixture.write("tree/text", "first\n".repeat(50_000));
    fixture.tool(
        "genisoimage",
        "-quiet -R -udf -b boot/bios.img -c boot/catalog -no-emul-boot -boot-load-size 4 -o boot.iso tree",
    );
    let info = fixture.json(&["info", "--json", "boot.iso"]);
    assert_eq!(info["udf_bridge"], true);
    let boot = &info["boot"][0];
    assert_eq!(info["boot"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&boot["platform"], &boot["emulation"]),
        (&json!("x86"), &json!("none"))
    );
    assert_eq!(
        (&boot["load_sectors"], &boot["bootable"]),
        (&json!(4), &json!(true))
    );
    let start = boot["block"].as_u64().unwrap() as usize * 2048;
    assert_eq!(
        fs::read(fixture.path("boot.iso")).unwrap()[start..start + 2],
        [7, 7]
    );
    let text = fixture.good(&["info", "boot.iso"]);
    assert!(text.contains("x86, emulation none, block "), "{text}");

    let quiet = "-abort_on SORRY -report_about SORRY";
    fixture.tool(
        "xorriso",
        &format!("{quiet} -outdev z.iso -map tree / -set_filter_r --zisofs / -- -commit"),
    );
    assert!(fixture.json(&["info", "--json", "z.iso"])["zisofs"].as_u64() >= Some(1));
    let said = fixture.iso(&["cat", "z.iso", "text"]).with(0);
    assert_eq!(said.text(), "first\n".repeat(50_000));

    fixture.tool(
        "xorriso",
        &format!("{quiet} -outdev s.iso -volid ONE -map tree / -commit"),
    );
    fixture.write("new", "second\n");
    fixture.tool(
        "xorriso",
        &format!("{quiet} -dev s.iso -volid TWO -rm /text -- -map new /new -commit"),
    );
    let info = fixture.json(&["info", "--json", "s.iso"]);
    assert_eq!(info["session"], 2);
    let names: Vec<_> = info["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| &s["volume_id"])
        .collect();
    assert_eq!(names, [&json!("ONE"), &json!("TWO")]);
    assert_eq!(fixture.good(&["ls", "s.iso"]), "boot\nnew\n");
    assert_eq!(
        fixture.good(&["ls", "--session", "1", "s.iso"]),
        "boot\ntext\n"
    );
    assert_eq!(
        fixture.json(&["info", "--json", "--session", "1", "s.iso"])["session"],
        1
    );
    fixture
        .iso(&["ls", "--session", "3", "s.iso"])
        .with(125)
        .mentions("s.iso: no session 3: the image has 2\ngoanna: hint: goanna iso info");
    fixture
        .iso(&["info", "--namespace", "joliet", "s.iso"])
        .with(125)
        .mentions("the image has no Joliet names\ngoanna: hint: goanna iso info");
}

#[test]
fn what_is_no_image_is_refused() {
    let fixture = Fixture::new();
    fixture.write("text", "no image\n");
    fs::create_dir(fixture.path("dir")).unwrap();
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o644);
    nix::unistd::mkfifo(&fixture.path("fifo"), mode).unwrap();
    for args in [&["info"][..], &["ls"], &["extract", "--to", "out"]] {
        let on = |image| fixture.iso(&[args, &[image]].concat()).with(125);
        on("text").mentions("goanna: text: not an ISO 9660 image: ");
        on("dir").mentions("goanna: dir: Is a directory\n");
        on("missing").mentions("goanna: missing: No such file or directory\n");
        on("fifo").mentions("goanna: fifo: Illegal seek\n");
    }
    assert!(!fixture.path("out").exists());
    for args in [
        &["ls"][..],
        &["cat", "text"],
        &["ls", "--namespace", "udf", "text"],
        &["ls", "--session", "0", "text"],
        &["extract", "--to"],
    ] {
        fixture.iso(args).with(125);
    }
}
