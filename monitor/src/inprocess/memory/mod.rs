//! Memory that processes get for their stubs.

mod grants;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use goanna_sys::notify::Listener;
use goanna_sys::stub;

use super::run_map::RunMap;
use super::space::STUB_MEMORY_LEN;
use super::{InProcess, Thread};
use crate::Monitor;
use crate::ptracer::inject::map;
use crate::ptracer::mailbox::{MapRequest, Message};

impl InProcess {
    /// Whether a process is due to get the map of attributes or an area for writes.
    pub fn memory_is_due(&self) -> bool {
        self.map_is_due.load(Ordering::Relaxed) || self.area_is_due.load(Ordering::Relaxed)
    }

    /// Gives the process of `tid` memory for stubs, if that is due. The thread waits in a call, which is answered next. If this returns true, the thread stops behind the
    /// call and maps the memory.
    pub fn offer_stubs(&self, monitor: &Arc<Monitor>, tid: i32) -> bool {
        let Some(constants) = &self.constants else {
            return false;
        };
        if !self.stubs_are_due.load(Ordering::Relaxed) {
            return false;
        }
        self.stubs_are_due.store(false, Ordering::Relaxed);
        let thread = self.thread(tid).filter(|thread| !thread.is_guest);
        let at = thread.and_then(|thread| thread.space.takes_stub_memory(constants, tid));
        at.is_some_and(|at| request(monitor, tid, map_stubs(monitor, at)))
    }

    /// Gives the process of `tid` the map of attributes, or an area for writes, if one is due. The thread waits in call `id`, which is answered next, and
    /// returns to its program when it has mapped the memory.
    pub fn offer_memory(&self, monitor: &Arc<Monitor>, listener: &Listener, tid: i32, id: u64) {
        let Some(constants) = &self.constants else {
            return;
        };
        if self.area_is_due.load(Ordering::Relaxed) {
            return self.offer_area(monitor, listener, tid, id);
        }
        if !self.map_is_due.load(Ordering::Relaxed) {
            return;
        }
        self.map_is_due.store(false, Ordering::Relaxed);
        let takes = |thread: Arc<Thread>| !thread.is_guest && thread.space.takes_map(constants);
        if !self.thread(tid).is_some_and(takes) {
            return;
        }
        let caller = monitor.tasks.get(tid).and_then(|task| task.caller());
        let is_usual = caller.is_ok_and(|caller| caller.user_ns.is_none());
        // Paths from another root directory do not lead to the mounts.
        if !is_usual
            || monitor.participants.current(tid).is_some()
            || monitor.roots.may_have_left(tid)
        {
            return;
        }
        let shared = self.shared.get_or_init(|| {
            let made = RunMap::of(&monitor.mounts.current()).map(Arc::new);
            if let Some(made) = &made {
                monitor.shadows.share_attributes(made);
            }
            made
        });
        let Some(shared) = shared else { return };
        self.cover(0);
        let (of, run) = (Arc::clone(monitor), shared.run());
        let mount = shared.mount.as_ref();
        let mount = mount.map_or(0, |mount| monitor.mounts.current().id(mount));
        let mapped = Box::new(move |tid, address| {
            let inside = &of.in_process;
            if let (Some(constants), Some(space)) = (&inside.constants, inside.space(tid)) {
                space.mapped(constants, tid, [address, run, mount]);
            }
        });
        let memory = map::Memory {
            // The area for writes is mapped behind the map later. A mapping at an address that the kernel chooses could fill a hole in which
            // the program expects EFAULT.
            len: stub::map::LEN + stub::writes::LEN,
            access: libc::PROT_READ | libc::PROT_EXEC,
            at: None,
            is_private: false,
        };
        let file = shared.map().file();
        install(monitor, (listener, tid, id), (file, memory), mapped);
    }
}

/// Maps memory for stubs at this address.
pub(super) fn map_stubs(monitor: &Arc<Monitor>, at: u64) -> map::MapMemory {
    let of = Arc::clone(monitor);
    let mapped = Box::new(move |tid, address| {
        let inside = &of.in_process;
        if let (Some(constants), Some(space)) = (&inside.constants, inside.space(tid)) {
            space.has_stub_memory(constants, tid, address);
        }
    });
    let memory = map::Memory {
        len: STUB_MEMORY_LEN as usize,
        access: libc::PROT_READ | libc::PROT_EXEC,
        at: Some((at, libc::MAP_FIXED_NOREPLACE)),
        is_private: false,
    };
    map::MapMemory::of_zeros(memory, mapped)
}

/// Has thread `tid`, which waits in call `id`, map `memory` from `file` before it returns to its program.
fn install(
    monitor: &Monitor,
    (listener, tid, id): (&Listener, i32, u64),
    (file, memory): (BorrowedFd<'_>, map::Memory),
    mapped: map::Mapped,
) {
    let number = map::Number::default();
    let script = map::MapMemory::new(Arc::clone(&number), memory, mapped);
    if request(monitor, tid, script)
        && let Ok(installed) = listener.install_keep(id, file, true, None)
    {
        let _ = number.set(installed);
    }
}

/// Whether thread `tid`, which waits in a call, will run `script` when that has its answer.
fn request(monitor: &Monitor, tid: i32, script: map::MapMemory) -> bool {
    let accepted = Arc::new(AtomicBool::new(false));
    let request = MapRequest {
        tid,
        script,
        accepted: Arc::clone(&accepted),
    };
    monitor.mailbox.post(Message::MapMemory(Box::new(request)));
    accepted.load(Ordering::Acquire)
}
