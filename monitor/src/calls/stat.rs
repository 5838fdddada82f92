//! Metadata of files: stat(2), statx(2), access(2), statfs(2) and their variants.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use goanna_vfs::{
    Attr, Errno, FileKind, Mount, MountParent, Mounts, Node, Place, Result, ops, walk,
};

use crate::abi::{self, STATX_BEHIND_MOUNT_ID, STATX_DIOALIGN, STATX_MNT_ID_UNIQUE, StatxMore};
use crate::call::{Answer, Call, Resolved, Target};

fn attr(call: &Call<'_>, place: &Place) -> Result<Attr> {
    let attr = place.mount.fs.getattr(&*call.caller()?, &place.node)?;
    shown(call, &place.mount, attr)
}

/// What the caller sees of metadata in `mount`.
fn shown(call: &Call<'_>, mount: &Arc<Mount>, attr: Attr) -> Result<Attr> {
    let dev = device(call, mount, attr.dev)?;
    Ok(call.caller()?.shown(Attr { dev, ..attr }))
}

/// The device number of the file system of `mount`, for the number `dev` of its back end.
fn device(call: &Call<'_>, mount: &Arc<Mount>, dev: u64) -> Result<u64> {
    let mounts = &call.mounts;
    if !mount.is_synthetic() {
        return Ok(mounts.device(mount, dev));
    }
    match mounts.parent_of(mount) {
        MountParent::Host(dir) => Ok(nix::sys::stat::stat(host_dir(&dir))?.st_dev),
        MountParent::Mount(mount) => {
            let root = mount.fs.getattr(&*call.caller()?, &mount.fs.root())?;
            Ok(mounts.device(mount, root.dev))
        }
    }
}

fn host_dir(path: &[u8]) -> &OsStr {
    OsStr::from_bytes(if path.is_empty() { b"/" } else { path })
}

/// What a call that reports metadata has found.
struct Seen {
    mount: Arc<Mount>,
    /// The object. `None` for one that was not looked up, which is not the root of its mount.
    node: Option<Node>,
    attr: Attr,
}

/// What `path` names from `dirfd`. `None` if the kernel can do the call. `with_node`: it must be looked up.
fn seen(
    call: &Call<'_>,
    (dirfd, path, flags): (i32, &[u8], i32),
    with_node: bool,
) -> Result<Option<Seen>> {
    let target = if path.is_empty() || with_node {
        call.object_at(dirfd, path, flags)?
    } else {
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        let Resolved { at, native } = call.resolve_attributes(dirfd, path, follow)?;
        match at {
            walk::Seen::Attributes(mount, attr) => {
                let attr = shown(call, &mount, attr)?;
                let node = None;
                return Ok(Some(Seen { mount, node, attr }));
            }
            walk::Seen::Object(at) => call.target(Resolved { at, native })?,
        }
    };
    Ok(match target {
        Target::At(place) => Some(Seen {
            attr: attr(call, &place)?,
            mount: place.mount,
            node: Some(place.node),
        }),
        Target::PassOn => None,
    })
}

fn put_stat(call: &Call<'_>, named: (i32, &[u8], i32), buffer: usize) -> Result<Answer> {
    let Some(seen) = seen(call, named, false)? else {
        return Ok(Answer::PassOn);
    };
    call.put(call.arg(buffer), &seen.attr.to_stat())?;
    Ok(Answer::DONE)
}

