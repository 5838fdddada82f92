//! The open transactions of a thread, decoded from the monitor's answer.

use crate::{Error, Id};

/// The transactions of a thread or process.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct Status {
    /// The stack, outermost first; the last one is current.
    pub current: Vec<Open>,
    /// Transactions that were set aside.
    pub suspended: Vec<Id>,
    #[serde(skip)]
    raw: String,
}

/// An open transaction, as the monitor describes it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct Open {
    /// Its identifier.
    pub id: Id,
    /// 1 for an outermost one, one more for each level of nesting.
    pub depth: u32,
    /// Names made, changed or removed.
    pub names: u64,
    /// Files with changed metadata.
    pub inodes: u64,
    /// Bytes of changed content.
    pub bytes: u64,
    /// Locks held for reading.
    pub shared_locks: u64,
    /// Locks held for writing.
    pub exclusive_locks: u64,
    /// Operations that failed with EDEADLK or ETIMEDOUT because others held locks.
    pub conflicts: u64,
    /// Processes it is current in.
    pub processes: Vec<i32>,
}

impl Status {
    /// Parses the monitor's answer. [`Error::BadAnswer`] when it has another form.
    pub(crate) fn parse(raw: String) -> Result<Self, Error> {
        let parsed = serde_json::from_str::<Self>(&raw);
        let status = parsed.map_err(|why| Error::BadAnswer(why.to_string()))?;
        Ok(Self { raw, ..status })
    }

    /// The monitor's answer: a JSON object.
    pub fn raw(&self) -> &str {
        &self.raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_status_is_refused() {
        for text in [
            "",
            "[]",
            r#"{"current":[]}"#,
            r#"{"current":[],"suspended":["short"]}"#,
            r#"{"current":[{"id":"0123456789abcdef0123456789abcdef"}],"suspended":[]}"#,
        ] {
            let status = Status::parse(text.into());
            assert!(matches!(status, Err(Error::BadAnswer(_))), "{text}");
        }
    }

    #[test]
    fn fields_of_later_monitors_do_not_matter() {
        let text = r#"{"current":[],"suspended":["0123456789abcdef0123456789abcdef"],"more":1}"#;
        let status = Status::parse(text.into()).unwrap();
        assert_eq!(status.raw(), text);
        assert_eq!(status.suspended.len(), 1);
    }
}
