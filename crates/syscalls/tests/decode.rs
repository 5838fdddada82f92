//! Each kind of argument decoded from a made-up program's memory, whole, cut short, and unreadable.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says so by failing"
)]

use std::collections::BTreeMap;

use goanna_syscalls::{
    DecodedCall, Kind, Limits, Memory, Names, Operation, SIGNATURES, Time, Value, by_name, decode,
};

/// Pieces of memory by address; all else cannot be read.
#[derive(Default)]
struct Fake(BTreeMap<u64, Vec<u8>>);

impl Fake {
    fn with(pieces: &[(u64, &[u8])]) -> Self {
        Self(
            pieces
                .iter()
                .map(|&(at, bytes)| (at, bytes.to_vec()))
                .collect(),
        )
    }
}

impl Memory for Fake {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let Some((start, bytes)) = self.0.range(..=address).next_back() else {
            return 0;
        };
        let Some(rest) = bytes.get((address - start) as usize..) else {
            return 0;
        };
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        len
    }
}

const ALL: Limits = Limits {
    text: 4096,
    texts: 64,
    array: 4096,
    data: 1 << 20,
};

fn call(name: &str, raw: [u64; 6], memory: &Fake) -> DecodedCall {
    decode(by_name(name).unwrap().nr, raw, memory, &ALL)
}

fn bytes(len: u64, data: &[u8]) -> Value {
    Value::Bytes {
        len,
        data: data.into(),
    }
}

