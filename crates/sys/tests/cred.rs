//! Credentials of other users, and the state of tasks by /proc and pidfds.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(unsafe_code, reason = "tests ask for thread ids and fork")]

mod common;

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use common::{NOBODY, everyone, is_root, root_only};
use goanna_sys::cred::{Credentials, acting_as, may_change_user, own_ids, thread_owns_fs};
use goanna_sys::procfs::{self, TaskStatus};
use goanna_sys::{Errno, pidfd, stat};

fn gettid() -> i32 {
    // SAFETY: takes nothing.
    unsafe { libc::gettid() }
}

fn this_thread() -> TaskStatus {
    procfs::status(gettid()).unwrap()
}

const OTHER: Credentials<'_> = Credentials {
    uid: NOBODY,
    gid: 4321,
    groups: &[7, 99, 70000],
    caps: 0,
};

fn own() -> Credentials<'static> {
    let own = own_ids();
    Credentials {
        uid: own.uid,
        gid: own.gid,
        groups: &own.groups,
        caps: u64::MAX,
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap())
}

#[test]
fn creates_files_as_another_user() {
    root_only("creates_files_as_another_user", || {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let path = dir.path().join("file");
        let before = this_thread();
        let main = std::process::id().cast_signed();
        let main_before = procfs::status(main).unwrap();
        let inside = acting_as(&OTHER, Some(0o027), || {
            fs::File::create(&path).map_err(errno)?;
            let main_inside = procfs::status(main)?;
            if main != gettid() {
                assert_eq!(main_inside, main_before, "other threads stay as they are");
            }
            Ok(this_thread())
        })
        .unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (NOBODY, 4321));
        assert_eq!(meta.mode() & 0o777, 0o640);
        assert_eq!((inside.uid[3], inside.gid[3]), (NOBODY, 4321));
        assert_eq!(inside.uid[..3], [0; 3], "only the file-system id changes");
        assert_eq!(inside.groups, OTHER.groups);
        assert_eq!(inside.umask, 0o027);
        assert_eq!(inside.cap_eff, 0, "no capabilities");
        assert_eq!(this_thread(), before);
    });
}

#[test]
fn groups_give_and_withhold_permission() {
    root_only("groups_give_and_withhold_permission", || {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("group");
        fs::write(&path, "x").unwrap();
        std::os::unix::fs::chown(&path, Some(0), Some(99)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o040)).unwrap();
        let read = || fs::read(&path).map(drop).map_err(errno);
        assert_eq!(acting_as(&OTHER, Some(0), read), Ok(()));
        let without = Credentials {
            groups: &[7],
            ..OTHER
        };
        assert_eq!(acting_as(&without, Some(0), read), Err(Errno::EACCES));
        assert_eq!(acting_as(&own(), Some(0), read), Ok(()), "root may");
        let dropped = acting_as(&Credentials { caps: 0, ..own() }, Some(0), read);
        assert_eq!(
            dropped,
            Err(Errno::EACCES),
            "root without capabilities may not"
        );
        assert_eq!(acting_as(&own(), Some(0), read), Ok(()), "root may again");
        assert_eq!(read(), Ok(()));
    });
}

/// Root without CAP_DAC_OVERRIDE and another user with it: each right is that of the capability, not of the user.
#[test]
fn capabilities_are_the_credentials_own() {
    root_only("capabilities_are_the_credentials_own", || {
        const DAC_OVERRIDE: u64 = 1 << 1;
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("closed");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o0)).unwrap();
        let write = || fs::write(&path, "y").map_err(errno);
        let before = this_thread();
        for ids in [own(), OTHER] {
            let all_but = Credentials {
                caps: !DAC_OVERRIDE,
                ..ids
            };
            assert_eq!(
                acting_as(&all_but, Some(0), write),
                Err(Errno::EACCES),
                "{ids:?}"
            );
            let only = Credentials {
                caps: DAC_OVERRIDE,
                ..ids
            };
            assert_eq!(acting_as(&only, Some(0), write), Ok(()), "{ids:?}");
        }
        assert_eq!(this_thread(), before);
    });
}

#[test]
fn a_panic_puts_everything_back() {
    root_only("a_panic_puts_everything_back", || {
        thread_owns_fs().unwrap();
        let before = this_thread();
        assert_ne!(before.cap_eff, 0);
        for caps in [0, 1 << 3, u64::MAX] {
            let result = std::panic::catch_unwind(|| {
                let other = Credentials { caps, ..OTHER };
                acting_as(&other, Some(0o777), || -> Result<(), Errno> {
                    assert_eq!(this_thread().cap_eff, caps & before.cap_eff);
                    std::panic::resume_unwind(Box::new("inside"));
                })
            });
            let payload = result.unwrap_err();
            assert_eq!(payload.downcast_ref::<&str>(), Some(&"inside"));
            assert_eq!(this_thread(), before);
        }
    });
}

