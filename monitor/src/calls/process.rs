//! Calls about the process itself that change how its later calls are judged, and odds and ends.

use goanna_vfs::{Errno, Result};

use crate::call::{Answer, Call, Target};

/// umask(2)
pub fn umask(call: &mut Call<'_>) -> Result<Answer> {
    credentials(call)
}

/// setuid(2) and all others that change ids, capabilities or namespaces.
pub fn credentials(call: &mut Call<'_>) -> Result<Answer> {
    call.monitor.tasks.about_to_change(&call.task);
    Ok(Answer::PassOn)
}

/// inotify_add_watch(2): nothing tells the kernel of changes in a mount; ENOSPC makes programs poll.
pub fn inotify_add_watch(call: &mut Call<'_>) -> Result<Answer> {
    let follow = call.uint(2) & libc::IN_DONT_FOLLOW == 0;
    match call.object(libc::AT_FDCWD, &call.path(1)?, follow)? {
        Target::PassOn => Ok(Answer::PassOn),
        Target::At(_) => Err(Errno::ENOSPC),
    }
}

/// name_to_handle_at(2): back ends have no persistent handles.
pub fn name_to_handle_at(call: &mut Call<'_>) -> Result<Answer> {
    let flags = call.int(4);
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
        Target::At(_) => Err(Errno::EOPNOTSUPP),
    }
}
