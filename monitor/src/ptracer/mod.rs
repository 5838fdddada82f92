//! The ptracer: one thread that follows every tracee through its life. This file receives the stops; `process_tree.rs` has the process tree, `calls.rs` the calls
//! whose arguments must change, `signals.rs` the delivery of signals, `parking.rs` the callers that wait.
//!
//! A stop comes as a [`Stopped`]. The code that handles the stop either continues the thread, which consumes the value, or keeps the
//! value in the state that records why the thread waits.
//!
//! The directory has one module for each reason why a thread stops or must stay stopped. This file calls
//! all of them, and none calls this one but by methods of [`Supervisor`].

mod calls;
mod children;

mod dying;
pub mod inject;
pub mod mailbox;
mod observed;
mod panics;
mod parking;
pub mod pause;

pub mod program;
pub mod restart;
pub mod rewrite;
mod signals;
mod tracing;
pub mod undisturbed;

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use goanna_affinity::KeptThreads;
use goanna_sys::arch::Registers;
use goanna_sys::clock::monotonic_ns;
use goanna_sys::descriptor_inbox::DescriptorInbox;
use goanna_sys::ptrace::{self, Event, Options, Stopped};
use goanna_sys::reports::Reports;
use goanna_sys::{cred, interrupt, procfs};
use goanna_syscalls::Treatment;
use goanna_vfs::{Errno, Result};

use crate::calls::txn::Request;
use crate::participants::profile::Rule;
use crate::process::core_files::CoreFiles;
use crate::ptracer::children::clone3::Clones;
use crate::ptracer::inject::{Injector, Stop};
use crate::ptracer::mailbox::Message;
use crate::ptracer::rewrite::Rewriter;
use crate::{Monitor, Status};
use children::process_tree::ProcessTree;
use dying::Dying;
use observed::Observed;
use parking::Parking;
use tracing::Tracees;
use undisturbed::Waits;

/// Follows the tracees of one run.
pub struct Supervisor {
    monitor: Arc<Monitor>,
    /// Calls come as notifications, not only as stops.
    notified: bool,
    /// Calls on data are seen.
    shadow_files: bool,
    rewriter: Rewriter,
    waits: Waits,
    dying: Dying,
    reports: Reports,
    parking: Parking,
    /// Threads at the stops of calls whose answers are being worked out, and the numbers of these answers.
    late: HashMap<i32, (u64, Stopped)>,
    last_late: u64,
    /// Tracees that are followed.
    known: HashSet<i32>,
    process_tree: ProcessTree,
    /// New threads that stopped before the stop of the thread that started them, which shows what they inherit.
    early: HashMap<i32, Stopped>,
    /// New threads that do not run before the thread that started them has run a script: by that thread. `None`: it has not stopped yet.
    held: HashMap<i32, (i32, Option<Stopped>)>,
    /// Threads that have the filter of participants.
    filtered: HashSet<i32>,
    /// How many filters the command starts with: its launcher's and our first.
    first_filters: u32,
    injector: Injector,
    /// The inbox for descriptors that the monitor may not copy.
    descriptor_inbox: Option<Arc<DescriptorInbox>>,
    /// Threads at the stops of transaction calls that wait until another process has that filter.
    joining: HashMap<i32, Joining>,
    /// Threads in calls that are about to change a path outside of their transaction.
    watched: HashMap<i32, Vec<u8>>,
    /// Threads that execute a program to which a rule of the profile applies.
    entering: HashMap<i32, Entering>,
    core_files: CoreFiles,
    tracees: Tracees,
    clones: Clones,
    observed: Observed,
    kept_threads: KeptThreads,
}

/// A thread at its stop, and the transaction call that it makes.
struct Joining {
    stopped: Stopped,
    regs: Registers,
    request: Request,
}

/// The rule for a program that is being executed, and the program.
type Entering = (Option<Arc<Rule>>, Arc<str>);

impl Supervisor {
    /// For the tracees of `monitor`.
    pub fn new(monitor: Arc<Monitor>, notified: bool) -> Self {
        Self {
            shadow_files: monitor.mounts.current().any_caches_content(),
            kept_threads: match notified && monitor.observers.is_empty() {
                true => KeptThreads::for_one(),
                false => KeptThreads::new(),
            },
            waits: Waits::new(Arc::clone(&monitor.sleeps)),
            monitor,
            notified,
            rewriter: Rewriter::default(),
            dying: Dying::default(),
            reports: Reports::default(),
            parking: Parking::default(),
            late: HashMap::new(),
            last_late: 0,
            known: HashSet::new(),
            process_tree: ProcessTree::default(),
            early: HashMap::new(),
            held: HashMap::new(),
            filtered: HashSet::new(),
            first_filters: 1,
            injector: Injector::default(),
            descriptor_inbox: None,
            joining: HashMap::new(),
            watched: HashMap::new(),
            entering: HashMap::new(),
            core_files: CoreFiles::default(),
            tracees: Tracees::default(),
            clones: Clones::default(),
            observed: Observed::default(),
        }
    }

