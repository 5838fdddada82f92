//! A program is traced natively, and its trace is replayed on mounts, under the monitor: the results, the operations and the trees are
//! those of the original.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use goanna_tests::tools::has;
use goanna_tests::{Backend, Engine, Intercept, Place, User, finish};

/// A program of this project that ordinary users need not reach.
fn tool(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let tool = own.ancestors().nth(2).unwrap().join(name);
    assert!(
        tool.is_file(),
        "build it with: cargo build --workspace --bins"
    );
    tool
}

/// A C program of the tests of another package.
fn program(directory: &Path, source: &str) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(source);
    let out = directory.join(source.file_stem().unwrap());
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-w", "-pthread", "-o"])
        .args([&out, &source]);
    finish(&mut cc).expect(0);
    out.to_str().unwrap().to_owned()
}

/// Records a command natively, and compiles the trace.
struct Original {
    scratch: tempfile::TempDir,
}

impl Original {
    fn of(command: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("original");
        fs::create_dir(&directory).unwrap();
        let mut record = Command::new(tool("goanna-trace"));
        record.args(["--data", "full", "-o"]);
        record.arg(scratch.path().join("trace")).arg("--");
        record.args(command(scratch.path())).current_dir(&directory);
        finish(&mut record).expect(0);
        let original = Self { scratch };
        let mut compile = Command::new(tool("replayer"));
        compile.arg("compile").arg(original.path("trace"));
        finish(compile.arg("-o").arg(original.path("compiled"))).expect(0);
        original
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Replays in the mount of `place`, while the run is traced.
    fn assert_replayed_on(&self, backend: Backend) {
        let place = Place::new(backend, Intercept::Notify, User::Own);
        let top = place.top();
        let again = self.path("again");
        let mut replay = place.run_with(&["--trace", again.to_str().unwrap()]);
        replay.arg(tool("replayer")).arg("run");
        let replay = replay.arg(self.path("compiled")).args(["--root", top]);
        let ended = finish(replay).expect(0);
        assert!(
            ended.text().contains("every result is that of the trace"),
            "{backend:?}: {}",
            ended.text()
        );
        let mut compare = Command::new(tool("replayer"));
        compare.arg("compare").arg(self.path("trace")).arg(again);
        let equal = finish(compare.args(["--directory-b", top]));
        assert_eq!(equal.status, 0, "{backend:?}: {}", equal.text());
        assert!(!equal.text().contains("different"), "{}", equal.text());
        let copy = place.path("host").join("copy");
        fs::create_dir(&copy).unwrap();
        let copies = format!("cp -a . {}", copy.display());
        finish(&mut place.shell(&copies)).expect(0);
        assert_eq!(
            tree(&self.path("original")),
            tree(&copy),
            "original, {backend:?}"
        );
        place.fsck();
    }

    fn assert_replayed_everywhere(&self) {
        self.assert_replayed_on(Backend::Pass);
        self.assert_replayed_on(Backend::Amino(Engine::Fjall));
        self.assert_replayed_on(Backend::Aes);
    }
}

/// What a tree has: type, permissions, number of names, content or target, and extended attributes of each file.
fn tree(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    let mut pending = vec![top.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let found = fs::symlink_metadata(&path).unwrap();
            let mut names = found.nlink();
            let content = if found.is_dir() {
                pending.push(path.clone());
                names = 1;
                "directory".to_owned()
            } else if found.is_symlink() {
                format!("link to {:?}", fs::read_link(&path).unwrap())
            } else if found.file_type().is_fifo() {
                "FIFO".to_owned()
            } else {
                let content = fs::read(&path).unwrap();
                let sum = content.iter().fold(0u64, |sum, byte| {
                    sum.wrapping_mul(0x100_0000_01b3) ^ u64::from(*byte)
                });
                format!("{} bytes, {sum:x}", content.len())
            };
            let mut list = vec![0; 4096];
            let length = rustix::fs::llistxattr(&path, &mut list[..]).unwrap_or(0);
            let mut attributes: Vec<String> = list[..length]
                .split(|byte| *byte == 0)
                .filter(|name| name.starts_with(b"user."))
                .map(|name| {
                    let mut value = vec![0; 4096];
                    let length = rustix::fs::lgetxattr(&path, name, &mut value[..]).unwrap();
                    format!("{}={:?}", name.escape_ascii(), &value[..length])
                })
                .collect();
            attributes.sort();
            let name = path.strip_prefix(top).unwrap().to_owned();
            let mode = found.mode();
            let line = format!("{mode:o} {names} {content} {}", attributes.join(" "));
            files.insert(name, line);
        }
    }
    files
}

