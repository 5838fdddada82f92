//! Reads a trace as operations on descriptors and paths below one directory: the front end of [`crate::compile`] and [`crate::compare`].
//!
//! Calls that concern nothing below the directory are skipped and counted. `process.rs` follows the descriptors of processes, `calls/`
//! translates each call, `step.rs` has the result.

mod calls;
mod fields;
mod process;
mod step;

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use amino_schema::replay::{Call, MAX_SLOTS};
use amino_schema::trace::pairs::Pairs;
use amino_schema::trace::record::Record;
use goanna_tracer::read::{Finding, Item, Keys, Reader};

use crate::Error;
use calls::Look;
pub use calls::{PLACEHOLDER, PLACEHOLDER_FILE};
use fields::Fields;
use process::{Entry, Process, Slots, absolute, below};
pub use step::{Info, Name, Payload, Seen, Step, Subject};

/// Announcements of the replayer's own calls, which stand for no call of the trace: posix_fadvise(2) on the root directory, with
/// `POSIX_FADV_NORMAL` and one of these as the length.
pub mod note {
    /// The thread continues with the calls of the traced thread whose id is the offset.
    pub const THREAD: u64 = 0x7265_706c_6179;
    /// The thread's next call is the replayer's own.
    pub const OWN: u64 = 0x7265_706c_617a;
    /// The thread's next call is made in a replacement for the directory that the thread's last own call did not find.
    pub const PLACEHOLDER: u64 = 0x7265_706c_617b;
    /// The thread's next call is an open whose `O_NONBLOCK` is the replayer's own.
    pub const AT_ONCE: u64 = 0x7265_706c_617c;
}

/// File mode creation mask of a process if the trace does not have it.
const UMASK: u32 = 0o022;

/// Receives the content of a trace, in its order.
pub trait Visitor {
    /// The context of the trace.
    fn context(&mut self, _context: &Pairs) {}

    /// Receives an operation or event.
    fn see(&mut self, seen: Seen<'_>) -> Result<(), Error>;

    /// Bytes of the trace that were read so far.
    fn progress(&mut self, _bytes: u64) {}

    /// Receives a finding: a lost or altered part of the trace.
    fn finding(&mut self, _finding: &Finding) {}
}

/// Reads a trace.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    directory: Option<Vec<u8>>,
    processes: HashMap<i32, Process>,
    threads: HashMap<i32, i32>,
    /// In the trace of a replay: the traced thread whose calls a thread of the replay makes.
    aliases: HashMap<i32, i32>,
    /// Threads whose next call is the replayer's own.
    own: HashSet<i32>,
    /// The directories that threads' own calls did not find.
    not_found: HashMap<i32, Vec<u8>>,
    /// The descriptors that threads' own calls have opened last, and the paths that these calls gave.
    examined: HashMap<i32, (i32, Vec<u8>)>,
    placeholder: HashSet<i32>,
    /// Threads whose next call has an `O_NONBLOCK` of the replayer.
    at_once: HashSet<i32>,
    slots: Slots,
    mappings: Slots,
}

impl Source {
    /// A source of the operations below `directory`; `None` for the working directory of the traced command.
    pub fn new(path: &Path, directory: Option<&Path>) -> Self {
        use std::os::unix::ffi::OsStrExt;
        let given = directory.map(|it| absolute(b"/", it.as_os_str().as_bytes()));
        Self {
            path: path.to_owned(),
            directory: given,
            processes: HashMap::new(),
            threads: HashMap::new(),
            aliases: HashMap::new(),
            own: HashSet::new(),
            not_found: HashMap::new(),
            examined: HashMap::new(),
            placeholder: HashSet::new(),
            at_once: HashSet::new(),
            slots: Slots::default(),
            mappings: Slots::default(),
        }
    }

    /// How many slots descriptors and mappings need.
    pub fn slots(&self) -> (u32, u32) {
        (self.slots.len(), self.mappings.len())
    }

    /// Reads the trace to its end.
    pub fn read(&mut self, keys: &Keys, visitor: &mut dyn Visitor) -> Result<(), Error> {
        let path = self.path.clone();
        let failed = |why| Error::Trace {
            path: path.clone(),
            why,
        };
        let mut reader = Reader::open(&path, keys).map_err(failed)?;
        self.read_from(&mut reader, visitor)
    }

