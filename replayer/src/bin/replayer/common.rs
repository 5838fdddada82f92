//! Code that the subcommands share: keys, exit statuses, messages.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use goanna_replayer::Error;
use goanna_sys::escape::escape_message;
use goanna_tracer::codec::Key;
use goanna_tracer::output::is_same_file;
use goanna_tracer::read::Keys;
use indicatif::{ProgressBar, ProgressStyle};

/// Exit status when results or operations differ.
pub const DIFFERENT: u8 = 1;
/// Exit status when the program itself fails.
pub const FAILED: u8 = 125;

#[derive(Debug, Default, clap::Args)]
pub struct KeyFiles {
    /// Read authenticated blocks of traces only, checked with the key in FILE
    #[arg(long, value_name = "FILE")]
    pub hmac_key: Option<PathBuf>,
    /// Decrypt traces with the key in FILE
    #[arg(long, value_name = "FILE")]
    pub encrypt_key: Option<PathBuf>,
}

impl KeyFiles {
    /// The keys that the files hold.
    pub fn read(&self) -> Result<Keys, Failure> {
        let read = |path: &Option<PathBuf>| path.as_deref().map(Key::read).transpose();
        let failed = |error: goanna_tracer::Error| Failure(error.to_string());
        Ok(Keys {
            authenticate: read(&self.hmac_key).map_err(failed)?,
            encrypt: read(&self.encrypt_key).map_err(failed)?,
        })
    }
}

/// The reason why a subcommand fails.
#[derive(Debug)]
pub struct Failure(pub String);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

impl Failure {
    /// Shows the error, and returns the exit status.
    pub fn report(&self) -> u8 {
        message(&self.0);
        FAILED
    }
}

/// Writes a line on stderr by one write(2), so that lines of several processes do not mix. Control characters are escaped: names come
/// from traces and command lines, and must not control the terminal.
pub fn message(text: &str) {
    let line = format!("replayer: {}\n", escape_message(text));
    // An error on stderr cannot be reported anywhere.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Prints lines on stdout.
pub fn print(text: &str) -> Result<(), Failure> {
    let written = writeln!(io::stdout(), "{text}");
    written.map_err(|why| Failure(format!("standard output: {why}")))
}

/// Refuses to replace the file that is read.
pub fn require_different(input: &Path, output: &Path) -> Result<(), Failure> {
    if is_same_file(input, output) {
        let why = format!("--output: {} is the file that is read", output.display());
        return Err(Failure(why));
    }
    Ok(())
}

/// Formats a number of bytes with a unit.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..0x2800 => format!("{bytes} bytes"),
        0x2800..0xa0_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// A bar for a file of this length; hidden where stderr is not a terminal.
pub fn progress(length: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    let template = "{bar:30} {bytes} of {total_bytes}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
