//! Mount specifications: `TYPE=SOURCE:TARGET[,option[=value]...]`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use goanna_vfs::{MountOptions, escape, escape_invalid};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::types::{MountType, MountTypes, durability, type_list};
use crate::Durability;

/// A mount, as the user has specified it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountSpec {
    /// The back end and its source.
    pub source: Source,
    /// The mount point: an absolute path.
    pub target: Vec<u8>,
    /// Changes are refused.
    pub read_only: bool,
    /// Execution is refused.
    pub no_exec: bool,
}

/// The source of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// An amino store.
    Store {
        /// The store's directory.
        #[serde(with = "path_as_bytes")]
        dir: PathBuf,
        /// The durability level.
        durability: Durability,
    },
    /// The source of another back end.
    Backend {
        /// The type of the mount.
        name: String,
        /// The directory or file on the host.
        #[serde(with = "path_as_bytes")]
        path: PathBuf,
        /// The back end's options.
        options: MountOptions,
    },
}

/// Serialises a path as bytes: serde itself takes only paths that are UTF-8.
pub(crate) mod path_as_bytes {
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        OsString::deserialize(from).map(PathBuf::from)
    }
}

impl Source {
    /// Changes the directory or file on the host.
    pub fn path_mut(&mut self) -> &mut PathBuf {
        match self {
            Self::Store { dir: path, .. } | Self::Backend { path, .. } => path,
        }
    }

    /// The directory or file on the host.
    pub fn path(&self) -> &PathBuf {
        match self {
            Self::Store { dir: path, .. } | Self::Backend { path, .. } => path,
        }
    }
}

/// An error in a specification or in a line of a mount file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    /// No `=`, or nothing before it.
    #[error("no type; a mount is TYPE=SOURCE:TARGET[,option...]")]
    NoType,
    /// No such type.
    #[error("unknown type {0:?}; there are {1}")]
    UnknownType(String, String),
    /// No `:`.
    #[error("no target; a mount is TYPE=SOURCE:TARGET[,option...]")]
    NoTarget,
    /// A second `:`.
    #[error("a second colon; a colon in a path is written \\:")]
    SecondColon,
    /// The source is empty.
    #[error("the source is empty")]
    EmptySource,
    /// The target is not absolute.
    #[error("the target {0:?} is not an absolute path")]
    Relative(String),
    /// A backslash before something that needs none, or at the end.
    #[error("a backslash stands only before a colon, a comma or a backslash")]
    Escape,
    /// No such option for this type.
    #[error("unknown option {option:?} for a mount of type {kind}; there are {known}")]
    UnknownOption {
        /// The option.
        option: String,
        /// The type.
        kind: &'static str,
        /// The options of that type.
        known: String,
    },
    /// An option with a value it does not take.
    #[error("the option {0} takes no value")]
    NoValue(String),
    /// An option without the value it needs.
    #[error("the option {0} needs a value, as in {0}=VALUE")]
    NeedsValue(String),
    /// The value of an option is wrong.
    #[error("{0}")]
    BadOption(String),
    /// An option is given twice.
    #[error("the option {0} is given twice")]
    Twice(String),
    /// A line of a mount file has too few or too many fields.
    #[error("{0} fields; a line is TYPE SOURCE TARGET [OPTIONS]")]
    Fields(usize),
    /// A NUL byte in a path.
    #[error("a path holds a NUL byte")]
    Nul,
}

/// A part of a specification without its escapes, and the byte that ended it.
struct Piece {
    bytes: Vec<u8>,
    rest_at: usize,
    end: Option<u8>,
}

/// Reads up to an unescaped byte of `stops`.
fn piece(text: &[u8], from: usize, stops: &[u8]) -> Result<Piece, SpecError> {
    let mut bytes = Vec::new();
    let mut at = from;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'\\' => match text.get(at) {
                Some(&next @ (b':' | b',' | b'\\')) => {
                    bytes.push(next);
                    at += 1;
                }
                _ => return Err(SpecError::Escape),
            },
            byte if stops.contains(&byte) => {
                return Ok(Piece {
                    bytes,
                    rest_at: at,
                    end: Some(byte),
                });
            }
            byte => bytes.push(byte),
        }
    }
    Ok(Piece {
        bytes,
        rest_at: at,
        end: None,
    })
}

impl MountSpec {
    /// Parses `TYPE=SOURCE:TARGET[,option[=value]...]`.
    pub fn parse(types: MountTypes, text: &[u8]) -> Result<Self, SpecError> {
        let equals = text.iter().position(|&b| b == b'=');
        let equals = equals.filter(|&at| at > 0).ok_or(SpecError::NoType)?;
        let (kind, _) = text.split_at(equals);
        if kind.iter().any(|b| matches!(b, b':' | b',' | b'/')) {
            return Err(SpecError::NoType);
        }
        known_type(types, kind)?;
        let source = piece(text, equals + 1, b":")?;
        if source.end.is_none() {
            return Err(SpecError::NoTarget);
        }
        let target = piece(text, source.rest_at, b":,")?;
        if target.end == Some(b':') {
            return Err(SpecError::SecondColon);
        }
        let mut options = Vec::new();
        let mut at = target.rest_at;
        let mut more = target.end.is_some();
        while more {
            let option = piece(text, at, b",")?;
            at = option.rest_at;
            more = option.end.is_some();
            options.push(option.bytes);
        }
        Self::build(types, kind, source.bytes, target.bytes, &options)
    }

