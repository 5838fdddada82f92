//! Copies between descriptors inside the kernel, where one end is a virtual file.
//!
//! The kernel can read a virtual source from its cache object. The back end must learn of all writes to a virtual destination,
//! so there the monitor reads the source and writes. Next: `source.rs`.

mod source;

use std::time::Instant;

use goanna_sys::signals;
use goanna_sys::tracee::MAX_RW_COUNT;
use goanna_vfs::{Errno, FsError, Result, WritePosition};
use nix::unistd::{Whence, lseek, write};

use super::outgrow::after_growth;
use super::output::Output;
use super::read::Content;
use crate::call::{Answer, Call};
use crate::intercept::waiting::wait_for_lock;
use source::{PIECE, Source};

fn offset_at(call: &Call<'_>, address: u64) -> Result<Option<u64>, Errno> {
    if address == 0 {
        return Ok(None);
    }
    let offset = call.read_u64(address)?;
    if (offset as i64) < 0 {
        Err(Errno::EINVAL)
    } else {
        Ok(Some(offset))
    }
}

fn put_offset(call: &Call<'_>, address: u64, offset: Option<u64>) -> Result<(), Errno> {
    match offset {
        Some(offset) => call.put(address, &offset.to_ne_bytes()),
        None => Ok(()),
    }
}

/// The number of bytes that a call is to copy. EINVAL for a negative count.
fn count(value: u64) -> Result<usize, Errno> {
    let count = isize::try_from(value).map_err(|_| Errno::EINVAL)?;
    Ok(count.unsigned_abs().min(MAX_RW_COUNT))
}

/// A copy into a virtual file.
struct Copy<'c, 'm> {
    call: &'c Call<'m>,
    source: Source,
    /// The descriptor of the destination: its number, and its object.
    fd: i32,
    output: Output,
    /// The offset that the program gave for it.
    to: Option<u64>,
}

