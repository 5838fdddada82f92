//! Takes a thread out of a stub when a signal is about to be delivered to it: its registers become those of the library's own
//! code, before the call or after it. So handlers, unwinders and siglongjmp(3) never see a stub, and no handler runs
//! between a stub's check and its call.

use goanna_callsites::{Form, Moves, Placed, Site};
use goanna_sys::arch::{self, NO_CALL};
use goanna_sys::restarts::is_restart;
use goanna_sys::stub::{self, NO_SYMLINKS, frame, kind, opens};
use goanna_sys::{pidfd, procfs, tracee};
use goanna_vfs::Errno;
use libc::user_regs_struct as Registers;
use nix::unistd::{self, Whence};

use super::{InProcess, Thread};

/// Where a thread was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StubPosition {
    /// In a stub, and it has not made the call.
    Before,
    /// In a call that it made natively, or behind that.
    After,
    /// In a call that notifies.
    Notified,
}

impl InProcess {
    /// Changes the registers of a thread at the stop for the delivery of `signal`, if it is in a stub.
    pub fn leave(&self, tid: i32, signal: i32, regs: &mut arch::Registers) -> Option<StubPosition> {
        let regs = regs.user_mut();
        self.constants.as_ref()?;
        // The kernel has refused the call, and put its number back into rax.
        let is_refused = signal == libc::SIGSYS;
        let at = regs.rip;
        let left = |placed: &Placed| leave(placed, tid, is_refused, regs).ok().flatten();
        let thread = self.thread(tid)?;
        if let Some(left) = thread.space.library(at, left) {
            return left;
        }
        leave_map(&thread, tid, is_refused, regs)
    }
}

/// As [`leave`], of a thread in the code of the map of attributes, which has a frame. The only calls with an effect there are those of writes, opens and lists.
fn leave_map(
    thread: &Thread,
    tid: i32,
    is_refused: bool,
    regs: &mut Registers,
) -> Option<StubPosition> {
    let space = &thread.space;
    let offset = space.offset_in_map(regs.rip)?;
    let frame = Frame::read(tid, regs).ok()?;
    let (base, site) = space.site_returning_to(frame.ret)?;
    let site = site.called(frame.nr, frame.kind);
    let open = stub::open_layout();
    if (open.shared..open.closed).contains(&offset) {
        let opened = if offset < open.unshared {
            regs.rax
        } else {
            regs.rdi
        };
        let is_refused = is_refused && offset == open.shared;
        let fd = i32::try_from(opened.cast_signed()).ok();
        let fd = fd.filter(|fd| *fd >= 0 && !is_refused);
        // The stub makes the same comparison.
        let kept = |at: u64| tracee::read_word(tid, regs.rsp.wrapping_add(at));
        let by = kept(frame::OPENED_BY).and_then(|by| tracee::read_word(tid, by));
        let is_confirmed = offset < open.unshared && by.is_ok() && by == kept(frame::OPENED_BY + 8);
        return Some(leave_shared(
            tid,
            &frame,
            (base, site),
            (fd, is_confirmed),
            regs,
        ));
    }
    if (open.asked..open.end).contains(&offset) {
        return Some(leave_open(
            thread,
            &frame,
            (base, site),
            (offset, is_refused),
            regs,
        ));
    }
    let list = stub::list_layout();
    if (list.moved..list.undone).contains(&offset) {
        return leave_list(tid, &frame, (base, site), (offset, is_refused), regs);
    }
    let write = stub::write_layout();
    let is_at_call = offset == write.made;
    let is_made = (write.made..write.end).contains(&offset) && !(is_refused && is_at_call);
    let kept = |at: u64| tracee::read_word(tid, regs.rsp.wrapping_add(at));
    let result = if is_made && offset >= write.kept {
        kept(frame::RESULT).ok()?
    } else {
        regs.rax
    };
    let has_moved = is_made && i64::from(site.nr) == libc::SYS_write && result.cast_signed() > 0;
    let lost = if has_moved {
        let (from, object) = (kept(frame::WROTE_FROM).ok()?, kept(frame::OBJECT).ok()?);
        // The stub makes the same comparison.
        let at = procfs::description_offset(tid, frame.rdi as i32);
        (at != Ok(from.wrapping_add(result))).then_some(object)
    } else {
        None
    };
    frame.put_back(regs, true);
    space.leaves_write(lost);
    if !is_made {
        return Some(before(regs, base, &site));
    }
    regs.rip = frame.ret;
    regs.rax = result;
    if regs.orig_rax != NO_CALL {
        regs.orig_rax = if is_at_call { site.nr.into() } else { NO_CALL };
    }
    Some(StubPosition::After)
}

