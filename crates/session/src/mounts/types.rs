//! The types of mounts that specifications can name. The commands choose them; nothing here knows a back end but the store.

use std::fmt::{Debug, Formatter};

use goanna_vfs::{Backend, MountOption, MountOptions, escape};

use crate::Durability;

/// A type of mount.
#[derive(Clone, Copy)]
pub enum MountType {
    /// An amino store.
    Store,
    /// A back end with its own function for opening it.
    Backend(&'static dyn Backend),
}

/// All types of mounts, in the order in which messages list them.
pub type MountTypes = &'static [MountType];

impl Debug for MountType {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl MountType {
    /// Its name in a specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "amino",
            Self::Backend(backend) => backend.name(),
        }
    }

    /// The type called `name`.
    pub fn find(types: MountTypes, name: &[u8]) -> Option<Self> {
        let mut types = types.iter();
        types.find(|it| it.name().as_bytes() == name).copied()
    }

    /// Its options beside `ro` and `noexec`.
    pub fn options(self) -> &'static [MountOption] {
        match self {
            Self::Store => &[MountOption {
                name: "durability",
                value: Some("LEVEL"),
            }],
            Self::Backend(backend) => backend.options(),
        }
    }

    /// Whether all its mounts are read-only.
    pub fn is_read_only(self) -> bool {
        match self {
            Self::Store => false,
            Self::Backend(backend) => backend.is_read_only(),
        }
    }

    /// Checks the values of options. The error is a message.
    pub fn check(self, options: &MountOptions) -> Result<(), String> {
        match self {
            Self::Store => durability(options).map(drop),
            Self::Backend(backend) => backend.check(options),
        }
    }

    /// The options as messages list them.
    pub fn option_list(self) -> String {
        let own = self.options().iter().map(|option| match option.value {
            Some(value) => format!("{}={value}", option.name),
            None => option.name.to_owned(),
        });
        list(["ro", "noexec"].map(str::to_owned).into_iter().chain(own))
    }
}

/// The level of durability that the options of a store name, or the default.
pub fn durability(options: &MountOptions) -> Result<Durability, String> {
    match options.value("durability") {
        None => Ok(Durability::Commit),
        Some(value) => Durability::named(value)
            .ok_or_else(|| format!("durability={}: not one of aci, commit, acid", escape(value))),
    }
}

/// The names of all types as messages list them.
pub fn type_list(types: MountTypes) -> String {
    list(types.iter().map(|it| it.name().to_owned()))
}

fn list(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => words.concat(),
    }
}

/// Types for tests.
#[cfg(test)]
pub const ALL: MountTypes = &[
    MountType::Backend(&goanna_passfs::PassBackend),
    MountType::Store,
    MountType::Backend(&goanna_isofs::IsoBackend),
];
