//! Stops of seized tracees and what they are decoded to.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(unsafe_code, reason = "tests send signals and make raw calls")]

mod common;

use common::{everyone, filter, launch_self, launch_shell, tracee_role};
use goanna_sys::Errno;
use goanna_sys::launch::{Launch, launch};
use goanna_sys::ptrace::{
    CloneKind, Event, Options, Status, Stopped, ended, has_report, interrupt, reap, seize, wait,
};

fn start(request: &Launch) -> i32 {
    let launched = launch(request).unwrap();
    let pid = launched.pid;
    seize(pid, Options::MONITOR).unwrap();
    launched.go().unwrap();
    pid
}

/// Lets everything run to its end, delivering signals; all that was reported, in order.
fn run() -> Vec<(i32, Status)> {
    let mut seen = Vec::new();
    loop {
        match wait(0).map(Option::unwrap) {
            Ok(Event::Stopped(stopped, status)) => {
                seen.push((stopped.tid(), status));
                let signal = match status {
                    Status::SignalDelivery(signal) => signal,
                    _ => 0,
                };
                stopped.cont(signal).unwrap();
            }
            Ok(Event::Ended { tid, status }) => seen.push((tid, status)),
            Err(error) => {
                assert_eq!(error, Errno::ECHILD);
                return seen;
            }
        }
    }
}

/// Waits for a stop of thread `tid`.
fn stop(tid: i32, expected: Status) -> Stopped {
    match wait(0).unwrap().unwrap() {
        Event::Stopped(stopped, status) => {
            assert_eq!((stopped.tid(), status), (tid, expected));
            stopped
        }
        Event::Ended { tid, status } => panic!("{tid} has ended: {status:?}"),
    }
}

/// Waits for the end of thread `tid`.
fn end(tid: i32, status: Status) {
    let ended = Event::Ended { tid, status };
    assert_eq!(wait(0), Ok(Some(ended)));
}

#[test]
fn children_are_seized_and_reported() {
    everyone("children_are_seized_and_reported", || {
        let pid = start(&launch_shell("(exit 4); (exit 5) & wait", vec![], false));
        let seen = run();
        let children: Vec<i32> = seen
            .iter()
            .filter_map(|&(tid, status)| match status {
                Status::NewChild { child, kind } => {
                    assert_eq!(tid, pid);
                    assert_eq!(kind, CloneKind::Fork);
                    Some(child)
                }
                _ => None,
            })
            .collect();
        assert_eq!(children.len(), 2);
        for (&child, code) in children.iter().zip([4, 5]) {
            assert!(seen.contains(&(child, Status::EventStop)), "first stop");
            assert!(seen.contains(&(child, Status::Exited(code))));
        }
        assert!(seen.contains(&(pid, Status::Exec { former_tid: pid })));
        assert_eq!(seen.last(), Some(&(pid, Status::Exited(0))));
    });
}

#[test]
fn an_exec_by_another_thread_names_its_former_tid() {
    const NAME: &str = "an_exec_by_another_thread_names_its_former_tid";
    everyone(NAME, || {
        if tracee_role().is_some() {
            use std::os::unix::process::CommandExt;
            let thread =
                std::thread::spawn(|| panic!("{}", std::process::Command::new("/bin/true").exec()));
            thread.join().unwrap();
            return;
        }
        let pid = start(&launch_self(NAME, "tracee", vec![], false));
        let seen = run();
        // The test harness makes threads, too, and the reports of two threads' clones come in any order. The exec ends the thread that has made the new one, perhaps
        // before it has reported that.
        let is_thread = |tid| {
            seen.iter().any(|&(reporter, status)| match status {
                Status::NewChild { child, kind } => child == tid && kind == CloneKind::Clone,
                Status::EventStop => reporter == tid,
                _ => false,
            })
        };
        let former = seen.iter().rev().find_map(|&(tid, status)| match status {
            Status::Exec { former_tid } if tid == pid => Some(former_tid),
            _ => None,
        });
        let former = former.unwrap();
        assert_ne!(former, pid);
        assert!(is_thread(former), "{former} is no thread: {seen:?}");
        assert_eq!(seen.last(), Some(&(pid, Status::Exited(0))));
    });
}

#[test]
fn signals_are_seen_and_can_be_dropped() {
    everyone("signals_are_seen_and_can_be_dropped", || {
        let script = "trap 'exit 7' USR1; kill -TERM $$; kill -USR1 $$; exit 1";
        let pid = start(&launch_shell(script, vec![], false));
        let executed = Status::Exec { former_tid: pid };
        stop(pid, executed).cont(0).unwrap();
        let term = Status::SignalDelivery(libc::SIGTERM);
        stop(pid, term).cont(0).unwrap();
        let usr1 = Status::SignalDelivery(libc::SIGUSR1);
        stop(pid, usr1).cont(libc::SIGUSR1).unwrap();
        end(pid, Status::Exited(7));
    });
}