/// As [`leave_map`], of a thread that has opened a shared file. The stub checks the descriptor by the map; this function compares it with the object itself.
fn leave_shared(
    tid: i32,
    frame: &Frame,
    (base, site): (u64, Site),
    (fd, is_confirmed): (Option<i32>, bool),
    regs: &mut Registers,
) -> StubPosition {
    let object = tracee::read_word(tid, regs.rsp.wrapping_add(frame::OPENED));
    let is_object = |fd: &i32| {
        let identity = procfs::fd_identity(tid, *fd);
        identity.is_ok_and(|(_, ino)| object == Ok(ino))
    };
    let opened = fd.filter(|fd| is_confirmed || object == Ok(0) || is_object(fd));
    frame.put_back(regs, true);
    // A file of the host may have a lease.
    let is_wait = regs.orig_rax != NO_CALL && is_restart(regs.rax.cast_signed());
    if let Some(fd) = opened {
        regs.rax = u64::from(fd.unsigned_abs());
    } else if !is_wait {
        return before(regs, base, &site);
    }
    regs.rip = frame.ret;
    if regs.orig_rax != NO_CALL {
        regs.orig_rax = site.nr.into();
    }
    StubPosition::After
}

/// As [`leave_map`], of a thread that has moved the position of a directory behind entries that it has copied. If another thread had moved it meanwhile,
/// it is moved back, as the stub would do. That remains undone where pidfd_getfd(2) is refused.
fn leave_list(
    tid: i32,
    frame: &Frame,
    (base, site): (u64, Site),
    (offset, is_refused): (usize, bool),
    regs: &mut Registers,
) -> Option<StubPosition> {
    let list = stub::list_layout();
    // A filter of the program's own may have refused the call.
    let is_moved = !(is_refused && offset == list.moved) && regs.rax.cast_signed() >= 0;
    let is_alone = offset != list.moved || regs.rax == regs.r10;
    if is_moved && is_alone && offset < list.end {
        let listed = tracee::read_word(tid, regs.rsp.wrapping_add(frame::LISTED)).ok()?;
        frame.put_back(regs, true);
        regs.rip = frame.ret;
        regs.rax = listed;
        regs.orig_rax = NO_CALL;
        return Some(StubPosition::After);
    }
    if is_moved {
        let back = regs.r10.cast_signed().wrapping_neg();
        let _ = pidfd::copy(tid, frame.rdi as i32)
            .and_then(|ofd| unistd::lseek(ofd, back, Whence::SeekCur));
    }
    frame.put_back(regs, true);
    Some(before(regs, base, &site))
}

