//! The Common Trace Format, version 1.8, which babeltrace2 and Trace Compass read: a directory with a stream for each thread, and a file
//! `metadata` that describes the events.
//!
//! An event has the fields that its record has. So if records of a call have different fields, the call has several event classes of one
//! name.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use amino_schema::trace::pairs::Pairs;
use amino_schema::trace::record::{Record, Value};
use amino_schema::trace::{Argument, Type};

use super::fields::{Fields, error_name, symbolic};
use super::{Consumer, clock_offset};
use crate::Error;
use crate::read::number;

/// Writes a trace directory.
pub struct Ctf {
    directory: PathBuf,
    context: Pairs,
    /// Event classes: their description, and their number.
    classes: HashMap<String, u32>,
    /// Descriptions in the order of their numbers.
    described: Vec<String>,
    streams: HashMap<i64, Stream>,
    payload: Vec<u8>,
}

/// The stream of a thread.
#[derive(Default)]
struct Stream {
    events: Vec<u8>,
    begin_ns: u64,
    end_ns: u64,
}

const MAGIC: u32 = 0xc1fc_1fc1;
/// Bytes of a packet's header and context.
const HEAD: usize = 8 + 32;
/// Bytes of events after which a packet is written.
const PACKET: usize = 256 << 10;
/// Maximum number of streams; threads beyond share the last one, in which times stand still rather than go back.
const MAX_STREAMS: usize = 1 << 16;
/// Maximum number of event classes. The fields of records come from the trace, so their combinations are bounded here.
const MAX_CLASSES: usize = 1 << 16;

const START: &str = r"/* CTF 1.8 */

typealias integer { size = 8; align = 8; signed = false; } := u8;
typealias integer { size = 16; align = 8; signed = false; } := u16;
typealias integer { size = 32; align = 8; signed = false; } := u32;
typealias integer { size = 64; align = 8; signed = false; } := u64;
typealias integer { size = 8; align = 8; signed = true; } := i8;
typealias integer { size = 16; align = 8; signed = true; } := i16;
typealias integer { size = 32; align = 8; signed = true; } := i32;
typealias integer { size = 64; align = 8; signed = true; } := i64;
typealias integer { size = 16; align = 8; signed = false; base = 8; } := octal16;
typealias integer { size = 32; align = 8; signed = false; base = 8; } := octal32;
typealias integer { size = 64; align = 8; signed = false; base = 8; } := octal64;
typealias integer { size = 64; align = 8; signed = false; base = 16; } := address;

trace {
    major = 1;
    minor = 8;
    byte_order = le;
    packet.header := struct { u32 magic; u32 stream_id; };
};
";

const STREAM: &str = r"
typealias integer { size = 64; align = 8; signed = false; map = clock.monotonic.value; } := time;

stream {
    id = 0;
    packet.context := struct { time timestamp_begin; time timestamp_end; u64 content_size; u64 packet_size; };
    event.header := struct { u32 id; time timestamp; };
};
";

impl Ctf {
    /// Writes to `directory`, which must not exist, or be empty.
    pub fn create(directory: &Path) -> Result<Self, Error> {
        let error = |why| Error::output(directory, why);
        fs::create_dir_all(directory).map_err(error)?;
        let mut entries = fs::read_dir(directory).map_err(error)?;
        if entries.next().is_some() {
            return Err(error(std::io::ErrorKind::DirectoryNotEmpty.into()));
        }
        Ok(Self {
            directory: directory.to_owned(),
            context: Pairs::new(),
            classes: HashMap::new(),
            described: Vec::new(),
            streams: HashMap::new(),
            payload: Vec::new(),
        })
    }

    /// Fills the payload, and returns the description of the event's class.
    fn event(&mut self, record: &Record<'_>) -> String {
        self.payload.clear();
        let mut class = format!(
            "name = {}; stream_id = 0; fields := struct {{",
            quoted(&record.message.name)
        );
        let mut names = Vec::new();
        let schema = record.schema();
        for (argument, value) in record.fields() {
            let mut put = |suffix: &str, kind: &str| {
                let mut name = identifier(&argument.name, suffix);
                while names.contains(&name) {
                    name.push_str("_argument");
                }
                let _ = write!(class, " {kind} {name};");
                names.push(name);
            };
            match value {
                Value::Absent => {}
                Value::Null => {
                    put("", "address");
                    self.payload.extend_from_slice(&[0; 8]);
                }
                Value::Unread(address) => {
                    put("", "address");
                    self.payload.extend_from_slice(&address.to_le_bytes());
                }
                Value::Number(number) => {
                    let (kind, size) = integer(argument);
                    put("", kind);
                    let bytes = number.to_le_bytes();
                    self.payload
                        .extend_from_slice(bytes.get(..size).unwrap_or(&bytes));
                    let signed = number as i64;
                    let text = match argument.role.as_str() {
                        "result" if (-4095..0).contains(&signed) => {
                            error_name(schema, signed.unsigned_abs()).map(str::to_owned)
                        }
                        "result" => None,
                        _ => schema
                            .symbols_of(argument)
                            .and_then(|it| symbolic(it, number)),
                    };
                    if let Some(text) = text {
                        put(
                            if argument.role == "result" {
                                "_error"
                            } else {
                                "_names"
                            },
                            "string",
                        );
                        put_string(&mut self.payload, text.as_bytes());
                    }
                }
                Value::Bytes(bytes) if argument.role == "hash" => {
                    put("", "string");
                    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
                    put_string(&mut self.payload, digits.collect::<String>().as_bytes());
                }
                Value::Bytes(bytes) => {
                    put("", "string");
                    put_string(&mut self.payload, bytes);
                }
            }
        }
        class.push_str(" };");
        class
    }