#[test]
fn a_group_stop_lasts_until_sigcont() {
    everyone("a_group_stop_lasts_until_sigcont", || {
        let pid = start(&launch_shell("kill -STOP $$; exit 3", vec![], false));
        let executed = Status::Exec { former_tid: pid };
        stop(pid, executed).cont(0).unwrap();
        let delivery = Status::SignalDelivery(libc::SIGSTOP);
        stop(pid, delivery).cont(libc::SIGSTOP).unwrap();
        let status = Status::GroupStop(libc::SIGSTOP);
        assert!(status.is_group_stop() && !Status::EventStop.is_group_stop());
        stop(pid, status).listen().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert_eq!(wait(libc::WNOHANG), Ok(None), "stays stopped");
        // SAFETY: our tracee.
        unsafe { libc::kill(pid, libc::SIGCONT) };
        stop(pid, Status::EventStop).cont(0).unwrap();
        let seen = run();
        assert_eq!(seen.last(), Some(&(pid, Status::Exited(3))));
    });
}

#[test]
fn a_stop_is_no_end() {
    everyone("a_stop_is_no_end", || {
        let pid = start(&launch_shell("kill -TERM $$; exit 3", vec![], false));
        stop(pid, Status::Exec { former_tid: pid }).cont(0).unwrap();
        let reported = || {
            while !has_report(pid) {
                std::thread::yield_now();
            }
        };
        reported();
        assert_eq!(ended(pid), Ok(None));
        stop(pid, Status::SignalDelivery(libc::SIGTERM))
            .cont(0)
            .unwrap();
        reported();
        let status = Status::Exited(3);
        assert_eq!(ended(pid), Ok(Some(status)));
        assert_eq!(reap(pid), Ok(Some(Event::Ended { tid: pid, status })));
        assert_eq!(ended(pid), Ok(None));
    });
}

#[test]
fn interrupts_a_running_tracee() {
    everyone("interrupts_a_running_tracee", || {
        let pid = start(&launch_shell("while :; do :; done", vec![], false));
        let stopped = stop(pid, Status::Exec { former_tid: pid });
        assert_eq!(interrupt(pid), Ok(()), "stopped already: remembered");
        stopped.cont(0).unwrap();
        stop(pid, Status::EventStop).cont(0).unwrap();
        let running = Stopped::recover(pid);
        assert_eq!(running.regs().unwrap_err(), Errno::ESRCH, "it runs");
        // SAFETY: our tracee.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        let killed = Status::Signaled {
            signal: libc::SIGKILL,
            core: false,
        };
        end(pid, killed);
        assert_eq!(seize(pid, Options::MONITOR), Err(Errno::ESRCH));
    });
}

#[test]
fn a_call_can_be_skipped_or_watched_to_its_exit() {
    const NAME: &str = "a_call_can_be_skipped_or_watched_to_its_exit";
    everyone(NAME, || {
        if tracee_role().is_some() {
            // SAFETY: integers only.
            let (skipped, watched) =
                unsafe { (libc::getpgid(1), libc::getpgid(0) == libc::getpgrp()) };
            assert_eq!((skipped, watched), (123, true));
            return;
        }
        let traced = filter(&[(libc::SYS_getpgid, libc::SECCOMP_RET_TRACE)]);
        let pid = start(&launch_self(NAME, "tracee", traced, false));
        let mut stops = 0;
        let status = loop {
            let (stopped, status) = match wait(0).unwrap().unwrap() {
                Event::Stopped(stopped, status) => (stopped, status),
                Event::Ended { tid, status } if tid == pid => break status,
                Event::Ended { .. } => continue,
            };
            if status != Status::Seccomp {
                stopped.cont(0).unwrap();
                continue;
            }
            stops += 1;
            let mut regs = stopped.regs().unwrap();
            assert_eq!(regs.number(), libc::SYS_getpgid);
            if regs.args()[0] == 1 {
                regs.leave_call();
                regs.set_result(123);
                stopped.set_regs(&regs).unwrap();
                stopped.cont(0).unwrap();
            } else {
                let tid = stopped.tid();
                stopped.cont_syscall(0).unwrap();
                let stopped = stop(tid, Status::SyscallStop);
                assert!(stopped.regs().unwrap().result() > 0);
                stopped.cont(0).unwrap();
            }
        };
        assert_eq!((status, stops), (Status::Exited(0), 2));
    });
}
