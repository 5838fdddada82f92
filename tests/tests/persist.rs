//! What one run wrote is what everything later sees: the next run, `export`, `cat`, `ls`; after a clean end, after
//! SIGKILL in the middle, and when the disk was full.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use goanna_tests::{
    Backend, Engine, Facility, Intercept, Place, User, finish, in_every_place, is_long, is_root,
    program, same_tree, skip, tree,
};
use rustix::process::{Pid, Signal};

in_every_place! {
    next_run => the_next_run_sees_what_the_last_one_wrote;
}

/// Makes a tree with some of everything, the same each time; umask and times are fixed.
const MAKE_TREE: &str = r#"
umask 022; mkdir tree && cd tree
printf small > small; : > empty; head -c 4096 /dev/zero | tr '\0' p > page; head -c 4097 /dev/zero | tr '\0' q > page1
seq 1 60000 > big; truncate -s 3M sparse; printf end >> sparse; printf middle | dd of=sparse bs=1 seek=1000000 conv=notrunc status=none
mkdir -p deep/er/and/deeper; echo x > deep/er/and/deeper/file
ln -s small link; ln -s nowhere/at/all dangling; ln big hard1; ln big deep/hard2
mkfifo fifo; mkdir empty-dir; chmod 700 empty-dir; chmod 640 small; chmod 4755 page; mkdir sticky; chmod 1777 sticky
for i in $(seq 1 120); do echo "file $i" > deep/n$i; done; for i in $(seq 1 2 120); do rm deep/n$i; done
mv deep/er renamed; mv renamed/and deep/moved; printf '\xff\xfe' > $'bad-\xff-name'; printf 'x' > 'name with  blanks'
setfattr -n user.note -v 'some value' small
echo overwritten > page1; truncate -s 5000 page; exec 5>unlinked; rm unlinked; echo gone >&5; exec 5>&-
find . -exec touch -h -d '2020-02-03 04:05:06.789012345' {} +
"#;

/// The tree as the host makes it.
fn expected(place: &Place) -> BTreeMap<Vec<u8>, String> {
    let native = place.make_dir("native");
    let script = format!("cd {} && {MAKE_TREE}", native.display());
    finish(place.native("/bin/bash").args(["-c", &script])).expect(0);
    tree(&native.join("tree"))
}

fn the_next_run_sees_what_the_last_one_wrote(place: Place) {
    let expected = expected(&place);
    finish(&mut place.shell(MAKE_TREE)).expect(0);
    if place.backend() == Backend::Pass {
        same_tree(&expected, &tree(&place.path("pass/tree")));
    }
    // A further run copies it out.
    let out = place.make_dir("out");
    finish(&mut place.shell(&format!("cp -a tree {}/", out.display()))).expect(0);
    same_tree(&expected, &tree(&out.join("tree")));
    if place.backend() == Backend::Pass {
        return;
    }
    let exported = export(&place);
    same_tree(&expected, &tree(&exported));
    commands_show_the_tree(&place);
    place.fsck();
    // And in again, into another store.
    let other = Place::new(place.backend(), Intercept::Notify, place.user());
    finish(other.amino_command("import").arg(&exported).arg("/tree")).expect(0);
    same_tree(&expected, &tree(&export(&other)));
    other.fsck();
}

/// Copies `/tree` out of the store by `amino export`, and returns where it is then.
fn export(place: &Place) -> PathBuf {
    let to = place.make_dir("export").join("tree");
    finish(place.amino_command("export").arg("/tree").arg(&to)).expect(0);
    to
}

/// `amino cat` and `amino ls` find in the tree what the host has in its own one.
fn commands_show_the_tree(place: &Place) {
    for name in [
        "small",
        "empty",
        "page",
        "page1",
        "big",
        "sparse",
        "deep/moved/deeper/file",
        "link",
    ] {
        let got = finish(place.amino_command("cat").arg(format!("/tree/{name}"))).expect(0);
        let wanted = fs::read(place.path("native/tree").join(name)).unwrap();
        assert!(
            got.stdout == wanted,
            "{name}: {} bytes instead of {}",
            got.stdout.len(),
            wanted.len()
        );
    }
    let listed = finish(place.amino_command("ls").args(["-a", "/tree"])).expect(0);
    let natively = finish(
        place
            .native("/bin/ls")
            .arg("-A")
            .arg(place.path("native/tree")),
    )
    .expect(0);
    let names = |bytes: &[u8]| {
        let mut names: Vec<Vec<u8>> = bytes
            .split(|b| *b == b'\n')
            .filter(|name| !matches!(*name, b"" | b"." | b".."))
            .map(<[u8]>::to_vec)
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&listed.stdout), names(&natively.stdout));
}

