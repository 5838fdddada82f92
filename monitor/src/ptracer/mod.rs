//! The ptracer: one thread that follows every tracee through its life, and changes registers where a call
//! needs other arguments than it was given.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use goanna_sys::letter_box::LetterBox;
use goanna_sys::ptrace::{self, Options};
use goanna_sys::txncall::NUMBER;
use goanna_sys::{cred, procfs};
use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, LOCKED, Place, Result, escape, ops};

use crate::call::{Answer, Call};
use crate::calls::socket::{self, datagram, rights, watch};
use crate::calls::txn::Request;
use crate::core_files::CoreFiles;
use crate::filter::{CLOSER, MEMBER, compile_member, shadow_files};
use crate::inject::{Fetch, Injector, Receive, Stop};
use crate::mailbox::{Late, Letter, Park};
use crate::parking::Parking;
use crate::profile::{End, Rule};
use crate::program::{Exec, Plan};
use crate::rewrite::{Registers, Rewrite, Rewriter, clone_flags};
use crate::table::{Handler, entry};
use crate::task::Task;
use crate::undisturbed::Waits;
use crate::waiting::Rejoined;
use crate::{Monitor, Status, profiled, restart, waiting};

/// Follows the tracees of one run.
pub struct Supervisor {
    pub(crate) monitor: Arc<Monitor>,
    /// Calls come as notifications, not only as stops.
    notified: bool,
    /// Calls on data are seen.
    shadow_files: bool,
    rewriter: Rewriter,
    waits: Waits,
    pub(crate) parking: Parking,
    /// Calls at stops whose answers are being worked out, and the numbers of these answers.
    pub(crate) late: HashMap<i32, u64>,
    last_late: u64,
    /// Tracees that are followed.
    pub(crate) known: HashSet<i32>,
    /// New ones that stopped before the stop of who started them, which tells what they inherit.
    early: HashSet<i32>,
    /// Those that have the filter of members.
    filtered: HashSet<i32>,
    /// How many filters the command starts with: its launcher's and our first.
    first_filters: u32,
    pub(crate) injector: Injector,
    /// Where tracees send descriptors to that we may not take.
    letter_box: Option<Arc<LetterBox>>,
    /// Transaction calls that wait until another process has that filter.
    joining: HashMap<i32, (Registers, Request)>,
    /// Threads in calls that are about to change a path outside of their transaction.
    watched: HashMap<i32, Vec<u8>>,
    /// Those that are executing a program that a rule of the profile is for.
    entering: HashMap<i32, Entering>,
    core_files: CoreFiles,
}

/// The rule for a program that is being executed, and the program.
type Entering = (Option<Arc<Rule>>, Arc<str>);

/// Flags with which a description is opened again; the others were about finding the file.
const REOPEN_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_DIRECT
    | libc::O_NOATIME;

/// How a stopped call goes on.
enum Next {
    /// As it stands, or as its registers were set.
    Run,
    /// With other arguments.
    Instead(Rewrite),
    /// Not yet: its answer is being worked out.
    Wait,
    /// From the start, when the tracee has sent us this descriptor.
    Fetch(i32),
}

impl Next {
    fn of(rewrite: Option<Rewrite>) -> Self {
        rewrite.map_or(Self::Run, Self::Instead)
    }
}

impl Supervisor {
    /// For the tracees of `monitor`.
    pub fn new(monitor: Arc<Monitor>, notified: bool) -> Self {
        Self {
            shadow_files: shadow_files(&monitor.mounts),
            monitor,
            notified,
            rewriter: Rewriter::default(),
            waits: Waits::default(),
            parking: Parking::default(),
            late: HashMap::new(),
            last_late: 0,
            known: HashSet::new(),
            early: HashSet::new(),
            filtered: HashSet::new(),
            first_filters: 1,
            injector: Injector::default(),
            letter_box: None,
            joining: HashMap::new(),
            watched: HashMap::new(),
            entering: HashMap::new(),
            core_files: CoreFiles::default(),
        }
    }