impl Copy<'_, '_> {
    /// Copies up to `count` bytes; fewer only at the end of the source, when the space is exhausted, or when a signal arrives.
    /// An error after some bytes is not reported, as by Linux.
    fn run(&mut self, count: usize) -> Result<usize> {
        let mut done = 0;
        let mut data = Vec::new();
        while done < count {
            match self.piece(count - done, &mut data) {
                Ok(0) => break,
                Ok(written) => done += written,
                // A call that has had an effect cannot be restarted.
                Err(FsError::Blocked(lock)) if done > 0 => {
                    let may_wait = self.call.may_wait;
                    if !may_wait || !wait_for_lock(&lock, Instant::now()).unwrap_or(false) {
                        break;
                    }
                }
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
            if done < count && self.call.is_interrupted() {
                break;
            }
        }
        Ok(done)
    }

    fn piece(&mut self, count: usize, data: &mut Vec<u8>) -> Result<usize> {
        let written = self.transfer(count, data)?;
        if let Some(to) = &mut self.to {
            *to += written as u64;
        }
        if after_growth(self.call, self.fd, &self.output, written as u64) {
            self.output = Output::of(self.call, self.fd)?.ok_or(Errno::EBADF)?;
        }
        Ok(written)
    }

    /// Writes up to `count` bytes of the source, and removes the written bytes from it.
    fn transfer(&mut self, count: usize, data: &mut Vec<u8>) -> Result<usize> {
        // Between the duplication of a pipe's data and their removal, another call would read them, too.
        let _only_reader = (self.source.is_pipe()).then(|| self.call.monitor.pipe_reader.lock());
        self.source.read(count.min(PIECE), data)?;
        if data.is_empty() {
            return Ok(0);
        }
        let outcome = self.output.write(self.call, self.position(), data);
        let written = *outcome.as_ref().unwrap_or(&0);
        self.source.advance(data.len(), written)?;
        outcome
    }

    fn position(&self) -> WritePosition {
        self.to.map_or(WritePosition::Cursor, WritePosition::At)
    }
}

/// A copy to a file or socket of the host. The kernel performs it, unless the caller's transaction has another content than
/// the cache object: then the call fails with `refused`, so that the program reads and writes.
fn out_of_store(call: &Call<'_>, fd: i32, refused: Errno) -> Result<Answer> {
    match Content::of(call, fd)? {
        None => Ok(Answer::PassOn),
        Some(_) => Err(refused.into()),
    }
}

/// sendfile(2) of a file that the caller's transaction has changed, to a socket, pipe or file of the host: the monitor writes,
/// and the receiver may be slow.
fn send_out(call: &Call<'_>) -> Result<Answer> {
    let Some(content) = Content::of(call, call.int(1))? else {
        return Ok(Answer::PassOn);
    };
    let count = count(call.arg(3))?;
    if !call.may_wait {
        return Ok(Answer::Wait);
    }
    let out = call.task.descriptor(call.int(0))?;
    let offset = offset_at(call, call.arg(2))?;
    let start = offset.map_or_else(|| content.offset(), Ok)?;
    let mut done = 0;
    while done < count {
        let data = content.at(start + done as u64, (count - done).min(PIECE))?;
        if data.is_empty() {
            break;
        }
        match write(&out, &data) {
            Ok(sent) => done += sent,
            Err(_) if done > 0 => break,
            Err(errno) => {
                if errno == Errno::EPIPE {
                    signals::send_for_call(call.task.tid, libc::SIGPIPE);
                }
                return Err(errno.into());
            }
        }
        if done < count && call.is_interrupted() {
            break;
        }
    }
    let end = start + done as u64;
    match offset {
        Some(_) => put_offset(call, call.arg(2), Some(end))?,
        None => content.seek(end)?,
    }
    Ok(Answer::Value(done as i64))
}

/// sendfile(2): out_fd, in_fd, offset, count.
pub fn sendfile(call: &mut Call<'_>) -> Result<Answer> {
    let output = match Output::of(call, call.int(0)) {
        Ok(None) => return send_out(call),
        output => output,
    };
    let mut source = Source::of(call, call.int(1))?;
    source.offset = offset_at(call, call.arg(2))?;
    let count = count(call.arg(3))?;
    let output = output?.ok_or(Errno::EBADF)?;
    if output.flags & libc::O_APPEND != 0 {
        return Err(Errno::EINVAL.into());
    }
    let slow = source.may_wait() || source.left()?.min(count as u64) > PIECE as u64;
    if slow && !call.may_wait {
        return Ok(Answer::Wait);
    }
    let mut copy = Copy {
        call,
        source,
        fd: call.int(0),
        output,
        to: None,
    };
    let done = copy.run(count)?;
    put_offset(call, call.arg(2), copy.source.offset)?;
    Ok(Answer::Value(done as i64))
}

fn is_directory(call: &Call<'_>, fd: i32) -> Result<bool> {
    Ok(call
        .open_shadow(fd)?
        .is_some_and(|shadow| shadow.place().node.is_dir()))
}

/// copy_file_range(2): fd_in, off_in, fd_out, off_out, len, flags.
pub fn copy_file_range(call: &mut Call<'_>) -> Result<Answer> {
    let output = match Output::of(call, call.int(2)) {
        Ok(None) => return out_of_store(call, call.int(0), Errno::EXDEV),
        Err(FsError::Errno(Errno::EBADF))
            if call.uint(5) == 0 && is_directory(call, call.int(2))? =>
        {
            return Err(Errno::EISDIR.into());
        }
        output => output?.ok_or(Errno::EBADF)?,
    };
    if call.uint(5) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let mut source = Source::of(call, call.int(0))?;
    source.must_be_file()?;
    if output.flags & libc::O_APPEND != 0 {
        return Err(Errno::EBADF.into());
    }
    source.offset = offset_at(call, call.arg(1))?;
    let to = offset_at(call, call.arg(3))?;
    let own = || Ok::<_, Errno>(lseek(&output.ofd, 0, Whence::SeekCur)?.cast_unsigned());
    let (begin_from, begin_to) = (source.position()?, to.map_or_else(own, Ok)?);
    let len = call.arg(4);
    if len.checked_add(begin_from.max(begin_to)).is_none() {
        return Err(Errno::EOVERFLOW.into());
    }
    // The length is cut to the end of the source, and to the limit on file sizes.
    let mut len = source.left_from(begin_from)?.min(len);
    if len > 0 {
        let position = to.map_or(WritePosition::Cursor, WritePosition::At);
        len = len.min(output.available(call, position)?);
    }
    if source.file == Some(output.place.key()) && begin_from.abs_diff(begin_to) < len {
        return Err(Errno::EINVAL.into());
    }
    if len > PIECE as u64 && !call.may_wait {
        return Ok(Answer::Wait);
    }
    let mut copy = Copy {
        call,
        source,
        fd: call.int(2),
        output,
        to,
    };
    let done = copy.run(count(len)?)?;
    put_offset(call, call.arg(1), copy.source.offset)?;
    put_offset(call, call.arg(3), copy.to)?;
    Ok(Answer::Value(done as i64))
}

/// splice(2) from a pipe into a virtual file: fd_in, off_in, fd_out, off_out, len, flags.
pub fn splice(call: &mut Call<'_>) -> Result<Answer> {
    // SPLICE_F_MOVE, SPLICE_F_NONBLOCK, SPLICE_F_MORE and SPLICE_F_GIFT.
    const KNOWN: u32 = 0xf;
    if call.arg(4) == 0 || call.uint(5) & !KNOWN != 0 {
        return Ok(Answer::PassOn);
    }
    let output = match Output::of(call, call.int(2)) {
        Ok(None) => return out_of_store(call, call.int(0), Errno::EINVAL),
        output => output?.ok_or(Errno::EBADF)?,
    };
    let source = Source::pipe(call, call.int(0))?;
    if call.arg(1) != 0 {
        return Err(Errno::ESPIPE.into());
    }
    let to = offset_at(call, call.arg(3))?;
    if output.flags & libc::O_APPEND != 0 {
        return Err(Errno::EINVAL.into());
    }
    let count = count(call.arg(4))?;
    let may_not_wait = call.uint(5) & libc::SPLICE_F_NONBLOCK != 0 || source.is_nonblocking()?;
    let mut copy = Copy {
        call,
        source,
        fd: call.int(2),
        output,
        to,
    };
    match copy.run(count) {
        Err(FsError::Errno(Errno::EAGAIN)) if !may_not_wait && !call.may_wait => Ok(Answer::Wait),
        Err(FsError::Errno(Errno::EAGAIN)) if !may_not_wait => {
            Ok(Answer::Readable(copy.source.to_wait_for()?))
        }
        outcome => {
            let done = outcome?;
            put_offset(call, call.arg(3), copy.to)?;
            Ok(Answer::Value(done as i64))
        }
    }
}