    /// Makes a mount of these fields, which have no escapes.
    pub fn build(
        types: MountTypes,
        kind: &[u8],
        source: Vec<u8>,
        target: Vec<u8>,
        options: &[Vec<u8>],
    ) -> Result<Self, SpecError> {
        let kind = known_type(types, kind)?;
        if source.is_empty() {
            return Err(SpecError::EmptySource);
        }
        if source.contains(&0) || target.contains(&0) {
            return Err(SpecError::Nul);
        }
        if target.is_empty() {
            return Err(SpecError::NoTarget);
        }
        if target.first() != Some(&b'/') {
            return Err(SpecError::Relative(escape(&target)));
        }
        let options = Options::parse(kind, options)?;
        let path = PathBuf::from(OsString::from_vec(source));
        let bad = SpecError::BadOption;
        kind.check(&options.own).map_err(bad)?;
        let source = match kind {
            MountType::Store => Source::Store {
                dir: path,
                durability: durability(&options.own).map_err(bad)?,
            },
            MountType::Backend(backend) => Source::Backend {
                name: backend.name().to_owned(),
                path,
                options: options.own,
            },
        };
        let read_only = options.read_only || kind.is_read_only();
        Ok(Self {
            source,
            target,
            read_only,
            no_exec: options.no_exec,
        })
    }

    /// The source as /proc/self/mounts shows it.
    pub fn source_text(&self) -> String {
        escape(self.source.path().as_os_str().as_bytes())
    }
}

fn known_type(types: MountTypes, name: &[u8]) -> Result<MountType, SpecError> {
    let missing = || SpecError::UnknownType(escape_invalid(name), type_list(types));
    MountType::find(types, name).ok_or_else(missing)
}

#[derive(Default)]
struct Options {
    read_only: bool,
    no_exec: bool,
    /// The options of the type.
    own: MountOptions,
}

impl Options {
    fn parse(kind: MountType, options: &[Vec<u8>]) -> Result<Self, SpecError> {
        let mut parsed = Self::default();
        for option in options {
            let (name, value) = match option.iter().position(|&b| b == b'=') {
                Some(at) => (&option[..at], Some(&option[at + 1..])),
                None => (&option[..], None),
            };
            parsed.set(kind, name, value)?;
        }
        Ok(parsed)
    }