fn given(path: &[u8]) -> Value {
    Value::Path {
        given: path.into(),
        resolved: None,
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn numbers_have_the_width_that_the_kernel_gives_them() {
    let none = Fake::default();
    let high = 0xdead_beef_0000_0000;
    let open = call(
        "openat",
        [high | 0xffff_ff9c, 0, high | 0x41, high | 0x1_81a4, 0, 0],
        &none,
    );
    let here = Value::Descriptor {
        number: libc::AT_FDCWD,
        file: None,
    };
    assert_eq!(
        open.args,
        [
            here,
            Value::Null,
            Value::Unsigned(0x41),
            Value::Unsigned(0x81a4)
        ]
    );
    let seek = call("lseek", [3, -5_i64 as u64, 1, 0, 0, 0], &none);
    assert_eq!(seek.args[1..], [Value::Signed(-5), Value::Unsigned(1)]);
    let owner = call("fchown", [3, u64::MAX, 7, 0, 0, 0], &none);
    assert_eq!(
        owner.args[1..],
        [Value::Unsigned(0xffff_ffff), Value::Unsigned(7)]
    );
    let kill = call("kill", [0xffff_fff9, 15, 0, 0, 0, 0], &none);
    assert_eq!(kill.args, [Value::Signed(-7), Value::Signed(15)]);
}

#[test]
fn strings_end_at_their_nul_at_the_limit_or_are_unreadable() {
    let long = vec![b'x'; 5000];
    let mut page = vec![0xff; 4096];
    page[4090..].copy_from_slice(b"ab/cd\0");
    let memory = Fake::with(&[
        (0x1000, &page),
        (0x10_0000, &long),
        (0x20_0000, b"without end"),
    ]);
    let chdir = |at| call("chdir", [at, 0, 0, 0, 0, 0], &memory).args.remove(0);
    assert_eq!(chdir(0x1000 + 4090), given(b"ab/cd"));
    assert_eq!(chdir(0x10_0000), given(&long[..4096]));
    assert_eq!(chdir(0x20_0000), Value::Unread(0x20_0000));
    assert_eq!(chdir(0x77), Value::Unread(0x77));
    assert_eq!(chdir(u64::MAX), Value::Unread(u64::MAX));
    assert_eq!(chdir(0), Value::Null);
    let link = call(
        "symlink",
        [0x1000 + 4093, 0x1000 + 4090, 0, 0, 0, 0],
        &memory,
    );
    assert_eq!(link.args, [Value::Text(b"cd"[..].into()), given(b"ab/cd")]);
}

#[test]
fn arrays_of_strings_end_at_null_and_at_the_limit() {
    let mut pointers = words(&[0x100, 0x104, 0]);
    pointers.extend(words(&[0x100; 200]));
    let memory = Fake::with(&[
        (0x100, b"one\0two\0"),
        (0x1000, &pointers),
        (0x9000, &words(&[0x100, 0x5])),
    ]);
    let exec = call("execve", [0x100, 0x1000, 0x1000 + 24, 0, 0, 0], &memory);
    let texts = |texts: &[&[u8]]| Value::Texts(texts.iter().map(|&text| text.into()).collect());
    assert_eq!(exec.args[..2], [given(b"one"), texts(&[b"one", b"two"])]);
    // The environment may hold passwords.
    assert_eq!(exec.args[2], Value::Unsigned(0x1000 + 24));
    let long = call("execve", [0x100, 0x1000 + 24, 0, 0, 0, 0], &memory);
    let Value::Texts(cut) = &long.args[1] else {
        panic!("{:?}", long.args[1]);
    };
    assert_eq!(cut.len(), 64);
    let bad = call("execve", [0x100, 0x9000, 0, 0, 0, 0], &memory);
    assert_eq!(bad.args[1], Value::Unread(0x9000));
}

#[test]
fn data_is_copied_up_to_the_limit_and_read_data_only_after_the_call() {
    let memory = Fake::with(&[(0x1000, b"0123456789")]);
    let write = call("write", [1, 0x1000, 10, 0, 0, 0], &memory);
    assert_eq!(write.args[1], bytes(10, b"0123456789"));
    let limits = Limits { data: 4, ..ALL };
    let short = decode(1, [1, 0x1000, 10, 0, 0, 0], &memory, &limits);
    assert_eq!(short.args[1], bytes(10, b"0123"));
    let nothing = decode(1, [1, 0xbad, 10, 0, 0, 0], &memory, &Limits::default());
    assert_eq!(nothing.args[1], bytes(10, b""));
    let bad = call("write", [1, 0x1000, u64::MAX, 0, 0, 0], &memory);
    assert_eq!(bad.args[1], Value::Unread(0x1000));

    let mut read = call("read", [0, 0x1000, 10, 0, 0, 0], &memory);
    assert_eq!(read.args[1], Value::Unread(0x1000));
    read.complete(3, &memory, &ALL);
    assert_eq!(read.args[1], bytes(3, b"012"));
    let mut failed = call("read", [0, 0x1000, 10, 0, 0, 0], &memory);
    failed.complete(-i64::from(libc::EINTR), &memory, &ALL);
    assert_eq!(failed.args[1], Value::Unread(0x1000));
    let mut at_end = call("read", [0, 0x1000, 10, 0, 0, 0], &memory);
    at_end.complete(0, &memory, &ALL);
    assert_eq!(at_end.args[1], bytes(0, b""));
}

#[test]
fn vectors_and_messages_are_gathered() {
    let vector = words(&[0x100, 2, 0x103, 4, 0x10_0000, 0]);
    let huge = words(&[0x100, u64::MAX, 0x100, u64::MAX]);
    let header = words(&[0, 0, 0x1000, 3, 0, 0, 0]);
    let memory = Fake::with(&[
        (0x100, b"ab-cdef"),
        (0x1000, &vector),
        (0x2000, &header),
        (0x3000, &huge),
    ]);
    assert_eq!(
        call("writev", [1, 0x1000, 3, 0, 0, 0], &memory).args[1],
        bytes(6, b"abcdef")
    );
    assert_eq!(
        call("sendmsg", [1, 0x2000, 0, 0, 0, 0], &memory).args[1],
        message(6, b"abcdef", &[])
    );
    let unread = |count| {
        call("writev", [1, 0x1000, count, 0, 0, 0], &memory)
            .args
            .remove(1)
    };
    assert_eq!(unread(4), Value::Unread(0x1000));
    assert_eq!(unread(u64::MAX), Value::Unread(0x1000));
    let counted = decode(20, [1, 0x3000, 2, 0, 0, 0], &memory, &Limits::default());
    assert_eq!(counted.args[1], bytes(u64::MAX, b""));
    let read = [
        ("readv", 0x1000, bytes(3, b"abc")),
        ("recvmsg", 0x2000, message(3, b"abc", &[])),
    ];
    for (name, at, expected) in read {
        let mut read = call(name, [0, at, 3, 0, 0, 0], &memory);
        assert_eq!(read.args[1], Value::Unread(at));
        read.complete(3, &memory, &ALL);
        assert_eq!(read.args[1], expected, "{name}");
    }
}

fn message(len: u64, data: &[u8], descriptors: &[i32]) -> Value {
    Value::Message {
        len,
        data: data.into(),
        descriptors: descriptors.into(),
    }
}

/// A control message of socket level, with padding.
fn control(kind: i32, data: &[i32]) -> Vec<u8> {
    let mut control = words(&[16 + 4 * data.len() as u64]);
    for number in [libc::SOL_SOCKET, kind].iter().chain(data) {
        control.extend(number.to_le_bytes());
    }
    control.resize(control.len().next_multiple_of(8), 0);
    control
}

#[test]
fn descriptors_that_messages_pass_are_listed() {
    let vector = words(&[0x100, 3]);
    let mut controls = control(libc::SCM_CREDENTIALS, &[1, 2, 3]);
    controls.extend(control(libc::SCM_RIGHTS, &[5, 9, 12]));
    let len = controls.len() as u64;
    let header = words(&[0, 0, 0x1000, 1, 0x2000, len, 0]);
    // The second message's control data has a length that lies, the third's cannot be read.
    let torn = words(&[
        4000,
        libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32,
    ]);
    let mut headers = [header.clone(), words(&[3])].concat();
    headers.extend(words(&[0, 0, 0x1000, 1, 0x3000, 16, 0, 2]));
    headers.extend(words(&[0, 0, 0x1000, 1, 0x10_0000, 16, 0, 0]));
    let memory = Fake::with(&[
        (0x100, b"abc"),
        (0x1000, &vector),
        (0x2000, &controls),
        (0x3000, &torn),
        (0x4000, &header),
        (0x5000, &headers),
    ]);
    let sent = call("sendmsg", [1, 0x4000, 0, 0, 0, 0], &memory);
    assert_eq!(sent.args[1], message(3, b"abc", &[5, 9, 12]));
    let sent = call("sendmmsg", [1, 0x5000, 3, 0, 0, 0], &memory);
    assert_eq!(sent.args[1], message(9, b"abcabcabc", &[5, 9, 12]));
    let too_many = call("sendmmsg", [1, 0x5000, 1025, 0, 0, 0], &memory);
    assert_eq!(too_many.args[1], Value::Unread(0x5000));
    let mut received = call("recvmmsg", [1, 0x5000, 3, 0, 0, 0], &memory);
    assert_eq!(received.args[1], Value::Unread(0x5000));
    received.complete(2, &memory, &ALL);
    assert_eq!(received.args[1], message(5, b"abcab", &[5, 9, 12]));
}

#[test]
fn a_name_is_the_only_string_among_the_arguments_of_prctl() {
    let memory = Fake::with(&[(0x100, b"worker\0")]);
    let of = |operation: i32| {
        let raw = [operation as u64, 0x100, 0, 0, 0, 0];
        call("prctl", raw, &memory).args.remove(1)
    };
    assert_eq!(
        of(libc::PR_SET_NAME),
        Value::Text(b"worker".as_slice().into())
    );
    assert_eq!(of(libc::PR_SET_PDEATHSIG), Value::Unsigned(0x100));
}

#[test]
fn structures_are_whole_and_their_fields_have_names() {
    let how = words(&[libc::O_CREAT as u64, 0o640, libc::RESOLVE_BENEATH]);
    let memory = Fake::with(&[(0x100, b"f\0"), (0x1000, &how)]);
    let open = call("openat2", [5, 0x100, 0x1000, 24, 0, 0], &memory);
    assert_eq!(open.args[2], bytes(24, &how));
    assert_eq!(open.open_flags(), Some(libc::O_CREAT as u64));
    assert_eq!(open.operation(), Some(Operation::Create));
    let Some(Kind::InputStructure(layout, _)) = open.kind_of(2) else {
        panic!("{:?}", open.kind_of(2));
    };
    assert_eq!(layout.field(&how, "resolve"), Some(libc::RESOLVE_BENEATH));
    // What follows the structure of an older program is not its.
    let old = call("openat2", [5, 0x100, 0x1000, 8, 0, 0], &memory);
    assert_eq!(old.args[2], bytes(8, &how[..8]));
    let newer = call("openat2", [5, 0x100, 0x1000, 4096, 0, 0], &memory);
    assert_eq!(newer.args[2], bytes(24, &how));
    assert_eq!(
        call("openat2", [5, 0x100, 0x9, 24, 0, 0], &memory).args[2],
        Value::Unread(9)
    );
}

#[test]
fn attributes_times_pairs_and_addresses_come_after_the_call() {
    let stat = vec![7; 144];
    let memory = Fake::with(&[
        (0x100, b"/f\0"),
        (0x1000, &stat),
        (0x2000, &words(&[4 | 5 << 32])),
        (0x3000, &words(&[1, 500])),
        (0x4000, &[1, 0, b'/', b's', 0]),
        (0x5000, &4_u32.to_le_bytes()),
        (0x6000, b"/home/u\0"),
    ]);
    let after = |name, raw, index: usize, result| {
        let mut call = call(name, raw, &memory);
        assert!(matches!(call.args[index], Value::Unread(_)), "{name}");
        call.complete(result, &memory, &ALL);
        call.args.remove(index)
    };
    assert_eq!(
        after("stat", [0x100, 0x1000, 0, 0, 0, 0], 1, 0),
        bytes(144, &stat)
    );
    assert_eq!(
        after("pipe", [0x2000, 0, 0, 0, 0, 0], 0, 0),
        Value::DescriptorPair([4, 5])
    );
    let now = Time {
        seconds: 1,
        nanoseconds: 500,
    };
    assert_eq!(
        after("clock_gettime", [0, 0x3000, 0, 0, 0, 0], 1, 0),
        Value::Times([now].into())
    );
    assert_eq!(
        after("accept", [3, 0x4000, 0x5000, 0, 0, 0], 1, 4),
        bytes(4, &[1, 0, b'/', b's'])
    );
    assert_eq!(
        after("accept", [3, 0x4000, 0x77, 0, 0, 0], 1, 4),
        Value::Unread(0x4000)
    );
    assert_eq!(
        after("getcwd", [0x6000, 100, 0, 0, 0, 0], 0, 8),
        Value::Text(b"/home/u"[..].into())
    );
    assert_eq!(
        after("readlink", [0x100, 0x6000, 5, 0, 0, 0], 1, 5),
        Value::Text(b"/home"[..].into())
    );
    assert_eq!(
        after("stat", [0x100, 0x77, 0, 0, 0, 0], 1, 0),
        Value::Unread(0x77)
    );
}

#[test]
fn times_offsets_and_addresses_come_before_the_call() {
    let memory = Fake::with(&[
        (0x100, b"f\0"),
        (0x1000, &words(&[1, 2, 3, libc::UTIME_NOW as u64])),
        (0x2000, &words(&[4096])),
        (0x3000, &[1, 0, b'/', b's', 0]),
    ]);
    let times = |parts: &[(i64, i64)]| {
        let times = parts.iter().map(|&(seconds, nanoseconds)| Time {
            seconds,
            nanoseconds,
        });
        Value::Times(times.collect())
    };
    let arg = |name, raw, index| call(name, raw, &memory).args.remove(index);
    assert_eq!(
        arg("utimensat", [3, 0x100, 0x1000, 0, 0, 0], 2),
        times(&[(1, 2), (3, libc::UTIME_NOW)])
    );
    assert_eq!(
        arg("utimes", [0x100, 0x1000, 0, 0, 0, 0], 1),
        times(&[(1, 2000), (3, libc::UTIME_NOW * 1000)])
    );
    assert_eq!(
        arg("utime", [0x100, 0x1000, 0, 0, 0, 0], 1),
        times(&[(1, 0), (2, 0)])
    );
    assert_eq!(arg("utimensat", [3, 0x100, 0, 0, 0, 0], 2), Value::Null);
    assert_eq!(
        arg("sendfile", [1, 2, 0x2000, 9, 0, 0], 2),
        Value::Unsigned(4096)
    );
    assert_eq!(arg("sendfile", [1, 2, 0x9, 9, 0, 0], 2), Value::Unread(9));
    assert_eq!(
        arg("connect", [3, 0x3000, 5, 0, 0, 0], 1),
        bytes(5, &[1, 0, b'/', b's', 0])
    );
    assert_eq!(
        arg("connect", [3, 0x3000, 1 << 40 | 5, 0, 0, 0], 1),
        bytes(5, &[1, 0, b'/', b's', 0])
    );
}

#[test]
fn what_fcntl_and_ioctl_take_depends_on_the_command() {
    let lock = vec![1; size_of::<libc::flock>()];
    let memory = Fake::with(&[(0x1000, &lock)]);
    let fcntl = |command: i32, arg| call("fcntl", [3, command as u64, arg, 0, 0, 0], &memory);
    assert_eq!(fcntl(libc::F_SETLK, 0x1000).args[2], bytes(32, &lock));
    assert_eq!(
        fcntl(libc::F_SETLK, 0x1000).operation(),
        Some(Operation::Lock)
    );
    assert_eq!(fcntl(libc::F_SETFL, 0x800).args[2], Value::Unsigned(0x800));
    assert!(matches!(
        fcntl(libc::F_SETFL, 0x800).kind_of(2),
        Some(Kind::Flags(_))
    ));
    assert_eq!(fcntl(libc::F_DUPFD, 10).args[2], Value::Signed(10));
    assert_eq!(fcntl(libc::F_DUPFD, 10).operation(), Some(Operation::Dup));
    assert_eq!(fcntl(libc::F_GETFL, 0x5eed).args[2], Value::Absent);
    let clone = call("ioctl", [3, libc::FICLONE, 4, 0, 0, 0], &memory);
    assert_eq!(
        clone.args[2],
        Value::Descriptor {
            number: 4,
            file: None
        }
    );
    assert_eq!(clone.operation(), Some(Operation::Copy));
}

#[test]
fn operations_look_at_flags() {
    let memory = Fake::with(&[(0x100, b"f\0")]);
    let operation = |name, raw| call(name, raw, &memory).operation();
    assert_eq!(
        operation("open", [0x100, 0, 0o600, 0, 0, 0]),
        Some(Operation::Open)
    );
    assert_eq!(
        operation("open", [0x100, libc::O_CREAT as u64, 0o600, 0, 0, 0]),
        Some(Operation::Create)
    );
    assert_eq!(
        operation("creat", [0x100, 0o600, 0, 0, 0, 0]),
        Some(Operation::Create)
    );
    assert_eq!(
        operation("unlinkat", [3, 0x100, 0, 0, 0, 0]),
        Some(Operation::Unlink)
    );
    assert_eq!(
        operation("unlinkat", [3, 0x100, libc::AT_REMOVEDIR as u64, 0, 0, 0]),
        Some(Operation::Rmdir)
    );
    assert_eq!(
        operation("memfd_create", [0x100, libc::O_CREAT as u64, 0, 0, 0, 0]),
        Some(Operation::Open)
    );
    assert_eq!(
        call("open", [0x100, 0, 0o600, 0, 0, 0], &memory).args[2],
        Value::Absent
    );
    let made = [0x100, libc::O_TMPFILE as u64, 0o600, 0, 0, 0];
    assert_eq!(call("open", made, &memory).args[2], Value::Unsigned(0o600));
    for operation in Operation::ALL {
        assert_eq!(Operation::by_name(operation.name()), Some(*operation));
    }
}

#[test]
fn descriptors_and_paths_get_the_files_that_they_name() {
    struct Table;
    impl Names for Table {
        fn descriptor(&self, number: i32) -> Option<Box<[u8]>> {
            (number != 9).then(|| format!("/fd{number}").into_bytes().into())
        }
        fn path(&self, directory: i32, path: &[u8], follow: bool) -> Option<Box<[u8]>> {
            let path = String::from_utf8_lossy(path);
            Some(format!("{directory} {path} {follow}").into_bytes().into())
        }
    }
    let memory = Fake::with(&[(0x100, b"a\0"), (0x200, b"b\0")]);
    let paths = |name, raw| {
        let mut call = call(name, raw, &memory);
        call.name(&Table);
        let paths = call.args.iter().filter_map(|arg| match arg {
            Value::Path { resolved, .. } => {
                Some(String::from_utf8_lossy(resolved.as_ref()?).into_owned())
            }
            Value::Descriptor { file, .. } => {
                Some(String::from_utf8_lossy(file.as_ref()?).into_owned())
            }
            _ => None,
        });
        paths.collect::<Vec<_>>()
    };
    let nofollow = libc::AT_SYMLINK_NOFOLLOW as u64;
    let exclusive = (libc::O_CREAT | libc::O_EXCL) as u64;
    assert_eq!(
        paths("renameat", [3, 0x100, 4, 0x200, 0, 0]),
        ["/fd3", "3 a false", "/fd4", "4 b false"]
    );
    assert_eq!(
        paths("rename", [0x100, 0x200, 0, 0, 0, 0]),
        ["-100 a false", "-100 b false"]
    );
    assert_eq!(
        paths("newfstatat", [3, 0x100, 0, 0, 0, 0]),
        ["/fd3", "3 a true"]
    );
    assert_eq!(
        paths("newfstatat", [3, 0x100, 0, nofollow, 0, 0]),
        ["/fd3", "3 a false"]
    );
    assert_eq!(
        paths("open", [0x100, exclusive, 0, 0, 0, 0]),
        ["-100 a false"]
    );
    assert_eq!(paths("open", [0x100, 0, 0, 0, 0, 0]), ["-100 a true"]);
    assert_eq!(paths("read", [9, 0, 0, 0, 0, 0]), [""; 0]);
    assert_eq!(paths("mmap", [0, 4096, 3, 0x22, u64::MAX, 0]), [""; 0]);
}

#[test]
fn no_registers_make_any_call_panic_or_copy_without_bound() {
    let memory = Fake::with(&[(0, &[0xff; 8192]), (1 << 40, &words(&[1 << 40; 4096]))]);
    let values = [
        0,
        1,
        4,
        100,
        8191,
        1 << 40,
        (1 << 40) + 8,
        u64::MAX,
        i64::MAX as u64,
        0xffff_ffff,
    ];
    for signature in SIGNATURES {
        for (at, &value) in values.iter().enumerate() {
            for &other in &values[at..] {
                let raw = [value, other, value, other, value, other];
                let mut call = decode(signature.nr, raw, &memory, &ALL);
                assert_eq!(call.args.len(), signature.params.len());
                call.complete(other as i64, &memory, &ALL);
                call.complete(value as i64, &memory, &ALL);
                let _ = call.operation();
                for arg in &call.args {
                    if let Value::Bytes { data, .. } = arg {
                        assert!(data.len() <= ALL.data);
                    }
                }
            }
        }
    }
}
