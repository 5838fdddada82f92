//! `cargo xtask install-client`: libamino with its header, pkg-config file and Python module.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::ci::{Error, cargo, typed, workspace};

const STEP: &str = "install-client";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// As the build script of the library has it.
const SONAME: &str = concat!("libamino.so.", env!("CARGO_PKG_VERSION_MAJOR"));

/// Builds the client and installs it below `prefix`. Replaces the files of an earlier installation.
///
/// # Errors
///
/// The first file that cannot be written; others may be there already.
pub fn run(prefix: &Path) -> Result<(), Error> {
    let prefix = std::path::absolute(prefix).map_err(at(prefix))?;
    let built = build()?;
    let client = workspace().join("crates/client-c");
    let lib = prefix.join("lib");
    let library = format!("libamino.so.{VERSION}");
    copy(
        &client.join("include/amino.h"),
        &prefix.join("include/amino.h"),
        0o644,
    )?;
    copy(&built.join("libamino.a"), &lib.join("libamino.a"), 0o644)?;
    copy(&built.join("libamino.so"), &lib.join(&library), 0o755)?;
    link(&library, &lib.join(SONAME))?;
    link(SONAME, &lib.join("libamino.so"))?;
    copy(
        &client.join("python/amino.py"),
        &lib.join("amino/amino.py"),
        0o644,
    )?;
    // The module looks for the library beside itself.
    link(&format!("../{SONAME}"), &lib.join("amino").join(SONAME))?;
    let template = client.join("amino.pc.in");
    let text = fs::read_to_string(&template).map_err(at(&template))?;
    let text = text
        .replace("@prefix@", &prefix.to_string_lossy())
        .replace("@version@", VERSION);
    place(&lib.join("pkgconfig/amino.pc"), |new| fs::write(new, text))
}

/// Builds the library, and returns its directory.
fn build() -> Result<PathBuf, Error> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), PathBuf::from);
    let target = std::path::absolute(&target).map_err(at(&target))?;
    let mut command = cargo(&[
        "build",
        "--package",
        "amino-client-c",
        "--profile",
        "client",
    ]);
    command.arg("--target-dir").arg(&target);
    let status = command.status().map_err(at(Path::new("cargo")))?;
    if !status.success() {
        return Err(Error::Failed {
            step: STEP.to_owned(),
            command: typed(&command),
            status,
        });
    }
    Ok(target.join("client"))
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), Error> {
    let bytes = fs::read(from).map_err(at(from))?;
    place(to, |new| {
        fs::write(new, bytes)?;
        fs::set_permissions(new, fs::Permissions::from_mode(mode))
    })
}

fn link(target: &str, path: &Path) -> Result<(), Error> {
    place(path, |new| symlink(target, new))
}

/// Makes `path` under another name first: programs may be running with the existing library.
fn place(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), Error> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(at(dir))?;
    }
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&new)(error)),
        _ => {}
    }
    make(&new).map_err(at(&new))?;
    fs::rename(&new, path).map_err(at(path))?;
    println!("{}", path.display());
    Ok(())
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let command = path.display().to_string();
    move |source| Error::Io {
        step: STEP.to_owned(),
        command,
        source,
    }
}
