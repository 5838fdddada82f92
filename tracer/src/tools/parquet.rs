//! Apache Parquet: a row for each record, with the columns that most records share, and all fields as JSON in the last one.
//!
//! The layout is that of the specification's oldest readers: version 1 data pages in plain encoding, each one compressed with zstd. Only the parts of the
//! Thrift compact protocol that metadata need are here.

use std::io::Write;

use amino_schema::trace::Type;
use amino_schema::trace::pairs::Pairs;
use amino_schema::trace::record::Record;

use super::fields::{Fields, bytes, error_name, number};
use super::json::object_of;
use super::{Consumer, clock_offset};
use crate::Error;

/// Writes a Parquet file.
pub struct Parquet<W> {
    out: W,
    written: u64,
    offset_ns: Option<i64>,
    columns: Vec<Column>,
    rows: u64,
    groups: Vec<Group>,
    total_rows: u64,
}

/// Rows of a group, and bytes after which one ends earlier.
const GROUP_ROWS: u64 = 1 << 17;
const GROUP_BYTES: usize = 64 << 20;
const MAGIC: &[u8; 4] = b"PAR1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `INT64`
    Number,
    /// `INT64`, nanoseconds since 1970.
    Time,
    /// `BYTE_ARRAY`, UTF-8.
    Text,
}

/// Names and types of the columns.
const COLUMNS: [(&str, Kind); 19] = [
    ("message", Kind::Text),
    ("call", Kind::Number),
    ("time", Kind::Number),
    ("realtime", Kind::Time),
    ("duration", Kind::Number),
    ("pid", Kind::Number),
    ("tid", Kind::Number),
    ("uid", Kind::Number),
    ("gid", Kind::Number),
    ("sid", Kind::Number),
    ("comm", Kind::Text),
    ("result", Kind::Number),
    ("error", Kind::Text),
    ("path", Kind::Text),
    ("path2", Kind::Text),
    ("fd", Kind::Number),
    ("offset", Kind::Number),
    ("bytes", Kind::Number),
    ("fields", Kind::Text),
];

/// The values of a column in the current group.
#[derive(Default)]
struct Column {
    /// A bit for each row: whether it has a value.
    present: Vec<u8>,
    values: Vec<u8>,
}

/// A group of rows that was written.
struct Group {
    rows: u64,
    chunks: Vec<Chunk>,
}

/// A column of a group: where it is in the file, and its bytes without and with compression.
struct Chunk {
    offset: u64,
    raw: i64,
    packed: i64,
}

enum Cell {
    Number(Option<i64>),
    Text(Option<Vec<u8>>),
}

impl<W: Write> Parquet<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Self {
        Self {
            out,
            written: 0,
            offset_ns: None,
            columns: COLUMNS.iter().map(|_| Column::default()).collect(),
            rows: 0,
            groups: Vec::new(),
            total_rows: 0,
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.written += bytes.len() as u64;
        self.out
            .write_all(bytes)
            .map_err(|why| Error::output("", why))
    }

    fn start(&mut self) -> Result<(), Error> {
        match self.written {
            0 => self.put(MAGIC),
            _ => Ok(()),
        }
    }

