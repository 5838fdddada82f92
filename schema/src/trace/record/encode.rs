//! Makes records.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::strings::{Span, Strings};
use super::{
    ABSENT, Cell, DIFFERENCE, EARLIER, JOINED, MAX_LANES, MAX_SHAPES, NULL, PLAIN, PREFIX, SAME,
    STEP, TABLE, UNREAD, Value, zigzag,
};
use crate::trace::{Argument, Schema, Type};
use crate::wire::put_varint;

/// Builds the payload of one block after the other.
#[derive(Debug)]
pub struct Encoder {
    schema: Arc<Schema>,
    elide: bool,
    out: Vec<u8>,
    records: u32,
    lanes: Vec<Lane>,
    used_lanes: usize,
    current: usize,
    next_reused: usize,
    shapes: HashMap<u64, (u32, Box<[u8]>), BuildHasherDefault<Hashed>>,
    defined_shapes: u32,
    strings: Strings,
    known: HashMap<u64, u32, BuildHasherDefault<Hashed>>,
    codes: Vec<u8>,
    fields: Vec<u8>,
    body: Vec<u8>,
    /// The fields of each cell, if the block has columns.
    columns: Option<Vec<Vec<u8>>>,
    /// Bytes in the columns.
    in_columns: usize,
}

#[derive(Debug, Clone)]
struct Lane {
    thread: u64,
    cells: Vec<Cell>,
}

/// The fields before the one that is written, within a record.
#[derive(Default)]
struct Earlier<'a> {
    number: Option<u64>,
    text: Option<(&'a [u8], Option<Span>)>,
}

impl Encoder {
    /// An encoder of records of `schema`. Without `elide`, all fields are written in full.
    pub fn new(schema: Arc<Schema>, elide: bool) -> Self {
        let first = Lane {
            thread: 0,
            cells: vec![Cell::default(); schema.cells()],
        };
        Self {
            schema,
            elide,
            out: Vec::new(),
            records: 0,
            lanes: vec![first],
            used_lanes: 0,
            current: 0,
            next_reused: 0,
            shapes: HashMap::default(),
            defined_shapes: 0,
            strings: Strings::default(),
            known: HashMap::default(),
            codes: Vec::new(),
            fields: Vec::new(),
            body: Vec::new(),
            columns: None,
            in_columns: 0,
        }
    }

    /// An encoder of blocks with columns, which leaves out fields that follow from earlier ones.
    pub fn with_columns(schema: Arc<Schema>) -> Self {
        let columns = vec![Vec::new(); schema.cells()];
        Self {
            columns: Some(columns),
            ..Self::new(schema, true)
        }
    }

    /// Bytes of the block so far.
    pub fn len(&self) -> usize {
        self.out.len() + self.in_columns
    }

    /// Whether the block has no record.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Records of the block so far.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Ends the block, and returns its payload. The next record starts another block.
    pub fn finish(&mut self) -> Vec<u8> {
        self.records = 0;
        self.used_lanes = 0;
        self.current = 0;
        self.next_reused = 0;
        self.shapes.clear();
        self.defined_shapes = 0;
        self.strings.clear();
        self.known.clear();
        self.in_columns = 0;
        let capacity = self.out.len();
        let out = std::mem::replace(&mut self.out, Vec::with_capacity(capacity));
        match &mut self.columns {
            Some(columns) => join(&out, columns),
            None => out,
        }
    }

