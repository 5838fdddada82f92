//! `amino info`.

use std::path::Path;

use goanna_daemon::{Error as DaemonError, NAME, client};
use goanna_offline::facts::{Facts, Kept, disk_bytes};
use goanna_session::store;
use goanna_session::{Error as SessionError, StoreError, credentials};
use goanna_sys::plural::counted;
use serde_json::{Value, json};

use crate::args::amino;
use crate::commands::open::{EXISTING, store_dir};
use crate::error::Error;
use crate::report::lines::Lines;
use crate::report::metadata::time_text;
use crate::report::names;

/// `amino info`. If the store's owner cannot be asked, it prints the facts that the store's directory shows.
pub fn info(args: &amino::Info) -> Result<u8, Error> {
    let dir = store_dir(&args.store)?;
    let reached = client::reach(
        &dir,
        |owner| Ok(client::facts(owner)?.map(|(facts, pid, runs)| (facts, Some((pid, runs))))),
        || {
            let fs = store::open(&dir, EXISTING, &credentials::current())?;
            let facts = Facts::of(fs.store()).map_err(|why| SessionError::store(&dir, why));
            store::close(&dir, &fs)?;
            Ok((facts?, None))
        },
    );
    match reached {
        Ok((facts, owner)) => print(inside(&dir, &facts, owner), args.json),
        Err(error) => print(outside(&dir, error)?, args.json),
    }
}

/// The facts that the directory of a store shows, when another process has the store open and could not be asked because of
/// `error`.
fn outside(dir: &Path, error: DaemonError) -> Result<Lines, Error> {
    let error = match error {
        DaemonError::Session(error) => error,
        // The lock names an owner that cannot be asked.
        DaemonError::OtherUser(..) | DaemonError::OtherVersion(..) => {
            match store::open(dir, EXISTING, &credentials::current()) {
                Ok(_) => return Err(error.into()),
                Err(held) => held,
            }
        }
        error => return Err(error.into()),
    };
    let SessionError::Store {
        why: StoreError::Held { pid, command },
        ..
    } = error
    else {
        return Err(error.into());
    };
    let mut lines = Lines::default();
    lines.put_path("store", "store", dir);
    if let Some(engine) = store::engine_name(dir) {
        lines.put("engine", "engine", engine, engine);
    }
    put_size(&mut lines, dir);
    let shown = format!("process {pid} ({})", names::escape(command.as_bytes()));
    let holder = json!({"pid": pid, "command": command, "runs": null});
    lines.put("open by", "open_by", shown, holder);
    Ok(lines)
}

/// The facts about a store, and its owner's process id and number of commands.
fn inside(dir: &Path, facts: &Facts, owner: Option<(i32, usize)>) -> Lines {
    let mut lines = Lines::default();
    lines.put_path("store", "store", dir);
    let id = names::hex(&facts.id);
    lines.put("id", "id", &id, id.as_str());
    let engine = facts.engine.as_str();
    lines.put("engine", "engine", engine, engine);
    if let Some((format, created_ns)) = facts.made {
        lines.put("format", "format", format, format);
        let (text, json) = time(created_ns);
        lines.put("made", "created", text, json);
    }
    put_size(&mut lines, dir);
    let counts = &facts.counts;
    for (label, count) in [
        ("names", counts.names),
        ("files", counts.files),
        ("directories", counts.directories),
        ("symlinks", counts.symlinks),
        ("special", counts.special),
        ("orphans", counts.orphans),
        ("bytes", counts.bytes),
    ] {
        lines.put(label, label, count, count);
    }
    for (label, key, figure) in [
        ("sequence", "appended_seq", facts.appended_seq),
        ("durable", "durable_seq", facts.durable_seq),
        ("applied", "applied_seq", facts.applied_seq),
        ("replayed", "replayed", facts.replayed),
    ] {
        lines.put(label, key, figure, figure);
    }
    put_kept(&mut lines, &facts.kept);
    match owner {
        None => lines.put("open by", "open_by", "no other process", Value::Null),
        Some((pid, runs)) => {
            let commands = if runs == 1 { "command" } else { "commands" };
            let shown = format!("process {pid} ({}), for {runs} {commands}", NAME);
            let owner = json!({"pid": pid, "command": NAME, "runs": runs});
            lines.put("open by", "open_by", shown, owner);
        }
    }
    lines
}

/// The segments of the log that are kept, with the times of their first and last transaction.
fn put_kept(lines: &mut Lines, kept: &Kept) {
    let state = if kept.on { "on" } else { "off" };
    let mut shown = state.to_owned();
    let mut json = json!({"on": kept.on, "segments": kept.segments, "bytes": kept.bytes,
        "transactions": kept.transactions, "gaps": kept.gaps, "first": null, "last": null});
    if kept.segments > 0 || kept.gaps > 0 {
        shown += &format!(
            "; {} in {}, {}",
            counted(kept.transactions, "transaction"),
            counted(kept.segments, "segment"),
            counted(kept.bytes, "byte")
        );
    }
    if let Some((first, last)) = kept.times {
        let ((first, first_json), (last, last_json)) = (time(first), time(last));
        shown += &format!(", from {first} to {last}");
        (json["first"], json["last"]) = (first_json, last_json);
    }
    if kept.gaps > 0 {
        shown += "; some cannot be read (amino fsck)";
    }
    lines.put("kept log", "kept_log", shown, json);
}

/// A time, nanoseconds since 1970, as text and as JSON.
fn time(ns: u64) -> (String, Value) {
    let sec = i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX);
    let nsec = (ns % 1_000_000_000) as u32;
    let stamp = goanna_vfs::Stamp { sec, nsec };
    let text = time_text(stamp, "%Y-%m-%d %H:%M:%S %z");
    (text, json!({"sec": sec, "nsec": nsec}))
}

fn put_size(lines: &mut Lines, dir: &Path) {
    let bytes = disk_bytes(dir);
    lines.put("on disk", "disk_bytes", counted(bytes, "byte"), bytes);
}

fn print(lines: Lines, json: bool) -> Result<u8, Error> {
    lines.print(json)?;
    Ok(0)
}
