//! Commands as calls, so that a filter of goanna-trace can select them. A compiled replay does not distinguish the forms that a call has, such as
//! `open` and `openat`: a command is each of them.

use amino_schema::replay::{Call, Command, Target};
use goanna_syscalls::{DecodedCall, Kind, Outcome, Signature, Subject, Treatment, Value, by_name};
use goanna_tracer::event;

/// The calls that a command may stand for; none for those of the replayer itself. `paths` are those of its targets.
pub fn of(command: &Command, paths: &[Vec<u8>], tid: u64) -> Vec<event::Call> {
    let names = names(command).iter();
    let signatures = names.filter_map(|name| by_name(name));
    let calls = signatures.map(|signature| event::Call {
        subject: Subject {
            pid: 0,
            tid: tid as i32,
            uid: 0,
            gid: 0,
            sid: 0,
            comm: "".into(),
        },
        call: decoded(signature, command, paths),
        entered_ns: command.start_ns,
        outcome: command.expected.map(|result| Outcome {
            result,
            left_ns: command.start_ns.saturating_add(command.duration_ns),
            treatment: Treatment::Kernel,
        }),
        files: Vec::new(),
    });
    calls.collect()
}

fn decoded(signature: &'static Signature, command: &Command, paths: &[Vec<u8>]) -> DecodedCall {
    let number = |index: usize| command.numbers.get(index).copied().unwrap_or(0);
    let mut paths = paths.iter();
    let mut args = Vec::with_capacity(signature.params.len());
    for param in signature.params {
        args.push(match param.kind {
            Kind::Path(_) => paths.next().map_or(Value::Absent, |path| Value::Path {
                given: path.as_slice().into(),
                resolved: None,
            }),
            Kind::Descriptor => paths
                .next()
                .map_or(Value::Absent, |path| Value::Descriptor {
                    number: -1,
                    file: Some(path.as_slice().into()),
                }),
            Kind::Size => size(command).map_or(Value::Absent, Value::Unsigned),
            Kind::Flags(_) if command.call == Call::Open => Value::Unsigned(number(0)),
            Kind::Flags(_) if command.call == Call::Rmdir => {
                Value::Unsigned(libc::AT_REMOVEDIR as u64)
            }
            Kind::Choice(_) if matches!(command.call, Call::Fcntl | Call::Lock) => {
                Value::Unsigned(number(0))
            }
            Kind::Choice(_) if command.call == Call::Clone => Value::Unsigned(libc::FICLONE),
            _ => Value::Absent,
        });
    }
    DecodedCall {
        signature: Some(signature),
        nr: signature.nr,
        raw: [0; 6],
        args,
    }
}

/// The number of bytes that a command requests.
fn size(command: &Command) -> Option<u64> {
    let number = |index: usize| command.numbers.get(index).copied();
    match command.call {
        Call::Copy | Call::Allocate => number(2),
        Call::Advise => number(1),
        Call::Map | Call::Readdir | Call::Readlink | Call::Getxattr | Call::Listxattr => number(0),
        _ => command.data.as_ref().map(|data| data.length),
    }
}

/// The names that a command's call has.
fn names(command: &Command) -> &'static [&'static str] {
    let on_slot = matches!(command.targets.first(), Some(Target::Slot(_)));
    let number = |index: usize| command.numbers.get(index).copied().unwrap_or(0);
    match command.call {
        Call::Begin | Call::Inherit | Call::Release | Call::Restore | Call::Drop | Call::Touch => {
            &[]
        }
        Call::Open => &["open", "openat"],
        Call::Close => &["close"],
        Call::Dup => &["dup", "dup2", "dup3"],
        Call::Read => &["read", "readv"],
        Call::Pread => &["pread64", "preadv", "preadv2"],
        Call::Write => &["write", "writev"],
        Call::Pwrite => &["pwrite64", "pwritev", "pwritev2"],
        Call::Seek => &["lseek"],
        Call::Truncate if on_slot => &["ftruncate"],
        Call::Truncate => &["truncate"],
        Call::Allocate => &["fallocate"],
        Call::Copy if number(3) == 0 => &["copy_file_range"],
        Call::Copy => &["sendfile"],
        Call::Clone => &["ioctl"],
        Call::Sync => match number(0) {
            0 => &["fsync"],
            1 => &["fdatasync"],
            2 => &["sync_file_range"],
            _ => &["syncfs"],
        },
        Call::Advise if number(2) == u64::MAX => &["readahead"],
        Call::Advise => &["fadvise64"],
        Call::Stat if on_slot => &["fstat", "newfstatat", "statx"],
        Call::Stat => &["stat", "lstat", "newfstatat", "statx"],
        Call::Access => &["access", "faccessat", "faccessat2"],
        Call::Statfs if on_slot => &["fstatfs"],
        Call::Statfs => &["statfs"],
        Call::Readdir => &["getdents64", "getdents"],
        Call::Readlink => &["readlink", "readlinkat"],
        Call::Unlink => &["unlink", "unlinkat"],
        Call::Rmdir => &["rmdir", "unlinkat"],
        Call::Mkdir => &["mkdir", "mkdirat"],
        Call::Mknod => &["mknod", "mknodat"],
        Call::Rename => &["rename", "renameat", "renameat2"],
        Call::Link => &["link", "linkat"],
        Call::Symlink => &["symlink", "symlinkat"],
        Call::Chmod if on_slot => &["fchmod"],
        Call::Chmod => &["chmod", "fchmodat", "fchmodat2"],
        Call::Chown if on_slot => &["fchown"],
        Call::Chown => &["chown", "lchown", "fchownat"],
        Call::Utimes => &["utimensat", "utime", "utimes", "futimesat"],
        Call::Getxattr if on_slot => &["fgetxattr"],
        Call::Getxattr => &["getxattr", "lgetxattr"],
        Call::Setxattr if on_slot => &["fsetxattr"],
        Call::Setxattr => &["setxattr", "lsetxattr"],
        Call::Listxattr if on_slot => &["flistxattr"],
        Call::Listxattr => &["listxattr", "llistxattr"],
        Call::Removexattr if on_slot => &["fremovexattr"],
        Call::Removexattr => &["removexattr", "lremovexattr"],
        Call::Flock => &["flock"],
        Call::Lock | Call::Fcntl => &["fcntl"],
        Call::Chdir if on_slot => &["fchdir"],
        Call::Chdir => &["chdir"],
        Call::Map => &["mmap"],
        Call::Unmap => &["munmap"],
        Call::Msync => &["msync"],
    }
}
