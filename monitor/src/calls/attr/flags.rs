//! The flags of chattr(1) in their extended form: file_getattr(2), file_setattr(2), and two requests of ioctl(2).

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;

use goanna_sys::file_attr;
use goanna_vfs::{Errno, FileKind, Place, Result, file_flags, ops};

use super::xattr::path_or_descriptor;
use crate::call::{Answer, Call, Target, words};
use crate::process::task::acting_as;
use crate::watches::report::{self, Touch};

/// The longest `struct file_attr` that a program may give.
const PAGE: usize = 4096;

/// Each flag of ioctl_xfs_fsgetxattr(2) that chattr(1) knows, with its value there.
const EXTENDED: [(u32, u32); 4] = [
    (8, file_flags::IMMUTABLE),
    (16, file_flags::APPEND_ONLY),
    (64, file_flags::NO_ATIME),
    (128, file_flags::NO_DUMP),
];
/// The flags that file_setattr(2) accepts: `FS_XFLAGS_MASK` of the kernel.
const KNOWN: u64 = 0x8001_effb;
/// Of these, the flags that Linux ignores: `FS_XFLAG_PREALLOC` and `FS_XFLAG_HASATTR`, which tell how a file is stored.
const ONLY_READ: u32 = 0x8000_0002;

/// The attributes that a program sets.
#[derive(Clone, Copy)]
pub struct Attributes {
    /// Flags of the extended form.
    pub flags: u32,
    /// The bits of the project and of the hints about the sizes of extents. Back ends keep none of them.
    pub others: u32,
}

fn to_extended(flags: u32) -> u32 {
    let set = EXTENDED.iter().filter(|(_, flag)| flags & flag != 0);
    set.fold(0, |all, (extended, _)| all | extended)
}

/// The flags of `place` in their extended form.
pub fn get(call: &Call<'_>, place: &Place) -> Result<u32> {
    let flags = place.mount.fs.flags(&*call.caller()?, &place.node)?;
    Ok(to_extended(flags))
}

/// Sets the flags of `place`: errors as [`ops::may_set_flags`], then EOPNOTSUPP for attributes that no back end keeps.
pub fn set(call: &Call<'_>, place: &Place, wanted: Attributes) -> Result<Answer> {
    let Attributes { flags, others } = wanted;
    let set = EXTENDED.iter().filter(|(bit, _)| flags & bit != 0);
    let wanted = set.fold(0, |all, (_, flag)| all | flag);
    let caller = call.caller()?;
    ops::may_set_flags(&caller, place, wanted)?;
    if flags != to_extended(wanted) || others != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    // The extended form does not have the other flags of chattr(1). Without the one for extents, ext4 stores a file in another way.
    let named = EXTENDED.iter().fold(0, |all, (_, flag)| all | flag);
    let kept = place.mount.fs.flags(&caller, &place.node)? & !named;
    ops::set_flags(&caller, place, wanted | kept)?;
    report::touched(call, place, Touch::Attrib);
    Ok(Answer::DONE)
}

/// The size of the program's `struct file_attr`. EINVAL where it is smaller than the first version, E2BIG beyond a page.
fn size(call: &Call<'_>) -> Result<usize> {
    match call.arg(3) as usize {
        size if size > PAGE => Err(Errno::E2BIG.into()),
        size if size < file_attr::SIZE => Err(Errno::EINVAL.into()),
        size => Ok(size),
    }
}

/// The host's file that a pass-through mount shows at `place`. The host answers for it: it may keep attributes that `fs.flags` does
/// not have.
fn host_file(place: &Place) -> Option<CString> {
    let path = place.mount.fs.host_path(&place.node)?;
    CString::new(path.into_os_string().into_vec()).ok()
}

/// EOPNOTSUPP for kinds of files without flags: ext4 has flags for regular files and directories only.
fn has_flags(place: &Place) -> Result<()> {
    match place.node.kind() {
        FileKind::Regular | FileKind::Directory => Ok(()),
        _ => Err(Errno::EOPNOTSUPP.into()),
    }
}

/// file_getattr(2): dirfd, path, attributes, their size, flags.
pub fn file_getattr(call: &mut Call<'_>) -> Result<Answer> {
    let flags = super::xattr::at_flags(call, 4)?;
    let size = size(call)?;
    let Target::At(place) = path_or_descriptor(call, flags)? else {
        return Ok(Answer::PassOn);
    };
    let mut attributes = [0; file_attr::SIZE];
    if let Some(path) = host_file(&place) {
        attributes = acting_as(&*call.caller()?, None, || file_attr::get(&path))?;
    } else {
        has_flags(&place)?;
        if let Some(field) = attributes.first_chunk_mut() {
            *field = u64::from(get(call, &place)?).to_ne_bytes();
        }
    }
    // Fields of later versions are zero.
    let mut bytes = attributes.to_vec();
    bytes.resize(size, 0);
    call.put(call.arg(2), &bytes)?;
    Ok(Answer::DONE)
}

/// file_setattr(2): the arguments of [`file_getattr`].
pub fn file_setattr(call: &mut Call<'_>) -> Result<Answer> {
    let at_flags = super::xattr::at_flags(call, 4)?;
    let attributes: [u8; file_attr::SIZE] = call.read_structure(call.arg(2), call.arg(3))?;
    let [flags, _, project] = words(&attributes);
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    let Target::At(place) = path_or_descriptor(call, at_flags)? else {
        return Ok(Answer::PassOn);
    };
    if let Some(path) = host_file(&place) {
        ops::may_set_flags(&*call.caller()?, &place, 0)?;
        acting_as(&*call.caller()?, None, || {
            file_attr::set(&path, &attributes)
        })?;
        report::touched(call, &place, Touch::Attrib);
        return Ok(Answer::DONE);
    }
    has_flags(&place)?;
    let wanted = Attributes {
        flags: flags as u32 & !ONLY_READ,
        others: project as u32,
    };
    set(call, &place, wanted)
}
