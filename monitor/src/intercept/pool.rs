//! The pool that answers notifications: any thread may take any call, one at a time receives (`receiver`).

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use goanna_affinity::KeptThread;
use goanna_sys::cred;
use goanna_sys::notify::{Listener, Notification, Ready, Reply};
use goanna_sys::restarts::{ERESTARTNOINTR, ERESTARTSYS};
use goanna_sys::stub::opens;
use goanna_vfs::{Errno, FsError, Result};
use nix::sys::signal::SigSet;

use crate::call::{Answer, Call, Work};
use crate::intercept::receiver::{ReceiverSlots, Ticket};
use crate::intercept::waiting::{Rejoined, Waiting};
use crate::participants::profile::profiled;
use crate::ptracer::mailbox::{Message, Park};
use crate::ptracer::restart::is_interruptible;
use crate::table::entry;
use crate::{Monitor, defect};

/// Threads that are kept for the next call that takes long.
const STANDBYS_MAX: usize = 7;

/// What the threads of the pool share.
struct Pool {
    monitor: Arc<Monitor>,
    listener: Arc<Listener>,
    receivers: ReceiverSlots,
}

/// Starts answering. The threads end when no tracee is left.
pub fn start(monitor: &Arc<Monitor>, listener: Listener) -> std::io::Result<()> {
    let pool = Arc::new(Pool {
        monitor: Arc::clone(monitor),
        listener: Arc::new(listener),
        receivers: ReceiverSlots::default(),
    });
    // The receiver, and one to take its slot.
    add(&pool)?;
    add(&pool)
}

fn add(pool: &Arc<Pool>) -> std::io::Result<()> {
    let pool = Arc::clone(pool);
    let thread = thread::Builder::new().name("answer".into());
    thread.spawn(move || serve(&pool)).map(drop)
}

/// Answers calls. However many of them wait for something, a thread is left for the next one: a thread that receives while no other
/// one is idle starts another thread. There are as many at most as threads of tracees whose calls are being answered.
fn serve(pool: &Arc<Pool>) {
    // A signal between a descriptor's installation and its report would leave the tracee without its number.
    let _ = SigSet::all().thread_block();
    // Without an fs_struct of its own a thread cannot take on a tracee's umask; only calls performed with one
    // would notice, and those say so themselves.
    let _ = cred::thread_owns_fs();
    while let Some(ticket) = pool.receivers.take() {
        if pool.receivers.standbys() == 0 {
            // Without another one the calls behind a slow one wait for it.
            let _ = add(pool);
        }
        if !receive(pool, ticket) {
            pool.receivers.close();
        }
        if pool.receivers.standbys() >= STANDBYS_MAX {
            return;
        }
    }
}

/// Answers calls as long as the slot is ours; false when none will come any more.
fn receive(pool: &Pool, ticket: Ticket) -> bool {
    loop {
        let notification = match pool.listener.recv() {
            Ok(notification) => notification,
            // The tracee died before its call was taken, or no tracee is left.
            Err(Errno::ENOENT | Errno::EINTR) => match pool.listener.wait_readable(0) {
                Ok(Ready::HangUp) | Err(_) => return false,
                Ok(_) => continue,
            },
            Err(_) => return false,
        };
        let contended = pool.receivers.begin(ticket, notification.tid);
        let call = (notification.nr as u32, notification.tid);
        let answered = defect::guarded(&pool.monitor, call, || {
            answer(pool, contended, &notification);
            Ok(())
        });
        if answered.is_err() {
            // Unless it was answered before the panic.
            let _ = pool
                .listener
                .reply(notification.id, Reply::Error(Errno::EIO));
        }
        if !pool.receivers.end(ticket) {
            return true;
        }
    }
}

