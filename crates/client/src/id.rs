//! Identifiers of transactions: checked text.

use std::fmt;
use std::str::FromStr;

use goanna_sys::txncall::ID_LEN;

use crate::Error;

/// A transaction's identifier. A process of the same user that knows it can attach to the transaction.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id(String);

impl Id {
    /// The 32 digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Id {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == ID_LEN && text.bytes().all(is_digit) {
            Ok(Self(text))
        } else {
            Err(Error::BadId)
        }
    }
}

impl FromStr for Id {
    type Err = Error;

    /// [`Error::BadId`] for anything but 32 lower-case hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::try_from(text.to_owned())
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_32_lower_case_digits_are_an_identifier() {
        let good = "0123456789abcdef0123456789abcdef";
        assert_eq!(good.parse::<Id>().map(|id| id.to_string()), Ok(good.into()));
        for bad in [
            "",
            "0123456789abcdef0123456789abcde",
            "0123456789abcdef0123456789abcdef0",
            "0123456789ABCDEF0123456789abcdef",
            "0123456789abcdef0123456789abcdeg",
            " 123456789abcdef0123456789abcdef",
            "\u{e9}123456789abcdef0123456789abcde",
        ] {
            assert_eq!(bad.parse::<Id>(), Err(Error::BadId), "{bad}");
        }
    }
}
