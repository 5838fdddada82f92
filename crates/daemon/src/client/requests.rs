//! Requests that have one answer: check, facts, status, stop.

use goanna_offline::check;
use goanna_offline::facts::Facts;

use super::Connection;
use crate::Error;
use crate::protocol::message::{Answer, Request, Status};

/// The answer of `owner` to its first request; `None` where it has ended before.
pub(super) fn first(owner: &Connection, request: &Request) -> Result<Option<Answer>, Error> {
    if owner.ask(request).is_err() {
        return Ok(None);
    }
    match owner.answer() {
        Ok(Answer::Failed(report)) => Err(Error::Reported(report)),
        Ok(answer) => Ok(Some(answer)),
        Err(_) => Ok(None),
    }
}

/// Leaves. Returns when the owner has noticed; if no other client uses the store, the owner has closed it.
pub(super) fn leave(owner: Connection) {
    owner.link.shutdown_write();
    owner.wait_for_end();
}

/// Has `owner` check the store; `progress` receives the number of records read so far. `None` where the owner has ended before.
pub fn check(owner: Connection, progress: &dyn Fn(u64)) -> Result<Option<check::Report>, Error> {
    let mut answer = match first(&owner, &Request::Check)? {
        Some(answer) => answer,
        None => return Ok(None),
    };
    loop {
        match answer {
            Answer::Progress(records) => progress(records),
            Answer::Checked(report) => {
                leave(owner);
                return Ok(Some(report));
            }
            Answer::Failed(report) => return Err(Error::Reported(report)),
            _ => return Err(Error::OwnerEnded(owner.pid)),
        }
        answer = owner.answer()?;
    }
}

/// What the store of `owner` is and holds, the process id of `owner`, and the number of commands that it follows. `None`
/// where the owner has ended before.
pub fn facts(owner: Connection) -> Result<Option<(Facts, i32, usize)>, Error> {
    let pid = owner.pid;
    match first(&owner, &Request::Facts)? {
        Some(Answer::Facts(facts, runs)) => {
            leave(owner);
            Ok(Some((facts, pid, runs)))
        }
        Some(_) => Err(Error::OwnerEnded(pid)),
        None => Ok(None),
    }
}

/// What `owner` does.
pub fn status(owner: &Connection) -> Result<Status, Error> {
    owner.ask(&Request::Status)?;
    match owner.answer()? {
        Answer::Status(status) => Ok(status),
        Answer::Failed(report) => Err(Error::Reported(report)),
        _ => Err(Error::OwnerEnded(owner.pid)),
    }
}

/// Ends `owner`, with `force` also when commands use the store. Returns when the store is closed.
pub fn stop(owner: Connection, force: bool) -> Result<(), Error> {
    owner.ask(&Request::Stop { force })?;
    match owner.answer()? {
        Answer::Ending => {
            owner.wait_for_end();
            Ok(())
        }
        Answer::Failed(report) => Err(Error::Reported(report)),
        _ => Err(Error::OwnerEnded(owner.pid)),
    }
}