    fn set(&mut self, kind: MountType, name: &[u8], value: Option<&[u8]>) -> Result<(), SpecError> {
        let shown = || escape(name);
        let mut options = kind.options().iter();
        let own = options.find(|option| option.name.as_bytes() == name);
        let takes_value = own.is_some_and(|option| option.value.is_some());
        if takes_value && value.is_none() {
            return Err(SpecError::NeedsValue(shown()));
        }
        let twice = match (name, own) {
            (b"ro", _) => std::mem::replace(&mut self.read_only, true),
            (b"noexec", _) => std::mem::replace(&mut self.no_exec, true),
            (_, Some(option)) => !self.own.add(option.name, value),
            (_, None) => {
                return Err(SpecError::UnknownOption {
                    option: escape_invalid(name),
                    kind: kind.name(),
                    known: kind.option_list(),
                });
            }
        };
        if twice {
            return Err(SpecError::Twice(shown()));
        }
        if value.is_some() && !takes_value {
            return Err(SpecError::NoValue(shown()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::types::ALL;
    use super::*;

    fn pass(dir: &[u8], target: &[u8]) -> MountSpec {
        MountSpec {
            source: Source::Backend {
                name: "pass".into(),
                path: OsString::from_vec(dir.to_vec()).into(),
                options: MountOptions::default(),
            },
            target: target.to_vec(),
            read_only: false,
            no_exec: false,
        }
    }

    #[test]
    fn specifications_that_are_right() {
        let amino = |durability| MountSpec {
            source: Source::Store {
                dir: "/store".into(),
                durability,
            },
            ..pass(b"/", b"/db")
        };
        let iso = |options: &[(&str, Option<&[u8]>)]| {
            let mut of_iso = MountOptions::default();
            for (name, value) in options {
                assert!(of_iso.add(name, *value));
            }
            MountSpec {
                source: Source::Backend {
                    name: "iso".into(),
                    path: "/a.iso".into(),
                    options: of_iso,
                },
                read_only: true,
                ..pass(b"/", b"/cd")
            }
        };
        let cases: &[(&[u8], MountSpec)] = &[
            (b"pass=/dir:/mnt", pass(b"/dir", b"/mnt")),
            (b"pass=dir:/mnt", pass(b"dir", b"/mnt")),
            (
                b"pass=/dir:/mnt,ro",
                MountSpec {
                    read_only: true,
                    ..pass(b"/dir", b"/mnt")
                },
            ),
            (
                b"pass=/d:/m,noexec,ro",
                MountSpec {
                    read_only: true,
                    no_exec: true,
                    ..pass(b"/d", b"/m")
                },
            ),
            (br"pass=/a\:b\,c\\d:/m\:n\,o", pass(br"/a:b,c\d", b"/m:n,o")),
            (b"pass=/a,b:/m", pass(b"/a,b", b"/m")),
            (b"pass=/a=b:/m=n", pass(b"/a=b", b"/m=n")),
            (b"pass=/\xff:/\xfe", pass(b"/\xff", b"/\xfe")),
            (b"amino=/store:/db", amino(Durability::Commit)),
            (b"amino=/store:/db,durability=acid", amino(Durability::Acid)),
            (b"iso=/a.iso:/cd", iso(&[])),
            (
                b"iso=/a.iso:/cd,ro,joliet,session=2",
                iso(&[("joliet", None), ("session", Some(b"2"))]),
            ),
            (
                b"amino=/store:/db,durability=aci,ro",
                MountSpec {
                    read_only: true,
                    ..amino(Durability::Aci)
                },
            ),
        ];
        for (text, spec) in cases {
            assert_eq!(
                MountSpec::parse(ALL, text).as_ref(),
                Ok(spec),
                "{}",
                escape(text)
            );
        }
    }

    #[test]
    fn specifications_that_are_wrong() {
        let types = || "pass, amino and iso".to_owned();
        let cases: &[(&[u8], SpecError)] = &[
            (b"", SpecError::NoType),
            (b"=/a:/b", SpecError::NoType),
            (b"/a:/b", SpecError::NoType),
            (b"/a:/b,durability=acid", SpecError::NoType),
            (b"pass", SpecError::NoType),
            (b"pass=", SpecError::NoTarget),
            (b"pass=/a", SpecError::NoTarget),
            (b"pass=/a:", SpecError::NoTarget),
            (b"pass=/a:,ro", SpecError::NoTarget),
            (b"pass=:/b", SpecError::EmptySource),
            (b"pass=/a:b", SpecError::Relative("b".into())),
            (b"pass=/a:/b:/c", SpecError::SecondColon),
            (br"pass=/a\x:/b", SpecError::Escape),
            (b"pass=/a:/b\\", SpecError::Escape),
            (b"pass=/a\0:/b", SpecError::Nul),
            (b"pass=/a:/b,ro=1", SpecError::NoValue("ro".into())),
            (b"pass=/a:/b,ro,ro", SpecError::Twice("ro".into())),
            (
                b"amino=/a:/b,durability",
                SpecError::NeedsValue("durability".into()),
            ),
            (
                b"amino=/a:/b,durability=max",
                SpecError::BadOption("durability=max: not one of aci, commit, acid".into()),
            ),
            (
                b"amino=/a:/b,durability=aci,durability=acid",
                SpecError::Twice("durability".into()),
            ),
            (
                b"aes=/a:/b,passfile=/f",
                SpecError::UnknownType("aes".into(), types()),
            ),
            (
                b"iso=/a:/b,session",
                SpecError::NeedsValue("session".into()),
            ),
            (
                b"iso=/a:/b,session=0",
                SpecError::BadOption("session=0: not a number from 1".into()),
            ),
            (
                b"iso=/a:/b,session=x",
                SpecError::BadOption("session=x: not a number from 1".into()),
            ),
            (b"iso=/a:/b,plain=1", SpecError::NoValue("plain".into())),
            (b"iso=/a:/b,plain,plain", SpecError::Twice("plain".into())),
            (
                b"iso=/a:/b,plain,joliet",
                SpecError::BadOption("more than one of joliet, rockridge and plain".into()),
            ),
            (b"nfs=/a:/b", SpecError::UnknownType("nfs".into(), types())),
        ];
        for (text, error) in cases {
            assert_eq!(
                MountSpec::parse(ALL, text).as_ref(),
                Err(error),
                "{}",
                escape(text)
            );
        }
    }

    #[test]
    fn unknown_options_name_those_there_are() {
        let of_iso = "ro, noexec, rockridge, joliet, plain and session=N";
        for (text, known) in [
            ("pass=/a:/b,durability=aci", "ro and noexec"),
            ("pass=/a:/b,", "ro and noexec"),
            ("amino=/a:/b,joliet", "ro, noexec and durability=LEVEL"),
            ("iso=/a:/b,durability=aci", of_iso),
        ] {
            let error = MountSpec::parse(ALL, text.as_bytes()).unwrap_err();
            assert!(
                matches!(error, SpecError::UnknownOption { .. }),
                "{text}: {error}"
            );
            let known = format!("there are {known}");
            assert!(error.to_string().ends_with(&known), "{error}");
        }
    }
}