fn answer(pool: &Pool, contended: bool, notification: &Notification) {
    let (monitor, listener) = (&pool.monitor, &pool.listener);
    let nr = notification.nr as u32;
    let call = (nr, notification.args);
    defect::panic_if_asked(nr);
    monitor.in_process.settle_opens(notification);
    let outcome = match monitor.waiting.rejoin(notification.tid, call) {
        Some(Rejoined::Answered(outcome)) => outcome,
        Some(Rejoined::Waits(waiting)) => return park(monitor, listener, notification, waiting),
        None => treat(monitor, listener, notification),
    };
    if monitor
        .in_process
        .must_restart_at_site(notification, &outcome)
    {
        // It fails where the caller has died.
        let _ = listener.reply(notification.id, Reply::Value(opens::AT_SITE));
        return;
    }
    let (tid, id) = (notification.tid, notification.id);
    let is_passed_on = matches!(outcome, Ok(Answer::PassOn));
    let takes_stubs = (is_passed_on || matches!(outcome, Ok(Answer::Value(_))))
        && monitor.in_process.offer_stubs(monitor, tid);
    // The thread is not to be stopped in the kernel's call. So it begins that again afterwards.
    if takes_stubs && is_passed_on {
        let _ = listener.reply(id, Reply::Value(ERESTARTNOINTR));
        return;
    }
    monitor.observers.handled(nr, &outcome);
    monitor
        .in_process
        .watch_mount_points(monitor, notification.tid);
    let may_map = matches!(
        outcome,
        Ok(Answer::Value(_)) | Err(FsError::Errno(Errno::ENOENT))
    );
    // One script at a time.
    if may_map && !takes_stubs {
        monitor.in_process.offer_memory(monitor, listener, tid, id);
    }
    let outcome = monitor
        .in_process
        .delegate_open(monitor, notification, outcome);
    let installs = matches!(outcome, Ok(Answer::Install { .. }));
    // If other tracees need this CPU, too, the kernel should choose another one.
    let spread = contended && !installs && listener.set_sync_wake_up(false).is_ok();
    // Where they do, no CPU is idle.
    let one_cpu = (installs && !contended)
        .then(|| KeptThread::enter(notification.tid))
        .flatten();
    reply(monitor, listener, notification, outcome, one_cpu);
    if spread {
        let _ = listener.set_sync_wake_up(true);
    }
}

/// The verdict on a call, which may have to wait first.
fn treat(
    monitor: &Arc<Monitor>,
    listener: &Arc<Listener>,
    notification: &Notification,
) -> Result<Answer> {
    let outcome = attempt(monitor, listener, notification, false);
    let outcome = monitor.report_shortage(outcome);
    let lock = match outcome {
        Err(FsError::Blocked(lock)) => Some(lock),
        Ok(Answer::Wait) => None,
        outcome => return outcome,
    };
    let (again, listener, notification) =
        (Arc::clone(monitor), Arc::clone(listener), *notification);
    let attempt = move || attempt(&again, &listener, &notification, true);
    Ok(Answer::Block(Work {
        lock,
        attempt: Box::new(attempt),
    }))
}

/// The handler's verdict. EIO where it panics: the effects of the call so far are counted and reported as of any call.
fn attempt(
    monitor: &Monitor,
    listener: &Arc<Listener>,
    notification: &Notification,
    may_wait: bool,
) -> Result<Answer> {
    let nr = notification.nr as u32;
    let Some(handler) = entry(nr).and_then(|entry| entry.rule.handler()) else {
        return Err(Errno::ENOSYS.into());
    };
    // Entered before the task is looked up: the supervisor forgets the task of a dead tracee before it looks here.
    let _in_flight = monitor.in_flight.enter(notification.tid);
    let alive = || listener.still_valid(notification.id);
    let task = monitor.tasks.get_if(notification.tid, alive)?;
    let mut call = Call::new(monitor, Arc::clone(&task), nr, notification.args);
    call.notification = Some((Arc::clone(listener), notification.id));
    call.may_wait = may_wait;
    if !may_wait {
        call.opens_itself = monitor.in_process.opens_itself(notification);
        monitor.in_process.observe(&call, notification.ip);
    }
    let outcome = defect::guarded(monitor, (nr, notification.tid), || {
        let answer = |call: &mut Call<'_>| profiled::answer(call, handler);
        monitor.outside.observe(&mut call, answer)
    });
    let waits = may_wait
        || matches!(
            outcome,
            Ok(Answer::PassOn | Answer::Watched(_) | Answer::Wait | Answer::Block(_))
        );
    if is_interruptible(nr) {
        task.record_waiting_call(waits.then_some((nr, notification.args)));
    }
    outcome
}

