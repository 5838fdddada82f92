//! JSON lines: an object a record.

use std::io::Write;

use amino_schema::trace::Type;
use amino_schema::trace::pairs::Pairs;
use amino_schema::trace::record::{Record, Value};
use serde_json::{Map, Value as Json, json};

use super::fields::{error_name, symbolic};
use super::{Consumer, clock_offset};
use crate::Error;

/// Writes an object for each record: `message` and the fields by their names. `NAME.names` has the names of flags, `error` that of an
/// error, `realtime` the time in nanoseconds since 1970. An argument of a call that has the name of a field of its thread is `NAME.argument`. Bytes that are not UTF-8 become `{"hex": "..."}`.
pub struct JsonLines<W> {
    out: W,
    offset_ns: Option<i64>,
}

impl<W: Write> JsonLines<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Self {
        let offset_ns = None;
        Self { out, offset_ns }
    }
}

/// The object of a record. `offset_ns` converts times of the trace to real times.
pub(super) fn object_of(record: &Record<'_>, offset_ns: Option<i64>) -> Map<String, Json> {
    let schema = record.schema();
    let mut object = Map::new();
    object.insert("message".into(), record.message.name.as_str().into());
    for (argument, value) in record.fields() {
        let name = &argument.name;
        let json = match (value, argument.kind) {
            (Value::Absent, _) => continue,
            (Value::Null, _) => Json::Null,
            (Value::Unread(address), _) => json!({ "unread": address }),
            (Value::Number(number), kind) => {
                let signed = number as i64;
                if argument.role == "result" {
                    if (-4095..0).contains(&signed) {
                        let error = error_name(schema, signed.unsigned_abs());
                        object.insert("error".into(), error.into());
                    }
                } else if let Some(symbols) = schema.symbols_of(argument) {
                    let names = symbolic(symbols, number);
                    object.insert(format!("{name}.names"), names.into());
                } else if argument.role == "time"
                    && let Some(offset) = offset_ns
                {
                    let real = number.wrapping_add_signed(offset);
                    object.insert("realtime".into(), real.into());
                }
                match kind {
                    Type::Signed => signed.into(),
                    _ => number.into(),
                }
            }
            (Value::Bytes(bytes), _) if argument.role == "hash" => hex(bytes),
            (Value::Bytes(bytes), Type::Data) => hex(bytes),
            (Value::Bytes(bytes), _) => text(bytes),
        };
        // An argument of wait4(2) has the name of the field before it.
        let name = match object.contains_key(name) {
            true => format!("{name}.argument"),
            false => name.clone(),
        };
        object.insert(name, json);
    }
    object
}

fn text(bytes: &[u8]) -> Json {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => hex(bytes),
    }
}

fn hex(bytes: &[u8]) -> Json {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    json!({ "hex": digits.collect::<String>() })
}

impl<W: Write> Consumer for JsonLines<W> {
    fn context(&mut self, context: &Pairs) -> Result<(), Error> {
        self.offset_ns = clock_offset(context);
        Ok(())
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let object = object_of(record, self.offset_ns);
        let written = serde_json::to_writer(&mut self.out, &object).map_err(Into::into);
        let written = written.and_then(|()| self.out.write_all(b"\n"));
        written.map_err(|why: std::io::Error| Error::output("", why))
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.out.flush().map_err(|why| Error::output("", why))
    }
}
