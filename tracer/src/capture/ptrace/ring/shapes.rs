//! Which calls the recorder records, and what it looks at for each.

use goanna_sys::recorder::{SHAPES, shape};
use goanna_syscalls::structures::{STAT, STATX};
use goanna_syscalls::{Extent, Kind, LastLink, Operation, SIGNATURES, Signature};

use crate::capture::Wanted;

/// The shape of each call that `wanted` asks for, by number; 0 for calls that must stop.
pub fn shapes(wanted: &Wanted) -> [u16; SHAPES] {
    let mut shapes = [0; SHAPES];
    let details = wanted.details();
    let files = match details.paths || details.files {
        true => shape::FILES,
        false => 0,
    };
    let has_data = wanted.limits().data > 0;
    let signatures = SIGNATURES
        .iter()
        .filter(|one| wanted.calls().contains(one.nr));
    for signature in signatures {
        if let Some(own) = of_signature(signature, has_data)
            && let Some(place) = shapes.get_mut(signature.nr as usize)
        {
            *place = own | files | shape::RECORDED;
        }
    }
    shapes
}

/// Whether the operation neither waits for other programs nor changes what the tracer follows, and makes no name but by an open.
fn is_simple(operation: Operation) -> bool {
    use Operation::*;
    matches!(
        operation,
        Open | Close
            | Read
            | Write
            | Seek
            | Truncate
            | Allocate
            | Sync
            | Stat
            | Access
            | Readdir
            | Readlink
            | Unlink
            | Rmdir
            | Chmod
            | Chown
            | Advise
            | Map
            | Unmap
            | Protect
            | Memory
    )
}

fn of_signature(signature: &Signature, has_data: bool) -> Option<u16> {
    let mut shape = 0;
    // Where an argument may be that the call fills: behind the path or the descriptor.
    let mut output = 1;
    if !is_simple(signature.operation) {
        return None;
    }
    for (index, param) in signature.params.iter().enumerate() {
        shape |= match param.kind {
            Kind::Signed
            | Kind::Unsigned
            | Kind::Address
            | Kind::Flags(_)
            | Kind::Choice(_)
            | Kind::Mode
            | Kind::Offset
            | Kind::Size
            | Kind::Count
            | Kind::Uid
            | Kind::Gid => 0,
            Kind::Descriptor if index == 0 && signature.operation == Operation::Close => {
                shape::DESCRIPTOR | shape::CLOSES
            }
            Kind::Descriptor if index == 0 => shape::DESCRIPTOR,
            Kind::Descriptor if index == 4 && shape == 0 => shape::FIFTH_DESCRIPTOR,
            Kind::Directory if index == 0 => {
                output = 2;
                shape::DIRECTORY
            }
            Kind::Path(last) if index + 1 == output => shape::PATH | of_link(last, output)?,
            Kind::OutputStructure(layout) if index == output && std::ptr::eq(layout, &STAT) => {
                shape::STAT
            }
            Kind::OutputStructure(layout) if index == 4 && std::ptr::eq(layout, &STATX) => {
                shape::STATX
            }
            Kind::OutputText(_) if index == output => shape::TEXT,
            Kind::Input(Extent::Argument(_)) | Kind::Output(Extent::Argument(_)) if !has_data => 0,
            _ => return None,
        };
    }
    let is_open = signature.operation == Operation::Open;
    (is_open == (shape & shape::OPENS != 0)).then_some(shape)
}

fn of_link(last: LastLink, next: usize) -> Option<u16> {
    match last {
        LastLink::Followed => Some(0),
        LastLink::Kept => Some(shape::NO_FOLLOW),
        LastLink::FollowedUnlessAt(2) => Some(shape::EARLY_FLAGS),
        LastLink::FollowedUnlessAt(3) => Some(shape::FLAGS),
        LastLink::ByOpenFlags(flags) if usize::from(flags) == next => Some(shape::OPENS),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use goanna_syscalls::by_name;

    use super::*;

    #[test]
    fn the_shape_of_a_call_follows_from_its_signature() {
        use shape::*;
        let of = |name: &str| of_signature(by_name(name).unwrap(), false);
        for (name, expected) in [
            ("openat", PATH | DIRECTORY | OPENS),
            ("open", PATH | OPENS),
            ("close", DESCRIPTOR | CLOSES),
            ("write", DESCRIPTOR),
            ("fstat", DESCRIPTOR | STAT),
            ("lstat", PATH | NO_FOLLOW | STAT),
            ("newfstatat", PATH | DIRECTORY | FLAGS | STAT),
            ("statx", PATH | DIRECTORY | EARLY_FLAGS | STATX),
            ("readlinkat", PATH | DIRECTORY | NO_FOLLOW | TEXT),
            ("access", PATH),
            ("unlinkat", PATH | DIRECTORY | NO_FOLLOW),
            ("mmap", FIFTH_DESCRIPTOR),
            ("brk", 0),
        ] {
            assert_eq!(of(name), Some(expected), "{name}");
        }
        for name in [
            "creat",
            "memfd_create",
            "openat2",
            "rename",
            "mkdir",
            "execve",
            "dup",
            "fchownat",
            "writev",
            "chdir",
            "rt_sigreturn",
            "wait4",
        ] {
            assert_eq!(of(name), None, "{name}");
        }
        let with_data = of_signature(by_name("write").unwrap(), true);
        assert_eq!(with_data, None);
    }
}
