//! Shell completions and man pages of the programs, made from the definitions behind `--help`.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, ValueEnum};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// The maximum width of help texts, in columns. The notes and examples behind the options are formatted for it by hand. Without
/// this limit clap uses 100 columns where stdout is not a terminal, and the full width of a wide terminal.
pub const HELP_COLUMNS: usize = 80;

/// A shell whose completions can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash(1)
    Bash,
    /// zsh(1)
    Zsh,
    /// fish(1)
    Fish,
}

/// A file that could not be written.
#[derive(Debug)]
pub struct Error {
    /// The file or directory.
    pub path: PathBuf,
    /// Why.
    pub why: io::Error,
}

impl Error {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        let path = path.to_owned();
        |why| Self { path, why }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for Error {}

/// The completions of `command` for `shell`.
pub fn completions(shell: Shell, mut command: Command) -> Vec<u8> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// Writes the man page of `command` and one of each command below it to `dir`: `amino.1`, `amino-run.1`, ...
pub fn write_man_pages(dir: &Path, mut command: Command) -> Result<(), Error> {
    fs::create_dir_all(dir).map_err(Error::at(dir))?;
    // Propagates global options to the commands.
    command.build();
    let name = command.get_name().to_owned();
    write_pages(dir, &name, &command, None)
}

/// Writes the page of `command` and those of its commands.
fn write_pages(
    dir: &Path,
    page: &str,
    command: &Command,
    parent: Option<&str>,
) -> Result<(), Error> {
    write_page(dir, page, command, parent)?;
    for sub in commands(command) {
        let below = format!("{page}-{}", sub.get_name());
        write_pages(dir, &below, sub, Some(page))?;
    }
    Ok(())
}

/// The commands below `command` that have pages.
fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    let all = command.get_subcommands();
    all.filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

fn write_page(
    dir: &Path,
    page: &str,
    command: &Command,
    parent: Option<&str>,
) -> Result<(), Error> {
    let path = dir.join(format!("{page}.1"));
    let text = render(page, command, parent).map_err(Error::at(&path))?;
    fs::write(&path, text).map_err(Error::at(&path))
}

fn render(page: &str, command: &Command, parent: Option<&str>) -> std::io::Result<Vec<u8>> {
    let after = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let version = concat!("goanna and amino ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone())
        .title(page.to_uppercase())
        .source(version);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    synopsis(command).to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if commands(command).next().is_some() {
        commands_section(command, page).to_writer(&mut text)?;
    }
    help_sections(&after).to_writer(&mut text)?;
    if let Some(parent) = parent {
        let mut roff = Roff::new();
        roff.control("SH", ["SEE ALSO"]);
        roff.text([bold(parent), roman("(1)")]);
        roff.to_writer(&mut text)?;
    }
    text.flush()?;
    Ok(text)
}

/// The usage line, which unlike the generator's own synopsis names the values of options.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([roman(usage.trim_start_matches("Usage:").trim())]);
    roff
}

fn commands_section(command: &Command, page: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["COMMANDS"]);
    for sub in commands(command) {
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        roff.control("TP", []);
        roff.text([bold(format!("{page}-{}", sub.get_name())), roman("(1)")]);
        roff.text([roman(about)]);
    }
    roff
}

/// Makes sections of a help text. Its headings are the lines that begin at the margin and end in a colon; the lines below a
/// heading keep their layout.
fn help_sections(help: &str) -> Roff {
    let mut roff = Roff::new();
    let mut open = false;
    for line in help.trim_end().lines() {
        let heading = line.strip_suffix(':').filter(|h| !h.starts_with(' '));
        if heading.is_some() || !open {
            if open {
                roff.control("fi", []);
            }
            roff.control("SH", [heading.unwrap_or("NOTES").to_uppercase().as_str()]);
            roff.control("nf", []);
            open = true;
            if heading.is_some() {
                continue;
            }
        }
        roff.text([roman(line)]);
    }
    if open {
        roff.control("fi", []);
    }
    roff
}
