//! `goanna iso` on images that are cut, changed, or made to do harm: real ones, with bytes exchanged.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use common::{Fixture, snapshot};
use images::{Said, find, images, noise};
use serde_json::Value;

mod common;
mod images;

/// Runs `extract` of a hostile image, as root and as an ordinary user, with and without the attacked files in the
/// target. Checks that only the target has changed, and returns the outputs.
fn nothing_outside(fixture: &Fixture, image: &str) -> Vec<Said> {
    let mut all = Vec::new();
    for (number, force) in [false, true, false, true].into_iter().enumerate() {
        let name = format!("{image} box {number}");
        fixture.public(&name);
        fixture.write(&format!("{name}/outside/victim"), "untouched\n");
        fixture.public(&format!("{name}/in"));
        let [outside, above] = ["outside", "in"].map(|dir| fixture.path(&name).join(dir));
        fs::set_permissions(&outside, Permissions::from_mode(0o777)).unwrap();
        let before = snapshot(&outside);
        let target = format!("{name}/in/target");
        let mut args = vec!["extract", "--to", &target, image];
        if force {
            args.push("--force");
        }
        all.push(if number < 2 {
            fixture.iso(&args)
        } else {
            fixture.iso_as_nobody(&args)
        });
        assert_eq!(before, snapshot(&outside), "{image} {number}");
        let beside: Vec<_> = fs::read_dir(&above)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(beside, ["target"], "{image} {number}");
        let beside: Vec<_> = snapshot(&fixture.path(&name)).into_keys().collect();
        assert!(
            beside.iter().all(|name| matches!(&name[..], b"" | b"in")
                || name.starts_with(b"in/target")
                || name.starts_with(b"outside")),
            "{beside:?}"
        );
    }
    all
}

#[test]
fn names_that_lead_elsewhere_are_damage() {
    let fixture = Fixture::new();
    // Names as Rock Ridge records them; the plain ones are other bytes.
    for (dir, name) in [
        ("one", "xx+xx+planted"),
        ("two", "+tmp+goanna-iso-planted"),
        ("three", "q+"),
        ("four", "nul+planted"),
    ] {
        fixture.write(&format!("tree/{dir}/{name}"), "planted\n");
    }
    fixture.write("tree/good", "good\n");
    fixture.tool("genisoimage", "-quiet -R -o i.iso tree");
    fixture.patch("i.iso", b"xx+xx+planted", b"../../planted");
    fixture.patch(
        "i.iso",
        b"+tmp+goanna-iso-planted",
        b"/tmp/goanna-iso-planted",
    );
    fixture.patch("i.iso", b"NM\x07\x01\0q+", b"NM\x07\x01\0..");
    fixture.patch("i.iso", b"nul+planted", b"nul\0planted");
    for said in nothing_outside(&fixture, "i.iso") {
        for dir in ["one", "two", "three", "four"] {
            let told = format!("goanna: /{dir}: in the image: ");
            assert!(said.complaint.contains(&told), "{dir}: {}", said.complaint);
        }
        said.with(1).mentions(" at byte ");
    }
    assert!(!Path::new("/tmp/goanna-iso-planted").exists());
    assert!(fixture.path("i.iso box 0/in/target/good").exists());
    let said = fixture.iso(&["ls", "-R", "i.iso"]).with(1);
    assert!(said.text().contains("good\n"));
    let said = fixture.iso(&["info", "--json", "i.iso"]).with(1);
    let info: Value = serde_json::from_slice(&said.out).unwrap();
    assert_eq!(info["damaged"], 4);
    assert!(info["damage"][0]["offset"].as_u64() > Some(32768), "{info}");
}

