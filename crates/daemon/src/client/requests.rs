//! Requests that have one answer: check, compact, dump, facts, status, stop.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

use goanna_offline::check;
use goanna_offline::dump::{DumpError, DumpTotals};
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

/// Disconnects, and waits until the owner has handled that: if no other client uses the store, the owner has then closed it.
pub(super) fn leave(owner: Connection) {
    owner.link.shutdown_write();
    owner.wait_for_end();
}

/// Requests that `owner` check the store; `progress` receives the number of records read so far. `None` where the owner has ended
/// before.
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

/// Requests that `owner` free the disk space of deleted data. `None` where the owner has ended before.
pub fn compact(owner: Connection) -> Result<Option<()>, Error> {
    match first(&owner, &Request::Compact)? {
        Some(Answer::Compacted) => {
            leave(owner);
            Ok(Some(()))
        }
        Some(_) => Err(Error::OwnerEnded(owner.pid)),
        None => Ok(None),
    }
}

/// Requests that `owner` write its store, which is in `dir`, as a stream, and copies that to `out`; `progress` receives the
/// number of bytes copied. `None` where the owner has ended before.
pub fn dump(
    owner: Connection,
    dir: &Path,
    out: &mut dyn Write,
    progress: &dyn Fn(u64),
) -> Result<Option<DumpTotals>, Error> {
    let (mut reader, writer) =
        std::io::pipe().map_err(|why| Error::Dump(dir.to_owned(), DumpError::Read(why)))?;
    if owner
        .ask_with(&Request::Dump, Some(writer.as_fd()))
        .is_err()
    {
        return Ok(None);
    }
    drop(writer);
    let copied = copy(&mut reader, out, progress);
    // Closing the pipe shows the owner that no process reads it any more.
    drop(reader);
    let answer = owner.answer();
    let bytes = copied.map_err(|why| Error::Dump(dir.to_owned(), why))?;
    match answer {
        Ok(Answer::Dumped(records, bytes)) => {
            leave(owner);
            Ok(Some(DumpTotals { records, bytes }))
        }
        Ok(Answer::Failed(report)) => Err(Error::Reported(report)),
        Err(_) if bytes == 0 => Ok(None),
        _ => Err(Error::OwnerEnded(owner.pid)),
    }
}

/// Copies to the end. Returns the number of bytes.
fn copy(
    from: &mut impl Read,
    to: &mut dyn Write,
    progress: &dyn Fn(u64),
) -> Result<u64, DumpError> {
    let mut buffer = vec![0; 1 << 16];
    let mut bytes = 0;
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(why) if why.kind() == ErrorKind::Interrupted => continue,
            Err(why) => return Err(DumpError::Read(why)),
        };
        let piece = buffer.get(..read).unwrap_or_default();
        to.write_all(piece).map_err(DumpError::Write)?;
        bytes += read as u64;
        progress(bytes);
    }
    to.flush().map_err(DumpError::Write)?;
    Ok(bytes)
}

/// The facts about the store of `owner`, the process id of `owner`, and the number of commands that it follows. `None`
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

/// The status of `owner`.
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
        Answer::Closing => {
            owner.wait_for_end();
            Ok(())
        }
        Answer::Failed(report) => Err(Error::Reported(report)),
        _ => Err(Error::OwnerEnded(owner.pid)),
    }
}
