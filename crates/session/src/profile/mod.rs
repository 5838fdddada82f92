//! Profiles, the rules by which transactions are inserted into programs: the built-in ones, and files (`rules.rs`).

mod rules;

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use goanna_monitor::participants::profile::Profile;
use serde::{Deserialize, Serialize};

pub use self::rules::ProfileError;
use crate::Error;

/// A profile as the user has given it: the name of a built-in one, or the name and the text of a file.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProfileSource {
    name: OsString,
    text: String,
}

impl ProfileSource {
    /// The profile that `--profile` names. Fails when it is wrong.
    pub fn read(name: &Path) -> Result<Self, Error> {
        let built_in = matches!(name.as_os_str().as_bytes(), b"exec" | b"session");
        let text = if built_in {
            String::new()
        } else {
            fs::read_to_string(name).map_err(|why| Error::ProfileFile {
                file: name.to_owned(),
                why,
            })?
        };
        let source = Self {
            name: name.as_os_str().to_owned(),
            text,
        };
        source.parse()?;
        Ok(source)
    }

    /// The parsed profile.
    pub fn parse(&self) -> Result<Profile, Error> {
        match self.name.as_bytes() {
            b"exec" => Ok(Profile::exec()),
            b"session" => Ok(Profile::session()),
            _ => rules::parse(&self.text).map_err(|why| Error::Profile {
                file: PathBuf::from(&self.name),
                why,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_profiles_are_understood() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles");
        let files: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|file| file.unwrap().path())
            .collect();
        assert_eq!(files.len(), 2);
        for file in files {
            ProfileSource::read(&file).unwrap();
        }
    }
}
