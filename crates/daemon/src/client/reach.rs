//! Reaches a store: through its owner where it has one, else in this process.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use goanna_session::{Error as SessionError, store};

use super::Connection;
use crate::Error;
use crate::protocol::message::NAME;

/// Longest time to wait for an owner that is starting or ending.
pub(super) const OWNER_WAIT_MAX: Duration = Duration::from_secs(30);
/// How often to look for such an owner.
pub(super) const STEP: Duration = Duration::from_millis(5);

/// Reaches the store `dir` by `through` if it has an owner, otherwise by `open`, which opens it in this process.
/// `through` returns `None` if the owner has ended before it has answered.
pub fn reach<T>(
    dir: &Path,
    through: impl Fn(Connection) -> Result<Option<T>, Error>,
    open: impl Fn() -> Result<T, SessionError>,
) -> Result<T, Error> {
    let begun = Instant::now();
    loop {
        let reached = match present(dir)? {
            Some(owner) => through(owner)?,
            None => match store::retry_while_held(&open) {
                // An owner has started just now, or is about to end.
                Err(error)
                    if store::is_owned_by(&error, NAME, dir)
                        && begun.elapsed() < OWNER_WAIT_MAX =>
                {
                    None
                }
                opened => Some(opened?),
            },
        };
        match reached {
            Some(reached) => return Ok(reached),
            None if begun.elapsed() < OWNER_WAIT_MAX => sleep(STEP),
            None => return Ok(open()?),
        }
    }
}

/// The owner of the store `dir`. If this user is not permitted to look for it, the result is `None`: opening the
/// store then fails with the reason.
fn present(dir: &Path) -> Result<Option<Connection>, Error> {
    match Connection::present(dir) {
        Err(Error::Session(SessionError::Host { why, .. }))
            if why.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            Ok(None)
        }
        present => present,
    }
}