/// As [`leave_map`], of a thread behind the first call of an open.
fn leave_open(
    thread: &Thread,
    frame: &Frame,
    (base, site): (u64, Site),
    (offset, is_refused): (usize, bool),
    regs: &mut Registers,
) -> StubPosition {
    let open = stub::open_layout();
    let result = regs.rax.cast_signed();
    let notifies = offset == open.asked || offset == open.failed;
    let is_refused = is_refused && (notifies || offset == open.made);
    let is_over = !is_refused
        && if offset < open.answered {
            !opens::is_of_monitor(result)
        } else {
            // A second notification that is interrupted resumes the open at the site.
            offset >= open.failed && !is_restart(result)
                || (open.made..open.resumed).contains(&offset) && result >= 0
        };
    // A wait in its own open, such as that for the end of a lease, ends as that of the call at the site would: the kernel restarts it there, or makes it EINTR.
    let is_wait = offset == open.made && regs.orig_rax != NO_CALL && is_restart(result);
    frame.put_back(regs, true);
    if !is_over {
        thread.opens.interrupt(regs.rsp);
        if !is_wait {
            return before(regs, base, &site);
        }
    }
    regs.rip = frame.ret;
    if regs.orig_rax == NO_CALL {
        return StubPosition::After;
    }
    regs.orig_rax = site.nr.into();
    if notifies {
        StubPosition::Notified
    } else {
        StubPosition::After
    }
}

/// What the frame keeps.
struct Frame {
    nr: u32,
    kind: u32,
    ret: u64,
    r9: u64,
    rdi: u64,
    rsi: u64,
    rdx: u64,
    r10: u64,
}

impl Frame {
    fn read(tid: i32, regs: &Registers) -> Result<Self, Errno> {
        let word = |at: u64| tracee::read_word(tid, regs.rsp.wrapping_add(at));
        Ok(Self {
            nr: word(frame::NR)? as u32,
            kind: word(frame::KIND)? as u32,
            ret: word(frame::RET)?,
            r9: word(frame::REGISTERS)?,
            rdi: word(frame::REGISTERS + 8)?,
            rsi: word(frame::REGISTERS + 16)?,
            rdx: word(frame::REGISTERS + 24)?,
            r10: word(frame::REGISTERS + 32)?,
        })
    }

    /// Puts back what the caller had.
    fn put_back(&self, regs: &mut Registers, with_arguments: bool) {
        regs.rsp = regs.rsp.wrapping_add(stub::FRAME);
        regs.r9 = self.r9;
        if with_arguments {
            regs.rdi = self.rdi;
            regs.rsi = self.rsi;
            regs.rdx = self.rdx;
            regs.r10 = self.r10;
        }
    }
}

/// Before the `syscall` of `site` of a library at `base`, which is then made.
fn before(regs: &mut Registers, base: u64, site: &Site) -> StubPosition {
    regs.rip = base + site.behind_call() - 2;
    regs.rax = site.nr.into();
    if site.form == Form::Directory {
        regs.rdi = u64::from(libc::AT_FDCWD.cast_unsigned());
    }
    regs.orig_rax = NO_CALL;
    StubPosition::Before
}

fn leave(
    placed: &Placed,
    tid: i32,
    is_refused: bool,
    regs: &mut Registers,
) -> Result<Option<StubPosition>, Errno> {
    let offset = (regs.rip - placed.start()) as usize;
    let layout = stub::layout();
    if offset >= placed.common() {
        return leave_site(placed, tid, regs, offset - placed.common());
    }
    // The frame is gone, and r11 says where the thread is going.
    let dispatch = stub::dispatch_layout();
    if [layout.slow_jump, layout.done_jump, dispatch.other_jump].contains(&offset) {
        let made = offset == layout.done_jump;
        let behind = if made { 0 } else { 2 };
        let Some(site) = placed.site_returning_to(regs.r11.wrapping_add(behind)) else {
            return Ok(None);
        };
        if !made {
            let site = site.called(regs.rax as u32, 0);
            return Ok(Some(before(regs, placed.base, &site)));
        }
        regs.rip = regs.r11;
        regs.orig_rax = NO_CALL;
        return Ok(Some(StubPosition::After));
    }
    let is_dispatch = (dispatch.start..dispatch.kinds).contains(&offset);
    if offset >= layout.data && !is_dispatch {
        return Ok(None);
    }
    let frame = Frame::read(tid, regs)?;
    // What the program itself has written over its stack is its own affair.
    let Some(site) = placed.site_returning_to(frame.ret) else {
        return Ok(None);
    };
    let site = site.called(frame.nr, frame.kind);
    if is_dispatch {
        frame.put_back(regs, false);
        return Ok(Some(before(regs, placed.base, &site)));
    }
    let result = regs.rax.cast_signed();
    let is_interrupted =
        offset == layout.final_call && regs.orig_rax != NO_CALL && is_restart(result);
    let is_at_final = offset == layout.final_call;
    let has_met_link = site.kind & kind::OPEN != 0
        && tracee::read_word(tid, regs.rsp.wrapping_add(frame::RESOLVE))? != NO_SYMLINKS;
    let is_made = offset >= layout.done
        || offset >= layout.final_call
            && !(is_refused && is_at_final)
            && (is_interrupted || keeps(&site, result, has_met_link));
    frame.put_back(regs, offset >= layout.saved);
    if !is_made {
        return Ok(Some(before(regs, placed.base, &site)));
    }
    regs.rip = frame.ret;
    // In the call itself: with its number, the kernel restarts it at the site, or makes it EINTR.
    if regs.orig_rax != NO_CALL {
        regs.orig_rax = if offset == layout.final_call {
            site.nr.into()
        } else {
            NO_CALL
        };
    }
    Ok(Some(StubPosition::After))
}