    fn read_from<R: Read>(
        &mut self,
        reader: &mut Reader<R>,
        visitor: &mut dyn Visitor,
    ) -> Result<(), Error> {
        let path = self.path.clone();
        let failed = |why| Error::Trace {
            path: path.clone(),
            why,
        };
        while let Some(item) = reader.next().map_err(failed)? {
            visitor.progress(reader.offset());
            match item {
                Item::Context(context) => {
                    let directory = context.iter().find(|(name, _)| name == "directory");
                    let directory = directory.map_or(b"/".as_slice(), |(_, value)| value);
                    self.directory
                        .get_or_insert_with(|| absolute(b"/", directory));
                    visitor.context(&context);
                }
                Item::Records(_, mut records) => loop {
                    match records.next() {
                        Ok(Some(record)) => self.record(&record, visitor)?,
                        Ok(None) => break,
                        Err(why) => {
                            return Err(Error::Damaged {
                                path: path.clone(),
                                why,
                            });
                        }
                    }
                },
                Item::Finding(finding) => visitor.finding(&finding),
                Item::Schema(_) | Item::End(_) => {}
            }
        }
        let mut open: Vec<i32> = self.threads.keys().copied().collect();
        open.sort_unstable();
        for tid in open {
            self.end(tid, 0, visitor)?;
        }
        Ok(())
    }

    fn record(&mut self, record: &Record<'_>, visitor: &mut dyn Visitor) -> Result<(), Error> {
        let fields = Fields::of(record);
        let name = record.message.name.as_str();
        if name == "blob" {
            let hash = fields.bytes("hash").and_then(|it| it.try_into().ok());
            return match (hash, fields.bytes("data")) {
                (Some(hash), Some(data)) => visitor.see(Seen::Blob { hash, data }),
                _ => Ok(()),
            };
        }
        let pid = fields.number("pid").map(|it| it as i32);
        let tid = fields.number("tid").map(|it| it as i32).or(pid);
        let Some(tid) = tid else {
            return Ok(());
        };
        let pid = pid.unwrap_or(tid);
        let at_ns = fields.number("time").unwrap_or(0);
        if name == "began" {
            let parent = fields.number("parent").unwrap_or(0) as i32;
            self.begin(tid, pid, parent, at_ns, visitor)?;
            if let (Some(umask), Some(process)) =
                (fields.number("umask"), self.processes.get_mut(&pid))
            {
                process.umask = umask as u32 & 0o777;
            }
            return Ok(());
        }
        if name == "ended" {
            return self.end(tid, at_ns, visitor);
        }
        if !self.threads.contains_key(&tid) {
            self.begin(tid, pid, 0, at_ns, visitor)?;
        }
        match name {
            "executed" => self.execute(tid, pid, at_ns, visitor),
            "descriptor" => self.restore(tid, pid, &fields, visitor),
            "mapping" | "lost" | "counter" | "bucket" => Ok(()),
            _ => self.call(name, tid, pid, &fields, visitor),
        }
    }

    fn begin(
        &mut self,
        tid: i32,
        pid: i32,
        parent: i32,
        at_ns: u64,
        visitor: &mut dyn Visitor,
    ) -> Result<(), Error> {
        if self.threads.insert(tid, pid).is_some() {
            return Ok(());
        }
        let mut inherited = Vec::new();
        if let Some(process) = self.processes.get_mut(&pid) {
            process.threads += 1;
            // A thread does not begin before its process has.
            return visitor.see(Seen::Began {
                tid,
                parent: if parent == 0 { pid } else { parent },
                inherited,
                at_ns,
            });
        }
        let mut child = Process {
            umask: UMASK,
            threads: 1,
            ..Process::default()
        };
        if let Some(process) = self.processes.get(&parent) {
            child.umask = process.umask;
            child.cwd = process.cwd.clone();
            let mut numbers: Vec<_> = process.descriptors.iter().collect();
            numbers.sort_unstable_by_key(|(number, _)| **number);
            for (&number, &entry) in numbers {
                if let Some(slot) = self.slots.take(tid, MAX_SLOTS) {
                    inherited.push((entry.slot, slot));
                    child.descriptors.insert(number, Entry { slot, ..entry });
                }
            }
        } else {
            child.cwd = self.directory.clone();
        }
        self.processes.insert(pid, child);
        visitor.see(Seen::Began {
            tid,
            parent,
            inherited,
            at_ns,
        })
    }

