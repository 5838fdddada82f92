//! Parameters of one kind each, with the width that the kernel gives them.

use crate::signature::{Extent, Kind, LastLink, Param, Place, Structure, TimeFormat};
use crate::symbols::Symbols;

const fn param(name: &'static str, kind: Kind, bits: u8) -> Param {
    Param { name, kind, bits }
}

macro_rules! plain {
    ($($function:ident $kind:ident $bits:literal)*) => {
        $(pub(super) const fn $function(name: &'static str) -> Param {
            param(name, Kind::$kind, $bits)
        })*
    };
}

plain! {
    int Signed 32
    uint Unsigned 32
    long Signed 64
    ulong Unsigned 64
    addr Address 64
    fd Descriptor 32
    dir Directory 32
    text Text 64
    texts Texts 64
    mode Mode 16
    mode_int Mode 32
    device Device 32
    offset Offset 64
    offset_pointer OffsetPointer 64
    size Size 64
    size_int Size 32
    count Count 64
    count_int Count 32
    uid Uid 32
    gid Gid 32
    pid Pid 32
    pid_long Pid 64
    signal Signal 32
    input_message InputMessage 64
    output_message OutputMessage 64
    pair DescriptorPair 64
    fcntl_argument FcntlArgument 64
    prctl_argument PrctlArgument 64
    ioctl_argument IoctlArgument 64
}

/// The bytes that a call copies, which is no argument of it: descriptor and offset of the source, and of the target.
pub(super) const fn copied(
    name: &'static str,
    source: (u8, Option<u8>),
    target: (u8, Option<u8>),
) -> Param {
    let (source, target) = (place(source), place(target));
    param(name, Kind::Copied { source, target }, 64)
}

const fn place((descriptor, offset): (u8, Option<u8>)) -> Place {
    Place { descriptor, offset }
}

pub(super) const fn path(name: &'static str) -> Param {
    param(name, Kind::Path(LastLink::Followed), 64)
}

/// A path whose last component is not followed.
pub(super) const fn path_kept(name: &'static str) -> Param {
    param(name, Kind::Path(LastLink::Kept), 64)
}

/// A path that is followed unless argument `flags` has `AT_SYMLINK_NOFOLLOW`.
pub(super) const fn path_unless(name: &'static str, flags: u8) -> Param {
    param(name, Kind::Path(LastLink::FollowedUnlessAt(flags)), 64)
}

/// A path that is not followed unless argument `flags` has `AT_SYMLINK_FOLLOW`.
pub(super) const fn path_kept_unless(name: &'static str, flags: u8) -> Param {
    param(name, Kind::Path(LastLink::KeptUnlessAt(flags)), 64)
}

/// A path that is opened with the flags in argument `flags`.
pub(super) const fn path_opened(name: &'static str, flags: u8) -> Param {
    param(name, Kind::Path(LastLink::ByOpenFlags(flags)), 64)
}

/// A path that is opened as argument `how` says.
pub(super) const fn path_opened_how(name: &'static str, how: u8) -> Param {
    param(name, Kind::Path(LastLink::ByOpenHow(how)), 64)
}

pub(super) const fn flags(name: &'static str, symbols: &'static Symbols) -> Param {
    param(name, Kind::Flags(symbols), 32)
}

pub(super) const fn flags_long(name: &'static str, symbols: &'static Symbols) -> Param {
    param(name, Kind::Flags(symbols), 64)
}

pub(super) const fn choice(name: &'static str, symbols: &'static Symbols) -> Param {
    param(name, Kind::Choice(symbols), 32)
}

pub(super) const fn input(name: &'static str, extent: Extent) -> Param {
    param(name, Kind::Input(extent), 64)
}

pub(super) const fn output(name: &'static str, extent: Extent) -> Param {
    param(name, Kind::Output(extent), 64)
}

/// A string of at most as many bytes as argument `size` says.
pub(super) const fn output_text(name: &'static str, size: u8) -> Param {
    param(name, Kind::OutputText(size), 64)
}

/// A structure that the program hands over; its length is argument `size`, if any is.
pub(super) const fn structure(
    name: &'static str,
    layout: &'static Structure,
    size: Option<u8>,
) -> Param {
    param(name, Kind::InputStructure(layout, size), 64)
}

pub(super) const fn output_structure(name: &'static str, layout: &'static Structure) -> Param {
    param(name, Kind::OutputStructure(layout), 64)
}

/// `struct iovec`s, as many as argument `count` says.
pub(super) const fn input_vector(name: &'static str, count: u8) -> Param {
    param(name, Kind::InputVector(count), 64)
}

pub(super) const fn output_vector(name: &'static str, count: u8) -> Param {
    param(name, Kind::OutputVector(count), 64)
}

/// `struct mmsghdr`s, as many as argument `count` says.
pub(super) const fn input_messages(name: &'static str, count: u8) -> Param {
    param(name, Kind::InputMessages(count), 64)
}

pub(super) const fn output_messages(name: &'static str, count: u8) -> Param {
    param(name, Kind::OutputMessages(count), 64)
}

/// A socket address of as many bytes as argument `length` says.
pub(super) const fn input_address(name: &'static str, length: u8) -> Param {
    param(name, Kind::InputSocketAddress(length), 64)
}

/// A socket address of as many bytes as the number says that argument `length` points to.
pub(super) const fn output_address(name: &'static str, length: u8) -> Param {
    param(name, Kind::OutputSocketAddress(length), 64)
}

pub(super) const fn times(name: &'static str, format: TimeFormat, count: u8) -> Param {
    param(name, Kind::Times(format, count), 64)
}

pub(super) const fn output_time(name: &'static str, format: TimeFormat) -> Param {
    param(name, Kind::OutputTime(format), 64)
}
