//! The fields of a trace that can be hidden, and which arguments of records belong to which.

use std::str::FromStr;

use amino_schema::trace::{Argument, Message, Type};

/// A kind of values that has its own key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Field {
    /// Paths; each component by itself.
    Path,
    /// Other strings: names of extended attributes, types of file systems, keys of counters.
    Text,
    /// Arguments and environment of executed programs.
    Argv,
    /// Names of processes.
    Comm,
    /// Users.
    Uid,
    /// Groups.
    Gid,
    /// Addresses of sockets.
    Socket,
    /// Hashes of content.
    Hash,
    /// The description of the machine and the command: host, boot, command, directory, mounts, filter.
    Context,
    /// Processes, threads and sessions.
    Pid,
    /// Devices and inode numbers.
    Inode,
    /// Times of calls and events.
    Time,
    /// Content of files.
    Data,
}

impl Field {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Path,
        Self::Text,
        Self::Argv,
        Self::Comm,
        Self::Uid,
        Self::Gid,
        Self::Socket,
        Self::Hash,
        Self::Context,
        Self::Pid,
        Self::Inode,
        Self::Time,
        Self::Data,
    ];

    /// The name in key files, on the command line, and in schemas.
    pub fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Text => "text",
            Self::Argv => "argv",
            Self::Comm => "comm",
            Self::Uid => "uid",
            Self::Gid => "gid",
            Self::Socket => "socket",
            Self::Hash => "hash",
            Self::Context => "context",
            Self::Pid => "pid",
            Self::Inode => "inode",
            Self::Time => "time",
            Self::Data => "data",
        }
    }

    /// The field with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// The field that an argument of these messages belongs to. Byte strings of a role that is not known here count as text, so that
    /// traces of later versions are hidden as well.
    pub(super) fn of(argument: &Argument, messages: &[&Message]) -> Option<Self> {
        let of_any = |names: &[&str]| messages.iter().any(|it| names.contains(&it.name.as_str()));
        Some(match argument.role.as_str() {
            "path" | "resolved" | "file.path" => Self::Path,
            // The name of an operation in counters.
            "text" if argument.name == "operation" => return None,
            "text" if of_any(&TEXTS_THAT_ARE_PATHS) => Self::Path,
            "texts" => Self::Argv,
            "comm" => Self::Comm,
            "uid" => Self::Uid,
            "gid" => Self::Gid,
            "bytes" => Self::Socket,
            "hash" => Self::Hash,
            "pid" | "tid" | "sid" => Self::Pid,
            "file.device" | "file.inode" => Self::Inode,
            "time" => Self::Time,
            "result" if of_any(&RESULTS_THAT_ARE_USERS) => Self::Uid,
            "result" if of_any(&RESULTS_THAT_ARE_GROUPS) => Self::Gid,
            "result" if of_any(&RESULTS_THAT_ARE_PROCESSES) => Self::Pid,
            _ if argument.kind == Type::Data => Self::Data,
            _ if argument.kind == Type::Bytes => Self::Text,
            _ if INODES.iter().any(|it| argument.name.ends_with(it)) => Self::Inode,
            _ => return None,
        })
    }
}

/// Calls whose strings are paths, though the kernel does not resolve them.
const TEXTS_THAT_ARE_PATHS: [&str; 5] =
    ["getcwd", "readlink", "readlinkat", "symlink", "symlinkat"];
const RESULTS_THAT_ARE_USERS: [&str; 3] = ["getuid", "geteuid", "setfsuid"];
const RESULTS_THAT_ARE_GROUPS: [&str; 3] = ["getgid", "getegid", "setfsgid"];
const RESULTS_THAT_ARE_PROCESSES: [&str; 13] = [
    "clone",
    "clone3",
    "fork",
    "getpgid",
    "getpgrp",
    "getpid",
    "getppid",
    "getsid",
    "gettid",
    "set_tid_address",
    "setsid",
    "vfork",
    "wait4",
];
/// Members of the structures that stat(2) and statx(2) fill in.
const INODES: [&str; 5] = [
    ".st_ino",
    ".st_dev",
    ".stx_ino",
    ".stx_dev_major",
    ".stx_dev_minor",
];

/// A choice of fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields(Vec<Field>);

impl Fields {
    /// Names, users, and the hashes by which content could be recognised.
    pub const NAMES: [Field; 9] = [
        Field::Path,
        Field::Text,
        Field::Argv,
        Field::Comm,
        Field::Uid,
        Field::Gid,
        Field::Socket,
        Field::Hash,
        Field::Context,
    ];

    /// These fields.
    pub fn new(mut fields: Vec<Field>) -> Self {
        fields.sort();
        fields.dedup();
        Self(fields)
    }

    /// Whether the field is among them.
    pub fn has(&self, field: Field) -> bool {
        self.0.contains(&field)
    }

    /// The fields in order.
    pub fn iter(&self) -> impl Iterator<Item = Field> + '_ {
        self.0.iter().copied()
    }

    /// The names, with commas between them.
    pub fn names(&self) -> String {
        self.iter().map(Field::name).collect::<Vec<_>>().join(",")
    }
}

impl Default for Fields {
    fn default() -> Self {
        Self::new(Self::NAMES.to_vec())
    }
}

impl FromStr for Fields {
    type Err = String;

    /// A list with commas: `path,uid`; `names` stands for the fields that are hidden by default, `all` for all but the data.
    fn from_str(list: &str) -> Result<Self, String> {
        let mut fields = Vec::new();
        for name in list.split(',').map(str::trim) {
            match (name, Field::named(name)) {
                ("names", _) => fields.extend(Self::NAMES),
                ("all", _) => fields.extend(Field::ALL.into_iter().filter(|it| *it != Field::Data)),
                (_, Some(field)) if field != Field::Data => fields.push(field),
                _ => return Err(unknown(name)),
            }
        }
        Ok(Self::new(fields))
    }
}

fn unknown(name: &str) -> String {
    let known = Field::ALL
        .into_iter()
        .map(Field::name)
        .filter(|it| *it != "data");
    let known = known.collect::<Vec<_>>();
    let near = known.iter().find(|it| {
        let shared = it
            .bytes()
            .zip(name.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        shared >= 2
    });
    let near = near
        .map(|it| format!("; did you mean {it}?"))
        .unwrap_or_default();
    format!(
        "unknown field {name:?}; the fields are {}, names and all{near}",
        known.join(", ")
    )
}
