//! The pool that answers notifications: any thread may take any call, one at a time receives (`baton`).

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use goanna_sys::cred;
use goanna_sys::interrupt::{Waiter, is_interrupted};
use goanna_sys::notify::{Listener, Notification, Ready, Reply};
use goanna_vfs::{Errno, LOCKED, Result};
use nix::sys::signal::SigSet;

use crate::baton::{Baton, Ticket};
use crate::call::{Answer, Call};
use crate::restart::is_interruptible;
use crate::table::entry;
use crate::vigil::Vigil;
use crate::{Monitor, locked, profiled};

/// How many calls may take long at the same time before further ones wait for them.
const THREADS: usize = 8;

/// Starts answering. The threads end when no tracee is left.
pub fn start(monitor: &Arc<Monitor>, listener: Listener) -> std::io::Result<()> {
    let listener = Arc::new(listener);
    let baton = Arc::new(Baton::default());
    let vigil = Arc::new(Vigil::start()?);
    for index in 0..THREADS {
        let monitor = Arc::clone(monitor);
        let listener = Arc::clone(&listener);
        let baton = Arc::clone(&baton);
        let vigil = Arc::clone(&vigil);
        thread::Builder::new()
            .name(format!("answer-{index}"))
            .spawn(move || serve(&monitor, &listener, &baton, &vigil))?;
    }
    Ok(())
}

fn serve(monitor: &Arc<Monitor>, listener: &Arc<Listener>, baton: &Baton, vigil: &Vigil) {
    // A signal between a descriptor's installation and its report would leave the tracee without its number.
    let _ = SigSet::all().thread_block();
    // Without an fs_struct of its own a thread cannot take on a tracee's umask; only calls performed with one
    // would notice, and those say so themselves.
    let _ = cred::thread_owns_fs();
    loop {
        let ticket = baton.take();
        if !receive(monitor, listener, baton, vigil, ticket) {
            // The others must learn it, too.
            baton.pass(ticket);
            return;
        }
    }
}

/// Answers calls as long as the baton is ours; false when none will come any more.
fn receive(
    monitor: &Arc<Monitor>,
    listener: &Arc<Listener>,
    baton: &Baton,
    vigil: &Vigil,
    ticket: Ticket,
) -> bool {
    loop {
        let notification = match listener.recv() {
            Ok(notification) => notification,
            // The tracee died before its call was taken, or no tracee is left.
            Err(Errno::ENOENT | Errno::EINTR) => match listener.wait_readable(0) {
                Ok(Ready::HangUp) | Err(_) => return false,
                Ok(_) => continue,
            },
            Err(_) => return false,
        };
        let crowded = baton.begin(ticket, notification.tid);
        answer(monitor, listener, vigil, crowded, &notification);
        if !baton.end(ticket) {
            return true;
        }
    }
}

fn answer(
    monitor: &Arc<Monitor>,
    listener: &Arc<Listener>,
    vigil: &Vigil,
    crowded: bool,
    notification: &Notification,
) {
    let nr = notification.nr as u32;
    let outcome = treat(monitor, listener, notification);
    monitor.stats.count(nr, &outcome);
    let installs = matches!(outcome, Ok(Answer::Install { .. }));
    if installs && !crowded {
        vigil.keep();
    }
    // Where other tracees want this CPU, too, the kernel is to look for another one.
    let spread = crowded && !installs && listener.set_sync_wake_up(false).is_ok();
    let installing = installs.then(|| monitor.installs.enter(notification.tid));
    reply(listener, notification, outcome);
    drop(installing);
    if spread {
        let _ = listener.set_sync_wake_up(true);
    }
}

/// The verdict on a call, which may have to wait for a lock first.
fn treat(
    monitor: &Arc<Monitor>,
    listener: &Arc<Listener>,
    notification: &Notification,
) -> Result<Answer> {
    let outcome = attempt(monitor, listener, notification);
    if outcome.as_ref().is_err_and(|errno| *errno == LOCKED) {
        let (monitor, listener) = (Arc::clone(monitor), Arc::clone(listener));
        let notification = *notification;
        return Ok(Answer::Block(Box::new(move || {
            let again = || attempt(&monitor, &listener, &notification);
            locked::until_free(&monitor, notification.tid, again)
        })));
    }
    outcome
}

