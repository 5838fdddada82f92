//! Runs a workload phase by phase natively and under the monitor, and prints seconds and ratios.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser};
use goanna_benches::{Binaries, Error, Kind, Page, Row, Setting, Unit};
use goanna_manual::HELP_COLUMNS;

/// Run a workload phase by phase natively, on passfs, on amino and on FUSE, and print seconds and ratios
///
/// Each setting has a directory of its own that is empty at first. A phase is a shell command; it runs in every setting
/// before the next phase begins, so that the machine's load affects all settings alike. Starting and ending the monitor and the
/// store are not counted.
#[derive(Debug, Parser)]
#[command(name = "workload", version, max_term_width = HELP_COLUMNS, after_help = HELP)]
struct Cli {
    #[command(flatten)]
    what: What,
    /// Settings, separated by commas [default: native,passfs,amino, and fuse when GOANNA_FUSE_PASSTHROUGH is set]
    #[arg(long = "in", value_name = "SETTING", value_enum, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// How often everything is done, each time in empty directories
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Where the directories of the settings are made; what a failed run leaves there is kept
    #[arg(long, value_name = "DIR", default_value = "/tmp")]
    dir: PathBuf,
    /// Write the page to this file, too
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct What {
    /// A source package: unpack it, ./configure, make -j2, make clean, and remove it
    #[arg(long, value_name = "FILE")]
    tarball: Option<PathBuf>,
    /// A phase; may be given several times
    #[arg(long, value_name = "NAME=COMMAND", value_parser = phase)]
    phase: Vec<Phase>,
}

const HELP: &str = "\
Examples:
  workload --tarball openssh_9.2p1.orig.tar.gz
  workload --in native,amino --rounds 5 --phase 'copy=cp -a /usr/include .' --phase 'remove=rm -r include'

Environment:
  GOANNA_BIN_DIR           where amino and goanna are, if not beside this program
  GOANNA_FUSE_PASSTHROUGH  libfuse's passthrough_ll, for the setting fuse";

/// A shell command with a name.
#[derive(Debug, Clone)]
struct Phase {
    name: String,
    command: String,
}

fn phase(text: &str) -> Result<Phase, String> {
    let (name, command) = text
        .split_once('=')
        .ok_or("no `=`; a phase is NAME=COMMAND")?;
    if name.is_empty() || command.contains('\n') {
        return Err("a phase has a name, and a command of one line".to_owned());
    }
    Ok(Phase {
        name: name.to_owned(),
        command: command.to_owned(),
    })
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("workload: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), Error> {
    let this = Path::new("/proc/self/exe");
    let this = fs::read_link(this).map_err(Error::io("read", this))?;
    let binaries = Binaries::beside(&this.with_file_name("bench-tracee"));
    let kinds = kinds(cli, &binaries)?;
    let phases = phases(&cli.what)?;
    let mut rows: Vec<Row> = phases.iter().map(|phase| empty_row(&phase.name)).collect();
    let mut total = empty_row("all");
    for round in 0..cli.rounds {
        let times = one_round(cli, &binaries, &kinds, &phases, round)?;
        let sums =
            (0..kinds.len()).map(|at| times.iter().map(|phase| phase.get(at)?.as_ref()).sum());
        total.rounds.push(sums.collect());
        for (row, times) in rows.iter_mut().zip(times) {
            row.rounds.push(times);
        }
    }
    rows.push(total);
    let page = Page {
        title: title(&cli.what),
        conditions: Page::conditions(&cli.dir),
        unit: Unit::Seconds,
        kinds,
        rows,
    };
    let text = page.markdown();
    print!("{text}");
    match &cli.output {
        Some(path) => fs::write(path, text).map_err(Error::io("write", path)),
        None => Ok(()),
    }
}

/// The requested settings. The programs of each must exist.
fn kinds(cli: &Cli, binaries: &Binaries) -> Result<Vec<Kind>, Error> {
    let kinds: Vec<Kind> = Kind::ALL
        .into_iter()
        .filter(|kind| match (cli.kinds.is_empty(), kind) {
            (false, kind) => cli.kinds.contains(kind),
            (true, Kind::Fuse) => binaries.fuse.is_some(),
            (true, kind) => matches!(kind, Kind::Native | Kind::Passfs | Kind::Amino),
        })
        .collect();
    for kind in &kinds {
        kind.program(binaries)?;
    }
    Ok(kinds)
}

fn phases(what: &What) -> Result<Vec<Phase>, Error> {
    let Some(tarball) = &what.tarball else {
        return Ok(what.phase.clone());
    };
    let tarball = fs::canonicalize(tarball).map_err(Error::io("find", tarball))?;
    let phase = |name: &str, command: String| Phase {
        name: name.to_owned(),
        command,
    };
    Ok(vec![
        phase("unpack", format!("tar -xf {}", quoted(&tarball))),
        phase("configure", "cd -- */ && ./configure".to_owned()),
        phase("make -j2", "cd -- */ && make -j2".to_owned()),
        phase("make clean", "cd -- */ && make clean".to_owned()),
        phase("remove", "rm -r -- */".to_owned()),
    ])
}

/// Every phase in every setting: nanoseconds, by phase and setting.
fn one_round(
    cli: &Cli,
    binaries: &Binaries,
    kinds: &[Kind],
    phases: &[Phase],
    round: u32,
) -> Result<Vec<Vec<Option<f64>>>, Error> {
    let scratch = tempfile::Builder::new()
        .prefix("goanna-workload")
        .tempdir_in(&cli.dir)
        .map_err(Error::io("make a directory in", &cli.dir))?;
    let mut settings = kinds
        .iter()
        .map(|&kind| Setting::start(kind, binaries, scratch.path()))
        .collect::<Result<Vec<_>, _>>()?;
    let times = alternate(&mut settings, phases, round, scratch.path());
    // Tracees, monitors and mounts end before the directories are removed.
    drop(settings);
    if times.is_err() {
        eprintln!("workload: kept {}", scratch.keep().display());
    }
    times
}

fn alternate(
    settings: &mut [Setting],
    phases: &[Phase],
    round: u32,
    scratch: &Path,
) -> Result<Vec<Vec<Option<f64>>>, Error> {
    let mut all = Vec::with_capacity(phases.len());
    for (nth, phase) in phases.iter().enumerate() {
        let mut times = vec![None; settings.len()];
        for step in 0..settings.len() {
            let at = (round as usize + nth + step) % settings.len();
            let (Some(setting), Some(time)) = (settings.get_mut(at), times.get_mut(at)) else {
                continue;
            };
            let name = setting.kind().name();
            let log = scratch.join(format!("{name}.{nth}.log"));
            // In a group and on the host: the command's output is part of the work, but not of the setting.
            let command = format!("{{ {} ; }} >{} 2>&1", phase.command, quoted(&log));
            let elapsed = setting.shell(&command).inspect_err(|_| {
                eprintln!("workload: {}, {name}, failed:\n{}", phase.name, tail(&log));
            })?;
            eprintln!(
                "{:12} {name:14} {:8.2} s",
                phase.name,
                elapsed.as_secs_f64()
            );
            *time = Some(elapsed.as_nanos() as f64);
        }
        all.push(times);
    }
    Ok(all)
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// A path as one word of the shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

fn empty_row(label: &str) -> Row {
    Row {
        label: label.to_owned(),
        rounds: Vec::new(),
    }
}

fn title(what: &What) -> String {
    let name = what.tarball.as_deref().and_then(Path::file_name);
    name.map_or_else(
        || "Workload".to_owned(),
        |name| format!("Workload: {}", name.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_understood() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["workload"], args].concat());
        let cli = parse(&[
            "--phase",
            "a=x=1 true",
            "--phase",
            "b=false",
            "--in",
            "native,amino",
        ]);
        let cli = cli.unwrap();
        let phases = phases(&cli.what).unwrap();
        assert_eq!(
            (phases[0].name.as_str(), phases[0].command.as_str()),
            ("a", "x=1 true")
        );
        assert_eq!(phases[1].name, "b");
        assert_eq!(cli.kinds, [Kind::Native, Kind::Amino]);
        assert!(parse(&[]).is_err());
        assert!(parse(&["--phase", "nothing"]).is_err());
        assert!(parse(&["--phase", "a=b", "--tarball", "c"]).is_err());
    }

    #[test]
    fn a_quote_in_a_path_stays_in_the_word() {
        assert_eq!(quoted(Path::new("/a'b c")), r"'/a'\''b c'");
    }
}
