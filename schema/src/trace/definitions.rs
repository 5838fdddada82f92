//! The schema block: it defines the records of a trace in the trace itself.
//!
//! Numbers are LEB128, texts are their length and UTF-8 bytes. Each definition has its length before it, so that a later minor version can
//! add to its end.
//!
//! ```text
//! number of symbol sets, each:   length | name | 1 for bits, 0 for values | field | number | value, name ...
//! number of arguments, each:     length | name | type u8 | size u8 | unit | role | symbol set + 1, or 0 | cell | hidden
//! number of messages, each:      length | id | name | call number + 1, or 0 | number | index of an argument ...
//! hidden:                        nothing, or the anonymised field | original type u8 | original size u8
//! ```

use super::pairs::{field, text};
use crate::DecodeError;
use crate::wire::{Reader, put_varint};

/// The type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
    /// Unsigned number.
    Unsigned,
    /// Signed number, two's complement.
    Signed,
    /// Byte string: a name, a path, a hash.
    Bytes,
    /// Byte string that is not a name: file content.
    Data,
}

impl Type {
    fn byte(self) -> u8 {
        match self {
            Self::Unsigned => 1,
            Self::Signed => 2,
            Self::Bytes => 3,
            Self::Data => 4,
        }
    }

    /// Whether values are numbers.
    pub fn is_number(self) -> bool {
        matches!(self, Self::Unsigned | Self::Signed)
    }
}

/// A field of records.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Argument {
    /// Name, as in the man page of the call.
    pub name: String,
    /// Type of its values.
    pub kind: Type,
    /// Bytes of a number: 1, 2, 4 or 8. 0 for byte strings.
    pub size: u8,
    /// Unit of a number, such as `bytes` or `ns`; may be empty.
    pub unit: String,
    /// Its role, such as `path` or `fd`; `docs/trace-format.md` lists the roles.
    pub role: String,
    /// Names of values: index of a symbol set.
    pub symbols: Option<u32>,
    /// Memory cell that elision compares with. Arguments that often have equal values share one.
    pub cell: u32,
    /// The original type, if the values were anonymised.
    pub hidden: Option<Hidden>,
}

/// The type of an argument before it was anonymised.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hidden {
    /// Name of the field whose key was used, such as `path`.
    pub field: String,
    /// Type of the original values.
    pub kind: Type,
    /// Bytes of an original number; 0 for byte strings.
    pub size: u8,
}

/// Names of values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Symbols {
    /// Name of the set.
    pub name: String,
    /// Whether values are bits that may occur together.
    pub bits: bool,
    /// For bits: the mask of those that together hold one value, such as the access mode of open(2).
    pub field: u64,
    /// Values and their names. For bits, masks of several bits come first.
    pub values: Vec<(u64, String)>,
}

/// A type of record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Message {
    /// Number in records.
    pub id: u32,
    /// Name: that of a call, or of another event.
    pub name: String,
    /// Number of the system call, if it is one.
    pub number: Option<u32>,
    /// Its fields: indexes of arguments.
    pub arguments: Vec<u32>,
}

/// All definitions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schema {
    /// Sets of names of values.
    pub symbols: Vec<Symbols>,
    /// Fields.
    pub arguments: Vec<Argument>,
    /// Types of records, by ascending id.
    pub messages: Vec<Message>,
}

/// Maximum numbers of definitions of a sort, of arguments of a message, and of memory cells that a reader accepts.
const MAX_DEFINITIONS: u64 = 1 << 16;
const MAX_ARGUMENTS: u64 = 255;
const MAX_CELLS: u32 = 1 << 13;

impl Schema {
    /// The message with this id.
    pub fn message(&self, id: u32) -> Option<&Message> {
        let at = self.messages.binary_search_by_key(&id, |it| it.id).ok()?;
        self.messages.get(at)
    }

    /// The argument with this index.
    pub fn argument(&self, index: u32) -> Option<&Argument> {
        self.arguments.get(index as usize)
    }

    /// The set with the names of this argument's values.
    pub fn symbols_of(&self, argument: &Argument) -> Option<&Symbols> {
        self.symbols.get(argument.symbols? as usize)
    }

    /// Number of memory cells.
    pub fn cells(&self) -> usize {
        let cells = self.arguments.iter().map(|it| it.cell as usize + 1);
        cells.max().unwrap_or(0)
    }

