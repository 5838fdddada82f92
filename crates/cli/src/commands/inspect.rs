//! `goanna check` and `goanna syscalls`.

use goanna_monitor::table::{Entry, ROWS, Rule};
use serde_json::{Value, json};

use crate::args::goanna;
use crate::error::Error;
use crate::report::output::Output;

/// `goanna check`. The status is 1 when a required feature of the machine is missing.
pub fn check(args: &goanna::Check) -> Result<u8, Error> {
    let facilities = goanna_monitor::check();
    let usable = facilities
        .iter()
        .all(|facility| facility.present || !facility.required);
    let notify = facilities
        .iter()
        .any(|facility| facility.name == "seccomp notification" && facility.present);
    let interception = match (usable, notify) {
        (false, _) => "none",
        (true, true) => "notify",
        (true, false) => "ptrace",
    };
    let status = u8::from(!usable);
    let mut out = Output::new();
    if args.json {
        let list = facilities.iter().map(|facility| {
            json!({
                "name": facility.name,
                "present": facility.present,
                "required": facility.required,
                "purpose": facility.purpose,
                "detail": facility.detail,
            })
        });
        let list: Vec<Value> = list.collect();
        out.json(&json!({"usable": usable, "interception": interception, "facilities": list}))?;
        return Ok(status);
    }
    let width = facilities
        .iter()
        .map(|facility| facility.name.len())
        .max()
        .unwrap_or(0);
    for facility in &facilities {
        let mark = match (facility.present, facility.required) {
            (true, _) => "ok     ",
            (false, true) => "MISSING",
            (false, false) => "missing",
        };
        out.line(&format!(
            "{mark}  {:width$}  {}",
            facility.name, facility.detail
        ))?;
        out.line(&format!("         {:width$}  {}", "", facility.purpose))?;
    }
    out.line(&format!("\ninterception: {interception}"))?;
    if !usable {
        out.line("programs cannot be run here: what is MISSING above is needed")?;
    }
    out.finish()?;
    Ok(status)
}

/// The errno a call fails with, always or in part.
fn errno(entry: &Entry) -> Option<String> {
    match entry.rule {
        Rule::Refuse(errno) => Some(format!("{errno:?}")),
        _ => None,
    }
}

/// `goanna syscalls`.
pub fn syscalls(args: &goanna::Syscalls) -> Result<u8, Error> {
    let filter = args.filter.as_deref().unwrap_or_default();
    let calls: Vec<&Entry> = ROWS
        .iter()
        .filter(|call| call.name.contains(filter))
        .collect();
    let mut out = Output::new();
    if args.json {
        let list = calls.iter().map(|call| {
            json!({
                "number": call.nr,
                "name": call.name,
                "treatment": call.treatment(),
                "errno": errno(call),
                "note": call.note,
            })
        });
        out.json(&Value::Array(list.collect()))?;
        return Ok(0);
    }
    let names = calls.iter().map(|call| call.name.len()).fold(4, usize::max);
    let treatments = calls
        .iter()
        .map(|call| call.treatment().len())
        .fold(9, usize::max);
    out.line(&format!(
        "  NR  {:names$}  {:treatments$}  NOTE",
        "NAME", "TREATMENT"
    ))?;
    for call in &calls {
        let (name, treatment) = (call.name, call.treatment());
        let line = format!(
            "{:>4}  {name:names$}  {treatment:treatments$}  {}",
            call.nr, call.note
        );
        out.line(line.trim_end())?;
    }
    out.finish()?;
    Ok(0)
}