/// Sends the answer. A reply fails if the tracee has died.
fn reply(
    monitor: &Arc<Monitor>,
    listener: &Arc<Listener>,
    notification: &Notification,
    outcome: Result<Answer>,
    one_cpu: Option<KeptThread>,
) {
    let id = notification.id;
    let result = match outcome {
        Ok(Answer::Value(value)) => listener.reply(id, Reply::Value(value)),
        Ok(Answer::PassOn) => listener.reply(id, Reply::Continue),
        Ok(Answer::Watched(path)) => {
            let message = Message::ReportResult(notification.tid, path);
            monitor.mailbox.post(message);
            listener.reply(id, Reply::Continue)
        }
        Ok(Answer::Install {
            description,
            cloexec,
            counts,
            delivery,
        }) => {
            let installing = monitor.installs.enter(notification.tid);
            let is_kept = counts || one_cpu.is_some() || monitor.in_process.memory_is_due();
            let install = || {
                let fd = description.fd()?.as_fd();
                if is_kept {
                    listener.install_keep(id, fd, cloexec, None)
                } else {
                    listener.install(id, fd, cloexec)
                }
            };
            let installed = install();
            // The object counts as open until the thread has its descriptor.
            drop(description);
            // The supervisor waits for this at an exec, and may be needed below.
            drop(installing);
            let installed = installed.and_then(|number| {
                if !is_kept {
                    return Ok(());
                }
                drop(one_cpu);
                // The descriptor of the memory must not take the number that the program expects.
                let tid = notification.tid;
                monitor.in_process.offer_memory(monitor, listener, tid, id);
                listener.reply(id, Reply::Value(number.into()))
            });
            drop(delivery);
            installed.or_else(|errno| listener.reply(id, Reply::Error(errno)))
        }
        // Never an answer to a notification.
        Ok(
            Answer::OpenHost { .. }
            | Answer::Receive { .. }
            | Answer::OpenItself { .. }
            | Answer::MapCopy(_)
            | Answer::WithArguments(_)
            | Answer::Wait
            | Answer::Readable(_),
        ) => listener.reply(id, Reply::Error(Errno::EIO)),
        Ok(Answer::Restart) | Err(FsError::Blocked(_)) => {
            restart(monitor, listener, notification, ERESTARTNOINTR)
        }
        Ok(Answer::Interrupted) => restart(monitor, listener, notification, ERESTARTSYS),
        Ok(Answer::Block(work)) => wait_for(monitor, listener, notification, work)
            .or_else(|errno| listener.reply(id, Reply::Error(errno))),
        Err(FsError::Errno(errno)) => listener.reply(id, Reply::Error(errno)),
    };
    debug_assert!(
        matches!(result, Ok(()) | Err(Errno::ENOENT | Errno::EINPROGRESS)),
        "{result:?}"
    );
}

/// Makes the call return `result`, one of the kernel's own results by which it restarts calls. The kernel looks for them only
/// where the thread has a signal or a ptrace stop before it; otherwise the program would see the number. The pending signal that
/// ended our wait may be the process's, and another thread may take it. So there is a ptrace stop first.
fn restart(
    monitor: &Monitor,
    listener: &Listener,
    notification: &Notification,
    result: i64,
) -> Result<(), Errno> {
    monitor.mailbox.post(Message::Interrupt(notification.tid));
    listener.reply(notification.id, Reply::Value(result))
}

/// Replies with what `work` answers, or parks the caller when that takes long. EAGAIN where no thread can be started.
fn wait_for(
    monitor: &Arc<Monitor>,
    listener: &Arc<Listener>,
    notification: &Notification,
    work: Work,
) -> Result<(), Errno> {
    let tid = notification.tid;
    let call = (notification.nr as u32, notification.args);
    let (shared, replier, notification) =
        (Arc::clone(monitor), Arc::clone(listener), *notification);
    let deliver = move |waiting, outcome| match outcome {
        Some(outcome) => reply(&shared, &replier, &notification, outcome, None),
        None => park(&shared, &replier, &notification, waiting),
    };
    let deliver = Box::new(deliver);
    monitor.waiting.begin(monitor, tid, call, work, deliver)
}

/// Makes the caller leave its call, whose answer is being worked out, and has the supervisor park it.
fn park(
    monitor: &Monitor,
    listener: &Listener,
    notification: &Notification,
    waiting: Arc<Waiting>,
) {
    let at_stop = None;
    let park = Park { waiting, at_stop };
    monitor.mailbox.post(Message::Park(Box::new(park)));
    // It fails where the caller has died.
    let _ = listener.reply(notification.id, Reply::Value(ERESTARTNOINTR));
}