#[test]
fn a_damaged_record_does_not_hide_the_names_beside_it() {
    let fixture = Fixture::new();
    for name in ["one", "two", "three"] {
        fixture.write(&format!("tree/{name}"), format!("{name}\n"));
    }
    fixture.tool("genisoimage", "-quiet -R -o i.iso tree");
    let mut bytes = fs::read(fixture.path("i.iso")).unwrap();
    let name = find(&bytes, b"NM\x08\x01\0two")[0];
    let field = name + find(&bytes[name..], b"PX")[0];
    bytes[field + 2] = 3;
    fs::write(fixture.path("i.iso"), bytes).unwrap();
    let told = format!("System Use field PX at byte {field}: its length of 3 is wrong\n");
    let of_name = format!("goanna: /two: {told}");
    let skipped = format!("goanna: /two: in the image: {told}");
    let said = fixture.iso(&["ls", "i.iso"]).with(1).mentions(&of_name);
    assert_eq!(said.text(), "one\nthree\n");
    fixture
        .iso(&["extract", "--to", "out", "i.iso"])
        .with(1)
        .mentions(&skipped);
    let made = snapshot(&fixture.path("out")).into_keys();
    assert_eq!(made.collect::<Vec<_>>(), [&b""[..], b"one", b"three"]);
    fixture
        .iso(&["cat", "i.iso", "two"])
        .with(1)
        .mentions(&told);
    let said = fixture.iso(&["cat", "i.iso", "one", "three"]).with(0);
    assert_eq!(said.text(), "one\nthree\n");
    let said = fixture.iso(&["info", "--json", "i.iso"]).with(1);
    let info: Value = serde_json::from_slice(&said.out).unwrap();
    assert_eq!((&info["damaged"], &info["files"]), (&1.into(), &2.into()));
    assert_eq!(info["damage"][0]["path"], "/two");
}

#[test]
fn links_of_the_image_are_not_followed() {
    let fixture = Fixture::new();
    // A link, and a directory that gets the link's name: once the link comes first in the image, once the directory.
    for (image, link, dir) in [
        ("first.iso", "alink", "zlink"),
        ("last.iso", "zlink", "alink"),
    ] {
        let tree = format!("tree of {image}");
        fixture.write(&format!("{tree}/{dir}/planted"), "planted\n");
        fixture.write(&format!("{tree}/{dir}/victim"), "overwritten\n");
        symlink("../../outside", fixture.path(&tree).join(link)).unwrap();
        fs::rename(fixture.path(&tree), fixture.path("tree")).unwrap();
        fixture.tool("genisoimage", &format!("-quiet -R -o {image} tree"));
        fs::rename(fixture.path("tree"), fixture.path(&tree)).unwrap();
        let field = |name: &str| [b"NM\x0a\x01\0", name.as_bytes()].concat();
        fixture.patch(image, &field(dir), &field(link));
        nothing_outside(&fixture, image);
        // Of the two, only the first is listed, under the name of both.
        let made = fixture.path(&format!("{image} box 0/in/target")).join(link);
        assert_eq!(made.is_symlink(), image == "first.iso");
        assert_eq!(made.join("planted").exists(), image == "last.iso");
    }
    // Attacks files beside and above the target, by links that exist in the target already.
    fixture.write("tree/dir/planted", "planted\n");
    fixture.write("tree/file", "planted\n");
    fixture.tool("genisoimage", "-quiet -R -o plain.iso tree");
    for force in [false, true] {
        let name = format!("linked {force}");
        fixture.write(&format!("{name}/outside/victim"), "untouched\n");
        fs::create_dir(fixture.path(&name).join("target")).unwrap();
        let target = fixture.path(&name).join("target");
        symlink("../outside", target.join("dir")).unwrap();
        symlink("../outside/victim", target.join("file")).unwrap();
        let before = snapshot(&fixture.path(&name).join("outside"));
        let to = format!("{name}/target");
        let args = ["extract", "--to", &to, "plain.iso", "--force"];
        let said = fixture.iso(&args[..if force { 5 } else { 4 }]);
        assert_eq!(before, snapshot(&fixture.path(&name).join("outside")));
        if force {
            said.with(0);
            assert_eq!(fs::read(target.join("dir/planted")).unwrap(), b"planted\n");
            assert!(!target.join("file").is_symlink());
        } else {
            let said = said.with(1);
            assert!(
                said.complaint.contains("/dir: on the host: "),
                "{}",
                said.complaint
            );
            assert!(target.join("dir").is_symlink() && target.join("file").is_symlink());
        }
    }
}

