//! The requests of ptrace(2).

use goanna_sys::arch::Registers;
use goanna_sys::procfs::{self, Activity};
use goanna_sys::ptrace::{self, Block, Options, Status, Stopped, Until};
use goanna_sys::signals::{pause, send_for_call};
use goanna_sys::tracee;
use goanna_vfs::{Errno, Result};

use super::rights::{is_traceable_by, may_attach};
use super::{OPTIONS, State, Stop, Then, Tracer};
use crate::call::{Answer, Call};
use crate::ptracer::Supervisor;
use crate::ptracer::calls::Next;

/// The largest signal.
const SIGNALS: u64 = 64;

/// The largest register set that is passed on: an XSAVE area with AMX has 11 KiB.
const REGISTER_SET_MAX: usize = 64 << 10;

/// The size of `struct ptrace_syscall_info`.
const SYSCALL_INFO: usize = size_of::<libc::ptrace_syscall_info>();

impl Supervisor {
    /// ptrace(2). EIO for PTRACE_SYSEMU and PTRACE_SINGLEBLOCK.
    pub(in crate::ptracer) fn ptrace(
        &mut self,
        call: &Call<'_>,
        stopped: &Stopped,
        regs: Registers,
    ) -> Result<Next> {
        let request = call.uint(0);
        let tid = call.int(1);
        let value = match request {
            libc::PTRACE_TRACEME => self.trace_by_parent(call).map(|()| 0)?,
            libc::PTRACE_SEIZE => self.begin_seizing(call, tid).map(|()| 0)?,
            libc::PTRACE_INTERRUPT => self.interrupt_tracee(call, tid).map(|()| 0)?,
            libc::PTRACE_ATTACH => return self.attach(call, tid),
            _ => self.perform(call, request, tid)?,
        };
        self.without_notification(stopped, regs, Ok(Answer::Value(value)))
    }

    /// PTRACE_TRACEME. EPERM if the caller has a tracer, if its parent is not of this run or may not trace it, and in a PID namespace of the
    /// caller's own.
    fn trace_by_parent(&mut self, call: &Call<'_>) -> Result<(), Errno> {
        let tid = call.task.tid;
        let own = procfs::status(tid)?;
        let is_of_run = self.known.contains(&own.ppid) && own.own_pid == own.tgid;
        let pid = own.ppid;
        if !is_of_run || self.tracees.has_tracer(tid) || !is_traceable_by(&own, pid)? {
            return Err(Errno::EPERM);
        }
        let tracer = Tracer { pid, tid: None };
        let state = State::Running(Until::Event);
        self.tracees.add(tid, tracer, state);
        self.monitor.in_process.exclude(tid);
        Ok(())
    }

    fn may_begin(&self, call: &Call<'_>, tid: i32) -> Result<()> {
        may_attach(call, tid)?;
        // It is not of this run, or has a tracer.
        if !self.known.contains(&tid) || self.tracees.has_tracer(tid) {
            return Err(Errno::EPERM.into());
        }
        Ok(())
    }

    /// PTRACE_SEIZE. The thread stops only if job control has stopped it, or if the kernel needs options that its tracer asks for.
    fn begin_seizing(&mut self, call: &Call<'_>, tid: i32) -> Result<()> {
        let (address, options) = (call.arg(2), call.arg(3));
        if address != 0 || options & !OPTIONS != 0 {
            return Err(Errno::EIO.into());
        }
        self.may_begin(call, tid)?;
        let own = call.task.tid;
        let pid = self.tracees.process_of(own)?;
        let tracer = Tracer {
            pid,
            tid: Some(own),
        };
        let tracee = self.tracees.add(tid, tracer, State::Running(Until::Event));
        (tracee.options, tracee.is_seized) = (options, true);
        tracee.has_new_options = true;
        if procfs::activity(tid) == Ok(Activity::Stopped) {
            // It may have been killed.
            let _ = ptrace::interrupt(tid);
        } else if self.options_of(tid) != Options::MONITOR {
            let _ = pause(self.tracees.process_of(tid)?, tid);
        }
        Ok(())
    }

