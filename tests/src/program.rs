//! Compiles the tracee programs. They are written in C, the language of the kernel's interface.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::once::OnceEach;

/// Compiles `programs/NAME.c` to `dir/NAME`, a static executable when `is_static`. A test process runs the compiler once for each
/// program, and copies the executable afterwards.
///
/// # Panics
///
/// When there is no C compiler, or it finds an error.
#[track_caller]
pub fn program(name: &str, dir: &Path, is_static: bool) -> PathBuf {
    static COMPILED: OnceEach<(String, bool), Vec<u8>> = OnceEach::new();
    let out = dir.join(name);
    let mut is_there = false;
    let executable = COMPILED.get((name.to_owned(), is_static), || {
        compile(name, &out, is_static);
        is_there = true;
        std::fs::read(&out).expect("the executable")
    });
    if !is_there {
        copy(&executable, &out);
    }
    out
}

/// Writes an executable in a process of its own: a child that another test starts meanwhile would inherit the open file, and the
/// kernel refuses to execute a file that is open for writing.
fn copy(executable: &[u8], out: &Path) {
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(out)
        .stdin(Stdio::piped())
        .spawn()
        .expect("install(1)");
    let mut input = install.stdin.take().expect("a pipe");
    input.write_all(executable).expect("its input");
    drop(input);
    assert!(install.wait().expect("its end").success());
}

fn compile(name: &str, out: &Path, is_static: bool) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("programs/{name}.c"));
    let output = Command::new("cc")
        // -w: wrong pointers and sizes are passed on purpose.
        .args(["-std=gnu17", "-O1", "-w", "-pthread", "-o"])
        .arg(out)
        .arg(&source)
        .args(is_static.then_some("-static"))
        .output()
        .expect("the C compiler cc; on Debian: apt-get install gcc libc6-dev");
    assert!(
        output.status.success(),
        "{}: {}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Compiles the Go program `source` to the static executable `out`.
///
/// # Panics
///
/// When the compiler finds an error.
#[track_caller]
pub fn go_program(source: &Path, out: &Path) {
    // Built natively, as the user that runs the tests, for the build cache is that user's.
    let output = Command::new("go")
        .args(["build", "-o"])
        .arg(out)
        .arg(source)
        .env("CGO_ENABLED", "0")
        .env("GO111MODULE", "off")
        .env("GOFLAGS", "")
        .output()
        .expect("the Go compiler");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Puts something behind the code of the library at `path`, where stubs could be otherwise.
pub fn fill_padding(path: &Path) {
    let mut content = std::fs::read(path).unwrap();
    let behind = behind_code(&content);
    content[behind] = 1;
    std::fs::write(path, content).unwrap();
}

/// The last byte of the page in which an ELF file's code ends.
fn behind_code(elf: &[u8]) -> usize {
    let word = |at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().unwrap()) as usize;
    let half = |at: usize| usize::from(u16::from_le_bytes([elf[at], elf[at + 1]]));
    let mut headers = (0..half(56)).map(|index| word(32) + index * half(54));
    let code = headers.find(|at| elf[*at] == 1 && elf[at + 4] & 1 != 0);
    let code = code.unwrap();
    (word(code + 8) + word(code + 32)).next_multiple_of(4096) - 1
}
