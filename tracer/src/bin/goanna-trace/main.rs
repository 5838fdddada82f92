//! `goanna-trace`: records the system calls of programs on files, and reads, checks and converts traces. Each subcommand has a file of
//! its own.

mod anonymize;
mod cat;
mod common;
mod export;
mod listen;
mod record;
mod recover;
mod report;
mod schema;
mod stat;
mod top;
mod verify;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use goanna_manual::{HELP_COLUMNS, Shell};
use goanna_tracer::Error;

use common::{FAILED, Failure, output};

/// Record what programs do to files, and read such traces
///
/// Without a subcommand, goanna-trace records, as goanna-trace record does.
#[derive(Debug, Parser)]
#[command(
    name = "goanna-trace",
    version,
    max_term_width = HELP_COLUMNS,
    args_conflicts_with_subcommands = true,
    after_help = MAIN_HELP
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    record: record::Record,
    #[command(flatten)]
    loudness: common::Verbosity,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Record(Box<record::Record>),
    Cat(cat::Cat),
    Stat(stat::Stat),
    Verify(verify::Verify),
    Recover(recover::Recover),
    Schema(schema::SchemaOf),
    Anonymize(anonymize::AnonymizeCommand),
    Report(report::ReportCommand),
    Export(export::Export),
    Listen(listen::Listen),
    Top(top::TopOf),
    /// Print shell completions on stdout
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write the man pages, one file a command, into a directory
    #[command(hide = true)]
    Man {
        /// The directory; created if necessary
        #[arg(value_name = "OUTDIR")]
        dir: PathBuf,
    },
}

const MAIN_HELP: &str = "\
Exit status:
  0    success
  3    of commands that read a trace: something was lost or altered
  125  the command line is wrong, FILE is not a trace, or goanna-trace failed
  goanna-trace record exits with the status of its command; see its --help.

Examples:
  goanna-trace -o build.gtr -- make
  goanna-trace -o etc.gtr --filter 'path ~ \"/etc/**\"' -p 4711
  goanna-trace cat build.gtr
  goanna-trace stat build.gtr
  goanna-trace report build.gtr -o build.html";

const COMPLETIONS_HELP: &str = "\
Examples:
  bash: source <(goanna-trace completions bash)
  zsh:  goanna-trace completions zsh > \"${fpath[1]}/_goanna-trace\"
  fish: goanna-trace completions fish | source";

fn completions(shell: Shell) -> Result<u8, Failure> {
    let script = goanna_manual::completions(shell, Arguments::command());
    let mut out = output(None)?;
    let written = out.write_all(&script).and_then(|()| out.flush());
    written.map_err(|why| Error::Output {
        output: "".into(),
        why,
    })?;
    Ok(0)
}

fn man(dir: &Path) -> Result<u8, Failure> {
    let written = goanna_manual::write_man_pages(dir, Arguments::command());
    written.map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(0)
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    arguments.loudness.set();
    let status = match arguments
        .command
        .unwrap_or_else(|| Command::Record(Box::new(arguments.record)))
    {
        Command::Record(record) => record.run(),
        Command::Cat(cat) => cat.run(),
        Command::Stat(stat) => stat.run(),
        Command::Verify(verify) => verify.run(),
        Command::Recover(recover) => recover.run(),
        Command::Schema(schema) => schema.run(),
        Command::Anonymize(anonymize) => anonymize.run(),
        Command::Report(report) => report.run(),
        Command::Export(export) => export.run(),
        Command::Listen(listen) => listen.run(),
        Command::Top(top) => top.run(),
        Command::Completions { shell } => completions(shell),
        Command::Man { dir } => man(&dir),
    };
    ExitCode::from(status.unwrap_or_else(|failure| failure.report()))
}

/// Shows help, versions and errors in the command line. Errors end with status 125, since clap's 2 could be the status of the command.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return ExitCode::from(u8::from(error.print().is_err()));
    }
    let text = error.render().to_string();
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // An error on stderr cannot be reported anywhere.
        let _ = write!(std::io::stderr(), "{text}");
        return ExitCode::from(FAILED);
    }
    let text = text.strip_prefix("error:").unwrap_or(&text);
    ExitCode::from(Failure::Usage(text.trim().to_owned()).report())
}
