//! Which fields a call has in a trace: the messages of the schema, made from the signatures of system calls, and for each field where its
//! value comes from.

use std::collections::HashMap;

use amino_schema::trace::{Schema, Type};
use goanna_syscalls::structures::{FILE_CLONE_RANGE, FLOCK};
use goanna_syscalls::symbols::numbers::{ERRNO, SIGNALS};
use goanna_syscalls::{Field, Kind, Param, Returns, SIGNATURES, Signature, Structure, Symbols};

use super::Definitions;
use super::groups::Groups;

/// Message ids that are not calls; `docs/trace-format.md` lists them.
pub(super) mod id {
    pub const BEGAN: u32 = 1;
    pub const EXECUTED: u32 = 2;
    pub const ENDED: u32 = 3;
    pub const DESCRIPTOR: u32 = 4;
    pub const MAPPING: u32 = 5;
    pub const TOUCHED: u32 = 6;
    pub const LOST: u32 = 7;
    pub const BLOB: u32 = 8;
    pub const UNKNOWN_CALL: u32 = 9;
    /// The first id of a call: that of number 0.
    pub const CALLS: u32 = 256;
}

/// The source of a field's value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source {
    Time,
    Pid,
    Tid,
    Uid,
    Gid,
    Sid,
    Comm,
    Result,
    Duration,
    Treatment,
    /// Part of the argument with this index.
    Argument(u8, Part),
    /// Part of the file that the argument with this index names; the result has index 6.
    File(u8, FilePart),
    /// A register: number, or the call number for 6.
    Register(u8),
}

/// Part of an argument.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    /// The number or string itself; also NULL, and addresses that were not read.
    Whole,
    /// Path of the file that a descriptor names.
    DescriptorPath,
    Resolved,
    Length,
    Hash,
    /// All bytes of a short buffer.
    Bytes,
    /// A field of a structure.
    Member(&'static Field),
    Seconds(u8),
    Nanoseconds(u8),
    /// One of a pair of descriptors.
    Paired(u8),
    /// The descriptors that a message passes.
    Descriptors,
    /// A string, where the argument may be a number instead.
    Text,
}

/// Part of a file's description.
#[derive(Debug, Clone, Copy)]
pub(super) enum FilePart {
    Path,
    Device,
    Inode,
    Mode,
    Links,
    Size,
}

/// The schema of a stream, and the fields of each message in it.
pub(super) struct Plans {
    pub schema: Schema,
    /// For each message, in the schema's order. Messages that are not calls have none.
    pub sources: Vec<Vec<Source>>,
    /// Position of a call's message, by call number.
    pub calls: HashMap<u32, usize>,
}

impl Plans {
    /// All calls, with these groups of fields.
    pub fn new(groups: Groups) -> Self {
        let mut builder = Builder {
            definitions: Definitions::default(),
            groups,
            fields: Vec::new(),
            message: String::new(),
        };
        let mut sources = builder.events();
        let mut calls = HashMap::new();
        for signature in SIGNATURES {
            builder.message = signature.name.to_owned();
            builder.call(signature);
            let (arguments, planned) = std::mem::take(&mut builder.fields).into_iter().unzip();
            let position = builder.definitions.message(
                id::CALLS + signature.nr,
                signature.name,
                Some(signature.nr),
                arguments,
            );
            calls.insert(signature.nr, position);
            sources.push(planned);
        }
        Self {
            schema: builder.definitions.schema(),
            sources,
            calls,
        }
    }
}

struct Builder {
    definitions: Definitions,
    groups: Groups,
    /// The fields of the message that is being built.
    fields: Vec<(u32, Source)>,
    message: String,
}

const U16: (Type, u8) = (Type::Unsigned, 2);
const U32: (Type, u8) = (Type::Unsigned, 4);
const U64: (Type, u8) = (Type::Unsigned, 8);
const I32: (Type, u8) = (Type::Signed, 4);
const I64: (Type, u8) = (Type::Signed, 8);
const BYTES: (Type, u8) = (Type::Bytes, 0);

