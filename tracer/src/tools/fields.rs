//! The fields of a record by their roles, and names of values.

use std::fmt::Write;

use amino_schema::trace::record::{Record, Value};
use amino_schema::trace::{Argument, Schema, Symbols};

/// An argument of a call with its parts: `fd` with `fd.path`.
pub(super) struct Group<'a> {
    pub argument: &'a Argument,
    pub value: Value<'a>,
    pub parts: Vec<(&'a Argument, Value<'a>)>,
}

impl<'a> Group<'a> {
    /// The part with this role.
    pub fn part(&self, role: &str) -> Option<Value<'a>> {
        let part = self
            .parts
            .iter()
            .find(|(argument, _)| argument.role == role)?;
        (part.1 != Value::Absent).then_some(part.1)
    }
}

/// The fields that each record of a call or an event has.
#[derive(Default)]
pub(super) struct Fields<'a> {
    pub time: Option<u64>,
    pub duration: Option<u64>,
    pub pid: Option<i64>,
    pub tid: Option<i64>,
    pub comm: Option<&'a [u8]>,
    pub result: Option<i64>,
    /// Unit of the result: `bytes`, `address`, or empty.
    pub result_unit: &'a str,
    pub result_path: Option<&'a [u8]>,
    /// The other fields, which are the arguments of a call.
    pub arguments: Vec<Group<'a>>,
}

impl<'a> Fields<'a> {
    pub fn of(record: &Record<'a>) -> Self {
        let mut fields = Self::default();
        let mut all = record.fields().peekable();
        let mut before = "";
        while let Some((argument, value)) = all.next() {
            let after = all.peek().map_or("", |(next, _)| next.role.as_str());
            let of_thread = is_of_thread(before, argument, after);
            before = if of_thread { &argument.role } else { "" };
            if let Some((whole, _)) = argument.name.split_once('.') {
                let text = bytes(value);
                match fields.arguments.last_mut() {
                    Some(group) if group.argument.name == whole => {
                        group.parts.push((argument, value));
                    }
                    _ if whole == "result" && argument.role == "file.path" => {
                        fields.result_path = text;
                    }
                    _ if whole == "result" => {}
                    _ => fields.arguments.push(group(argument, value)),
                }
                continue;
            }
            match (argument.name.as_str(), argument.role.as_str()) {
                ("time", "time") => fields.time = number(value),
                ("duration", "duration") => fields.duration = number(value),
                ("pid", "pid") if of_thread => fields.pid = number(value).map(|it| it as i64),
                ("tid", "tid") => fields.tid = number(value).map(|it| it as i64),
                ("comm", "comm") => fields.comm = bytes(value),
                ("result", "result") => {
                    fields.result = number(value).map(|it| it as i64);
                    fields.result_unit = &argument.unit;
                }
                ("uid", "uid") | ("gid", "gid") if of_thread => {}
                ("sid", "sid") | ("treatment", "treatment") => {}
                _ => fields.arguments.push(group(argument, value)),
            }
        }
        fields
    }

    /// The argument with this name.
    pub fn argument(&self, name: &str) -> Option<Value<'a>> {
        let group = self
            .arguments
            .iter()
            .find(|group| group.argument.name == name)?;
        Some(group.value)
    }

    /// The thread, or the process where the thread is not recorded.
    pub fn thread(&self) -> i64 {
        self.tid.or(self.pid).unwrap_or(0)
    }

    /// The error number, if the result is one.
    pub fn error(&self) -> Option<u64> {
        let result = self.result?;
        (-4095..0).contains(&result).then(|| result.unsigned_abs())
    }
}

/// Whether a field describes the calling thread. Calls have arguments of the same names: wait4(2) a `pid`, setuid(2) a `uid`. The fields of
/// the thread are adjacent: `pid` follows `tid`, `uid` precedes `gid`.
pub(super) fn is_of_thread(role_before: &str, argument: &Argument, role_after: &str) -> bool {
    match argument.name.as_str() {
        "pid" => role_before == "tid",
        "uid" => role_after == "gid",
        "gid" => role_before == "uid",
        _ => true,
    }
}

fn group<'a>(argument: &'a Argument, value: Value<'a>) -> Group<'a> {
    Group {
        argument,
        value,
        parts: Vec::new(),
    }
}

pub(super) fn number(value: Value<'_>) -> Option<u64> {
    match value {
        Value::Number(number) => Some(number),
        _ => None,
    }
}

pub(super) fn bytes(value: Value<'_>) -> Option<&[u8]> {
    match value {
        Value::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

/// A value by the names of its symbols: `O_RDWR|O_CREAT`. `None` for a value without a name.
pub fn symbolic(symbols: &Symbols, value: u64) -> Option<String> {
    let name_of = |wanted: u64| {
        let found = symbols.values.iter().find(|(value, _)| *value == wanted);
        found.map(|(_, name)| name.as_str())
    };
    if !symbols.bits {
        return name_of(value).map(str::to_owned);
    }
    let mut text = String::new();
    let mut rest = value;
    if let Some(name) = name_of(value & symbols.field)
        && (symbols.field != 0 || value == 0)
    {
        text.push_str(name);
        rest = value & !symbols.field;
    }
    for (bits, name) in &symbols.values {
        if *bits != 0 && bits & symbols.field == 0 && rest & bits == *bits {
            rest &= !bits;
            let separator = if text.is_empty() { "" } else { "|" };
            let _ = write!(text, "{separator}{name}");
        }
    }
    if rest != 0 || text.is_empty() {
        let separator = if text.is_empty() { "" } else { "|" };
        let _ = match rest {
            0 => write!(text, "{separator}0"),
            rest => write!(text, "{separator}{rest:#x}"),
        };
    }
    Some(text)
}

/// The name of an error, as the trace has it.
pub fn error_name(schema: &Schema, error: u64) -> Option<&str> {
    let names = schema.symbols.iter().find(|set| set.name == "errno")?;
    let found = names.values.iter().find(|(value, _)| *value == error)?;
    Some(&found.1)
}
