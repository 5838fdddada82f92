//! Converts the text of `strace -f -ttt -T -y` to traces.
//!
//! `line.rs` splits lines and calls into their parts, `calls.rs` joins the two lines of a call, `value.rs` parses arguments as the table of
//! calls describes them. This file follows threads and writes the trace. It reads the text twice: a child's first line may come before the
//! line that names its parent.

mod calls;
mod line;
mod value;

use std::collections::{HashMap, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use goanna_syscalls::{
    DecodedCall, Extent, File, Kind, Operation, Outcome, Signature, Subject, Treatment, Value,
    by_name,
};
use goanna_tracer::Event;
use goanna_tracer::event::Call;
use goanna_tracer::select::{CallSet, Filter};

use super::{Options, Summary, Trace};
use crate::Error;
use calls::{Calls, Item, Text, What};
use line::{Argument, LineError, Parts, split_call};
use value::{Notes, descriptor, errno, number, signal};

/// Maximum number of unknown names that are kept.
const MAX_UNKNOWN: usize = 1000;
/// Longest name of a process, as in `/proc/PID/comm`.
const MAX_COMM: usize = 15;

/// Converts strace's text `text` to the trace `out`. `progress` receives the number of bytes that were read, in both passes together.
pub fn strace(
    text: &Path,
    out: &Path,
    options: &Options<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<Summary, Error> {
    let before = Before::read(text, progress)?;
    let given = options.directory.map(|it| it.as_os_str().as_bytes());
    let given: Option<Box<[u8]>> = given.map(Into::into);
    let shown = before.directory.clone();
    let directory: Box<[u8]> = given.clone().or(shown).ok_or(Error::NoDirectory)?;
    let cwd = before.directory.clone().or(given).unwrap_or_default();
    let trace = Trace::begin(out, "strace", &directory)?;
    let summary = read(text, &before, cwd, &trace, progress);
    let (summary, bytes) = trace.end(summary)?;
    Ok(Summary { bytes, ..summary })
}

/// Reads the text for the second time, and writes its events to `trace`.
fn read(
    text: &Path,
    before: &Before,
    cwd: Box<[u8]>,
    trace: &Trace<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<Summary, Error> {
    let mut importer = Importer {
        trace,
        cwd,
        births: before.births.clone(),
        threads: HashMap::new(),
        names: HashMap::new(),
        wanted: Filter::everything().traced_calls(),
        notes: Notes::default(),
        summary: Summary::default(),
    };
    let mut calls = Calls::open(text)?;
    while let Some(item) = calls.next()? {
        progress(before.read + calls.read());
        importer.item(&calls, &item)?;
    }
    importer.summary.cut = importer.notes.cut;
    Ok(importer.summary)
}

/// A thread's parent, and whether both are threads of one process.
#[derive(Debug, Clone, Copy)]
struct ThreadStart {
    parent: i32,
    is_thread: bool,
}

/// The facts that must be known before the first line.
#[derive(Debug, Default)]
struct Before {
    births: HashMap<i32, VecDeque<ThreadStart>>,
    directory: Option<Box<[u8]>>,
    read: u64,
}

impl Before {
    fn read(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Self, Error> {
        let mut before = Self::default();
        let mut calls = Calls::open(path)?;
        while let Some(item) = calls.next()? {
            progress(calls.read());
            let What::Call(text) = &item.what else {
                continue;
            };
            let is_fork = [b"clone".as_slice(), b"fork", b"vfork"]
                .iter()
                .any(|name| text.text.starts_with(name));
            if !is_fork && before.directory.is_some() {
                continue;
            }
            let parts = split_call(&text.text).map_err(|wrong| calls.wrong_in(text, wrong))?;
            if before.directory.is_none() {
                let mut arguments = parts.arguments.iter();
                let at = arguments.find(|it| it.text.starts_with(b"AT_FDCWD<"));
                before.directory = at.and_then(|it| descriptor(*it).ok()?.1);
            }
            let child = result(&parts).ok().flatten();
            let child = child.and_then(|it| i32::try_from(it).ok());
            if let Some(child) = child.filter(|it| is_fork && *it > 0) {
                let birth = ThreadStart {
                    parent: item.tid,
                    is_thread: line::find(&text.text, b"CLONE_THREAD").is_some(),
                };
                before.births.entry(child).or_default().push_back(birth);
            }
        }
        before.read = calls.read();
        Ok(before)
    }
}

struct Importer<'a> {
    trace: &'a Trace<'a>,
    /// Working directory of processes whose parents are not known.
    cwd: Box<[u8]>,
    births: HashMap<i32, VecDeque<ThreadStart>>,
    /// Threads that are alive, with their processes.
    threads: HashMap<i32, i32>,
    /// Names of processes.
    names: HashMap<i32, Arc<str>>,
    wanted: CallSet,
    notes: Notes,
    summary: Summary,
}

impl Importer<'_> {
    fn item(&mut self, calls: &Calls, item: &Item) -> Result<(), Error> {
        self.begin(item.tid, item.at_ns)?;
        match &item.what {
            What::Nothing => Ok(()),
            What::Call(text) => {
                let made = self.call(item, text);
                let made = made.map_err(|wrong| calls.wrong_in(text, wrong))?;
                self.forget_unknown();
                match made {
                    Some(call) => self.take_call(call, item.at_ns),
                    None => Ok(()),
                }
            }
            What::Ended(how) => {
                let status = status(how);
                let subject = self.subject(item.tid);
                self.threads.remove(&item.tid);
                self.trace.take(&Event::Ended {
                    subject,
                    status,
                    at_ns: item.at_ns,
                })
            }
        }
    }

    fn subject(&self, tid: i32) -> Subject {
        let pid = self.threads.get(&tid).copied().unwrap_or(tid);
        let name = self.names.get(&pid).cloned();
        Subject {
            pid,
            tid,
            uid: u32::MAX,
            gid: u32::MAX,
            sid: 0,
            comm: name.unwrap_or_else(|| "".into()),
        }
    }

    /// Records that a thread has begun, at the latest before its first line.
    fn begin(&mut self, tid: i32, at_ns: u64) -> Result<(), Error> {
        if self.threads.contains_key(&tid) {
            return Ok(());
        }
        let birth = self.births.get_mut(&tid).and_then(VecDeque::pop_front);
        let parent = birth.and_then(|birth| self.threads.get(&birth.parent).copied());
        let pid = match (birth, parent) {
            (Some(birth), Some(parent)) if birth.is_thread => parent,
            _ => tid,
        };
        self.threads.insert(tid, pid);
        if let Some(name) = parent.and_then(|parent| self.names.get(&parent).cloned()) {
            self.names.insert(pid, name);
        }
        let subject = self.subject(tid);
        self.trace.take(&Event::Began {
            subject: subject.clone(),
            parent: parent.unwrap_or(0),
            umask: None,
            at_ns,
        })?;
        if parent.is_some() {
            return Ok(());
        }
        self.trace.take(&Event::Descriptor {
            subject,
            number: libc::AT_FDCWD,
            file: File {
                device: 0,
                inode: 0,
                mode: libc::S_IFDIR | 0o755,
                links: 1,
                size: 0,
                path: Some(self.cwd.clone()),
            },
            flags: 0,
            offset: 0,
        })
    }

    /// Parses the text of a call; `None` for calls that no trace has.
    fn call(&mut self, item: &Item, text: &Text) -> Result<Option<Call>, LineError> {
        let parts = split_call(&text.text)?;
        let name = String::from_utf8_lossy(parts.name);
        let Some(signature) = by_name(&name) else {
            self.notes.unknown.push(format!("{name}()"));
            return Ok(None);
        };
        if !self.wanted.contains(signature.nr) {
            self.summary.others += 1;
            return Ok(None);
        }
        let result = result(&parts)?;
        let call = self.decode(signature, &parts, result)?;
        let left_ns = match parts.duration_ns {
            Some(duration) => text.entered_ns.saturating_add(duration),
            None => item.at_ns,
        };
        Ok(Some(Call {
            subject: self.subject(item.tid),
            call,
            entered_ns: text.entered_ns,
            outcome: result.map(|result| Outcome {
                result,
                left_ns,
                treatment: Treatment::Kernel,
            }),
            files: Vec::new(),
        }))
    }

    fn decode(
        &mut self,
        signature: &'static Signature,
        parts: &Parts<'_>,
        result: Option<i64>,
    ) -> Result<DecodedCall, LineError> {
        let mut call = DecodedCall {
            signature: Some(signature),
            nr: signature.nr,
            raw: [0; 6],
            args: Vec::with_capacity(signature.params.len()),
        };
        for (index, param) in signature.params.iter().enumerate() {
            let Some(argument) = argument(signature, parts, index) else {
                call.args.push(Value::Absent);
                continue;
            };
            let kind = call.kind_of(index).unwrap_or(param.kind);
            let (value, raw) = self.notes.value(kind, argument, result)?;
            call.args.push(value);
            if let Some(register) = call.raw.get_mut(index) {
                *register = raw;
            }
        }
        measure(&mut call, signature, result);
        resolve(&mut call, signature, parts, result);
        Ok(call)
    }

    fn take_call(&mut self, call: Call, at_ns: u64) -> Result<(), Error> {
        self.summary.calls += 1;
        let is_exec = call
            .call
            .signature
            .is_some_and(|it| it.operation == Operation::Exec);
        let has_succeeded = call.outcome.is_some_and(|outcome| outcome.result == 0);
        let path = call.path().map(<[u8]>::to_vec);
        let tid = call.subject.tid;
        self.trace.take(&Event::Call(Box::new(call)))?;
        let Some(program) = path.filter(|_| is_exec && has_succeeded) else {
            return Ok(());
        };
        let name = program.rsplit(|byte| *byte == b'/').next();
        let name = name.unwrap_or_default();
        let name = name.get(..MAX_COMM).unwrap_or(name);
        let pid = self.threads.get(&tid).copied().unwrap_or(tid);
        self.names.insert(pid, String::from_utf8_lossy(name).into());
        self.trace.take(&Event::Executed {
            subject: self.subject(tid),
            program: program.into(),
            at_ns,
        })
    }

    /// Counts the names that the last call had and the table does not have.
    fn forget_unknown(&mut self) {
        for name in self.notes.unknown.drain(..) {
            let unknown = &mut self.summary.unknown;
            if unknown.len() < MAX_UNKNOWN || unknown.contains_key(&name) {
                *unknown.entry(name).or_default() += 1;
            }
        }
    }
}

/// The argument that strace shows for parameter `index`: in the order of parameters, except for some calls.
fn argument<'a>(signature: &Signature, parts: &Parts<'a>, index: usize) -> Option<Argument<'a>> {
    let shown = |index: usize| parts.arguments.get(index).copied();
    match (signature.name, index) {
        ("clone", _) => {
            let name = signature.params.get(index)?.name;
            let mut arguments = parts.arguments.iter();
            arguments.find_map(|argument| {
                let rest = argument.text.strip_prefix(name.as_bytes())?;
                let text = rest.strip_prefix(b"=")?;
                let at = argument.at + argument.text.len() - text.len();
                Some(Argument { at, text })
            })
        }
        // strace shows the two halves of the offset as one.
        ("preadv" | "pwritev" | "preadv2" | "pwritev2", 4) => None,
        ("preadv2" | "pwritev2", 5) => shown(4),
        _ => shown(index),
    }
}

