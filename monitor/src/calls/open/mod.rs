//! open(2), openat(2), openat2(2), creat(2).
//!
//! Lists of mounts are opened in `mount_lists`.

mod mount_lists;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;

use goanna_sys::stub::opens;
use goanna_vfs::walk::{Last, Pos};
use goanna_vfs::{Caller, Errno, FileKind, FsError, Native, Opened, Place, Result, ops};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::lease;
use crate::call::{Answer, Call, Resolved, Work, words};
use crate::errno::errno;
use crate::inprocess::opens::Source;
use crate::process::deliveries::Delivery;
use crate::process::task::acting_as;
use crate::watches::report::{self, Touch};
use mount_lists::ListOfMounts;

/// The arguments of an open, from any of the calls.
struct Request {
    dirfd: i32,
    path: Vec<u8>,
    flags: i32,
    mode: u32,
    resolve: u64,
}

/// open(2)
pub fn open(call: &mut Call<'_>) -> Result<Answer> {
    accept(call.int(1), 0)?;
    let request = Request {
        dirfd: libc::AT_FDCWD,
        path: call.path(0)?,
        flags: call.int(1),
        mode: call.uint(2),
        resolve: 0,
    };
    request.answer(call)
}

/// creat(2)
pub fn creat(call: &mut Call<'_>) -> Result<Answer> {
    let request = Request {
        dirfd: libc::AT_FDCWD,
        path: call.path(0)?,
        flags: libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC,
        mode: call.uint(1),
        resolve: 0,
    };
    request.answer(call)
}

/// openat(2)
pub fn openat(call: &mut Call<'_>) -> Result<Answer> {
    accept(call.int(2), 0)?;
    let request = Request {
        dirfd: call.int(0),
        path: call.path(1)?,
        flags: call.int(2),
        mode: call.uint(3),
        resolve: 0,
    };
    request.answer(call)
}

/// `path`, or what leads to the same as an empty path under AT_EMPTY_PATH.
pub fn nonempty(dirfd: i32, path: &[u8]) -> Vec<u8> {
    match dirfd {
        _ if !path.is_empty() => path.to_vec(),
        libc::AT_FDCWD => b".".to_vec(),
        number => format!("/proc/self/fd/{number}").into_bytes(),
    }
}

/// Opens what `path` leads to from `dirfd` with O_PATH; `at` may have AT_EMPTY_PATH and AT_SYMLINK_NOFOLLOW.
pub fn open_path_only(
    call: &Call<'_>,
    dirfd: i32,
    path: &[u8],
    at: i32,
    cloexec: bool,
) -> Result<Answer> {
    let mut flags = libc::O_PATH;
    if cloexec {
        flags |= libc::O_CLOEXEC;
    }
    if at & libc::AT_SYMLINK_NOFOLLOW != 0 && !path.is_empty() {
        flags |= libc::O_NOFOLLOW;
    }
    let request = Request {
        dirfd,
        path: nonempty(dirfd, path),
        flags,
        mode: 0,
        resolve: 0,
    };
    request.answer(call)
}

/// openat2(2)
pub fn openat2(call: &mut Call<'_>) -> Result<Answer> {
    const SIZE: usize = size_of::<libc::open_how>();
    let how: [u8; SIZE] = call.read_structure(call.arg(2), call.arg(3))?;
    let [flags, mode, resolve] = words(&how);
    let (flags, mode) = validate(flags, mode, resolve)?;
    accept(flags, resolve)?;
    let request = Request {
        dirfd: call.int(0),
        path: call.path(1)?,
        flags,
        mode,
        resolve,
    };
    request.answer(call)
}