    /// Seizes `pid`, which waits at its gate.
    pub fn seize(&mut self, pid: i32) -> Result<()> {
        self.know(pid);
        ptrace::seize(pid, Options::MONITOR)?;
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
    pub fn run(&mut self, main: i32) -> Result<Status> {
        let monitor = Arc::clone(&self.monitor);
        monitor.mailbox.open()?;
        let mut status = None;
        loop {
            let leaving = |tid, how| {
                monitor.tasks.remove(tid);
                monitor.waiting.abandon(&monitor, tid);
                monitor.in_flight.settle(tid);
                if let Some(status) = end_of(how) {
                    monitor.ending.leave(tid, status);
                    monitor.alive.remove(tid);
                    monitor.members.leaving(tid);
                    monitor.profiled.exited(&monitor, tid, status);
                }
            };
            match ptrace::wait_leaving(0, leaving) {
                Ok(Some((tid, event))) => {
                    if let Some(end) = self.event(tid, event)
                        && tid == main
                    {
                        status = Some(end);
                    }
                }
                // A letter has come.
                Ok(None) => {}
                Err(Errno::ECHILD) => return status.ok_or(Errno::ECHILD),
                Err(errno) => return Err(errno),
            }
            monitor.mailbox.read(|letter| match letter {
                Letter::Late(late) => self.finish(*late),
                Letter::Park(park) => self.park(*park),
                Letter::Ready(tid) => self.ready(tid),
                // It may have been killed.
                Letter::Interrupt(tid) => drop(ptrace::interrupt(tid)),
                Letter::Watch(tid, path) => drop(self.watch(tid, path)),
                Letter::CoreMoved(tid) => self.core_moved(tid),
            });
        }
    }

    /// Handles one report. A tracee that is killed while stopped answers ESRCH to everything; its end is
    /// reported like any other, so those errors mean nothing.
    fn event(&mut self, tid: i32, event: ptrace::Status) -> Option<Status> {
        // It may be about to return to its program with a descriptor that a commit has not seen.
        self.monitor.pause.wait_until_over();
        let outcome = match event {
            ptrace::Status::Exited(_) | ptrace::Status::Signaled { .. } => {
                self.ended(tid);
                return end_of(event);
            }
            ptrace::Status::Seccomp => self.call(tid),
            ptrace::Status::SyscallStop => self.syscall_stop(tid),
            ptrace::Status::SignalDelivery(signal) => self.deliver(tid, signal),
            ptrace::Status::GroupStop(_) => {
                self.seen(tid);
                ptrace::listen(tid)
            }
            ptrace::Status::NewChild { child, .. } => self.new_child(tid, child),
            ptrace::Status::Exec { former_tid } => self.executed(tid, former_tid),
            ptrace::Status::EventStop => self.event_stop(tid),
            ptrace::Status::VforkDone => ptrace::cont(tid, 0),
            ptrace::Status::ExitEvent => self.exiting(tid),
        };
        debug_assert!(
            matches!(outcome, Ok(()) | Err(Errno::ESRCH)),
            "{tid}: {outcome:?}"
        );
        None
    }

    /// Thread `former` has executed a program. It is `tid` from now on, and all other threads of the process are gone: of
    /// the one that was `tid` before no end is reported.
    fn executed(&mut self, tid: i32, former: i32) -> Result<()> {
        for tid in [tid, former] {
            self.rewriter.forget(tid);
            self.parking.forget(tid);
            self.monitor.tasks.remove(tid);
            self.monitor.waiting.abandon(&self.monitor, tid);
        }
        if former != tid {
            self.known.remove(&former);
            self.monitor.alive.remove(former);
            self.joining.remove(&tid);
            self.late.remove(&tid);
            self.watched.remove(&tid);
            if self.filtered.remove(&former) {
                self.filtered.insert(tid);
            }
        }
        self.monitor.members.rename(former, tid);
        let entered = self.entering.remove(&former);
        self.monitor.profiled.executed(&self.monitor, tid, entered);
        // A thread may have gone before it could tell of its child.
        self.release_orphans(tid);
        // What was to be injected is of the former program's memory.
        let mut waiting = self.injector.forget(tid);
        if former != tid {
            waiting.extend(self.injector.forget(former));
        }
        for caller in waiting {
            self.inject_filter(tid, caller);
        }
        ptrace::cont(tid, 0)
    }

    /// Lets thread `tid` exit, after its core files have been moved to where they belong: that may take long, so another
    /// thread does it.
    fn exiting(&mut self, tid: i32) -> Result<()> {
        let files = self.core_files.exiting(&self.monitor, tid);
        if files.is_empty() {
            return ptrace::cont(tid, 0);
        }
        let monitor = Arc::clone(&self.monitor);
        let deliver = move || {
            let _ = cred::thread_owns_fs();
            for file in files {
                // Whatever happens, the thread must go on.
                let _ = catch_unwind(AssertUnwindSafe(|| file.deliver(&monitor)));
            }
            monitor.mailbox.post(Letter::CoreMoved(tid));
        };
        let thread = thread::Builder::new().name("core file".into());
        match thread.spawn(deliver) {
            Ok(_) => Ok(()),
            Err(_) => ptrace::cont(tid, 0),
        }
    }

    fn core_moved(&mut self, tid: i32) {
        if self.core_files.moved(tid) {
            // It may have been killed.
            let _ = ptrace::cont(tid, 0);
        }
    }

    fn ended(&mut self, tid: i32) {
        self.core_files.forget(tid);
        self.late.remove(&tid);
        self.parking.forget(tid);
        self.watched.remove(&tid);
        self.monitor.outside.left(tid);
        self.rewriter.forget(tid);
        self.monitor.tasks.remove(tid);
        self.known.remove(&tid);
        self.early.remove(&tid);
        self.filtered.remove(&tid);
        self.joining.remove(&tid);
        self.entering.remove(&tid);
        for caller in self.injector.forget(tid) {
            let target = self.joining.get(&caller).and_then(|(_, call)| call.target);
            match target {
                // Another thread of the process may be there yet.
                Some(target) => self.inject_filter(target, caller),
                None => self.joined(&[caller], Err(Errno::ESRCH)),
            }
        }
        self.monitor.members.left(tid);
        self.release_orphans(0);
    }

    /// Gives process `target` the filter of members, for `caller`, which waits for that.
    fn inject_filter(&mut self, target: i32, caller: i32) {
        let thread = living_thread(target).filter(|thread| self.known.contains(thread));
        let begun = thread.ok_or(Errno::ESRCH);
        let begun = begun.and_then(|thread| self.injector.install_filter(thread, caller));
        if begun.is_err() {
            self.joined(&[caller], begun);
        }
    }

    /// `child` inherits what `tid` had when it started it.
    fn new_child(&mut self, tid: i32, child: i32) -> Result<()> {
        // What cannot be told is taken as not inherited.
        if let Ok(flags) = clone_flags(tid) {
            self.rewriter.inherit(tid, child, flags);
            let apart = flags & libc::CLONE_THREAD as u64 == 0;
            if apart && flags & libc::CLONE_FS as u64 != 0 {
                let _ = self.monitor.tasks.share_fs(tid, child);
            }
        }
        self.monitor.members.inherit(tid, child);
        self.monitor.profiled.forked(tid, child);
        if self.filtered.contains(&tid) {
            self.filtered.insert(child);
        }
        self.know(child);
        if self.early.remove(&child) {
            let _ = ptrace::cont(child, 0);
        }
        ptrace::cont(tid, 0)
    }

    fn event_stop(&mut self, tid: i32) -> Result<()> {
        if !self.known.contains(&tid) {
            self.early.insert(tid);
            self.monitor.alive.add(tid);
            return Ok(());
        }
        self.seen(tid);
        if self.injector.has(tid) {
            self.leave_parking(tid)?;
        } else if self.parking.has(tid) {
            return self.parked_stop(tid);
        }
        match self.injector.event_stop(tid) {
            Stop::Foreign => ptrace::cont(tid, 0),
            stop => self.injected(tid, stop),
        }
    }

    /// New tracees whose parent was killed before it could tell of them inherit nothing; nor do those of a thread of
    /// process `executed`, which has lost all its threads.
    fn release_orphans(&mut self, executed: i32) {
        let known = &self.known;
        let orphaned = |tid: &i32| {
            procfs::status(*tid).map_or(true, |status| {
                let parent = if status.tgid == *tid {
                    status.ppid
                } else {
                    status.tgid
                };
                parent == executed || !known.contains(&parent)
            })
        };
        let orphans: Vec<i32> = self.early.iter().copied().filter(orphaned).collect();
        for tid in orphans {
            self.early.remove(&tid);
            self.know(tid);
            let _ = ptrace::cont(tid, 0);
        }
    }

    fn injected(&mut self, tid: i32, stop: Stop) -> Result<()> {
        if let Stop::Filtered(result, waiting) = stop {
            if result.is_ok() {
                self.filtered.extend(procfs::threads(tid)?);
            }
            self.joined(&waiting, result);
        }
        Ok(())
    }

    /// The process that these callers wanted to bring into a transaction has its filter, or cannot have it.
    fn joined(&mut self, callers: &[i32], result: Result<()>) {
        for tid in callers {
            let Some((regs, request)) = self.joining.remove(tid) else {
                continue;
            };
            let answer = result.and_then(|()| request.answer(&self.monitor));
            let next = self.without_notification(*tid, regs, answer);
            let outcome = self.go_on(*tid, regs, next);
            debug_assert!(
                matches!(outcome, Ok(()) | Err(Errno::ESRCH)),
                "{tid}: {outcome:?}"
            );
        }
    }

    /// The call that begins and ends transactions.
    fn transaction(&mut self, call: &Call<'_>, regs: &Registers) -> Result<Next> {
        let tid = call.task.tid;
        let request = Request::of(call)?;
        if member_filter(tid)? > 0 {
            self.filtered.insert(tid);
        }
        let tried = self.rewriter.was_filtered(tid);
        let joins = request.target.unwrap_or(tid);
        if request.joins() && !self.filtered.contains(&joins) {
            match request.target {
                None if tried => return Err(Errno::EAGAIN),
                None => return Ok(Next::Instead(Rewrite::Filter(compile_member(false)))),
                Some(target) if !self.known.contains(&target) => return Err(Errno::ESRCH),
                Some(target) => {
                    let thread = living_thread(target).ok_or(Errno::ESRCH)?;
                    self.injector.install_filter(thread, tid)?;
                    self.joining.insert(tid, (*regs, request));
                    return Ok(Next::Wait);
                }
            }
        }
        let answer = request.answer(&self.monitor);
        self.without_notification(tid, *regs, answer)
    }

    /// The program may get a Unix socket, or a filter that forbids to install another one.
    fn watch_sockets(&mut self, call: &Call<'_>) -> Result<Next> {
        let tid = call.task.tid;
        if self.rewriter.was_filtered(tid) {
            return Ok(Next::Run);
        }
        let ours = self.first_filters + u32::from(self.filtered.contains(&tid));
        watch::install(call, ours).map(Next::of)
    }

    /// A program is about to be executed: one that a rule is for gets its filter before.
    fn execute(&mut self, call: &Call<'_>, exec: &Exec, envp: u64) -> Result<Next> {
        let tid = call.task.tid;
        self.entering.remove(&tid);
        let path = if exec.path.is_empty() {
            procfs::fd_link(tid, exec.dirfd).unwrap_or_default()
        } else {
            exec.path.clone()
        };
        let tried = self.rewriter.was_filtered(tid);
        if let Some(rule) = self.monitor.profiled.rule(&path) {
            let closes = rule.end == End::LastClose;
            let has = member_filter(tid)?;
            if has == 0 || closes && has != CLOSER {
                if !tried {
                    return Ok(Next::Instead(Rewrite::Filter(compile_member(closes))));
                }
                self.monitor.note_once(&format!(
                    "{}: the profile does not apply to programs that start with seccomp filters of their own",
                    escape(&path)
                ));
            } else {
                self.filtered.insert(tid);
                let program = Arc::from(escape(&path));
                self.entering.insert(tid, (Some(rule), program));
            }
        }
        execute(call, exec, envp)
    }

    /// Lets a signal be delivered, but for the stop that a commit asks for. A call that it took back from us unseen is made
    /// again afterwards.
    fn deliver(&mut self, tid: i32, signal: i32) -> Result<()> {
        let is_ours = signal == libc::SIGSTOP && goanna_sys::pause::is_ours(tid)?;
        if is_ours && self.injector.is_calling(tid) {
            return ptrace::cont_syscall(tid, 0);
        }
        if !is_ours {
            match self.injector.signal(tid, signal) {
                Stop::Foreign => {}
                stop => return self.injected(tid, stop),
            }
            let monitor = &self.monitor;
            monitor.ending.deliver(tid, signal, &monitor.alive);
            // Without it the file is lost, and nothing else.
            let _ = self.core_files.signal(monitor, tid, signal);
        }
        if self.parking.has(tid) {
            return self.parked_signal(tid, signal, is_ours);
        }
        let delivered = if is_ours { 0 } else { signal };
        let mut regs = ptrace::get_regs(tid)?;
        // Outside of a call the number is -1, which is none of the table.
        let (nr, args) = call_of(&regs);
        let result = regs.rax.cast_signed();
        let instead = if is_ours {
            self.waits.stop(tid, (nr, args), result)
        } else {
            self.waits.signal(tid, signal, (nr, args), result)
        };
        if let Some(instead) = instead {
            regs.rax = instead.result.cast_unsigned();
            ptrace::set_regs(tid, &regs)?;
            if instead.restarts {
                return ptrace::cont_syscall(tid, delivered);
            }
            return ptrace::cont(tid, delivered);
        }
        if is_ours || !self.notified {
            return ptrace::cont(tid, delivered);
        }
        let received = || {
            let monitor = &self.monitor;
            let is_repeated = monitor.waiting.has(tid);
            (!is_repeated)
                .then(|| monitor.tasks.left_to_wait(tid))
                .flatten()
        };
        if let Some(instead) = restart::instead(nr, args, self.shadow_files, result, received) {
            regs.rax = instead.cast_unsigned();
            ptrace::set_regs(tid, &regs)?;
        }
        ptrace::cont(tid, signal)
    }

    fn syscall_stop(&mut self, tid: i32) -> Result<()> {
        match self.injector.syscall_stop(tid) {
            Stop::Foreign => {}
            stop => return self.injected(tid, stop),
        }
        if self.parking.has(tid) {
            return self.parked_syscall(tid);
        }
        let result = ptrace::get_regs(tid)?.rax.cast_signed();
        match self.waits.syscall_stop(tid, result) {
            Some(true) => return ptrace::cont_syscall(tid, 0),
            Some(false) => return ptrace::cont(tid, 0),
            None => {}
        }
        let Some(refused) = self.rewriter.syscall_stop(tid)? else {
            return ptrace::cont(tid, 0);
        };
        let Ok(task) = self.monitor.tasks.get(tid) else {
            return ptrace::cont(tid, 0);
        };
        let (Ok(caller), Ok(letter_box)) = (task.caller(), self.letter_box()) else {
            return ptrace::cont(tid, 0);
        };
        let script = Receive::new(task, refused, caller.pid, letter_box);
        match self.injector.receive(tid, ptrace::get_regs(tid)?, script) {
            Ok(stop) => self.injected(tid, stop),
            Err(_) => ptrace::cont(tid, 0),
        }
    }

    fn call(&mut self, tid: i32) -> Result<()> {
        // A thread that makes another call waits no longer.
        self.waits.forget(tid);
        self.core_files.forget(tid);
        let regs = ptrace::get_regs(tid)?;
        if self.injector.is_calling(tid) || self.rewriter.seccomp_stop(tid, &regs) {
            return ptrace::cont_syscall(tid, 0);
        }
        let monitor = Arc::clone(&self.monitor);
        let next = match monitor.waiting.rejoin(&monitor, tid, call_of(&regs)) {
            Some(Rejoined::Answered(answer)) => self.without_notification(tid, regs, answer),
            Some(Rejoined::Waits(waiting)) => return self.park_at_call(waiting, regs),
            None => self.treat(tid, &regs),
        };
        let mut next = self.monitor.judge_shortage(next);
        if next.as_ref().is_err_and(|errno| *errno == LOCKED) {
            let again = waiting::again(&monitor, tid, true, || Ok(Answer::Again));
            next = self.without_notification(tid, regs, Ok(again));
        }
        self.go_on(tid, regs, next)
    }

    fn go_on(&mut self, tid: i32, regs: Registers, next: Result<Next>) -> Result<()> {
        match next {
            Ok(Next::Run) => ptrace::cont(tid, 0),
            Ok(Next::Instead(rewrite)) => {
                self.rewriter.start(tid, regs, rewrite)?;
                ptrace::cont_syscall(tid, 0)
            }
            Ok(Next::Wait) => Ok(()),
            Ok(Next::Fetch(fd)) => self.fetch(tid, regs, fd),
            Err(LOCKED) => {
                make_again(tid, regs)?;
                ptrace::cont(tid, 0)
            }
            Err(errno) => {
                skip(tid, regs, -(errno as i64))?;
                ptrace::cont(tid, 0)
            }
        }
    }

    fn letter_box(&mut self) -> Result<Arc<LetterBox>> {
        Ok(match &self.letter_box {
            Some(letter_box) => Arc::clone(letter_box),
            None => Arc::clone(self.letter_box.insert(Arc::new(LetterBox::new()?))),
        })
    }

    /// The thread at a seccomp stop sends us its descriptor `fd` and makes its call again.
    fn fetch(&mut self, tid: i32, regs: Registers, fd: i32) -> Result<()> {
        let task = self.monitor.tasks.get(tid)?;
        let pid = task.caller()?.pid;
        let letter_box = self.letter_box()?;
        let spare = self.rewriter.spare(tid);
        let script = Fetch::new(task, pid, fd, letter_box, spare);
        self.injector.fetch(tid, regs, script)
    }

    /// What the call at this stop becomes.
    fn treat(&mut self, tid: i32, regs: &Registers) -> Result<Next> {
        let task = self.monitor.tasks.get(tid)?;
        let next = self.attempt(tid, regs, &task);
        match (next, task.wanted()) {
            (_, Some(fd)) | (Ok(Next::Fetch(fd)), None) => Ok(Next::Fetch(fd)),
            // The thread that answers it looks at them, too.
            (Ok(Next::Wait), None) => Ok(Next::Wait),
            (next, None) => {
                task.forget_brought();
                next
            }
        }
    }

    fn attempt(&mut self, tid: i32, regs: &Registers, task: &Arc<Task>) -> Result<Next> {
        let (nr, args) = call_of(regs);
        let monitor = Arc::clone(&self.monitor);
        let mut call = Call::new(&monitor, Arc::clone(task), nr, args);
        match (
            i64::from(nr),
            entry(nr).and_then(|entry| entry.rule.handler()),
        ) {
            (libc::SYS_chdir, _) => change_directory(&call),
            (NUMBER, _) => self.transaction(&call, regs),
            (
                libc::SYS_socket | libc::SYS_socketpair | libc::SYS_seccomp | libc::SYS_pidfd_getfd,
                _,
            ) => self.watch_sockets(&call),
            (libc::SYS_prctl, _) if call.int(0) == libc::PR_SET_SECCOMP => {
                self.watch_sockets(&call)
            }
            (libc::SYS_sendmsg | libc::SYS_sendmmsg, _) if rights::leave_in(&call) => {
                let answer = on_own_thread(&monitor, tid, (nr, args), rights::send);
                drop(call);
                self.without_notification(tid, *regs, Ok(answer))
            }
            (libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg, _) => {
                datagram::redirect(&call).map(Next::of)
            }
            (libc::SYS_connect, _) => socket::connect(&call).map(Next::of),
            (libc::SYS_execve, _) => {
                let path = call.path(0)?;
                let exec = Exec {
                    dirfd: libc::AT_FDCWD,
                    path,
                    argv: args[1],
                    flags: 0,
                };
                self.execute(&call, &exec, args[2])
            }
            (libc::SYS_execveat, _) => {
                let exec = Exec {
                    dirfd: call.int(0),
                    path: call.path(1)?,
                    argv: args[2],
                    flags: call.int(4),
                };
                self.execute(&call, &exec, args[3])
            }
            (libc::SYS_close | libc::SYS_close_range | libc::SYS_dup2 | libc::SYS_dup3, _) => {
                let answer = profiled::close(&monitor, &call);
                drop(call);
                self.without_notification(tid, *regs, Ok(answer))
            }
            (_, Some(handler)) => {
                let answer = |call: &mut Call<'_>| profiled::answer(call, handler);
                let mut answer = monitor.outside.around(&mut call, answer);
                if let Some(fd) = call.task.wanted() {
                    return Ok(Next::Fetch(fd));
                }
                drop(call);
                if matches!(answer, Ok(Answer::Wait)) {
                    answer = Ok(on_own_thread(&monitor, tid, (nr, args), handler));
                }
                self.without_notification(tid, *regs, answer)
            }
            _ => Ok(Next::Run),
        }
    }

    /// One-stop emulation, where notification is refused: the answer is set at this stop.
    fn without_notification(
        &mut self,
        tid: i32,
        regs: Registers,
        answer: Result<Answer>,
    ) -> Result<Next> {
        self.monitor.stats.count(regs.orig_rax as u32, &answer);
        match answer? {
            Answer::PassOn => Ok(Next::Run),
            Answer::Watched(path) => {
                self.watch(tid, path)?;
                Ok(Next::Run)
            }
            Answer::Value(value) => {
                skip(tid, regs, value)?;
                Ok(Next::Run)
            }
            Answer::Install { fd, cloexec, .. } => {
                use nix::fcntl::{FcntlArg, fcntl};
                use std::os::fd::AsRawFd;
                let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
                let cloexec = if cloexec { libc::O_CLOEXEC } else { 0 };
                let flags = fcntl(fd.as_fd(), FcntlArg::F_GETFL)? & REOPEN_FLAGS | cloexec;
                Ok(Next::Instead(Rewrite::Open {
                    path: path.into_bytes(),
                    flags,
                    source: Some(fd),
                }))
            }
            Answer::MapCopy(content) => Ok(Next::Instead(Rewrite::MapCopy(content))),
            Answer::Again => {
                make_again(tid, regs)?;
                Ok(Next::Run)
            }
            Answer::Interrupted => {
                // The kernel looks at such a result only before a signal or a stop, and another thread of the process may take
                // the signal that has ended the wait.
                ptrace::interrupt(tid)?;
                Ok(Next::Instead(Rewrite::Interrupted))
            }
            // Made an `Answer::Block` before.
            Answer::Wait => Err(Errno::EIO),
            Answer::OpenHost { path, flags } => Ok(Next::Instead(Rewrite::Open {
                path,
                flags,
                source: None,
            })),
            Answer::Block(work) => {
                self.last_late += 1;
                let (monitor, number) = (Arc::clone(&self.monitor), self.last_late);
                let waiting = monitor.waiting.begin(&monitor, tid, call_of(&regs), work)?;
                let thread = thread::Builder::new().name("blocking".into());
                let spawned = thread.spawn(move || {
                    let letter = match waiting.first_answer(&monitor) {
                        Some(answer) => Letter::Late(Box::new(Late {
                            tid,
                            number,
                            regs,
                            answer,
                        })),
                        None => Letter::Park(Box::new(Park {
                            waiting,
                            stopped: Some((number, regs)),
                        })),
                    };
                    monitor.mailbox.post(letter);
                });
                if spawned.is_err() {
                    self.monitor.waiting.abandon(&self.monitor, tid);
                    return Err(Errno::EAGAIN);
                }
                self.late.insert(tid, number);
                Ok(Next::Wait)
            }
        }
    }

    /// Has thread `tid`, whose call is about to change `path`, stop on its way out of the call.
    fn watch(&mut self, tid: i32, path: Vec<u8>) -> Result<()> {
        ptrace::interrupt(tid)?;
        self.watched.insert(tid, path);
        Ok(())
    }

    /// Thread `tid` has stopped on its way out of a call.
    fn seen(&mut self, tid: i32) {
        let Some(path) = self.watched.remove(&tid) else {
            return;
        };
        if let Ok(regs) = ptrace::get_regs(tid) {
            let result = regs.rax.cast_signed();
            self.monitor.outside.performed(tid, path, result);
        }
    }

    /// Lets a call go on whose answer took long.
    fn finish(&mut self, late: Late) {
        let Late {
            tid,
            number,
            regs,
            answer,
        } = late;
        if self.late.get(&tid) != Some(&number) {
            return;
        }
        self.late.remove(&tid);
        let task = self.monitor.tasks.get(tid);
        let next = match task.as_ref().map(|task| task.wanted()) {
            Ok(Some(fd)) => Ok(Next::Fetch(fd)),
            _ => {
                let _ = task.map(|task| task.forget_brought());
                self.without_notification(tid, regs, answer)
            }
        };
        let outcome = self.go_on(tid, regs, next);
        debug_assert!(
            matches!(outcome, Ok(()) | Err(Errno::ESRCH)),
            "{tid}: {outcome:?}"
        );
    }
}

/// What answers the call `(nr, args)` of `tid` on a thread that may wait.
fn on_own_thread(
    monitor: &Arc<Monitor>,
    tid: i32,
    (nr, args): (u32, [u64; 6]),
    handler: Handler,
) -> Answer {
    let again = Arc::clone(monitor);
    waiting::again(monitor, tid, false, move || {
        let mut call = Call::new(&again, again.tasks.get(tid)?, nr, args);
        call.may_wait = true;
        let answer = |call: &mut Call<'_>| profiled::answer(call, handler);
        again.outside.around(&mut call, answer)
    })
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.monitor.mailbox.close();
    }
}

