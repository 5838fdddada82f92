//! Traces that are made of strace's text are those that goanna-trace records, and can be replayed.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod workload;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use goanna_replayer::compile::{Options, Summary, compile};
use goanna_replayer::prepare::prepare;
use goanna_tracer::assemble::DataMode;
use workload::{REPLAYER, compare_traces, has, program, record, tree};

/// A program that strace has recorded.
struct Imported {
    scratch: tempfile::TempDir,
}

impl Imported {
    fn new(command: &[&str]) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let imported = Self { scratch };
        for name in ["original", "native", "replayed"] {
            fs::create_dir(imported.path(name)).unwrap();
        }
        let status = Command::new("strace")
            .args(["-f", "-ttt", "-T", "-y", "-s", "1000000", "-o"])
            .arg(imported.path("text"))
            // With the mask that `record` sets.
            .args(["sh", "-c", "umask 027; cd \"$0\" && exec \"$@\""])
            .arg(imported.path("original"))
            .args(command)
            .stdout(fs::File::create("/dev/null").unwrap())
            .status()
            .unwrap();
        assert!(status.success());
        let original = imported.path("original");
        let options = ["--directory", original.to_str().unwrap()];
        let output = import(&imported.path("text"), &imported.path("trace"), &options);
        let (text, why) = (output.stdout, output.stderr);
        let (text, why) = (String::from_utf8(text), String::from_utf8(why));
        assert_eq!(output.status.code(), Some(0), "{text:?} {why:?}");
        imported
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Strace's text, which is imported; the directories are empty.
    fn of_text(text: &str) -> (Self, Output) {
        let scratch = tempfile::tempdir().unwrap();
        let imported = Self { scratch };
        for name in ["original", "replayed"] {
            fs::create_dir(imported.path(name)).unwrap();
        }
        fs::write(imported.path("text"), text).unwrap();
        let output = import(&imported.path("text"), &imported.path("trace"), &[]);
        (imported, output)
    }

    /// Replays the output of [`Imported::compile`].
    fn replay(&self) -> Output {
        Command::new(REPLAYER)
            .arg("run")
            .arg(self.path("compiled"))
            .arg("--root")
            .arg(self.path("replayed"))
            .output()
            .unwrap()
    }

    fn compile(&self) -> Summary {
        let (trace, out) = (self.path("trace"), self.path("compiled"));
        let summary = compile(&trace, &out, &Options::default(), &mut |_| {}).unwrap();
        assert_eq!(summary.findings, Vec::<String>::new());
        summary
    }

    /// The trace can be replayed on an empty directory: results and trees are those of the original.
    fn assert_replayed(&self) {
        self.compile();
        prepare(&self.path("compiled"), &self.path("replayed"), None).unwrap();
        let output = self.replay();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert_eq!(tree(&self.path("original")), tree(&self.path("replayed")));
    }

    /// goanna-trace records the same operations of the same program.
    fn assert_equal_to_native(&self, command: &[&str]) {
        let native = self.path("native-trace");
        record(&native, &self.path("native"), command, DataMode::Full);
        let comparison = compare_traces(&self.path("trace"), &native);
        assert!(comparison.is_equal(), "{comparison:#?}");
        assert!(!comparison.counts.is_empty());
    }
}

fn import(text: &Path, trace: &Path, options: &[&str]) -> Output {
    Command::new(REPLAYER)
        .args(["import", "--format", "strace"])
        .arg(text)
        .arg("-o")
        .arg(trace)
        .args(options)
        .output()
        .unwrap()
}

#[test]
fn an_imported_trace_has_the_operations_of_a_native_one() {
    if !has("strace") {
        return;
    }
    let postmark = program("postmark");
    let command = [postmark.to_str().unwrap(), "10", "20"];
    let imported = Imported::new(&command);
    imported.assert_equal_to_native(&command);
    imported.assert_replayed();
}

#[test]
fn failing_calls_are_imported() {
    if !has("strace") {
        return;
    }
    let script = "
        mkdir full; echo x > full/f
        mkdir full; rmdir full; rmdir missing; rm missing; mv missing other; ln full/f full/f
        cat missing; cat full; cat full/f/below; mkdir missing/below; ln -s x full; true > full
        true";
    let script = format!("exec 2> /dev/null; {script}");
    let command = ["sh", "-c", script.as_str()];
    let imported = Imported::new(&command);
    imported.assert_equal_to_native(&command);
    imported.assert_replayed();
}

#[test]
fn processes_links_and_inherited_descriptors_are_imported() {
    if !has("strace") {
        return;
    }
    let script = r#"
        set -e
        exec 3> log
        (echo child >&3; (echo grandchild >&3) )
        echo parent >&3; exec 3>&-
        mkdir d; cd d; printf 'a "b" \\ \001 c' > 'f, (g) <h>'; ln -s 'f, (g) <h>' l; cat l > ../copy
        cd ..; mv d e; touch -d 2020-01-01 copy; chmod 600 copy; ln log again; rm log"#;
    let command = ["sh", "-c", script];
    let imported = Imported::new(&command);
    imported.assert_equal_to_native(&command);
    imported.assert_replayed();
}

#[test]
fn threads_are_imported() {
    if !has("strace") {
        return;
    }
    let writers = program("writers");
    let imported = Imported::new(&[writers.to_str().unwrap(), "10"]);
    assert!(imported.compile().lanes > 1);
    imported.assert_replayed();
}

