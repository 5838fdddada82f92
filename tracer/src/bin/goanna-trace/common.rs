//! Code that the subcommands share: the trace they read, keys, exit statuses, messages.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

use goanna_sys::escape::{escape_message, escape_path};
use goanna_tracer::Error;
use goanna_tracer::codec::Key;
use goanna_tracer::output::is_same_file;
use goanna_tracer::read::{Finding, Keys, Reader};

/// Exit status when the program itself fails, or the file is not a trace.
pub const FAILED: u8 = 125;
/// Exit status when something of the trace was lost or altered.
pub const DAMAGED: u8 = 3;
/// Exit status of a program that writes to a pipe whose reader has left.
const READER_LEFT: u8 = 128 + libc::SIGPIPE as u8;

/// The trace to read.
#[derive(Debug, clap::Args)]
pub struct Source {
    /// The trace; - is standard input
    pub file: PathBuf,
    #[command(flatten)]
    pub keys: KeyFiles,
}

#[derive(Debug, clap::Args)]
pub struct KeyFiles {
    /// Read authenticated blocks only, checked with the key in FILE (32 bytes, or 64 hexadecimal digits)
    #[arg(long, value_name = "FILE")]
    pub hmac_key: Option<PathBuf>,
    /// Decrypt with the key in FILE
    #[arg(long, value_name = "FILE")]
    pub encrypt_key: Option<PathBuf>,
}

impl KeyFiles {
    /// The keys that the files hold.
    pub fn read(&self) -> Result<Keys, Error> {
        let read = |path: &Option<PathBuf>| path.as_deref().map(Key::read).transpose();
        Ok(Keys {
            authenticate: read(&self.hmac_key)?,
            encrypt: read(&self.encrypt_key)?,
        })
    }
}

/// The source of a trace: a file, or a pipe.
pub type Input = Box<dyn Read>;

impl Source {
    /// Opens the trace.
    pub fn open(&self) -> Result<Reader<Input>, Failure> {
        let keys = self.keys.read().map_err(Failure::Error)?;
        let opened = if self.file == Path::new("-") {
            Reader::new(Box::new(io::stdin()) as Input, &keys)
        } else {
            Reader::open(&self.file, &keys).map(|reader| reader.boxed())
        };
        opened.map_err(|error| self.failure(error))
    }

    /// Fails when `output` is the trace itself.
    pub fn differs_from(&self, output: &Path) -> Result<(), Failure> {
        if !is_same_file(output, &self.file) {
            return Ok(());
        }
        let why = format!(
            "--output: {} is the trace that is read",
            escape_path(output)
        );
        Err(Failure::Usage(why))
    }

    /// Length of the file in bytes, if it is one.
    pub fn len(&self) -> Option<u64> {
        let metadata = std::fs::metadata(&self.file).ok()?;
        metadata.is_file().then_some(metadata.len())
    }

    /// An error with the name of the trace.
    pub fn failure(&self, error: Error) -> Failure {
        match error {
            Error::Input { input, why } if input.as_os_str().is_empty() => {
                let input = self.file.clone();
                Failure::Error(Error::Input { input, why })
            }
            error @ (Error::Input { .. } | Error::Output { .. } | Error::Key { .. }) => {
                Failure::Error(error)
            }
            error => Failure::Trace(self.file.clone(), error),
        }
    }
}

