//! Makes traces of fio's I/O logs (`write_iolog=`), versions 2 and 3, as fio(1) describes them under "Trace file format".
//!
//! A log names the files of one job, when they are opened and closed, and the offset and length of each transfer. It has no results: a
//! transfer is taken to have been complete. It has no data, and times of beginnings only: of version 3 in microseconds since the start of
//! the run, of version 2 the pauses in between (`wait`).

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use goanna_syscalls::{DecodedCall, File as FileInfo, Outcome, Subject, Treatment, Value, by_name};
use goanna_tracer::Event;
use goanna_tracer::event::Call;

use super::lines::Lines;
use super::{Options, Summary, Trace};
use crate::Error;

/// Longest line, bytes. fio reads names of up to 256 bytes.
const MAX_LINE: u64 = 64 << 10;
/// The most bytes that one read(2) or write(2) transfers (`MAX_RW_COUNT`).
const MAX_TRANSFER: u64 = 0x7fff_f000;
/// The thread of the job.
const JOB: i32 = 1;
/// The descriptor of the first file.
const FIRST_DESCRIPTOR: i32 = 3;
/// The directory of relative names, unless `directory` is given: a log does not show the working directory.
const WORKING_DIRECTORY: &[u8] = b"/fio";

/// Converts fio's log `log` to the trace `out`. `progress` receives the number of bytes that were read; the log is read twice.
///
/// # Errors
///
/// [`Error::Text`] has the line and column of an invalid entry; a log without any file fails with [`Error::NoFiles`].
pub fn fio(
    log: &Path,
    out: &Path,
    options: &Options<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<Summary, Error> {
    let given = options.directory.map(|it| it.as_os_str().as_bytes());
    let cwd = given.unwrap_or(WORKING_DIRECTORY);
    let mut files = Files::default();
    let mut actions = Log::open(log)?;
    while let Some(action) = actions.next()? {
        progress(actions.lines.read);
        files.note(cwd, &action);
    }
    let directory = match given {
        Some(directory) => directory.to_vec(),
        None => files.directory().ok_or_else(|| Error::NoFiles {
            path: log.to_owned(),
        })?,
    };
    let trace = Trace::begin(out, "fio", &directory)?;
    let mut job = Job {
        trace: &trace,
        files: &mut files,
        at_ns: 0,
        calls: 0,
    };
    let first = actions.lines.read;
    let filled = job.run(log, cwd, &mut |read| progress(first + read));
    let (calls, bytes) = trace.end(filled)?;
    Ok(Summary {
        calls,
        bytes,
        ..Summary::default()
    })
}

/// The action of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Add,
    Open,
    Close,
    /// Microseconds.
    Wait(u64),
    Read(Range),
    Write(Range),
    Trim(Range),
    Sync,
    DataSync,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    offset: u64,
    length: u64,
}

impl What {
    /// The part of the file that is transferred, which ends where a file may end, and whether it is changed.
    fn range(self) -> Option<(Range, bool)> {
        match self {
            Self::Read(range) => Some((range, false)),
            Self::Write(range) | Self::Trim(range) => Some((range, true)),
            _ => None,
        }
    }
}

/// A line.
#[derive(Debug)]
struct Action {
    /// Microseconds since the start of the run; `None` in version 2.
    at_us: Option<u64>,
    name: Vec<u8>,
    what: What,
}

/// A log.
struct Log {
    lines: Lines,
    line: Vec<u8>,
    version: u64,
}

impl Log {
    /// Opens a log, and reads the first line, which has the version.
    fn open(path: &Path) -> Result<Self, Error> {
        let mut lines = Lines::open(path, MAX_LINE)?;
        let mut line = Vec::new();
        lines.next(&mut line)?;
        let version = match line.trim_ascii_end() {
            b"fio version 2 iolog" => 2,
            b"fio version 3 iolog" => 3,
            _ => {
                let why = "here should be: fio version 2 iolog, or: fio version 3 iolog";
                return Err(lines.wrong(0, why));
            }
        };
        Ok(Self {
            lines,
            line,
            version,
        })
    }

    /// The action of the next line; `None` at the end of the file.
    fn next(&mut self) -> Result<Option<Action>, Error> {
        while self.lines.next(&mut self.line)? {
            let line = self.line.trim_ascii_end();
            if !line.is_empty() {
                return self.action(line).map(Some);
            }
        }
        Ok(None)
    }

