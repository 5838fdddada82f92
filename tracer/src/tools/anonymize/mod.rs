//! Hides names, users and other fields of a trace, each with a key of its own, so that the trace can be published; and restores them
//! with the keys.
//!
//! `fields.rs` maps arguments to fields, `keys.rs` reads and makes key files, `cipher.rs` hides single values. After
//! section 2.7 of the paper on Tracefs; `docs/decisions/0071-anonymised-with-aes-siv.md` lists the differences.

mod cipher;
mod fields;
mod keys;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use amino_schema::trace::pairs::Pairs;
use amino_schema::trace::record::{Record, Value};
use amino_schema::trace::{Argument, Hidden, Schema, Type};

use super::consume;
use super::fields::bytes;
use super::rewrite::{Change, Changed, Rewrite};
use crate::Error;
use crate::read::{Finding, Reader};
use cipher::{Cipher, Cut};
pub use fields::{Field, Fields};
pub use keys::FieldKeys;

/// Which fields are hidden, and how.
#[derive(Debug, Clone, Default)]
pub struct Anonymize {
    /// The fields to hide.
    pub fields: Fields,
    /// Whether `main.c` keeps its `.c`.
    pub keep_extensions: bool,
    /// The treatment of the content of files.
    pub data: DataRule,
}

/// The treatment of content in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DataRule {
    /// It is left out.
    #[default]
    Remove,
    /// It is hidden, with a key of its own.
    Encrypt,
    /// It stays as it is.
    Keep,
}

impl FromStr for DataRule {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "remove" => Ok(Self::Remove),
            "encrypt" => Ok(Self::Encrypt),
            "keep" => Ok(Self::Keep),
            _ => Err("remove, encrypt and keep are known".to_owned()),
        }
    }
}

/// The totals of an anonymised trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anonymized {
    /// Records that were read.
    pub records: u64,
    /// Records of content that were left out.
    pub removed: u64,
    /// Bytes of records before and after, without compression and without content that was left out.
    pub bytes: (u64, u64),
}

/// Name of the pair in the context that lists the hidden fields.
const ANONYMIZED: &str = "anonymized";
/// Name of the pair in the context that marks a trace without content.
const REMOVED: &str = "anonymized.data";
/// Names in the context that reveal nothing about users and files. All others are hidden.
const KEPT: [&str; 14] = [
    ANONYMIZED,
    REMOVED,
    "assembly",
    "clock",
    "clock.monotonic",
    "cpus",
    "data",
    "fields",
    "kernel",
    "machine",
    "memory",
    "outputs",
    "program",
    "recovered",
];
const CLOCKS: [&str; 2] = ["clock", "clock.monotonic"];

/// Writes the trace to a new one at `path` with fields hidden. `report` receives a finding for each lost or altered place.
pub fn anonymize<R: Read>(
    reader: &mut Reader<R>,
    path: &Path,
    keys: &FieldKeys,
    how: Anonymize,
    report: &mut dyn FnMut(&Finding),
) -> Result<Anonymized, Error> {
    let mut fields = how.fields.iter().collect::<Vec<_>>();
    if how.data == DataRule::Encrypt {
        fields.push(Field::Data);
    }
    let ciphers = Ciphers::new(keys, fields.iter().copied())?;
    let mut hide = Hide {
        how,
        fields: Fields::new(fields),
        ciphers,
        plan: Vec::new(),
        removed: 0,
        removed_bytes: 0,
    };
    let mut done = rewrite(reader, path, &mut hide, report)?;
    done.removed = hide.removed;
    done.bytes.0 = done.bytes.0.saturating_sub(hide.removed_bytes);
    Ok(done)
}

/// Writes the trace to a new one at `path` in which the fields that have a key are shown again.
pub fn deanonymize<R: Read>(
    reader: &mut Reader<R>,
    path: &Path,
    keys: &FieldKeys,
    report: &mut dyn FnMut(&Finding),
) -> Result<Anonymized, Error> {
    let ciphers = Ciphers::new(keys, keys.fields())?;
    let plan = Vec::new();
    rewrite(reader, path, &mut Show { ciphers, plan }, report)
}

