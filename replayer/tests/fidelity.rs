//! A program is traced natively and replayed on an empty directory: the trees, the traces and the counts of operations are equal.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod workload;

use std::fs;
use std::os::unix::fs::MetadataExt;

use goanna_tracer::assemble::DataMode;
use workload::{Workload, has, program};

fn of_program(name: &str, args: &[&str]) -> Workload {
    let program = program(name);
    let mut command = vec![program.to_str().unwrap()];
    command.extend(args);
    Workload::new(&command, DataMode::Full, |_| {})
}

fn of_script(script: &str) -> Workload {
    Workload::new(&["sh", "-c", script], DataMode::Full, |_| {})
}

#[test]
fn postmark_is_replayed_faithfully() {
    of_program("postmark", &["20", "60"]).assert_faithful();
}

#[test]
fn threads_that_depend_on_each_other_are_replayed_faithfully() {
    let workload = of_program("writers", &["20"]);
    assert!(workload.summary.lanes > 1);
    assert!(workload.summary.dependencies > 0);
    workload.assert_faithful();
}

#[test]
fn each_form_of_each_operation_is_replayed_faithfully() {
    of_program("forms", &[]).assert_faithful();
}

#[test]
fn a_program_that_fails_often_is_replayed_faithfully() {
    of_program("failing", &[]).assert_faithful();
}

#[test]
fn git_is_replayed_faithfully() {
    if !has("git") {
        return;
    }
    let script = "
        set -e
        export HOME=$PWD
        git init -q . && git config user.email a@b && git config user.name n
        for i in 1 2 3; do echo line $i > f$i; mkdir -p d$i; cp f$i d$i/g; done
        git add -A && git commit -qm one && git checkout -q -b x
        echo more >> f1; git mv f2 d1/f2; git commit -qam two
        git checkout -q - && git merge -q x && git gc -q && rm f3";
    of_script(script).assert_faithful();
}