    /// Appends a record of the message with this position in the schema, of this thread. `values` are those of the message's
    /// arguments; absent ones at the end may be left out.
    pub fn put(&mut self, message: usize, thread: u64, values: &[Value<'_>]) {
        let schema = Arc::clone(&self.schema);
        let Some(message) = schema.messages.get(message) else {
            return;
        };
        self.codes.clear();
        self.fields.clear();
        self.body.clear();
        let lane = self.enter_lane(thread);
        let mut earlier = Earlier::default();
        let padded = values
            .iter()
            .copied()
            .chain(std::iter::repeat(Value::Absent));
        for (&index, value) in message.arguments.iter().zip(padded) {
            let code = match schema.argument(index) {
                Some(argument) => {
                    let code = self.field(argument, value, &mut earlier);
                    self.fill_column(argument);
                    code
                }
                None => ABSENT,
            };
            self.codes.push(code);
        }
        self.put_shape(message.id, lane.is_some());
        self.body.extend(lane);
        if self.columns.is_none() {
            put_varint(&mut self.out, (self.body.len() + self.fields.len()) as u64);
        }
        self.out.extend_from_slice(&self.body);
        self.out.extend_from_slice(&self.fields);
        self.records += 1;
    }

    /// Moves the bytes of a field to the column of its cell, if the block has columns.
    fn fill_column(&mut self, argument: &Argument) {
        let Some(columns) = &mut self.columns else {
            return;
        };
        if let Some(column) = columns.get_mut(argument.cell as usize) {
            self.in_columns += self.fields.len();
            column.append(&mut self.fields);
        }
    }

    /// Makes the thread's lane the current one. Returns its number if it was not the current one before.
    fn enter_lane(&mut self, thread: u64) -> Option<u8> {
        let before = self.current;
        if self.used_lanes == 0 {
            self.used_lanes = 1;
            if let Some(lane) = self.lanes.first_mut() {
                lane.thread = thread;
                lane.cells.fill(Cell::default());
            }
        }
        let is_its = |lane: Option<&Lane>| lane.is_some_and(|lane| lane.thread == thread);
        if !self.elide || is_its(self.lanes.get(before)) {
            return None;
        }
        let used = self.lanes.get(..self.used_lanes).unwrap_or_default();
        self.current = match used.iter().position(|lane| lane.thread == thread) {
            Some(at) => at,
            None if self.used_lanes < MAX_LANES => {
                let at = self.used_lanes;
                self.used_lanes += 1;
                if self.lanes.len() == at {
                    self.lanes.push(Lane {
                        thread,
                        cells: Vec::new(),
                    });
                }
                let (old, new) = self.lanes.split_at_mut(at);
                if let (Some(old), Some(new)) = (old.get(before), new.first_mut()) {
                    new.cells.clone_from(&old.cells);
                }
                at
            }
            None => {
                self.next_reused = (self.next_reused + 1) % MAX_LANES;
                self.next_reused
            }
        };
        if let Some(lane) = self.lanes.get_mut(self.current) {
            lane.thread = thread;
        }
        Some(self.current as u8)
    }

    /// The shape's number, or its definition.
    fn put_shape(&mut self, id: u32, has_lane: bool) {
        let mut packed = [0u8; 144];
        let id = u64::from(id) << 1 | u64::from(has_lane);
        let codes = self.codes.chunks(2);
        let mut len = 8;
        if let Some(head) = packed.first_chunk_mut::<8>() {
            *head = id.to_le_bytes();
        }
        for (slot, pair) in packed.iter_mut().skip(8).zip(codes) {
            *slot = match *pair {
                [low, high] => low | high << 4,
                [low] => low,
                _ => 0,
            };
            len += 1;
        }
        let shape = packed.get(..len).unwrap_or_default();
        let hash = xxh3_64(shape);
        match self.shapes.get(&hash) {
            Some((number, known)) if **known == *shape => {
                put_varint(&mut self.body, u64::from(*number));
            }
            _ => {
                self.body.push(0);
                put_varint(&mut self.body, id);
                self.body
                    .extend_from_slice(shape.get(8..).unwrap_or_default());
                // If two shapes have the same hash, the second one is defined at each use.
                if (self.defined_shapes as usize) < MAX_SHAPES {
                    self.defined_shapes += 1;
                    let entry = (self.defined_shapes, shape.into());
                    self.shapes.entry(hash).or_insert(entry);
                }
            }
        }
    }

    fn field<'a>(&mut self, argument: &Argument, value: Value<'a>, before: &mut Earlier<'a>) -> u8 {
        match value {
            Value::Absent => ABSENT,
            Value::Null => NULL,
            Value::Unread(address) => {
                put_varint(&mut self.fields, address);
                UNREAD
            }
            Value::Number(number) if argument.kind.is_number() => {
                let code = self.number(argument, number, before.number);
                before.number = Some(number);
                code
            }
            Value::Bytes(bytes) if argument.kind == Type::Data => self.plain_bytes(bytes),
            Value::Bytes(bytes) if argument.kind == Type::Bytes => {
                let (code, span) = self.text(argument, bytes, before.text);
                before.text = Some((bytes, span));
                code
            }
            // A number for an argument of bytes, or bytes for a number: a mistake of the caller; the value cannot be stored.
            Value::Number(_) | Value::Bytes(_) => ABSENT,
        }
    }

    fn cell(&mut self, argument: &Argument) -> Option<&mut Cell> {
        let lane = self.lanes.get_mut(self.current)?;
        lane.cells.get_mut(argument.cell as usize)
    }

