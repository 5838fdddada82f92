//! Launched programs: the gate, failed executions, filters that are refused, signals and limits.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(unsafe_code, reason = "tests set signal dispositions and limits")]

mod common;

use std::os::fd::AsFd;

use common::{everyone, filter, launch_self, launch_shell, tracee_role};
use goanna_sys::Errno;
use goanna_sys::filter::Insn;
use goanna_sys::launch::{Launch, LaunchError, launch};
use goanna_sys::ptrace::{Event, Options, Status, Stopped, seize, wait};
use goanna_sys::{limits, procfs, stat};

/// Waits for the only child's end.
fn end() -> Status {
    match wait(0).unwrap().unwrap() {
        Event::Ended { status, .. } => status,
        Event::Stopped(stopped, status) => panic!("{stopped:?}: {status:?}"),
    }
}

fn program(path: &std::ffi::CStr) -> Launch {
    Launch {
        path: path.into(),
        argv: vec![path.into()],
        env: vec![],
        filter: vec![],
        filter_behind_gate: false,
        privileges: false,
        listener: false,
        unblock: Vec::new(),
        tracer: None,
    }
}

#[test]
fn runs_true_without_a_filter() {
    everyone("runs_true_without_a_filter", || {
        let launched = launch(&program(c"/bin/true")).unwrap();
        assert!(launched.listener.is_none());
        let report = launched.go().unwrap();
        assert_eq!(end(), Status::Exited(0));
        assert_eq!(report.exec_errno(), None);
        assert_eq!(wait(0), Err(Errno::ECHILD));
    });
}

#[test]
fn waits_at_the_gate_until_let_go() {
    everyone("waits_at_the_gate_until_let_go", || {
        let launched = launch(&program(c"/bin/true")).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(wait(libc::WNOHANG), Ok(None));
        drop(launched);
        assert_eq!(end(), Status::Exited(125));
    });
}

#[test]
fn a_killed_child_gives_epipe_at_the_gate() {
    everyone("a_killed_child_gives_epipe_at_the_gate", || {
        let launched = launch(&program(c"/bin/true")).unwrap();
        // SAFETY: our own child.
        unsafe { libc::kill(launched.pid, libc::SIGKILL) };
        let killed = Status::Signaled {
            signal: libc::SIGKILL,
            core: false,
        };
        assert_eq!(end(), killed);
        assert_eq!(launched.go().unwrap_err(), Errno::EPIPE);
    });
}

#[test]
fn reports_why_execve_failed() {
    everyone("reports_why_execve_failed", || {
        for (path, errno, code) in [
            (c"/nonexistent/program", Errno::ENOENT, 127),
            (c"/etc", Errno::EACCES, 126),
            (c"/etc/passwd/x", Errno::ENOTDIR, 126),
        ] {
            let report = launch(&program(path)).unwrap().go().unwrap();
            assert_eq!(end(), Status::Exited(code));
            assert_eq!(report.exec_errno(), Some(errno));
        }
    });
}

#[test]
fn reports_why_a_filter_is_refused() {
    everyone("reports_why_a_filter_is_refused", || {
        let mut bad = program(c"/bin/true");
        bad.filter = vec![Insn::stmt(0xffff, 0)];
        assert_eq!(launch(&bad).unwrap_err(), LaunchError::FilterInvalid);
        bad.filter = vec![Insn::stmt(libc::BPF_RET, 0); usize::from(u16::MAX) + 1];
        assert_eq!(launch(&bad).unwrap_err(), LaunchError::FilterInvalid);
        assert_eq!(wait(0), Err(Errno::ECHILD), "the refused child is reaped");
    });
}

/// A filter chain has one listener, so a monitor inside a monitor must get an error, not hang.
#[test]
fn a_second_listener_is_busy() {
    const NAME: &str = "a_second_listener_is_busy";
    everyone(NAME, || {
        let notify = filter(&[(libc::SYS_getpgid, libc::SECCOMP_RET_USER_NOTIF)]);
        if tracee_role().is_some() {
            let mut inner = program(c"/bin/true");
            inner.filter = notify;
            inner.listener = true;
            assert_eq!(launch(&inner).unwrap_err(), LaunchError::ListenerBusy);
            inner.filter = filter(&[]);
            inner.listener = false;
            let _report = launch(&inner).unwrap().go().unwrap();
            assert_eq!(end(), Status::Exited(0));
            return;
        }
        let mut launched = launch(&launch_self(NAME, "inner", notify, true)).unwrap();
        let listener = launched.listener.take().unwrap();
        launched.go().unwrap();
        assert_eq!(end(), Status::Exited(0));
        drop(listener);
    });
}

/// The filter of an outer sandbox can make seccomp(2) fail in ways of its own.
#[test]
fn an_outer_filter_can_forbid_or_hide_seccomp() {
    const NAME: &str = "an_outer_filter_can_forbid_or_hide_seccomp";
    everyone(NAME, || {
        for (errno, error) in [
            (Errno::EPERM, LaunchError::FilterForbidden),
            (Errno::ENOSYS, LaunchError::FilterUnsupported),
            (Errno::ENOMEM, LaunchError::Filter(Errno::ENOMEM)),
        ] {
            if let Some(role) = tracee_role() {
                if role == errno.to_string() {
                    let mut inner = program(c"/bin/true");
                    inner.filter = filter(&[]);
                    assert_eq!(launch(&inner).unwrap_err(), error);
                }
                continue;
            }
            let refuse = filter(&[(
                libc::SYS_seccomp,
                libc::SECCOMP_RET_ERRNO | errno as i32 as u32,
            )]);
            let _report = launch(&launch_self(NAME, &errno.to_string(), refuse, false))
                .unwrap()
                .go()
                .unwrap();
            assert_eq!(end(), Status::Exited(0), "{errno}");
        }
    });
}

