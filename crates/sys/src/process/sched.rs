//! Finds out since when another thread sleeps, and whether it runs before others.
#![allow(unsafe_code, reason = "sched_getscheduler(2)")]

use std::fs;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity, sched_yield};
use nix::unistd::Pid;

/// A sleep of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sleep {
    /// When it began, or slightly later.
    pub began: Instant,
    /// The number of sleeps of the thread up to this one, included.
    pub number: u64,
}

/// The current or last sleep of thread `tid`. `EOPNOTSUPP` where `/proc` does not show it.
///
/// The scheduler records when a thread last ran (`se.exec_start`), by the clock of the CPU that it ran on. To read that clock,
/// the calling thread runs on the same CPU and reads its own record.
pub fn sleep(tid: i32) -> Result<Sleep, Errno> {
    let stat = fs::read(format!("/proc/{tid}/stat")).map_err(|_| Errno::ESRCH)?;
    let stat = String::from_utf8_lossy(&stat);
    let theirs = Schedule::of(&tid.to_string())?;
    // The name, in parentheses, may hold anything; the CPU is the 37th field behind it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let cpu = fields.split_ascii_whitespace().nth(36);
    let cpu = cpu
        .and_then(|cpu| cpu.parse().ok())
        .ok_or(Errno::EOPNOTSUPP)?;
    let ours = on_cpu(cpu, || Schedule::of("thread-self"))??;
    let slept = ours.last_ran.saturating_sub(theirs.last_ran);
    let began = Instant::now().checked_sub(slept).ok_or(Errno::EOPNOTSUPP)?;
    let number = theirs.sleeps;
    Ok(Sleep { began, number })
}

/// The number of sleeps of thread `tid`.
pub fn sleeps(tid: i32) -> Result<u64, Errno> {
    Schedule::of(&tid.to_string()).map(|schedule| schedule.sleeps)
}

/// Whether thread `tid` runs before all threads with an ordinary policy (sched(7)). False for a thread that has ended.
pub fn is_real_time(tid: i32) -> bool {
    // SAFETY: takes no pointers.
    let policy = unsafe { libc::sched_getscheduler(tid) };
    matches!(
        policy & !libc::SCHED_RESET_ON_FORK,
        libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE
    )
}

/// The scheduler's records of a thread.
struct Schedule {
    /// By the clock of its CPU.
    last_ran: Duration,
    sleeps: u64,
}

impl Schedule {
    fn of(thread: &str) -> Result<Self, Errno> {
        let text = fs::read(format!("/proc/{thread}/sched"));
        let text = text.map_err(|_| Errno::EOPNOTSUPP)?;
        // It begins with the name of the thread, which may not be UTF-8.
        let text = String::from_utf8_lossy(&text);
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start().strip_prefix(':').map(str::trim)
        };
        let parsed = || {
            // In milliseconds, with six digits behind the point.
            let (millis, nanos) = field("se.exec_start")?.split_once('.')?;
            let millis = Duration::from_millis(millis.parse().ok()?);
            Some(Self {
                last_ran: millis + Duration::from_nanos(nanos.parse().ok()?),
                sleeps: field("nr_voluntary_switches")?.parse().ok()?,
            })
        };
        parsed().ok_or(Errno::EOPNOTSUPP)
    }
}

/// Runs `f` on a CPU, just after the scheduler has recorded that this thread runs.
fn on_cpu<T>(cpu: usize, f: impl FnOnce() -> T) -> Result<T, Errno> {
    let this = Pid::from_raw(0);
    let mut one = CpuSet::new();
    one.set(cpu).map_err(|_| Errno::EOPNOTSUPP)?;
    let before = sched_getaffinity(this)?;
    sched_setaffinity(this, &one)?;
    sched_yield()?;
    let result = f();
    sched_setaffinity(this, &before)?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use goanna_skip::{Facility, skip};
    use nix::unistd::gettid;

    use super::*;

    #[test]
    fn real_time_threads_are_those_of_three_policies() {
        let policy_of = |option: &str, priority: &str| {
            let mut command = std::process::Command::new("chrt");
            command.args([option, priority, "sleep", "1000"]);
            let mut child = command.spawn().unwrap();
            let tid = child.id().cast_signed();
            let began = Instant::now();
            let is_sleep = || fs::read(format!("/proc/{tid}/comm")).unwrap() == b"sleep\n";
            while !is_sleep() && began.elapsed() < Duration::from_secs(60) {
                thread::yield_now();
            }
            let is_real_time = is_real_time(tid);
            child.kill().unwrap();
            child.wait().unwrap();
            is_real_time
        };
        assert!(!policy_of("--other", "0"));
        assert!(!policy_of("--idle", "0"));
        assert!(!is_real_time(i32::MAX));
        if crate::cred::own_ids().uid != 0 {
            return skip(Facility::Root, "only root has real-time policies");
        }
        assert!(policy_of("--fifo", "1"));
        assert!(policy_of("--rr", "1"));
    }

    #[test]
    fn a_sleep_began_between_its_call_and_the_look_at_it() {
        let (sender, receiver) = channel();
        let (wake, woken) = channel::<()>();
        let sleeper = thread::spawn(move || {
            sender.send(gettid().as_raw()).unwrap();
            let called = Instant::now();
            let _ = woken.recv();
            called
        });
        let tid = receiver.recv().unwrap();
        thread::sleep(Duration::from_millis(300));
        let slept = sleep(tid);
        let looked = Instant::now();
        let again = sleeps(tid);
        drop(wake);
        let called = sleeper.join().unwrap();
        let slept = slept.unwrap();
        assert!(slept.began >= called, "never early");
        assert!(
            looked - slept.began > Duration::from_millis(100),
            "{slept:?}"
        );
        assert_eq!(again, Ok(slept.number), "it is one sleep");
    }
}
