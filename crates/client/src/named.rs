//! Transactions that the run holds by name: their names, which are checked text, and the list of all open transactions.

use std::fmt;
use std::str::FromStr;

use goanna_sys::txncall::{ID_LEN, NAME_MAX, Op, is_name};

use crate::{Error, Id, Open, Target};

/// The name of a transaction that the run holds: 1 to 64 ASCII letters, digits, `.`, `_` and `-`, not beginning with `-`.
/// A name belongs to a user of the run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Commits the transaction. It must have no participants.
    ///
    /// [`Error::NotFound`]; [`Error::InUse`]; [`Error::NoSpace`] and [`Error::Io`] when it cannot be committed, and was aborted.
    pub fn commit(&self) -> Result<(), Error> {
        self.call(Target::Me, Op::CommitNamed)
    }

    /// Aborts the transaction. Later operations of its participants on the store fail with ECANCELED.
    /// [`Error::NotFound`].
    pub fn abort(&self) -> Result<(), Error> {
        self.call(Target::Me, Op::AbortNamed)
    }

    fn call(&self, target: Target, op: Op) -> Result<(), Error> {
        let mut buf = self.0.clone().into_bytes();
        target.call(op, &mut buf).map(drop)
    }
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        if is_name(text.as_bytes()) {
            Ok(Self(text))
        } else {
            Err(Error::BadName)
        }
    }
}

impl FromStr for Name {
    type Err = Error;

    /// [`Error::BadName`].
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::try_from(text.to_owned())
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

impl Target {
    /// Begins a transaction that the run holds as `name`, nested in the target's current one; the target does not participate in
    /// it. It is aborted after `expire_s` seconds, if that is not 0, and at the end of the run.
    ///
    /// [`Error::NameTaken`]; [`Error::TooDeep`] beyond 64 levels.
    pub fn begin_named(self, name: &Name, expire_s: u32) -> Result<Id, Error> {
        let mut buf = [0; NAME_MAX];
        for (byte, of_name) in buf.iter_mut().zip(name.0.bytes()) {
            *byte = of_name;
        }
        self.call_with(Op::BeginNamed, &mut buf, expire_s)?;
        let id = buf.get(..ID_LEN).unwrap_or_default();
        let id = String::from_utf8_lossy(id).into_owned();
        Id::try_from(id).map_err(|why| Error::BadAnswer(why.to_string()))
    }

    /// Joins the transaction that the run holds as `name`. [`Error::NotFound`]; [`Error::HasCurrent`] when the current one is
    /// neither that one nor around it.
    pub fn attach_named(self, name: &Name) -> Result<(), Error> {
        name.call(self, Op::AttachNamed)
    }
}

/// The open transactions of a user's run.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub struct List {
    /// Outermost first.
    pub transactions: Vec<Listed>,
    #[serde(skip)]
    raw: String,
}

/// An open transaction of the list.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct Listed {
    /// The name that the run holds it by.
    pub name: Option<Name>,
    /// The transaction around it.
    pub parent: Option<Id>,
    /// The number of seconds after which it is aborted.
    pub expires_s: Option<u64>,
    /// The other properties.
    #[serde(flatten)]
    pub open: Open,
}

impl List {
    /// The open transactions of the caller's user, all for root. [`Error::BadAnswer`] when the monitor's answer is not
    /// understood.
    pub fn get() -> Result<Self, Error> {
        let raw = Target::Me.call_for_text(Op::List)?;
        let parsed = serde_json::from_str::<Self>(&raw);
        let list = parsed.map_err(|why| Error::BadAnswer(why.to_string()))?;
        Ok(Self { raw, ..list })
    }

    /// The monitor's answer: a JSON object.
    pub fn raw(&self) -> &str {
        &self.raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn a_name_leads_to_its_transaction() {
        fake::reset();
        let name: Name = "build-1".parse().unwrap();
        let id = Target::Process(7).begin_named(&name, 60).unwrap();
        assert_eq!(Target::Me.begin_named(&name, 0), Err(Error::NameTaken));
        let list = List::get().unwrap();
        assert_eq!(list.transactions.len(), 1);
        let listed = &list.transactions[0];
        assert_eq!(listed.name.as_ref(), Some(&name));
        assert_eq!((listed.expires_s, &listed.open.id), (Some(60), &id));
        assert!(list.raw().contains("build-1"));
        Target::Me.attach_named(&name).unwrap();
        assert_eq!(fake::depth(), 1);
        name.commit().unwrap();
        assert_eq!(name.abort(), Err(Error::NotFound));
        assert_eq!(Target::Me.attach_named(&name), Err(Error::NotFound));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for bad in ["", "-x", "a b", "a/b", "gr\u{fc}n"] {
            assert_eq!(bad.parse::<Name>(), Err(Error::BadName), "{bad}");
        }
    }
}
