//! Calls that are recorded inside the program: most calls of a traced command then need no stop.
//!
//! A process that makes many calls gets the recorder (`goanna_sys::recorder`). Its sites of libc and the loader jump to it one by one, as they are used. It records calls
//! in a ring, and the tracer's filter lets it make them. Everything else stops as before, and a stop is also the time at which records are taken: a full ring leaves its next
//! call to a stop. See docs/decisions/0136.
//!
//! * `shapes` says which calls are recorded, and `call` makes events from records.
//! * `process` has what is known of one process.
//! * `order` sorts events of rings and of stops by time.
//! * `ticker` makes the tracer look into the rings while no thread stops.
//! * `leave` takes a thread out of the recorder before a signal's handler runs.

mod call;
mod leave;
mod order;
mod process;
mod shapes;
mod ticker;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use goanna_callsites::library::content;
use goanna_callsites::{Form, Library, Placed, Site};
use goanna_sys::clock::monotonic_ns;
use goanna_sys::mappings::{self, Mapping};
use goanna_sys::ptrace::CloneKind;
use goanna_sys::recorder::{self, CODE, Record, Ring, SHAPES, STATE_AT, state};
use goanna_sys::{Errno, pidfd, procfs, tracee};
use goanna_syscalls::Subject;

use super::Recorded;
use super::files::ThreadNames;
use super::follow::Follower;
use super::inject::Site as InjectionSite;
use super::thread::Mode;
use crate::Event;
use crate::capture::Wanted;
use order::Held;
use process::{Process, Recorder};
use ticker::Ticker;

/// Stopped calls of a process that could be recorded, before it gets a recorder: that takes as long as a few of them.
const CALLS_BEFORE: u32 = 16;
/// Such calls of all processes before a library is analysed, which takes 2 to 3 ms.
const CALLS_OF_RUN_BEFORE: u32 = 256;
/// Events are in order, and reported, after this time at the latest while programs make calls that stop.
const SYNC_NS: u64 = 1_000_000;
/// Most files with code that are known.
const LIBRARIES_MAX: usize = 64;

/// The recorders of all processes.
pub struct Rings {
    /// The address of the recorder in each process.
    base: u64,
    shapes: [u16; SHAPES],
    /// The offset of clock_gettime in the vDSO.
    clock: Option<u64>,
    calls_before: u32,
    calls_of_run_before: u32,
    calls: u32,
    libraries: HashMap<(u64, u64), Option<Arc<Library>>>,
    processes: HashMap<i32, Process>,
    held: Held,
    synced_ns: u64,
    records: Vec<u8>,
    /// Once something is recorded.
    ticker: Option<Ticker>,
}

impl Rings {
    /// For a command whose calls `wanted` selects. `None` if no call would be recorded.
    pub fn new(wanted: &Wanted, recorded: Recorded) -> Option<Self> {
        let (calls_before, calls_of_run_before) = match recorded {
            Recorded::Never => return None,
            Recorded::Often => (CALLS_BEFORE, CALLS_OF_RUN_BEFORE),
            Recorded::AtOnce => (1, 0),
        };
        let shapes = shapes::shapes(wanted);
        let is_useful = shapes.iter().any(|shape| *shape != 0) && !wanted.wants_pages();
        is_useful.then(|| Self {
            base: random_base(),
            shapes,
            clock: recorder::clock_in_vdso(),
            calls_before,
            calls_of_run_before,
            calls: 0,
            libraries: HashMap::new(),
            processes: HashMap::new(),
            held: Held::default(),
            synced_ns: 0,
            records: Vec::new(),
            ticker: None,
        })
    }

    /// The addresses from which the recorder makes calls.
    pub fn code(&self) -> Range<u64> {
        self.base..self.base + CODE as u64
    }

    fn shape(&self, nr: u32) -> u16 {
        self.shapes.get(nr as usize).copied().unwrap_or(0)
    }

    fn is_recording(&self, pid: i32) -> bool {
        matches!(self.processes.get(&pid), Some(Process::Recording(_)))
    }