    fn number(&mut self, argument: &Argument, number: u64, earlier: Option<u64>) -> u8 {
        let elide = self.elide;
        let old = self.cell(argument).copied().unwrap_or_default();
        let code = if !elide && fits(argument, number) {
            let bytes = number.to_le_bytes();
            let size = usize::from(argument.size);
            self.fields
                .extend_from_slice(bytes.get(..size).unwrap_or_default());
            PLAIN
        } else if elide && number == old.number {
            return SAME;
        } else if elide && earlier == Some(number) {
            EARLIER
        } else if elide && number == old.number.wrapping_add(old.step) {
            STEP
        } else {
            put_varint(&mut self.fields, zigzag(number.wrapping_sub(old.number)));
            DIFFERENCE
        };
        if let Some(cell) = self.cell(argument) {
            cell.set(number);
        }
        code
    }

    /// The code, and the string's position in the table, if it is there.
    fn text(
        &mut self,
        argument: &Argument,
        bytes: &[u8],
        earlier: Option<(&[u8], Option<Span>)>,
    ) -> (u8, Option<Span>) {
        if !self.elide {
            return (self.plain_bytes(bytes), None);
        }
        let last = self
            .cell(argument)
            .map(|cell| cell.text)
            .unwrap_or_default();
        let old = self.strings.get(last);
        if old == bytes {
            return (SAME, Some(last));
        }
        let (code, span) = match earlier {
            Some((same, span)) if same == bytes => (EARLIER, span),
            _ => {
                let hash = xxh3_64(bytes);
                let entry = self.known.get(&hash).copied();
                let span = entry.and_then(|entry| self.strings.span(entry as usize));
                match (entry, span) {
                    (Some(entry), Some(span)) if self.strings.get(span) == bytes => {
                        let back = self.strings.len() - 1 - entry as usize;
                        put_varint(&mut self.fields, back as u64);
                        (TABLE, Some(span))
                    }
                    _ if self.strings.fits(bytes.len()) => {
                        self.known.insert(hash, self.strings.len() as u32);
                        if let Some(span) = self.join(last, bytes, earlier) {
                            if let Some(cell) = self.cell(argument) {
                                cell.text = span;
                            }
                            return (JOINED, Some(span));
                        }
                        let old = self.strings.get(last);
                        let shared = old.iter().zip(bytes).take_while(|(a, b)| a == b).count();
                        let rest = bytes.get(shared..).unwrap_or_default();
                        put_varint(&mut self.fields, shared as u64);
                        put_varint(&mut self.fields, rest.len() as u64);
                        self.fields.extend_from_slice(rest);
                        (PREFIX, Some(self.strings.push(last, shared, rest)))
                    }
                    _ => return (self.plain_bytes(bytes), None),
                }
            }
        };
        if let (Some(span), Some(cell)) = (span, self.cell(argument)) {
            cell.text = span;
        }
        (code, span)
    }

    /// Stores a string that is the beginning of the cell's string and the whole of an earlier string: a path in the same directory as the
    /// path before it. Only blocks with columns have such strings.
    fn join(
        &mut self,
        last: Span,
        bytes: &[u8],
        earlier: Option<(&[u8], Option<Span>)>,
    ) -> Option<Span> {
        let (end, span) = earlier.filter(|(end, _)| self.columns.is_some() && !end.is_empty())?;
        let beginning = bytes.strip_suffix(end)?;
        if !self.strings.get(last).starts_with(beginning) {
            return None;
        }
        let joined = self.strings.join(last, beginning.len(), span?);
        put_varint(&mut self.fields, beginning.len() as u64);
        Some(joined)
    }

    fn plain_bytes(&mut self, bytes: &[u8]) -> u8 {
        put_varint(&mut self.fields, bytes.len() as u64);
        self.fields.extend_from_slice(bytes);
        PLAIN
    }
}

/// The payload of a block with columns. Empties the columns.
fn join(heads: &[u8], columns: &mut [Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, heads.len() as u64);
    let used = columns.iter().filter(|column| !column.is_empty());
    put_varint(&mut out, used.clone().count() as u64);
    for (cell, column) in columns.iter().enumerate() {
        if !column.is_empty() {
            put_varint(&mut out, cell as u64);
            put_varint(&mut out, column.len() as u64);
        }
    }
    out.reserve(heads.len() + used.map(Vec::len).sum::<usize>());
    out.extend_from_slice(heads);
    for column in columns {
        out.extend_from_slice(column);
        column.clear();
    }
    out
}

/// Whether the argument's size holds the number.
fn fits(argument: &Argument, number: u64) -> bool {
    let unused = 64 - u32::from(argument.size) * 8;
    match argument.kind {
        Type::Signed => ((number << unused) as i64 >> unused) as u64 == number,
        _ => number << unused >> unused == number,
    }
}

/// A hasher for keys that are hashes already.
#[derive(Debug, Default, Clone, Copy)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0 << 8 | u64::from(byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
