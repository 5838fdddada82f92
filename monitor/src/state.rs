//! The state that all threads of a run share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use goanna_sys::limits;
use goanna_sys::procfs::DescriptorCount;
use goanna_vfs::walk::Root;
use goanna_vfs::{Caller, Errno, Mount, MountTable, Mounts};
use parking_lot::Mutex;

use crate::calls::mounting::hosted::Hosted;
use crate::calls::outgrow::RelocationRetries;
use crate::calls::socket::Names;
use crate::inprocess::{InProcess, Unused};
use crate::intercept::executor::Executor;
use crate::intercept::in_flight::InFlight;
use crate::intercept::waiting::WaitingCalls;
use crate::observe::Observers;
use crate::participants::delegate::DelegateLock;
use crate::participants::outside::{Outside, Policy};
use crate::participants::profile::profiled::Profiled;
use crate::participants::{Participants, run_end};
use crate::process::living::Alive;
use crate::process::namespaces::{Elsewhere, Namespaces};
use crate::process::nested_runs::NestedRuns;
use crate::process::roots::Roots;
use crate::process::task::{Task, Tasks};
use crate::ptracer::mailbox::Mailbox;
use crate::ptracer::pause::Pause;
use crate::ptracer::program::Programs;
use crate::ptracer::undisturbed::Sleeps;
use crate::reporter::Reporter;
use crate::run::config::{Config, Stubs};
use crate::shadow::Shadows;
use crate::shadow::run_directory::RunDir;
use crate::table::entry;
use crate::watches::Watches;

/// The state all threads of a run share.
#[derive(Debug)]
pub struct Monitor {
    /// The mount table, of the processes that are in no nested run.
    pub mounts: MountTable,
    /// The root directories of processes that have changed them.
    pub(crate) roots: Roots,
    /// The mount namespaces of processes.
    pub(crate) namespaces: Namespaces,
    /// The runs inside of this one.
    pub(crate) nested: NestedRuns,
    /// The mounts of the host that programs of the run have made in its mounts.
    pub(crate) hosted: Hosted,
    /// Known tracees.
    pub(crate) tasks: Tasks,
    /// Calls being answered.
    pub(crate) in_flight: InFlight,
    /// Descriptors being installed.
    pub(crate) installs: InFlight,
    pub(crate) descriptors: DescriptorCount,
    /// The transactions, and the threads that participate in them.
    pub(crate) participants: Participants,
    pub(crate) outside: Policy,
    /// Processes for which transactions are begun.
    pub(crate) profiled: Profiled,
    /// Shadow objects.
    pub(crate) shadows: Shadows,
    /// The inotify watches of tracees.
    pub(crate) watches: Arc<Watches>,
    /// Calls that are answered in the process.
    pub(crate) in_process: InProcess,
    /// The names that programs gave to their sockets.
    pub(crate) socket_names: Names,
    /// Programs executed from mounts.
    pub(crate) programs: Programs,
    /// Whether a file has been mapped shared and writable.
    pub(crate) mapped: AtomicBool,
    /// Whether a program has asked for a lease of a file of the host.
    pub(crate) leased: AtomicBool,
    /// Large files that stay in memory for now.
    pub(crate) relocation_retries: RelocationRetries,
    /// Held while a call moves data out of a pipe into a file. The locks of the back ends come after it.
    pub(crate) pipe_reader: Mutex<()>,
    /// The observers.
    pub(crate) observers: Observers,
    /// The messages to the supervisor.
    pub(crate) mailbox: Mailbox,
    /// The calls that wait.
    pub(crate) waiting: WaitingCalls,
    /// The threads that run attempts to answer these calls, and timers.
    pub(crate) executor: Executor,
    /// The threads that end with the run.
    pub(crate) alive: Alive,
    /// When the present sleeps of threads began for which a signal may follow.
    pub(crate) sleeps: Arc<Sleeps>,
    /// Closed when the run has ended.
    pub(crate) delegate_lock: DelegateLock,
    /// How the processes of the run end.
    pub(crate) run_end: run_end::RunEnd,
    /// Whether threads are stopped for a commit.
    pub(crate) pause: Pause,
    pub(crate) note: Reporter,
    pub(crate) fail: Reporter,
    noted: AtomicBool,
    /// Whether the user was notified that processes outside of the run get copies of files.
    pub(crate) passed_out: AtomicBool,
    /// Whether the user was notified that descriptors have run out.
    short: AtomicBool,
}

