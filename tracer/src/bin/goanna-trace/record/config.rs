//! Configuration files: several tracers, each with the three sections of Tracefs (input filter, assembly, outputs).
//!
//! The keys of a section are options of the command line, and are read by the same parser.

use std::path::Path;

use clap::Parser;
use goanna_sys::escape::escape_path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::tracer::Tracer;
use crate::common::{Failure, message_of_lines};

/// One tracer by itself.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct SingleTracer {
    #[command(flatten)]
    tracer: Tracer,
}

/// Keys of `[tracer.assembly]`, and the options of the command line that they set.
const ASSEMBLY: [(&str, &str); 4] = [
    ("driver", "--assemble"),
    ("every", "--every"),
    ("fields", "--fields"),
    ("data", "--data"),
];
/// Keys of `[tracer.outputs]`.
const OUTPUTS: [(&str, &str); 8] = [
    ("file", "--output"),
    ("to", "--to"),
    ("buffer", "--buffer"),
    ("block", "--block"),
    ("rotate", "--rotate"),
    ("keep", "--keep"),
    ("on-error", "--on-error"),
    ("sync-writes", "--sync-writes"),
];
/// The beginnings of entries of `filters` and their options.
const FILTERS: [(&str, &str); 2] = [("hmac:", "--hmac-key"), ("encrypt:", "--encrypt-key")];

type Value<'t> = Spanned<DeValue<'t>>;

/// The tracers that the file describes.
pub fn read(path: &Path) -> Result<Vec<Tracer>, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|why| Failure::Usage(format!("{}: {why}", escape_path(path))))?;
    let file = File { path, text: &text };
    let table = DeTable::parse(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        file.error(at, error.message())
    })?;
    let mut tracers = Vec::new();
    for (key, value) in table.get_ref() {
        let tables = value
            .get_ref()
            .as_array()
            .filter(|_| key.get_ref() == "tracer");
        let tables = tables
            .ok_or_else(|| file.error(key.span().start, "only tables [[tracer]] are known here"))?;
        for table in tables {
            tracers.push(file.tracer(table)?);
        }
    }
    if tracers.is_empty() {
        return Err(file.error(0, "there is no table [[tracer]]"));
    }
    for (at, tracer) in tracers.iter().enumerate() {
        let same =
            |it: &Tracer| it.to.is_none() && tracer.to.is_none() && it.output == tracer.output;
        if tracers.iter().take(at).any(same) {
            let output = tracer.output.display();
            return Err(file.error(text.len(), &format!("two tracers write to {output}")));
        }
    }
    Ok(tracers)
}

struct File<'t> {
    path: &'t Path,
    text: &'t str,
}