/// The handler's verdict. A defect in one handler must not take the tracees down with it: EIO.
fn attempt(
    monitor: &Monitor,
    listener: &Arc<Listener>,
    notification: &Notification,
) -> Result<Answer> {
    let nr = notification.nr as u32;
    let Some(handler) = entry(nr).and_then(|entry| entry.rule.handler()) else {
        return Err(Errno::ENOSYS);
    };
    // Entered before the task is looked up: the supervisor forgets the task of a dead tracee before it looks here.
    let _in_flight = monitor.in_flight.enter(notification.tid);
    let alive = || listener.still_valid(notification.id);
    let task = monitor.tasks.get_if(notification.tid, alive)?;
    let mut call = Call::new(monitor, Arc::clone(&task), nr, notification.args);
    call.notification = Some((Arc::clone(listener), notification.id));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        profiled::answer(&mut call, handler).and_then(|answer| monitor.outside.judge(&call, answer))
    }))
    .unwrap_or(Err(Errno::EIO));
    let waits = matches!(outcome, Ok(Answer::PassOn | Answer::Block(_)));
    if is_interruptible(nr) {
        task.note_left_to_wait(waits.then_some((nr, notification.args)));
    }
    outcome
}

/// A reply that fails finds its tracee dead.
fn reply(listener: &Arc<Listener>, notification: &Notification, outcome: Result<Answer>) {
    let id = notification.id;
    let result = match outcome {
        Ok(Answer::Value(value)) => listener.reply(id, Reply::Value(value)),
        Ok(Answer::PassOn) => listener.reply(id, Reply::Continue),
        Ok(Answer::Install {
            fd,
            cloexec,
            counts,
        }) => {
            let installed = if counts {
                let number = listener.install_keep(id, fd.as_fd(), cloexec, None);
                drop(fd);
                number.and_then(|number| listener.reply(id, Reply::Value(number.into())))
            } else {
                listener.install(id, fd.as_fd(), cloexec).map(drop)
            };
            installed.or_else(|errno| listener.reply(id, Reply::Error(errno)))
        }
        // Never an answer to a notification.
        Ok(Answer::OpenHost { .. } | Answer::MapCopy(_)) => {
            listener.reply(id, Reply::Error(Errno::EIO))
        }
        Ok(Answer::Again) => listener.reply(id, Reply::Value(-ERESTARTNOINTR)),
        Ok(Answer::Block(work)) => {
            let (replier, notification) = (Arc::clone(listener), *notification);
            let spawned = thread::Builder::new()
                .name("blocking".into())
                .spawn(move || wait_for(&replier, &notification, work));
            match spawned {
                Ok(_) => Ok(()),
                Err(_) => listener.reply(id, Reply::Error(Errno::EAGAIN)),
            }
        }
        Err(errno) => listener.reply(id, Reply::Error(errno)),
    };
    debug_assert!(
        matches!(result, Ok(()) | Err(Errno::ENOENT | Errno::EINPROGRESS)),
        "{result:?}"
    );
}

/// How often a call that waits looks whether its tracee still does.
const LOOK: Duration = Duration::from_millis(10);
/// What the kernel's own calls answer when a signal ends their wait: it restarts the call or makes it EINTR, as the
/// signal's handler was installed.
const ERESTARTSYS: i64 = 512;
/// As `ERESTARTSYS`, and never EINTR: what natively does not wait, or not so that a signal could end it.
const ERESTARTNOINTR: i64 = 513;

/// Lets `work` wait on a thread of its own until it has an answer, or the tracee has a signal or is gone.
fn wait_for(
    listener: &Arc<Listener>,
    notification: &Notification,
    work: Box<dyn FnOnce() -> Result<Answer> + Send>,
) {
    let _ = SigSet::all().thread_block();
    let (started, waiter) = channel();
    let (done, outcome) = channel();
    let spawned = thread::Builder::new()
        .name("waiting".into())
        .spawn(move || {
            let _ = cred::thread_owns_fs();
            let _ = started.send(Waiter::this_thread());
            let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno::EIO));
            let _ = done.send(outcome);
        });
    let (Ok(_), Ok(Ok(waiter))) = (spawned, waiter.recv()) else {
        return reply(listener, notification, Err(Errno::EAGAIN));
    };
    let mut cancelled = false;
    loop {
        match outcome.recv_timeout(LOOK) {
            Ok(Err(Errno::EINTR)) if cancelled => {
                return reply(listener, notification, Ok(Answer::Value(-ERESTARTSYS)));
            }
            Ok(outcome) => return reply(listener, notification, outcome),
            Err(RecvTimeoutError::Disconnected) => {
                return reply(listener, notification, Err(Errno::EIO));
            }
            Err(RecvTimeoutError::Timeout) => {
                cancelled |= is_interrupted(notification.tid).unwrap_or(true)
                    || !listener.still_valid(notification.id);
                if cancelled {
                    let _ = waiter.poke();
                }
            }
        }
    }
}