/// Flags that openat2(2) refuses and open(2) and openat(2) ignore.
fn validate(flags: u64, mode: u64, resolve: u64) -> Result<(i32, u32)> {
    const RESOLVE_ALL: u64 = 0x3f;
    let contained = libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT;
    let with_path = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_PATH | libc::O_CLOEXEC;
    let bits = u32::try_from(flags)
        .map_err(|_| Errno::EINVAL)?
        .cast_signed();
    let creates = bits & libc::O_CREAT != 0 || bits & libc::O_TMPFILE == libc::O_TMPFILE;
    let bad_mode = mode & !0o7777 != 0 || (mode != 0 && !creates);
    let bad_resolve = resolve & !RESOLVE_ALL != 0 || resolve & contained == contained;
    let bad_path = bits & libc::O_PATH != 0 && bits & !with_path != 0;
    if bad_mode || bad_resolve || bad_path {
        return Err(Errno::EINVAL.into());
    }
    Ok((bits, mode as u32))
}

/// Checks the flags of any open, before its path is resolved: EINVAL, or EAGAIN for opens that `RESOLVE_CACHED` forbids in any case.
fn accept(flags: i32, resolve: u64) -> Result<()> {
    const UNNAMED: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
    if flags & libc::O_PATH != 0 {
        return Ok(());
    }
    let both = libc::O_CREAT | libc::O_DIRECTORY;
    // The first since Linux 6.4.
    if flags & both == both
        || flags & UNNAMED != 0
            && (flags & libc::O_DIRECTORY == 0 || flags & libc::O_ACCMODE == libc::O_RDONLY)
    {
        return Err(Errno::EINVAL.into());
    }
    if resolve & libc::RESOLVE_CACHED != 0 && flags & (libc::O_TRUNC | libc::O_CREAT | UNNAMED) != 0
    {
        return Err(Errno::EAGAIN.into());
    }
    Ok(())
}

/// The object that an open leads to.
enum End {
    PassOn,
    Existing(Place),
    List(ListOfMounts),
    Missing { dir: Place, name: Vec<u8> },
}

impl Request {
    fn answer(&self, call: &Call<'_>) -> Result<Answer> {
        let answer = self.perform(call);
        if let Err(FsError::Errno(why)) = &answer {
            // The kernel reserves a descriptor before it walks the path, but after it has read that.
            if !self.path.is_empty() {
                may_get_descriptor(call)?;
            }
            if self.is_plain() && *why == Errno::ENOENT {
                let named = (self.dirfd, &*self.path);
                call.monitor.in_process.share(call, named, false);
            }
        }
        answer
    }

    /// Whether it is an open for reading that processes can perform themselves (`opens.S`).
    fn is_plain(&self) -> bool {
        const PLAIN: i32 = libc::O_CLOEXEC
            | libc::O_NOCTTY
            | libc::O_LARGEFILE
            | libc::O_NONBLOCK
            | libc::O_NOFOLLOW;
        self.flags & !PLAIN == 0 && self.resolve == 0
    }

    fn perform(&self, call: &Call<'_>) -> Result<Answer> {
        loop {
            match self.attempt(call) {
                // Another process created the name after the look-up; its file is opened.
                Err(FsError::Errno(Errno::EEXIST)) if self.flags & libc::O_EXCL == 0 => {}
                answer => return answer,
            }
        }
    }