fn script(text: &str) -> Vec<String> {
    ["sh", "-c", text].map(str::to_owned).into()
}

#[test]
fn postmark_is_replayed_on_mounts() {
    let command = |scratch: &Path| {
        let program = program(scratch, "tracer/tests/programs/postmark.c");
        vec![program, "10".into(), "20".into()]
    };
    Original::of(command).assert_replayed_everywhere();
}

#[test]
fn threads_that_depend_on_each_other_are_replayed_on_mounts() {
    let command = |scratch: &Path| {
        let program = program(scratch, "replayer/tests/programs/writers.c");
        vec![program, "10".into()]
    };
    Original::of(command).assert_replayed_everywhere();
}

#[test]
fn a_program_that_fails_often_is_replayed_on_mounts() {
    let command = |scratch: &Path| vec![program(scratch, "replayer/tests/programs/failing.c")];
    Original::of(command).assert_replayed_everywhere();
}

#[test]
fn git_is_replayed_on_mounts() {
    if !has("git") {
        return;
    }
    let text = "
        set -e
        export HOME=$PWD
        git init -q . && git config user.email a@b && git config user.name n
        for i in 1 2 3; do echo line $i > f$i; mkdir -p d$i; cp f$i d$i/g; done
        git add -A && git commit -qm one && git checkout -q -b x
        echo more >> f1; git mv f2 d1/f2; git commit -qam two && rm f3";
    Original::of(|_| script(text)).assert_replayed_everywhere();
}

#[test]
fn sqlite_with_mapped_files_is_replayed_on_mounts() {
    if !has("sqlite3") {
        return;
    }
    let text = "
        set -e
        { echo 'pragma mmap_size=1000000; create table t(a, b); create index i on t(a); begin;'
          for i in $(seq 1 30); do echo \"insert into t values($i, hex(randomblob(200)));\"; done
          echo \"commit; update t set b='x' where a%3=0; delete from t where a%5=0;\"; } | sqlite3 t.db > /dev/null
        sqlite3 t.db 'pragma mmap_size=1000000; select sum(length(b)) from t; vacuum;' > /dev/null";
    Original::of(|_| script(text)).assert_replayed_everywhere();
}

/// The context of the trace lacked the working directory, so that relative paths began at `/`, and every program that the command
/// started was part of the initial state.
#[test]
fn a_trace_of_a_run_is_replayed_below_the_working_directory_of_its_command() {
    for backend in [Backend::Amino(Engine::Fjall), Backend::Pass] {
        let place = Place::new(backend, Intercept::Notify, User::Own);
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        let (trace, compiled, root) = (path("trace"), path("compiled"), path("root"));
        for directory in [path("original"), root.clone()] {
            fs::create_dir(directory).unwrap();
        }
        let mut run = place.run_with(&["--trace", trace.to_str().unwrap()]);
        run.current_dir(path("original")).args(["/bin/sh", "-c"]);
        let script =
            "mkdir d && echo content > d/f && ln -s f d/link && cd d && mv f g && echo > h";
        finish(run.arg(script)).expect(0);
        let mut compile = Command::new(tool("replayer"));
        compile.arg("compile").arg(&trace).arg("-o").arg(&compiled);
        finish(&mut compile).expect(0);
        let mut replay = Command::new(tool("replayer"));
        replay.arg("run").arg(&compiled).arg("--root").arg(&root);
        finish(&mut replay).expect(0);
        // The trace has no data: only sizes are the same.
        let tree = |top: &str| {
            let files = tree(&path(top)).into_iter();
            let sizes =
                files.map(|(name, text)| (name, text.split(',').next().unwrap().to_owned()));
            sizes.collect::<Vec<_>>()
        };
        assert_eq!(tree("original").len(), 4, "{backend:?}");
        assert_eq!(tree("root"), tree("original"), "{backend:?}");
    }
}