/// The reason why a subcommand ends early.
#[derive(Debug)]
pub enum Failure {
    /// The command line is wrong.
    Usage(String),
    /// An error that names its file itself.
    Error(Error),
    /// An error that concerns a trace.
    Trace(PathBuf, Error),
    /// The error has been shown already.
    Reported,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Failure {
    /// Shows the error, and returns the exit status.
    pub fn report(&self) -> u8 {
        let text = match self {
            Self::Error(Error::Output { why, .. }) if why.kind() == io::ErrorKind::BrokenPipe => {
                return READER_LEFT;
            }
            Self::Error(Error::Output { output, why }) if output.as_os_str().is_empty() => {
                format!("standard output: {why}")
            }
            Self::Reported => return FAILED,
            Self::Usage(text) => {
                for line in text.lines().filter(|line| !line.trim().is_empty()) {
                    message(line.trim_start());
                }
                return FAILED;
            }
            Self::Error(error) => error.to_string(),
            Self::Trace(path, error) => format!("{}: {error}", escape_path(path)),
        };
        message(&text);
        FAILED
    }
}

/// Writes a message of several lines, such as an error in a filter with a mark below the place.
pub fn message_of_lines(text: &str) {
    write_lines(&text.lines().map(prefixed).collect::<String>());
}

/// Writes a line on stderr.
pub fn message(text: &str) {
    write_lines(&prefixed(text));
}

/// A line on stderr. Control characters are escaped: names come from traces and command lines, and must not control the terminal.
fn prefixed(text: &str) -> String {
    format!("goanna-trace: {}\n", escape_message(text))
}

/// Writes whole lines by one write(2), so that lines of several processes do not mix.
fn write_lines(lines: &str) {
    // An error on stderr cannot be reported anywhere.
    let _ = io::stderr().write_all(lines.as_bytes());
}

/// Maximum number of findings that are shown one by one.
const SHOWN: u64 = 100;

/// Shows findings on stderr, and counts them.
#[derive(Debug)]
pub struct Findings<'a> {
    file: &'a Path,
    pub count: u64,
    pub lost: u64,
}

impl<'a> Findings<'a> {
    pub fn of(source: &'a Source) -> Self {
        Self {
            file: &source.file,
            count: 0,
            lost: 0,
        }
    }

    pub fn report(&mut self, finding: &Finding) {
        self.count += 1;
        self.lost = self.lost.saturating_add(finding.what.lost_records());
        match self.count {
            ..=SHOWN => message(&format!("{}: {finding}", self.file.display())),
            n if n == SHOWN + 1 => message("further findings are counted only"),
            _ => {}
        }
    }

    /// 0 when there was none, else 3.
    pub fn status(&self) -> u8 {
        if self.count == 0 { 0 } else { DAMAGED }
    }
}

/// Standard output or a file, with a buffer.
pub fn output(path: Option<&Path>) -> Result<Box<dyn Write>, Failure> {
    match path {
        None => Ok(Box::new(BufWriter::new(io::stdout().lock()))),
        Some(path) if path == Path::new("-") => output(None),
        Some(path) => match File::create(path) {
            Ok(file) => Ok(Box::new(BufWriter::new(file))),
            Err(why) => Err(Failure::Error(Error::Output {
                output: path.to_owned(),
                why,
            })),
        },
    }
}

/// How much the program says on stderr.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Verbosity {
    /// Print more on stderr: records and bytes of each trace that was written
    #[arg(short, long, global = true, display_order = 900)]
    verbose: bool,
    /// Print only errors, and what a trace lacks, on stderr
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        display_order = 901
    )]
    quiet: bool,
}

/// 0 quiet, 1 as usual, 2 verbose.
static LOUDNESS: AtomicU8 = AtomicU8::new(1);

impl Verbosity {
    /// Sets the level for the whole program.
    pub fn set(self) {
        let loudness = match (self.quiet, self.verbose) {
            (true, _) => 0,
            (_, true) => 2,
            _ => 1,
        };
        LOUDNESS.store(loudness, Ordering::Relaxed);
    }
}

/// A line on stderr that -q leaves out.
pub fn note(text: &str) {
    if LOUDNESS.load(Ordering::Relaxed) > 0 {
        message(text);
    }
}

/// A line on stderr that -v adds.
pub fn detail(text: &str) {
    if LOUDNESS.load(Ordering::Relaxed) > 1 {
        message(text);
    }
}