    fn action(&self, line: &[u8]) -> Result<Action, Error> {
        let mut words = Words { line, at: 0 };
        let at_us = match self.version {
            2 => None,
            _ => Some(self.number_in(&mut words, "here should be a time in microseconds")?),
        };
        let name = words.next().1.to_vec();
        let (at, verb) = words.next();
        let mut range = || -> Result<Range, Error> {
            let offset = self.number_in(&mut words, "here should be an offset in bytes")?;
            let column = words.at;
            let length = self.number_in(&mut words, "here should be a length in bytes")?;
            match offset.checked_add(length) {
                Some(end) if i64::try_from(end).is_ok() && length <= MAX_TRANSFER => {
                    Ok(Range { offset, length })
                }
                _ => Err(self.lines.wrong(column, "no file is that long")),
            }
        };
        let what = match verb {
            b"add" => What::Add,
            b"open" => What::Open,
            b"close" => What::Close,
            b"read" => What::Read(range()?),
            b"write" => What::Write(range()?),
            b"trim" => What::Trim(range()?),
            // An offset and a length may follow; they have no meaning.
            b"sync" => What::Sync,
            b"datasync" => What::DataSync,
            b"wait" if self.version == 2 => {
                let why = "here should be microseconds";
                What::Wait(self.number_in(&mut words, why)?)
            }
            _ => {
                let why = "here should be one of add, open, close, read, write, trim, sync, datasync, and wait in version 2";
                return Err(self.lines.wrong(at, why));
            }
        };
        Ok(Action { at_us, name, what })
    }

    fn number_in(&self, words: &mut Words<'_>, why: &'static str) -> Result<u64, Error> {
        let (at, word) = words.next();
        let number = std::str::from_utf8(word)
            .ok()
            .and_then(|it| it.parse().ok());
        number.ok_or_else(|| self.lines.wrong(at, why))
    }
}

/// The words of a line.
struct Words<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Words<'a> {
    /// Where the next word begins, and the word; an empty one at the end.
    fn next(&mut self) -> (usize, &'a [u8]) {
        let rest = self.line.get(self.at..).unwrap_or_default();
        let start = self.at + (rest.len() - rest.trim_ascii_start().len());
        let rest = rest.trim_ascii_start();
        let end = rest.iter().position(u8::is_ascii_whitespace);
        let word = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        self.at = start + word.len();
        (start, word)
    }
}

/// A file of the job.
#[derive(Debug)]
struct Facts {
    number: i32,
    /// Absolute.
    path: Box<[u8]>,
    /// Where the last transfer ends: fio makes its files that large before the run.
    size: u64,
    is_changed: bool,
    is_open: bool,
}

/// The files of the job, by their names in the log.
#[derive(Debug, Default)]
struct Files {
    by_name: HashMap<Vec<u8>, Facts>,
}

impl Files {
    fn note(&mut self, cwd: &[u8], action: &Action) {
        if matches!(action.what, What::Wait(_)) {
            return;
        }
        let number = self.by_name.len() as i32;
        let facts = self.by_name.entry(action.name.clone());
        let facts = facts.or_insert_with(|| Facts {
            number,
            path: absolute(cwd, &action.name),
            size: 0,
            is_changed: false,
            is_open: false,
        });
        if let Some((range, changes)) = action.what.range() {
            facts.size = facts.size.max(range.offset + range.length);
            facts.is_changed |= changes;
        }
    }

    /// The deepest directory that holds all files.
    fn directory(&self) -> Option<Vec<u8>> {
        let parents = self.by_name.values().map(|facts| {
            let path = Path::new(std::ffi::OsStr::from_bytes(&facts.path));
            path.parent().unwrap_or(path).to_owned()
        });
        let common = parents.reduce(|one, other| {
            let both = one.components().zip(other.components());
            both.take_while(|(one, other)| one == other)
                .map(|(component, _)| component)
                .collect()
        });
        common.map(|path| path.into_os_string().into_encoded_bytes())
    }
}

fn absolute(cwd: &[u8], name: &[u8]) -> Box<[u8]> {
    if name.starts_with(b"/") {
        return name.into();
    }
    [cwd, b"/", name].concat().into()
}

/// The job, represented as fio's process.
struct Job<'a> {
    trace: &'a Trace<'a>,
    files: &'a mut Files,
    at_ns: u64,
    calls: u64,
}

