//! mount(2), move_mount(2) and umount2(2), where they concern a mount of the run.
//!
//! The kernel does not see the mounts of a run. It would mount on the host's directory of the same name, which the program does not
//! see, or on the backing object of its working directory, which other programs use.

use goanna_vfs::{Errno, Result, caps};

use crate::call::{Answer, Call, Target};

/// Passes the call on where `target` is on the host. Otherwise EPERM without `CAP_SYS_ADMIN`, and `refusal` with it.
fn on_host(call: &Call<'_>, target: &Target, refusal: Errno) -> Result<Answer> {
    match target {
        Target::PassOn => Ok(Answer::PassOn),
        Target::At(_) if call.caller()?.capable(caps::SYS_ADMIN) => Err(refusal.into()),
        Target::At(_) => Err(Errno::EPERM.into()),
    }
}

/// mount(2): source, target, type, flags, data. EOPNOTSUPP onto a directory in a mount, and where one would be moved or bound.
pub fn mount(call: &mut Call<'_>) -> Result<Answer> {
    let target = call.object(libc::AT_FDCWD, &call.path(1)?, true)?;
    let answer = on_host(call, &target, Errno::EOPNOTSUPP)?;
    if call.arg(0) != 0 && call.arg(3) & (libc::MS_BIND | libc::MS_MOVE) != 0 {
        let source = call.object(libc::AT_FDCWD, &call.path(0)?, true)?;
        return on_host(call, &source, Errno::EOPNOTSUPP);
    }
    Ok(answer)
}

/// move_mount(2): dirfd and path of the source, dirfd and path of the target, flags. EOPNOTSUPP as [`mount()`].
pub fn move_mount(call: &mut Call<'_>) -> Result<Answer> {
    const FOLLOW: u64 = 0x10;
    const EMPTY_PATH: u64 = 0x40;
    let mut flags = 0;
    if call.arg(4) & FOLLOW == 0 {
        flags |= libc::AT_SYMLINK_NOFOLLOW;
    }
    if call.arg(4) & EMPTY_PATH != 0 {
        flags |= libc::AT_EMPTY_PATH;
    }
    let target = call.object_at(call.int(2), &call.path(3)?, flags)?;
    on_host(call, &target, Errno::EOPNOTSUPP)
}

/// umount2(2): target, flags. EBUSY for a mount of the run, which its other processes use; EINVAL if `target` is not a mount point.
pub fn umount2(call: &mut Call<'_>) -> Result<Answer> {
    const NOFOLLOW: i32 = libc::UMOUNT_NOFOLLOW;
    let known = libc::MNT_FORCE | libc::MNT_DETACH | libc::MNT_EXPIRE | NOFOLLOW;
    if call.int(1) & !known != 0 {
        return Err(Errno::EINVAL.into());
    }
    let target = call.object(libc::AT_FDCWD, &call.path(0)?, call.int(1) & NOFOLLOW == 0)?;
    let is_mount_point = match &target {
        Target::At(place) => place.node.ino() == place.mount.fs.root().ino(),
        Target::PassOn => false,
    };
    let refusal = if is_mount_point {
        Errno::EBUSY
    } else {
        Errno::EINVAL
    };
    on_host(call, &target, refusal)
}
