//! `amino fsck`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use goanna_daemon::client;
use goanna_offline::absolute;
use goanna_offline::check::{Constraint, Finding, Report, check_closed};
use goanna_offline::salvage::{Loss, Salvage};
use goanna_session::{Error as SessionError, store};
use goanna_sys::plural::counted;
use serde_json::{Map, Value, json};

use crate::args::{Verbosity, amino};
use crate::commands::open::{loss_status, loss_text, salvaged, store_dir};
use crate::error::Error;
use crate::report::copy::{show_count, spinner};
use crate::report::names;
use crate::report::output::Output;

/// `amino fsck`. The status is 0 for a clean store, 1 when errors were found.
pub fn fsck(args: &amino::Fsck, verbosity: Verbosity) -> Result<u8, Error> {
    let dir = store_dir(&args.store)?;
    store::must_exist(&dir)?;
    let bar = spinner(verbosity);
    let progress = |records| show_count(&bar, records, "records");
    let checked = if args.salvage {
        salvaged(&dir).and_then(|(store, salvage)| {
            let report = check_alone(&store, &progress)?;
            Ok((report, salvage))
        })
    } else {
        let report = client::reach(
            &dir,
            |owner| client::check(owner, &progress),
            || check_alone(&dir, &progress),
        );
        report
            .map(|report| (report, Salvage::default()))
            .map_err(Error::from)
    };
    bar.finish_and_clear();
    let (report, salvage) = checked?;
    let out = Output::new();
    if args.json {
        let mut json = to_json(&dir, &report);
        if let (true, Value::Object(map)) = (args.salvage, &mut json) {
            map.insert(
                "clean".into(),
                json!(report.is_clean() && salvage.losses().is_empty()),
            );
            map.insert("missing".into(), losses_json(&salvage));
        }
        out.json(&json)?;
    } else {
        print(out, &dir, &report, &salvage, verbosity)?;
    }
    Ok(u8::from(!report.is_clean()).max(loss_status(&salvage)))
}

/// Checks a store that no process has open.
fn check_alone(dir: &Path, progress: &dyn Fn(u64)) -> Result<Report, SessionError> {
    let checked = check_closed(dir, &mut |records| progress(records));
    checked.map_err(|why| SessionError::unchecked(dir, why))
}

fn print(
    mut out: Output,
    dir: &Path,
    report: &Report,
    salvage: &Salvage,
    verbosity: Verbosity,
) -> Result<(), Error> {
    let missing = salvage.losses();
    if !missing.is_empty() {
        out.line("missing:")?;
    }
    for loss in missing {
        out.line(&format!("  {}", loss_text(loss)))?;
    }
    let mut last = None;
    for finding in &report.findings {
        if last != Some(finding.constraint) {
            out.line(&format!("{}:", finding.constraint.name()))?;
            last = Some(finding.constraint);
        }
        out.line(&format!("  {}", describe(finding)))?;
    }
    let verdict = match report.findings.len() {
        0 if !missing.is_empty() => "what is left is clean".to_owned(),
        0 => "clean".to_owned(),
        count => format!("{} found", counted(count as u64, "error")),
    };
    if !verbosity.quiet || !report.is_clean() || !missing.is_empty() {
        out.line(&format!(
            "{}: {verdict}; {}, {}, {} of them {}, {}, {}, {}",
            names::escape_path(dir),
            counted(report.records, "record"),
            counted(report.files, "file"),
            report.directories,
            if report.directories == 1 {
                "a directory"
            } else {
                "directories"
            },
            counted(report.orphans, "orphan"),
            counted(report.pages, "page"),
            counted(report.bytes, "byte"),
        ))?;
        if report.kept_transactions > 0 {
            let count = counted(report.kept_transactions, "transaction");
            out.line(&format!("kept log: {count}"))?;
        }
    }
    out.finish()
}

fn describe(finding: &Finding) -> String {
    let place = match (&finding.path, finding.ino) {
        (Some(path), Some(ino)) => format!("{} (inode {ino})", shown(path)),
        (Some(path), None) => shown(path),
        (None, Some(ino)) => format!("inode {ino}"),
        (None, None) if finding.constraint == Constraint::KeptLog => names::escape(&finding.key),
        (None, None) => format!("key {}", names::hex(&finding.key)),
    };
    format!("{place}: {}", names::escape(finding.what.as_bytes()))
}

fn shown(path: &[u8]) -> String {
    names::escape(&absolute(path))
}

fn losses_json(salvage: &Salvage) -> Value {
    let losses = salvage.losses().iter();
    losses
        .map(|Loss { place, what }| json!({"place": place, "what": what}))
        .collect()
}

fn to_json(dir: &Path, report: &Report) -> Value {
    let findings = report.findings.iter().map(|finding| {
        let mut map = Map::new();
        map.insert("constraint".into(), finding.constraint.name().into());
        map.insert("ino".into(), finding.ino.map_or(Value::Null, Value::from));
        map.insert("key".into(), names::hex(&finding.key).into());
        map.insert("what".into(), finding.what.as_str().into());
        map.insert("path".into(), Value::Null);
        if let Some(path) = &finding.path {
            names::put(&mut map, "path", &absolute(path));
        }
        Value::Object(map)
    });
    let mut map = Map::new();
    names::put(&mut map, "store", dir.as_os_str().as_bytes());
    map.insert("clean".into(), json!(report.is_clean()));
    for (key, figure) in [
        ("records", report.records),
        ("files", report.files),
        ("directories", report.directories),
        ("orphans", report.orphans),
        ("pages", report.pages),
        ("bytes", report.bytes),
        ("kept_transactions", report.kept_transactions),
    ] {
        map.insert(key.into(), figure.into());
    }
    map.insert("findings".into(), findings.collect());
    Value::Object(map)
}
