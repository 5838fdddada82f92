//! Calls at their ptrace stops: calls whose registers must change, and, where notification is refused, all calls that the
//! monitor answers. Next: `rewrite.rs`, how a call gets other arguments.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use goanna_sys::arch::Registers;
use goanna_sys::descriptor_inbox::DescriptorInbox;
use goanna_sys::procfs;
use goanna_sys::ptrace::Stopped;
use goanna_sys::txncall::NUMBER;
use goanna_syscalls::Treatment;
use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, FsError, Place, Result, escape, ops};

use super::{Joining, Supervisor, assert_lives_or_ended, living_thread};
use crate::answer::{reopen_flags, status};
use crate::call::{Answer, Call, Work};
use crate::calls::socket::{self, datagram, filter, rights};
use crate::calls::txn::Request;
use crate::inprocess::is_plain;
use crate::intercept::waiting::Rejoined;
use crate::participants::profile::End;
use crate::participants::profile::profiled;
use crate::process::task::Task;
use crate::ptracer::inject::Fetch;
use crate::ptracer::mailbox::{LateAnswer, Message, Park};
use crate::ptracer::program::{Exec, Plan};
use crate::ptracer::rewrite::Rewrite;
use crate::table::filter::{CLOSER, PARTICIPANT, compile_participant};
use crate::table::{Handler, entry};
use crate::{Monitor, defect};

/// How a stopped call continues.
pub(super) enum Next {
    /// The kernel performs it unchanged.
    Run,
    /// Its registers are set: the kernel skips it or restarts it.
    Skipped,
    /// The kernel performs another call instead.
    Instead(Rewrite),
    /// Not yet: a thread of the executor determines its answer, which has this number.
    LateAnswer(u64),
    /// Not yet: another process must get a filter first.
    Join(Request),
    /// It is restarted when the tracee has sent us this descriptor.
    Fetch(i32),
    /// Not yet: the tracee attaches to this thread, which must stop first.
    Attach(i32),
}

impl Next {
    fn of(rewrite: Option<Rewrite>) -> Self {
        rewrite.map_or(Self::Run, Self::Instead)
    }
}

/// The program of execve(2) or execveat(2), and the address of the environment.
fn exec_of(call: &Call<'_>, nr: u32, args: [u64; 6]) -> Result<(Exec, u64)> {
    if i64::from(nr) == libc::SYS_execve {
        let exec = Exec {
            dirfd: libc::AT_FDCWD,
            path: call.path(0)?,
            argv: args[1],
            flags: 0,
        };
        return Ok((exec, args[2]));
    }
    let exec = Exec {
        dirfd: call.int(0),
        path: call.path(1)?,
        argv: args[2],
        flags: call.int(4),
    };
    Ok((exec, args[3]))
}

impl Supervisor {
    /// The call that begins and ends transactions.
    pub(super) fn transaction(
        &mut self,
        call: &Call<'_>,
        stopped: &Stopped,
        regs: &Registers,
    ) -> Result<Next> {
        let tid = stopped.tid();
        let request = Request::of(call)?;
        if participant_filter(stopped)? > 0 {
            self.filtered.insert(tid);
        }
        let tried = self.rewriter.was_filtered(tid);
        let joins = request.target.unwrap_or(tid);
        if request.joins() && !self.filtered.contains(&joins) {
            match request.target {
                None if tried => return Err(Errno::EAGAIN.into()),
                None => return Ok(Next::Instead(Rewrite::Filter(compile_participant(false)))),
                Some(target) if !self.known.contains(&target) => return Err(Errno::ESRCH.into()),
                Some(target) => {
                    let thread = living_thread(target).ok_or(Errno::ESRCH)?;
                    self.injector.install_filter(thread, tid)?;
                    return Ok(Next::Join(request));
                }
            }
        }
        let answer = request.answer(&self.monitor);
        self.without_notification(stopped, *regs, answer)
    }

    /// The program may get a Unix socket, or a filter that forbids to install another one.
    fn watch_sockets(&mut self, call: &Call<'_>, stopped: &Stopped) -> Result<Next> {
        let tid = stopped.tid();
        if self.rewriter.was_filtered(tid) {
            return Ok(Next::Run);
        }
        let ours = self.first_filters + u32::from(self.filtered.contains(&tid));
        filter::install(call, stopped, ours).map(Next::of)
    }

