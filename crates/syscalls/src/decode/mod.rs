//! Decodes registers and memory into values: [`decode`] at a call's entry, [`DecodedCall::complete`] once it has returned,
//! [`DecodedCall::name`] for the files that arguments name, [`DecodedCall::complete_copy`] for what it has copied. What a program's memory holds is read by `reader.rs`.

mod copied;
mod names;
mod reader;

use crate::signature::{Extent, Kind, Param};
use crate::structures::{FILE_CLONE_RANGE, FLOCK};
use crate::symbols::files::{DESCRIPTOR_FLAGS, OPEN_FLAGS};
use crate::{DecodedCall, Operation, Returns, Value, signature};
pub use copied::OpenFiles;
pub use names::Names;
use reader::Reader;

/// A program's memory.
pub trait Memory {
    /// Copies bytes from `address` on into `into`, up to the first that cannot be read. Returns how many it has copied.
    fn read(&self, address: u64, into: &mut [u8]) -> usize;
}

/// How much of a call's memory is copied at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a path or another string.
    pub text: usize,
    /// Strings of `argv`.
    pub texts: usize,
    /// Bytes of an array of structures: of poll(2), of epoll_wait(2).
    pub array: usize,
    /// Bytes of data that is read, written, sent or received, and of extended attributes.
    pub data: usize,
}

impl Default for Limits {
    /// Everything but data.
    fn default() -> Self {
        Self {
            text: libc::PATH_MAX as usize,
            texts: 1024,
            array: 4096,
            data: 0,
        }
    }
}

/// Decodes a call at its entry. A value that is known only after the return is [`Value::Unread`] until [`DecodedCall::complete`].
pub fn decode(nr: u32, raw: [u64; 6], memory: &dyn Memory, limits: &Limits) -> DecodedCall {
    let mut call = DecodedCall {
        signature: signature(nr),
        nr,
        raw,
        args: Vec::new(),
    };
    let Some(signature) = call.signature else {
        return call;
    };
    let reader = Reader { memory, limits };
    call.args.reserve_exact(signature.params.len());
    for (index, param) in signature.params.iter().enumerate() {
        let value = if call.looks_at(index) {
            call.at_entry(param, index, call.register(index), &reader)
        } else {
            Value::Absent
        };
        call.args.push(value);
    }
    call
}

impl DecodedCall {
    /// Adds what the kernel has handed to the program. `result` is the result register; a call that failed has handed over nothing.
    pub fn complete(&mut self, result: i64, memory: &dyn Memory, limits: &Limits) {
        let Some(signature) = self.signature else {
            return;
        };
        if (-4095..0).contains(&result) {
            return;
        }
        let reader = Reader { memory, limits };
        for (index, param) in signature.params.iter().enumerate() {
            if !param.kind.is_output() || self.register(index) == 0 {
                continue;
            }
            let value = self.at_return(
                &param.kind,
                self.register(index),
                result.unsigned_abs(),
                &reader,
            );
            if let (Some(value), Some(arg)) = (value, self.args.get_mut(index)) {
                *arg = value;
            }
        }
    }

    /// What argument `index` of this call is: as the signature says, or, for the third of fcntl(2) and ioctl(2) and the second of prctl(2), as
    /// the one before it says.
    pub fn kind_of(&self, index: usize) -> Option<Kind> {
        let kind = self.signature?.params.get(index)?.kind;
        let command = self.register(1) as u32;
        Some(match kind {
            Kind::FcntlArgument => kind_of_fcntl(command as i32),
            Kind::IoctlArgument => kind_of_ioctl(command.into()),
            Kind::PrctlArgument if self.register(0) as i32 == libc::PR_SET_NAME => Kind::Text,
            kind => kind,
        })
    }

    /// Whether the call looks at argument `index`.
    fn looks_at(&self, index: usize) -> bool {
        let kind = self
            .signature
            .and_then(|one| one.params.get(index))
            .map(|param| param.kind);
        match kind {
            Some(Kind::Mode)
                if self
                    .signature
                    .is_some_and(|one| one.operation == Operation::Open) =>
            {
                let creates = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u64;
                self.open_flags().is_some_and(|flags| flags & creates != 0)
            }
            Some(Kind::Copied { .. }) => false,
            Some(Kind::FcntlArgument) => !matches!(
                self.register(1) as i32,
                libc::F_GETFD
                    | libc::F_GETFL
                    | libc::F_GETOWN
                    | libc::F_GETLEASE
                    | libc::F_GETPIPE_SZ
                    | libc::F_GET_SEALS
            ),
            _ => true,
        }
    }

    fn register(&self, index: usize) -> u64 {
        self.raw.get(index).copied().unwrap_or(0)
    }

    /// Argument `index` as a number of bytes or things, with the width that it has.
    fn number(&self, index: u8) -> u64 {
        let index = usize::from(index);
        let param = self.signature.and_then(|one| one.params.get(index));
        match param {
            Some(param) if matches!(param.kind, Kind::Signed) => {
                u64::try_from(signed(self.register(index), param.bits)).unwrap_or(0)
            }
            Some(param) => unsigned(self.register(index), param.bits),
            None => 0,
        }
    }