impl Monitor {
    /// The state of a run by `config`, whose shadow objects are in `run_dir`.
    pub(crate) fn new(mut config: Config, run_dir: RunDir) -> Self {
        let observers = Observers::new(std::mem::take(&mut config.observers));
        let unused = unused(&config, &observers);
        let shadow_files = config.mounts.any_caches_content();
        let notifies =
            |nr| entry(nr).is_some_and(|entry| entry.rule.notifies(&[0; 6], shadow_files));
        Self {
            participants: Participants::new(
                &config.mounts,
                config.note.clone(),
                config.fail.clone(),
            ),
            profiled: Profiled::new(config.profile),
            outside: Policy::new(config.outside, config.one_transaction, config.note.clone()),
            in_process: InProcess::new(
                &config.mounts,
                run_dir.path(),
                unused,
                config.stubs == Stubs::Counted,
                notifies,
            ),
            roots: Roots::default(),
            namespaces: Namespaces::new(run_dir.mount_points()),
            nested: NestedRuns::new(config.nesting),
            hosted: Hosted::new(config.host_directories),
            mounts: MountTable::new(config.mounts),
            tasks: Tasks::default(),
            in_flight: InFlight::default(),
            installs: InFlight::default(),
            descriptors: DescriptorCount::default(),
            shadows: Shadows::new(run_dir),
            watches: Arc::default(),
            socket_names: Names::default(),
            programs: Programs::default(),
            mapped: AtomicBool::new(false),
            leased: AtomicBool::new(false),
            relocation_retries: RelocationRetries::default(),
            pipe_reader: Mutex::default(),
            observers,
            mailbox: Mailbox::default(),
            waiting: WaitingCalls::default(),
            executor: Executor::default(),
            alive: Alive::default(),
            sleeps: Arc::default(),
            delegate_lock: DelegateLock::default(),
            run_end: run_end::RunEnd::new(config.one_transaction),
            pause: Pause::default(),
            note: config.note,
            fail: config.fail,
            noted: AtomicBool::new(false),
            passed_out: AtomicBool::new(false),
            short: AtomicBool::new(false),
        }
    }

    /// Registers the processes of the run as readers of `mounts`.
    pub(crate) fn attach<'m>(self: &Arc<Self>, mounts: impl Iterator<Item = &'m Arc<Mount>>) {
        let readers: Weak<Self> = Arc::downgrade(self);
        for mount in mounts {
            if let Some(transactions) = mount.fs.transactions() {
                transactions.attach_readers(readers.clone());
            }
        }
    }

    /// The mounts that thread `tid` sees; and, if it is in a mount namespace of its own, how it sees them there.
    pub(crate) fn mounts_of(&self, tid: i32) -> (Arc<Mounts>, Option<Elsewhere>) {
        let mounts = match self.nested.of(tid) {
            Some(run) => run.mounts.current(),
            None => self.mounts.current(),
        };
        let caller = || self.caller_of(&*self.tasks.get(tid)?);
        let elsewhere = self.roots.may_have_left(tid);
        let seen = elsewhere.then(|| self.namespaces.seen(tid, &mounts, caller));
        match seen.flatten() {
            Some(seen) => (Arc::clone(&seen.mounts), Some(seen)),
            None => (mounts, None),
        }
    }

    /// The credentials of `task`, in its transaction.
    pub(crate) fn caller_of(&self, task: &Task) -> Result<Arc<Caller>, Errno> {
        let caller = task.caller()?;
        Ok(match self.participants.current(task.tid) {
            None => caller,
            txn => Arc::new(Caller {
                txn,
                ..(*caller).clone()
            }),
        })
    }

    /// The root directory of thread `tid`; `None`: that of the run.
    pub(crate) fn root_of(&self, tid: i32) -> Option<Root> {
        let kept = self.roots.kept(tid);
        kept.or_else(|| self.mounts_of(tid).1.map(|seen| seen.root))
    }

    /// Changes the mounts that thread `tid` sees in the mount namespace of the run.
    pub(crate) fn change_mounts<T>(&self, tid: i32, by: impl FnOnce(&mut Mounts) -> T) -> T {
        match self.nested.of(tid) {
            Some(run) => run.mounts.change(by),
            None => self.mounts.change(by),
        }
    }

    /// Puts `mounts` in the places of those with their numbers, for all processes that see these.
    pub(crate) fn replace_mounts(&self, mounts: &[Arc<Mount>]) {
        let replace = |table: &mut Mounts| mounts.iter().for_each(|mount| table.replace(mount));
        self.mounts.change(replace);
        for run in self.nested.all() {
            run.mounts.change(replace);
        }
    }

    /// Removes `mount`, for all processes that see it.
    pub(crate) fn remove_mount(&self, mount: &Mount) {
        self.mounts.change(|table| table.remove(mount));
        for run in self.nested.all() {
            run.mounts.change(|table| table.remove(mount));
        }
    }

    /// Notifies the user once.
    pub(crate) fn note_once(&self, text: &str) {
        if !self.noted.swap(true, Ordering::Relaxed) {
            self.note.line(text);
        }
    }

    /// Distinguishes a lack of descriptors in this process from one in the tracee's process. In the first case the program has not
    /// reached its own limit (EMFILE), so it gets ENFILE, and the user is notified once.
    pub(crate) fn report_shortage<T>(
        &self,
        outcome: goanna_vfs::Result<T>,
    ) -> goanna_vfs::Result<T> {
        if !outcome.as_ref().is_err_and(|error| *error == Errno::EMFILE) {
            return outcome;
        }
        let Some(limit) = limits::exhausted_nofile() else {
            return outcome;
        };
        if !self.short.swap(true, Ordering::Relaxed) {
            self.fail.line(&format!(
                "the monitor has no descriptors left (its limit is {limit}): calls fail with ENFILE; raise the hard limit \
                 (ulimit -Hn) before the next run"
            ));
        }
        Err(Errno::ENFILE.into())
    }
}

/// Why no call is answered in the process under `config`.
fn unused(config: &Config, observers: &Observers) -> Option<Unused> {
    if config.stubs == Stubs::Unused {
        return Some(Unused::Option);
    }
    let is_watched =
        config.profile.is_some() || config.outside != Outside::Allow || !observers.is_empty();
    is_watched.then_some(Unused::Watched)
}
