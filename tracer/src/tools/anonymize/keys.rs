//! Key files: a line for each field, with its name and 64 hexadecimal digits.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::Field;
use crate::Error;
use crate::codec::Key;

/// The keys of fields. The key of a field is enough to read that field.
#[derive(Debug, Clone, Default)]
pub struct FieldKeys(BTreeMap<Field, Key>);

/// Longest key file, in bytes.
const MAX_FILE: u64 = 64 << 10;

impl FieldKeys {
    /// The key of a field.
    pub fn get(&self, field: Field) -> Option<&Key> {
        self.0.get(&field)
    }

    /// The fields that have one.
    pub fn fields(&self) -> impl Iterator<Item = Field> + '_ {
        self.0.keys().copied()
    }

    /// Sets the key of a field.
    pub fn set(&mut self, field: Field, key: Key) {
        self.0.insert(field, key);
    }

    /// Reads a key file. Lines that are empty or begin with `#` are skipped.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut text = String::new();
        let file = File::open(path).map_err(|why| Error::input(path, why))?;
        let read = file.take(MAX_FILE).read_to_string(&mut text);
        read.map_err(|why| Error::input(path, why))?;
        let mut keys = Self::default();
        for (line, number) in text.lines().zip(1..) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, digits) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let problem = match (Field::named(name), Key::parse(digits.trim().as_bytes())) {
                (Some(field), Some(key)) => match keys.0.insert(field, key) {
                    None => continue,
                    Some(_) => format!("the field {name} has two keys"),
                },
                (None, _) => format!("{name:?} is not a field"),
                (_, None) => format!("the key of {name} is not 64 hexadecimal digits"),
            };
            let text = format!("{}: line {number}: {problem}", path.display());
            return Err(Error::Setup(text));
        }
        Ok(keys)
    }

    /// Creates a file with a random key for each field. Only its owner can read it. Fails if the file exists.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let mut keys = Self::default();
        let mut text = String::from(
            "# Keys of goanna-trace anonymize. Each one lets its holder read that field again: give away single lines.\n",
        );
        for field in Field::ALL {
            let mut key = [0; 32];
            getrandom::fill(&mut key)?;
            let digits = key.iter().map(|byte| format!("{byte:02x}"));
            text.push_str(&format!(
                "{} {}\n",
                field.name(),
                digits.collect::<String>()
            ));
            keys.set(field, Key::new(key));
        }
        let mut options = OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(0o600).open(path);
        let written = opened.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        written.map_err(|why| Error::output(path, why))?;
        Ok(keys)
    }
}