    /// Seizes `pid`, which waits at its gate.
    pub fn seize(&mut self, pid: i32) -> Result<(), Errno> {
        self.know(pid);
        self.process_tree.command(pid);
        self.monitor.in_process.add(pid);
        ptrace::seize(pid, Options::MONITOR)?;
        self.observe_gate(pid);
        self.first_filters = procfs::status(pid)?.seccomp_filters;
        Ok(())
    }

    fn know(&mut self, tid: i32) {
        self.known.insert(tid);
        self.monitor.alive.add(tid);
        // A commit that does not know of it yet: it has not run so far.
        self.monitor.pause.wait_until_over();
    }

    /// Runs until no tracee is left; how `main` ended.
    pub fn run(&mut self, main: i32) -> Result<Status, Errno> {
        let monitor = Arc::clone(&self.monitor);
        monitor.mailbox.open()?;
        let mut status = None;
        loop {
            // A message that comes while a call is answered here does not interrupt what that does.
            match interrupt::while_interruptible(|| self.next_event()) {
                Ok(Some(event)) => {
                    let tid = event.tid();
                    if let Some(end) = self.event(event)
                        && tid == main
                    {
                        status = Some(end);
                    }
                }
                // A message has come.
                Ok(None) => {}
                Err(Errno::ECHILD) => return status.ok_or(Errno::ECHILD),
                Err(errno) => return Err(errno),
            }
            monitor.mailbox.read(|message| self.read(message));
        }
    }

    fn read(&mut self, message: Message) {
        match message {
            Message::LateAnswer(late) => {
                let (tid, regs) = (late.tid, late.regs);
                self.catch_at_call(tid, Some(regs), |this| this.finish(*late));
            }
            Message::Park(park) => {
                let tid = park.waiting.tid;
                let regs = park.at_stop.map(|(_, regs)| regs);
                self.catch_at_call(tid, regs, |this| this.park(*park));
            }
            Message::Ready(tid) => {
                let regs = self.parking.saved(tid);
                self.catch_at_call(tid, regs, |this| this.ready(tid));
            }
            Message::Due(tid, number) => {
                if self.waits.due(tid, number) {
                    let _ = ptrace::interrupt(tid);
                }
            }
            // It may have been killed.
            Message::Interrupt(tid) => drop(ptrace::interrupt(tid)),
            Message::MapMemory(request) => {
                let begun = self.injector.map_memory(request.tid, request.script);
                request.accepted.store(begun.is_ok(), Ordering::Release);
            }
            Message::ReportResult(tid, path) => drop(self.watch(tid, path)),
            Message::CoreMoved(tid) => self.core_moved(tid),
            Message::CheckDying => self.dying.check_due(),
        }
    }

    /// Handles one report. A tracee that is killed while stopped answers ESRCH to everything; its end is
    /// reported like any other, so those errors mean nothing.
    fn event(&mut self, event: Event) -> Option<Status> {
        // It may be about to return to its program with a descriptor that a commit has not seen.
        self.monitor.pause.wait_until_over();
        let (tid, status) = (event.tid(), event.status());
        let outcome = self.catch_at_stop(tid, status, |this| match event {
            Event::Ended { tid, status } => {
                this.kept_threads.has_ended(tid);
                this.observe_death(tid, status);
                this.traced_ended(tid, status);
                this.ended(tid);
                Ok(())
            }
            Event::Stopped(stopped, status) => this.stop(stopped, status),
        });
        assert_lives_or_ended(tid, outcome);
        end_of(status)
    }

    fn stop(&mut self, stopped: Stopped, status: ptrace::Status) -> Result<(), Errno> {
        let tid = stopped.tid();
        if self.known.contains(&tid) {
            self.kept_threads.stopped(tid, monotonic_ns());
            if let ptrace::Status::NewChild { child, .. } = status {
                self.kept_threads.has_child(tid, child);
            }
            // It is, unless its call waits or a tracer holds it: then its CPUs are given back as if it ran for long.
            self.kept_threads.continues(tid);
        }
        match self.traced_stop(stopped, status)? {
            Some(stopped) => self.handle(stopped, status),
            None => Ok(()),
        }
    }