    /// Handles execve(2). If a rule applies to the program, the process first gets the filter of participants.
    pub(super) fn execute(
        &mut self,
        call: &Call<'_>,
        stopped: &Stopped,
        exec: &Exec,
        envp: u64,
    ) -> Result<Next> {
        let tid = stopped.tid();
        self.monitor.in_process.count(tid);
        self.entering.remove(&tid);
        let path = if exec.path.is_empty() {
            procfs::fd_link(tid, exec.dirfd).unwrap_or_default()
        } else {
            exec.path.clone()
        };
        let tried = self.rewriter.was_filtered(tid);
        if let Some(rule) = self.monitor.profiled.rule(&path) {
            let closes = rule.end == End::LastClose;
            let has = participant_filter(stopped)?;
            if has == 0 || closes && has != CLOSER {
                if !tried {
                    return Ok(Next::Instead(Rewrite::Filter(compile_participant(closes))));
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

    pub(super) fn call(&mut self, stopped: Stopped) -> Result<(), Errno> {
        let tid = stopped.tid();
        // A thread that makes another call does not wait any more.
        let is_repeated = self.waits.seccomp_stop(tid);
        self.core_files.forget(tid);
        let regs = stopped.regs()?;
        if self.injector.has(tid) && !self.injector.is_calling(tid) {
            // This stop has replaced the one that PTRACE_INTERRUPT asked for.
            stopped.interrupt()?;
        }
        if self.injector.is_calling(tid) || self.rewriter.seccomp_stop(tid, &regs) {
            self.waits.forget(tid);
            return stopped.cont_syscall(0);
        }
        let monitor = Arc::clone(&self.monitor);
        let only_observed = self.observe_entry(&stopped, &regs);
        if regs.number() == libc::SYS_clone3 {
            let next = self.clone3(tid, regs.args()[0]);
            return self.continue_or_hold(stopped, regs, next);
        }
        let next = match monitor.waiting.rejoin(tid, call_of(&regs)) {
            Some(Rejoined::Answered(answer)) => self.without_notification(&stopped, regs, answer),
            Some(Rejoined::Waits(waiting)) => return self.park_at_call(stopped, waiting, regs),
            None => match only_observed {
                Some(next) => self.wait_at_call(&stopped, &regs).unwrap_or(next),
                None => self.treat(&stopped, &regs),
            },
        };
        let mut next = self.monitor.report_shortage(next);
        if let Err(FsError::Blocked(lock)) = next {
            let again = Work::after(lock, || Ok(Answer::Restart));
            next = self.without_notification(&stopped, regs, Ok(Answer::Block(again)));
        }
        let proceeds = matches!(
            next,
            Ok(Next::Run | Next::Skipped | Next::Instead(Rewrite::Addressed(_)))
        );
        if is_repeated && !proceeds {
            self.waits.forget(tid);
        }
        self.continue_or_hold(stopped, regs, next)
    }

    /// Continues the thread, or keeps it in its stop.
    pub(super) fn continue_or_hold(
        &mut self,
        stopped: Stopped,
        regs: Registers,
        next: Result<Next>,
    ) -> Result<(), Errno> {
        let tid = stopped.tid();
        match next {
            Ok(Next::Run | Next::Skipped) if self.waits.is_inside(tid) => stopped.cont_syscall(0),
            Ok(Next::Run) => self.resume(stopped),
            Ok(Next::Skipped) => stopped.cont(0),
            Ok(Next::Instead(rewrite)) => {
                self.rewriter.start(&stopped, regs, rewrite)?;
                stopped.cont_syscall(0)
            }
            Ok(Next::LateAnswer(number)) => {
                self.late.insert(tid, (number, stopped));
                Ok(())
            }
            Ok(Next::Join(request)) => {
                let joining = Joining {
                    stopped,
                    regs,
                    request,
                };
                self.joining.insert(tid, joining);
                Ok(())
            }
            Ok(Next::Fetch(fd)) => self.fetch(stopped, regs, fd),
            Ok(Next::Attach(target)) => {
                self.attaching(stopped, target);
                Ok(())
            }
            Err(FsError::Blocked(_)) => {
                restart(&stopped, regs)?;
                stopped.cont(0)
            }
            Err(FsError::Errno(errno)) => {
                self.observe_end(tid, -(errno as i64), Treatment::Monitor);
                skip(&stopped, regs, -(errno as i64))?;
                stopped.cont(0)
            }
        }
    }

    pub(super) fn descriptor_inbox(&mut self) -> Result<Arc<DescriptorInbox>, Errno> {
        Ok(match &self.descriptor_inbox {
            Some(descriptor_inbox) => Arc::clone(descriptor_inbox),
            None => Arc::clone(
                self.descriptor_inbox
                    .insert(Arc::new(DescriptorInbox::new()?)),
            ),
        })
    }

    /// Makes the thread, which is at a seccomp stop, send us its descriptor `fd`, and then repeat its call.
    pub(super) fn fetch(
        &mut self,
        stopped: Stopped,
        regs: Registers,
        fd: i32,
    ) -> Result<(), Errno> {
        let tid = stopped.tid();
        let task = self.monitor.tasks.get(tid)?;
        let pid = task.caller()?.pid;
        let descriptor_inbox = self.descriptor_inbox()?;
        let spare = self.rewriter.spare(tid);
        let script = Fetch::new(task, pid, fd, descriptor_inbox, spare);
        self.injector.fetch(stopped, regs, script)
    }

    /// Determines how the call at this stop continues.
    pub(super) fn treat(&mut self, stopped: &Stopped, regs: &Registers) -> Result<Next> {
        let task = self.monitor.tasks.get(stopped.tid())?;
        let next = self.attempt(stopped, regs, &task);
        match (next, task.wanted()) {
            (_, Some(fd)) | (Ok(Next::Fetch(fd)), None) => Ok(Next::Fetch(fd)),
            // The thread that determines the answer needs the descriptors, too.
            (Ok(waits @ (Next::LateAnswer(_) | Next::Join(_))), None) => Ok(waits),
            (next, None) => {
                task.forget_fetched();
                next
            }
        }
    }

    pub(super) fn attempt(
        &mut self,
        stopped: &Stopped,
        regs: &Registers,
        task: &Arc<Task>,
    ) -> Result<Next> {
        let tid = stopped.tid();
        let (nr, args) = call_of(regs);
        defect::panic_if_asked(nr);
        let monitor = Arc::clone(&self.monitor);
        let mut call = Call::new(&monitor, Arc::clone(task), nr, args);
        call.memory = self.memory(tid, (nr, args));
        match (
            i64::from(nr),
            entry(nr).and_then(|entry| entry.rule.handler()),
        ) {
            (libc::SYS_chdir, _) => change_directory(&call),
            (NUMBER, _) => self.transaction(&call, stopped, regs),
            (libc::SYS_ptrace, _) => self.ptrace(&call, stopped, *regs),
            (libc::SYS_wait4, _) => self.wait_for_all(&call, stopped, *regs),
            (libc::SYS_clone, _) => traced_child(stopped, *regs),
            (
                libc::SYS_socket | libc::SYS_socketpair | libc::SYS_seccomp | libc::SYS_pidfd_getfd,
                _,
            ) => {
                if i64::from(nr) == libc::SYS_seccomp {
                    monitor.in_process.exclude(tid);
                }
                self.watch_sockets(&call, stopped)
            }
            (libc::SYS_prctl, _) if call.int(0) == libc::PR_SET_SECCOMP => {
                monitor.in_process.exclude(tid);
                self.watch_sockets(&call, stopped)
            }
            (libc::SYS_sendmsg | libc::SYS_sendmmsg, _) if rights::leave_in(&call) => {
                let answer = on_own_thread(&monitor, call, rights::send);
                self.without_notification(stopped, *regs, Ok(answer))
            }
            (libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg, _) => {
                datagram::redirect(&call).map(Next::of)
            }
            (libc::SYS_connect, _) => socket::connect(&call).map(Next::of),
            (libc::SYS_execve | libc::SYS_execveat, _) => {
                let (exec, environment) = exec_of(&call, nr, args)?;
                self.execute(&call, stopped, &exec, environment)
            }
            (libc::SYS_close | libc::SYS_close_range | libc::SYS_dup2 | libc::SYS_dup3, _) => {
                let answer = profiled::close(&monitor, &call);
                drop(call);
                self.without_notification(stopped, *regs, Ok(answer))
            }
            (_, Some(handler)) => {
                let answer = |call: &mut Call<'_>| profiled::answer(call, handler);
                let mut answer = monitor.outside.observe(&mut call, answer);
                if let Some(fd) = call.task.wanted() {
                    return Ok(Next::Fetch(fd));
                }
                if matches!(answer, Ok(Answer::Wait)) {
                    answer = Ok(on_own_thread(&monitor, call, handler));
                }
                self.without_notification(stopped, *regs, answer)
            }
            _ => Ok(Next::Run),
        }
    }

    /// One-stop emulation, where notification is refused: the answer is set at this stop.
    pub(super) fn without_notification(
        &mut self,
        stopped: &Stopped,
        regs: Registers,
        answer: Result<Answer>,
    ) -> Result<Next> {
        let tid = stopped.tid();
        self.monitor
            .observers
            .handled(regs.number() as u32, &answer);
        match answer? {
            Answer::PassOn => Ok(Next::Run),
            Answer::Watched(path) => {
                self.watch(tid, path)?;
                Ok(Next::Run)
            }
            Answer::Value(value) => {
                self.observe_end(tid, value, Treatment::Monitor);
                skip(stopped, regs, value)?;
                Ok(Next::Skipped)
            }
            Answer::Install {
                description,
                cloexec,
                ..
            } => {
                use std::os::fd::AsRawFd;
                let fd = description.fd()?;
                let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
                let flags = reopen_flags(status(fd)?, cloexec);
                Ok(Next::Instead(Rewrite::Open {
                    path: path.into_bytes(),
                    flags,
                    source: Some(description),
                }))
            }
            // No file has an empty path: the tracee receives what it cannot open.
            Answer::Receive {
                description,
                cloexec,
            } => Ok(Next::Instead(Rewrite::Open {
                // ENOENT, so the description is sent. An open with O_PATH is a stop in every run.
                path: Vec::new(),
                flags: libc::O_PATH | if cloexec { libc::O_CLOEXEC } else { 0 },
                source: Some(description),
            })),
            Answer::MapCopy(content) => Ok(Next::Instead(Rewrite::MapCopy(content))),
            Answer::WithArguments(arguments) => Ok(Next::Instead(Rewrite::Arguments(arguments))),
            Answer::Restart => {
                restart(stopped, regs)?;
                Ok(Next::Skipped)
            }
            Answer::Interrupted => {
                // The kernel handles such a result only before a signal or a stop, and another thread of the process may take
                // the signal that has ended the wait.
                stopped.interrupt()?;
                Ok(Next::Instead(Rewrite::Interrupted))
            }
            // `attempt` has replaced the first two by `Answer::Block`, and only calls from stubs get the third.
            Answer::Wait | Answer::Readable(_) | Answer::OpenItself { .. } => {
                Err(Errno::EIO.into())
            }
            Answer::OpenHost { path, flags } => Ok(Next::Instead(Rewrite::Open {
                path,
                flags,
                source: None,
            })),
            Answer::Block(work) => self.answer_late(tid, regs, work),
        }
    }

    /// Lets the executor determine the answer. The mailbox gets the answer, or a message that the caller must be parked.
    fn answer_late(&mut self, tid: i32, regs: Registers, work: Work) -> Result<Next> {
        self.last_late += 1;
        let (monitor, number) = (Arc::clone(&self.monitor), self.last_late);
        let (waiting, shared) = (&self.monitor.waiting, Arc::clone(&self.monitor));
        let deliver = move |waiting, answer| {
            let message = match answer {
                Some(answer) => Message::LateAnswer(Box::new(LateAnswer {
                    tid,
                    number,
                    regs,
                    answer,
                })),
                None => Message::Park(Box::new(Park {
                    waiting,
                    at_stop: Some((number, regs)),
                })),
            };
            shared.mailbox.post(message);
        };
        waiting.begin(&monitor, tid, call_of(&regs), work, Box::new(deliver))?;
        Ok(Next::LateAnswer(number))
    }

    /// The thread whose call has the answer `number`, if it still waits for that.
    pub(super) fn take_late(&mut self, tid: i32, number: u64) -> Option<Stopped> {
        let is_wanted = self.late.get(&tid).is_some_and(|(late, _)| *late == number);
        let late = is_wanted.then(|| self.late.remove(&tid)).flatten();
        late.map(|(_, stopped)| stopped)
    }

    /// Continues a call whose answer took long.
    pub(super) fn finish(&mut self, late: LateAnswer) {
        let LateAnswer {
            tid,
            number,
            regs,
            answer,
        } = late;
        let Some(stopped) = self.take_late(tid, number) else {
            return;
        };
        let task = self.monitor.tasks.get(tid);
        let next = match task.as_ref().map(|task| task.wanted()) {
            Ok(Some(fd)) => Ok(Next::Fetch(fd)),
            _ => {
                let _ = task.map(|task| task.forget_fetched());
                self.without_notification(&stopped, regs, answer)
            }
        };
        let outcome = self.continue_or_hold(stopped, regs, next);
        assert_lives_or_ended(tid, outcome);
    }
}

/// The work that answers `call` on a thread that may wait.
fn on_own_thread(monitor: &Arc<Monitor>, call: Call<'_>, handler: Handler) -> Answer {
    let again = Arc::clone(monitor);
    let (tid, nr, args) = (call.task.tid, call.nr, call.args());
    let memory = call.memory;
    Answer::Block(Work::new(move || {
        // Entered before the task is looked up: the supervisor forgets the task of a dead tracee before it looks here.
        let _in_flight = again.in_flight.enter(tid);
        let mut call = Call::new(&again, again.tasks.get(tid)?, nr, args);
        call.memory = memory.clone();
        call.may_wait = true;
        let answer = |call: &mut Call<'_>| profiled::answer(call, handler);
        again.outside.observe(&mut call, answer)
    }))
}

/// The filter of participants that a tracee has, from the event message of its stop: [`PARTICIPANT`], [`CLOSER`], or 0.
fn participant_filter(stopped: &Stopped) -> Result<u32, Errno> {
    let message = stopped.event_message()?.cast_unsigned();
    Ok(if matches!(message, PARTICIPANT | CLOSER) {
        message
    } else {
        0
    })
}

/// The number and the arguments of the call a tracee is stopped in.
pub fn call_of(regs: &Registers) -> (u32, [u64; 6]) {
    (regs.number() as u32, regs.args())
}

/// Skips the call at this seccomp stop: it returns `value`.
pub fn skip(stopped: &Stopped, regs: Registers, value: i64) -> Result<(), Errno> {
    stopped.set_regs(&regs.with_result(value).outside_of_call())
}

/// Restarts the call at this seccomp stop: after a signal's handler, or at once.
pub fn restart(stopped: &Stopped, regs: Registers) -> Result<(), Errno> {
    stopped.set_regs(&regs.before_call())
}

/// clone(2) without CLONE_UNTRACED: the child is of the run like any other.
fn traced_child(stopped: &Stopped, mut regs: Registers) -> Result<Next> {
    let [flags, ..] = regs.args();
    regs.set_first_args([flags & !(libc::CLONE_UNTRACED as u64)]);
    stopped.set_regs(&regs)?;
    Ok(Next::Run)
}

fn change_directory(call: &Call<'_>) -> Result<Next> {
    let resolved = call.resolve(libc::AT_FDCWD, &call.path(0)?, true)?;
    call.monitor.tasks.about_to_change(&call.task);
    if !is_plain(call, &resolved.at) {
        call.monitor.in_process.leaves_host(call.task.tid);
    }
    match resolved.at {
        Pos::Host(_) if resolved.native => Ok(Next::Run),
        Pos::Host(path) => Ok(Next::Instead(Rewrite::Chdir(call.path_in_kernel(path)))),
        Pos::Mounted(place) => {
            may_enter(call, &place)?;
            let shadows = &call.monitor.shadows;
            let path = shadows.directory_for(&*call.caller()?, &place)?;
            Ok(Next::Instead(Rewrite::Enter(
                path.as_os_str().as_bytes().to_vec(),
            )))
        }
    }
}

/// The working directory is found without a look-up that a back end could judge.
fn may_enter(call: &Call<'_>, place: &Place) -> Result<()> {
    if !place.node.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    ops::access(&*call.caller()?, place, libc::X_OK)
}

fn execute(call: &Call<'_>, exec: &Exec, envp: u64) -> Result<Next> {
    call.monitor.installs.settle_all();
    let (programs, tid) = (&call.monitor.programs, call.task.tid);
    Ok(match exec.plan(call)? {
        Plan::PassOn => {
            programs.forget(tid);
            Next::Run
        }
        Plan::Instead {
            program,
            argv,
            shown,
        } => {
            programs.executes(tid, &program, &shown);
            Next::Instead(Rewrite::Execve {
                program,
                argv,
                old_argv: exec.argv,
                envp,
            })
        }
    })
}
