//! The fields of a record, by name.

use amino_schema::trace::record::{Record, Value};

use super::step::{Info, Payload};

/// The fields of a record.
pub struct Fields<'a> {
    fields: Vec<(&'a str, Value<'a>)>,
}

impl<'a> Fields<'a> {
    pub fn of(record: &Record<'a>) -> Self {
        let fields = record.fields();
        let present = fields.filter(|(_, value)| *value != Value::Absent);
        Self {
            fields: present
                .map(|(argument, value)| (argument.name.as_str(), value))
                .collect(),
        }
    }

    fn get(&self, name: &str) -> Option<Value<'a>> {
        let found = self.fields.iter().find(|(it, _)| *it == name)?;
        Some(found.1)
    }

    fn part(&self, name: &str, part: &str) -> Option<Value<'a>> {
        let found = self.fields.iter().find(|(it, _)| {
            it.strip_prefix(name)
                .and_then(|rest| rest.strip_prefix('.'))
                == Some(part)
        })?;
        Some(found.1)
    }

    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub fn is_null(&self, name: &str) -> bool {
        matches!(self.get(name), Some(Value::Null))
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        number(self.get(name))
    }

    pub fn member(&self, name: &str, part: &str) -> Option<u64> {
        number(self.part(name, part))
    }

    pub fn bytes(&self, name: &str) -> Option<&'a [u8]> {
        bytes(self.get(name))
    }

    pub fn text(&self, name: &str, part: &str) -> Option<&'a [u8]> {
        bytes(self.part(name, part))
    }

    /// The file that an argument names, as it was after the call.
    pub fn info(&self, name: &str) -> Option<Info> {
        Some(Info {
            device: self.member(name, "device")?,
            inode: self.member(name, "inode")?,
            mode: self.member(name, "mode")? as u32,
            links: self.member(name, "links").unwrap_or(1),
            size: self.member(name, "size").unwrap_or(0),
            owner: None,
        })
    }

    /// The buffer of a call that requested `length` bytes.
    pub fn payload(&self, name: &str, length: u64) -> Payload {
        let hashes = self.text(name, "hash").unwrap_or_default();
        let (hashes, _) = hashes.as_chunks();
        let hashes = hashes.to_vec();
        Payload { length, hashes }
    }
}

fn number(value: Option<Value<'_>>) -> Option<u64> {
    match value? {
        Value::Number(number) => Some(number),
        _ => None,
    }
}

fn bytes(value: Option<Value<'_>>) -> Option<&[u8]> {
    match value? {
        Value::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}