impl File<'_> {
    fn error(&self, at: usize, why: &str) -> Failure {
        let (path, line) = (escape_path(self.path), self.line(at));
        Failure::Usage(format!("{path}:{line}: {}", why.trim()))
    }

    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at);
        let before = before.unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|&&byte| byte == b'\n').count()
    }

    fn tracer(&self, table: &Value<'_>) -> Result<Tracer, Failure> {
        let at = table.span().start;
        let sections = table.get_ref().as_table();
        let sections = sections.ok_or_else(|| self.error(at, "tracer: must be a table"))?;
        let mut words = Vec::new();
        for (key, value) in sections {
            let start = key.span().start;
            let mut section = |keys| self.section(key.get_ref(), value, keys, &mut words);
            match &**key.get_ref() {
                "filter" => {
                    let text = self.text_of("filter", value)?;
                    let added = self.option(value, "filter", &[format!("--filter={text}")])?;
                    added.select().map_err(|why| {
                        // The error has several lines, which show the column.
                        let why = why.trim_start_matches("--");
                        message_of_lines(&format!(
                            "{}:{}: {why}",
                            escape_path(self.path),
                            self.line(start)
                        ));
                        Failure::Reported
                    })?;
                    words.extend(self.option_words("--filter", value)?);
                }
                "assembly" => section(&ASSEMBLY)?,
                "outputs" => section(&OUTPUTS)?,
                _ => {
                    let why = format!(
                        "{}: there is no such section; known are filter, assembly and outputs",
                        key.get_ref()
                    );
                    return Err(self.error(start, &why));
                }
            }
        }
        let named = |word: &String| word.starts_with("--output=") || word.starts_with("--to=");
        let named = words.iter().any(named);
        if !named {
            return Err(self.error(at, "outputs: file or to is missing"));
        }
        let parsed = SingleTracer::try_parse_from(&words);
        parsed
            .map(|it| it.tracer)
            .map_err(|error| self.error(at, &reason(&error)))
    }

    /// Appends the options that the keys of a section stand for.
    fn section(
        &self,
        name: &str,
        section: &Value<'_>,
        keys: &[(&str, &str)],
        words: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let table = section.get_ref().as_table();
        let table = table.ok_or_else(|| {
            self.error(
                section.span().start,
                &format!("{name}: must be a table [tracer.{name}]"),
            )
        })?;
        for (key, value) in table {
            let start = key.span().start;
            let key: &str = key.get_ref();
            if name == "outputs" && key == "filters" {
                self.filters(value, words)?;
                continue;
            }
            let Some((_, option)) = keys.iter().find(|(known, _)| *known == key) else {
                let mut known = keys.iter().map(|(known, _)| *known).collect::<Vec<_>>();
                if name == "outputs" {
                    known.push("filters");
                }
                let why = format!(
                    "{key}: there is no such key; known are {}",
                    known.join(", ")
                );
                return Err(self.error(start, &why));
            };
            let added = match value.get_ref() {
                DeValue::Boolean(true) => vec![(*option).to_owned()],
                DeValue::Boolean(false) => Vec::new(),
                _ => self.option_words(option, value)?,
            };
            // --keep needs --rotate beside it.
            if *option != "--keep" {
                self.option(value, key, &added)?;
            }
            words.extend(added);
        }
        Ok(())
    }

    /// The output filters, in their order.
    fn filters(&self, value: &Value<'_>, words: &mut Vec<String>) -> Result<(), Failure> {
        let list = value.get_ref().as_array();
        let list =
            list.ok_or_else(|| self.error(value.span().start, "filters: must be a list of texts"))?;
        for entry in list {
            let text = self.text_of("filters", entry)?;
            let by_key = FILTERS.iter().find_map(|(start, option)| {
                Some(format!("{option}={}", text.strip_prefix(start)?))
            });
            let added = [by_key.unwrap_or_else(|| format!("--compress={text}"))];
            self.option(entry, "filters", &added).map_err(|_| {
                let why = format!(
                    "filters: {text:?} is none of zstd, zstd:LEVEL, hmac:FILE, encrypt:FILE"
                );
                self.error(entry.span().start, &why)
            })?;
            words.extend(added);
        }
        Ok(())
    }

    fn text_of(&self, key: &str, value: &Value<'_>) -> Result<String, Failure> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(number) => Ok(number.to_string()),
            _ => Err(self.error(
                value.span().start,
                &format!("{key}: must be a text or a number"),
            )),
        }
    }

    fn option_words(&self, option: &str, value: &Value<'_>) -> Result<Vec<String>, Failure> {
        let text = self.text_of(option.trim_start_matches('-'), value)?;
        Ok(vec![format!("{option}={text}")])
    }

    /// Parses one option alone, so that an error names its line.
    fn option(&self, value: &Value<'_>, key: &str, words: &[String]) -> Result<Tracer, Failure> {
        let parsed = SingleTracer::try_parse_from(words).map(|it| it.tracer);
        let start = value.span().start;
        parsed.map_err(|error| self.error(start, &format!("{key}: {}", reason(&error))))
    }
}

/// The message of clap in one line, without usage and hints.
fn reason(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let lines = text.lines().take_while(|line| !line.is_empty());
    let line = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    line.trim_start_matches("error:").trim().to_owned()
}