/// The text of a call may take two lines, and a child's first line may come before the line that names its
/// parent.
#[test]
fn calls_in_two_lines_are_put_together() {
    let text = r#"10 1.000000 openat(AT_FDCWD</w>, "f", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 3</w/f> <0.000010>
10 1.000100 fork( <unfinished ...>
11 1.000200 write(3</w/f>, "child\n", 6 <unfinished ...>
10 1.000300 <... fork resumed>) = 11 <0.000200>
10 1.000400 --- SIGUSR1 {si_signo=SIGUSR1, si_code=SI_USER, si_pid=11, si_uid=0} ---
10 1.000500 wait4(-1,  <unfinished ...>
11 1.000600 <... write resumed>) = 6 <0.000400>
11 1.000700 exit_group(0) = ?
11 1.000800 +++ exited with 0 +++
10 1.000900 <... wait4 resumed>[{WIFEXITED(s) && WEXITSTATUS(s) == 0}], 0, NULL) = 11 <0.000400>
10 1.001000 read(3</w/f>, 0x7ffd0000, 4096) = -1 EBADF (Bad file descriptor) <0.000001>
10 1.001100 unknown_call(1, 2) = 0 <0.000001>
10 1.001200 +++ killed by SIGKILL +++
"#;
    let (imported, output) = Imported::of_text(text);
    assert_eq!(output.status.code(), Some(0));
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(
        why.contains("unknown_call() is not known (1 times)"),
        "{why}"
    );
    imported.compile();
    let output = imported.replay();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let content = fs::read_to_string(imported.path("replayed/f")).unwrap();
    assert_eq!(content, "child\n");
}

/// A buffer that strace shows in part has its length, and generated content.
#[test]
fn cut_buffers_keep_their_lengths() {
    let text = r#"10 1.000000 openat(AT_FDCWD</w>, "f", O_WRONLY|O_CREAT, 0666) = 3</w/f> <0.000010>
10 1.000100 write(3</w/f>, "begin"..., 5000) = 5000 <0.000010>
"#;
    let (imported, output) = Imported::of_text(text);
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("1 buffers are cut short"), "{why}");
    imported.compile();
    let output = imported.replay();
    assert_eq!(output.status.code(), Some(0));
    let written = fs::metadata(imported.path("replayed/f")).unwrap();
    assert_eq!(written.len(), 5000);
}

#[test]
fn what_cannot_be_read_is_named_with_line_and_column() {
    let scratch = tempfile::tempdir().unwrap();
    let text = scratch.path().join("text");
    let trace = scratch.path().join("trace");
    let first = "10 1.000000 openat(AT_FDCWD</w>, \"f\", O_RDONLY) = 3</w/f> <0.000010>\n";
    for (line, column, why) in [
        ("10 12:00:01 close(3) = 0", 4, "seconds since 1970"),
        ("ten 1.000000 close(3) = 0", 1, "thread id"),
        ("10 1.000000 close(3 = 0", 24, "no end"),
        ("10 1.000000 close(three) = 0", 19, "descriptor"),
        ("10 1.000000 close(3) 0", 22, "= and the result"),
        ("10 1.000000 close(3) = -1 EWHAT (what)", 27, "not known"),
        ("10 1.000000 close(3) = zero", 24, "a result"),
        ("10 1.000000 unlink(\"f) = 0", 20, "no end"),
        ("10 1.000000 close(3</w) = 0", 20, "no >"),
    ] {
        fs::write(&text, format!("{first}{line}\n")).unwrap();
        fs::write(&trace, "what was there").unwrap();
        let output = import(&text, &trace, &[]);
        assert_eq!(output.status.code(), Some(125), "{line}");
        let message = String::from_utf8(output.stderr).unwrap();
        let place = format!("text:2:{column}: ");
        assert!(
            message.contains(&place) && message.contains(why),
            "{line}: {message}"
        );
        let kept = fs::read_to_string(&trace).unwrap();
        assert_eq!(kept, "what was there");
    }
    fs::write(&text, "close(3) = 0\n").unwrap();
    let output = import(&text, &trace, &[]);
    assert_eq!(output.status.code(), Some(125));
    fs::write(&text, "10 1.000000 close(3) = 0\n").unwrap();
    let message = String::from_utf8(import(&text, &trace, &[]).stderr).unwrap();
    assert!(message.contains("--directory"), "{message}");
}

/// No text makes the importer panic, or leave an incomplete trace.
#[test]
fn damaged_text_is_refused_or_imported() {
    let whole = "10 1.000000 openat(AT_FDCWD</w>, \"f\", O_WRONLY|O_CREAT, 0666) = 3</w/f> <0.000010>\n\
        10 1.000010 writev(3</w/f>, [{iov_base=\"ab\", iov_len=2}, {iov_base=\"c\", iov_len=1}], 2) = 3 <0.000001>\n\
        10 1.000020 utimensat(AT_FDCWD</w>, \"f\", [UTIME_NOW, {tv_sec=1, tv_nsec=2} /* x */], 0) = 0 <0.000001>\n\
        10 1.000030 fcntl(3</w/f>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=0, l_len=0}) = 0 <0.000001>\n\
        10 1.000040 clone(child_stack=NULL, flags=CLONE_CHILD_SETTID|SIGCHLD, child_tidptr=0x7f) = 11 <0.000001>\n";
    let scratch = tempfile::tempdir().unwrap();
    let (text, trace) = (scratch.path().join("text"), scratch.path().join("trace"));
    let options = goanna_replayer::import::Options::default();
    let attempt = |bytes: &[u8]| {
        fs::write(&text, bytes).unwrap();
        let _ = fs::remove_file(&trace);
        let made = goanna_replayer::import::strace(&text, &trace, &options, &mut |_| {});
        assert_eq!(made.is_ok(), trace.exists());
    };
    for at in (0..whole.len()).step_by(5) {
        attempt(&whole.as_bytes()[..at]);
        for byte in [b'"', b'<', b'}', b'\n'] {
            let mut changed = whole.as_bytes().to_vec();
            changed[at] = byte;
            attempt(&changed);
        }
    }
}
