//! Notifications answered, continued, refused and abandoned; descriptors installed.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(unsafe_code, reason = "the tracee makes raw system calls")]

mod common;

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::mpsc;

use common::{everyone, filter, launch_self, tracee_role};
use goanna_sys::launch::launch;
use goanna_sys::notify::{Listener, Notification, Ready, Reply};
use goanna_sys::ptrace::{Event, Options, Status, seize, wait};
use goanna_sys::{Errno, memfile};

/// The call the tests trap; programs hardly use it.
fn call(argument: i32) -> Result<i64, Errno> {
    // SAFETY: integers only.
    Errno::result(unsafe { libc::syscall(libc::SYS_getpgid, argument) })
}

/// Runs this test as a tracee; `answer` runs on a thread of its own. Returns how the tracee ended.
fn trace(name: &str, answer: impl Fn(&Listener, Notification) + Send + 'static) -> Status {
    let verdicts = [
        (libc::SYS_getpgid, libc::SECCOMP_RET_USER_NOTIF),
        (libc::SYS_execve, libc::SECCOMP_RET_TRACE),
    ];
    let mut launched = launch(&launch_self(name, "tracee", filter(&verdicts), true)).unwrap();
    let pid = launched.pid;
    let listener = Listener::from_fd(launched.listener.take().unwrap());
    listener.set_sync_wake_up(true).unwrap();
    assert_eq!(listener.wait_readable(0), Ok(Ready::TimedOut));
    seize(pid, Options::MONITOR).unwrap();
    let (ended, at_end) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        loop {
            match listener.wait_readable(10_000).unwrap() {
                Ready::Notification => match listener.recv() {
                    Ok(notification) => answer(&listener, notification),
                    Err(error) => assert_eq!(error, Errno::ENOENT),
                },
                ready => return ended.send(ready).unwrap(),
            }
        }
    });
    launched.go().unwrap();
    let mut seccomp_stops = 0;
    let status = loop {
        let (stopped, status) = match wait(0).unwrap().unwrap() {
            Event::Stopped(stopped, status) => (stopped, status),
            Event::Ended { tid, status } if tid == pid => break status,
            Event::Ended { .. } => continue,
        };
        let signal = match status {
            Status::SignalDelivery(signal) => signal,
            _ => 0,
        };
        seccomp_stops += u32::from(status == Status::Seccomp);
        stopped.cont(signal).unwrap();
    };
    assert_eq!(seccomp_stops, 1, "the launching execve");
    let ready = at_end.recv_timeout(std::time::Duration::from_secs(5));
    assert_eq!(ready, Ok(Ready::HangUp), "no tracee is left");
    thread.join().unwrap();
    status
}

#[test]
fn answers_value_error_and_continue() {
    const NAME: &str = "answers_value_error_and_continue";
    everyone(NAME, || {
        if tracee_role().is_some() {
            assert_eq!(call(1), Ok(4242));
            assert_eq!(call(2), Err(Errno::EXDEV));
            let own = std::process::id().cast_signed();
            // SAFETY: takes nothing.
            let group = i64::from(unsafe { libc::getpgrp() });
            assert_eq!(call(own), Ok(group));
            return;
        }
        let status = trace(NAME, |listener, call| {
            assert_eq!(i64::from(call.nr), libc::SYS_getpgid);
            assert_eq!(call.arch, 0xc000_003e, "AUDIT_ARCH_X86_64");
            assert!(call.tid > 0 && call.ip != 0);
            assert!(listener.still_valid(call.id));
            let reply = match call.args[0] {
                1 => Reply::Value(4242),
                2 => Reply::Error(Errno::EXDEV),
                _ => Reply::Continue,
            };
            listener.reply(call.id, reply).unwrap();
            assert!(!listener.still_valid(call.id));
            // EINPROGRESS until the thread has left the call; then there is no such call.
            let again = loop {
                match listener.reply(call.id, reply) {
                    Err(Errno::EINPROGRESS) => std::thread::yield_now(),
                    again => break again,
                }
            };
            assert_eq!(again, Err(Errno::ENOENT));
        });
        assert_eq!(status, Status::Exited(0));
    });
}

