//! The sources of a password. This crate does not use the terminal: its caller provides a function that asks for a password.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use zeroize::Zeroize;

use crate::Error;
use crate::format::keys::Secret;

/// The longest password, bytes.
const MAX: usize = 2048;

/// Asks for a password on the terminal; the text is the prompt.
pub type Ask = fn(&str) -> io::Result<Secret>;

/// The source of a password.
#[derive(Debug, Clone)]
pub enum PasswordSource {
    /// The first line of a file.
    File(PathBuf),
    /// The first line that a shell command prints.
    Command(Vec<u8>),
    /// The next line of standard input. The bytes after it are not read: a second password may follow.
    Stdin,
    /// The user, at the terminal.
    Terminal,
}

impl PasswordSource {
    /// The source that options name: a file, or otherwise a command.
    pub fn named(file: Option<&Path>, command: Option<&[u8]>) -> Option<Self> {
        let file = file.map(|file| Self::File(file.to_owned()));
        file.or_else(|| command.map(|command| Self::Command(command.to_vec())))
    }

    /// Reads the password; calls `ask` with `prompt` if the source is the user.
    pub fn read(&self, prompt: &str, ask: Ask) -> Result<Secret, Error> {
        let secret = match self {
            Self::File(path) => {
                let wrong = |error| failed(&goanna_vfs::escape_path(path).to_string(), &error);
                first_line(File::open(path).map_err(wrong)?).map_err(wrong)?
            }
            Self::Command(command) => of_command(command)?,
            Self::Stdin => {
                next_line_of_stdin().map_err(|error| failed("standard input", &error))?
            }
            Self::Terminal => ask(prompt).map_err(|error| failed("terminal", &error))?,
        };
        match self {
            _ if !secret.bytes().is_empty() => Ok(secret),
            Self::Terminal => Err(Error::EmptyPassword),
            _ => Err(Error::ReadPassword("its first line is empty".into())),
        }
    }
}

fn failed(what: &str, error: &io::Error) -> Error {
    Error::ReadPassword(format!("{what}: {}", goanna_vfs::io_error_text(error)))
}

fn of_command(command: &[u8]) -> Result<Secret, Error> {
    use std::os::unix::ffi::OsStrExt;
    let wrong = |error: io::Error| failed("the command", &error);
    goanna_sys::child::report_ends();
    let mut child = Command::new("/bin/sh")
        .arg("-c")
        .arg(std::ffi::OsStr::from_bytes(command))
        .stdin(Stdio::inherit())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(wrong)?;
    let line = child.stdout.take().map(first_line).transpose();
    let status = child.wait().map_err(wrong)?;
    if !status.success() {
        return Err(Error::ReadPassword(format!("the command: {status}")));
    }
    Ok(line
        .map_err(wrong)?
        .unwrap_or_else(|| Secret::new(Vec::new())))
}

/// The bytes before the first newline.
fn first_line(from: impl Read) -> io::Result<Secret> {
    // Allocated for all of the text: a vector that grows would leave copies in memory.
    let mut bytes = Vec::with_capacity(MAX + 2);
    let read = from.take(MAX as u64 + 2).read_to_end(&mut bytes);
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let result = match (read, end) {
        (Err(error), _) => Err(error),
        (_, None) if bytes.len() > MAX => Err(io::Error::other("longer than 2048 bytes")),
        (_, end) => Ok(bytes
            .get(..end.unwrap_or(bytes.len()))
            .unwrap_or_default()
            .to_vec()),
    };
    bytes.zeroize();
    result.map(Secret::new)
}

/// The next line of standard input, read byte by byte, so that no buffer takes more than the line.
fn next_line_of_stdin() -> io::Result<Secret> {
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut bytes = Vec::with_capacity(MAX + 1);
    let mut byte = [0];
    while bytes.len() <= MAX {
        match stdin.read(&mut byte) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(0) => break,
            Ok(_) if byte == *b"\n" => break,
            Ok(_) => bytes.extend(byte),
        }
    }
    byte.zeroize();
    let secret = Secret::new(bytes);
    if secret.bytes().len() > MAX {
        return Err(io::Error::other("longer than 2048 bytes"));
    }
    Ok(secret)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn read(source: &PasswordSource) -> Result<Vec<u8>, Error> {
        let ask: Ask = |_| Ok(Secret::new(b"asked".to_vec()));
        source.read("", ask).map(|secret| secret.bytes().to_vec())
    }

    #[test]
    fn the_first_line_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pw");
        let file = PasswordSource::File(path.clone());
        for (content, wanted) in [("pw", "pw"), ("pw\n", "pw"), ("p w \nmore", "p w ")] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(read(&file).unwrap(), wanted.as_bytes());
        }
        for content in ["", "\n", "\nmore"] {
            std::fs::write(&path, content).unwrap();
            assert!(matches!(read(&file), Err(Error::ReadPassword(_))));
        }
        std::fs::write(&path, [b'x'; MAX + 1]).unwrap();
        assert!(matches!(read(&file), Err(Error::ReadPassword(_))));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(read(&file), Err(Error::ReadPassword(_))));
    }

    #[test]
    fn commands_and_the_terminal() {
        let command = |text: &str| PasswordSource::Command(text.into());
        assert_eq!(read(&command("echo 'a b'")).unwrap(), b"a b");
        assert!(matches!(
            read(&command("echo x; exit 3")),
            Err(Error::ReadPassword(_))
        ));
        assert_eq!(read(&PasswordSource::Terminal).unwrap(), b"asked");
    }
}