#[test]
fn sqlite_with_mapped_files_is_replayed_faithfully() {
    if !has("sqlite3") {
        return;
    }
    let script = "
        set -e
        { echo 'pragma mmap_size=1000000; create table t(a, b); create index i on t(a); begin;'
          for i in $(seq 1 60); do echo \"insert into t values($i, hex(randomblob(200)));\"; done
          echo \"commit; update t set b='x' where a%3=0; delete from t where a%5=0;\"; } | sqlite3 t.db > /dev/null
        sqlite3 t.db 'pragma mmap_size=1000000; select sum(length(b)) from t; vacuum;' > /dev/null";
    let workload = of_script(script);
    workload.assert_faithful();
    assert!(workload.compare().counts.contains_key("mmap"));
}

#[test]
fn processes_with_inherited_descriptors_are_replayed_faithfully() {
    let script = "
        set -e
        exec 3> log
        (echo child >&3; (echo grandchild >&3) )
        echo parent >&3
        exec 4<&3; exec 3>&-; echo last >&4
        cat log > copy; (cat log; true) >> copy & wait
        mkdir d; cd d; echo below > f; cd ..; mv d e; rm e/f; rmdir e";
    of_script(script).assert_faithful();
}

/// cat(1) tries copy_file_range(2) with the largest length, which fails where the destination is open with `O_APPEND`. The replay wrote
/// that many bytes instead: 2 GiB.
#[test]
fn a_failed_copy_from_outside_of_the_directory_writes_nothing() {
    if !has("python3") {
        return;
    }
    let script = "
import os
outside = os.open('/etc/passwd', os.O_RDONLY)
log = os.open('log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for length in (10, 1 << 62):
    try:
        os.copy_file_range(outside, log, length)
        os._exit(1)
    except OSError:
        pass
os.write(log, b'text')";
    let command = ["python3", "-S", "-c", script];
    let workload = Workload::new(&command, DataMode::Full, |_| {});
    let reason = "failed copies from files outside of the directory";
    assert_eq!(workload.summary.skipped[reason], 2);
    workload.assert_faithful();
}

#[test]
fn requests_of_linux_aio_are_counted_and_not_replayed() {
    if !has("python3") {
        return;
    }
    let script = "
import ctypes, os, struct
from ctypes import addressof
syscall = ctypes.CDLL(None).syscall
fd = os.open('f', os.O_RDWR | os.O_CREAT)
context = ctypes.c_ulong(0)
assert syscall(206, 8, ctypes.byref(context)) == 0
text = ctypes.create_string_buffer(b'text')
request = struct.pack('QIIHhIQQqQII', 0, 0, 0, 1, 0, fd, addressof(text), 4, 0, 0, 0, 0)
request = ctypes.create_string_buffer(request)
assert syscall(209, context, 1, (ctypes.c_void_p * 1)(addressof(request))) == 1
assert os.pread(fd, 10, 0) == b'text'";
    let command = ["python3", "-S", "-c", script];
    let workload = Workload::new(&command, DataMode::Full, |_| {});
    let reason =
        "requests of Linux AIO or io_uring, whose reads and writes the trace does not show";
    assert_eq!(workload.summary.skipped[reason], 1);
}

/// No memory of the program has these bytes. The trace has them, and the replay writes them.
#[test]
fn bytes_that_the_kernel_copies_from_outside_of_the_directory_are_replayed() {
    if !has("python3") {
        return;
    }
    let script = "
import os, tempfile
outside = tempfile.TemporaryFile()
outside.write(bytes(range(256)) * 1000); outside.flush()
source = outside.fileno()
def new(name): return os.open(name, os.O_WRONLY | os.O_CREAT)
os.lseek(source, 1000, os.SEEK_SET)
os.copy_file_range(source, new('by position'), 70000)
os.copy_file_range(source, new('by offset'), 5000, 77, 300)
os.sendfile(new('sent'), source, 5, 200000)
os.sendfile(new('sent by position'), source, None, 500)
os.copy_file_range(source, new('beyond the end'), 1 << 40, 255000)
end, start = os.pipe()
os.write(start, b'through a pipe' * 100)
os.splice(end, new('spliced'), 700)
os.splice(end, new('spliced to'), 700, offset_dst=9)";
    let command = ["python3", "-S", "-c", script];
    let workload = Workload::new(&command, DataMode::Full, |_| {});
    workload.assert_faithful_results();
    workload.assert_same_trees();
}

/// The compiled replay lists the files that the trace needs and did not make.
#[test]
fn the_initial_state_is_made_from_the_trace() {
    let script = "
        set -e
        head -c 100 old/file > copy; readlink old/link > /dev/null; rm old/gone
        ! mkdir old/directory 2> /dev/null
        echo more >> old/grown; mv old moved";
    let workload = Workload::new(&["sh", "-c", script], DataMode::Full, |directory| {
        fs::create_dir_all(directory.join("old/directory")).unwrap();
        for (name, content) in [("file", "as it was"), ("gone", "x"), ("grown", "")] {
            fs::write(directory.join("old").join(name), content).unwrap();
        }
        std::os::unix::fs::symlink("file", directory.join("old/link")).unwrap();
    });
    let output = workload.replay(&[]);
    assert_eq!(output.status.code(), Some(125));
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(
        why.contains("old/file") && why.contains("replayer prepare"),
        "{why}"
    );
    workload.assert_faithful();
}

/// Without the states of files, the modes of new files follow from the requested modes and from the mask of the command.
#[test]
fn files_get_the_modes_that_the_mask_of_the_command_leaves() {
    let groups = "time,process,user,arguments,paths,results".parse().unwrap();
    let script = "set -e; mkdir d; echo a > d/f; umask 002; echo b > d/g; mkfifo d/fifo; mkdir e";
    let command = ["sh", "-c", script];
    let workload = Workload::with_groups(&command, DataMode::Full, groups, |_| {});
    workload.assert_faithful();
    let mode = |name| fs::metadata(workload.path(name)).unwrap().mode() & 0o777;
    assert_eq!(mode("replayed/d"), 0o750);
    assert_eq!(mode("replayed/d/f"), 0o640);
    assert_eq!(mode("replayed/d/g"), 0o664);
}

/// Without recorded data, sizes and names are the same, and writes write generated content.
#[test]
fn a_trace_without_data_gives_files_of_the_same_sizes() {
    let program = program("postmark");
    let command = [program.to_str().unwrap(), "5", "0"];
    let script = format!("{} && echo text > kept", command.join(" "));
    let workload = Workload::new(&["sh", "-c", &script], DataMode::None, |_| {});
    assert_eq!(workload.summary.sizes.buffers, 0);
    workload.replay_traced(&[]);
    let kept = fs::read(workload.path("replayed/kept")).unwrap();
    assert_eq!(kept.len(), 5);
    assert!(workload.compare().is_equal());
}
