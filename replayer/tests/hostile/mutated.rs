//! Compiled replays and traces with random changes, performed: the programs end with one of their statuses, and nothing outside of the root
//! changes. `GOANNA_SEED=N` chooses other changes, `GOANNA_LONG=1` tries more of them.

use std::fs;
use std::path::Path;
use std::process::{Command as Process, Stdio};

use amino_schema::replay::{
    Attribute, Call, Command, Content, Data, HEAD_LEN, Head, Index, Initial, Target, What,
};
use goanna_syscalls::{Kind, Param, Value, by_name};

use crate::scene::{CREATE, Scene, index, on, place, write};
use crate::traces::record;

/// Pseudorandom numbers.
struct Random(u64);

impl Random {
    fn of(round: u64) -> Self {
        let seed = std::env::var("GOANNA_SEED").ok();
        let seed: u64 = seed.and_then(|it| it.parse().ok()).unwrap_or(1);
        let state = (seed << 32) ^ (round + 1);
        Self(state.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    fn of_list<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }
}

fn rounds() -> u64 {
    let is_long = std::env::var_os("GOANNA_LONG").is_some_and(|it| it == "1");
    if is_long { 2000 } else { 25 }
}

/// Runs replayer with files of at most 10 MiB. It must end by itself, without a panic.
fn replayer(scene: &Scene, words: &[&str]) {
    const LIMITED: &str = "trap '' XFSZ; ulimit -f 20480; exec timeout 60 \"$0\" \"$@\"";
    let output = Process::new("sh")
        .args(["-c", LIMITED, env!("CARGO_BIN_EXE_replayer")])
        .args(words)
        .current_dir(scene.path(""))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        matches!(output.status.code(), Some(0 | 1 | 125)) && !errors.contains("panicked"),
        "{words:?}: {}: {errors}",
        output.status
    );
}

fn replay(scene: &Scene) {
    replayer(scene, &["prepare", "compiled", "--root", "root"]);
    for reads in ["now", "cached"] {
        let words = ["run", "compiled", "--root", "root", "--reads", reads];
        replayer(scene, &words);
    }
    replayer(
        scene,
        &[
            "run",
            "compiled",
            "--root",
            "root",
            "--only",
            "path ~ \"/f*\"",
        ],
    );
    scene.assert_untouched();
}

/// A compiled replay with a command of each call that waits for nothing, and initial files of each type.
fn sample(path: &Path) {
    let mut commands = vec![Command {
        result: Some(0),
        ..on(1, Call::Open, place(0, "f"), &[CREATE, 0o600])
    }];
    for call in Call::ALL {
        let order = commands.len() as u64 + 1;
        let target = match order % 2 {
            0 => Target::Slot(0),
            _ => place(0, "f"),
        };
        commands.push(Command {
            text: Some(b"user.mark".to_vec()),
            data: Some(Data {
                length: 3,
                content: Content::Buffers(vec![(HEAD_LEN as u64, 3, 0)]),
            }),
            ..on(order, *call, target, &[1, 2, 3, 0, 1])
        });
        let two = vec![Target::Slot(0), place(0, "g")];
        commands.push(Command {
            targets: two,
            ..on(order + 1, *call, Target::Slot(1), &[0])
        });
    }
    let entry = |path: &str, what| Initial {
        path: path.as_bytes().to_vec(),
        what,
        mode: Some(0o644),
        owner: Some((0, 0)),
        size: 5,
        extents: Vec::new(),
        attributes: vec![Attribute {
            name: b"user.mark".to_vec(),
            length: 3,
            buffer: None,
        }],
    };
    let initial = vec![
        entry("d", What::Directory),
        entry("d/f", What::Regular),
        entry("d/link", What::Symlink(b"../../outside".to_vec())),
        entry("d/fifo", What::Fifo),
        entry("g", What::Link(1)),
    ];
    let index = Index {
        initial,
        ..index(&["", "d", "absolute"])
    };
    write(path, index, &[commands]);
}

