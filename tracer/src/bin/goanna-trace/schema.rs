//! `goanna-trace schema`.

use std::fmt::Write as _;
use std::io::Write;

use amino_schema::trace::{Argument, Schema, Type};
use goanna_tracer::Error;
use goanna_tracer::read::Item;
use serde_json::json;

use crate::common::{Failure, Findings, Source, output};

const SCHEMA_HELP: &str = "\
Exit status:
  0    success
  3    something of the trace was lost or altered; stderr names it
  125  the command line is wrong, or FILE is not a trace

Examples:
  goanna-trace schema build.gtr";

/// Print the kinds of records in the trace, and their fields
#[derive(Debug, clap::Args)]
#[command(after_help = SCHEMA_HELP)]
pub struct SchemaOf {
    #[command(flatten)]
    source: Source,
    /// Print JSON, with the names of values
    #[arg(long)]
    json: bool,
}

impl SchemaOf {
    pub fn run(&self) -> Result<u8, Failure> {
        let mut reader = self.source.open()?;
        let mut findings = Findings::of(&self.source);
        let mut schema = Schema::default();
        while let Some(item) = reader.next().map_err(|error| self.source.failure(error))? {
            match item {
                Item::Schema(more) => {
                    let extended = schema.extend(&more);
                    extended.map_err(|why| self.source.failure(Error::Setup(why.to_string())))?;
                }
                Item::Finding(finding) => findings.report(&finding),
                _ => {}
            }
        }
        let text = match self.json {
            true => format!("{:#}\n", as_json(&schema)),
            false => table(&schema),
        };
        let mut out = output(None)?;
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        written.map_err(|why| Error::Output {
            output: "".into(),
            why,
        })?;
        Ok(findings.status())
    }
}

fn kind(argument: &Argument) -> String {
    match argument.kind {
        Type::Unsigned => format!("u{}", u32::from(argument.size) * 8),
        Type::Signed => format!("i{}", u32::from(argument.size) * 8),
        Type::Bytes => "bytes".to_owned(),
        Type::Data => "data".to_owned(),
    }
}

fn table(schema: &Schema) -> String {
    let mut text = String::new();
    for message in &schema.messages {
        let number = message.number.map(|number| format!(" (call {number})"));
        let _ = writeln!(
            text,
            "{} {}{}",
            message.id,
            message.name,
            number.unwrap_or_default()
        );
        for argument in message
            .arguments
            .iter()
            .filter_map(|&it| schema.argument(it))
        {
            let symbols = schema
                .symbols_of(argument)
                .map_or("", |set| set.name.as_str());
            let line = format!(
                "    {:<28} {:<6} {:<6} {:<14} {symbols}",
                argument.name,
                kind(argument),
                argument.unit,
                argument.role
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    text
}

fn as_json(schema: &Schema) -> serde_json::Value {
    let messages = schema.messages.iter().map(|message| {
        let arguments = message
            .arguments
            .iter()
            .filter_map(|&it| schema.argument(it));
        let arguments = arguments.map(|argument| {
            json!({
                "name": argument.name,
                "type": kind(argument),
                "unit": argument.unit,
                "role": argument.role,
                "symbols": schema.symbols_of(argument).map(|set| &set.name),
            })
        });
        json!({
            "id": message.id,
            "name": message.name,
            "number": message.number,
            "arguments": arguments.collect::<Vec<_>>(),
        })
    });
    let symbols = schema.symbols.iter().map(|set| {
        let values = set
            .values
            .iter()
            .map(|(value, name)| json!({ "value": value, "name": name }));
        json!({ "name": set.name, "bits": set.bits, "values": values.collect::<Vec<_>>() })
    });
    json!({
        "messages": messages.collect::<Vec<_>>(),
        "symbols": symbols.collect::<Vec<_>>(),
    })
}