/// A thread of process `pid` that has not ended: the first one may have, while others go on.
fn living_thread(pid: i32) -> Option<i32> {
    let threads = procfs::threads(pid).ok()?;
    threads.into_iter().find(|tid| !procfs::has_ended(*tid))
}

/// How a task ended, if it did.
fn end_of(event: ptrace::Status) -> Option<Status> {
    match event {
        ptrace::Status::Exited(code) => Some(Status::Exited(code)),
        ptrace::Status::Signaled { signal, .. } => Some(Status::Signaled(signal)),
        _ => None,
    }
}

/// Which filter of members a tracee has that is stopped where the message tells: [`MEMBER`], [`CLOSER`], or 0.
fn member_filter(tid: i32) -> Result<u32> {
    let message = ptrace::event_message(tid)?.cast_unsigned();
    Ok(if matches!(message, MEMBER | CLOSER) {
        message
    } else {
        0
    })
}

/// The number and the arguments of the call a tracee is stopped in.
fn call_of(regs: &Registers) -> (u32, [u64; 6]) {
    let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    (regs.orig_rax as u32, args)
}

/// Makes the call at this seccomp stop not happen and return `value`.
fn skip(tid: i32, mut regs: Registers, value: i64) -> Result<()> {
    regs.orig_rax = u64::MAX;
    regs.rax = value as u64;
    ptrace::set_regs(tid, &regs)
}

