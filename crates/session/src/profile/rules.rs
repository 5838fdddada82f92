//! Parses profile files.
//!
//! A file is TOML: tables `[[rule]]` with the keys `programs`, `begin`, `end`, `aborts` and `durability`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use goanna_monitor::participants::profile::{Begin, End, Profile, Programs, Rule};
use thiserror::Error as ThisError;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// An error in a profile file, and its position.
#[derive(Debug, PartialEq, Eq, ThisError)]
#[error("{line}: {}{why}", key.as_ref().map(|key| format!("{key}: ")).unwrap_or_default())]
pub struct ProfileError {
    /// Its line, from 1.
    line: usize,
    /// The key at fault; none where the text is not TOML.
    key: Option<String>,
    why: Why,
}

#[derive(Debug, PartialEq, Eq, ThisError)]
enum Why {
    #[error("{0}")]
    Syntax(String),
    #[error("there is no such key; known are {0}")]
    Unknown(&'static str),
    #[error("is missing")]
    Missing,
    #[error("must be {0}")]
    MustBe(&'static str),
    #[error("\"{0}\" is not a pattern: {1}")]
    Pattern(String, String),
}

const KEYS: &str = "programs, begin, end, aborts and durability";

/// A file's text, which converts positions to line numbers for errors.
struct Lines<'t>(&'t str);

impl Lines<'_> {
    fn error(&self, at: usize, key: Option<&str>, why: Why) -> ProfileError {
        let before = self.0.as_bytes().get(..at).unwrap_or(self.0.as_bytes());
        ProfileError {
            line: 1 + before.iter().filter(|&&byte| byte == b'\n').count(),
            key: key.map(str::to_owned),
            why,
        }
    }

    fn must_be(&self, value: &Value<'_>, key: &str, what: &'static str) -> ProfileError {
        self.error(value.span().start, Some(key), Why::MustBe(what))
    }
}

type Value<'t> = Spanned<DeValue<'t>>;

/// The profile that the file's `text` describes.
pub fn parse(text: &str) -> Result<Profile, ProfileError> {
    let source = Lines(text);
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        source.error(at, None, Why::Syntax(error.message().to_owned()))
    })?;
    let mut rules = Vec::new();
    for (key, value) in table.get_ref() {
        if key.get_ref() != "rule" {
            let why = Why::Unknown("tables [[rule]]");
            return Err(source.error(key.span().start, Some(key.get_ref()), why));
        }
        let tables = value.get_ref().as_array();
        for table in tables.ok_or_else(|| source.must_be(value, "rule", "tables [[rule]]"))? {
            rules.push(rule(&source, table)?);
        }
    }
    if rules.is_empty() {
        return Err(source.error(0, Some("rule"), Why::Missing));
    }
    Ok(Profile::new(rules))
}

fn rule(source: &Lines<'_>, value: &Value<'_>) -> Result<Rule, ProfileError> {
    let table = value.get_ref().as_table();
    let table = table.ok_or_else(|| source.must_be(value, "rule", "tables [[rule]]"))?;
    let (mut programs, mut begin, mut end) = (None, None, None);
    let (mut aborts, mut durable) = (None, None);
    for (key, value) in table {
        let name: &str = key.get_ref();
        let choice = |choices: &'static str| {
            let text = value.get_ref().as_str();
            text.ok_or_else(|| source.must_be(value, name, choices))
        };
        match name {
            "programs" => programs = Some(patterns(source, value)?),
            "begin" => {
                const CHOICES: &str = "\"exec\", \"open\" or \"first-write\"";
                begin = Some(match choice(CHOICES)? {
                    "exec" => Begin::Exec,
                    "open" => Begin::Open,
                    "first-write" => Begin::FirstWrite,
                    _ => return Err(source.must_be(value, name, CHOICES)),
                });
            }
            "end" => {
                const CHOICES: &str = "\"exit\" or \"close\"";
                end = Some(match choice(CHOICES)? {
                    "exit" => End::Exit,
                    "close" => End::LastClose,
                    _ => return Err(source.must_be(value, name, CHOICES)),
                });
            }
            "aborts" => aborts = Some(statuses(source, value)?),
            "durability" => {
                const CHOICES: &str = "\"commit\" or \"aci\"";
                durable = Some(match choice(CHOICES)? {
                    "commit" => true,
                    "aci" => false,
                    _ => return Err(source.must_be(value, name, CHOICES)),
                });
            }
            _ => return Err(source.error(key.span().start, Some(name), Why::Unknown(KEYS))),
        }
    }
    let missing = |key| source.error(value.span().start, Some(key), Why::Missing);
    Ok(Rule {
        programs: programs.ok_or_else(|| missing("programs"))?,
        begin: begin.ok_or_else(|| missing("begin"))?,
        end: end.ok_or_else(|| missing("end"))?,
        aborts,
        durable,
    })
}