/// Even a filter that traps the calls the child makes on its way reaches the gate.
#[test]
fn a_filter_that_traps_futex_and_close_does_not_hang_the_launch() {
    const NAME: &str = "a_filter_that_traps_futex_and_close_does_not_hang_the_launch";
    everyone(NAME, || {
        use goanna_sys::notify::{Listener, Ready, Reply};
        let verdicts = [
            (libc::SYS_futex, libc::SECCOMP_RET_USER_NOTIF),
            (libc::SYS_close, libc::SECCOMP_RET_USER_NOTIF),
            (libc::SYS_write, libc::SECCOMP_RET_USER_NOTIF),
        ];
        let launched = launch(&launch_shell("exit 5", filter(&verdicts), true)).unwrap();
        let listener = Listener::from_fd(launched.listener.unwrap());
        let answers = std::thread::spawn(move || {
            while listener.wait_readable(-1).unwrap() == Ready::Notification {
                let call = listener.recv().unwrap();
                listener.reply(call.id, Reply::Continue).unwrap();
            }
        });
        launched.gate.open().unwrap();
        assert_eq!(end(), Status::Exited(5));
        answers.join().unwrap();
    });
}

fn proc_line(pid: i32, file: &str, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line[key.len()..].trim().to_owned()
}

/// Seizes, lets go and returns at the stop after execve.
fn to_exec(request: &Launch) -> Stopped {
    let launched = launch(request).unwrap();
    let pid = launched.pid;
    seize(pid, Options::MONITOR).unwrap();
    launched.go().unwrap();
    match wait(0).unwrap().unwrap() {
        Event::Stopped(stopped, Status::Exec { former_tid }) if former_tid == pid => stopped,
        other => panic!("{other:?}"),
    }
}

fn own_mask() -> u64 {
    // SAFETY: takes nothing.
    let tid = unsafe { libc::gettid() };
    procfs::status(tid).unwrap().signals.blocked
}

#[test]
fn signals_are_as_the_caller_found_them() {
    everyone("signals_are_as_the_caller_found_them", || {
        extern "C" fn handler(_: i32) {}
        // SAFETY: dispositions and mask of this process, which runs this test only.
        unsafe {
            for ignored in [libc::SIGINT, libc::SIGQUIT, libc::SIGPIPE, libc::SIGHUP] {
                libc::signal(ignored, libc::SIG_IGN);
            }
            libc::signal(libc::SIGTERM, handler as *const () as usize);
            let mut mask = std::mem::zeroed();
            libc::sigemptyset(&raw mut mask);
            libc::sigaddset(&raw mut mask, libc::SIGUSR1);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
        }
        let stopped = to_exec(&program(c"/bin/true"));
        let signals = procfs::status(stopped.tid()).unwrap().signals;
        let bit = |signal: i32| 1u64 << (signal - 1);
        assert_eq!(signals.blocked, bit(libc::SIGUSR1));
        assert_eq!(signals.ignored & 0x7fff_ffff, bit(libc::SIGHUP));
        assert_eq!(proc_line(stopped.tid(), "status", "NoNewPrivs:"), "1");
        stopped.cont(0).unwrap();
        assert_eq!(end(), Status::Exited(0));
        let own = own_mask();
        assert_eq!(own, bit(libc::SIGUSR1), "launching leaves our mask alone");
    });
}

#[test]
fn programs_keep_the_inherited_limit_on_descriptors() {
    everyone("programs_keep_the_inherited_limit_on_descriptors", || {
        // SAFETY: a live rlimit, of this process.
        unsafe {
            let mut limit = std::mem::zeroed();
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            limit.rlim_cur = 333;
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        }
        let raised = limits::raise_nofile().unwrap();
        assert!(raised > 333);
        assert_eq!(limits::raise_nofile(), Ok(raised));
        let stopped = to_exec(&program(c"/bin/true"));
        let limit = proc_line(stopped.tid(), "limits", "Max open files");
        assert_eq!(limit.split_whitespace().next(), Some("333"));
        stopped.cont(0).unwrap();
        assert_eq!(end(), Status::Exited(0));
    });
}

#[test]
fn reads_the_limit_on_file_sizes() {
    everyone("reads_the_limit_on_file_sizes", || {
        let mut stopped = to_exec(&launch_shell("ulimit -f 8; /bin/true", vec![], false));
        assert_eq!(limits::prlimit_fsize(stopped.tid()), Ok(u64::MAX));
        loop {
            stopped.cont(0).unwrap();
            let status;
            (stopped, status) = match wait(0).unwrap().unwrap() {
                Event::Stopped(stopped, status) => (stopped, status),
                ended => panic!("{ended:?}"),
            };
            if matches!(status, Status::Exec { .. }) {
                break;
            }
        }
        // The unit of a POSIX shell is 512 bytes.
        assert_eq!(limits::prlimit_fsize(stopped.tid()), Ok(8 * 512));
        assert_eq!(limits::prlimit_fsize(i32::MAX), Err(Errno::ESRCH));
    });
}

#[test]
fn identity_is_that_of_stat() {
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::File::open("/").unwrap();
    let meta = file.metadata().unwrap();
    let identity = stat::identity(file.as_fd()).unwrap();
    assert_eq!(identity, (meta.dev(), meta.ino(), meta.mode()));
}