fn rewrite<R: Read>(
    reader: &mut Reader<R>,
    path: &Path,
    change: &mut impl Change,
    report: &mut dyn FnMut(&Finding),
) -> Result<Anonymized, Error> {
    let mut rewrite = Rewrite::new(path, change);
    let records = consume(reader, &mut rewrite, report)?;
    Ok(Anonymized {
        records,
        removed: 0,
        bytes: (rewrite.bytes_read, rewrite.bytes_written),
    })
}

/// The ciphers of fields.
struct Ciphers(BTreeMap<Field, Cipher>);

impl Ciphers {
    fn new(keys: &FieldKeys, fields: impl Iterator<Item = Field>) -> Result<Self, Error> {
        let cipher = |field: Field| match keys.get(field).and_then(Cipher::new) {
            Some(cipher) => Ok((field, cipher)),
            None => Err(Error::Setup(format!(
                "no key for the field {}",
                field.name()
            ))),
        };
        fields.map(cipher).collect::<Result<_, _>>().map(Self)
    }

    fn has(&self, field: Field) -> bool {
        self.0.contains_key(&field)
    }

    fn apply<T>(
        &mut self,
        field: Field,
        apply: impl FnOnce(&mut Cipher) -> Option<T>,
    ) -> Result<T, Error> {
        let done = self.0.get_mut(&field).and_then(apply);
        done.ok_or_else(|| {
            let name = field.name();
            Error::Setup(format!(
                "a value of the field {name} does not fit its key: the trace was anonymised with another one, or altered"
            ))
        })
    }
}

fn cut(field: Field, keep_extensions: bool) -> Cut {
    match field {
        Field::Path => Cut::Components { keep_extensions },
        Field::Argv => Cut::Strings,
        Field::Hash => Cut::Hashes,
        Field::Data => Cut::Data,
        _ => Cut::Whole,
    }
}

/// The field of a name in the context.
fn field_of_pair(name: &str) -> Option<Field> {
    match name {
        _ if CLOCKS.contains(&name) => Some(Field::Time),
        _ if KEPT.contains(&name) => None,
        _ => Some(Field::Context),
    }
}

/// The hidden fields, as the context lists them.
fn hidden_fields(context: &Pairs) -> Fields {
    let list = context.iter().find(|(name, _)| name == ANONYMIZED);
    let list = list.map(|(_, value)| String::from_utf8_lossy(value));
    let names = list.iter().flat_map(|list| list.split(','));
    Fields::new(names.filter_map(Field::named).collect())
}

fn set_hidden_fields(context: &mut Pairs, fields: &Fields) {
    context.retain(|(name, _)| name != ANONYMIZED);
    if fields.iter().next().is_some() {
        context.push((ANONYMIZED.to_owned(), fields.names().into_bytes()));
    }
}

struct Hide {
    how: Anonymize,
    fields: Fields,
    ciphers: Ciphers,
    /// By argument of the current schema.
    plan: Vec<Option<Field>>,
    /// Records that were left out, and bytes in them.
    removed: u64,
    removed_bytes: u64,
}

impl Change for Hide {
    fn schema(&mut self, schema: &Schema) -> Result<Schema, Error> {
        let mut changed = schema.clone();
        self.plan.clear();
        for (index, argument) in (0..).zip(&mut changed.arguments) {
            let messages = schema
                .messages
                .iter()
                .filter(|it| it.arguments.contains(&index));
            let field = match &argument.hidden {
                Some(_) => None,
                None => Field::of(argument, &messages.collect::<Vec<_>>()),
            };
            let field = field.filter(|it| self.fields.has(*it));
            self.plan.push(field);
            let Some(field) = field else {
                continue;
            };
            argument.hidden = Some(Hidden {
                field: field.name().to_owned(),
                kind: argument.kind,
                size: argument.size,
            });
            if argument.kind != Type::Data {
                (argument.kind, argument.size) = (Type::Bytes, 0);
            }
        }
        Ok(changed)
    }