/// Name, role, unit and type of a message's field.
type PlainField = (&'static str, &'static str, &'static str, (Type, u8));

/// The thread of an event.
const THREAD: &[PlainField] = &[
    ("time", "time", "ns", U64),
    ("tid", "tid", "", I32),
    ("pid", "pid", "", I32),
    ("uid", "uid", "", U32),
    ("gid", "gid", "", U32),
    ("sid", "sid", "", I32),
    ("comm", "comm", "", BYTES),
];

/// The file of an event.
const FILE: &[PlainField] = &[
    ("file.path", "file.path", "", BYTES),
    ("file.device", "file.device", "", U64),
    ("file.inode", "file.inode", "", U64),
    ("file.mode", "file.mode", "", U32),
    ("file.links", "file.links", "", U64),
    ("file.size", "file.size", "bytes", U64),
];

const LOST: &[PlainField] = &[
    ("time", "time", "ns", U64),
    ("events", "count", "", U64),
    ("reason", "text", "", BYTES),
];

const BLOB: &[PlainField] = &[
    ("hash", "hash", "", BYTES),
    ("data", "data", "", (Type::Data, 0)),
];

/// Events of threads that are not calls: id, name, and the fields between thread and file.
const OF_THREADS: &[(u32, &str, &[PlainField])] = &[
    (
        id::BEGAN,
        "began",
        &[("parent", "pid", "", I32), ("umask", "mode", "", U32)],
    ),
    (
        id::EXECUTED,
        "executed",
        &[("program", "resolved", "", BYTES)],
    ),
    (id::ENDED, "ended", &[("status", "number", "", I32)]),
    (
        id::DESCRIPTOR,
        "descriptor",
        &[
            ("fd", "fd", "", I32),
            ("flags", "flags", "", U32),
            ("offset", "offset", "bytes", U64),
        ],
    ),
    (
        id::MAPPING,
        "mapping",
        &[
            ("start", "address", "", U64),
            ("length", "size", "bytes", U64),
            ("protection", "flags", "", U32),
            ("flags", "flags", "", U32),
            ("offset", "offset", "bytes", U64),
        ],
    ),
    (
        id::TOUCHED,
        "touched",
        &[
            ("offset", "offset", "bytes", U64),
            ("pages", "count", "", U64),
            ("written", "number", "", (Type::Unsigned, 1)),
        ],
    ),
];

impl Builder {
    /// The messages that are not calls, in ascending order of their ids. `stream.rs` puts their values in the same order.
    fn events(&mut self) -> Vec<Vec<Source>> {
        for (id, name, own) in OF_THREADS {
            let mut arguments = self.all_plain(THREAD);
            for (field, role, unit, kind) in *own {
                let cell = format!("{name}.{field}");
                arguments.push(self.definitions.argument(field, role, unit, *kind, &cell));
            }
            if matches!(*id, id::DESCRIPTOR | id::MAPPING | id::TOUCHED) {
                arguments.extend(self.all_plain(FILE));
            }
            self.definitions.message(*id, name, None, arguments);
        }
        let lost = self.all_plain(LOST);
        self.definitions.message(id::LOST, "lost", None, lost);
        let blob = self.all_plain(BLOB);
        self.definitions.message(id::BLOB, "blob", None, blob);
        let mut sources = vec![Vec::new(); 8];
        sources.push(self.unknown_call());
        sources
    }

    /// The message of a call that the table does not know: its number and registers.
    fn unknown_call(&mut self) -> Vec<Source> {
        self.message = "unknown_call".to_owned();
        self.thread();
        for register in [6, 0, 1, 2, 3, 4, 5] {
            let name = match register {
                6 => "number".to_owned(),
                other => format!("register{other}"),
            };
            self.own(&name, "number", "", U64, Source::Register(register));
        }
        self.outcome(Returns::Number);
        let (arguments, sources) = std::mem::take(&mut self.fields).into_iter().unzip();
        self.definitions
            .message(id::UNKNOWN_CALL, "unknown_call", None, arguments);
        sources
    }

    fn all_plain(&mut self, fields: &[PlainField]) -> Vec<u32> {
        let plain = |(name, role, unit, kind): &PlainField| self.plain(name, role, unit, *kind);
        fields.iter().map(plain).collect()
    }

    /// An argument whose cell has its name.
    fn plain(&mut self, name: &str, role: &str, unit: &str, kind: (Type, u8)) -> u32 {
        self.definitions.argument(name, role, unit, kind, name)
    }

    /// A field that shares its cell with other messages.
    fn shared(
        &mut self,
        (name, cell): (&str, &str),
        role: &str,
        unit: &str,
        kind: (Type, u8),
        source: Source,
    ) {
        let index = self.definitions.argument(name, role, unit, kind, cell);
        self.fields.push((index, source));
    }

    /// A field that is compared with the same field of the same call only.
    fn own(&mut self, name: &str, role: &str, unit: &str, kind: (Type, u8), source: Source) {
        self.symbolic(name, role, unit, kind, source, None);
    }

    fn symbolic(
        &mut self,
        name: &str,
        role: &str,
        unit: &str,
        kind: (Type, u8),
        source: Source,
        symbols: Option<u32>,
    ) {
        let cell = format!("{}.{name}", self.message);
        let definitions = &mut self.definitions;
        let index = definitions.named_values(name, role, unit, kind, &cell, symbols);
        self.fields.push((index, source));
    }

    fn symbols(&mut self, symbols: &'static Symbols, bits: bool) -> Option<u32> {
        let values = symbols.values.iter();
        let values = values.map(|(value, name)| (*value, (*name).to_owned()));
        let set = self
            .definitions
            .symbol_set(symbols.name, bits, symbols.field, values);
        Some(set)
    }

    fn call(&mut self, signature: &'static Signature) {
        self.thread();
        let mut descriptors = 0;
        for (index, param) in (0..).zip(signature.params) {
            if matches!(param.kind, Kind::Descriptor) {
                descriptors += 1;
            }
            if self.groups.arguments {
                self.parameter(index, param, descriptors);
            }
        }
        self.outcome(signature.returns);
    }

    fn thread(&mut self) {
        if self.groups.time {
            self.shared(("time", "time"), "time", "ns", U64, Source::Time);
        }
        if self.groups.process {
            self.shared(("tid", "tid"), "tid", "", I32, Source::Tid);
            self.shared(("pid", "pid"), "pid", "", I32, Source::Pid);
        }
        if self.groups.user {
            self.shared(("uid", "uid"), "uid", "", U32, Source::Uid);
            self.shared(("gid", "gid"), "gid", "", U32, Source::Gid);
        }
        if self.groups.process {
            self.shared(("sid", "sid"), "sid", "", I32, Source::Sid);
            self.shared(("comm", "comm"), "comm", "", BYTES, Source::Comm);
        }
    }

    fn outcome(&mut self, returns: Returns) {
        if self.groups.results {
            let (role, unit) = match returns {
                Returns::Size => ("result", "bytes"),
                Returns::Address => ("result", "address"),
                _ => ("result", ""),
            };
            let symbols = self.symbols(&ERRNO, false);
            let cell = match returns {
                Returns::Descriptor => "fd".to_owned(),
                _ => format!("{}.result", self.message),
            };
            let definitions = &mut self.definitions;
            let index = definitions.named_values("result", role, unit, I64, &cell, symbols);
            self.fields.push((index, Source::Result));
            if returns == Returns::Descriptor {
                self.file("result", 6, "file", true);
            }
            let kind = (Type::Unsigned, 1);
            self.own("treatment", "treatment", "", kind, Source::Treatment);
        }
        if self.groups.time {
            self.own("duration", "duration", "ns", U64, Source::Duration);
        }
    }

    fn parameter(&mut self, index: u8, param: &'static Param, descriptors: usize) {
        let name = param.name;
        let whole = Source::Argument(index, Part::Whole);
        let number = |is_signed| number_type(param.bits, is_signed);
        match param.kind {
            Kind::Signed => self.own(name, "number", "", number(true), whole),
            Kind::Unsigned | Kind::Device => self.own(name, "number", "", number(false), whole),
            Kind::Address => self.own(name, "address", "", U64, whole),
            Kind::Flags(set) => {
                let set = self.symbols(set, true);
                self.symbolic(name, "flags", "", number(false), whole, set);
            }
            Kind::Choice(set) => {
                let set = self.symbols(set, false);
                self.symbolic(name, "choice", "", number(false), whole, set);
            }
            Kind::Signal => {
                let set = self.symbols(&SIGNALS, false);
                self.symbolic(name, "signal", "", I32, whole, set);
            }
            Kind::Mode => self.own(name, "mode", "", number(false), whole),
            Kind::Offset | Kind::OffsetPointer => self.own(name, "offset", "bytes", I64, whole),
            Kind::Size => self.own(name, "size", "bytes", number(false), whole),
            Kind::Count => self.own(name, "count", "", number(false), whole),
            Kind::Uid => self.own(name, "uid", "", number(false), whole),
            Kind::Gid => self.own(name, "gid", "", number(false), whole),
            Kind::Pid => self.own(name, "pid", "", number(true), whole),
            Kind::Descriptor => {
                let second = if descriptors > 1 { "#2" } else { "" };
                let (fd, file) = (format!("fd{second}"), format!("file{second}"));
                self.descriptor(index, name, &fd, &file);
            }
            Kind::Directory => self.descriptor(index, name, "dirfd", "directory"),
            Kind::Path(_) => self.path(index, name),
            Kind::Text | Kind::OutputText(_) => self.own(name, "text", "", BYTES, whole),
            Kind::Texts => self.own(name, "texts", "", BYTES, whole),
            Kind::InputSocketAddress(_) | Kind::OutputSocketAddress(_) => {
                self.own(name, "address", "", U64, whole);
                self.part(index, name, "bytes", Part::Bytes, BYTES);
            }
            Kind::InputStructure(layout, _) | Kind::OutputStructure(layout) => {
                self.own(name, "address", "", U64, whole);
                self.structure(index, name, layout);
            }
            Kind::FcntlArgument => {
                self.own(name, "number", "", U64, whole);
                self.structure(index, name, &FLOCK);
            }
            Kind::IoctlArgument => {
                self.own(name, "number", "", U64, whole);
                self.part(index, name, "path", Part::DescriptorPath, BYTES);
                self.structure(index, name, &FILE_CLONE_RANGE);
            }
            Kind::Times(_, count) => self.times(index, name, count),
            Kind::OutputTime(_) => self.times(index, name, 1),
            Kind::DescriptorPair => self.descriptor_pair(index, name),
            Kind::PrctlArgument => {
                self.own(name, "number", "", U64, Source::Register(index));
                self.part(index, name, "text", Part::Text, BYTES);
            }
            Kind::Input(_)
            | Kind::Output(_)
            | Kind::InputVector(_)
            | Kind::OutputVector(_)
            | Kind::Copied { .. } => self.buffers(index, name),
            Kind::InputMessage
            | Kind::OutputMessage
            | Kind::InputMessages(_)
            | Kind::OutputMessages(_) => self.message(index, name),
        }
    }

    fn message(&mut self, index: u8, name: &str) {
        self.buffers(index, name);
        self.part(index, name, "descriptors", Part::Descriptors, BYTES);
    }

    fn path(&mut self, index: u8, name: &str) {
        let whole = Source::Argument(index, Part::Whole);
        self.shared((name, "path"), "path", "", BYTES, whole);
        self.part(index, name, "resolved", Part::Resolved, BYTES);
        self.file(name, index, "file", false);
    }

    fn descriptor_pair(&mut self, index: u8, name: &str) {
        let whole = Source::Argument(index, Part::Whole);
        self.own(name, "address", "", U64, whole);
        for number in 0..2u8 {
            let source = Source::Argument(index, Part::Paired(number));
            self.own(&format!("{name}.{number}"), "fd", "", I32, source);
        }
    }

    fn buffers(&mut self, index: u8, name: &str) {
        let whole = Source::Argument(index, Part::Whole);
        self.own(name, "address", "", U64, whole);
        self.part(index, name, "length", Part::Length, U64);
        self.part(index, name, "hash", Part::Hash, BYTES);
    }

    fn descriptor(&mut self, index: u8, name: &str, cell: &str, file: &str) {
        let whole = Source::Argument(index, Part::Whole);
        self.shared((name, cell), "fd", "", I32, whole);
        if self.groups.paths {
            let path = Source::Argument(index, Part::DescriptorPath);
            let cell = format!("{file}.path");
            self.shared(
                (&format!("{name}.path"), &cell),
                "file.path",
                "",
                BYTES,
                path,
            );
        }
        self.file(name, index, file, false);
    }

    /// A part of an argument, named after it.
    fn part(&mut self, index: u8, name: &str, part: &str, source: Part, kind: (Type, u8)) {
        let source = Source::Argument(index, source);
        let unit = if part == "length" { "bytes" } else { "" };
        let cell = match part {
            "resolved" if !self.groups.paths => return,
            "resolved" | "path" => "file.path".to_owned(),
            part => format!("{}.{name}.{part}", self.message),
        };
        let role = if part == "path" { "file.path" } else { part };
        self.shared((&format!("{name}.{part}"), &cell), role, unit, kind, source);
    }

    /// The file that an argument or the result names.
    fn file(&mut self, name: &str, index: u8, cells: &str, path: bool) {
        if path && self.groups.paths {
            let source = Source::File(index, FilePart::Path);
            let cell = format!("{cells}.path");
            self.shared(
                (&format!("{name}.path"), &cell),
                "file.path",
                "",
                BYTES,
                source,
            );
        }
        if !self.groups.files {
            return;
        }
        for (part, unit, kind, source) in [
            ("device", "", U64, FilePart::Device),
            ("inode", "", U64, FilePart::Inode),
            ("mode", "", U32, FilePart::Mode),
            ("links", "", U64, FilePart::Links),
            ("size", "bytes", U64, FilePart::Size),
        ] {
            let names = (format!("{name}.{part}"), format!("{cells}.{part}"));
            let source = Source::File(index, source);
            let role = format!("file.{part}");
            self.shared((&names.0, &names.1), &role, unit, kind, source);
        }
    }

    fn structure(&mut self, index: u8, name: &str, layout: &'static Structure) {
        for field in layout.fields {
            let kind = match (
                field.bits,
                matches!(field.kind, Kind::Signed | Kind::Offset | Kind::Pid),
            ) {
                (8, signed) => (if signed { Type::Signed } else { Type::Unsigned }, 1),
                (16, false) => U16,
                (16, true) => (Type::Signed, 2),
                (32, false) => U32,
                (32, true) => I32,
                (_, false) => U64,
                (_, true) => I64,
            };
            let (role, symbols) = match field.kind {
                Kind::Flags(set) => ("flags", self.symbols(set, true)),
                Kind::Choice(set) => ("choice", self.symbols(set, false)),
                Kind::Signal => ("signal", self.symbols(&SIGNALS, false)),
                Kind::Mode => ("mode", None),
                Kind::Uid => ("uid", None),
                Kind::Gid => ("gid", None),
                Kind::Pid => ("pid", None),
                Kind::Size => ("size", None),
                Kind::Offset => ("offset", None),
                Kind::Count => ("count", None),
                Kind::Address => ("address", None),
                Kind::Descriptor => ("fd", None),
                _ => ("number", None),
            };
            let member = Source::Argument(index, Part::Member(field));
            let full = format!("{name}.{}", field.name);
            let cell = match field.name {
                "st_dev" => "file.device".to_owned(),
                "st_ino" | "stx_ino" => "file.inode".to_owned(),
                "st_mode" | "stx_mode" => "file.mode".to_owned(),
                "st_nlink" | "stx_nlink" => "file.links".to_owned(),
                "st_size" | "stx_size" => "file.size".to_owned(),
                other => format!("{}.{other}", layout.name),
            };
            let definitions = &mut self.definitions;
            let index = definitions.named_values(&full, role, "", kind, &cell, symbols);
            self.fields.push((index, member));
        }
    }

    fn times(&mut self, index: u8, name: &str, count: u8) {
        let whole = Source::Argument(index, Part::Whole);
        self.own(name, "address", "", U64, whole);
        for number in 0..count {
            let prefix = if count > 1 {
                format!("{name}.{number}")
            } else {
                name.to_owned()
            };
            let seconds = Source::Argument(index, Part::Seconds(number));
            self.own(&format!("{prefix}.seconds"), "number", "s", I64, seconds);
            let nanoseconds = Source::Argument(index, Part::Nanoseconds(number));
            self.own(
                &format!("{prefix}.nanoseconds"),
                "number",
                "ns",
                I64,
                nanoseconds,
            );
        }
    }
}

/// The type of a number that has `bits` bits in its register.
const fn number_type(bits: u8, is_signed: bool) -> (Type, u8) {
    match (bits, is_signed) {
        (16, false) => U16,
        (32, false) => U32,
        (32, true) => I32,
        (_, false) => U64,
        (_, true) => I64,
    }
}
