//! Bounded copies out of a program's memory. `None`: the address cannot be read.

use crate::signature::TimeFormat;
use crate::{Limits, Memory, Time, Value};

/// The kernel's limit on the elements of a vector (`UIO_MAXIOV`).
const VECTOR_MAX: u64 = 1024;
/// `struct sockaddr_storage`.
const SOCKET_ADDRESS_MAX: usize = 128;
/// `struct msghdr`, `struct mmsghdr`, `struct cmsghdr`.
const MSGHDR: usize = 56;
const MMSGHDR: u64 = 64;
const CMSGHDR: usize = 16;
/// Bytes of control messages that are read of one message: SCM_RIGHTS passes 253 descriptors at most.
const CONTROL_MAX: usize = 4096;
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

    /// The buffers of `count` elements of `struct iovec`; `filled`: only this many bytes of them hold something.
    pub fn vector(&self, address: u64, count: u64, filled: Option<u64>) -> Option<Value> {
        let mut data = Vec::new();
        let len = self.buffers(address, count, filled, &mut data)?;
        Some(Value::Bytes {
            len,
            data: data.into(),
        })
    }

    /// Appends what buffers hold to `data`, up to the limit. How many bytes they hold.
    fn buffers(
        &self,
        address: u64,
        count: u64,
        filled: Option<u64>,
        data: &mut Vec<u8>,
    ) -> Option<u64> {
        if count > VECTOR_MAX {
            return None;
        }
        let mut total = 0_u64;
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
        Some(total)
    }

    /// The buffers of a `struct msghdr`, and the descriptors that it passes.
    pub fn message(&self, address: u64, filled: Option<u64>) -> Option<Value> {
        let mut message = Message::default();
        self.add_message(address, filled, &mut message)?;
        Some(message.into())
    }

    /// The same of `count` elements of `struct mmsghdr`. `filled`: the kernel has filled them, and says how far.
    pub fn messages(&self, address: u64, count: u64, filled: bool) -> Option<Value> {
        if count > VECTOR_MAX {
            return None;
        }
        let mut message = Message::default();
        for index in 0..count {
            let at = address.checked_add(index * MMSGHDR)?;
            let len = match filled {
                true => Some(self.number_32(at.checked_add(MSGHDR as u64)?)?.into()),
                false => None,
            };
            self.add_message(at, len, &mut message)?;
        }
        Some(message.into())
    }

    fn add_message(&self, address: u64, filled: Option<u64>, all: &mut Message) -> Option<()> {
        let header: [u8; MSGHDR] = self.exact(address)?;
        let (vector, count) = (field(&header, 16)?, field(&header, 24)?);
        if count > 0 {
            let len = self.buffers(vector, count, filled, &mut all.data)?;
            all.len = all.len.saturating_add(len);
        }
        let (control, len) = (field(&header, 32)?, field(&header, 40)?);
        if control != 0 {
            let len = usize::try_from(len).unwrap_or(CONTROL_MAX).min(CONTROL_MAX);
            // What cannot be read passes nothing: the call fails.
            let control = self.copy(control, len).unwrap_or_default();
            all.add_descriptors(&control);
        }
        Some(())
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

/// Messages, put together.
#[derive(Default)]
struct Message {
    len: u64,
    data: Vec<u8>,
    descriptors: Vec<i32>,
}

impl Message {
    /// Adds the descriptors in control messages. Each message is a `struct cmsghdr` (length with the header, level, type) and its data, and
    /// begins at a multiple of 8 bytes.
    fn add_descriptors(&mut self, mut control: &[u8]) {
        while let Some(header) = control.first_chunk::<CMSGHDR>() {
            let [len, kind] = [0, 8].map(|at| field(header, at).unwrap_or(0));
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let Some(data) = control.get(CMSGHDR..len) else {
                return;
            };
            let (level, kind) = (kind as i32, (kind >> 32) as i32);
            if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let numbers = data.chunks_exact(4).filter_map(|one| one.first_chunk());
                let numbers = numbers.map(|one| i32::from_le_bytes(*one));
                self.descriptors.extend(numbers);
            }
            control = control.get(len.next_multiple_of(8)..).unwrap_or_default();
        }
    }
}

impl From<Message> for Value {
    fn from(message: Message) -> Self {
        Self::Message {
            len: message.len,
            data: message.data.into(),
            descriptors: message.descriptors.into(),
        }
    }
}

fn field(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}