    /// Adds a row, and ends the group of rows when it is large.
    fn push(&mut self, cells: &[Cell]) -> Result<(), Error> {
        let row = self.rows;
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            column.push(row, cell);
        }
        self.rows += 1;
        let largest = self.columns.iter().map(|it| it.values.len()).max();
        if self.rows >= GROUP_ROWS || largest >= Some(GROUP_BYTES) {
            self.end_group()?;
        }
        Ok(())
    }

    fn end_group(&mut self) -> Result<(), Error> {
        if self.rows == 0 {
            return Ok(());
        }
        self.start()?;
        let rows = std::mem::take(&mut self.rows);
        let mut chunks = Vec::new();
        for index in 0..self.columns.len() {
            let column = self.columns.get_mut(index).map(std::mem::take);
            let column = column.unwrap_or_default();
            let mut page = Vec::new();
            // Definition levels: their length, then one run of groups of eight, a bit for each row.
            let groups = column.present.len() as u64;
            let mut levels = Vec::new();
            put_varint(&mut levels, groups << 1 | 1);
            levels.extend_from_slice(&column.present);
            page.extend_from_slice(&(levels.len() as u32).to_le_bytes());
            page.extend_from_slice(&levels);
            page.extend_from_slice(&column.values);
            let packed =
                zstd::bulk::compress(&page, LEVEL).map_err(|why| Error::codec("zstd", why))?;
            let mut header = Thrift::default();
            header.number32(1, 0); // DATA_PAGE
            header.number32(2, page.len() as i64);
            header.number32(3, packed.len() as i64);
            header.structure(5, |page| {
                page.number32(1, rows as i64);
                page.number32(2, PLAIN);
                page.number32(3, RLE);
                page.number32(4, RLE);
            });
            let header = header.end();
            chunks.push(Chunk {
                offset: self.written,
                raw: (header.len() + page.len()) as i64,
                packed: (header.len() + packed.len()) as i64,
            });
            self.put(&header)?;
            self.put(&packed)?;
        }
        self.total_rows += rows;
        self.groups.push(Group { rows, chunks });
        Ok(())
    }

    fn footer(&self) -> Vec<u8> {
        let mut file = Thrift::default();
        file.number32(1, 1);
        file.list(2, STRUCT, COLUMNS.len() + 1, |list| {
            list.element(|root| {
                root.binary(4, b"schema");
                root.number32(5, COLUMNS.len() as i64);
            });
            for (name, kind) in COLUMNS {
                list.element(|column| {
                    column.number32(1, kind.physical());
                    column.number32(3, 1); // OPTIONAL
                    column.binary(4, name.as_bytes());
                    match kind {
                        Kind::Text => {
                            column.number32(6, 0); // UTF8
                            column.structure(10, |logical| logical.structure(1, |_| {}));
                        }
                        Kind::Time => column.structure(10, |logical| {
                            logical.structure(8, |timestamp| {
                                timestamp.boolean(1, true);
                                timestamp.structure(2, |unit| unit.structure(3, |_| {}));
                            });
                        }),
                        Kind::Number => {}
                    }
                });
            }
        });
        file.number(3, self.total_rows as i64);
        file.list(4, STRUCT, self.groups.len(), |list| {
            for group in &self.groups {
                list.element(|out| {
                    out.list(1, STRUCT, group.chunks.len(), |chunks| {
                        for (part, (name, kind)) in group.chunks.iter().zip(COLUMNS) {
                            chunks.element(|chunk| {
                                chunk.number(2, 0);
                                chunk.structure(3, |data| {
                                    data.number32(1, kind.physical());
                                    data.list(2, I32, 2, |encodings| {
                                        encodings.bare(PLAIN);
                                        encodings.bare(RLE);
                                    });
                                    data.list(3, BINARY, 1, |path| {
                                        path.bare_binary(name.as_bytes())
                                    });
                                    data.number32(4, ZSTD);
                                    data.number(5, group.rows as i64);
                                    data.number(6, part.raw);
                                    data.number(7, part.packed);
                                    data.number(9, part.offset as i64);
                                });
                            });
                        }
                    });
                    out.number(2, group.chunks.iter().map(|it| it.raw).sum());
                    out.number(3, group.rows as i64);
                });
            }
        });
        file.binary(
            6,
            concat!("goanna-trace ", env!("CARGO_PKG_VERSION")).as_bytes(),
        );
        file.end()
    }
}

impl Kind {
    fn physical(self) -> i64 {
        match self {
            Self::Number | Self::Time => 2,
            Self::Text => 6,
        }
    }
}

impl Column {
    fn push(&mut self, row: u64, cell: &Cell) {
        if row.is_multiple_of(8) {
            self.present.push(0);
        }
        let present = matches!(cell, Cell::Number(Some(_)) | Cell::Text(Some(_)));
        if let Some(last) = self.present.last_mut() {
            *last |= u8::from(present) << (row % 8);
        }
        match cell {
            Cell::Number(Some(number)) => self.values.extend_from_slice(&number.to_le_bytes()),
            Cell::Text(Some(text)) => {
                self.values
                    .extend_from_slice(&(text.len() as u32).to_le_bytes());
                self.values.extend_from_slice(text);
            }
            _ => {}
        }
    }
}

/// The first number with this role.
fn number_of_role(record: &Record<'_>, role: &str) -> Cell {
    let mut values = record
        .fields()
        .filter(|(argument, _)| argument.kind != Type::Data && argument.role == role)
        .filter_map(|(_, value)| number(value));
    Cell::Number(values.next().map(|it| it as i64))
}

/// The paths of a call as the kernel resolved them; where the trace has none, as the program gave them.
fn paths(record: &Record<'_>, fields: &Fields<'_>) -> Vec<Vec<u8>> {
    let resolved: Vec<_> = record
        .fields()
        .filter(|(argument, _)| argument.kind != Type::Data)
        .filter(|(argument, _)| matches!(argument.role.as_str(), "resolved" | "file.path"))
        .filter_map(|(_, value)| bytes(value).map(lossy))
        .collect();
    if !resolved.is_empty() {
        return resolved;
    }
    let arguments = fields.arguments.iter();
    let given = arguments.filter(|it| it.argument.role == "path");
    given.filter_map(|it| bytes(it.value)).map(lossy).collect()
}