/// A pattern with a slash is matched with the path by which a program is executed, a pattern without one
/// with the last component of that path.
fn patterns(source: &Lines<'_>, value: &Value<'_>) -> Result<Programs, ProfileError> {
    const WHAT: &str = "an array of patterns, as in [\"tar\", \"/opt/*/bin/*\"]";
    let wrong = || source.must_be(value, "programs", WHAT);
    let mut matchers: Vec<(bool, GlobMatcher)> = Vec::new();
    for value in value.get_ref().as_array().ok_or_else(wrong)? {
        let text = value.get_ref().as_str().ok_or_else(wrong)?;
        let glob = GlobBuilder::new(text).literal_separator(true).build();
        let glob = glob.map_err(|error| {
            let why = Why::Pattern(text.to_owned(), error.kind().to_string());
            source.error(value.span().start, Some("programs"), why)
        })?;
        matchers.push((text.contains('/'), glob.compile_matcher()));
    }
    if matchers.is_empty() {
        return Err(wrong());
    }
    Ok(Programs::new(move |path| {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        matchers.iter().any(|(whole, glob)| match path.file_name() {
            Some(name) if !whole => glob.is_match(name),
            _ => glob.is_match(path),
        })
    }))
}

fn statuses(source: &Lines<'_>, value: &Value<'_>) -> Result<Vec<u8>, ProfileError> {
    const WHAT: &str = "an array of exit statuses from 0 to 255, as in [1, 75]";
    let status = |value: &Value<'_>| {
        let number = value.get_ref().as_integer()?;
        u8::from_str_radix(number.as_str(), number.radix()).ok()
    };
    let statuses = value.get_ref().as_array();
    let statuses = statuses.and_then(|all| all.iter().map(status).collect());
    statuses.ok_or_else(|| source.must_be(value, "aborts", WHAT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    /// A rule whose third line, after `[[rule]]` and `programs`, is `line`.
    fn with(line: &str) -> String {
        error(&format!(
            "[[rule]]\nprograms = [\"a\"]\n{line}\nbegin = \"exec\"\nend = \"exit\""
        ))
    }

    #[test]
    fn errors_name_line_and_key() {
        let cases = [
            (
                "begun = \"exec\"",
                "3: begun: there is no such key; known are programs, begin",
            ),
            (
                "aborts = [1, 256]",
                "3: aborts: must be an array of exit statuses",
            ),
            ("aborts = 1", "3: aborts: must be an array of exit statuses"),
            (
                "durability = \"acid\"",
                "3: durability: must be \"commit\" or \"aci\"",
            ),
            (
                "durability = true",
                "3: durability: must be \"commit\" or \"aci\"",
            ),
        ];
        for (line, expected) in cases {
            let text = with(line);
            assert!(text.starts_with(expected), "{text}");
        }
    }

    #[test]
    fn choices_patterns_and_missing_keys_are_checked() {
        let rest = "end = \"exit\"";
        let cases = [
            (
                format!("# c\n\n[[rule]]\nprograms = [\"a\"]\nbegin = \"start\"\n{rest}"),
                "5: begin: must be \"exec\", \"open\" or \"first-write\"",
            ),
            (
                "[[rule]]\nprograms = [\"a\"]\nbegin = \"open\"\nend = 3".into(),
                "4: end: must be \"exit\" or \"close\"",
            ),
            (
                format!("[[rule]]\nprograms = [\n  \"a\",\n  \"b[\"\n]\nbegin = \"exec\"\n{rest}"),
                "4: programs: \"b[\" is not a pattern",
            ),
            (
                format!("[[rule]]\nbegin = \"exec\"\nprograms = []\n{rest}"),
                "3: programs: must be an array of patterns",
            ),
            (
                format!("\n[[rule]]\nbegin = \"exec\"\n{rest}"),
                "2: programs: is missing",
            ),
            (
                "[[rules]]\nbegin = \"exec\"".into(),
                "1: rules: there is no such key",
            ),
            ("rule = 1".into(), "1: rule: must be tables [[rule]]"),
            ("# nothing".into(), "1: rule: is missing"),
        ];
        for (file, expected) in cases {
            let text = error(&file);
            assert!(text.starts_with(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_toml_names_its_line() {
        let text = error("[[rule]]\nprograms = [\"a\"]\nbegin = exec\n");
        assert!(text.starts_with("3: "), "{text}");
        let text = error("[[rule]]\nbegin = \"exec\"\nbegin = \"open\"\n");
        assert!(text.starts_with("3: "), "{text}");
    }

    #[test]
    fn patterns_are_for_paths_or_last_components() {
        let text = "programs = [\"dpkg*\", \"/opt/*/bin/run\"]";
        let table = DeTable::parse(text).unwrap();
        let (_, value) = table.get_ref().iter().next().unwrap();
        let programs = patterns(&Lines(text), value).unwrap();
        for (path, expected) in [
            (&b"/usr/bin/dpkg-deb"[..], true),
            (b"dpkg", true),
            (b"/usr/bin/apt", false),
            (b"/opt/x/bin/run", true),
            (b"/opt/x/y/bin/run", false),
            (b"run", false),
        ] {
            assert_eq!(programs.contains(path), expected, "{path:?}");
        }
    }
}
