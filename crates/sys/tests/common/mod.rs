//! Runs test bodies in processes of their own: waits for any child, signal dispositions, credentials and limits
//! belong to a whole process, and each body runs as root and as an ordinary user.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test binary uses a part")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use goanna_skip::{Facility, skip};
use goanna_sys::filter::Insn;
use goanna_sys::launch::Launch;

const BODY: &str = "GOANNA_SYS_TEST";
const TRACEE: &str = "GOANNA_SYS_TRACEE";
pub const NOBODY: u32 = 65534;

pub fn is_root() -> bool {
    goanna_sys::cred::own_ids().uid == 0
}

/// Runs `body` in a fresh process as the present user and, if that is root, as user 65534 too.
pub fn everyone(name: &str, body: fn()) {
    fresh(name, body, &[None, Some(NOBODY)]);
}

/// Runs `body` in a fresh process, if the present user is root.
pub fn root_only(name: &str, body: fn()) {
    if is_root() {
        fresh(name, body, &[None]);
    } else {
        skip(Facility::Root, "the test is for root");
    }
}

fn fresh(name: &str, body: fn(), users: &[Option<u32>]) {
    if std::env::var(BODY).is_ok_and(|wanted| wanted == name) {
        return body();
    }
    for &user in users {
        if user.is_some() && !is_root() {
            skip(Facility::Root, "only root can become another user");
            continue;
        }
        let exe = std::env::current_exe().unwrap();
        let output = spawn(&exe, name, user);
        assert!(
            output.status.success(),
            "as {user:?}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("1 passed"), "{name} did not run: {text}");
    }
}

fn spawn(exe: &Path, name: &str, user: Option<u32>) -> std::process::Output {
    let mut command = Command::new(exe);
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(BODY, name)
        .current_dir("/");
    if let Some(id) = user {
        command.uid(id).gid(id);
    }
    match command.output() {
        // The build directory need not be open to other users.
        Err(error)
            if error.kind() == std::io::ErrorKind::PermissionDenied
                && !exe.starts_with(std::env::temp_dir()) =>
        {
            let dir = tempfile::Builder::new()
                .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .tempdir()
                .unwrap();
            let copy = dir.path().join("tests");
            std::fs::copy(exe, &copy).unwrap();
            spawn(&copy, name, user)
        }
        output => output.unwrap(),
    }
}

/// What this process is to do as a tracee, if it is one.
pub fn tracee_role() -> Option<String> {
    std::env::var(TRACEE).ok()
}

/// Launches this test's own binary as a tracee that finds `role` in [`tracee_role`].
pub fn launch_self(name: &str, role: &str, filter: Vec<Insn>, listener: bool) -> Launch {
    let exe = std::env::current_exe().unwrap();
    let path = CString::new(exe.as_os_str().as_bytes()).unwrap();
    Launch {
        argv: vec![
            path.clone(),
            c"--exact".into(),
            CString::new(name).unwrap(),
            c"--nocapture".into(),
            c"--test-threads=1".into(),
        ],
        path,
        env: vec![
            CString::new(format!("{BODY}={name}")).unwrap(),
            CString::new(format!("{TRACEE}={role}")).unwrap(),
        ],
        filter,
        filter_behind_gate: false,
        privileges: false,
        listener,
        unblock: Vec::new(),
        tracer: None,
    }
}

/// Launches `/bin/sh -c script`.
pub fn launch_shell(script: &str, filter: Vec<Insn>, listener: bool) -> Launch {
    Launch {
        path: c"/bin/sh".into(),
        argv: vec![c"sh".into(), c"-c".into(), CString::new(script).unwrap()],
        env: vec![c"PATH=/usr/bin:/bin".into()],
        filter,
        filter_behind_gate: false,
        privileges: false,
        listener,
        unblock: Vec::new(),
        tracer: None,
    }
}

/// A filter that gives each listed call its verdict and allows the rest.
pub fn filter(verdicts: &[(libc::c_long, u32)]) -> Vec<Insn> {
    let mut program = vec![Insn::stmt(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for &(nr, verdict) in verdicts {
        program.push(Insn::jump(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            u32::try_from(nr).unwrap(),
            0,
            1,
        ));
        program.push(Insn::stmt(libc::BPF_RET | libc::BPF_K, verdict));
    }
    program.push(Insn::stmt(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_ALLOW,
    ));
    program
}