    fn end(&mut self, tid: i32, at_ns: u64, visitor: &mut dyn Visitor) -> Result<(), Error> {
        let Some(pid) = self.threads.remove(&tid) else {
            return Ok(());
        };
        let remaining = self.processes.get_mut(&pid).map(|process| {
            process.threads = process.threads.saturating_sub(1);
            process.threads
        });
        if remaining == Some(0)
            && let Some(mut process) = self.processes.remove(&pid)
        {
            let mappings = process.take_mappings().map(|mapped| mapped.slot);
            let mappings = mappings.collect();
            let closing = process.closing.into_values().flatten();
            let entries = process.descriptors.into_values().chain(closing);
            let entries = entries.map(|entry| entry.slot);
            self.release(tid, at_ns, entries.collect(), visitor)?;
            self.drop_mappings(tid, at_ns, mappings, visitor)?;
        }
        self.slots.end(tid);
        self.mappings.end(tid);
        visitor.see(Seen::Ended { tid })
    }

    /// Handles execve(2): the process loses its mappings and its close-on-exec descriptors.
    fn execute(
        &mut self,
        tid: i32,
        pid: i32,
        at_ns: u64,
        visitor: &mut dyn Visitor,
    ) -> Result<(), Error> {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        let mut closed = Vec::new();
        process.descriptors.retain(|_, entry| {
            if entry.cloexec {
                closed.push(entry.slot);
            }
            !entry.cloexec
        });
        let mappings = process.take_mappings().map(|mapped| mapped.slot).collect();
        self.release(tid, at_ns, closed, visitor)?;
        self.drop_mappings(tid, at_ns, mappings, visitor)
    }

    fn release(
        &mut self,
        tid: i32,
        at_ns: u64,
        mut slots: Vec<u32>,
        visitor: &mut dyn Visitor,
    ) -> Result<(), Error> {
        slots.sort_unstable();
        for slot in slots {
            let mut step = own(tid, at_ns, Call::Release);
            step.targets = vec![subject(Name::Slot(slot))];
            self.slots.give(tid, slot);
            visitor.see(Seen::Step(Box::new(step)))?;
        }
        Ok(())
    }

    fn drop_mappings(
        &mut self,
        tid: i32,
        at_ns: u64,
        slots: Vec<u32>,
        visitor: &mut dyn Visitor,
    ) -> Result<(), Error> {
        for slot in slots {
            let mut step = own(tid, at_ns, Call::Drop);
            step.numbers = vec![slot.into()];
            self.mappings.give(tid, slot);
            visitor.see(Seen::Step(Box::new(step)))?;
        }
        Ok(())
    }

    /// A descriptor that a process had when the capture began.
    fn restore(
        &mut self,
        tid: i32,
        pid: i32,
        fields: &Fields<'_>,
        visitor: &mut dyn Visitor,
    ) -> Result<(), Error> {
        let number = fields.number("number").unwrap_or(0) as i32;
        let path = fields.bytes("path").unwrap_or_default().to_vec();
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        if number == libc::AT_FDCWD {
            process.cwd = Some(path);
            return Ok(());
        }
        let directory = self.directory.as_deref().unwrap_or(b"/");
        let mode = fields.number("mode").unwrap_or(0) as u32 & libc::S_IFMT;
        let is_file = matches!(mode, libc::S_IFREG | libc::S_IFDIR);
        let Some(relative) = below(directory, &path).filter(|_| is_file) else {
            return Ok(());
        };
        let Some(slot) = self.slots.take(tid, MAX_SLOTS) else {
            return Ok(());
        };
        process.descriptors.insert(
            number,
            Entry {
                slot,
                cloexec: false,
                since_ns: 0,
            },
        );
        let making = (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC) as u64;
        let mut step = own(tid, 0, Call::Restore);
        let info = Info {
            device: fields.number("device").unwrap_or(0),
            inode: fields.number("inode").unwrap_or(0),
            mode: fields.number("mode").unwrap_or(0) as u32,
            links: fields.number("links").unwrap_or(1),
            size: fields.number("size").unwrap_or(0),
            owner: None,
        };
        step.targets = vec![Subject {
            name: Name::Path {
                path: relative.to_vec(),
                slash: false,
            },
            info: Some(info),
        }];
        let flags = fields.number("flags").unwrap_or(0) & !making;
        step.numbers = vec![flags, fields.number("offset").unwrap_or(0)];
        step.opened = Some(slot);
        visitor.see(Seen::Step(Box::new(step)))
    }