    /// PTRACE_INTERRUPT. EIO for a thread that was not seized.
    fn interrupt_tracee(&mut self, call: &Call<'_>, tid: i32) -> Result<(), Errno> {
        let own = call.task.tid;
        let by = (self.tracees.process_of(own)?, own);
        let tracee = self.tracees.by_tid.get_mut(&tid);
        let tracee = tracee
            .filter(|tracee| tracee.tracer.is(by) && !matches!(tracee.state, State::Ended(_)));
        let tracee = tracee.ok_or(Errno::ESRCH)?;
        if !tracee.is_seized {
            return Err(Errno::EIO);
        }
        tracee.awaits_stop = true;
        match tracee.state {
            State::Running(_) => ptrace::interrupt(tid),
            _ => Ok(()),
        }
    }

    /// PTRACE_LISTEN: a thread that job control has stopped stays so. EIO at other stops.
    fn listen(&mut self, tid: i32) -> Result<(), Errno> {
        let tracee = self.tracees.by_tid.get_mut(&tid).ok_or(Errno::ESRCH)?;
        let is_event_stop = match &tracee.state {
            State::Stopped(stop) => stop.raw >> 16 == libc::PTRACE_EVENT_STOP,
            _ => false,
        };
        if !is_event_stop {
            return Err(Errno::EIO);
        }
        tracee.awaits_stop = true;
        let state = State::Running(Until::Event);
        match std::mem::replace(&mut tracee.state, state) {
            State::Stopped(stop) => {
                stop.restore();
                stop.stopped.listen()
            }
            _ => Ok(()),
        }
    }

    fn attach(&self, call: &Call<'_>, tid: i32) -> Result<Next> {
        self.may_begin(call, tid)?;
        ptrace::interrupt(tid)?;
        Ok(Next::Attach(tid))
    }

    /// Keeps the caller of PTRACE_ATTACH at the stop of its call until thread `tid` has stopped.
    pub(in crate::ptracer) fn attaching(&mut self, caller: Stopped, tid: i32) {
        let by = caller.tid();
        let pid = self.tracees.process_of(by).unwrap_or(by);
        let tracer = Tracer { pid, tid: Some(by) };
        let caller = Some(caller);
        self.tracees.add(tid, tracer, State::Stopping { caller });
    }

    /// A request about a traced thread.
    fn perform(&mut self, call: &Call<'_>, request: u32, tid: i32) -> Result<i64, Errno> {
        let own = call.task.tid;
        let by = (self.tracees.process_of(own)?, own);
        let (addr, data) = (call.arg(2), call.arg(3));
        let stop = self.tracees.stop_of(tid, by)?;
        match request {
            libc::PTRACE_CONT
            | libc::PTRACE_SYSCALL
            | libc::PTRACE_SINGLESTEP
            | libc::PTRACE_DETACH => {
                let signal = Some(data).filter(|data| *data <= SIGNALS);
                let signal = Some(signal.ok_or(Errno::EIO)? as i32);
                match request {
                    libc::PTRACE_CONT => self.go_on(tid, signal, Until::Event),
                    libc::PTRACE_SYSCALL => self.go_on(tid, signal, Until::Call),
                    libc::PTRACE_SINGLESTEP => self.go_on(tid, signal, Until::Instruction),
                    _ => self.release(tid, signal),
                }
                Ok(0)
            }
            libc::PTRACE_GET_SYSCALL_INFO => {
                let mut content = vec![0; SYSCALL_INFO];
                let size = match stop.then {
                    Then::Report(_) => stop.stopped.interrupted_call_info(&mut content)?,
                    _ => stop.stopped.call_info(&mut content)?,
                };
                let length = usize::try_from(addr).map_or(size, |addr| addr.min(size));
                call.put(data, &content[..length])?;
                Ok(size as i64)
            }
            libc::PTRACE_LISTEN => self.listen(tid).map(|()| 0),
            libc::PTRACE_SETOPTIONS => self.set_options(tid, data).map(|()| 0),
            libc::PTRACE_GETSIGINFO | libc::PTRACE_SETSIGINFO
                if stop.raw >> 16 != libc::PTRACE_EVENT_STOP =>
            {
                signal_info(call, stop, request).map(|()| 0)
            }
            _ => look(call, stop, request, (addr, data)).map(|()| 0),
        }
    }

