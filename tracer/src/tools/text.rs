//! Writes lines in the format of strace(1) with `-f -ttt -T -y`, for programs that read its output.

use std::fmt::Write as _;
use std::io::Write;

use amino_schema::trace::pairs::Pairs;
use amino_schema::trace::record::{Record, Value};
use amino_schema::trace::{Schema, Type};

use super::fields::{Fields, Group, bytes, error_name, number, symbolic};
use super::{Consumer, clock_offset};
use crate::Error;

/// Writes a line for each record.
pub struct Text<W> {
    out: W,
    offset_ns: i64,
    line: String,
}

const AT_FDCWD: i64 = -100;

impl<W: Write> Text<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Self {
        Self {
            out,
            offset_ns: 0,
            line: String::new(),
        }
    }

    fn start(&mut self, fields: &Fields<'_>) {
        let _ = write!(self.line, "{} ", fields.thread());
        if let Some(time) = fields.time {
            let time = time.wrapping_add_signed(self.offset_ns);
            let (seconds, rest) = (time / 1_000_000_000, time % 1_000_000_000);
            let _ = write!(self.line, "{seconds}.{rest:09} ");
        }
    }

    fn call(&mut self, record: &Record<'_>, fields: &Fields<'_>) {
        self.start(fields);
        self.line.push_str(&record.message.name);
        self.line.push('(');
        let mut first = true;
        for group in &fields.arguments {
            let gone = |value: &Value<'_>| *value == Value::Absent;
            if gone(&group.value) && group.parts.iter().all(|(_, value)| gone(value)) {
                continue;
            }
            if !first {
                self.line.push_str(", ");
            }
            first = false;
            argument(&mut self.line, record.schema(), group);
        }
        self.line.push(')');
        let Some(result) = fields.result else {
            self.line.push_str(" = ?");
            return;
        };
        match fields.error() {
            Some(error) => {
                let name = error_name(record.schema(), error).unwrap_or("?");
                let _ = write!(self.line, " = -1 {name} (error {error})");
            }
            None => {
                let _ = match fields.result_unit {
                    "address" => write!(self.line, " = {result:#x}"),
                    _ => write!(self.line, " = {result}"),
                };
                if let Some(path) = fields.result_path {
                    let _ = write!(self.line, "<{}>", path.escape_ascii());
                }
            }
        }
        if let Some(took) = fields.duration {
            let (seconds, rest) = (took / 1_000_000_000, took % 1_000_000_000);
            let _ = write!(self.line, " <{seconds}.{rest:09}>");
        }
    }

    fn event(&mut self, record: &Record<'_>, fields: &Fields<'_>) {
        self.start(fields);
        let status = fields.argument("status").and_then(number);
        match (record.message.name.as_str(), status) {
            ("ended", Some(status)) if status & 0x7f == 0 => {
                let _ = write!(self.line, "+++ exited with {} +++", status >> 8 & 0xff);
            }
            ("ended", Some(status)) => {
                let _ = write!(self.line, "+++ killed by signal {} +++", status & 0x7f);
            }
            (name, _) => {
                let _ = write!(self.line, "+++ {name}");
                for group in &fields.arguments {
                    if group.value == Value::Absent {
                        continue;
                    }
                    let _ = write!(self.line, " {}=", group.argument.name);
                    argument(&mut self.line, record.schema(), group);
                    for (part, value) in &group.parts {
                        let _ = write!(self.line, " {}=", part.name);
                        argument(&mut self.line, record.schema(), &alone(part, *value));
                    }
                }
                self.line.push_str(" +++");
            }
        }
    }
}

fn alone<'a>(argument: &'a amino_schema::trace::Argument, value: Value<'a>) -> Group<'a> {
    Group {
        argument,
        value,
        parts: Vec::new(),
    }
}

fn argument(line: &mut String, schema: &Schema, group: &Group<'_>) {
    let members = || {
        group
            .parts
            .iter()
            .filter(|(_, value)| *value != Value::Absent)
    };
    let _ = match group.value {
        Value::Null => write!(line, "NULL"),
        Value::Unread(address) => write!(line, "{address:#x}"),
        Value::Absent if group.part("length").is_some() => {
            line.push_str("\"\"...");
            Ok(())
        }
        Value::Absent => {
            line.push('{');
            for (at, (part, value)) in members().enumerate() {
                let name = part.name.rsplit('.').next().unwrap_or_default();
                let separator = if at > 0 { ", " } else { "" };
                let _ = write!(line, "{separator}{name}=");
                argument(line, schema, &alone(part, *value));
            }
            line.push('}');
            Ok(())
        }
        Value::Bytes(text) if group.argument.role == "texts" => {
            let texts = text
                .strip_suffix(b"\0")
                .unwrap_or(text)
                .split(|&byte| byte == 0);
            let texts = texts.map(|text| format!("\"{}\"", text.escape_ascii()));
            write!(line, "[{}]", texts.collect::<Vec<_>>().join(", "))
        }
        Value::Bytes(_) if group.argument.kind == Type::Data => write!(line, "\"\"..."),
        Value::Bytes(text) => write!(line, "\"{}\"", text.escape_ascii()),
        Value::Number(value) => {
            let signed = value as i64;
            let symbols = schema.symbols_of(group.argument);
            let name = symbols.and_then(|symbols| symbolic(symbols, value));
            match (group.argument.role.as_str(), name) {
                ("fd", _) if signed == AT_FDCWD => write!(line, "AT_FDCWD"),
                (_, Some(name)) => write!(line, "{name}"),
                ("mode", _) => write!(line, "0{value:o}"),
                ("address" | "flags", _) => write!(line, "{value:#x}"),
                _ if group.argument.kind == Type::Signed => write!(line, "{signed}"),
                _ => write!(line, "{value}"),
            }
        }
    };
    if let Some(path) = group.part("file.path").and_then(bytes) {
        let _ = write!(line, "<{}>", path.escape_ascii());
    }
}

impl<W: Write> Consumer for Text<W> {
    fn context(&mut self, context: &Pairs) -> Result<(), Error> {
        self.offset_ns = clock_offset(context).unwrap_or(0);
        Ok(())
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), Error> {
        if record.message.name == "blob" {
            return Ok(());
        }
        let fields = Fields::of(record);
        self.line.clear();
        match record.message.number {
            Some(_) => self.call(record, &fields),
            None => self.event(record, &fields),
        }
        self.line.push('\n');
        let written = self.out.write_all(self.line.as_bytes());
        written.map_err(|why| Error::output("", why))
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.out.flush().map_err(|why| Error::output("", why))
    }
}
