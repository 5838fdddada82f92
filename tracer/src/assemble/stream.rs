//! The assembly `stream`: writes one record for each event.

use std::collections::HashSet;
use std::str::FromStr;

use amino_schema::trace::Schema;
use amino_schema::trace::record::Value;
use goanna_syscalls as calls;
use goanna_syscalls::{Subject, Treatment};
use sha2::{Digest, Sha256};

use super::groups::Groups;
use super::plan::{FilePart, Part, Plans, Source, id};
use super::{Assembly, Writer};
use crate::event::{Call, File};
use crate::{Error, Event};

/// How much is recorded of the data that calls read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DataMode {
    /// Its length.
    #[default]
    None,
    /// Its length and hashes.
    Hash,
    /// All of it, once for each content.
    Full,
}

impl FromStr for DataMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "none" => Ok(Self::None),
            "hash" => Ok(Self::Hash),
            "full" => Ok(Self::Full),
            _ => Err(format!(
                "unknown data mode {name:?}: none, hash and full are known"
            )),
        }
    }
}

/// Writes each event with the groups of fields that the user chose.
pub struct StreamAssembly {
    groups: Groups,
    data: DataMode,
    plans: Plans,
    /// Contents that the current file has. At its maximum size the set is emptied, and contents may be stored in the file twice.
    stored: HashSet<[u8; HASH]>,
    segment: u64,
    /// Hashes of the buffers of the current call, one after the other, and where those of each argument end.
    hashes: Vec<u8>,
    hashes_end: [usize; 8],
    texts: Vec<u8>,
    ends: [usize; 8],
}

/// Bytes of a hash.
const HASH: usize = 16;
/// Bytes of content that one hash covers.
const CHUNK: usize = 64 << 10;
const MAX_STORED: usize = 1 << 20;
/// Longest string in a record. Strings of programs are shorter: PATH_MAX limits paths, and the capture limits argv.
const MAX_TEXT: usize = 1 << 20;

impl StreamAssembly {
    /// An assembly with these fields and this treatment of data.
    pub fn new(groups: Groups, data: DataMode) -> Self {
        Self {
            groups,
            data,
            plans: Plans::new(groups),
            stored: HashSet::new(),
            segment: 0,
            hashes: Vec::new(),
            hashes_end: [0; 8],
            texts: Vec::new(),
            ends: [0; 8],
        }
    }

    fn call(&mut self, call: &Call, out: &mut Writer) -> Result<(), Error> {
        let position = self.plans.calls.get(&call.call.nr).copied();
        let position = position.unwrap_or(id::UNKNOWN_CALL as usize - 1);
        self.prepare(call, out)?;
        let sources = self.plans.sources.get(position).map(Vec::as_slice);
        let sources = sources.unwrap_or_default();
        let mut values = Vec::with_capacity(sources.len());
        values.extend(sources.iter().map(|source| self.value(call, *source)));
        let tid = call.subject.tid as u64;
        out.put(position, tid, call.entered_ns, &values)
    }

    /// Stores contents, and makes the buffers that several values borrow from.
    fn prepare(&mut self, call: &Call, out: &mut Writer) -> Result<(), Error> {
        self.hashes.clear();
        self.texts.clear();
        let arguments = call.call.args.iter();
        let ends = self.hashes_end.iter_mut().zip(self.ends.iter_mut());
        for (argument, (hashes_end, end)) in arguments.zip(ends) {
            match argument {
                calls::Value::Bytes { data, .. } | calls::Value::Message { data, .. }
                    if self.data != DataMode::None =>
                {
                    for chunk in data.chunks(CHUNK) {
                        let mut hash = [0; HASH];
                        let whole = Sha256::digest(chunk);
                        for (slot, byte) in hash.iter_mut().zip(whole) {
                            *slot = byte;
                        }
                        self.hashes.extend(hash);
                        if self.data == DataMode::Full {
                            if self.segment != out.segment() || self.stored.len() >= MAX_STORED {
                                self.segment = out.segment();
                                self.stored.clear();
                            }
                            if self.stored.insert(hash) {
                                let blob = [Value::Bytes(&hash), Value::Bytes(chunk)];
                                out.put(id::BLOB as usize - 1, call.subject.tid as u64, 0, &blob)?;
                            }
                        }
                    }
                }
                _ => {}
            }
            match argument {
                calls::Value::Message { descriptors, .. } => {
                    let numbers: Vec<String> = descriptors.iter().map(i32::to_string).collect();
                    self.texts.extend_from_slice(numbers.join(",").as_bytes());
                }
                calls::Value::Texts(texts) => {
                    for text in texts {
                        self.texts.extend_from_slice(text);
                        self.texts.push(0);
                    }
                }
                _ => {}
            }
            *hashes_end = self.hashes.len();
            *end = self.texts.len();
        }
        Ok(())
    }

