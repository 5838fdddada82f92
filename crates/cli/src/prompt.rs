//! Asks for passwords on the terminal.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};

use goanna_aesfs::Secret;
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

/// Asks for a password, which is not shown while it is typed. Fails without a terminal.
pub fn password(prompt: &str) -> io::Result<Secret> {
    let mut terminal = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    terminal.write_all(prompt.as_bytes())?;
    let before = tcgetattr(&terminal)?;
    let mut silent: Termios = before.clone();
    silent.local_flags.remove(LocalFlags::ECHO);
    tcsetattr(&terminal, SetArg::TCSAFLUSH, &silent)?;
    // Large enough for the whole line: a vector that grows leaves copies of the password in memory.
    let mut line = Vec::with_capacity(4096);
    let read = BufReader::new(&terminal).read_until(b'\n', &mut line);
    let restored = tcsetattr(&terminal, SetArg::TCSAFLUSH, &before);
    terminal.write_all(b"\n")?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    let secret = Secret::new(line);
    read?;
    restored?;
    Ok(secret)
}
