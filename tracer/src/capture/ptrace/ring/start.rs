//! Gives processes recorders, and lets more sites lead to them.

use std::ops::Range;
use std::os::fd::AsFd;

use goanna_callsites::placed::free_address;
use goanna_callsites::{Form, Placed, Site};
use goanna_sys::interrupt::can_receive;
use goanna_sys::ptrace::CloneKind;
use goanna_sys::recorder::{self, Ring, STATE_AT, state};
use goanna_sys::{Errno, mappings, pidfd, procfs, tracee};
use goanna_syscalls::Subject;

use super::process::{self, Process, Recorder, SITE_MEMORY};
use super::ticker::Ticker;
use crate::capture::ptrace::files::ThreadNames;
use crate::capture::ptrace::follow::Follower;
use crate::capture::ptrace::inject::Site as InjectionSite;
use crate::capture::ptrace::thread::Mode;

impl Follower<'_> {
    /// Handles the birth of `child`, whose memory is a copy of its parent's, or the same.
    pub(in crate::capture::ptrace) fn recorder_has_child(
        &mut self,
        parent: &Subject,
        child: i32,
        kind: CloneKind,
    ) {
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
    pub(in crate::capture::ptrace) fn consider_recording(&mut self, tid: i32, nr: u32, ip: u64) {
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
                if *calls < rings.calls_before || !is_due {
                    return;
                }
                // At an `int3`, the kernel would reset the action of a signal that is blocked or ignored.
                match can_receive(tid, libc::SIGTRAP) {
                    Ok(true) => self.start_recording(tid),
                    _ => *calls = 0,
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
        if !self.has_reporter() {
            return;
        }
        // A process in which this fails is traced by stops.
        let Ok(Some(ring)) = self.map_recorder(tid, is_copied) else {
            return;
        };
        if let Some(rings) = &mut self.rings {
            let recorder = Recorder {
                ring,
                libraries: libraries.unwrap_or_default(),
                without_sites: Vec::new(),
                is_paused: false,
                held_signals: Vec::new(),
            };
            rings.processes.insert(tid, Process::Recording(recorder));
        }
    }

    /// Starts the threads of which rings need one each. False: there can be no more threads.
    fn has_reporter(&mut self) -> bool {
        let Some(rings) = &mut self.rings else {
            return false;
        };
        rings.ticker = rings.ticker.take().or_else(Ticker::start);
        if rings.ticker.is_some() && rings.reporter.is_none() {
            rings.reporter = (rings.start_reporter)();
        }
        rings.reporter.is_some()
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
        let Some(rings) = &self.rings else {
            return Ok(None);
        };
        let (base, shapes) = (rings.base, rings.shapes);
        if self
            .map_zeros(tid, site, base, recorder::LEN as u64)?
            .is_none()
        {
            return Ok(None);
        }
        tracee::write_forced(tid, base, &recorder::code(&shapes))?;
        Ok(Some(()))
    }

    /// Maps zeros to be executed, at this address. `None`: another stop came first. EEXIST: something else is there.
    fn map_zeros(
        &mut self,
        tid: i32,
        site: &InjectionSite,
        address: u64,
        len: u64,
    ) -> Result<Option<()>, Errno> {
        const ACCESS: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        const FLAGS: u64 =
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
        let args = [address, len, ACCESS, FLAGS, u64::MAX, 0];
        match self.perform(tid, site, libc::SYS_mmap, args)? {
            Some(at) if at == address => Ok(Some(())),
            Some(_) => Err(Errno::EEXIST),
            None => Ok(None),
        }
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
        let mut run = |follower: &mut Self| follower.run_code(tid, site, next.take());
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
        let Some(library) = self.library_around(tid, ip) else {
            return;
        };
        let site = library.site_before(ip).filter(|site| site.makes(nr));
        let Some(site) = site.copied() else {
            return;
        };
        library.library.note_use(nr, ip - library.base);
        if !library.has_memory() {
            let code = library.code();
            if self.give_memory(tid, &code).is_err()
                && let Some(rings) = &mut self.rings
                && let Some(recorder) = rings.recorder(tid)
            {
                recorder.forget(code);
            }
        }
        let Some(rings) = &mut self.rings else { return };
        let base = rings.base;
        let Some(library) = rings.library_around(tid, ip) else {
            return;
        };
        // At first also those that other processes have used.
        let mut sites = match library.patched.is_empty() {
            true => library.library.often_used(),
            false => Vec::new(),
        };
        if let Err(at) = sites.binary_search_by_key(&site.at, |site| site.at) {
            sites.insert(at, site);
        }
        // A handler may return into the middle of a site of the third form.
        let may_patch = |site: &Site| site.form != Form::Zero || !has_handled;
        sites.retain(|site| !library.patched.contains(site) && may_patch(site));
        if library.space() == 0 || sites.is_empty() {
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

    fn library_around(&mut self, tid: i32, ip: u64) -> Option<&mut Placed> {
        self.rings.as_mut()?.library_around(tid, ip)
    }

    /// Lets thread `tid` map memory for the sites of the library with this code, unless another stop comes first.
    fn give_memory(&mut self, tid: i32, code: &Range<u64>) -> Result<(), Errno> {
        let thread = self.threads.get(&tid);
        let stopped = thread.and_then(|thread| thread.stopped.as_ref());
        let injection = InjectionSite::of(stopped.ok_or(Errno::ESRCH)?)?;
        let mappings = mappings::all(tid)?;
        let address = free_address(&mappings, code, SITE_MEMORY).ok_or(Errno::ENOMEM)?;
        let mapped = self.map_zeros(tid, &injection, address, SITE_MEMORY)?;
        match mapped.and_then(|()| self.library_around(tid, code.start)) {
            Some(library) => library.use_memory(address..address + SITE_MEMORY, 0),
            None => Ok(()),
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
