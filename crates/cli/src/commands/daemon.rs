//! `amino daemon`.

use goanna_daemon::NAME;
use goanna_daemon::client::{Connection, status, stop};
use goanna_daemon::protocol::message::Status;
use serde_json::{Map, Value, json};

use super::open::store_dir;
use crate::args::amino::{Daemon, DaemonAction};
use crate::error::Error;
use crate::report::names;
use crate::report::output::Output;

/// `amino daemon status` and `amino daemon stop`.
pub fn daemon(args: &Daemon) -> Result<u8, Error> {
    match &args.action {
        DaemonAction::Status { store, json } => {
            let owner = Connection::present(&store_dir(store)?)?;
            let status = owner.map(|owner| status(&owner)).transpose()?;
            print(status.as_ref(), *json)?;
            Ok(u8::from(status.is_none()))
        }
        DaemonAction::Stop { store, force } => {
            if let Some(owner) = Connection::present(&store_dir(store)?)? {
                stop(owner, *force)?;
            }
            Ok(0)
        }
    }
}

fn print(status: Option<&Status>, json: bool) -> Result<(), Error> {
    let mut out = Output::new();
    if json {
        return out.json(&status.map_or_else(|| json!({"running": false}), to_json));
    }
    let Some(status) = status else {
        out.line("nobody uses the store")?;
        return out.finish();
    };
    out.line(&format!(
        "{NAME} is process {}, since {} s",
        status.pid, status.seconds
    ))?;
    for run in &status.runs {
        let words = run.argv.iter().map(|word| {
            use std::os::unix::ffi::OsStrExt;
            names::escape(word.as_bytes())
        });
        let command = words.collect::<Vec<_>>().join(" ");
        out.line(&format!(
            "  process {}, since {} s, from amino run {}: {command}",
            run.pid, run.seconds, run.launcher
        ))?;
    }
    out.finish()
}

fn to_json(status: &Status) -> Value {
    let runs = status.runs.iter().map(|run| {
        use std::os::unix::ffi::OsStrExt;
        let words = run.argv.iter().map(|word| names::lossy(word.as_bytes()));
        let mut map = Map::new();
        map.insert("launcher".into(), run.launcher.into());
        map.insert("pid".into(), run.pid.into());
        map.insert("command".into(), words.collect());
        map.insert("seconds".into(), run.seconds.into());
        Value::Object(map)
    });
    json!({
        "running": true,
        "pid": status.pid,
        "seconds": status.seconds,
        "runs": runs.collect::<Vec<Value>>(),
    })
}