impl Job<'_> {
    /// Reads the log for the second time, and returns the number of calls.
    fn run(&mut self, log: &Path, cwd: &[u8], progress: &mut dyn FnMut(u64)) -> Result<u64, Error> {
        self.begin(cwd)?;
        let mut actions = Log::open(log)?;
        while let Some(action) = actions.next()? {
            progress(actions.lines.read);
            let at_ns = action.at_us.unwrap_or(0).saturating_mul(1000);
            // Some versions of fio log in the order of completions.
            self.at_ns = self.at_ns.max(at_ns);
            if let What::Wait(us) = action.what {
                self.at_ns = self.at_ns.saturating_add(us.saturating_mul(1000));
                continue;
            }
            let call = self
                .call(&action)
                .map_err(|why| actions.lines.wrong(0, why))?;
            if let Some(call) = call {
                self.calls += 1;
                self.trace.take(&Event::Call(Box::new(call)))?;
            }
        }
        self.trace.take(&Event::Ended {
            subject: subject(),
            status: 0,
            at_ns: self.at_ns,
        })?;
        Ok(self.calls)
    }

    fn begin(&self, cwd: &[u8]) -> Result<(), Error> {
        self.trace.take(&Event::Began {
            subject: subject(),
            parent: 0,
            umask: None,
            at_ns: 0,
        })?;
        self.trace.take(&Event::Descriptor {
            subject: subject(),
            number: libc::AT_FDCWD,
            file: info(libc::S_IFDIR | 0o755, 0, 0, cwd),
            flags: 0,
            offset: 0,
        })
    }

    /// The call of an action; `None` for actions without a call.
    fn call(&mut self, action: &Action) -> Result<Option<Call>, &'static str> {
        let Some(facts) = self.files.by_name.get_mut(&action.name) else {
            return Err("the log has changed while it was read");
        };
        let Some(made) = facts.make(action)? else {
            return Ok(None);
        };
        let signature = by_name(made.name).ok_or("the table of calls lacks this one")?;
        Ok(Some(Call {
            subject: subject(),
            call: DecodedCall {
                signature: Some(signature),
                nr: signature.nr,
                raw: [0; 6],
                args: made.args,
            },
            entered_ns: self.at_ns,
            outcome: Some(Outcome {
                result: made.result,
                left_ns: self.at_ns,
                treatment: Treatment::Kernel,
            }),
            files: made.files,
        }))
    }
}

/// A call, without its thread and time.
struct Made {
    name: &'static str,
    args: Vec<Value>,
    result: i64,
    /// The files of its arguments, by index.
    files: Vec<(u8, FileInfo)>,
}

impl Facts {
    fn make(&mut self, action: &Action) -> Result<Option<Made>, &'static str> {
        match action.what {
            What::Add | What::Wait(_) => return Ok(None),
            What::Open if self.is_open => return Err("the file is open already"),
            What::Open => {}
            _ if !self.is_open => return Err("the file is not open"),
            _ => {}
        }
        Ok(Some(match action.what {
            What::Read(range) => self.transfer("pread64", range),
            What::Write(range) => self.transfer("pwrite64", range),
            What::Trim(range) => self.trim(range),
            What::Sync => self.plain("fsync"),
            What::DataSync => self.plain("fdatasync"),
            What::Close => {
                self.is_open = false;
                self.plain("close")
            }
            What::Open | What::Add | What::Wait(_) => {
                self.is_open = true;
                self.open(&action.name)
            }
        }))
    }

    fn descriptor_number(&self) -> i32 {
        FIRST_DESCRIPTOR.saturating_add(self.number)
    }

    fn descriptor(&self) -> Value {
        Value::Descriptor {
            number: self.descriptor_number(),
            file: Some(self.path.clone()),
        }
    }

    /// A call with the descriptor only.
    fn plain(&self, name: &'static str) -> Made {
        Made {
            name,
            args: vec![self.descriptor()],
            result: 0,
            files: Vec::new(),
        }
    }

    fn transfer(&self, name: &'static str, range: Range) -> Made {
        let buffer = Value::Bytes {
            len: range.length,
            data: Box::default(),
        };
        let size = Value::Unsigned(range.length);
        let offset = Value::Signed(range.offset.cast_signed());
        Made {
            args: vec![self.descriptor(), buffer, size, offset],
            result: range.length.cast_signed(),
            ..self.plain(name)
        }
    }

    fn trim(&self, range: Range) -> Made {
        const HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let hole = Value::Unsigned(HOLE as u64);
        let offset = Value::Signed(range.offset.cast_signed());
        let length = Value::Signed(range.length.cast_signed());
        Made {
            args: vec![self.descriptor(), hole, offset, length],
            ..self.plain("fallocate")
        }
    }

    fn open(&self, name: &[u8]) -> Made {
        let cwd = Value::Descriptor {
            number: libc::AT_FDCWD,
            file: None,
        };
        let path = Value::Path {
            given: name.into(),
            resolved: Some(self.path.clone()),
        };
        let flags = if self.is_changed {
            libc::O_RDWR
        } else {
            libc::O_RDONLY
        };
        let inode = self.number.unsigned_abs().into();
        let file = info(libc::S_IFREG | 0o644, self.size, inode, &self.path);
        Made {
            name: "openat",
            args: vec![cwd, path, Value::Unsigned(flags as u64), Value::Absent],
            result: self.descriptor_number().into(),
            files: vec![(1, file)],
        }
    }
}

fn subject() -> Subject {
    Subject {
        pid: JOB,
        tid: JOB,
        uid: u32::MAX,
        gid: u32::MAX,
        sid: 0,
        comm: "fio".into(),
    }
}

fn info(mode: u32, size: u64, inode: u64, path: &[u8]) -> FileInfo {
    FileInfo {
        device: 0,
        inode,
        mode,
        links: 1,
        size,
        path: Some(path.into()),
    }
}