/// Makes the call at this seccomp stop happen later, from the start: after a signal's handler, or at once.
pub fn make_again(tid: i32, mut regs: Registers) -> Result<()> {
    // The syscall instruction is two bytes long.
    regs.rip -= 2;
    regs.rax = regs.orig_rax;
    regs.orig_rax = u64::MAX;
    ptrace::set_regs(tid, &regs)
}

fn change_directory(call: &Call<'_>) -> Result<Next> {
    let resolved = call.resolve(libc::AT_FDCWD, &call.path(0)?, true)?;
    call.monitor.tasks.about_to_change(&call.task);
    match resolved.at {
        Pos::Host(_) if resolved.native => Ok(Next::Run),
        Pos::Host(path) if path.is_empty() => Ok(Next::Instead(Rewrite::Chdir(b"/".to_vec()))),
        Pos::Host(path) => Ok(Next::Instead(Rewrite::Chdir(path))),
        Pos::Mounted(place) => {
            may_enter(call, &place)?;
            let shadows = &call.monitor.shadows;
            let path = shadows.directory_for(&*call.caller()?, &place)?;
            Ok(Next::Instead(Rewrite::Chdir(
                path.as_os_str().as_bytes().to_vec(),
            )))
        }
    }
}

/// The working directory is found without a look-up that a back end could judge.
fn may_enter(call: &Call<'_>, place: &Place) -> Result<()> {
    if !place.node.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    ops::access(&*call.caller()?, place, libc::X_OK)
}

fn execute(call: &Call<'_>, exec: &Exec, envp: u64) -> Result<Next> {
    call.monitor.installs.settle_all();
    Ok(match exec.plan(call)? {
        Plan::PassOn => Next::Run,
        Plan::Instead { program, argv } => Next::Instead(Rewrite::Execve {
            program,
            argv,
            old_argv: exec.argv,
            envp,
        }),
    })
}
