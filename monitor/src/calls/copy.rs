//! Copies between descriptors inside the kernel, where one end is a shadow file.
//!
//! A shadow source needs nothing: the kernel reads its cache object. A shadow destination must hear of what
//! it gets, so the monitor reads the source and writes.

use std::os::fd::{AsFd, OwnedFd};

use goanna_sys::{memfile, tracee};
use goanna_vfs::{Errno, OpenFile, Result, Spot};
use nix::poll::{PollFd, PollFlags, PollTimeout};

use super::outgrow::after_growth;
use super::read::Content;
use super::rw::Output;
use crate::Monitor;
use crate::call::{Answer, Call};

/// Copied at once; Linux returns short counts for long copies, too.
const PIECE: usize = 4 << 20;

/// Reads from a description at `offset`, or at its own offset, which advances by what is used.
struct Source {
    ofd: OwnedFd,
    offset: Option<u64>,
    /// Where it does not show what the caller's transaction has made of the file.
    inside: Option<Content>,
}

impl Source {
    fn read(&self, len: usize) -> Result<Vec<u8>> {
        if let Some(content) = &self.inside {
            let start = self.offset.map_or_else(|| content.offset(), Ok)?;
            let data = content.at(start, len)?;
            if self.offset.is_none() {
                content.seek(start + data.len() as u64)?;
            }
            return Ok(data);
        }
        let mut data = vec![0; len];
        let got = match self.offset {
            Some(offset) => memfile::pread(self.ofd.as_fd(), &mut data, offset)?,
            None => nix::unistd::read(&self.ofd, &mut data)?,
        };
        data.truncate(got);
        Ok(data)
    }

    /// Takes back what the destination did not accept.
    fn unread(&self, len: usize) -> Result<()> {
        if self.offset.is_none() && len > 0 {
            nix::unistd::lseek(&self.ofd, -(len as i64), nix::unistd::Whence::SeekCur)?;
        }
        Ok(())
    }
}

fn offset_at(call: &Call<'_>, address: u64) -> Result<Option<u64>> {
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

fn advance(call: &Call<'_>, address: u64, offset: Option<u64>, by: usize) -> Result<()> {
    match offset {
        Some(offset) => call.put(address, &(offset + by as u64).to_ne_bytes()),
        None => Ok(()),
    }
}

fn copy(
    call: &Call<'_>,
    output: &Output,
    source: &Source,
    spot: Spot,
    len: usize,
) -> Result<usize> {
    let data = source.read(len.min(PIECE))?;
    if data.is_empty() {
        return Ok(0);
    }
    let written = match output.write(call, spot, &data) {
        Ok(written) => written,
        Err(errno) => {
            source.unread(data.len())?;
            return Err(errno);
        }
    };
    source.unread(data.len() - written)?;
    Ok(written)
}

/// To a file or socket of the host: the kernel copies, unless it would copy something else than the transaction sees; then
/// `refused` makes the program read and write.
fn out_of_store(call: &Call<'_>, fd: i32, refused: Errno) -> Result<Answer> {
    match Content::of(call, fd)? {
        None => Ok(Answer::PassOn),
        Some(_) => Err(refused),
    }
}

/// sendfile(2) of a file that the caller's transaction has changed, to a socket, pipe or file of the host: written by the
/// monitor, on a thread of its own because the receiver may be slow.
fn send_out(call: &Call<'_>) -> Result<Answer> {
    let Some(content) = Content::of(call, call.int(1))? else {
        return Ok(Answer::PassOn);
    };
    let out = call.task.descriptor(call.int(0))?;
    let (address, offset) = (call.arg(2), offset_at(call, call.arg(2))?);
    let len = usize::try_from(call.arg(3)).map_or(PIECE, |len| len.min(PIECE));
    let tid = call.task.tid;
    Ok(Answer::Block(Box::new(move || {
        let start = offset.map_or_else(|| content.offset(), Ok)?;
        let data = content.at(start, len)?;
        let sent = nix::unistd::write(&out, &data).inspect_err(|errno| {
            if *errno == Errno::EPIPE {
                // As the kernel would have sent it; the caller may have died meanwhile.
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(tid),
                    nix::sys::signal::SIGPIPE,
                );
            }
        })?;
        let end = start + sent as u64;
        match offset {
            Some(_) => tracee::write_all(tid, address, &end.to_ne_bytes())?,
            None => content.seek(end)?,
        }
        Ok(Answer::Value(sent as i64))
    })))
}

/// sendfile(2): out_fd, in_fd, offset, count.
pub fn sendfile(call: &mut Call<'_>) -> Result<Answer> {
    let Some(output) = Output::of(call, call.int(0))? else {
        return send_out(call);
    };
    if output.flags & libc::O_APPEND != 0 {
        return Err(Errno::EINVAL);
    }
    let offset = offset_at(call, call.arg(2))?;
    let source = Source {
        ofd: call.task.descriptor(call.int(1))?,
        offset,
        inside: Content::of(call, call.int(1))?,
    };
    let written = copy(call, &output, &source, Spot::Cursor, call.arg(3) as usize)?;
    advance(call, call.arg(2), offset, written)?;
    after_growth(call, call.int(0), &output, written as u64);
    Ok(Answer::Value(written as i64))
}