/// Lets the directory record of the plain name `name` lead to the directory that begins at `block`.
fn lead(fixture: &Fixture, image: &str, name: &str, block: u32) {
    let mut bytes = fs::read(fixture.path(image)).unwrap();
    let identifier = [&[name.len() as u8][..], name.as_bytes()].concat();
    // Path tables begin an entry with the length of the name, too; their next byte is not a flag of a directory.
    let records: Vec<_> = find(&bytes, &identifier)
        .into_iter()
        .filter(|place| bytes[place - 7] == 2 && bytes[place - 4..place - 2] == [1, 0])
        .collect();
    let [place] = records[..] else {
        panic!("{name} has {} records", records.len())
    };
    let start = place - 32;
    bytes[start + 2..start + 6].copy_from_slice(&block.to_le_bytes());
    bytes[start + 6..start + 10].copy_from_slice(&block.to_be_bytes());
    fs::write(fixture.path(image), bytes).unwrap();
}

fn root_block(fixture: &Fixture, image: &str) -> u32 {
    let bytes = fs::read(fixture.path(image)).unwrap();
    u32::from_le_bytes(bytes[32768 + 158..32768 + 162].try_into().unwrap())
}

#[test]
fn directories_in_cycles_and_in_two_places_end() {
    let fixture = Fixture::new();
    fixture.write("tree/round/file", "file\n");
    fixture.write("tree/good", "good\n");
    fixture.tool("genisoimage", "-quiet -R -o i.iso tree");
    lead(&fixture, "i.iso", "ROUND", root_block(&fixture, "i.iso"));
    for args in [&["ls", "-R"][..], &["info"], &["extract", "--to", "round"]] {
        let said = fixture.iso(&[args, &["i.iso"]].concat()).with(1);
        let all = said.complaint.clone() + &said.text();
        assert!(all.contains("/round: "), "{all}");
    }
    assert_eq!(fs::read(fixture.path("round/good")).unwrap(), b"good\n");

    // Each of twenty levels has two directories that lead to the next: a million ways, if all were taken.
    let depth = 20;
    for level in 0..depth {
        fixture.write(&format!("wide/a{level}/inner{level}/file"), "file\n");
        fixture.write(&format!("wide/a{level}/other{level}/file"), "file\n");
    }
    fixture.tool("genisoimage", "-quiet -R -o wide.iso wide");
    let list = fixture.json(&["ls", "--json", "wide.iso"]);
    let block = |level: usize| {
        // The inode number of a directory is the place of its content.
        let name = format!("a{level}");
        let entry = list
            .as_array()
            .unwrap()
            .iter()
            .find(|entry| entry["name"] == *name);
        u32::try_from(entry.unwrap()["ino"].as_u64().unwrap() / 2048).unwrap()
    };
    for level in 0..depth - 1 {
        lead(
            &fixture,
            "wide.iso",
            &format!("INNER{level}"),
            block(level + 1),
        );
        lead(
            &fixture,
            "wide.iso",
            &format!("OTHER{level}"),
            block(level + 1),
        );
    }
    for args in [
        &["ls", "-R"][..],
        &["info"],
        &["extract", "--to", "wide out"],
    ] {
        let said = fixture.iso(&[args, &["wide.iso"]].concat()).with(1);
        let all = said.complaint.clone() + &said.text();
        assert!(all.contains("appears in two places"), "{all}");
    }
}