#[test]
fn own_ids_need_no_privilege() {
    everyone("own_ids_need_no_privilege", || {
        let status = this_thread();
        assert_eq!(own_ids().uid, status.uid[1]);
        assert_eq!(own_ids().gid, status.gid[1]);
        assert_eq!(own_ids().groups, status.groups);
        assert_eq!(own_ids().cap_eff, status.cap_eff);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        acting_as(&own(), Some(0o077), || {
            fs::File::create(&path).map(drop).map_err(errno)
        })
        .unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(meta.mode() & 0o777, 0o600);
        assert_eq!((meta.uid(), meta.gid()), (own_ids().uid, own_ids().gid));
        assert_eq!(this_thread().umask, status.umask);
        assert_eq!(may_change_user(), is_root());
        if !is_root() {
            let mut ran = false;
            let mut attempt = |ids: &Credentials<'_>| {
                acting_as(ids, Some(0o777), || {
                    ran = true;
                    Ok(())
                })
            };
            assert_eq!(attempt(&OTHER), Err(Errno::EPERM));
            assert_eq!(attempt(&Credentials { uid: 1, ..own() }), Err(Errno::EPERM));
            assert_eq!(attempt(&Credentials { gid: 1, ..own() }), Err(Errno::EPERM));
            assert!(!ran);
            assert_eq!(this_thread(), status);
        }
    });
}

/// The umask belongs to the thread, whoever else changes or uses theirs at the time.
#[test]
fn umasks_of_threads_do_not_meet() {
    everyone("umasks_of_threads_do_not_meet", || {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for umask in [0, 0o022, 0o077, 0o777] {
                let dir = dir.path();
                scope.spawn(move || {
                    for n in 0..200 {
                        let path = dir.join(format!("{umask}-{n}"));
                        acting_as(&own(), Some(umask), || fs::create_dir(&path).map_err(errno))
                            .unwrap();
                        let mode = fs::metadata(&path).unwrap().mode();
                        assert_eq!(mode & 0o777, 0o777 & !umask);
                    }
                });
            }
        });
    });
}

#[test]
fn proc_describes_a_task() {
    everyone("proc_describes_a_task", || {
        let mut child = std::process::Command::new("/bin/sleep")
            .arg("100")
            .current_dir("/proc")
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        while procfs::exe(pid) == procfs::exe(gettid()) {
            std::thread::yield_now();
        }
        let status = procfs::status(pid).unwrap();
        assert_eq!(status.tgid, pid);
        assert_eq!(status.ppid, std::process::id().cast_signed());
        assert_eq!((status.tracer, status.seccomp), (0, 0));
        assert!(!status.no_new_privs);
        assert_eq!(status.uid, [own_ids().uid; 4]);
        assert_eq!(procfs::cwd(pid), Ok(b"/proc".to_vec()));
        assert_eq!(procfs::root(pid), Ok(b"/".to_vec()));
        let proc = fs::metadata("/proc").unwrap();
        assert_eq!(procfs::cwd_identity(pid), Ok((proc.dev(), proc.ino())));
        let fds = procfs::fds(pid).unwrap();
        assert!(fds.starts_with(&[0, 1, 2]) && !fds.contains(&50), "{fds:?}");
        assert_eq!(procfs::fd_link(pid, 0), Ok(b"/dev/null".to_vec()));
        assert_eq!(procfs::fd_link(pid, 50), Err(Errno::EBADF));
        let sleep = fs::canonicalize("/bin/sleep").unwrap();
        let exe = procfs::exe(pid).unwrap();
        assert_eq!(exe, sleep.as_os_str().as_encoded_bytes());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(procfs::status(pid), Err(Errno::ESRCH));
        assert_eq!(procfs::cwd(pid), Err(Errno::ESRCH));
        assert_eq!(procfs::cwd_identity(pid), Err(Errno::ESRCH));
        assert_eq!(procfs::fd_link(pid, 0), Err(Errno::ESRCH));
        assert_eq!(procfs::fds(pid), Err(Errno::ESRCH));
    });
}

#[test]
fn a_zombie_still_has_a_status() {
    everyone("a_zombie_still_has_a_status", || {
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let pid = child.id().cast_signed();
        while !fs::read_to_string(format!("/proc/{pid}/stat"))
            .unwrap()
            .contains(") Z ")
        {
            std::thread::yield_now();
        }
        let status = procfs::status(pid).unwrap();
        assert_eq!((status.tgid, status.umask), (pid, 0));
        child.wait().unwrap();
    });
}

#[test]
fn descriptors_are_copied_from_processes_and_threads() {
    everyone("descriptors_are_copied_from_processes_and_threads", || {
        let mut child = std::process::Command::new("/bin/sleep")
            .arg("100")
            .stdin(fs::File::open("/etc/passwd").unwrap())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let process = pidfd::open(pid).unwrap();
        let copy = pidfd::getfd(process.as_fd(), 0).unwrap();
        let passwd = fs::metadata("/etc/passwd").unwrap();
        let identity = (passwd.dev(), passwd.ino(), passwd.mode());
        assert_eq!(stat::identity(copy.as_fd()), Ok(identity));
        let none = pidfd::getfd(process.as_fd(), 50).unwrap_err();
        assert_eq!(none, Errno::EBADF);
        child.kill().unwrap();
        child.wait().unwrap();
        let gone = pidfd::getfd(process.as_fd(), 0).unwrap_err();
        assert_eq!(gone, Errno::ESRCH);
        assert_eq!(pidfd::open(pid).unwrap_err(), Errno::ESRCH);

        let tid = std::thread::spawn(|| {
            let (tell, told) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                tell.send(gettid()).unwrap();
                std::thread::park();
            });
            let tid = told.recv().unwrap();
            let handle = pidfd::open(tid).unwrap();
            pidfd::getfd(handle.as_fd(), 2).unwrap();
            thread.thread().unpark();
            thread.join().unwrap();
            tid
        });
        assert_ne!(tid.join().unwrap(), gettid());
    });
}
