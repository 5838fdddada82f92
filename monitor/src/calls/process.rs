//! Calls that change the credentials or the umask of the process, and a few calls that belong to no other family.

use goanna_vfs::{Errno, Result, ops};

use crate::call::{Answer, Call, Target};

/// umask(2)
pub fn umask(call: &mut Call<'_>) -> Result<Answer> {
    call.monitor.tasks.about_to_change(&call.task);
    Ok(Answer::PassOn)
}

/// setuid(2) and all others that change ids, capabilities or namespaces.
pub fn credentials(call: &mut Call<'_>) -> Result<Answer> {
    call.monitor.tasks.about_to_change_credentials(&call.task);
    Ok(Answer::PassOn)
}

/// inotify_add_watch(2): the kernel does not see changes in a mount; ENOSPC makes programs poll.
pub fn inotify_add_watch(call: &mut Call<'_>) -> Result<Answer> {
    let mask = call.uint(2);
    if mask == 0 {
        return Ok(Answer::PassOn);
    }
    let follow = mask & libc::IN_DONT_FOLLOW == 0;
    let target = (|| call.object(libc::AT_FDCWD, &call.path(1)?, follow))();
    if matches!(target, Ok(Target::PassOn)) || !is_inotify(call, call.int(0)) {
        // What is wrong with the descriptor comes before what is wrong with the path.
        return Ok(Answer::PassOn);
    }
    if let Target::At(place) = target? {
        if mask & libc::IN_ONLYDIR != 0 && !place.node.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        ops::access(&*call.caller()?, &place, libc::R_OK)?;
    }
    Err(Errno::ENOSPC.into())
}

fn is_inotify(call: &Call<'_>, fd: i32) -> bool {
    let link = format!("/proc/{}/fd/{fd}", call.task.tid);
    nix::fcntl::readlink(link.as_str()).is_ok_and(|name| name == "anon_inode:inotify")
}

/// name_to_handle_at(2): back ends have no persistent handles.
pub fn name_to_handle_at(call: &mut Call<'_>) -> Result<Answer> {
    // AT_HANDLE_MNT_ID_UNIQUE, AT_HANDLE_CONNECTABLE and AT_HANDLE_FID.
    const OF_HANDLES: i32 = 0x001 | 0x002 | 0x200;
    let flags = call.int(4);
    if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH | OF_HANDLES) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let follow = if flags & libc::AT_SYMLINK_FOLLOW == 0 {
        libc::AT_SYMLINK_NOFOLLOW
    } else {
        0
    };
    match call.object_at(
        call.int(0),
        &call.path(1)?,
        flags & libc::AT_EMPTY_PATH | follow,
    )? {
        Target::PassOn => Ok(Answer::PassOn),
        Target::At(_) => Err(Errno::EOPNOTSUPP.into()),
    }
}