    fn recorder(&mut self, pid: i32) -> Option<&mut Recorder> {
        match self.processes.get_mut(&pid) {
            Some(Process::Recording(recorder)) => Some(recorder),
            _ => None,
        }
    }

    /// Whether records may be in a ring, or events wait for others.
    pub(super) fn is_in_use(&self) -> bool {
        self.processes
            .values()
            .any(|process| matches!(process, Process::Recording(_)))
    }

    /// What is known of the library that `tid` maps there, if it has calls that can be recorded.
    fn library(&mut self, tid: i32, mapping: &Mapping) -> Option<Arc<Library>> {
        let key = (mapping.dev, mapping.ino);
        if let Some(known) = self.libraries.get(&key) {
            return known.clone();
        }
        if self.libraries.len() >= LIBRARIES_MAX {
            return None;
        }
        let path = mappings::path_at(tid, mapping.start).ok()?;
        let content = content(Path::new(OsStr::from_bytes(&path)), Some(key)).ok();
        let shapes = self.shapes;
        let wanted = move |nr: u32| shapes.get(nr as usize).is_some_and(|shape| *shape != 0);
        let library = content.and_then(|content| process::analyse(&content, &wanted));
        let library = library.map(Arc::new);
        self.libraries.insert(key, library.clone());
        library
    }
}

/// An address in the middle of the address space, where neither the kernel nor the allocators of usual run-time systems map anything.
fn random_base() -> u64 {
    let mut random = [0; 4];
    // Without randomness the address is known beforehand, which helps only a program that wants to hide its own calls.
    let _ = getrandom::fill(&mut random);
    let [high, rest @ ..] = random;
    let [a, b, c] = rest;
    let low = u64::from(u32::from_le_bytes([0, a, b, c]) & 0x7fff_f000);
    (0x2000_u64 + u64::from(high)) << 32 | low
}

