//! Compiles a C program against the header and both libraries, and runs it.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use std::path::{Path, PathBuf};
use std::process::Command;

/// Cargo puts the libraries next to this test.
fn library_dir() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.parent().unwrap().to_owned()
}

fn compile_and_run(name: &str, link: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join(name);
    let gcc = Command::new("gcc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&program)
        .arg("-I")
        .arg(source.join("../rvm/include"))
        .arg(source.join("tests/rvm.c"))
        .args(link)
        .current_dir(library_dir())
        .status()
        .unwrap();
    assert!(gcc.success());
    let run = Command::new(&program)
        .env("LD_LIBRARY_PATH", library_dir())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{}: {said}", run.status);
    assert_eq!(run.stdout, b"all well\n");
}

#[test]
fn a_c_program_with_the_static_library() {
    compile_and_run("static", &["libamino_rvm_c.a", "-lpthread", "-ldl", "-lm"]);
}

#[test]
fn a_c_program_with_the_shared_library() {
    compile_and_run("shared", &["-L.", "-lamino_rvm_c"]);
}
