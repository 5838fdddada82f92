//! Compares the result of a call with that in the trace.

use amino_schema::replay::{Call, Command, Content};
use goanna_sys::Errno;
use goanna_sys::replay::Returned;
use sha2::{Digest, Sha256};

use super::shared::Shared;
use crate::Error;

/// Bytes of content that a hash covers.
const CHUNK: usize = 64 << 10;

/// The expected result, and the result of the replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    pub expected: String,
    pub got: String,
}

/// Compares the result, and the content in `read`, if the call was a read.
pub fn check(
    shared: &Shared,
    command: &Command,
    returned: Returned,
    read: &[u8],
) -> Result<Option<Mismatch>, Error> {
    let Some(expected) = command.expected else {
        return Ok(None);
    };
    if command.call.is_own() {
        return Ok(None);
    }
    let got = returned.unwrap_or_else(|errno| -(errno as i64));
    if got != expected && !agrees(command, expected, got) {
        return Ok(Some(Mismatch {
            expected: text(expected),
            got: text(got),
        }));
    }
    if !command.call.reads() || got <= 0 {
        return Ok(None);
    }
    let length = usize::try_from(got).unwrap_or(usize::MAX);
    let Some(read) = read.get(..length) else {
        // Longer than the buffer: its beginning was overwritten. The lane counts it.
        return Ok(None);
    };
    let is_same = match command.data.as_ref().map(|data| &data.content) {
        None | Some(Content::Unknown) => true,
        Some(Content::Buffers(buffers)) => same_bytes(shared, buffers, read)?,
        Some(Content::Hashes(hashes)) => {
            let chunks = read.chunks(CHUNK).zip(hashes);
            chunks
                .into_iter()
                .all(|(chunk, hash)| Sha256::digest(chunk).starts_with(hash))
        }
    };
    Ok((!is_same).then(|| Mismatch {
        expected: "the content of the trace".into(),
        got: "other content".into(),
    }))
}

fn same_bytes(
    shared: &Shared,
    buffers: &[(u64, u32, u32)],
    mut read: &[u8],
) -> Result<bool, Error> {
    for buffer in buffers {
        let bytes = shared.buffer(*buffer)?;
        let length = bytes.len().min(read.len());
        let (now, later) = read.split_at(length);
        if bytes.get(..length) != Some(now) {
            return Ok(false);
        }
        read = later;
    }
    Ok(true)
}

/// Whether two results are equivalent: descriptor numbers and addresses of the process do not
/// count.
fn agrees(command: &Command, expected: i64, got: i64) -> bool {
    let is_error = |result: i64| (-4095..0).contains(&result);
    if is_error(expected) || is_error(got) {
        return expected == got;
    }
    match command.call {
        // Descriptors, addresses, and results that may differ between file systems.
        Call::Open | Call::Dup | Call::Map | Call::Listxattr => true,
        Call::Readdir => (expected == 0) == (got == 0),
        // Flags that the kernel or the replayer adds.
        Call::Fcntl => {
            let added = libc::O_LARGEFILE | 0x8000 | libc::FD_CLOEXEC | libc::O_NONBLOCK;
            let added = i64::from(added);
            match command.numbers.first().map(|it| *it as i32) {
                Some(libc::F_GETFD) => true,
                _ => (expected | added) == (got | added),
            }
        }
        _ => expected == got,
    }
}

fn text(result: i64) -> String {
    match result {
        -4095..0 => {
            let errno = Errno::from_raw(-result as i32);
            match errno {
                Errno::UnknownErrno => format!("error {}", -result),
                errno => format!("{errno:?}"),
            }
        }
        result => result.to_string(),
    }
}