    fn set_options(&mut self, tid: i32, options: u64) -> Result<(), Errno> {
        if options & !OPTIONS != 0 {
            return Err(Errno::EINVAL);
        }
        if let Some(tracee) = self.tracees.by_tid.get_mut(&tid) {
            tracee.options = options;
        }
        let of_kernel = self.options_of(tid);
        match self.tracees.by_tid.get(&tid).map(|tracee| &tracee.state) {
            Some(State::Stopped(stop)) => stop.stopped.set_options(of_kernel),
            _ => Err(Errno::ESRCH),
        }
    }
}

/// PTRACE_GETSIGINFO and PTRACE_SETSIGINFO. EINVAL at the stop of a thread by job control.
fn signal_info(call: &Call<'_>, stop: &Stop, request: u32) -> Result<(), Errno> {
    match stop.then {
        Then::Handle(Status::GroupStop(_)) => Err(Errno::EINVAL),
        Then::Handle(Status::EventStop) if request == libc::PTRACE_GETSIGINFO => {
            call.put(call.arg(3), &stop_signal())
        }
        _ => look(call, stop, request, (call.arg(2), call.arg(3))),
    }
}

/// A request that reads or changes a stopped thread.
fn look(call: &Call<'_>, stop: &Stop, request: u32, (addr, data): (u64, u64)) -> Result<(), Errno> {
    let stopped = &stop.stopped;
    if let Some(block) = Block::of(request) {
        let size = block.size_in_address().map(|size| size as u64);
        if size.is_some_and(|size| size != addr) {
            return Err(Errno::EINVAL);
        }
        let mut content = match block.is_change {
            true => call.read(data, block.size)?,
            false => vec![0; block.size],
        };
        stopped.transfer(block, &mut content)?;
        return match block.is_change {
            true => Ok(()),
            false => call.put(data, &content),
        };
    }
    match request {
        libc::PTRACE_PEEKTEXT | libc::PTRACE_PEEKDATA | libc::PTRACE_PEEKUSER => {
            let word = stopped.peek(request == libc::PTRACE_PEEKUSER, addr)?;
            call.put(data, &word.to_ne_bytes())
        }
        libc::PTRACE_POKETEXT | libc::PTRACE_POKEDATA | libc::PTRACE_POKEUSER => {
            stopped.poke(request == libc::PTRACE_POKEUSER, addr, data)
        }
        libc::PTRACE_GETREGSET | libc::PTRACE_SETREGSET => {
            let is_change = request == libc::PTRACE_SETREGSET;
            transfer_set(call, stopped, (addr, is_change))
        }
        libc::PTRACE_GETEVENTMSG => call.put(data, &stop.message.to_ne_bytes()),
        libc::PTRACE_KILL => {
            send_for_call(stopped.tid(), libc::SIGKILL);
            Ok(())
        }
        _ => Err(Errno::EIO),
    }
}

/// The `siginfo_t` of the SIGSTOP that PTRACE_ATTACH sends in the name of the kernel.
fn stop_signal() -> [u8; size_of::<libc::siginfo_t>()] {
    let mut info = [0; size_of::<libc::siginfo_t>()];
    info[..4].copy_from_slice(&libc::SIGSTOP.to_ne_bytes());
    info[8..12].copy_from_slice(&libc::SI_KERNEL.to_ne_bytes());
    info
}

/// Transfers the register set of this kind between the stopped thread and the buffer that the caller's `iovec` describes.
fn transfer_set(
    call: &Call<'_>,
    stopped: &Stopped,
    (kind, is_change): (u64, bool),
) -> Result<(), Errno> {
    let vector = call.arg(3);
    let at_length = vector.wrapping_add(8);
    let (base, length) = (call.read_u64(vector)?, call.read_u64(at_length)?);
    let length = usize::try_from(length).map_or(REGISTER_SET_MAX, |it| it.min(REGISTER_SET_MAX));
    let mut content = vec![0; length];
    // Of a buffer for reading, what the program cannot read is not needed.
    let _ = tracee::read(call.task.tid, base, &mut content);
    let size = stopped.transfer_set(kind, is_change, &mut content)?;
    if !is_change {
        call.put(base, content.get(..size).unwrap_or_default())?;
    }
    call.put(at_length, &(size as u64).to_ne_bytes())
}