/// Runs `answer`, and publishes its result for `path` from `dirfd` in the process's map of attributes.
fn sharing(
    call: &Call<'_>,
    dirfd: i32,
    path: &[u8],
    answer: impl FnOnce(&Call<'_>) -> Result<Answer>,
) -> Result<Answer> {
    let answer = answer(call);
    let is_known = match &answer {
        Ok(answer) => !matches!(answer, Answer::PassOn),
        Err(error) => *error == Errno::ENOENT,
    };
    if is_known {
        let exists = answer.is_ok();
        call.monitor.in_process.share(call, (dirfd, path), exists);
    }
    answer
}

/// As [`sharing`], for access(2) with `mode`: what concerns writing and executing is not answered in the process.
fn sharing_access(
    call: &Call<'_>,
    (dirfd, path, mode): (i32, &[u8], i32),
    answer: impl FnOnce(&Call<'_>) -> Result<Answer>,
) -> Result<Answer> {
    if mode & !libc::R_OK == 0 {
        sharing(call, dirfd, path, answer)
    } else {
        answer(call)
    }
}

/// stat(2)
pub fn stat(call: &mut Call<'_>) -> Result<Answer> {
    put_stat(call, (libc::AT_FDCWD, &call.path(0)?, 0), 1)
}

/// lstat(2)
pub fn lstat(call: &mut Call<'_>) -> Result<Answer> {
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    put_stat(call, (libc::AT_FDCWD, &call.path(0)?, flags), 1)
}

/// fstat(2)
pub fn fstat(call: &mut Call<'_>) -> Result<Answer> {
    sharing(call, call.int(0), b"", |call| {
        put_stat(call, (call.int(0), b"", libc::AT_EMPTY_PATH), 1)
    })
}

/// The path at argument `index`, where Linux 6.11 and later take NULL for "" under AT_EMPTY_PATH.
pub(super) fn path_or_null(call: &Call<'_>, index: usize, flags: i32) -> Result<Vec<u8>> {
    if call.arg(index) == 0 && flags & libc::AT_EMPTY_PATH != 0 {
        return Ok(Vec::new());
    }
    Ok(call.path(index)?)
}

/// newfstatat(2)
pub fn newfstatat(call: &mut Call<'_>) -> Result<Answer> {
    let flags = call.int(3);
    let known = libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    if flags & !known != 0 {
        return Err(Errno::EINVAL.into());
    }
    let path = path_or_null(call, 1, flags)?;
    sharing(call, call.int(0), &path, |call| {
        put_stat(call, (call.int(0), &path, flags), 2)
    })
}

/// statx(2)
pub fn statx(call: &mut Call<'_>) -> Result<Answer> {
    let flags = call.int(2);
    let known = libc::AT_EMPTY_PATH
        | libc::AT_SYMLINK_NOFOLLOW
        | libc::AT_NO_AUTOMOUNT
        | libc::AT_STATX_SYNC_TYPE;
    let mask = call.uint(3);
    let contradicts = flags & libc::AT_STATX_SYNC_TYPE == libc::AT_STATX_SYNC_TYPE;
    if flags & !known != 0 || contradicts || mask & libc::STATX__RESERVED as u32 != 0 {
        return Err(Errno::EINVAL.into());
    }
    let path = path_or_null(call, 1, flags)?;
    sharing(call, call.int(0), &path, |call| {
        let with_node = mask & (STATX_BEHIND_MOUNT_ID | STATX_MNT_ID_UNIQUE) != 0;
        let Some(seen) = seen(call, (call.int(0), &path, flags), with_node)? else {
            return Ok(Answer::PassOn);
        };
        let bytes = abi::statx(&seen.attr, mask, &more(call, &seen, mask));
        call.put(call.arg(4), &bytes)?;
        Ok(Answer::DONE)
    })
}

/// The alignment that is reported for reads and writes under O_DIRECT. Those on a cache object need none, but programs allocate
/// their buffers by it.
const SECTOR: u32 = 512;

/// The fields that statx(2) with `mask` reports besides attributes.
fn more(call: &Call<'_>, seen: &Seen, mask: u32) -> StatxMore {
    let (mounts, mount) = (&call.mounts, &seen.mount);
    let of_host = |path: Vec<u8>| goanna_sys::stat::statx(&CString::new(path).ok()?, mask).ok();
    let own_id = |mount| match mask & STATX_MNT_ID_UNIQUE {
        0 => (libc::STATX_MNT_ID, mounts.id(mount)),
        bit => (bit, mounts.unique_id(mount)),
    };
    let node = seen.node.as_ref();
    let inside = seen.attr.of_statx.and_then(|of| of.mount_inside);
    let inside = inside.filter(|_| mount.fs.host_dir(&mount.fs.root()).is_some());
    // The host is asked only for fields that the program asks for.
    let has_host_id = mount.is_host() || mount.is_hosted();
    let asks_unique = inside.is_some() && mask & STATX_MNT_ID_UNIQUE != 0;
    let host = (has_host_id || asks_unique || mask & STATX_BEHIND_MOUNT_ID != 0)
        .then_some(node)
        .flatten()
        .and_then(|node| mount.fs.host_path(node))
        .and_then(|path| of_host(path.into_os_string().into_vec()));
    let mount_id = if has_host_id {
        host.as_ref().and_then(abi::mount_id)
    } else if let Some(id) = inside {
        Some(match host.as_ref().and_then(abi::mount_id) {
            Some((STATX_MNT_ID_UNIQUE, id)) => (STATX_MNT_ID_UNIQUE, Mounts::unique_id_inside(id)),
            _ => (libc::STATX_MNT_ID, Mounts::id_inside(id)),
        })
    } else if mount.is_synthetic() {
        match mounts.parent_of(mount) {
            MountParent::Mount(outer) => Some(own_id(outer)),
            MountParent::Host(dir) => {
                let around = of_host(host_dir(&dir).as_bytes().to_vec());
                around.as_ref().and_then(abi::mount_id)
            }
        }
    } else {
        Some(own_id(mount))
    };
    let is_regular = FileKind::from_mode(seen.attr.mode) == Some(FileKind::Regular);
    let asks_direct = mask & STATX_DIOALIGN != 0 && host.is_none() && is_regular;
    let is_root = node.is_some_and(|node| node.ino() == mount.fs.root().ino());
    StatxMore {
        is_mount_root: match &host {
            Some(host) if mount.is_hosted() => abi::is_mount_root(host),
            _ => is_root && !mount.is_synthetic(),
        },
        mount_id,
        direct_alignment: asks_direct.then_some(SECTOR),
        host,
    }
}

/// The mode that access(2) checks. EINVAL for unknown bits, before the path is resolved.
fn asked(mode: i32) -> Result<i32> {
    if mode & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 {
        return Err(Errno::EINVAL.into());
    }
    Ok(mode)
}

fn check(call: &Call<'_>, target: Target, mode: i32, effective: bool) -> Result<Answer> {
    let Target::At(place) = target else {
        return Ok(Answer::PassOn);
    };
    let caller = call.caller()?;
    if effective {
        ops::access(&caller, &place, mode)?;
    } else {
        ops::access(&caller.real(), &place, mode)?;
    }
    Ok(Answer::DONE)
}

/// access(2), with the real ids.
pub fn access(call: &mut Call<'_>) -> Result<Answer> {
    let mode = asked(call.int(1))?;
    let path = call.path(0)?;
    sharing_access(call, (libc::AT_FDCWD, &path, mode), |call| {
        let target = call.object(libc::AT_FDCWD, &path, true)?;
        check(call, target, mode, false)
    })
}

/// faccessat(2), which takes no flags.
pub fn faccessat(call: &mut Call<'_>) -> Result<Answer> {
    let mode = asked(call.int(2))?;
    let path = call.path(1)?;
    sharing_access(call, (call.int(0), &path, mode), |call| {
        let target = call.object(call.int(0), &path, true)?;
        check(call, target, mode, false)
    })
}

/// faccessat2(2)
pub fn faccessat2(call: &mut Call<'_>) -> Result<Answer> {
    let flags = call.int(3);
    let known = libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
    if flags & !known != 0 {
        return Err(Errno::EINVAL.into());
    }
    let mode = asked(call.int(2))?;
    let path = call.path(1)?;
    sharing_access(call, (call.int(0), &path, mode), |call| {
        let target = call.object_at(call.int(0), &path, flags)?;
        check(call, target, mode, flags & libc::AT_EACCESS != 0)
    })
}

fn put_statfs(call: &Call<'_>, target: Target) -> Result<Answer> {
    let Target::At(place) = target else {
        return Ok(Answer::PassOn);
    };
    let place = file_system(call, place)?;
    let figures = ops::statfs(&*call.caller()?, &place)?;
    let fsid = match figures.fsid {
        0 => attr(call, &place)?.dev,
        fsid => fsid,
    };
    call.put(call.arg(1), &abi::statfs(&figures, fsid))?;
    Ok(Answer::DONE)
}

/// A place in the file system that statfs(2) describes for `place`: for a synthetic directory, the one that contains it.
fn file_system(call: &Call<'_>, place: Place) -> Result<Place> {
    if !place.mount.is_synthetic() {
        return Ok(place);
    }
    let mounts = &call.mounts;
    match mounts.parent_of(&place.mount) {
        MountParent::Host(dir) => mounts.host_place(&*call.caller()?, &dir),
        MountParent::Mount(mount) => Ok(Place {
            node: mount.fs.root(),
            mount: mount.clone(),
        }),
    }
}

/// statfs(2)
pub fn statfs(call: &mut Call<'_>) -> Result<Answer> {
    let target = call.object(libc::AT_FDCWD, &call.path(0)?, true)?;
    put_statfs(call, target)
}

/// fstatfs(2)
pub fn fstatfs(call: &mut Call<'_>) -> Result<Answer> {
    let target = call.object_at(call.int(0), b"", libc::AT_EMPTY_PATH)?;
    put_statfs(call, target)
}
