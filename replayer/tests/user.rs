//! An ordinary user replays what root has traced.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod workload;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;

use goanna_skip::{Facility, skip};
use goanna_tracer::assemble::DataMode;
use serde_json::Value;
use workload::{REPLAYER, Workload, has};

const NOBODY: u32 = 65534;

/// Changes of ownership are left out and counted; everything else gives the results of the trace.
#[test]
fn an_ordinary_user_replays_all_but_changes_of_ownership() {
    if !rustix::process::geteuid().is_root() {
        return skip(
            Facility::Root,
            "traces changes of ownership, and acts as another user",
        );
    }
    if !has("setpriv") {
        return;
    }
    let script = "set -e; mkdir d; echo content > d/f; chown 1:2 d/f; chown 3 d; cat d/f > g; chmod 640 g; mv g d/h";
    let workload = Workload::new(&["sh", "-c", script], DataMode::Full, |_| {});
    // The user may reach neither the directory of the build nor a temporary one.
    let scratch = workload.scratch.path();
    fs::set_permissions(scratch, fs::Permissions::from_mode(0o755)).unwrap();
    let replayer = workload.path("replayer");
    fs::copy(REPLAYER, &replayer).unwrap();
    fs::set_permissions(&replayer, fs::Permissions::from_mode(0o755)).unwrap();
    let root = workload.path("replayed");
    let reports = workload.path("reports");
    fs::create_dir(&reports).unwrap();
    chown(&reports, Some(NOBODY), Some(NOBODY)).unwrap();
    chown(&root, Some(NOBODY), Some(NOBODY)).unwrap();
    let ids = NOBODY.to_string();
    let output = Command::new("setpriv")
        .args(["--reuid", &ids, "--regid", &ids, "--clear-groups", "--"])
        .arg(&replayer)
        .arg("run")
        .arg(workload.path("compiled"))
        .arg("--root")
        .arg(&root)
        .arg("--report")
        .arg(reports.join("report"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}{why}");
    assert!(
        text.contains("changes of ownership were left out"),
        "{text}"
    );
    let report: Value = serde_json::from_slice(&fs::read(reports.join("report")).unwrap()).unwrap();
    assert_eq!(report["skipped_owners"], 2);
    assert_eq!(report["different"], 0);
    let made = fs::metadata(root.join("d/h")).unwrap();
    assert_eq!((made.uid(), made.mode() & 0o7777), (NOBODY, 0o640));
    assert_eq!(fs::read_to_string(root.join("d/h")).unwrap(), "content\n");
}