    /// The payload of a schema block.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_list(&mut out, &self.symbols, |out, set| {
            put_text(out, &set.name);
            out.push(u8::from(set.bits));
            put_varint(out, set.field);
            put_varint(out, set.values.len() as u64);
            for (value, name) in &set.values {
                put_varint(out, *value);
                put_text(out, name);
            }
        });
        put_list(&mut out, &self.arguments, |out, argument| {
            put_text(out, &argument.name);
            out.extend_from_slice(&[argument.kind.byte(), argument.size]);
            put_text(out, &argument.unit);
            put_text(out, &argument.role);
            put_varint(out, argument.symbols.map_or(0, |it| u64::from(it) + 1));
            put_varint(out, u64::from(argument.cell));
            if let Some(hidden) = &argument.hidden {
                put_text(out, &hidden.field);
                out.extend_from_slice(&[hidden.kind.byte(), hidden.size]);
            }
        });
        put_list(&mut out, &self.messages, |out, message| {
            put_varint(out, u64::from(message.id));
            put_text(out, &message.name);
            put_varint(out, message.number.map_or(0, |it| u64::from(it) + 1));
            put_varint(out, message.arguments.len() as u64);
            for argument in &message.arguments {
                put_varint(out, u64::from(*argument));
            }
        });
        out
    }

    /// Reads a payload. All indexes in the result are valid.
    pub fn decode(raw: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("schema", raw);
        let symbols = list(&mut reader, symbol_set)?;
        let sets = symbols.len();
        let arguments = list(&mut reader, |reader| argument(reader, sets))?;
        let known = arguments.len();
        let mut messages = list(&mut reader, |reader| message(reader, known))?;
        reader.end()?;
        messages.sort_by_key(|it| it.id);
        Ok(Self {
            symbols,
            arguments,
            messages,
        })
    }
}

fn symbol_set(reader: &mut Reader<'_>) -> Result<Symbols, DecodeError> {
    let name = text(reader)?;
    let bits = reader.u8()? != 0;
    let field = reader.varint()?;
    let count = bounded(reader, MAX_DEFINITIONS)?;
    let values = (0..count).map(|_| Ok((reader.varint()?, text(reader)?)));
    let values = values.collect::<Result<_, _>>()?;
    Ok(Symbols {
        name,
        bits,
        field,
        values,
    })
}

fn argument(reader: &mut Reader<'_>, sets: usize) -> Result<Argument, DecodeError> {
    let name = text(reader)?;
    let (kind, size) = type_and_size(reader)?;
    let (unit, role) = (text(reader)?, text(reader)?);
    let symbols = index(reader, sets as u64 + 1)?.checked_sub(1);
    let cell = index(reader, u64::from(MAX_CELLS))?;
    let hidden = match reader.end() {
        Ok(()) => None,
        Err(_) => {
            let field = text(reader)?;
            let (kind, size) = type_and_size(reader)?;
            Some(Hidden { field, kind, size })
        }
    };
    Ok(Argument {
        name,
        kind,
        size,
        unit,
        role,
        symbols,
        cell,
        hidden,
    })
}

fn type_and_size(reader: &mut Reader<'_>) -> Result<(Type, u8), DecodeError> {
    let at = reader.at();
    Ok(match (reader.u8()?, reader.u8()?) {
        (1, size @ (1 | 2 | 4 | 8)) => (Type::Unsigned, size),
        (2, size @ (1 | 2 | 4 | 8)) => (Type::Signed, size),
        (3, 0) => (Type::Bytes, 0),
        (4, 0) => (Type::Data, 0),
        _ => return Err(reader.error(at, "a type or size is not one this program knows")),
    })
}

fn message(reader: &mut Reader<'_>, known: usize) -> Result<Message, DecodeError> {
    let id = index(reader, 1 << 31)?;
    let name = text(reader)?;
    let number = index(reader, 1 << 31)?.checked_sub(1);
    let count = bounded(reader, MAX_ARGUMENTS)?;
    let arguments = (0..count).map(|_| index(reader, known as u64));
    let arguments = arguments.collect::<Result<_, _>>()?;
    Ok(Message {
        id,
        name,
        number,
        arguments,
    })
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn put_list<T>(out: &mut Vec<u8>, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    put_varint(out, items.len() as u64);
    let mut one = Vec::new();
    for item in items {
        one.clear();
        put(&mut one, item);
        put_varint(out, one.len() as u64);
        out.extend_from_slice(&one);
    }
}

/// Reads definitions. Bytes behind the known part of a definition are skipped.
fn list<T>(
    reader: &mut Reader<'_>,
    read: impl Fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let count = bounded(reader, MAX_DEFINITIONS)?;
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(read(&mut Reader::new("schema definition", field(reader)?))?);
    }
    Ok(items)
}

fn bounded(reader: &mut Reader<'_>, most: u64) -> Result<u64, DecodeError> {
    let at = reader.at();
    match reader.varint()? {
        count if count <= most => Ok(count),
        _ => Err(reader.error(at, "there are more than may be")),
    }
}

fn index(reader: &mut Reader<'_>, end: u64) -> Result<u32, DecodeError> {
    let at = reader.at();
    match reader.varint()? {
        index if index < end => Ok(index as u32),
        _ => Err(reader.error(at, "a number is too large")),
    }
}