    fn context(&mut self, mut context: Pairs) -> Result<Pairs, Error> {
        let before = hidden_fields(&context);
        for (name, value) in &mut context {
            let field = field_of_pair(name).filter(|it| self.fields.has(*it) && !before.has(*it));
            if let Some(field) = field {
                *value = self.ciphers.apply(field, |it| it.hide(value, Cut::Whole))?;
            }
        }
        let all = before.iter().chain(self.fields.iter()).collect();
        set_hidden_fields(&mut context, &Fields::new(all));
        let has_data = context
            .iter()
            .any(|(name, value)| name == "data" && value == b"full");
        if has_data && self.how.data == DataRule::Remove {
            context.push((REMOVED.to_owned(), b"removed".to_vec()));
        }
        Ok(context)
    }

    fn record(&mut self, record: &Record<'_>, values: &mut Vec<Changed>) -> Result<bool, Error> {
        let content = |(argument, _): (&Argument, _)| argument.kind == Type::Data;
        if self.how.data == DataRule::Remove && record.fields().any(content) {
            let bytes = record.fields().filter_map(|(_, value)| bytes(value));
            self.removed += 1;
            self.removed_bytes += bytes.map(|it| it.len() as u64).sum::<u64>();
            return Ok(false);
        }
        let indexes = record.message.arguments.iter();
        for (&index, (argument, value)) in indexes.zip(record.fields()) {
            let Some(field) = self.plan.get(index as usize).copied().flatten() else {
                values.push(Changed::same(value));
                continue;
            };
            let cut = cut(field, self.how.keep_extensions);
            let is_result = argument.role == "result";
            values.push(match value {
                Value::Number(number) => {
                    let hidden = |it: &mut Cipher| it.hide_number(number, is_result);
                    Changed::Bytes(self.ciphers.apply(field, hidden)?)
                }
                Value::Bytes(bytes) => {
                    Changed::Bytes(self.ciphers.apply(field, |it| it.hide(bytes, cut))?)
                }
                other => Changed::same(other),
            });
        }
        Ok(true)
    }
}

struct Show {
    ciphers: Ciphers,
    /// By argument of the current schema: field, and whether its values were numbers.
    plan: Vec<Option<(Field, bool)>>,
}

impl Change for Show {
    fn schema(&mut self, schema: &Schema) -> Result<Schema, Error> {
        let mut changed = schema.clone();
        self.plan.clear();
        for argument in &mut changed.arguments {
            let field = argument
                .hidden
                .as_ref()
                .and_then(|it| Field::named(&it.field));
            match (
                field.filter(|it| self.ciphers.has(*it)),
                argument.hidden.take(),
            ) {
                (Some(field), Some(hidden)) => {
                    (argument.kind, argument.size) = (hidden.kind, hidden.size);
                    self.plan.push(Some((field, hidden.kind.is_number())));
                }
                (_, hidden) => {
                    argument.hidden = hidden;
                    self.plan.push(None);
                }
            }
        }
        Ok(changed)
    }

    fn context(&mut self, mut context: Pairs) -> Result<Pairs, Error> {
        let hidden = hidden_fields(&context);
        for (name, value) in &mut context {
            let field = field_of_pair(name).filter(|it| hidden.has(*it) && self.ciphers.has(*it));
            if let Some(field) = field {
                *value = self.ciphers.apply(field, |it| it.show(value, Cut::Whole))?;
            }
        }
        let left = hidden.iter().filter(|it| !self.ciphers.has(*it)).collect();
        set_hidden_fields(&mut context, &Fields::new(left));
        Ok(context)
    }

    fn record(&mut self, record: &Record<'_>, values: &mut Vec<Changed>) -> Result<bool, Error> {
        let indexes = record.message.arguments.iter();
        for (&index, (_, value)) in indexes.zip(record.fields()) {
            let plan = self.plan.get(index as usize).copied().flatten();
            values.push(match (plan, value) {
                (Some((field, true)), Value::Bytes(text)) => {
                    Changed::Number(self.ciphers.apply(field, |it| it.show_number(text))?)
                }
                (Some((field, false)), Value::Bytes(bytes)) => {
                    let cut = cut(field, false);
                    Changed::Bytes(self.ciphers.apply(field, |it| it.show(bytes, cut))?)
                }
                (_, other) => Changed::same(other),
            });
        }
        Ok(true)
    }
}