    fn metadata(&self) -> String {
        let mut text = START.to_owned();
        text.push_str("\nenv {\n    domain = \"goanna-trace\";\n");
        for (name, key) in [
            ("host", "hostname"),
            ("kernel", "kernel_release"),
            ("program", "tracer_name"),
        ] {
            if let Some((_, value)) = self.context.iter().find(|(it, _)| it == name) {
                let value = quoted(&String::from_utf8_lossy(value));
                let _ = writeln!(text, "    {key} = {value};");
            }
        }
        let offset = clock_offset(&self.context).unwrap_or(0).max(0);
        let _ = write!(
            text,
            "}};\n\nclock {{\n    name = monotonic;\n    freq = 1000000000;\n    offset_s = {};\n    offset = {};\n}};\n{STREAM}",
            offset / 1_000_000_000,
            offset % 1_000_000_000
        );
        for (id, class) in self.described.iter().enumerate() {
            let _ = write!(text, "\nevent {{ id = {id}; {class} }};");
        }
        text.push('\n');
        text
    }

    /// Appends the events of a stream as a packet.
    fn write(directory: &Path, name: i64, stream: &mut Stream) -> Result<(), Error> {
        let path = directory.join(format!("thread_{name}"));
        let bits = (HEAD + stream.events.len()) as u64 * 8;
        let mut packet = Vec::with_capacity(HEAD + stream.events.len());
        packet.extend_from_slice(&MAGIC.to_le_bytes());
        packet.extend_from_slice(&0u32.to_le_bytes());
        for field in [stream.begin_ns, stream.end_ns, bits, bits] {
            packet.extend_from_slice(&field.to_le_bytes());
        }
        packet.append(&mut stream.events);
        stream.begin_ns = stream.end_ns;
        let opened = OpenOptions::new().create(true).append(true).open(&path);
        let written = opened.and_then(|mut file| file.write_all(&packet));
        written.map_err(|why| Error::output(&path, why))
    }
}

impl Consumer for Ctf {
    fn context(&mut self, context: &Pairs) -> Result<(), Error> {
        if self.context.is_empty() {
            self.context.clone_from(context);
        }
        Ok(())
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), Error> {
        if record.message.arguments.iter().any(|&it| {
            record
                .schema()
                .argument(it)
                .is_some_and(|it| it.kind == Type::Data)
        }) {
            return Ok(());
        }
        let fields = Fields::of(record);
        let class = self.event(record);
        let next = self.classes.len() as u32;
        let id = match self.classes.get(&class) {
            Some(id) => *id,
            None if self.classes.len() >= MAX_CLASSES => {
                return Err(Error::Setup(format!(
                    "the trace has more than {MAX_CLASSES} kinds of records"
                )));
            }
            None => {
                self.classes.insert(class.clone(), next);
                self.described.push(class);
                next
            }
        };
        let full =
            self.streams.len() >= MAX_STREAMS && !self.streams.contains_key(&fields.thread());
        let name = if full { 0 } else { fields.thread() };
        let stream = self.streams.entry(name).or_default();
        let start = || number(&self.context, "clock.monotonic");
        let time = match fields.time {
            Some(time) => time,
            None if stream.end_ns == 0 => start().unwrap_or(0),
            None => 0,
        };
        // A stream's times do not go back.
        let time = time.max(stream.end_ns);
        if stream.end_ns == 0 {
            stream.begin_ns = time;
        }
        stream.end_ns = time;
        stream.events.extend_from_slice(&id.to_le_bytes());
        stream.events.extend_from_slice(&time.to_le_bytes());
        stream.events.extend_from_slice(&self.payload);
        if stream.events.len() >= PACKET {
            Self::write(&self.directory, name, stream)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        for (name, stream) in &mut self.streams {
            if !stream.events.is_empty() {
                Self::write(&self.directory, *name, stream)?;
            }
        }
        let path = self.directory.join("metadata");
        fs::write(&path, self.metadata()).map_err(|why| Error::output(&path, why))
    }
}

/// The type of a number, and its bytes.
fn integer(argument: &Argument) -> (&'static str, usize) {
    let signed = argument.kind == Type::Signed;
    match (argument.role.as_str(), argument.size, signed) {
        ("mode" | "file.mode", 2, false) => ("octal16", 2),
        ("mode" | "file.mode", 4, false) => ("octal32", 4),
        ("mode" | "file.mode", 8, false) => ("octal64", 8),
        ("address", 8, false) => ("address", 8),
        (_, 1, false) => ("u8", 1),
        (_, 2, false) => ("u16", 2),
        (_, 4, false) => ("u32", 4),
        (_, 1, true) => ("i8", 1),
        (_, 2, true) => ("i16", 2),
        (_, 4, true) => ("i32", 4),
        (_, _, false) => ("u64", 8),
        (_, _, true) => ("i64", 8),
    }
}

/// The name of a field. Readers remove the first underscore; it distinguishes names from keywords.
fn identifier(name: &str, suffix: &str) -> String {
    let letters = name.chars().chain(suffix.chars());
    let letters = letters.map(|it| if it.is_ascii_alphanumeric() { it } else { '_' });
    std::iter::once('_').chain(letters).collect()
}

/// A string ends with a zero byte, so those within become spaces.
fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    let text = String::from_utf8_lossy(bytes);
    out.extend(text.bytes().map(|byte| if byte == 0 { b' ' } else { byte }));
    out.push(0);
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}