    fn attempt(&self, call: &Call<'_>) -> Result<Answer> {
        if let Some(source) = call.monitor.in_process.resumed(call) {
            return self.resume(call, source);
        }
        let creates = self.flags & libc::O_CREAT != 0 && self.flags & libc::O_PATH == 0;
        // Lives from before the back end opens the file until the tracee has the descriptor.
        let delivery = call.monitor.pause.deliveries.begin(call.task.tid);
        let end = if creates {
            self.find_or_missing(call)?
        } else {
            self.find(call)?
        };
        let caller = call.caller()?;
        let mode = self.mode & 0o7777;
        match end {
            End::PassOn => Ok(Answer::PassOn),
            End::List(list) => Ok(Answer::Install {
                description: list.open(call, &caller, self.flags)?.into(),
                cloexec: self.cloexec(),
                counts: false,
                delivery: None,
            }),
            End::Existing(place) if self.flags & libc::O_TMPFILE == libc::O_TMPFILE => {
                if !place.node.is_dir() {
                    return Err(Errno::ENOTDIR.into());
                }
                may_get_descriptor(call)?;
                let (node, opened) = ops::tmpfile(&caller, &place, mode, self.flags)?;
                self.install(call, &Place { node, ..place }, opened, delivery)
            }
            End::Existing(place) if self.flags & libc::O_PATH != 0 => self.reference(call, &place),
            End::Existing(place) => self.open(call, &caller, &place, delivery),
            End::Missing { dir, name } => {
                if let Some(answer) = self.leave_creation(call, &caller, &dir, &name)? {
                    return Ok(answer);
                }
                may_get_descriptor(call)?;
                let names = report::begin(call);
                let (node, opened) = ops::create(&caller, &dir, &name, mode, self.flags)?;
                report::created(call, names, &dir, &name, &node);
                self.install(
                    call,
                    &Place {
                        node,
                        mount: dir.mount,
                    },
                    opened,
                    delivery,
                )
            }
        }
    }

    /// Completes an open that has been answered. The thread has not opened the object.
    fn resume(&self, call: &Call<'_>, source: Source) -> Result<Answer> {
        const DONE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_TMPFILE;
        let place = match source {
            Source::Object { place, .. } => place,
            Source::Description(description) => {
                return Ok(Answer::Install {
                    description: description.fd()?.try_clone().map_err(errno)?.into(),
                    cloexec: self.cloexec(),
                    counts: call.may_wait,
                    delivery: None,
                });
            }
        };
        // The file may have another object by now. Its permissions do not matter any more.
        let delivery = call.monitor.pause.deliveries.begin(call.task.tid);
        let caller = Caller {
            caps: u64::MAX,
            ..(*call.caller()?).clone()
        };
        let request = Self {
            flags: self.flags & !DONE,
            path: Vec::new(),
            ..*self
        };
        request.open(call, &caller, &place, delivery)
    }

    fn find(&self, call: &Call<'_>) -> Result<End> {
        let start = self.start(call)?;
        let caller = call.caller()?;
        let process_view = call.process_view()?;
        let mut walk = call
            .new_walk(&caller, &process_view)
            .with_resolve(self.resolve);
        let at = walk.object(start.at, &self.path, self.flags & libc::O_NOFOLLOW == 0)?;
        if self.reads()
            && let Some(list) = ListOfMounts::at(call, &at)
        {
            return Ok(End::List(list));
        }
        Ok(match at {
            Pos::Host(_) if start.native && !walk.left_host() => End::PassOn,
            at => End::Existing(call.place(at)?),
        })
    }