    fn at_entry(&self, param: &Param, index: usize, register: u64, reader: &Reader<'_>) -> Value {
        let kind = self.kind_of(index).unwrap_or(param.kind);
        match kind {
            Kind::Signed | Kind::Offset | Kind::Pid | Kind::Signal => {
                Value::Signed(signed(register, param.bits))
            }
            Kind::Unsigned
            | Kind::Flags(_)
            | Kind::Choice(_)
            | Kind::Mode
            | Kind::Device
            | Kind::Size
            | Kind::Count
            | Kind::Uid
            | Kind::Gid
            | Kind::FcntlArgument
            | Kind::PrctlArgument
            | Kind::IoctlArgument => Value::Unsigned(unsigned(register, param.bits)),
            Kind::Descriptor | Kind::Directory => Value::Descriptor {
                number: register as i32,
                file: None,
            },
            _ if register == 0 => Value::Null,
            Kind::Address => Value::Unsigned(register),
            kind => {
                let value = self.pointed(kind, register, reader);
                value.unwrap_or(Value::Unread(register))
            }
        }
    }

    /// What the program hands over at `address`.
    fn pointed(&self, kind: Kind, address: u64, reader: &Reader<'_>) -> Option<Value> {
        match kind {
            Kind::Path(_) => Some(Value::Path {
                given: reader.text(address)?,
                resolved: None,
            }),
            Kind::Text => reader.text(address).map(Value::Text),
            Kind::Texts => reader.texts(address),
            Kind::OffsetPointer => reader.number(address).map(Value::Unsigned),
            Kind::Input(extent) => {
                let len = self.extent(extent, None, reader)?;
                reader.bytes(address, len, bound(extent, reader))
            }
            Kind::InputStructure(layout, size) => {
                let size = size.map_or(u64::MAX, |index| self.number(index));
                let len = size.min(layout.size.into());
                reader.bytes(address, len, layout.size as usize)
            }
            Kind::InputVector(count) => reader.vector(address, self.number(count), None),
            Kind::InputMessage => reader.message(address, None),
            Kind::InputMessages(count) => reader.messages(address, self.number(count), false),
            Kind::InputSocketAddress(len) => reader.socket_address(address, self.number(len)),
            Kind::Times(format, count) => reader.times(address, format, count),
            _ => None,
        }
    }

    /// What the kernel has handed over at `address`.
    fn at_return(
        &self,
        kind: &Kind,
        address: u64,
        result: u64,
        reader: &Reader<'_>,
    ) -> Option<Value> {
        match *kind {
            Kind::Output(extent) => {
                let len = self.extent(extent, Some(result), reader)?;
                reader.bytes(address, len, bound(extent, reader))
            }
            Kind::OutputText(size) => reader.output_text(address, result.min(self.number(size))),
            Kind::OutputStructure(layout) => {
                reader.bytes(address, layout.size.into(), layout.size as usize)
            }
            Kind::OutputVector(count) => reader.vector(address, self.number(count), Some(result)),
            Kind::OutputMessage => reader.message(address, Some(result)),
            Kind::OutputMessages(count) => {
                reader.messages(address, result.min(self.number(count)), true)
            }
            Kind::OutputSocketAddress(len) => {
                let len = reader.number_32(self.register(usize::from(len)))?;
                reader.socket_address(address, len.into())
            }
            Kind::OutputTime(format) => reader.times(address, format, 1),
            Kind::DescriptorPair => reader.pair(address),
            _ => None,
        }
    }

    /// How many bytes an argument has; of output, once the call has returned `result`.
    fn extent(&self, extent: Extent, result: Option<u64>, reader: &Reader<'_>) -> Option<u64> {
        let is_size = self.signature?.returns == Returns::Size;
        match extent {
            Extent::Argument(index) => {
                let most = self.number(index);
                Some(
                    result
                        .filter(|_| is_size)
                        .map_or(most, |size| size.min(most)),
                )
            }
            Extent::Pointed(index) => {
                let len = reader.number_32(self.register(usize::from(index)))?;
                Some(len.into())
            }
            Extent::Bytes(len) => Some(len.into()),
            Extent::Items { count, size } => self.number(count).checked_mul(size.into()),
            Extent::ResultItems(size) => result?.checked_mul(size.into()),
        }
    }
}

/// How many bytes of an argument are copied at most.
fn bound(extent: Extent, reader: &Reader<'_>) -> usize {
    match extent {
        Extent::Argument(_) => reader.limits.data,
        _ => reader.limits.array,
    }
}

fn kind_of_fcntl(command: i32) -> Kind {
    match command {
        libc::F_SETFD => Kind::Flags(&DESCRIPTOR_FLAGS),
        libc::F_SETFL => Kind::Flags(&OPEN_FLAGS),
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => Kind::Signed,
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => Kind::InputStructure(&FLOCK, None),
        _ => Kind::FcntlArgument,
    }
}

fn kind_of_ioctl(request: u64) -> Kind {
    match request {
        libc::FICLONE => Kind::Descriptor,
        libc::FICLONERANGE => Kind::InputStructure(&FILE_CLONE_RANGE, None),
        _ => Kind::IoctlArgument,
    }
}

fn unsigned(register: u64, bits: u8) -> u64 {
    match bits {
        16 => (register as u16).into(),
        32 => (register as u32).into(),
        _ => register,
    }
}

fn signed(register: u64, bits: u8) -> i64 {
    match bits {
        32 => (register as i32).into(),
        _ => register as i64,
    }
}
