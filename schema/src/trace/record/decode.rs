//! Reads records.

use std::ops::Range;
use std::sync::Arc;

use super::strings::{Span, Strings};
use super::{
    ABSENT, Cell, DIFFERENCE, EARLIER, JOINED, MAX_LANES, MAX_SHAPES, NULL, PLAIN, PREFIX, SAME,
    STEP, TABLE, UNREAD, Value, unzigzag,
};
use crate::DecodeError;
use crate::trace::{Argument, Message, Schema, Type};
use crate::wire::Reader;

/// The records of a block, one after the other.
#[derive(Debug)]
pub struct Records {
    schema: Arc<Schema>,
    payload: Vec<u8>,
    at: usize,
    /// The end of the records. In a block with columns, the end of the bodies, which have no fields.
    end: usize,
    /// The remaining part of each cell's column.
    columns: Option<Vec<Range<usize>>>,
    /// Number of further records to read.
    most: u32,
    shapes: Vec<Arc<Shape>>,
    lanes: Vec<Vec<Cell>>,
    current: usize,
    strings: Strings,
    fields: Vec<Field>,
    unknown: u64,
}

#[derive(Debug, Clone)]
struct Shape {
    message: Option<usize>,
    has_lane: bool,
    codes: Box<[u8]>,
}

/// The position of a field's value.
#[derive(Debug, Clone, Copy)]
enum Field {
    Absent,
    Null,
    Unread(u64),
    Number(u64),
    Table(Span),
    Payload { start: usize, len: usize },
}

/// The nearest fields before the one that is read, within a record.
#[derive(Default)]
struct Earlier {
    number: Option<u64>,
    text: Option<Field>,
}

/// A record.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    records: &'a Records,
    /// Its type.
    pub message: &'a Message,
}

impl<'a> Record<'a> {
    /// Its fields: argument and value, in the message's order. Absent ones are among them.
    pub fn fields(&self) -> impl Iterator<Item = (&'a Argument, Value<'a>)> + use<'a> {
        let records = self.records;
        let arguments = self.message.arguments.iter();
        arguments
            .zip(&records.fields)
            .filter_map(|(&index, field)| {
                Some((records.schema.argument(index)?, records.value(*field)))
            })
    }

    /// The schema that describes it.
    pub fn schema(&self) -> &'a Arc<Schema> {
        &self.records.schema
    }
}

impl Records {
    /// The records of a raw payload.
    pub fn new(schema: Arc<Schema>, payload: Vec<u8>) -> Self {
        let first = vec![Cell::default(); schema.cells()];
        Self {
            schema,
            end: payload.len(),
            payload,
            at: 0,
            columns: None,
            most: u32::MAX,
            shapes: Vec::new(),
            lanes: vec![first],
            current: 0,
            strings: Strings::default(),
            fields: Vec::new(),
            unknown: 0,
        }
    }