    /// Handles a stop that a program does not see, or has seen.
    fn handle(&mut self, stopped: Stopped, status: ptrace::Status) -> Result<(), Errno> {
        match status {
            ptrace::Status::Seccomp => self.call(stopped),
            ptrace::Status::SyscallStop => self.syscall_stop(stopped),
            ptrace::Status::SignalDelivery(signal) => self.deliver(stopped, signal),
            ptrace::Status::GroupStop(_) => {
                self.seen(&stopped);
                stopped.listen()
            }
            ptrace::Status::NewChild { child, .. } => {
                self.new_child(stopped, child, status.event())
            }
            ptrace::Status::Exec { former_tid } => self.executed(stopped, former_tid),
            ptrace::Status::EventStop => self.event_stop(stopped),
            ptrace::Status::ExitEvent => self.exiting(stopped),
            ptrace::Status::VforkDone => self.resume(stopped),
            // Not of a stop.
            ptrace::Status::Exited(_) | ptrace::Status::Signaled { .. } => Ok(()),
        }
    }

    /// Thread `former` has executed a program. It has its process's number from now on, and all other threads of the process are
    /// gone: of the one that had that number before no end is reported.
    fn executed(&mut self, stopped: Stopped, former: i32) -> Result<(), Errno> {
        let tid = stopped.tid();
        for tid in [tid, former] {
            self.rewriter.forget(tid);
            self.waits.forget(tid);
            self.parking.forget(tid);
            self.monitor.waiting.abandon(tid);
        }
        if former == tid {
            self.monitor.tasks.executed(tid);
        } else {
            self.monitor.tasks.remove(tid);
            self.monitor.tasks.remove(former);
            self.process_tree.forget(former);
            self.known.remove(&former);
            self.monitor.alive.remove(former);
            self.kept_threads.is_renamed(former, tid);
            self.joining.remove(&tid);
            self.late.remove(&tid);
            self.watched.remove(&tid);
            if self.filtered.remove(&former) {
                self.filtered.insert(tid);
            }
        }
        self.traced_executed(tid, former);
        self.monitor.programs.executed(tid, former);
        self.monitor.in_process.executed(tid, former);
        self.monitor.participants.rename(former, tid);
        self.monitor.nested.executed(tid, former);
        self.monitor.roots.executed(tid, former);
        let options = self.options_of(tid);
        if options != Options::MONITOR {
            // Without the stop before its exit its calls are not counted, and nothing else.
            let _ = stopped.set_options(options);
        }
        let entered = self.entering.remove(&former);
        self.monitor.profiled.executed(&self.monitor, tid, entered);
        // A thread may have ended before it could report its child.
        self.release_orphans(tid);
        // What was to be injected is of the former program's memory.
        let mut waiting = self.injector.forget(tid);
        if former != tid {
            waiting.extend(self.injector.forget(former));
        }
        for caller in waiting {
            self.inject_filter(tid, caller);
        }
        self.observe_exec(tid, former);
        if let Ok(regs) = stopped.regs() {
            let entry = regs.instruction();
            self.monitor
                .in_process
                .prepare_loader(&self.monitor, tid, entry);
        }
        self.resume_after(stopped, libc::PTRACE_EVENT_EXEC, former)
    }

    /// Lets the thread exit, after its core files have been moved to where they belong: that may take long, so another
    /// thread does it.
    fn exiting(&mut self, stopped: Stopped) -> Result<(), Errno> {
        let tid = stopped.tid();
        self.monitor.in_process.count(tid);
        let files = self.core_files.exiting(&self.monitor, &stopped);
        if files.is_empty() {
            return stopped.cont(0);
        }
        let monitor = Arc::clone(&self.monitor);
        let deliver = move || {
            let _ = cred::thread_owns_fs();
            for file in files {
                // Whatever happens, the thread must continue.
                let _ = catch_unwind(AssertUnwindSafe(|| file.deliver(&monitor)));
            }
            monitor.mailbox.post(Message::CoreMoved(tid));
        };
        let thread = thread::Builder::new().name("core file".into());
        match thread.spawn(deliver) {
            Ok(_) => {
                self.core_files.hold(stopped);
                Ok(())
            }
            Err(_) => stopped.cont(0),
        }
    }

    fn core_moved(&mut self, tid: i32) {
        if let Some(stopped) = self.core_files.moved(tid) {
            // It may have been killed.
            let _ = stopped.cont(0);
        }
    }

