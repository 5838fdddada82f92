//! Why one name could not be copied; the copy goes on.

use std::borrow::Cow;
use std::fmt::{Display, Formatter, Result};

use goanna_vfs::Errno;

use crate::error::io_text;

/// See the module.
#[derive(Debug)]
pub enum Trouble {
    /// The host refused something.
    Host(rustix::io::Errno),
    /// The store refused something.
    Store(Errno),
    /// In words.
    Other(Cow<'static, str>),
}

impl Trouble {
    /// Trouble in words.
    pub const fn text(why: &'static str) -> Self {
        Self::Other(Cow::Borrowed(why))
    }
}

impl From<rustix::io::Errno> for Trouble {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Host(errno)
    }
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Self {
        Self::Store(errno)
    }
}

impl Display for Trouble {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Host(errno) => write!(f, "on the host: {}", io_text(&(*errno).into())),
            Self::Store(errno) => write!(f, "in the store: {}", errno.desc()),
            Self::Other(why) => f.write_str(why),
        }
    }
}