    /// The records of a raw payload with columns, whose end may be missing.
    pub fn in_columns(schema: Arc<Schema>, payload: Vec<u8>) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("columns", &payload);
        let bodies = length(&mut reader)?;
        let count = length(&mut reader)?;
        let mut columns = vec![0..0; schema.cells()];
        let mut lengths = Vec::new();
        for _ in 0..count {
            let at = reader.at();
            let (cell, len) = (length(&mut reader)?, length(&mut reader)?);
            if lengths.last().is_some_and(|&(before, _)| before >= cell) || cell >= columns.len() {
                return Err(reader.error(at, "a column has no cell of its own"));
            }
            lengths.push((cell, len));
        }
        // If the payload is truncated, the last columns are shorter than their recorded length.
        let bounded = |start: usize, len: usize| start.saturating_add(len).min(payload.len());
        let at = reader.at();
        let end = bounded(at, bodies);
        let mut start = end;
        for (cell, len) in lengths {
            let column = start..bounded(start, len);
            start = column.end;
            if let Some(slot) = columns.get_mut(cell) {
                *slot = column;
            }
        }
        Ok(Self {
            at,
            end,
            columns: Some(columns),
            ..Self::new(schema, payload)
        })
    }

    /// Ends after this number of further records.
    #[must_use]
    pub fn limited(mut self, records: u32) -> Self {
        self.most = records;
        self
    }

    /// Number of skipped records so far: those of messages that the schema does not have.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// The next record; `None` at the end of the payload. After an error nothing further can be read.
    #[allow(clippy::should_implement_trait)] // a record borrows from what reads it
    pub fn next(&mut self) -> Result<Option<Record<'_>>, DecodeError> {
        loop {
            if self.at >= self.end || self.most == 0 {
                return Ok(None);
            }
            self.most -= 1;
            let payload = std::mem::take(&mut self.payload);
            let message = self.record(&payload);
            self.payload = payload;
            match message {
                Ok(Some(message)) => return Ok(self.view(message)),
                Ok(None) => self.unknown += 1,
                Err(error) => {
                    self.at = self.end;
                    return Err(error);
                }
            }
        }
    }

    fn view(&self, message: usize) -> Option<Record<'_>> {
        let message = self.schema.messages.get(message)?;
        let records = self;
        Some(Record { records, message })
    }

    fn value(&self, field: Field) -> Value<'_> {
        match field {
            Field::Absent => Value::Absent,
            Field::Null => Value::Null,
            Field::Unread(address) => Value::Unread(address),
            Field::Number(number) => Value::Number(number),
            Field::Table(span) => Value::Bytes(self.strings.get(span)),
            Field::Payload { start, len } => {
                Value::Bytes(self.payload.get(start..start + len).unwrap_or_default())
            }
        }
    }

    /// Reads one record; the position of its message in the schema, or `None` when the schema has none.
    fn record(&mut self, payload: &[u8]) -> Result<Option<usize>, DecodeError> {
        let rest = payload.get(self.at..self.end).unwrap_or_default();
        let mut outer = Reader::new("record", rest);
        let has_columns = self.columns.is_some();
        let (start, body) = match has_columns {
            true => (self.at, rest),
            false => {
                let len = length(&mut outer)?;
                (self.at + outer.at(), outer.take(len)?)
            }
        };
        let mut reader = Reader::new("record", body);
        let shape = self.shape(&mut reader)?;
        if shape.has_lane {
            self.enter_lane(&mut reader)?;
        }
        self.at += if has_columns { reader.at() } else { outer.at() };
        let Some(message) = shape.message else {
            // Without the definition, it is unknown which columns have fields of the record.
            return match has_columns {
                true => Err(reader.error(0, "a message is not in the schema")),
                false => Ok(None),
            };
        };
        let schema = Arc::clone(&self.schema);
        let Some(definition) = schema.messages.get(message) else {
            return Ok(None);
        };
        self.fields.clear();
        let mut earlier = Earlier::default();
        for (&index, &code) in definition.arguments.iter().zip(&shape.codes) {
            let Some(argument) = schema.argument(index) else {
                return Err(reader.error(reader.at(), "an argument is not in the schema"));
            };
            let column = self.columns.as_ref();
            let column = column.and_then(|columns| columns.get(argument.cell as usize).cloned());
            let field = match column {
                None => self.field(&mut reader, start, argument, code, &mut earlier)?,
                Some(column) => {
                    let bytes = payload.get(column.clone()).unwrap_or_default();
                    let mut reader = Reader::new("column", bytes);
                    let start = column.start;
                    let field = self.field(&mut reader, start, argument, code, &mut earlier)?;
                    let columns = self.columns.as_mut();
                    if let Some(left) = columns.and_then(|it| it.get_mut(argument.cell as usize)) {
                        left.start += reader.at();
                    }
                    field
                }
            };
            self.fields.push(field);
        }
        Ok(Some(message))
    }

    /// Reads a field; `start` is where the reader's bytes start in the payload.
    fn field(
        &mut self,
        reader: &mut Reader<'_>,
        start: usize,
        argument: &Argument,
        code: u8,
        earlier: &mut Earlier,
    ) -> Result<Field, DecodeError> {
        match argument.kind {
            Type::Unsigned | Type::Signed => {
                self.number(reader, argument, code, &mut earlier.number)
            }
            Type::Bytes => self.text(reader, start, argument, code, &mut earlier.text),
            Type::Data => match Self::special(code) {
                Some(field) => unread(reader, field),
                None => plain(reader, start, code),
            },
        }
    }

    /// The fields that have no value of the argument's type.
    fn special(code: u8) -> Option<Field> {
        match code {
            ABSENT => Some(Field::Absent),
            NULL => Some(Field::Null),
            UNREAD => Some(Field::Unread(0)),
            _ => None,
        }
    }

    fn shape(&mut self, reader: &mut Reader<'_>) -> Result<Arc<Shape>, DecodeError> {
        let at = reader.at();
        let number = reader.varint()?;
        if number > 0 {
            let known = usize::try_from(number - 1).ok();
            let shape = known.and_then(|index| self.shapes.get(index)).cloned();
            return shape.ok_or_else(|| reader.error(at, "a shape is not defined in this block"));
        }
        let id = reader.varint()?;
        let has_lane = id & 1 == 1;
        let id = u32::try_from(id >> 1).unwrap_or(u32::MAX);
        let message = self.schema.messages.binary_search_by_key(&id, |it| it.id);
        let message = message.ok();
        let arguments = message.and_then(|at| self.schema.messages.get(at));
        let count = arguments.map_or(0, |it| it.arguments.len());
        let packed = reader.take(count.div_ceil(2))?;
        let codes = packed.iter().flat_map(|byte| [byte & 15, byte >> 4]);
        let shape = Arc::new(Shape {
            message,
            has_lane,
            codes: codes.take(count).collect(),
        });
        if self.shapes.len() < MAX_SHAPES {
            self.shapes.push(Arc::clone(&shape));
        }
        Ok(shape)
    }

    fn enter_lane(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let at = reader.at();
        let lane = usize::from(reader.u8()?);
        if lane == self.lanes.len() && lane < MAX_LANES {
            let cells = self.lanes.get(self.current).cloned();
            self.lanes.push(cells.unwrap_or_default());
        } else if lane >= self.lanes.len() {
            return Err(reader.error(at, "a lane does not exist"));
        }
        self.current = lane;
        Ok(())
    }

    fn cell(&mut self, reader: &Reader<'_>, argument: &Argument) -> Result<&mut Cell, DecodeError> {
        let lane = self.lanes.get_mut(self.current);
        let cell = lane.and_then(|lane| lane.get_mut(argument.cell as usize));
        cell.ok_or_else(|| reader.error(reader.at(), "a cell does not exist"))
    }

    fn number(
        &mut self,
        reader: &mut Reader<'_>,
        argument: &Argument,
        code: u8,
        earlier: &mut Option<u64>,
    ) -> Result<Field, DecodeError> {
        if let Some(field) = Self::special(code) {
            return unread(reader, field);
        }
        let old = *self.cell(reader, argument)?;
        let number = match code {
            PLAIN => fixed(reader, argument)?,
            SAME => {
                *earlier = Some(old.number);
                return Ok(Field::Number(old.number));
            }
            DIFFERENCE => old.number.wrapping_add(unzigzag(reader.varint()?)),
            STEP => old.number.wrapping_add(old.step),
            EARLIER => earlier.ok_or_else(|| nothing_earlier(reader))?,
            _ => return Err(bad_code(reader)),
        };
        self.cell(reader, argument)?.set(number);
        *earlier = Some(number);
        Ok(Field::Number(number))
    }

    fn text(
        &mut self,
        reader: &mut Reader<'_>,
        start: usize,
        argument: &Argument,
        code: u8,
        earlier: &mut Option<Field>,
    ) -> Result<Field, DecodeError> {
        if let Some(field) = Self::special(code) {
            return unread(reader, field);
        }
        let old = self.cell(reader, argument)?.text;
        let field = match code {
            PLAIN => plain(reader, start, code)?,
            SAME => Field::Table(old),
            EARLIER => earlier.ok_or_else(|| nothing_earlier(reader))?,
            TABLE => {
                let at = reader.at();
                let back = length(reader)?;
                let index = self
                    .strings
                    .len()
                    .checked_sub(1)
                    .and_then(|it| it.checked_sub(back));
                let span = index.and_then(|index| self.strings.span(index));
                let span = span.ok_or_else(|| reader.error(at, "a string is not in the table"))?;
                Field::Table(span)
            }
            PREFIX => {
                let at = reader.at();
                let shared = length(reader)?;
                let rest = length(reader)?;
                let rest = reader.take(rest)?;
                let len = shared.saturating_add(rest.len());
                if shared > old.len() || !self.strings.fits(len) {
                    return Err(reader.error(at, "a string does not fit the table"));
                }
                Field::Table(self.strings.push(old, shared, rest))
            }
            JOINED => {
                let at = reader.at();
                let shared = length(reader)?;
                let Some(Field::Table(end)) = *earlier else {
                    return Err(nothing_earlier(reader));
                };
                let len = shared.saturating_add(end.len());
                if shared > old.len() || !self.strings.fits(len) {
                    return Err(reader.error(at, "a string does not fit the table"));
                }
                Field::Table(self.strings.join(old, shared, end))
            }
            _ => return Err(bad_code(reader)),
        };
        if let Field::Table(span) = field {
            self.cell(reader, argument)?.text = span;
        }
        *earlier = Some(field);
        Ok(field)
    }
}