/// Sets the length of buffers that strace shows in part or not at all.
fn measure(call: &mut DecodedCall, signature: &Signature, result: Option<i64>) {
    for (index, param) in signature.params.iter().enumerate() {
        let length = match param.kind {
            Kind::Input(Extent::Argument(at)) => call.raw.get(usize::from(at)).copied(),
            Kind::Output(Extent::Argument(_)) => result.and_then(|it| u64::try_from(it).ok()),
            _ => None,
        };
        if let (Some(Value::Bytes { len, data }), Some(length)) = (call.args.get_mut(index), length)
            && data.is_empty()
        {
            *len = length;
        }
    }
}

/// Resolves a path that was opened: it leads to the file that strace shows behind the new descriptor.
fn resolve(call: &mut DecodedCall, signature: &Signature, parts: &Parts<'_>, result: Option<i64>) {
    let flags = call.open_flags().unwrap_or(0);
    let is_unnamed = flags & libc::O_TMPFILE as u64 == libc::O_TMPFILE as u64;
    let opens = signature.operation == Operation::Open || signature.operation == Operation::Create;
    if !opens || is_unnamed || result.is_none_or(|it| it < 0) {
        return;
    }
    let shown = descriptor(Argument {
        at: parts.result_at,
        text: parts.result,
    });
    let Ok((_, Some(path))) = shown else {
        return;
    };
    let mut paths = call.args.iter_mut();
    if let Some(Value::Path { resolved, .. }) = paths.find(|it| matches!(it, Value::Path { .. })) {
        *resolved = Some(path);
    }
}

/// The result register; `None` for a call that did not end.
fn result(parts: &Parts<'_>) -> Result<Option<i64>, LineError> {
    let text = parts.result;
    let wrong = LineError {
        at: parts.result_at,
        why: "here should be a result",
    };
    let mut words = text.split(|byte| matches!(byte, b' ' | b'<'));
    let first = words.next().unwrap_or_default();
    if first == b"?" {
        return Ok(None);
    }
    let value = number(first).ok_or(wrong)?.cast_signed();
    let second = words.next().unwrap_or_default();
    if value != -1 || !second.starts_with(b"E") {
        return Ok(Some(value));
    }
    let why = "this error is not known";
    let at = parts.result_at + first.len() + 1;
    let errno = errno(second).ok_or(LineError { at, why })?;
    Ok(Some(-errno))
}

/// The status that waitpid(2) gives.
fn status(how: &[u8]) -> i32 {
    if let Some(status) = how.strip_prefix(b"exited with ") {
        return (number(status).unwrap_or(0) as i32 & 0xff) << 8;
    }
    let name = how.strip_prefix(b"killed by ").unwrap_or_default();
    let name = name.split(|byte| *byte == b' ').next().unwrap_or_default();
    signal(name).unwrap_or(0) as i32
}