    /// With O_CREAT a final symbolic link is followed even to a name that does not exist.
    fn find_or_missing(&self, call: &Call<'_>) -> Result<End> {
        let start = self.start(call)?;
        let caller = call.caller()?;
        let process_view = call.process_view()?;
        let mut walk = call
            .new_walk(&caller, &process_view)
            .with_resolve(self.resolve);
        let mut from = start.at;
        let mut path = self.path.clone();
        let exclusive = self.flags & libc::O_EXCL != 0;
        loop {
            let parent = walk.parent(from, &path)?;
            let on_host = matches!(parent.dir, Pos::Host(_)) && start.native && !walk.left_host();
            let name = match parent.last {
                Last::Name(name) if !parent.must_be_dir => name,
                _ if on_host => return Ok(End::PassOn),
                Last::Dot | Last::DotDot | Last::Root if exclusive => {
                    return Err(Errno::EEXIST.into());
                }
                _ => return Err(Errno::EISDIR.into()),
            };
            if exclusive
                && !call.mounts.nested()
                && let Pos::Mounted(dir) = parent.dir
            {
                // If the name exists, the answer is EEXIST in any case. The back end's create returns it, so no look-up is needed here.
                return Ok(End::Missing { dir, name });
            }
            match walk.step(&parent.dir, &name, true) {
                Ok((_, Some(_))) if exclusive => return Err(Errno::EEXIST.into()),
                Ok((_, Some(_))) if self.flags & libc::O_NOFOLLOW != 0 => {
                    return Err(Errno::ELOOP.into());
                }
                Ok((link, Some(target))) => {
                    walk.may_follow(&parent.dir, &link)?;
                    walk.count_link()?;
                    let absolute = target.first() == Some(&b'/');
                    from = if absolute {
                        walk.link_start(&parent.dir)?
                    } else {
                        parent.dir
                    };
                    path = target;
                }
                Ok((Pos::Host(_), None)) if on_host && !walk.left_host() => return Ok(End::PassOn),
                Ok((at, None)) => {
                    return match call.place(at) {
                        Ok(_) if exclusive => Err(Errno::EEXIST.into()),
                        Ok(place) => {
                            ops::check_sticky_create(&caller, &call.place(parent.dir)?, &place)?;
                            Ok(End::Existing(place))
                        }
                        Err(FsError::Errno(Errno::ENOENT)) => Ok(End::Missing {
                            dir: call.place(parent.dir)?,
                            name,
                        }),
                        Err(errno) => Err(errno),
                    };
                }
                Err(FsError::Errno(Errno::ENOENT)) => {
                    return Ok(End::Missing {
                        dir: call.place(parent.dir)?,
                        name,
                    });
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Under RESOLVE_IN_ROOT an absolute path starts at the directory descriptor, too.
    fn start(&self, call: &Call<'_>) -> Result<Resolved<Pos>> {
        let in_root = self.resolve & libc::RESOLVE_IN_ROOT != 0 && !self.path.is_empty();
        call.walk_start(self.dirfd, if in_root { b"." } else { &self.path })
    }

    fn reads(&self) -> bool {
        self.flags & libc::O_PATH == 0 && self.flags & libc::O_ACCMODE != libc::O_WRONLY
    }

    fn cloexec(&self) -> bool {
        self.flags & libc::O_CLOEXEC != 0
    }

    fn open(
        &self,
        call: &Call<'_>,
        caller: &Caller,
        place: &Place,
        delivery: Delivery,
    ) -> Result<Answer> {
        let writes = self.flags & libc::O_ACCMODE != libc::O_RDONLY;
        let kind = place.node.kind();
        if self.flags & libc::O_DIRECTORY != 0 && kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        match kind {
            FileKind::Directory => {
                if writes || self.flags & (libc::O_CREAT | libc::O_TRUNC) != 0 {
                    return Err(Errno::EISDIR.into());
                }
                ops::may_open_other(caller, place, self.flags)?;
                if self.flags & libc::O_DIRECT != 0 {
                    return Err(Errno::EINVAL.into());
                }
                let backing = directory(call, caller, place, self.flags, true)?;
                let from = (self.dirfd, &*self.path);
                let inside = &call.monitor.in_process;
                inside.share_directory(call, from, place, backing.as_fd());
                let description = backing.into();
                report::opened(call, place, &description, self.flags);
                Ok(Answer::Install {
                    description,
                    cloexec: self.cloexec(),
                    counts: call.monitor.watches.in_use(),
                    delivery: None,
                })
            }
            FileKind::Symlink => Err(Errno::ELOOP.into()),
            FileKind::Regular => {
                if (writes || self.flags & libc::O_TRUNC != 0)
                    && call.monitor.programs.running(place)
                {
                    return Err(Errno::ETXTBSY.into());
                }
                if let Some(answer) = self.leave(call, caller, place)? {
                    return Ok(answer);
                }
                if self.flags & libc::O_TRUNC != 0 {
                    may_get_descriptor(call)?;
                }
                match lease::open(call, caller, place, self.flags)? {
                    Some(opened) => {
                        let answer = self.install(call, place, opened, delivery);
                        if self.flags & libc::O_TRUNC != 0 {
                            report::touched(call, place, Touch::Modify);
                        }
                        answer
                    }
                    None => Ok(Answer::Wait),
                }
            }
            FileKind::Socket => {
                ops::may_open_other(caller, place, self.flags)?;
                Err(Errno::ENXIO.into())
            }
            FileKind::Fifo | FileKind::CharDevice | FileKind::BlockDevice => {
                self.open_special(call, caller, place)
            }
        }
    }

    /// Leaves the open of a regular host file to the thread where it can do that.
    fn leave(&self, call: &Call<'_>, caller: &Caller, place: &Place) -> Result<Option<Answer>> {
        const SETTLED: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_DIRECTORY;
        // O_NONBLOCK makes the open of a file with a lease fail with EAGAIN. The call that begins anew after that could succeed, because the lease has been released.
        if !opens_itself(call) || self.flags & libc::O_NONBLOCK != 0 {
            return Ok(None);
        }
        let flags = self.flags & !SETTLED | libc::O_NOCTTY;
        let file = place.mount.fs.host_file(&place.node);
        let Some(value) = file.and_then(|file| opens::of_monitor(file.as_raw_fd(), flags)) else {
            return Ok(None);
        };
        ops::may_open(caller, place, flags)?;
        self.share_host_file(call);
        let node = place.node.clone();
        Ok(Some(Answer::OpenItself { node, value }))
    }

    /// The next opens of a host file are perhaps made without a notification.
    fn share_host_file(&self, call: &Call<'_>) {
        if self.is_plain() {
            let from = (self.dirfd, &*self.path);
            call.monitor.in_process.share_host_file(call, from);
        }
    }

    /// Leaves the creation of file `name` in a host directory to the thread where it can do that.
    fn leave_creation(
        &self,
        call: &Call<'_>,
        caller: &Caller,
        dir: &Place,
        name: &[u8],
    ) -> Result<Option<Answer>> {
        if !opens_itself(call) {
            return Ok(None);
        }
        // As the name was missing, something of that name, perhaps a link to elsewhere, is EEXIST. Then the call begins anew.
        let flags = self.flags & !libc::O_NOFOLLOW | libc::O_EXCL | libc::O_NOCTTY;
        let host = dir.mount.fs.host_dir(&dir.node);
        let Some(value) = host.and_then(|host| {
            opens::in_directory_of_monitor(host.as_raw_fd(), (&self.path, name), flags)
        }) else {
            return Ok(None);
        };
        ops::may_create_file(caller, dir, name)?;
        let node = dir.node.clone();
        Ok(Some(Answer::OpenItself { node, value }))
    }

    fn install(
        &self,
        call: &Call<'_>,
        place: &Place,
        opened: Opened,
        delivery: Delivery,
    ) -> Result<Answer> {
        let writes = self.flags & libc::O_ACCMODE != libc::O_RDONLY;
        let writes_host_file = writes && matches!(opened.native, Native::All);
        if let Native::All = opened.native {
            self.share_host_file(call);
        }
        if let Native::Reads { handle } = opened.native {
            let shadow = call
                .monitor
                .shadows
                .register_file(place, Arc::clone(&handle));
            if self.is_plain() {
                let from = (self.dirfd, &*self.path);
                call.monitor
                    .in_process
                    .share_content(call, from, place, &handle);
            }
            report::opened(call, place, &opened.description, self.flags);
            if writes {
                let file = (place, self.flags);
                let inside = &call.monitor.in_process;
                inside.grant_at_open(call, file, &shadow);
            }
        }
        // The close of the last writer of a host file ends ETXTBSY, and inotify(7) reports closes. After a wait for a lease, the open
        // holds no descriptor that a later check would count.
        Ok(Answer::Install {
            description: opened.description,
            cloexec: self.cloexec(),
            counts: call.may_wait || writes_host_file || call.monitor.watches.in_use(),
            delivery: Some(delivery),
        })
    }

    fn reference(&self, call: &Call<'_>, place: &Place) -> Result<Answer> {
        // At a ptrace stop the tracee opens it again, with O_PATH; a notification can install a descriptor without O_PATH only.
        let installed = call.notification.is_some();
        let fd = if place.node.is_dir() {
            directory(call, &*call.caller()?, place, self.flags, installed)?
        } else if self.flags & libc::O_DIRECTORY != 0 {
            return Err(Errno::ENOTDIR.into());
        } else {
            let sees_writes = call.mounts.any_caches_content();
            call.monitor
                .shadows
                .reference(place, sees_writes, installed)?
        };
        Ok(Answer::Install {
            description: fd.into(),
            cloexec: self.cloexec(),
            counts: false,
            delivery: None,
        })
    }

    /// The tracee gets a real fifo or device: that of a host directory, or the backing object of the inode, which all tracees share.
    fn open_special(&self, call: &Call<'_>, caller: &Caller, place: &Place) -> Result<Answer> {
        ops::may_open_other(caller, place, self.flags)?;
        may_get_descriptor(call)?;
        let path: std::path::PathBuf = match place.mount.fs.host_path(&place.node) {
            Some(path) => path,
            None => call.monitor.shadows.backing(caller, place)?.to_path_buf(),
        };
        let dropped = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let flags =
            OFlag::from_bits_retain(self.flags & !dropped) | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
        let cloexec = self.cloexec();
        // The path of a descriptor of ours lasts as long as the node.
        let is_lasting = !path.starts_with("/proc");
        if call.notification.is_none() && is_lasting {
            let kept = if cloexec {
                flags
            } else {
                flags - OFlag::O_CLOEXEC
            };
            return Ok(Answer::OpenHost {
                path: path.into_os_string().into_vec(),
                flags: kept.bits(),
            });
        }
        let may_wait = !flags.contains(OFlag::O_NONBLOCK)
            && (flags & OFlag::O_ACCMODE != OFlag::O_RDWR || place.node.kind() != FileKind::Fifo);
        if !may_wait {
            return Ok(Answer::Install {
                description: open_as(caller, &path, flags)?.into(),
                cloexec,
                counts: true,
                delivery: None,
            });
        }
        let (caller, node) = (caller.clone(), place.node.clone());
        Ok(Answer::Block(Work::new(move || {
            let _held = &node;
            Ok(Answer::Install {
                description: open_as(&caller, &path, flags)?.into(),
                cloexec,
                counts: true,
                delivery: None,
            })
        })))
    }
}

/// Whether the thread can open a file of the host itself. The monitor reports opens to inotify(7) watches.
fn opens_itself(call: &Call<'_>) -> bool {
    call.opens_itself && !call.monitor.watches.in_use()
}

/// EMFILE when the caller's process has no free descriptor number: an open that creates, truncates, or lets another process
/// continue must then have no effect. A number that another thread takes at this moment is not seen.
fn may_get_descriptor(call: &Call<'_>) -> Result<()> {
    if call.monitor.descriptors.is_below_limit(call.task.tid)? {
        Ok(())
    } else {
        Err(Errno::EMFILE.into())
    }
}

/// A directory's backing directory; of the host's own tree the directory itself, from which walks continue by its path. `installed`: a
/// notification installs the descriptor, which then has no `O_PATH`.
fn directory(
    call: &Call<'_>,
    caller: &Caller,
    place: &Place,
    flags: i32,
    installed: bool,
) -> Result<OwnedFd> {
    let kept = if installed { 0 } else { libc::O_PATH };
    match place.mount.fs.host_path(&place.node) {
        Some(path) if place.mount.is_host() => open_as(
            caller,
            &path,
            OFlag::from_bits_retain(flags & (libc::O_NOATIME | kept))
                | OFlag::O_RDONLY
                | OFlag::O_DIRECTORY
                | OFlag::O_CLOEXEC,
        ),
        _ => call.monitor.shadows.open_directory(place, flags, installed),
    }
}

fn open_as(caller: &Caller, path: &Path, flags: OFlag) -> Result<OwnedFd> {
    Ok(acting_as(caller, None, || {
        nix::fcntl::open(path, flags, Mode::empty())
    })?)
}