    fn call(
        &mut self,
        name: &str,
        tid: i32,
        pid: i32,
        fields: &Fields<'_>,
        visitor: &mut dyn Visitor,
    ) -> Result<(), Error> {
        let directory = self.directory.as_deref().unwrap_or(b"/");
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        let own = self.own.contains(&tid);
        let placeholder = self.placeholder.contains(&tid);
        let not_found = self.not_found.get(&tid).filter(|_| placeholder).cloned();
        let mut look = Look {
            name,
            fields,
            tid,
            process,
            slots: &mut self.slots,
            mappings: &mut self.mappings,
            directory,
            steps: Vec::new(),
            note: None,
            waited: None,
            placeholder: not_found,
            examined: self.examined.get(&tid).cloned(),
        };
        let done = look.call();
        let missed = look.steps.first().filter(|step| own && step.failed());
        if let Some(Name::Path { path, .. }) = missed
            .and_then(|step| step.targets.first())
            .map(|target| &target.name)
        {
            self.not_found.insert(tid, path.clone());
        }
        if let Some(step) = look
            .steps
            .first()
            .filter(|step| own && step.opened.is_some())
            && let (Some(target), Some(number)) = (step.targets.first(), step.result)
            && let Name::Path { path, .. } = &target.name
        {
            self.examined.insert(tid, (number as i32, path.clone()));
        }
        let (steps, noted, waited) = (look.steps, look.note, look.waited);
        if let Some((kind, thread)) = noted {
            self.note(tid, kind, thread as i32);
            return Ok(());
        }
        self.own.remove(&tid);
        self.placeholder.remove(&tid);
        if let Some(child) = waited {
            visitor.see(Seen::Waited { tid, child })?;
        }
        self.see_steps(tid, own, steps, visitor)?;
        match done {
            Err(why) if !own => visitor.see(Seen::Skipped { why }),
            _ => Ok(()),
        }
    }

    /// Handles a note in the trace: it concerns the thread that made it, and the thread's next call.
    fn note(&mut self, tid: i32, kind: u64, thread: i32) {
        let threads = match kind {
            note::OWN => &mut self.own,
            note::PLACEHOLDER => &mut self.placeholder,
            note::AT_ONCE => &mut self.at_once,
            _ => {
                self.aliases.insert(tid, thread);
                return;
            }
        };
        threads.insert(tid);
    }

    /// Passes the steps of a call of thread `tid` to the visitor. A replayer's `own` calls only restore state.
    fn see_steps(
        &mut self,
        tid: i32,
        own: bool,
        steps: Vec<Step>,
        visitor: &mut dyn Visitor,
    ) -> Result<(), Error> {
        let alias = self.aliases.get(&tid).copied();
        let at_once = self.at_once.remove(&tid);
        for mut step in steps {
            if let (Call::Open, true, Some(flags)) = (step.call, at_once, step.numbers.first_mut())
            {
                *flags &= !(libc::O_NONBLOCK as u64);
            }
            if let Some(alias) = alias {
                step.tid = alias;
                step.is_replayed = true;
            }
            if own && !step.call.is_own() {
                step.call = match step.call {
                    Call::Open => Call::Restore,
                    Call::Close => Call::Release,
                    Call::Dup => Call::Inherit,
                    _ => continue,
                };
                step.result = None;
            }
            visitor.see(Seen::Step(Box::new(step)))?;
        }
        Ok(())
    }
}

/// A step that stands for no call.
fn own(tid: i32, at_ns: u64, call: Call) -> Step {
    Step {
        tid,
        is_replayed: false,
        entered_ns: at_ns,
        left_ns: at_ns,
        result: None,
        call,
        targets: Vec::new(),
        numbers: Vec::new(),
        text: None,
        data: None,
        opened: None,
    }
}

fn subject(name: Name) -> Subject {
    Subject { name, info: None }
}
