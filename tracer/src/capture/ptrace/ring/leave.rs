//! Takes a thread out of the recorder before a signal's handler runs: a handler never sees the recorder, nor does it run while the recorder has state.

use goanna_sys::Errno;
use goanna_sys::arch::NO_CALL;
use goanna_sys::clock::monotonic_ns;
use goanna_sys::ptrace::Stopped;
use goanna_sys::recorder::{Layout, layout, state};
use goanna_sys::restarts::is_restart;

use super::process::{Recorder, get, set};
use crate::Event;
use crate::capture::ptrace::follow::Follower;

impl Follower<'_> {
    /// Thread `tid` is stopped for a signal. Returns the one to deliver, or 0: the thread must leave the recorder first, and stops again when it has.
    pub(in crate::capture::ptrace) fn leave_recorder(
        &mut self,
        tid: i32,
        signal: i32,
    ) -> Result<i32, Errno> {
        let Some(rings) = &mut self.rings else {
            return Ok(signal);
        };
        let base = rings.base;
        let thread = self.threads.get(&tid);
        let Some(stopped) = thread.and_then(|thread| thread.stopped.as_ref()) else {
            return Ok(signal);
        };
        let Some(recorder) = rings.recorder(tid) else {
            return Ok(signal);
        };
        if let Some(signal) = leave(stopped, recorder, base, signal)? {
            return Ok(signal);
        }
        self.stop_recording(tid);
        self.send(Event::Lost {
            events: 1,
            reason: format!(
                "a call of process {tid} could not be recorded: its memory has changed meanwhile"
            )
            .into(),
            at_ns: monotonic_ns(),
        });
        Ok(0)
    }
}

/// `None`: the recorder has failed.
fn leave(
    stopped: &Stopped,
    recorder: &mut Recorder,
    base: u64,
    signal: i32,
) -> Result<Option<i32>, Errno> {
    let tid = stopped.tid();
    let at = stopped.regs()?.instruction().wrapping_sub(base);
    let layout = layout();
    if at >= layout.end && get(tid, base, state::BUSY)? == 0 {
        return Ok(Some(signal));
    }
    if has_own_registers(&layout, at) {
        return left(stopped, recorder, base, signal).map(Some);
    }
    let own = stopped.signal()?;
    if own.is_fault() {
        return fail(stopped, base).map(|()| None);
    }
    recorder.held_signals.push(own);
    set(tid, base, state::ABANDON, 1)?;
    set(tid, base, state::TRAP, 1)?;
    let mut regs = stopped.regs()?;
    let user = regs.user_mut();
    if (layout.check..=layout.call).contains(&at) {
        user.rip = base + layout.abandoned;
        user.orig_rax = NO_CALL;
    } else if at == layout.called && is_restart(user.rax.cast_signed()) {
        // The recorder sees that the call was interrupted.
        user.orig_rax = NO_CALL;
    }
    stopped.set_regs(&regs)?;
    Ok(Some(0))
}

/// Whether the registers are the program's at this place of the recorder.
fn has_own_registers(layout: &Layout, at: u64) -> bool {
    at < layout.entered || (layout.left..layout.make).contains(&at)
}

/// Continues the thread behind the site, or at its `syscall`.
fn left(stopped: &Stopped, recorder: &mut Recorder, base: u64, signal: i32) -> Result<i32, Errno> {
    let tid = stopped.tid();
    let layout = layout();
    let mut regs = stopped.regs()?;
    let user = regs.user_mut();
    let at = user.rip.wrapping_sub(base);
    let is_before = at < layout.entered || (layout.unrecorded..layout.leaving).contains(&at);
    user.rip = if is_before {
        user.rcx.wrapping_sub(2)
    } else {
        user.rcx
    };
    user.orig_rax = NO_CALL;
    let is_made = !is_before && get(tid, base, state::KEEP)? != 0;
    let result = user.rax.cast_signed();
    if is_made && (layout.left..layout.unrecorded).contains(&at) && is_restart(result) {
        // The kernel restarts it at the site, or makes it EINTR, when it delivers the signal.
        user.orig_rax = get(tid, base, state::NR)?;
    }
    for word in [state::BUSY, state::TRAP, state::ABANDON] {
        set(tid, base, word, 0)?;
    }
    stopped.set_regs(&regs)?;
    let mut held = std::mem::take(&mut recorder.held_signals).into_iter();
    let first = held.next().filter(|_| at == layout.trapped);
    for later in held {
        later.send(tid, tid)?;
    }
    match first {
        Some(first) => {
            stopped.set_signal(&first)?;
            Ok(first.number())
        }
        None => Ok(signal),
    }
}

/// The recorder has failed: memory that the kernel has just read or written is gone. The program continues without it.
fn fail(stopped: &Stopped, base: u64) -> Result<(), Errno> {
    let tid = stopped.tid();
    let word = |at: u64| get(tid, base, at);
    let mut args = [0; 6];
    for (at, arg) in (state::ARGS..).step_by(8).zip(&mut args) {
        *arg = word(at)?;
    }
    let mut regs = stopped.regs()?;
    regs.set_args(args);
    let user = regs.user_mut();
    user.rsp = word(state::STACK)?;
    user.rip = word(state::RETURN)?;
    user.rax = word(state::RESULT)?;
    if word(state::KEEP)? == 0 {
        user.rip = user.rip.wrapping_sub(2);
        user.rax = word(state::NR)?;
    }
    user.orig_rax = NO_CALL;
    set(tid, base, state::BUSY, 0)?;
    stopped.set_regs(&regs)
}