impl Follower<'_> {
    /// Takes the records of a process whose thread has stopped.
    pub(super) fn take_records(&mut self, subject: &Subject) {
        let wanted = self.wanted;
        let Some(rings) = &mut self.rings else { return };
        let mut records = std::mem::take(&mut rings.records);
        records.clear();
        let Some(recorder) = rings.recorder(subject.pid) else {
            rings.records = records;
            return;
        };
        let taken = recorder.ring.take(&mut records);
        let mut rest = records.as_slice();
        while let Some(record) = Record::take(&mut rest) {
            let call = record.and_then(|record| call::event(&record, subject, wanted, true));
            if let Some(call) = call {
                rings.held.push(Event::Call(Box::new(call)));
            }
        }
        if taken.is_err() || !rest.is_empty() {
            rings.held.push(Event::Lost {
                events: 0,
                reason: format!(
                    "process {} ({}) has written into the memory in which its calls are recorded",
                    subject.pid, subject.comm
                )
                .into(),
                at_ns: monotonic_ns(),
            });
            self.stop_recording(subject.pid);
        }
        if let Some(rings) = &mut self.rings {
            rings.records = records;
        }
    }

    /// Lets all calls of a process stop, for good.
    pub(super) fn stop_recording(&mut self, pid: i32) {
        let Some(rings) = &mut self.rings else { return };
        let before = rings.processes.insert(pid, Process::Never);
        if matches!(before, Some(Process::Recording(_))) {
            process::turn_off(pid, rings.base);
        }
    }

    /// As [`Follower::stop_recording`], of all processes.
    pub(super) fn stop_all_recording(&mut self) {
        let pids: Vec<i32> = self
            .threads
            .values()
            .map(|thread| thread.subject.pid)
            .collect();
        for pid in pids {
            self.stop_recording(pid);
        }
    }

    /// A process has executed a program, or ended: its memory is gone.
    pub(super) fn recorder_is_gone(&mut self, subject: &Subject) {
        self.take_records(subject);
        let wanted = self.wanted;
        let Some(rings) = &mut self.rings else { return };
        if let Some(Process::Recording(recorder)) = rings.processes.remove(&subject.pid)
            && let Some(record) = recorder.ring.unfinished()
            && let Some(Some(record)) = Record::take(&mut record.as_slice())
            && let Some(call) = call::event(&record, subject, wanted, false)
        {
            rings.held.push(Event::Call(Box::new(call)));
        }
    }

    /// Reports events: in any case if nothing is recorded, and else those before which no other can come any more, from time to time.
    pub(super) fn report_in_order(&mut self, now: u64) {
        let Some(rings) = &self.rings else { return };
        let is_in_use = rings.is_in_use();
        if is_in_use && now.saturating_sub(rings.synced_ns) < SYNC_NS {
            return;
        }
        if is_in_use {
            let leaders = self.threads.iter().filter(|(tid, thread)| {
                thread.subject.pid == **tid && rings.is_recording(thread.subject.pid)
            });
            let subjects: Vec<Subject> =
                leaders.map(|(_, thread)| thread.subject.clone()).collect();
            for subject in subjects {
                self.take_records(&subject);
            }
        }
        let until = if is_in_use { now } else { u64::MAX };
        loop {
            let rings = self.rings.as_mut();
            let Some(event) = rings.and_then(|rings| rings.held.take(until)) else {
                break;
            };
            self.pass_on(&event);
        }
        if let Some(rings) = &mut self.rings {
            rings.synced_ns = now;
        }
    }

    /// Sends an event, after those before it.
    pub(super) fn send(&mut self, event: Event) {
        match &mut self.rings {
            Some(rings) if rings.is_in_use() || !rings.held.is_empty() => rings.held.push(event),
            _ => self.pass_on(&event),
        }
    }

    /// Handles the birth of `child`, whose memory is a copy of its parent's, or the same.
    pub(super) fn recorder_has_child(&mut self, parent: &Subject, child: i32, kind: CloneKind) {
        let Some(rings) = &mut self.rings else { return };
        let base = rings.base;
        let Some(Process::Recording(recorder)) = rings.processes.get_mut(&parent.pid) else {
            return;
        };
        // Both, if they share the memory.
        process::turn_off(child, base);
        let is_shared = process::get(parent.pid, base, state::OFF) != Ok(0);
        let is_until_exec = is_shared && kind == CloneKind::Vfork;
        let (of_parent, of_child) = match (is_shared, is_until_exec) {
            (false, _) => (None, Process::Copied(recorder.libraries.clone(), 0)),
            (true, true) => {
                recorder.is_paused = true;
                (None, Process::Never)
            }
            (true, false) => (Some(Process::Never), Process::Never),
        };
        if let Some(process) = of_parent {
            rings.processes.insert(parent.pid, process);
        }
        if child != parent.pid {
            rings.processes.insert(child, of_child);
        }
    }

    /// Thread `tid` is stopped at the exit of call `nr`, which it has made by the instruction before `ip`. Gives its process a recorder, or
    /// lets a further site lead to it, if that is due.
    pub(super) fn consider_recording(&mut self, tid: i32, nr: u32, ip: u64) {
        let Some(thread) = self.threads.get(&tid) else {
            return;
        };
        let pid = thread.subject.pid;
        let may_record = tid == pid && thread.mode == Mode::Filtered && !thread.is_starting;
        let Some(rings) = &mut self.rings else { return };
        if !may_record {
            return;
        }
        if let Some(recorder) = rings.recorder(pid)
            && std::mem::take(&mut recorder.is_paused)
        {
            // The child of vfork(2) has other memory now.
            let _ = process::set(pid, rings.base, state::OFF, 0);
        }
        if rings.shape(nr) == 0 {
            return;
        }
        rings.calls = rings.calls.saturating_add(1);
        let is_due = rings.calls > rings.calls_of_run_before;
        match rings.processes.entry(pid).or_insert(Process::Counting(0)) {
            Process::Counting(calls) | Process::Copied(_, calls) => {
                *calls = calls.saturating_add(1);
                if *calls >= rings.calls_before && is_due {
                    self.start_recording(tid);
                }
            }
            Process::Recording(_) => self.record_site(tid, nr, ip),
            Process::Never => {}
        }
    }

    /// Gives the process of thread `tid` a recorder, if it has only this thread, and the tracer's root directory.
    fn start_recording(&mut self, tid: i32) {
        let siblings = self
            .threads
            .values()
            .filter(|thread| thread.subject.pid == tid);
        let thread = self.threads.get(&tid);
        let has_our_root = thread.is_some_and(|thread| {
            ThreadNames::new(&self.tracer, thread, self.wanted.details()).has_our_root()
        });
        let Some(rings) = &mut self.rings else { return };
        let before = rings.processes.insert(tid, Process::Never);
        if siblings.count() != 1 || !has_our_root {
            return;
        }
        let libraries = match before {
            Some(Process::Copied(libraries, _)) => Some(libraries),
            _ => None,
        };
        let is_copied = libraries.is_some();
        // A process in which this fails is traced by stops.
        let Ok(Some(ring)) = self.map_recorder(tid, is_copied) else {
            return;
        };
        if let Some(rings) = &mut self.rings {
            rings.ticker = rings.ticker.take().or_else(Ticker::start);
            let recorder = Recorder {
                ring,
                libraries: libraries.unwrap_or_default(),
                is_paused: false,
                held_signals: Vec::new(),
            };
            rings.processes.insert(tid, Process::Recording(recorder));
        }
    }

    /// Maps the recorder into the memory of `tid`, where it is not copied already, with a new ring. `None`: another stop came first.
    fn map_recorder(&mut self, tid: i32, is_copied: bool) -> Result<Option<Ring>, Errno> {
        let Some(rings) = &self.rings else {
            return Ok(None);
        };
        let base = rings.base;
        let thread = self.threads.get(&tid);
        let Some(stopped) = thread.and_then(|thread| thread.stopped.as_ref()) else {
            return Ok(None);
        };
        let site = InjectionSite::of(stopped)?;
        if !is_copied && self.map_code(tid, &site)?.is_none() {
            return Ok(None);
        }
        let ring = self.make_ring(tid, &site, is_copied);
        // Otherwise another stop has come, and the thread has its registers already.
        if let Some(stopped) = self
            .threads
            .get(&tid)
            .and_then(|thread| thread.stopped.as_ref())
        {
            site.restore(stopped)?;
        }
        let ring = ring?;
        if ring.is_some() {
            let clock = match is_copied {
                true => process::get(tid, base, state::CLOCK)?,
                false => self.clock_of(tid)?,
            };
            tracee::write_all(tid, base + STATE_AT as u64, &recorder::initial_state(clock))?;
        }
        Ok(ring)
    }

    /// The address of clock_gettime in the vDSO of a process; 0 if it has none.
    fn clock_of(&self, tid: i32) -> Result<u64, Errno> {
        let offset = self.rings.as_ref().and_then(|rings| rings.clock);
        let vdso = procfs::auxiliary_value(tid, libc::AT_SYSINFO_EHDR)?.filter(|at| *at != 0);
        Ok(vdso.zip(offset).map_or(0, |(vdso, offset)| vdso + offset))
    }

    /// Maps the code. `None`: another stop came first.
    fn map_code(&mut self, tid: i32, site: &InjectionSite) -> Result<Option<()>, Errno> {
        const ACCESS: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        const FLAGS: u64 =
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
        let Some(rings) = &self.rings else {
            return Ok(None);
        };
        let (base, shapes) = (rings.base, rings.shapes);
        let args = [base, recorder::LEN as u64, ACCESS, FLAGS, u64::MAX, 0];
        match self.perform(tid, site, libc::SYS_mmap, args)? {
            Some(at) if at.cast_unsigned() == base => {}
            Some(at @ -4095..0) => return Err(Errno::from_raw(-at as i32)),
            Some(_) => return Err(Errno::EEXIST),
            None => return Ok(None),
        }
        tracee::write_forced(tid, base, &recorder::code(&shapes))?;
        Ok(Some(()))
    }

    /// Lets a thread make its ring. `None`: another stop came first.
    fn make_ring(
        &mut self,
        tid: i32,
        site: &InjectionSite,
        is_copied: bool,
    ) -> Result<Option<Ring>, Errno> {
        let Some(rings) = &self.rings else {
            return Ok(None);
        };
        let layout = recorder::layout();
        let start = if is_copied {
            layout.set_up_ring
        } else {
            layout.set_up
        };
        let mut next = Some(rings.base + start);
        let mut run = |follower: &mut Self| match follower.run_code(tid, site, next.take())? {
            Some(result @ -4095..0) => Err(Errno::from_raw(-result as i32)),
            result => Ok(result),
        };
        let Some(fd) = run(self)? else {
            return Ok(None);
        };
        let ours = pidfd::open(tid).and_then(|thread| pidfd::getfd(thread.as_fd(), fd as i32));
        let ring = ours.and_then(Ring::new);
        if run(self)?.is_none() {
            return Ok(None);
        }
        ring.map(Some)
    }

    /// Lets the site before `ip`, by which thread `tid` has made call `nr`, lead to the recorder.
    fn record_site(&mut self, tid: i32, nr: u32, ip: u64) {
        let has_handled = self
            .threads
            .get(&tid)
            .is_none_or(|thread| thread.has_handled);
        let Some(rings) = &mut self.rings else { return };
        let base = rings.base;
        let Some(recorder) = rings.recorder(tid) else {
            return;
        };
        let has = |placed: &Placed| placed.code().contains(&ip);
        let mut index = recorder.libraries.iter().position(has);
        let is_first = index.is_none();
        if is_first {
            let found = mappings::of_range(tid, ip - 1, ip).ok();
            let mapping = found.and_then(|mappings| mappings.first().copied());
            let library = mapping.and_then(|mapping| {
                let library = rings.library(tid, &mapping)?;
                process::placed(library, &mapping)
            });
            let Some(recorder) = rings.recorder(tid) else {
                return;
            };
            if let Some(library) = library {
                recorder.libraries.push(library);
                index = Some(recorder.libraries.len() - 1);
            }
        }
        let recorder = rings.recorder(tid);
        let library = recorder
            .zip(index)
            .and_then(|(recorder, index)| recorder.libraries.get_mut(index));
        let Some(library) = library else { return };
        let Some(site) = library
            .site_before(ip)
            .copied()
            .filter(|site| site.nr == nr)
        else {
            return;
        };
        library.library.note_use(nr, ip - library.base);
        // At first also those that other processes have used.
        let mut sites = match is_first {
            true => library.library.often_used(),
            false => Vec::new(),
        };
        if let Err(at) = sites.binary_search_by_key(&site.at, |site| site.at) {
            sites.insert(at, site);
        }
        // A handler may return into the middle of a site of the third form.
        let may_patch = |site: &Site| site.form != Form::Zero || !has_handled;
        sites.retain(|site| !library.patched.contains(site) && may_patch(site));
        if !library.has_space() || sites.is_empty() {
            return;
        }
        let patched = process::patch(library, tid, &sites, base);
        let moved = process::behind_call(library, &site).filter(|_| sites.contains(&site));
        // If it could not be patched, the process was killed.
        let is_moved = moved.is_none_or(|to| self.move_to(tid, to).is_ok());
        if patched.is_err() || !is_moved {
            self.stop_recording(tid);
        }
    }

    /// Lets a stopped thread continue at another address.
    fn move_to(&self, tid: i32, address: u64) -> Result<(), Errno> {
        let thread = self.threads.get(&tid);
        let stopped = thread.and_then(|thread| thread.stopped.as_ref());
        let stopped = stopped.ok_or(Errno::ESRCH)?;
        let mut regs = stopped.regs()?;
        regs.user_mut().rip = address;
        stopped.set_regs(&regs)
    }
}
