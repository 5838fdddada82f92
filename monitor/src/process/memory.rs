//! The memory that the arguments of a call point to: paths, structures, buffers.
//!
//! Of a call that observers see, the bytes that were decoded for them are kept until it ends, and its handler gets the same bytes. So
//! a thread that changes the memory at the same time cannot make a record differ from what was done. Other calls read the memory
//! when their handler asks for it.

use std::cell::RefCell;
use std::sync::Arc;

use goanna_sys::tracee;
use goanna_syscalls::Memory;
use goanna_vfs::Errno;

/// Bytes from an address on.
#[derive(Debug)]
struct Range {
    start: u64,
    bytes: Box<[u8]>,
}

impl Range {
    /// Its bytes from `address` on; `None` if `address` is not in it.
    fn from(&self, address: u64) -> Option<&[u8]> {
        let skipped = usize::try_from(address.checked_sub(self.start)?).ok()?;
        self.bytes.get(skipped..).filter(|rest| !rest.is_empty())
    }
}

/// The memory of a thread that makes a call.
#[derive(Debug, Clone)]
pub struct ArgumentMemory {
    tid: i32,
    decoded: Option<Arc<[Range]>>,
}

impl ArgumentMemory {
    /// The memory of thread `tid`, of which nothing is decoded.
    pub fn of(tid: i32) -> Self {
        Self { tid, decoded: None }
    }

    /// `len` bytes at `address`, if they were decoded as a whole.
    fn decoded(&self, address: u64, len: usize) -> Option<&[u8]> {
        let ranges = self.decoded.as_deref()?;
        if len == 0 {
            return Some(&[]);
        }
        ranges
            .iter()
            .find_map(|range| range.from(address)?.get(..len))
    }

    /// The string at `address` up to its NUL, if it was decoded.
    fn decoded_string(&self, address: u64) -> Option<Vec<u8>> {
        let ranges = self.decoded.as_deref()?;
        let mut string = Vec::new();
        loop {
            let at = address.checked_add(string.len() as u64)?;
            let part = ranges.iter().find_map(|range| range.from(at))?;
            if let Some(end) = part.iter().position(|&byte| byte == 0) {
                string.extend_from_slice(part.get(..end)?);
                return Some(string);
            }
            string.extend_from_slice(part);
        }
    }

    /// Fills `buffer` from `address`. EFAULT.
    pub fn read_exact(&self, address: u64, buffer: &mut [u8]) -> Result<(), Errno> {
        match self.decoded(address, buffer.len()) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => tracee::read_exact(self.tid, address, buffer)?,
        }
        Ok(())
    }

    /// The string at `address`, without its NUL. ENAMETOOLONG if its first `max` bytes have no NUL; EFAULT.
    pub fn read_string(&self, address: u64, max: usize) -> Result<Vec<u8>, Errno> {
        match self.decoded_string(address) {
            Some(string) if string.len() < max => Ok(string),
            Some(_) => Err(Errno::ENAMETOOLONG),
            None => tracee::read_cstr(self.tid, address, max),
        }
    }

    /// The buffers of `count` elements of `struct iovec` at `address`, with their sizes. EINVAL, EFAULT.
    pub fn read_iovecs(&self, address: u64, count: usize) -> Result<Vec<(u64, usize)>, Errno> {
        if count > tracee::IOV_MAX {
            return Err(Errno::EINVAL);
        }
        let mut raw = vec![0; count * tracee::IOVEC_SIZE];
        self.read_exact(address, &mut raw)?;
        tracee::parse_iovecs(&raw)
    }

    /// Appends what `buffers` hold to `out`, at most `limit` bytes, up to what cannot be read. EFAULT when that is nothing; ENOMEM.
    pub fn read_buffers(
        &self,
        buffers: &[(u64, usize)],
        out: &mut Vec<u8>,
        limit: usize,
    ) -> Result<(), Errno> {
        let decoded = buffers.iter().map(|&(at, len)| self.decoded(at, len));
        match decoded.collect::<Option<Vec<_>>>() {
            Some(parts) => {
                out.extend(parts.into_iter().flatten().take(limit));
            }
            _ => {
                tracee::read_vec(self.tid, buffers, out, limit)?;
            }
        }
        Ok(())
    }
}