/// A varint that counts bytes or definitions.
fn length(reader: &mut Reader<'_>) -> Result<usize, DecodeError> {
    Ok(usize::try_from(reader.varint()?).unwrap_or(usize::MAX))
}

fn nothing_earlier(reader: &Reader<'_>) -> DecodeError {
    reader.error(reader.at(), "no field before it in the record has a value")
}

fn bad_code(reader: &Reader<'_>) -> DecodeError {
    reader.error(reader.at(), "a code is not one of its argument's type")
}

/// Reads the address of memory that could not be read.
fn unread(reader: &mut Reader<'_>, field: Field) -> Result<Field, DecodeError> {
    match field {
        Field::Unread(_) => Ok(Field::Unread(reader.varint()?)),
        field => Ok(field),
    }
}

/// A byte string in the payload; `start` is where the record's body starts there.
fn plain(reader: &mut Reader<'_>, start: usize, code: u8) -> Result<Field, DecodeError> {
    if code != PLAIN {
        return Err(bad_code(reader));
    }
    let len = length(reader)?;
    let at = reader.at();
    reader.take(len)?;
    let start = start + at;
    Ok(Field::Payload { start, len })
}

fn fixed(reader: &mut Reader<'_>, argument: &Argument) -> Result<u64, DecodeError> {
    let size = usize::from(argument.size);
    let field = reader.take(size)?;
    let mut bytes = [0; 8];
    for (slot, byte) in bytes.iter_mut().zip(field) {
        *slot = *byte;
    }
    let number = u64::from_le_bytes(bytes);
    let unused = 64 - argument.size.min(8) as u32 * 8;
    Ok(match argument.kind {
        Type::Signed => ((number << unused) as i64 >> unused) as u64,
        _ => number,
    })
}
