//! Libraries of tracees: any program may bring a file with the name of the C library.

use std::process::Command;

use goanna_monitor::inprocess;

use crate::scratch;

/// A function with a system call of the form that is patched.
const SOURCE: &str = "
    .globl getpid
    .type getpid, @function
getpid:
    .cfi_startproc
    mov $39, %eax
    syscall
    ret
    .cfi_endproc
    .size getpid, .-getpid
";

/// Looks for calls that can be patched.
pub fn read(input: &[u8]) {
    let _ = inprocess::patchable_calls(input);
}

/// A small library, which gcc makes.
pub fn seeds() -> Vec<Vec<u8>> {
    let Ok(scratch) = scratch() else {
        return Vec::new();
    };
    let (source, library) = (scratch.join("library.s"), scratch.join("library.so"));
    if std::fs::write(&source, SOURCE).is_err() {
        return Vec::new();
    }
    let status = Command::new("gcc")
        .args([
            "-shared",
            "-nostdlib",
            "-s",
            "-Wl,-soname,libc.so.6,--build-id,-z,max-page-size=4096",
        ])
        .arg("-o")
        .args([&library, &source])
        .status();
    match status {
        Ok(status) if status.success() => std::fs::read(&library).into_iter().collect(),
        _ => Vec::new(),
    }
}