    fn value<'a>(&'a self, call: &'a Call, source: Source) -> Value<'a> {
        let outcome = |of: &dyn Fn(&calls::Outcome) -> u64| match &call.outcome {
            Some(outcome) => Value::Number(of(outcome)),
            None => Value::Absent,
        };
        match source {
            Source::Time => Value::Number(call.entered_ns),
            Source::Duration => outcome(&|it| it.left_ns.saturating_sub(call.entered_ns)),
            Source::Result => outcome(&|it| it.result as u64),
            Source::Treatment => outcome(&|it| match it.treatment {
                Treatment::Kernel => 0,
                Treatment::Monitor => 1,
                Treatment::Process => 2,
            }),
            Source::Pid => Value::Number(call.subject.pid as u64),
            Source::Tid => Value::Number(call.subject.tid as u64),
            Source::Uid => Value::Number(call.subject.uid.into()),
            Source::Gid => Value::Number(call.subject.gid.into()),
            Source::Sid => Value::Number(call.subject.sid as u64),
            Source::Comm => Value::Bytes(call.subject.comm.as_bytes()),
            Source::Argument(index, part) => match call.call.args.get(usize::from(index)) {
                Some(value) => self.argument(call, index, value, part),
                None => Value::Absent,
            },
            Source::File(index, part) => {
                let file = call.files.iter().find(|(at, _)| *at == index);
                file.map_or(Value::Absent, |(_, file)| file_part(file, part))
            }
            Source::Register(6) => Value::Number(call.call.nr.into()),
            Source::Register(index) => match call.call.raw.get(usize::from(index)) {
                Some(register) => Value::Number(*register),
                None => Value::Absent,
            },
        }
    }

    fn argument<'a>(
        &'a self,
        call: &'a Call,
        index: u8,
        value: &'a calls::Value,
        part: Part,
    ) -> Value<'a> {
        use calls::Value as Given;
        let file = || {
            let file = call.files.iter().find(|(at, _)| *at == index);
            file.and_then(|(_, file)| file.path.as_deref())
        };
        match (part, value) {
            (Part::Whole, Given::Signed(number)) => Value::Number(*number as u64),
            (Part::Whole, Given::Unsigned(number)) => Value::Number(*number),
            (Part::Whole, Given::Descriptor { number, .. }) => Value::Number(*number as u64),
            (Part::Whole, Given::Path { given, .. }) => Value::Bytes(given),
            (Part::Whole, Given::Text(text)) => text_value(text),
            (Part::Whole, Given::Texts(_)) => text_value(slice(&self.texts, &self.ends, index)),
            (Part::Whole, Given::Null) => Value::Null,
            (Part::Whole, Given::Unread(address)) => Value::Unread(*address),
            (Part::DescriptorPath, Given::Descriptor { file: path, .. }) => path
                .as_deref()
                .or_else(file)
                .map_or(Value::Absent, Value::Bytes),
            (Part::Resolved, Given::Path { resolved, .. }) => resolved
                .as_deref()
                .or_else(file)
                .map_or(Value::Absent, Value::Bytes),
            (Part::Length, Given::Bytes { len, .. } | Given::Message { len, .. }) => {
                Value::Number(*len)
            }
            (Part::Descriptors, Given::Message { descriptors, .. }) if !descriptors.is_empty() => {
                text_value(slice(&self.texts, &self.ends, index))
            }
            (Part::Text, Given::Text(text)) => text_value(text),
            (Part::Hash, Given::Bytes { .. } | Given::Message { .. }) => {
                match slice(&self.hashes, &self.hashes_end, index) {
                    [] => Value::Absent,
                    hashes => Value::Bytes(hashes),
                }
            }
            (Part::Bytes, Given::Bytes { data, .. }) => text_value(data),
            (Part::Member(field), Given::Bytes { data, .. }) => match field.value(data) {
                Some(number) => Value::Number(sign_extended(field, number)),
                None => Value::Absent,
            },
            (Part::Seconds(at), Given::Times(times)) => match times.get(usize::from(at)) {
                Some(time) => Value::Number(time.seconds as u64),
                None => Value::Absent,
            },
            (Part::Nanoseconds(at), Given::Times(times)) => match times.get(usize::from(at)) {
                Some(time) => Value::Number(time.nanoseconds as u64),
                None => Value::Absent,
            },
            (Part::Paired(at), Given::DescriptorPair(pair)) => match pair.get(usize::from(at)) {
                Some(number) => Value::Number(*number as u64),
                None => Value::Absent,
            },
            _ => Value::Absent,
        }
    }
}

/// A field of a structure with the sign of its kind.
fn sign_extended(field: &calls::Field, number: u64) -> u64 {
    use calls::Kind;
    let signed = matches!(
        field.kind,
        Kind::Signed | Kind::Offset | Kind::Pid | Kind::Descriptor
    );
    let unused = 64 - u32::from(field.bits.clamp(8, 64));
    match signed {
        true => ((number << unused) as i64 >> unused) as u64,
        false => number,
    }
}

/// The part of `bytes` that belongs to an argument, given where each one's part ends.
fn slice<'a>(bytes: &'a [u8], ends: &[usize; 8], index: u8) -> &'a [u8] {
    let index = usize::from(index);
    let start = match index.checked_sub(1) {
        Some(before) => ends.get(before).copied().unwrap_or(0),
        None => 0,
    };
    let end = ends.get(index).copied().unwrap_or(0);
    bytes.get(start..end).unwrap_or_default()
}