#[test]
fn a_cut_image_gives_what_is_there_and_says_what_is_not() {
    let fixture = images();
    let whole = fs::read(fixture.path("i.iso")).unwrap();
    let large = find(&whole, &noise(3_000_001)[..4096])[0];
    fs::write(fixture.path("cut.iso"), &whole[..large + 1_000_000]).unwrap();
    let said = fixture.iso(&["extract", "--to", "out", "cut.iso"]).with(1);
    let told = format!("goanna: /large: in the image: file data at byte {}", large);
    assert!(said.complaint.contains(&told), "{}", said.complaint);
    // No partial file has the name.
    assert!(!fixture.path("out/large").exists());
    let said = fixture.iso(&["cat", "cut.iso", "large"]).with(1);
    assert!(
        said.complaint.contains("goanna: large: file data at byte "),
        "{}",
        said.complaint
    );
    let said = fixture.iso(&["info", "--json", "cut.iso"]).with(1);
    let info: Value = serde_json::from_slice(&said.out).unwrap();
    assert_eq!(info["missing_bytes"], whole.len() - large - 1_000_000);
    let large = info["damage"]
        .as_array()
        .unwrap()
        .iter()
        .find(|found| found["path"] == "/large");
    assert_eq!(large.unwrap()["record"], "file data");

    fixture.public("mine");
    let mut lengths: Vec<usize> = (0..100).map(|sector| sector * 2048).collect();
    lengths.extend([1, 32767, 32769, 34815, 36864 + 1, 40000, 51234, 77777]);
    lengths.sort_unstable();
    let root_end = (root_block(&fixture, "i.iso") as usize + 1) * 2048;
    let (mut opened, mut complete) = (false, false);
    for (number, len) in lengths.into_iter().enumerate() {
        fs::write(fixture.path("cut.iso"), &whole[..len]).unwrap();
        // Every command begins with the root directory.
        let opens = fixture.iso(&["ls", "cut.iso"]).status != 125;
        assert!(!opens || len >= root_end, "{len}: no root directory");
        assert!(opens || !opened, "{len}: less was enough");
        opened = opens;
        let to = format!("mine/{len}");
        let commands = [&["info"][..], &["ls", "-lR"], &["extract", "--to", &to]];
        for args in commands {
            let args = [args, &["cut.iso"]].concat();
            let said = if number % 2 == 0 {
                fixture.iso(&args)
            } else {
                fixture.iso_as_nobody(&args)
            };
            let is_silent = said.complaint.is_empty() && !said.text().contains("damage  ");
            // Contents are always missing, which a list does not notice once it has all directories.
            let expected = match (opens, args[0]) {
                (false, _) => 125,
                (true, "ls") => i32::from(!is_silent),
                (true, _) => 1,
            };
            assert_eq!(said.status, expected, "{len} {args:?}: {}", said.complaint);
            assert_eq!(is_silent, expected == 0, "{len} {args:?}");
            assert!(!said.complaint.contains("panicked"), "{}", said.complaint);
            if args[0] == "ls" {
                assert!(is_silent || !complete, "{len}: less was enough");
                complete = is_silent;
            }
        }
    }
    assert!(opened && complete, "100 sectors have all directories");
}

#[test]
fn changed_bytes_never_panic() {
    let fixture = images();
    let whole = fs::read(fixture.path("i.iso")).unwrap();
    // Descriptors, path tables and directories come before the files.
    let end = find(&whole, b"hello\n")[0].min(100 * 2048);
    let mut random = 12345_u64;
    let mut next = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    for round in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..30 {
            bytes[32768 + next(end - 32768)] = next(256) as u8;
        }
        fs::write(fixture.path("changed.iso"), &bytes).unwrap();
        let to = format!("out {round}");
        let opens = fixture.iso(&["ls", "changed.iso"]).status != 125;
        for args in [
            &["info", "--json"][..],
            &["ls", "-R", "--json"],
            &["extract", "--json", "--to", &to],
        ] {
            let said = fixture.iso(&[args, &["changed.iso"]].concat());
            assert!(!said.complaint.contains("panicked"), "{}", said.complaint);
            let found = opens.then(|| serde_json::from_slice::<Value>(&said.out).unwrap());
            let expected = match found {
                None => 125,
                // The report of `info` has its findings in the JSON, the others have theirs on stderr.
                Some(found) if args[0] == "info" => i32::from(found["damaged"] != 0),
                Some(_) => i32::from(!said.complaint.is_empty()),
            };
            let complaint = &said.complaint;
            assert_eq!(said.status, expected, "{round} {args:?}: {complaint}");
        }
    }
}