#[test]
fn compiled_replays_with_random_changes_end_and_stay_below_the_root() {
    for round in 0..rounds() {
        let mut random = Random::of(round);
        let scene = Scene::new();
        let path = scene.path("compiled");
        sample(&path);
        let mut raw = fs::read(&path).unwrap();
        let head = Head::decode(&raw).unwrap();
        let index_at = head.index_at as usize;
        let (from, to) = match round % 3 {
            0 => (index_at, raw.len()),
            _ => (HEAD_LEN + 16, index_at),
        };
        for _ in 0..=random.below(4) {
            let at = from + random.below(to - from);
            raw[at] = match random.below(3) {
                0 => raw[at] ^ (1 << random.below(8)),
                1 => random.of_list(&[0, 1, 0x7f, 0x80, 0xff]),
                _ => random.below(256) as u8,
            };
        }
        // Checksums are right again.
        let sum = crc32c::crc32c(&raw[HEAD_LEN + 16..index_at]);
        raw[HEAD_LEN + 4..HEAD_LEN + 8].copy_from_slice(&sum.to_le_bytes());
        let index_sum = crc32c::crc32c(&raw[index_at..]);
        raw[..HEAD_LEN].copy_from_slice(&Head { index_sum, ..head }.encode());
        fs::write(&path, raw).unwrap();
        replay(&scene);
    }
}

/// Calls that a random trace consists of. None waits for a lock.
const CALLS: &[&str] = &[
    "openat",
    "creat",
    "close",
    "close_range",
    "dup2",
    "dup3",
    "fcntl",
    "read",
    "pread64",
    "write",
    "pwrite64",
    "lseek",
    "truncate",
    "ftruncate",
    "fallocate",
    "copy_file_range",
    "sendfile",
    "fsync",
    "fadvise64",
    "getdents64",
    "umask",
    "chdir",
    "fchdir",
    "mmap",
    "munmap",
    "msync",
    "stat",
    "access",
    "statfs",
    "readlink",
    "unlink",
    "rmdir",
    "mkdir",
    "mknod",
    "rename",
    "renameat2",
    "link",
    "symlink",
    "chmod",
    "chown",
    "utimensat",
    "getxattr",
    "setxattr",
    "removexattr",
];

fn value(random: &mut Random, param: &Param) -> Value {
    const PATHS: &[&str] = &[
        "f",
        "d",
        "d/f",
        "absolute/victim",
        "relative/victim",
        "file",
        "../outside/victim",
        "/etc/passwd",
        "/work/../outside",
        ".",
        "..",
        "",
        "d/",
        "absolute/new",
        "file/",
    ];
    const NUMBERS: &[u64] = &[
        0,
        1,
        2,
        3,
        libc::O_CREAT as u64 | 2,
        0o777,
        4096,
        1 << 16,
        1 << 31,
        i64::MAX as u64,
        1 << 63,
        u64::MAX,
    ];
    let path = random.of_list(PATHS);
    match param.kind {
        Kind::Path(_) => {
            let resolved = match random.below(3) {
                0 => None,
                1 => Some(format!("/work/{path}")),
                _ => Some(format!("/work/{}", random.of_list(PATHS))),
            };
            Value::Path {
                given: path.as_bytes().into(),
                resolved: resolved.map(|it| it.as_bytes().into()),
            }
        }
        Kind::Descriptor | Kind::Directory => {
            let file = random.below(2) == 0;
            Value::Descriptor {
                number: random.of_list(&[3, 4, 5, -1, libc::AT_FDCWD, i32::MAX, i32::MIN]),
                file: file.then(|| format!("/work/{path}").as_bytes().into()),
            }
        }
        _ if random.below(4) == 0 => Value::Bytes {
            len: random.of_list(NUMBERS),
            data: path.as_bytes().into(),
        },
        _ => Value::Unsigned(random.of_list(NUMBERS)),
    }
}

#[test]
fn random_traces_end_and_stay_below_the_root() {
    for round in 0..rounds() {
        let mut random = Random::of(round);
        let scene = Scene::new();
        let mut calls = Vec::new();
        for _ in 0..150 {
            let name = random.of_list(CALLS);
            let signature = by_name(name).unwrap();
            let params = signature.params.iter();
            let values = params.map(|param| value(&mut random, param)).collect();
            let result = random.of_list(&[0, 3, 4, 5, -2, -17, -22, i64::from(i32::MAX), i64::MIN]);
            calls.push((name, values, result));
        }
        let trace = scene.path("trace");
        record(&trace, calls);
        if round % 2 == 1 {
            // The trace is damaged, too: its readable part is compiled.
            let mut raw = fs::read(&trace).unwrap();
            for _ in 0..4 {
                let at = random.below(raw.len());
                raw[at] = random.below(256) as u8;
            }
            fs::write(&trace, raw).unwrap();
        }
        replayer(&scene, &["compile", "trace", "-o", "compiled"]);
        replayer(&scene, &["compare", "trace", "trace"]);
        if scene.path("compiled").exists() {
            replay(&scene);
        }
        scene.assert_untouched();
    }
}