/// In the code of a site, before the common code.
fn leave_site(
    placed: &Placed,
    tid: i32,
    regs: &mut Registers,
    offset: usize,
) -> Result<Option<StubPosition>, Errno> {
    let size = stub::site().len();
    let Some(site) = placed.patched.get(offset / size).copied() else {
        return Ok(None);
    };
    let parts = stub::site_layout();
    let shared = stub::shared_site_layout();
    let (framed, saved) = match site.form {
        Form::Shared(_) | Form::Framed { .. } => (shared.framed, shared.saved),
        _ => (parts.framed, parts.saved),
    };
    let inside = offset % size;
    if inside >= saved {
        // The rest of the frame may be where the stack's memory ends.
        regs.r9 = tracee::read_word(tid, regs.rsp.wrapping_add(frame::REGISTERS))?;
    }
    if inside >= framed {
        regs.rsp = regs.rsp.wrapping_add(stub::FRAME);
    }
    move_word(tid, &site, regs)?;
    let site = site.called(regs.rax as u32, 0);
    Ok(Some(before(regs, placed.base, &site)))
}

/// Does what the first instruction of a shared site does, perhaps again.
fn move_word(tid: i32, site: &Site, regs: &mut Registers) -> Result<(), Errno> {
    let Some((moves, distance)) = site.form.moves() else {
        return Ok(());
    };
    let base = match moves {
        Moves::OfFrameToRax => regs.rbp,
        Moves::ToRax | Moves::ToR9 | Moves::FromR11 => regs.rsp,
    };
    let at = base.wrapping_add_signed(distance.into());
    match moves {
        Moves::ToRax | Moves::OfFrameToRax => regs.rax = tracee::read_word(tid, at)?,
        Moves::ToR9 => regs.r9 = tracee::read_word(tid, at)?,
        Moves::FromR11 => tracee::write_all(tid, at, &regs.r11.to_le_bytes())?,
    }
    Ok(())
}

/// Whether the stub keeps this result of the call itself. One that it does not keep has had no effect.
fn keeps(site: &Site, result: i64, has_met_link: bool) -> bool {
    use kind::{CWD, DESCRIPTOR, LIST, OPEN, REQUEST};
    let is_any = |errnos: &[i32]| errnos.iter().any(|errno| result == -i64::from(*errno));
    if site.kind & (DESCRIPTOR | CWD | REQUEST | LIST) != 0 {
        return true;
    }
    if site.kind & OPEN != 0 {
        return result >= 0
            || is_any(&[libc::EINTR])
            || !has_met_link && is_any(&[libc::ENOENT, libc::ENOTDIR, libc::EACCES]);
    }
    !is_any(&[libc::ENOENT, libc::ENOTDIR])
}
