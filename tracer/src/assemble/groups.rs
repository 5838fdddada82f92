//! Groups of fields that the user chooses: `--fields`.

use std::str::FromStr;

/// Which fields a stream records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// When a call began, and how long it took.
    pub time: bool,
    /// Process, thread, session and process name.
    pub process: bool,
    /// Effective user and group.
    pub user: bool,
    /// Arguments of calls.
    pub arguments: bool,
    /// Paths as resolved, and those of descriptors.
    pub paths: bool,
    /// Identity and state of files.
    pub files: bool,
    /// Results.
    pub results: bool,
}

/// Names of the groups, as the user writes them.
const NAMES: [&str; 7] = [
    "time",
    "process",
    "user",
    "arguments",
    "paths",
    "files",
    "results",
];

/// A list of groups contains an unknown name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown field group {given:?}; the groups are {} and all{}", NAMES.join(", "), nearest(.given))]
pub struct UnknownGroup {
    /// The name as given.
    pub given: String,
}

fn nearest(given: &str) -> String {
    let near = NAMES.iter().find(|name| {
        let shared = name
            .bytes()
            .zip(given.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        shared >= 2 || (!given.is_empty() && name.contains(given))
    });
    near.map(|name| format!("; did you mean {name}?"))
        .unwrap_or_default()
}

impl Default for Groups {
    fn default() -> Self {
        Self::all(true)
    }
}

impl Groups {
    fn all(on: bool) -> Self {
        Self {
            time: on,
            process: on,
            user: on,
            arguments: on,
            paths: on,
            files: on,
            results: on,
        }
    }

    fn slot(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "time" => &mut self.time,
            "process" => &mut self.process,
            "user" => &mut self.user,
            "arguments" => &mut self.arguments,
            "paths" => &mut self.paths,
            "files" => &mut self.files,
            "results" => &mut self.results,
            _ => return None,
        })
    }

    /// The names of the groups, with commas between them.
    pub fn names(mut self) -> String {
        let chosen = NAMES
            .iter()
            .filter(|name| self.slot(name).is_some_and(|on| *on));
        chosen.copied().collect::<Vec<_>>().join(",")
    }
}

impl FromStr for Groups {
    type Err = UnknownGroup;

    /// A list with commas: `time,process`; `all` stands for all of them.
    fn from_str(list: &str) -> Result<Self, UnknownGroup> {
        let mut groups = Self::all(false);
        for name in list.split(',').map(str::trim) {
            match (name, groups.slot(name)) {
                ("all", _) => groups = Self::all(true),
                (_, Some(slot)) => *slot = true,
                _ => {
                    let given = name.to_owned();
                    return Err(UnknownGroup { given });
                }
            }
        }
        Ok(groups)
    }
}