impl<W: Write> Consumer for Parquet<W> {
    fn context(&mut self, context: &Pairs) -> Result<(), Error> {
        self.offset_ns = clock_offset(context);
        Ok(())
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let fields = Fields::of(record);
        let [uid, gid, sid, fd, offset] =
            ["uid", "gid", "sid", "fd", "offset"].map(|role| number_of_role(record, role));
        let mut paths = paths(record, &fields).into_iter();
        let moved = fields
            .result
            .filter(|it| fields.result_unit == "bytes" && *it >= 0);
        let real = fields
            .time
            .zip(self.offset_ns)
            .map(|(time, offset)| time.wrapping_add_signed(offset) as i64);
        let error = fields
            .error()
            .and_then(|it| error_name(record.schema(), it));
        let object = serde_json::to_vec(&object_of(record, self.offset_ns)).unwrap_or_default();
        let unsigned = |number: Option<u64>| Cell::Number(number.map(|it| it as i64));
        let cells = [
            Cell::Text(Some(record.message.name.clone().into_bytes())),
            Cell::Number(record.message.number.map(i64::from)),
            unsigned(fields.time),
            Cell::Number(real),
            unsigned(fields.duration),
            Cell::Number(fields.pid),
            Cell::Number(fields.tid),
            uid,
            gid,
            sid,
            Cell::Text(fields.comm.map(lossy)),
            Cell::Number(fields.result),
            Cell::Text(error.map(|it| it.as_bytes().to_vec())),
            Cell::Text(paths.next()),
            Cell::Text(paths.next()),
            fd,
            offset,
            Cell::Number(moved),
            Cell::Text(Some(object)),
        ];
        self.push(&cells)
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.start()?;
        self.end_group()?;
        let footer = self.footer();
        self.put(&footer)?;
        self.put(&(footer.len() as u32).to_le_bytes())?;
        self.put(MAGIC)?;
        self.out.flush().map_err(|why| Error::output("", why))
    }
}

fn lossy(bytes: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(bytes).into_owned().into_bytes()
}

/// Compression.
const ZSTD: i64 = 6;
const LEVEL: i32 = 3;
/// Encodings.
const PLAIN: i64 = 0;
const RLE: i64 = 3;
/// Types of the compact protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// A structure of the Thrift compact protocol. Fields come in ascending order.
#[derive(Default)]
struct Thrift {
    out: Vec<u8>,
    last: u8,
}

impl Thrift {
    fn field(&mut self, id: u8, kind: u8) {
        // Differences of our fields are below 16.
        self.out.push(id.wrapping_sub(self.last) << 4 | kind);
        self.last = id;
    }

    fn bare(&mut self, value: i64) {
        put_varint(&mut self.out, ((value << 1) ^ (value >> 63)) as u64);
    }

    fn bare_binary(&mut self, bytes: &[u8]) {
        put_varint(&mut self.out, bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    /// A field of 64 bits.
    fn number(&mut self, id: u8, value: i64) {
        self.field(id, I64);
        self.bare(value);
    }

    /// A field of 32 bits.
    fn number32(&mut self, id: u8, value: i64) {
        self.field(id, I32);
        self.bare(value);
    }

    fn boolean(&mut self, id: u8, value: bool) {
        self.field(id, if value { TRUE } else { FALSE });
    }

    fn binary(&mut self, id: u8, bytes: &[u8]) {
        self.field(id, BINARY);
        self.bare_binary(bytes);
    }

    fn structure(&mut self, id: u8, fill: impl FnOnce(&mut Self)) {
        self.field(id, STRUCT);
        self.element(fill);
    }

    /// A structure without a field header, as lists have them.
    fn element(&mut self, fill: impl FnOnce(&mut Self)) {
        let last = std::mem::take(&mut self.last);
        fill(self);
        self.out.push(0);
        self.last = last;
    }

    fn list(&mut self, id: u8, kind: u8, count: usize, fill: impl FnOnce(&mut Self)) {
        self.field(id, LIST);
        match u8::try_from(count) {
            Ok(count @ 0..15) => self.out.push(count << 4 | kind),
            _ => {
                self.out.push(0xf0 | kind);
                put_varint(&mut self.out, count as u64);
            }
        }
        fill(self);
    }

    fn end(mut self) -> Vec<u8> {
        self.out.push(0);
        self.out
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