/// The memory of a thread while one of its calls is decoded.
pub struct Decoding {
    tid: i32,
    ranges: RefCell<Vec<Range>>,
}

impl Decoding {
    /// Of thread `tid`.
    pub fn of(tid: i32) -> Self {
        Self {
            tid,
            ranges: RefCell::default(),
        }
    }

    /// The memory as it was decoded.
    pub fn finish(self) -> ArgumentMemory {
        ArgumentMemory {
            tid: self.tid,
            decoded: Some(self.ranges.into_inner().into()),
        }
    }
}

impl Memory for Decoding {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let copied = tracee::read(self.tid, address, into).unwrap_or(0);
        if let Some(bytes) = into.get(..copied) {
            self.ranges.borrow_mut().push(Range {
                start: address,
                bytes: bytes.into(),
            });
        }
        copied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory of this process: a path and a vector that were decoded, and changed since.
    #[test]
    fn what_was_decoded_is_not_read_again() {
        let own = std::process::id() as i32;
        let mut path = *b"/amino/a-name\0/amino/other\0";
        let start = path.as_mut_ptr() as u64;
        let decoding = Decoding::of(own);
        for (skipped, len) in [(0, 7), (7, 7)] {
            assert_eq!(decoding.read(start + skipped, &mut vec![0; len]), len);
        }
        let memory = decoding.finish();
        std::hint::black_box(&mut path).fill(b'x');

        let name = |at, max| memory.read_string(start + at, max);
        assert_eq!(name(0, 14), Ok(b"/amino/a-name".to_vec()));
        assert_eq!(name(0, 13), Err(Errno::ENAMETOOLONG));
        assert_eq!(name(7, 64), Ok(b"a-name".to_vec()));
        let mut bytes = [0; 4];
        assert_eq!(memory.read_exact(start + 1, &mut bytes), Ok(()));
        assert_eq!(&bytes, b"amin");

        // Two ranges, and one that was not decoded: memory is read.
        let mut across = [0; 8];
        assert_eq!(memory.read_exact(start + 3, &mut across), Ok(()));
        assert_eq!(&across, b"xxxxxxxx");
        let mut data = Vec::new();
        let decoded = [(start + 1, 3), (start + 8, 2)];
        assert_eq!(memory.read_buffers(&decoded, &mut data, 4), Ok(()));
        assert_eq!(data, b"ami-");
        data.clear();
        assert_eq!(
            memory.read_buffers(&[(start + 1, 3), (start + 20, 2)], &mut data, 64),
            Ok(())
        );
        assert_eq!(data, b"xxxxx");
        std::hint::black_box(&path);
    }

    #[test]
    fn memory_without_decoded_bytes_is_read() {
        let own = std::process::id() as i32;
        let path = *b"name\0";
        let memory = ArgumentMemory::of(own);
        let at = std::hint::black_box(&path).as_ptr() as u64;
        assert_eq!(memory.read_string(at, 16), Ok(b"name".to_vec()));
        assert_eq!(memory.read_string(0, 16), Err(Errno::EFAULT));
        assert_eq!(memory.read_iovecs(0, 0), Ok(Vec::new()));
        assert_eq!(memory.read_iovecs(0, 1), Err(Errno::EFAULT));
        assert_eq!(
            memory.read_iovecs(at, tracee::IOV_MAX + 1),
            Err(Errno::EINVAL)
        );
        assert_eq!(
            memory.read_buffers(&[(0, 4)], &mut Vec::new(), 4),
            Err(Errno::EFAULT)
        );
    }
}
