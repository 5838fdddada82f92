//! `amino run` and `goanna run`.

use goanna_daemon::client::{self, Messages};
use goanna_monitor::{Reporter, Status};
use goanna_session::mounts::{self, MountSpec};
use goanna_session::profile::ProfileSource;
use goanna_session::{AbortReason, Environment, Plan, RunResult, TraceFile, credentials, perform};

use super::mounting::{mounts_of, note_hidden};
use super::nested;
use super::open::store_dir;
use crate::args::amino::{self, RunOptions};
use crate::args::common::Keep;
use crate::args::{StatsFormat, Verbosity, goanna};
use crate::error::{Error, report};
use crate::mount_types::MOUNT_TYPES;
use crate::report::messages::{note, show_failure, show_report};
use crate::report::stats;
use crate::report::status::command_end;

/// `amino run`.
pub fn amino(args: amino::Run, verbosity: Verbosity) -> Result<u8, Error> {
    if goanna_monitor::inside() {
        return nested::amino(&args, verbosity);
    }
    let dir = store_dir(&args.store)?;
    let mut specs = vec![mounts::of_store(
        dir.clone(),
        &args.at,
        args.durability.into(),
    )?];
    note_hidden(&args.at, verbosity);
    specs.extend(mounts_of(&args.options)?);
    let mut plan = Plan {
        default_store: args.store.store.is_none(),
        engine: args.engine.map(Into::into),
        keep_log: args.keep_log.map(|keep| keep == Keep::On),
        one_transaction: args.txn,
        ..plan(specs, &args.options)
    };
    plan.check()?;
    let profile = args.profile.as_deref();
    plan.profile = profile.map(ProfileSource::read).transpose()?;
    let messages = Messages {
        note: &|text| note(text, verbosity),
        failure: &show_failure,
    };
    let trace = trace(&args.options)?;
    let (argv, intercept) = (args.options.run.command, args.options.intercept.into());
    let result = client::run(&dir, plan, argv, intercept, messages, trace)?;
    conclude(result, args.options.stats, verbosity)
}

/// `goanna run`.
pub fn goanna(args: goanna::Run, verbosity: Verbosity) -> Result<u8, Error> {
    if goanna_monitor::inside() {
        return nested::goanna(&args, verbosity);
    }
    let specs = mounts_of(&args.options)?;
    if specs.is_empty() {
        return Err(Error::NoMounts);
    }
    let plan = plan(specs, &args.options);
    let trace = trace(&args.options)?;
    let (argv, intercept) = (args.options.run.command, args.options.intercept.into());
    let signals = goanna_monitor::prepare().map_err(Error::Signals)?;
    let environment = Environment {
        types: MOUNT_TYPES,
        owned: None,
        caller: &credentials::current(),
        note: Reporter::new(move |text| note(text, verbosity)),
        fail: Reporter::new(show_failure),
        observers: Vec::new(),
        trace,
        describe: Box::new(|error| report(&error.into())),
    };
    let result = perform(&plan, environment, |run| {
        Ok(run.command(argv, intercept, &signals)?)
    })?;
    conclude(result, args.options.stats, verbosity)
}

/// The file of `--trace`.
fn trace(options: &RunOptions) -> Result<Option<TraceFile>, Error> {
    let name = options.trace.as_deref();
    let file = name.map(|name| TraceFile::create(name, &options.run.command));
    Ok(file.transpose()?)
}

/// The common part of `amino run` and `goanna run`.
fn plan(specs: Vec<MountSpec>, options: &RunOptions) -> Plan {
    Plan {
        specs,
        engine: None,
        keep_log: None,
        create: options.create,
        trace: options.trace.clone(),
        default_store: false,
        one_transaction: false,
        profile: None,
        outside: options.outside.into(),
        stats: options.stats.is_some(),
        in_process: !options.no_fast_path,
    }
}

/// Shows the result of the run. Returns the exit status.
fn conclude(
    result: RunResult,
    format: Option<StatsFormat>,
    verbosity: Verbosity,
) -> Result<u8, Error> {
    if let (Some(run_stats), Some(format)) = (&result.stats, format) {
        show_report(&stats::text(run_stats, format, verbosity.verbose > 0));
    }
    let status = match result.ended {
        Ok(code) => Status::Exited(code),
        Err(signal) => Status::Signaled(signal),
    };
    if let Some(reason) = result.aborted {
        let why = abort_reason(reason, status);
        note(&format!("{why}; the transaction was aborted"), verbosity);
    }
    if result.lost > 0 {
        return Err(Error::Lost(result.lost));
    }
    Ok(status.exit_code())
}

fn abort_reason(reason: AbortReason, status: Status) -> String {
    match reason {
        AbortReason::CommandFailed => command_end(status),
        AbortReason::RunEnded => "the run was ended before all of its processes were done".into(),
        AbortReason::ProcessKilled { name, pid, signal } => {
            format!("signal {signal} killed {name} ({pid}), which the command had left running")
        }
    }
}