fn is_directory(call: &Call<'_>, fd: i32) -> Result<bool> {
    Ok(call
        .shadow(fd)?
        .is_some_and(|shadow| shadow.place().node.is_dir()))
}

/// copy_file_range(2): fd_in, off_in, fd_out, off_out, len, flags.
pub fn copy_file_range(call: &mut Call<'_>) -> Result<Answer> {
    use nix::sys::stat::{SFlag, fstat};
    let output = match Output::of(call, call.int(2)) {
        Ok(None) => return out_of_store(call, call.int(0), Errno::EXDEV),
        Err(Errno::EBADF) if call.uint(5) == 0 && is_directory(call, call.int(2))? => {
            return Err(Errno::EISDIR);
        }
        output => output?.ok_or(Errno::EBADF)?,
    };
    if call.uint(5) != 0 {
        return Err(Errno::EINVAL);
    }
    let ofd = call.task.descriptor(call.int(0))?;
    let stat = fstat(&ofd)?;
    match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => {}
        SFlag::S_IFDIR => return Err(Errno::EISDIR),
        _ => return Err(Errno::EINVAL),
    }
    let readable = Monitor::access_mode(&ofd)? != libc::O_WRONLY;
    if !readable || output.flags & libc::O_APPEND != 0 {
        return Err(Errno::EBADF);
    }
    let (from, to) = (offset_at(call, call.arg(1))?, offset_at(call, call.arg(3))?);
    let len = call.arg(4) as usize;
    if call
        .shadow(call.int(0))?
        .is_some_and(|s| s.place().node.ino() == output.place.node.ino())
    {
        let position = |ofd: &OwnedFd| nix::unistd::lseek(ofd, 0, nix::unistd::Whence::SeekCur);
        let from = from.map_or_else(|| position(&ofd).map(|p| p as u64), Ok)?;
        let to = to.map_or_else(|| position(&output.ofd).map(|p| p as u64), Ok)?;
        if from.abs_diff(to) < len as u64 {
            return Err(Errno::EINVAL);
        }
    }
    let source = Source {
        ofd,
        offset: from,
        inside: Content::of(call, call.int(0))?,
    };
    let spot = to.map_or(Spot::Cursor, Spot::At);
    let written = copy(call, &output, &source, spot, len)?;
    advance(call, call.arg(1), from, written)?;
    advance(call, call.arg(3), to, written)?;
    after_growth(call, call.int(2), &output, written as u64);
    Ok(Answer::Value(written as i64))
}

/// splice(2) from a pipe into a shadow file: fd_in, off_in, fd_out, off_out, len, flags.
pub fn splice(call: &mut Call<'_>) -> Result<Answer> {
    use nix::sys::stat::{SFlag, fstat};
    let Some(output) = Output::of(call, call.int(2))? else {
        return out_of_store(call, call.int(0), Errno::EINVAL);
    };
    let pipe = call.task.descriptor(call.int(0))?;
    let kind = SFlag::from_bits_truncate(fstat(&pipe)?.st_mode) & SFlag::S_IFMT;
    if kind != SFlag::S_IFIFO || output.flags & libc::O_APPEND != 0 {
        return Err(Errno::EINVAL);
    }
    if call.arg(1) != 0 {
        return Err(Errno::ESPIPE);
    }
    let to = offset_at(call, call.arg(3))?;
    let spot = to.map_or(Spot::Cursor, Spot::At);
    let len = (call.arg(4) as usize).min(PIECE);
    if len == 0 {
        return Ok(Answer::Value(0));
    }
    if has_data(&pipe, PollTimeout::ZERO)? {
        let data = read_pipe(&pipe, len)?;
        let written = output.write(call, spot, &data)?;
        advance(call, call.arg(3), to, written)?;
        return Ok(Answer::Value(written as i64));
    }
    if call.uint(5) & libc::SPLICE_F_NONBLOCK != 0 {
        return Err(Errno::EAGAIN);
    }
    let (caller, tid, offset_at) = (call.caller()?, call.task.tid, call.arg(3));
    Ok(Answer::Block(Box::new(move || {
        has_data(&pipe, PollTimeout::NONE)?;
        let data = read_pipe(&pipe, len)?;
        let Output {
            place, ofd, flags, ..
        } = &output;
        let file = OpenFile {
            node: &place.node,
            ofd: ofd.as_fd(),
            flags: *flags,
        };
        let written = place.mount.fs.write(&caller, file, spot, &data)?;
        if let Some(offset) = to {
            tracee::write_all(tid, offset_at, &(offset + written as u64).to_ne_bytes())?;
        }
        Ok(Answer::Value(written as i64))
    })))
}

/// Whether a read of the pipe would not wait.
fn has_data(pipe: &OwnedFd, timeout: PollTimeout) -> Result<bool> {
    let mut set = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    Ok(nix::poll::poll(&mut set, timeout)? > 0)
}

fn read_pipe(pipe: &OwnedFd, len: usize) -> Result<Vec<u8>> {
    let mut data = vec![0; len];
    let got = nix::unistd::read(pipe, &mut data)?;
    data.truncate(got);
    Ok(data)
}
