//! Calls that change the credentials or the umask of the process, and a few calls that belong to no other family.

use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, Result, caps, ops};

use crate::call::{Answer, Call, Resolved, Target};
use crate::calls::mounting;
use crate::inprocess::mount_points::shares_mounts;
use crate::process::task::Task;

/// umask(2)
pub fn umask(call: &mut Call<'_>) -> Result<Answer> {
    call.monitor.tasks.about_to_change(&call.task);
    Ok(Answer::PassOn)
}

/// setuid(2) and all others that change ids, capabilities or namespaces.
pub fn credentials(call: &mut Call<'_>) -> Result<Answer> {
    call.monitor.tasks.about_to_change_credentials(&call.task);
    if matches!(i64::from(call.nr), libc::SYS_unshare | libc::SYS_setns) {
        call.monitor.in_process.leaves_namespaces(call.task.tid);
    }
    // The namespaces of mounts and of users come with CLONE_FS.
    const SEPARATES: i32 = libc::CLONE_FS | libc::CLONE_NEWNS | libc::CLONE_NEWUSER;
    if i64::from(call.nr) == libc::SYS_unshare
        && call.int(0) & SEPARATES != 0
        && call.monitor.tasks.sharing_fs(&call.task).len() > 1
    {
        call.monitor.roots.separate(call.task.tid);
    }
    if i64::from(call.nr) == libc::SYS_unshare && call.int(0) & libc::CLONE_NEWNS != 0 {
        call.monitor.roots.leaves(call.task.tid, &[]);
    }
    // A mount namespace comes with its root directory. Type 0 is any.
    let types = call.int(1);
    if i64::from(call.nr) == libc::SYS_setns && (types == 0 || types & libc::CLONE_NEWNS != 0) {
        root_changes_in_kernel(call, &call.task);
        if call.monitor.namespaces.have_binds() {
            // The kernel would answer its calls from backing objects.
            call.monitor.in_process.exclude(call.task.tid);
        }
    }
    Ok(Answer::PassOn)
}

/// landlock_create_ruleset(2), landlock_add_rule(2), landlock_restrict_self(2): EOPNOTSUPP in runs with mounts, as where Landlock is disabled. The kernel
/// would not apply a program's rules to what the monitor does for it, and the program would rely on them.
pub fn landlock(call: &mut Call<'_>) -> Result<Answer> {
    match call.mounts.iter().next() {
        None => Ok(Answer::PassOn),
        Some(_) => Err(Errno::EOPNOTSUPP.into()),
    }
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

fn root_changes_in_kernel(call: &Call<'_>, task: &Task) {
    let threads = call.monitor.tasks.sharing_fs(task);
    call.monitor.roots.leaves(task.tid, &threads);
    for thread in threads {
        call.monitor.in_process.leaves_namespaces(thread);
    }
}

/// Whether the caller's root directory may be another one in the kernel, too: in a mount namespace of its own.
fn may_change_in_kernel(call: &Call<'_>) -> bool {
    let tid = call.task.tid;
    !shares_mounts(tid)
        && call.monitor.roots.kept(tid).is_none()
        && call.monitor.outside.allows_all()
}

/// pivot_root(2): the kernel does it in a mount namespace of the caller's own. EPERM in that of the run, EINVAL where a directory is in a mount of the run.
pub fn pivot_root(call: &mut Call<'_>) -> Result<Answer> {
    if !may_change_in_kernel(call) {
        return Err(Errno::EPERM.into());
    }
    let answer = mounting::pivot(call)?;
    call.monitor.tasks.about_to_change(&call.task);
    // It changes the root and working directories of all processes of the mount namespace. In another one than that, nothing changes.
    for tid in call.monitor.alive.all() {
        if !shares_mounts(tid)
            && let Ok(task) = call.monitor.tasks.get(tid)
        {
            root_changes_in_kernel(call, &task);
        }
    }
    Ok(answer)
}

/// chroot(2): absolute paths of the process start at the directory from now on. The kernel's root directory of the process stays, unless the process is in a mount
/// namespace of its own, where the monitor cannot reach the directory by its path.
pub fn chroot(call: &mut Call<'_>) -> Result<Answer> {
    let Resolved { at, native } = call.resolve(libc::AT_FDCWD, &call.path(0)?, true)?;
    if native && matches!(at, Pos::Host(_)) && may_change_in_kernel(call) {
        root_changes_in_kernel(call, &call.task);
        return Ok(Answer::PassOn);
    }
    let (caller, place) = (call.caller()?, call.place(at.clone())?);
    if !place.node.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    ops::access(&caller, &place, libc::X_OK)?;
    if !caller.has(caps::SYS_CHROOT) {
        return Err(Errno::EPERM.into());
    }
    let tid = call.task.tid;
    let is_root = matches!(&at, Pos::Host(path) if path.is_empty());
    let threads = call.monitor.tasks.sharing_fs(&call.task);
    if !is_root {
        for thread in &threads {
            // The kernel would answer its calls from its own root directory.
            call.monitor.in_process.exclude(*thread);
        }
    }
    let root = (!is_root).then_some(at);
    call.monitor.roots.change(tid, &threads, root);
    Ok(Answer::DONE)
}
