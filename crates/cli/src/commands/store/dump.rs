//! `amino dump` and `amino load`.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use amino_fs::EngineKind;
use goanna_daemon::{Error as DaemonError, client};
use goanna_offline::dump::{self, DumpError, DumpTotals};
use goanna_session::store::{self, Create};
use goanna_session::{Engine as StoreEngine, credentials};
use goanna_sys::plural::counted;
use goanna_sys::replacement::Replacement;
use indicatif::ProgressBar;
use serde_json::{Map, json};

use crate::args::{Verbosity, amino};
use crate::commands::open::{EXISTING, store_dir};
use crate::error::Error;
use crate::report::copy::{show_count, spinner};
use crate::report::messages::note;
use crate::report::names;
use crate::report::output::Output;

/// The operand for standard input and output.
const STANDARD: &str = "-";

/// The destination of a dump.
enum Target {
    Stdout(io::Stdout),
    Named(File, Replacement),
}

impl Target {
    fn open(path: &Path) -> Result<Self, Error> {
        if path == Path::new(STANDARD) {
            let stdout = io::stdout();
            if stdout.is_terminal() {
                return Err(Error::DumpToTerminal);
            }
            return Ok(Self::Stdout(stdout));
        }
        let failed = |why| Error::host(path, why);
        let replacement = Replacement::begin_private(path).map_err(failed)?;
        let file = File::options().write(true).open(replacement.file());
        Ok(Self::Named(file.map_err(failed)?, replacement))
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Stdout(stdout) => stdout,
            Self::Named(file, _) => file,
        }
    }

    fn complete(self, path: &Path) -> Result<(), Error> {
        match self {
            Self::Stdout(_) => Ok(()),
            Self::Named(_, replacement) => {
                let named = replacement.finish_synced();
                named.map_err(|why| Error::host(path, why))
            }
        }
    }
}

/// `amino dump`.
pub fn dump(args: &amino::Dump, verbosity: Verbosity) -> Result<u8, Error> {
    let dir = store_dir(&args.store)?;
    store::must_exist(&dir)?;
    let is_standard = args.output == Path::new(STANDARD);
    if args.json && is_standard {
        return Err(Error::DumpAndJson);
    }
    let mut target = Target::open(&args.output)?;
    let bar = spinner(verbosity);
    let written = write(&dir, target.writer(), &bar);
    bar.finish_and_clear();
    let totals = written.map_err(|error| match error {
        DaemonError::Dump(_, DumpError::Write(why)) if is_standard => Error::Output(why),
        DaemonError::Dump(_, DumpError::Write(why)) => Error::host(&args.output, why),
        error => error.into(),
    })?;
    target.complete(&args.output)?;
    if is_standard {
        return Ok(0);
    }
    print_totals("dumped", &totals, &dir, args.json, verbosity)
}

/// Writes the store `dir` to `out`.
fn write(dir: &Path, out: &mut dyn Write, bar: &ProgressBar) -> Result<DumpTotals, DaemonError> {
    let out = RefCell::new(BufWriter::with_capacity(1 << 16, out));
    let alone = || {
        let fs = store::open(dir, EXISTING, &credentials::current())?;
        let mut progress = |records| show_count(bar, records, "records");
        let dumped = dump::dump(fs.store(), &mut *out.borrow_mut(), &mut progress);
        store::close(dir, &fs)?;
        Ok(dumped.map_err(|why| DaemonError::Dump(dir.to_owned(), why)))
    };
    let through = |owner| {
        let progress = |bytes| show_count(bar, bytes, "bytes");
        let dumped = client::dump(owner, dir, &mut *out.borrow_mut(), &progress)?;
        Ok(dumped.map(Ok))
    };
    client::reach(dir, through, alone)?
}

/// `amino load`.
pub fn load(args: &amino::Load, verbosity: Verbosity) -> Result<u8, Error> {
    let dir = store_dir(&args.store)?;
    store::prepare(&dir, Create::new(args.create || args.store.store.is_none()))?;
    let engine = args.engine.map_or(StoreEngine::Fjall, Into::into);
    let bar = spinner(verbosity);
    let mut progress = |records| show_count(&bar, records, "records");
    let loaded = if args.file == Path::new(STANDARD) {
        dump::load(
            io::stdin().lock(),
            &dir,
            EngineKind::from(engine),
            &mut progress,
        )
    } else {
        let file = File::open(&args.file).map_err(|why| Error::host(&args.file, why))?;
        dump::load(file, &dir, EngineKind::from(engine), &mut progress)
    };
    bar.finish_and_clear();
    let totals = loaded.map_err(|why| match why {
        DumpError::Host { path, why } => Error::host(&path, why),
        DumpError::Exists(dir) => Error::StoreExists(dir),
        DumpError::Store(_) => Error::Dump {
            place: dir.clone(),
            why,
        },
        _ if args.file == Path::new(STANDARD) => Error::Dump {
            place: "standard input".into(),
            why,
        },
        _ => Error::Dump {
            place: args.file.clone(),
            why,
        },
    })?;
    print_totals("loaded", &totals, &dir, args.json, verbosity)
}

fn print_totals(
    done: &str,
    totals: &DumpTotals,
    dir: &Path,
    json: bool,
    verbosity: Verbosity,
) -> Result<u8, Error> {
    let DumpTotals { records, bytes } = *totals;
    if json {
        let mut map = Map::new();
        names::put(&mut map, "store", dir.as_os_str().as_bytes());
        map.insert("records".into(), json!(records));
        map.insert("bytes".into(), json!(bytes));
        Output::new().json(&map.into())?;
    } else {
        let dir = names::escape_path(dir);
        let (records, bytes) = (counted(records, "record"), counted(bytes, "byte"));
        note(&format!("{dir}: {done} {records}, {bytes}"), verbosity);
    }
    Ok(0)
}
