//! New tracees: what they inherit, and when they run.

pub mod clone3;
pub mod process_tree;

use goanna_sys::arch::Registers;
use goanna_sys::procfs;
use goanna_sys::ptrace::{Status, Stopped};
use nix::errno::Errno;

use super::Supervisor;

impl Supervisor {
    /// `child` inherits what the thread had when it started it.
    pub(super) fn new_child(
        &mut self,
        stopped: Stopped,
        child: i32,
        event: i32,
    ) -> Result<(), Errno> {
        let tid = stopped.tid();
        // If it is not known, it counts as not inherited.
        let regs = stopped.regs();
        let of_clone3 = self.clones.remove(tid);
        let flags = of_clone3.or_else(|| regs.as_ref().ok().map(clone_flags));
        let at = regs.map_or(0, |regs| regs.instruction());
        let inside = &self.monitor.in_process;
        let script = inside.forked(&self.monitor, (tid, at), child, flags);
        // A tracer may wait for its first stop before it continues the thread.
        let is_traced = self.tracees.passes_on(tid, child, event);
        let script = script.filter(|_| !is_traced);
        let is_held = script.is_some_and(|script| self.injector.map_memory(tid, script).is_ok());
        if let Some(flags) = flags {
            self.rewriter.inherit(tid, child, flags);
            self.process_tree.child_started(tid, child, flags);
            let has = |flag: i32| flags & flag as u64 != 0;
            if has(libc::CLONE_FS) && !has(libc::CLONE_THREAD) {
                let _ = self.monitor.tasks.share_fs(tid, child);
            } else if !has(libc::CLONE_FS | libc::CLONE_THREAD | libc::CLONE_NEWUSER) {
                self.monitor.tasks.inherit(tid, child);
            }
        }
        self.monitor.participants.inherit(tid, child);
        self.monitor.nested.inherit(tid, child);
        let shares = flags.is_some_and(|flags| flags & libc::CLONE_FS as u64 != 0);
        self.monitor.roots.inherit(tid, child, shares);
        if flags.is_some_and(|flags| flags & libc::CLONE_NEWNS as u64 != 0) {
            self.monitor.roots.leaves(child, &[]);
        }
        self.monitor.profiled.forked(tid, child);
        if self.filtered.contains(&tid) {
            self.filtered.insert(child);
        }
        self.know(child);
        self.observe_birth(tid, child);
        let early = self.early.remove(&child);
        if is_held {
            self.held.insert(tid, (child, early));
        } else if let Some(early) = early {
            let _ = self.stop(early, Status::EventStop);
        }
        self.resume_after(stopped, event, child)
    }

    /// Lets the new thread run that was held for `tid`, which has run its script or has ended.
    pub(super) fn release_held(&mut self, tid: i32) {
        if let Some((_, Some(child))) = self.held.remove(&tid) {
            let _ = child.cont(0);
        }
    }

    /// New tracees inherit nothing if their parent was killed before it could report them, or was a thread of process `executed`, which
    /// has lost all its threads.
    pub(super) fn release_orphans(&mut self, executed: i32) {
        let known = &self.known;
        let orphaned = |tid: &i32, _: &mut Stopped| {
            procfs::status(*tid).map_or(true, |status| {
                let parent = if status.tgid == *tid {
                    status.ppid
                } else {
                    status.tgid
                };
                parent == executed || !known.contains(&parent)
            })
        };
        let orphans: Vec<(i32, Stopped)> = self.early.extract_if(orphaned).collect();
        for (tid, stopped) in orphans {
            self.know(tid);
            self.kept_threads.has_found(tid);
            self.monitor.in_process.orphaned(tid);
            self.observe_birth(0, tid);
            let _ = stopped.cont(0);
        }
    }
}

/// The flags of the call that a thread with these registers is in, which made a child.
fn clone_flags(regs: &Registers) -> u64 {
    match regs.number() {
        libc::SYS_vfork => (libc::CLONE_VM | libc::CLONE_VFORK) as u64,
        libc::SYS_clone => regs.args()[0],
        _ => 0,
    }
}
