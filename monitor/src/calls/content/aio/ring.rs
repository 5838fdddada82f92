//! The ring of an AIO context: `struct aio_ring` of the kernel, in the memory of the process.
//!
//! The address of the ring is the value that programs know the context by. libaio, QEMU and fio also read events there themselves, without a call: so the
//! monitor puts events where the kernel would put them. The kernel itself adds none, because all submissions of the run come to the monitor.
//!
//! Nothing here is trusted. A program that makes up a ring gets events into its own memory.

use goanna_sys::tracee;
use goanna_vfs::Errno;

const MAGIC: u32 = 0xa10a_10a1;
/// `struct aio_ring`: id, number of places, head, tail, magic, compatible features, incompatible features, length of the header.
const HEADER: usize = 32;
/// Offsets of head, tail and magic.
const HEAD: u64 = 8;
const TAIL: u64 = 12;
const MAGIC_AT: u64 = 16;
/// The kernel makes no larger ring.
const PLACES_MAX: u32 = (0x1000_0000 / EVENT) as u32;
/// Events that are moved at once.
const TAKEN_AT_ONCE: u32 = 256;
/// Size of a `struct io_event`.
pub const EVENT: usize = 32;

/// The ring of a context of thread `tid`.
pub struct Ring {
    tid: i32,
    address: u64,
    /// Number of places, of which one is always free.
    len: u32,
}

impl Ring {
    /// EINVAL if there is none at `address`.
    pub fn at(tid: i32, address: u64) -> Result<Self, Errno> {
        let mut header = [0; HEADER];
        tracee::read_exact(tid, address, &mut header).map_err(|_| Errno::EINVAL)?;
        let word = |index: usize| {
            let bytes = header.get(index * 4..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        let (len, magic, header_len) = (word(1), word(4), word(7));
        let is_valid = (2..=PLACES_MAX).contains(&len);
        if magic != MAGIC || header_len as usize != HEADER || !is_valid {
            return Err(Errno::EINVAL);
        }
        Ok(Self { tid, address, len })
    }

    /// How many events fit in at most.
    pub fn capacity(&self) -> u32 {
        self.len - 1
    }

    /// How many events there are.
    pub fn available(&self) -> Result<u32, Errno> {
        let (head, tail) = self.ends()?;
        Ok(self.between(head, tail))
    }

    /// Adds events, for which there are places.
    pub fn push(&self, events: &[u8]) -> Result<(), Errno> {
        if events.is_empty() {
            return Ok(());
        }
        let (_, mut tail) = self.ends()?;
        // Those that come after the last place.
        let to_end = (self.len - tail) as usize * EVENT;
        let (first, second) = events.split_at(to_end.min(events.len()));
        for part in [first, second] {
            tracee::write_all(self.tid, self.place(tail), part)?;
            tail = (tail + (part.len() / EVENT) as u32) % self.len;
        }
        self.set(TAIL, tail)
    }

    /// Moves up to `count` events to the array at `to`; returns their number. EFAULT.
    pub fn take(&self, count: u32, to: u64) -> Result<u32, Errno> {
        let (mut head, tail) = self.ends()?;
        let count = count.min(self.between(head, tail));
        let mut taken = 0;
        let mut events = Vec::new();
        while taken < count {
            // Those before the last place, at most a few pages of them.
            let wanted = (count - taken).min(self.len - head).min(TAKEN_AT_ONCE);
            events.resize(wanted as usize * EVENT, 0);
            tracee::read_exact(self.tid, self.place(head), &mut events)?;
            let to = to.wrapping_add(u64::from(taken) * EVENT as u64);
            match tracee::write(self.tid, to, &events) {
                Ok(put) => {
                    let put = (put / EVENT) as u32;
                    taken += put;
                    head = (head + put) % self.len;
                    if put < wanted {
                        break;
                    }
                }
                Err(errno) if taken == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        if taken == 0 && count > 0 {
            return Err(Errno::EFAULT);
        }
        self.set(HEAD, head)?;
        Ok(taken)
    }

    /// Ends the ring: it is no context any more.
    pub fn end(&self) -> Result<(), Errno> {
        self.set(MAGIC_AT, 0)
    }

    /// Head and tail. A program may have written anything there.
    fn ends(&self) -> Result<(u32, u32), Errno> {
        let mut words = [0; 8];
        tracee::read_exact(self.tid, self.address + HEAD, &mut words)?;
        let [a, b, c, d, e, f, g, h] = words;
        let (head, tail) = ([a, b, c, d], [e, f, g, h]);
        Ok((
            u32::from_ne_bytes(head) % self.len,
            u32::from_ne_bytes(tail) % self.len,
        ))
    }

    fn between(&self, head: u32, tail: u32) -> u32 {
        (tail + self.len - head) % self.len
    }

    fn place(&self, index: u32) -> u64 {
        self.address + HEADER as u64 + u64::from(index) * EVENT as u64
    }

    fn set(&self, offset: u64, value: u32) -> Result<(), Errno> {
        tracee::write_all(self.tid, self.address + offset, &value.to_ne_bytes())
    }
}
