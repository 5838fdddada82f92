//! The kernel's own count of calls, by its tracepoints, equals the number of captured ones.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod capturing;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use capturing::{calls, capture, of_command, program};
use goanna_skip::{Facility, skip};
use goanna_syscalls::Value;
use goanna_tracer::capture::ptrace::Recorded;
use goanna_tracer::capture::{CaptureEnd, Data};

/// Unmounts at the end.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir(self.0.join("instances/goanna"));
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn the_kernel_counts_as_many_calls_as_are_captured() {
    if goanna_sys::cred::own_ids().uid != 0 {
        return skip(Facility::Root, "tracefs is root's");
    }
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mounted = Command::new("mount")
        .args(["-t", "tracefs", "none"])
        .arg(place)
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return skip(Facility::Mounts, "tracefs cannot be mounted");
    }
    let mounted = Mounted(place);
    let instance = mounted.0.join("instances/goanna");
    if fs::create_dir(&instance).is_err() || !instance.join("events/syscalls").exists() {
        return skip(
            Facility::Mounts,
            "the kernel has no tracepoints of system calls",
        );
    }
    fs::write(instance.join("buffer_size_kb"), "16384").unwrap();
    fs::write(instance.join("options/event-fork"), "1").unwrap();
    // From its own note on (appended: without any note, the kernel counts all processes), the kernel counts the calls of the shell and of its descendants.
    let noted = instance.join("set_event_pid");
    // Until then, the kernel counts the calls of a process that does not exist.
    fs::write(&noted, "4194303").unwrap();
    fs::write(instance.join("events/syscalls/enable"), "1").unwrap();
    let script = format!(
        "echo $$ >>{}; exec '{}' storm 4",
        noted.display(),
        program("hard").display()
    );
    // The recorder makes calls of its own.
    let source = of_command(&["/bin/sh", "-c", &script]).recorded(Recorded::Never);
    let (ending, events) = capture(source, "", Data::None);
    fs::write(instance.join("events/syscalls/enable"), "0").unwrap();
    assert_eq!(ending.unwrap(), CaptureEnd::Ended(0));

    let text = fs::read_to_string(instance.join("trace")).unwrap();
    let mut counted: BTreeMap<&str, usize> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.contains(" -> ")) {
        if let Some((_, rest)) = line.split_once(": sys_")
            && let Some((name, _)) = rest.split_once('(')
        {
            *counted.entry(name).or_default() += 1;
        }
    }
    let to_note = |value: &Value| matches!(value, Value::Descriptor { file: Some(file), .. } if **file == *noted.as_os_str().as_encoded_bytes());
    let write = calls(&events).position(|call| {
        call.call.nr == libc::SYS_write as u32 && call.call.args.first().is_some_and(to_note)
    });
    let mut captured: BTreeMap<&str, usize> = BTreeMap::new();
    for call in calls(&events).skip(write.unwrap() + 1) {
        *captured
            .entry(call.call.signature.unwrap().name)
            .or_default() += 1;
    }
    // The tracepoints have other names for a few calls, and count those, too, that concern no files.
    counted.retain(|name, _| captured.contains_key(name));
    captured.retain(|name, _| counted.contains_key(name));
    assert_eq!(captured, counted);
    for name in ["mkdir", "execve", "exit_group", "openat", "mmap"] {
        assert!(captured.contains_key(name), "{name}: {captured:?}");
    }
    drop(mounted);
}