    fn ended(&mut self, tid: i32) {
        self.core_files.forget(tid);
        self.clones.remove(tid);
        self.late.remove(&tid);
        self.waits.forget(tid);
        self.parking.forget(tid);
        self.watched.remove(&tid);
        self.monitor.outside.left(tid);
        self.rewriter.forget(tid);
        self.monitor.tasks.remove(tid);
        self.process_tree.forget(tid);
        self.known.remove(&tid);
        self.early.remove(&tid);
        self.filtered.remove(&tid);
        self.joining.remove(&tid);
        self.entering.remove(&tid);
        self.release_held(tid);
        self.held.retain(|_, (child, _)| *child != tid);
        for caller in self.injector.forget(tid) {
            let joining = self.joining.get(&caller);
            let target = joining.and_then(|joining| joining.request.target);
            match target {
                // Another thread of the process may be there yet.
                Some(target) => self.inject_filter(target, caller),
                None => self.joined(&[caller], Err(Errno::ESRCH)),
            }
        }
        self.monitor.participants.left(tid);
        self.monitor.in_process.ended(tid);
        self.monitor.programs.forget(tid);
        self.release_orphans(0);
    }

    /// Gives process `target` the filter of participants, for `caller`, which waits for that.
    fn inject_filter(&mut self, target: i32, caller: i32) {
        let thread = living_thread(target).filter(|thread| self.known.contains(thread));
        let begun = thread.ok_or(Errno::ESRCH);
        let begun = begun.and_then(|thread| self.injector.install_filter(thread, caller));
        if begun.is_err() {
            self.joined(&[caller], begun);
        }
    }

    fn event_stop(&mut self, stopped: Stopped) -> Result<(), Errno> {
        let tid = stopped.tid();
        if !self.known.contains(&tid) {
            self.early.insert(tid, stopped);
            self.monitor.alive.add(tid);
            return Ok(());
        }
        if let Some((_, held)) = self.held.values_mut().find(|(child, _)| *child == tid) {
            *held = Some(stopped);
            return Ok(());
        }
        self.monitor.sleeps.stopped(tid);
        self.seen(&stopped);
        if self.injector.has(tid) {
            self.leave_parking(&stopped)?;
        } else if self.parking.has(tid) {
            return self.parked_stop(stopped);
        }
        match self.injector.event_stop(stopped) {
            Stop::Foreign(stopped) => stopped.cont(0),
            stop => self.injected(tid, stop),
        }
    }

    fn injected(&mut self, tid: i32, stop: Stop) -> Result<(), Errno> {
        let stop = match stop {
            Stop::Received(result, then) => {
                self.observe_end(tid, result, Treatment::Monitor);
                *then
            }
            other => other,
        };
        if let Stop::Filtered(result, waiting) = stop {
            if result.is_ok() {
                self.filtered.extend(procfs::threads(tid)?);
            }
            self.joined(&waiting, result);
        }
        if !self.injector.has(tid) {
            self.release_held(tid);
        }
        Ok(())
    }

    /// The process that these callers wanted to bring into a transaction has its filter, or cannot have it.
    fn joined(&mut self, callers: &[i32], result: Result<(), Errno>) {
        for tid in callers {
            let Some(joining) = self.joining.remove(tid) else {
                continue;
            };
            let Joining {
                stopped,
                regs,
                request,
            } = joining;
            let answer = match result {
                Ok(()) => request.answer(&self.monitor),
                Err(errno) => Err(errno.into()),
            };
            let next = self.without_notification(&stopped, regs, answer);
            let outcome = self.continue_or_hold(stopped, regs, next);
            assert_lives_or_ended(*tid, outcome);
        }
    }

    /// Has thread `tid`, whose call is about to change `path`, stop on its way out of the call.
    fn watch(&mut self, tid: i32, path: Vec<u8>) -> Result<(), Errno> {
        ptrace::interrupt(tid)?;
        self.watched.insert(tid, path);
        Ok(())
    }

    /// The thread has stopped on its way out of a call.
    fn seen(&mut self, stopped: &Stopped) {
        let tid = stopped.tid();
        let Some(path) = self.watched.remove(&tid) else {
            return;
        };
        if let Ok(regs) = stopped.regs() {
            let result = regs.result();
            self.monitor.outside.performed(tid, path, result);
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.monitor.mailbox.close();
    }
}

/// A thread of process `pid` that has not ended: the first one may have, while others continue.
fn living_thread(pid: i32) -> Option<i32> {
    let threads = procfs::threads(pid).ok()?;
    threads.into_iter().find(|tid| !procfs::has_ended(*tid))
}

/// What was done with thread `tid` fails only where the thread has ended, which the kernel reports next.
fn assert_lives_or_ended(tid: i32, outcome: Result<(), Errno>) {
    debug_assert!(
        matches!(outcome, Ok(()) | Err(Errno::ESRCH)),
        "{tid}: {outcome:?}"
    );
}

/// How a task ended, if it did.
fn end_of(event: ptrace::Status) -> Option<Status> {
    match event {
        ptrace::Status::Exited(code) => Some(Status::Exited(code)),
        ptrace::Status::Signaled { signal, .. } => Some(Status::Signaled(signal)),
        _ => None,
    }
}