fn text_value(text: &[u8]) -> Value<'_> {
    Value::Bytes(text.get(..MAX_TEXT).unwrap_or(text))
}

fn file_part(file: &File, part: FilePart) -> Value<'_> {
    Value::Number(match part {
        FilePart::Path => return file.path.as_deref().map_or(Value::Absent, Value::Bytes),
        FilePart::Device => file.device,
        FilePart::Inode => file.inode,
        FilePart::Mode => file.mode.into(),
        FilePart::Links => file.links,
        FilePart::Size => file.size,
    })
}

/// An event of a thread that is not a call, as a message: thread, own values, file.
struct OfThread<'e> {
    id: u32,
    subject: &'e Subject,
    at_ns: u64,
    own: Vec<Value<'e>>,
    file: Option<&'e File>,
}

impl<'e> OfThread<'e> {
    /// Converts an event; `None` for calls and lost events, which have another form. The values have the order of `plan.rs`.
    fn of(event: &'e Event) -> Option<Self> {
        use Value::{Bytes, Number};
        let numbers = |values: &[u64]| values.iter().map(|it| Number(*it)).collect();
        let (id, subject, at_ns, own, file) = match event {
            Event::Call(_) | Event::Lost { .. } => return None,
            Event::Began {
                subject,
                parent,
                umask,
                at_ns,
            } => {
                let umask = umask.map_or(Value::Absent, |umask| Number(umask.into()));
                let own = vec![Number(*parent as u64), umask];
                (id::BEGAN, subject, *at_ns, own, None)
            }
            Event::Executed {
                subject,
                program,
                at_ns,
            } => (id::EXECUTED, subject, *at_ns, vec![Bytes(program)], None),
            Event::Ended {
                subject,
                status,
                at_ns,
            } => (id::ENDED, subject, *at_ns, numbers(&[*status as u64]), None),
            Event::Descriptor {
                subject,
                number,
                file,
                flags,
                offset,
            } => {
                let (number, flags) = (*number as u64, (*flags).into());
                let own = numbers(&[number, flags, *offset]);
                (id::DESCRIPTOR, subject, 0, own, Some(file))
            }
            Event::Mapping {
                subject,
                start,
                length,
                protection,
                flags,
                offset,
                file,
            } => {
                let (protection, flags) = ((*protection).into(), (*flags).into());
                let own = numbers(&[*start, *length, protection, flags, *offset]);
                (id::MAPPING, subject, 0, own, Some(file))
            }
            Event::Touched {
                subject,
                file,
                offset,
                pages,
                written,
                at_ns,
            } => {
                let own = numbers(&[*offset, *pages, (*written).into()]);
                (id::TOUCHED, subject, *at_ns, own, Some(file))
            }
        };
        Some(Self {
            id,
            subject,
            at_ns,
            own,
            file,
        })
    }

    fn put(self, out: &mut Writer) -> Result<(), Error> {
        let mut values = thread_values(self.subject, self.at_ns);
        values.extend(self.own);
        values.extend(self.file.into_iter().flat_map(file_values));
        let tid = self.subject.tid as u64;
        out.put(self.id as usize - 1, tid, self.at_ns, &values)
    }
}

/// Time and thread. An event at time 0 has no time of its own.
fn thread_values(subject: &Subject, at_ns: u64) -> Vec<Value<'_>> {
    use Value::{Absent, Bytes, Number};
    vec![
        if at_ns == 0 { Absent } else { Number(at_ns) },
        Number(subject.tid as u64),
        Number(subject.pid as u64),
        Number(subject.uid.into()),
        Number(subject.gid.into()),
        Number(subject.sid as u64),
        Bytes(subject.comm.as_bytes()),
    ]
}

fn file_values(file: &File) -> [Value<'_>; 6] {
    [
        FilePart::Path,
        FilePart::Device,
        FilePart::Inode,
        FilePart::Mode,
        FilePart::Links,
        FilePart::Size,
    ]
    .map(|part| file_part(file, part))
}

impl Assembly for StreamAssembly {
    fn schema(&mut self) -> Schema {
        std::mem::take(&mut self.plans.schema)
    }

    fn event(&mut self, event: &Event, out: &mut Writer) -> Result<(), Error> {
        match event {
            Event::Call(call) => self.call(call, out),
            Event::Lost {
                events,
                reason,
                at_ns,
            } => {
                out.count_lost(*events);
                let values = [
                    Value::Number(*at_ns),
                    Value::Number(*events),
                    Value::Bytes(reason.as_bytes()),
                ];
                out.put(id::LOST as usize - 1, 0, *at_ns, &values)
            }
            event => match OfThread::of(event) {
                Some(message) => message.put(out),
                None => Ok(()),
            },
        }
    }

    fn describe(&self) -> Vec<(String, String)> {
        let data = match self.data {
            DataMode::None => "none",
            DataMode::Hash => "hash",
            DataMode::Full => "full",
        };
        vec![
            ("assembly".into(), "stream".into()),
            ("fields".into(), self.groups.names()),
            ("data".into(), data.into()),
        ]
    }
}