/// Kills the monitor in the middle of a loop that makes numbered files; a prefix must be there.
fn prefix_after_kill(engine: Engine, intercept: Intercept, durable: bool, after: Duration) {
    let place = Place::new(Backend::Amino(engine), intercept, User::Own);
    // Each file has its own number as content, and every tenth is renamed once it is whole.
    let sync = if durable { "sync f$i;" } else { "" };
    let script = format!(
        "i=0; while :; do i=$((i+1)); echo $i > f$i; {sync} echo $i >&3; \
         if [ $((i % 10)) = 0 ]; then mv f$i g$i; fi; done 3>>{}",
        place.path("host/done").display()
    );
    let mut child = place
        .shell(&script)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let done = || -> u64 {
        let text = fs::read_to_string(place.path("host/done")).unwrap_or_default();
        text.lines()
            .last()
            .and_then(|line| line.parse().ok())
            .unwrap_or(0)
    };
    let end = Instant::now() + Duration::from_secs(60);
    while done() == 0 {
        assert!(Instant::now() < end, "it did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    // What is older than a second and a half has reached the disk by itself.
    const AGE: Duration = Duration::from_millis(1500);
    std::thread::sleep(after.saturating_sub(AGE));
    let old = if after > AGE { done() } else { 0 };
    std::thread::sleep(after.min(AGE));
    let (owner, _) = place.owner().unwrap();
    rustix::process::kill_process(Pid::from_raw(owner).unwrap(), Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(125));
    let acknowledged = done();

    place.fsck();
    let last = prefix_length(&place);
    assert!(
        last <= acknowledged + 1,
        "{last} files, {acknowledged} were made"
    );
    // The next file may have been begun when the last old one was reported.
    assert!(
        last >= old,
        "{old} files were made long before, {last} are there"
    );
    if durable {
        assert!(
            last >= acknowledged,
            "{acknowledged} were synced, {last} are there"
        );
    }
    // It continues from there.
    finish(&mut place.shell("echo more > more; cat more")).expect(0);
    place.fsck();
}

/// How many of the numbered files there are. They must be a prefix, each but the last one as the loop leaves it.
fn prefix_length(place: &Place) -> u64 {
    let out = place.make_dir("out");
    finish(place.amino_command("export").arg("/").arg(out.join("all"))).expect(0);
    let (mut there, mut incomplete) = (Vec::<u64>::new(), Vec::new());
    for entry in fs::read_dir(out.join("all")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let number: u64 = name[1..].parse().unwrap();
        there.push(number);
        if fs::read_to_string(entry.path()).unwrap() != format!("{number}\n") {
            incomplete.push((number, fs::metadata(entry.path()).unwrap().len()));
        }
    }
    there.sort_unstable();
    let last = there.len() as u64;
    assert_eq!(there, (1..=last).collect::<Vec<_>>(), "not a prefix");
    // The last one may have been created, and not written yet.
    incomplete.retain(|file| *file != (last, 0));
    assert_eq!(incomplete, []);
    for number in &there {
        let content =
            |name: &str| fs::read_to_string(out.join("all").join(format!("{name}{number}"))).ok();
        // Whole, unless it is the last one; renamed, unless the rename was the next operation.
        if *number < last {
            let name = if number % 10 == 0 { "g" } else { "f" };
            assert_eq!(
                content(name).as_deref(),
                Some(format!("{number}\n").as_str()),
                "{name}{number}"
            );
        }
    }
    last
}

#[test]
fn a_killed_monitor_leaves_a_prefix() {
    let times: &[u64] = if is_long() {
        &[0, 50, 300, 900, 1500, 3000, 5000]
    } else {
        &[30, 1700]
    };
    for engine in [Engine::Fjall, Engine::Sled] {
        for &ms in times {
            prefix_after_kill(engine, Intercept::Notify, false, Duration::from_millis(ms));
        }
    }
}

#[test]
fn a_killed_monitor_keeps_what_was_synced() {
    for (engine, intercept) in [
        (Engine::Fjall, Intercept::Notify),
        (Engine::Sled, Intercept::Ptrace),
    ] {
        prefix_after_kill(engine, intercept, true, Duration::from_millis(700));
    }
}

/// A process that writes to a file itself (docs/decisions/0121), and makes other files by calls that come to the monitor, is killed with the monitor.
fn writes_of_a_process_after_kill(engine: Engine, after: Duration) {
    let place = Place::new(Backend::Amino(engine), Intercept::Notify, User::Own);
    let program = program("records", &place.path("host"), false);
    let noted = place.path("host/done");
    let mut child = place
        .run()
        .arg(&program)
        .arg(place.top())
        .arg(&noted)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let done = || -> u64 {
        let text = fs::read_to_string(&noted).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    let end = Instant::now() + Duration::from_secs(60);
    while done() < 500 {
        assert!(Instant::now() < end, "it did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(after);
    let (owner, _) = place.owner().unwrap();
    rustix::process::kill_process(Pid::from_raw(owner).unwrap(), Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(125));
    let acknowledged = done();
    place.fsck();
    let out = place.make_dir("out").join("all");
    finish(place.amino_command("export").arg("/").arg(&out)).expect(0);
    let made = |name: &str| name.strip_prefix('m')?.parse::<u64>().ok();
    let entries = fs::read_dir(&out).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut made: Vec<u64> = names.filter_map(|name| made(&name)).collect();
    made.sort_unstable();
    let last = made.last().copied().unwrap_or(0);
    assert_eq!(made, (50..=last).step_by(50).collect::<Vec<_>>());
    assert!(
        last <= acknowledged + 50,
        "{last}, {acknowledged} were made"
    );
    // All records before the last file, and no part of one.
    let log = fs::read_to_string(out.join("log")).unwrap_or_default();
    let records = log.len() as u64 / 8;
    assert_eq!(log.len() % 8, 0);
    assert!(
        (last..=last + 50).contains(&records),
        "{records} records, {last} before the last file"
    );
    for (line, number) in log.lines().zip(1_u64..) {
        assert_eq!(line, format!("{number:07}"));
    }
}

#[test]
fn a_killed_monitor_leaves_the_writes_of_a_process_in_order() {
    let times: &[u64] = if is_long() {
        &[0, 30, 100, 500, 1500, 3000, 5000]
    } else {
        &[100, 1700]
    };
    for engine in [Engine::Fjall, Engine::Sled] {
        for &ms in times {
            writes_of_a_process_after_kill(engine, Duration::from_millis(ms));
        }
    }
}

#[test]
fn the_store_has_what_a_process_wrote_itself() {
    let place = Place::amino();
    let host = place.path("host");
    let program = program("granted", &host, false);
    let native = place.make_dir("native");
    finish(place.native(&program).arg(&native).arg(&host)).expect(0);
    finish(place.run().arg(&program).arg(place.top()).arg(&host)).expect(0);
    let out = place.make_dir("out").join("all");
    finish(place.amino_command("export").arg("/w").arg(&out)).expect(0);
    for name in ["file", "alarms", "one", "two", "refused"] {
        let wanted = fs::read(native.join("w").join(name)).unwrap();
        let found = fs::read(out.join(name)).unwrap();
        assert!(found == wanted, "{name}: {} bytes", found.len());
    }
    place.fsck();
}

/// A process appends under a grant, and is killed in the middle of a write of many pages.
#[test]
fn a_killed_process_leaves_whole_appends() {
    let place = Place::amino();
    let program = program("killed_appends", &place.path("host"), false);
    let run = finish(place.run().arg(&program).arg(place.top())).expect(0);
    assert_eq!(run.text(), "0 0\n");
    let out = place.make_dir("out").join("all");
    finish(place.amino_command("export").arg("/").arg(&out)).expect(0);
    for entry in fs::read_dir(&out).unwrap() {
        let entry = entry.unwrap();
        let len = entry.metadata().unwrap().len();
        assert!(len == 100 || len % 60_000 == 0, "{entry:?}: {len}");
    }
    place.fsck();
}

/// Mounts a small tmpfs at `dir` until it is dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn new(dir: &'a Path, size: &str) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "goanna-test"])
            .arg(dir)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        mounted.then_some(Self(dir))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

fn a_full_disk_fails_the_operation_and_keeps_the_rest(engine: Engine) {
    if !is_root() {
        skip(Facility::Root, "only root can mount a small tmpfs");
        return;
    }
    let place = Place::new(Backend::Amino(engine), Intercept::Notify, User::Own);
    let dir = place.make_dir("small");
    let Some(_disk) = SmallDisk::new(&dir, "192M") else {
        skip(Facility::Mounts, "no tmpfs can be mounted");
        return;
    };
    let store = dir.join("store");
    let engine = if engine == Engine::Fjall {
        "fjall"
    } else {
        "sled"
    };
    let amino = |args: &[&str]| {
        let mut command = place.native(goanna_tests::binary("amino"));
        command
            .arg(args[0])
            .arg("--store")
            .arg(&store)
            .args(&args[1..]);
        command
    };
    // Files of 1 MiB that do not compress, until one cannot be kept. Their sums are kept on another disk.
    let host = place.path("host").display().to_string();
    let script = format!(
        "cd /amino || exit 9; exec 3>>{host}/done; echo early > early; sync early\n\
         for i in $(seq 600); do\n\
         head -c 1048576 /dev/urandom > src && sync src || {{ echo failed at $i; exit 3; }}\n\
         sha256sum < src > {host}/sum$i; mv src f$i && sync f$i || {{ echo failed at $i; exit 3; }}\n\
         echo $i >&3\n\
         done"
    );
    let ended = goanna_tests::finish_within(
        &mut amino(&["run", "--engine", engine, "--", "/bin/bash", "-c", &script]),
        Duration::from_secs(180),
    );
    assert!(!ended.errors().contains("panicked"), "{}", ended.errors());
    assert!(
        ended.status == 3 && ended.errors().contains("No space left on device"),
        "{}: {}{}",
        ended.how(),
        ended.text(),
        ended.errors()
    );
    let done = fs::read_to_string(place.path("host/done")).unwrap_or_default();
    let done: u32 = done
        .lines()
        .last()
        .and_then(|line| line.parse().ok())
        .unwrap_or(0);
    assert!(done >= 5, "only {done} files fitted");
    // With space again all that was acknowledged is there.
    let grown = Command::new("mount")
        .args(["-o", "remount,size=800M"])
        .arg(&dir)
        .status()
        .unwrap();
    assert!(grown.success());
    finish(&mut amino(&["fsck"])).expect(0);
    let check = format!(
        "cd /amino && cat early && for i in $(seq 1 {done}); do [ \"$(sha256sum < f$i)\" = \"$(cat {host}/sum$i)\" ] || {{ echo f$i is wrong; exit 1; }}; done"
    );
    let ended = finish(&mut amino(&["run", "--", "/bin/bash", "-c", &check])).expect(0);
    assert_eq!(ended.text(), "early\n");
}

#[test]
fn a_full_disk_under_fjall() {
    a_full_disk_fails_the_operation_and_keeps_the_rest(Engine::Fjall);
}

#[test]
fn a_full_disk_under_sled() {
    a_full_disk_fails_the_operation_and_keeps_the_rest(Engine::Sled);
}

#[test]
fn data_written_while_another_thread_seeks_are_in_the_store() {
    for intercept in [Intercept::Notify, Intercept::Ptrace] {
        let place = Place::new(Backend::Amino(Engine::Fjall), intercept, User::Own);
        let program = program("seek_race", &place.path("host"), false);
        let run = |what: &str| {
            let mut command = place.run();
            finish(command.arg(&program).arg(place.top()).arg(what))
                .expect(0)
                .text()
        };
        let written = run("1000");
        assert_eq!(run("look"), written, "{intercept:?}");
    }
}

#[test]
fn every_level_of_durability_keeps_what_a_run_wrote() {
    for level in ["aci", "commit", "acid"] {
        let place = Place::amino();
        let mut run = place.amino_command("run");
        run.args([
            "--durability",
            level,
            "--",
            "/bin/bash",
            "-c",
            "cd /amino; for i in 1 2 3; do echo $i > f$i; done; mv f1 g; rm f2",
        ]);
        finish(&mut run).expect(0);
        let listed = finish(place.amino_command("ls").arg("/")).expect(0);
        assert_eq!(listed.text(), "f3\ng\n", "{level}");
        let cat = finish(place.amino_command("cat").args(["/g", "/f3"])).expect(0);
        assert_eq!(cat.text(), "1\n3\n", "{level}");
        place.fsck();
    }
}