#[test]
fn installs_descriptors() {
    const NAME: &str = "installs_descriptors";
    everyone(NAME, || {
        if tracee_role().is_some() {
            return use_installed();
        }
        let file = memfile::create(c"installed").unwrap();
        memfile::pwrite(file.as_fd(), b"content", 0).unwrap();
        let status = trace(NAME, move |listener, call| {
            let copy = memfile::reopen(file.as_fd(), libc::O_RDONLY).unwrap();
            let path = memfile::reopen(file.as_fd(), libc::O_PATH).unwrap();
            let copy = copy.as_fd();
            match call.args[0] {
                1 => assert!(listener.install(call.id, copy, true).unwrap() > 2),
                2 => assert!(listener.install(call.id, copy, false).unwrap() > 2),
                3 => {
                    let at = listener.install_keep(call.id, copy, false, Some(77));
                    assert_eq!(at, Ok(77));
                    let any = listener.install_keep(call.id, copy, true, None).unwrap();
                    assert!(listener.still_valid(call.id), "not answered yet");
                    listener
                        .reply(call.id, Reply::Value(i64::from(any)))
                        .unwrap();
                }
                4 => {
                    let full = listener.install(call.id, copy, false).unwrap_err();
                    assert_eq!(full, Errno::EMFILE);
                    assert!(listener.still_valid(call.id), "still ours to answer");
                    listener.reply(call.id, Reply::Error(full)).unwrap();
                }
                _ => {
                    let refused = listener.install(call.id, path.as_fd(), false);
                    assert_eq!(refused, Err(Errno::EBADF), "O_PATH");
                    listener.reply(call.id, Reply::Value(0)).unwrap();
                }
            }
        });
        assert_eq!(status, Status::Exited(0));
    });
}

fn use_installed() {
    let check = |fd: i64, cloexec: bool| {
        let fd = i32::try_from(fd).unwrap();
        // SAFETY: the monitor has just installed it for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut buf = [0; 16];
        assert_eq!(memfile::pread(fd.as_fd(), &mut buf, 0), Ok(7));
        assert_eq!(&buf[..7], b"content");
        // SAFETY: integers only.
        let flags = unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&fd), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC != 0, cloexec);
    };
    check(call(1).unwrap(), true);
    check(call(2).unwrap(), false);
    check(call(3).unwrap(), true);
    check(77, false);
    call(5).unwrap();
    // SAFETY: a live rlimit.
    unsafe {
        let mut limit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = 3;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    assert_eq!(call(4), Err(Errno::EMFILE));
}

#[test]
fn a_killed_caller_is_noticed() {
    const NAME: &str = "a_killed_caller_is_noticed";
    everyone(NAME, || {
        if tracee_role().is_some() {
            call(1).unwrap();
            return;
        }
        let status = trace(NAME, |listener, call| {
            // SAFETY: our tracee, which waits for us.
            unsafe { libc::kill(call.tid, libc::SIGKILL) };
            while listener.still_valid(call.id) {
                std::thread::yield_now();
            }
            let late = listener.reply(call.id, Reply::Value(0));
            assert_eq!(late, Err(Errno::ENOENT));
            let file = memfile::create(c"late").unwrap();
            let late = listener.install(call.id, file.as_fd(), true);
            assert_eq!(late, Err(Errno::ENOENT));
        });
        let killed = Status::Signaled {
            signal: libc::SIGKILL,
            core: false,
        };
        assert_eq!(status, killed);
    });
}

/// WAIT_KILLABLE_RECV: a signal must not make the kernel restart a call that we have already performed.
#[test]
fn a_signal_does_not_repeat_a_received_call() {
    const NAME: &str = "a_signal_does_not_repeat_a_received_call";
    everyone(NAME, || {
        if tracee_role().is_some() {
            extern "C" fn handler(_: i32) {}
            // SAFETY: a handler that does nothing.
            unsafe { libc::signal(libc::SIGUSR1, handler as *const () as usize) };
            for n in 0..20 {
                assert_eq!(call(1), Ok(n));
            }
            return;
        }
        let performed = std::sync::atomic::AtomicI64::new(0);
        let status = trace(NAME, move |listener, call| {
            let n = performed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            // SAFETY: our tracee.
            unsafe { libc::kill(call.tid, libc::SIGUSR1) };
            std::thread::sleep(std::time::Duration::from_millis(3));
            listener.reply(call.id, Reply::Value(n)).unwrap();
        });
        assert_eq!(status, Status::Exited(0));
    });
}
