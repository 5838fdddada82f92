//! Bounded copies out of a program's memory. `None`: the address cannot be read.

use crate::signature::TimeFormat;
use crate::{Limits, Memory, Time, Value};

/// The kernel's limit on the elements of a vector (`UIO_MAXIOV`).
const VECTOR_MAX: u64 = 1024;
/// `struct sockaddr_storage`.
const SOCKET_ADDRESS_MAX: usize = 128;
/// Strings are read up to the next multiple of this, so that no read crosses a page without need.
const STEP: u64 = 256;

/// Reads a program's memory within limits.
pub(super) struct Reader<'a> {
    pub memory: &'a dyn Memory,
    pub limits: &'a Limits,
}

impl Reader<'_> {
    fn exact<const LEN: usize>(&self, address: u64) -> Option<[u8; LEN]> {
        let mut bytes = [0; LEN];
        (self.memory.read(address, &mut bytes) == LEN).then_some(bytes)
    }

    pub fn number(&self, address: u64) -> Option<u64> {
        self.exact(address).map(u64::from_le_bytes)
    }

    pub fn number_32(&self, address: u64) -> Option<u32> {
        self.exact(address).map(u32::from_le_bytes)
    }

    /// `len` bytes, at most `bound` of them copied. Where nothing is to be copied, nothing is read.
    pub fn bytes(&self, address: u64, len: u64, bound: usize) -> Option<Value> {
        let copied = usize::try_from(len).unwrap_or(usize::MAX).min(bound);
        let data = self.copy(address, copied)?;
        Some(Value::Bytes { len, data })
    }

    fn copy(&self, address: u64, len: usize) -> Option<Box<[u8]>> {
        let mut data = vec![0; len];
        (self.memory.read(address, &mut data) == len).then(|| data.into())
    }

    /// A NUL-terminated string, cut at the limit.
    pub fn text(&self, address: u64) -> Option<Box<[u8]>> {
        self.text_within(address, self.limits.text)
    }

    fn text_within(&self, address: u64, limit: usize) -> Option<Box<[u8]>> {
        let mut text = Vec::new();
        let mut at = address;
        let mut buffer = [0; STEP as usize];
        while text.len() < limit {
            let step = (STEP - at % STEP).min((limit - text.len()) as u64);
            let part = buffer.get_mut(..step as usize)?;
            let copied = self.memory.read(at, part);
            let part = part.get(..copied)?;
            if let Some(end) = part.iter().position(|&byte| byte == 0) {
                text.extend_from_slice(part.get(..end)?);
                break;
            }
            text.extend_from_slice(part);
            if (copied as u64) < step {
                return None;
            }
            at = at.checked_add(step)?;
        }
        Some(text.into())
    }

    /// A NULL-terminated array of addresses of strings, cut at the limits: all strings together have at most 16 times as many bytes as
    /// one may have.
    pub fn texts(&self, address: u64) -> Option<Value> {
        let mut texts = Vec::new();
        let mut left = self.limits.text.saturating_mul(16);
        let mut at = address;
        while texts.len() < self.limits.texts && left > 0 {
            let string = self.number(at)?;
            if string == 0 {
                break;
            }
            let text = self.text_within(string, self.limits.text.min(left))?;
            left -= text.len().min(left);
            texts.push(text);
            at = at.checked_add(8)?;
        }
        Some(Value::Texts(texts.into()))
    }

    /// What the kernel has written as a string of `len` bytes, with a NUL at its end or without.
    pub fn output_text(&self, address: u64, len: u64) -> Option<Value> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let text = self.copy(address, len.min(self.limits.text))?;
        Some(Value::Text(match text.strip_suffix(b"\0") {
            Some(text) => text.into(),
            None => text,
        }))
    }

    /// The buffers of `count` elements of `struct iovec`; `filled`: only so many bytes of them hold something.
    pub fn vector(&self, address: u64, count: u64, filled: Option<u64>) -> Option<Value> {
        if count > VECTOR_MAX {
            return None;
        }
        let mut total = 0_u64;
        let mut data = Vec::new();
        let elements = self.copy(address, 16 * count as usize)?;
        for element in elements.chunks_exact(16) {
            let (base, len) = (field(element, 0)?, field(element, 8)?);
            let here = len.min(filled.unwrap_or(u64::MAX).saturating_sub(total));
            let wanted = self.limits.data.saturating_sub(data.len());
            let copied = usize::try_from(here).unwrap_or(usize::MAX).min(wanted);
            if copied > 0 {
                data.extend_from_slice(&self.copy(base, copied)?);
            }
            total = total.saturating_add(here);
        }
        Some(Value::Bytes {
            len: total,
            data: data.into(),
        })
    }

    /// The buffers of a `struct msghdr`.
    pub fn message(&self, address: u64, filled: Option<u64>) -> Option<Value> {
        let header: [u8; 56] = self.exact(address)?;
        let (vector, count) = (field(&header, 16)?, field(&header, 24)?);
        if count == 0 {
            return Some(Value::Bytes {
                len: 0,
                data: Box::default(),
            });
        }
        self.vector(vector, count, filled)
    }

    pub fn socket_address(&self, address: u64, len: u64) -> Option<Value> {
        self.bytes(address, len, SOCKET_ADDRESS_MAX)
    }

    pub fn times(&self, address: u64, format: TimeFormat, count: u8) -> Option<Value> {
        let size = match format {
            TimeFormat::Timespec | TimeFormat::Timeval => 16,
            TimeFormat::Seconds => 8,
        };
        let bytes = self.copy(address, size * usize::from(count))?;
        let times = bytes.chunks_exact(size).map(|one| {
            let part = |at| field(one, at).unwrap_or(0) as i64;
            Time {
                seconds: part(0),
                nanoseconds: match format {
                    TimeFormat::Timespec => part(8),
                    TimeFormat::Timeval => part(8).saturating_mul(1000),
                    TimeFormat::Seconds => 0,
                },
            }
        });
        Some(Value::Times(times.collect()))
    }

    pub fn pair(&self, address: u64) -> Option<Value> {
        let both = self.number(address)?;
        Some(Value::DescriptorPair([both as i32, (both >> 32) as i32]))
    }
}

fn field(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}
