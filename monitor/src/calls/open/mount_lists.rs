//! Opens of the lists of mounts in /proc: programs of the run see its mounts in them.
//!
//! The program gets the list as it is at the open, in a memfd. The kernel makes a new list at each read, which only
//! matters to a program that waits for changes of the host's mounts: it is never notified (docs/decisions/0085).

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use goanna_vfs::mount_list::{self, ListedMount, MountList};
use goanna_vfs::walk::Pos;
use goanna_vfs::{Caller, KernelMount, Mount, Mounts, Place, Result, ops, paths};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use crate::call::Call;
use crate::errno::errno;
use crate::process::task::{acting_as, credentials};

/// Maximum length of a list in bytes. The list of a host with 100,000 mounts is shorter.
const LIST_MAX: u64 = 64 << 20;

/// A list of mounts, of a process of the run.
pub struct ListOfMounts {
    list: MountList,
    path: Vec<u8>,
    /// The mounts that the process sees.
    mounts: Arc<Mounts>,
    /// What the paths of their mount points begin with, and the process does not see.
    prefix: Vec<u8>,
    /// The root directory of the process, where the kernel does not know it.
    root: Option<Pos>,
}

impl ListOfMounts {
    /// The list at `at`; `None` for other files, and for lists of processes outside of the run.
    pub fn at(call: &Call<'_>, at: &Pos) -> Option<Self> {
        let path = match at {
            Pos::Host(path) => path.clone(),
            // By a link in /proc.
            Pos::Mounted(place) if place.mount.is_host() => {
                let path = place.mount.fs.host_path(&place.node)?;
                path.as_os_str().as_bytes().to_vec()
            }
            Pos::Mounted(_) => return None,
        };
        let (list, thread) = MountList::at(&path)?;
        let monitor = call.monitor;
        if !monitor.alive.contains(thread) {
            return None;
        }
        let (mounts, elsewhere) = monitor.mounts_of(thread);
        let prefix = elsewhere.map(|seen| seen.kernel_root).unwrap_or_default();
        Some(Self {
            list,
            path,
            mounts,
            prefix,
            root: monitor.roots.kept(thread).map(|root| root.at),
        })
    }

    /// A descriptor for reading the list, which `caller` opens with `flags`.
    pub fn open(&self, call: &Call<'_>, caller: &Caller, flags: i32) -> Result<OwnedFd> {
        let flags = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC);
        let native = read(caller, &self.path, flags)?;
        let mountinfo = match self.list {
            MountList::MountInfo => native.clone(),
            _ => read(caller, &self.mountinfo(), libc::O_RDONLY)?,
        };
        let mounts = &self.mounts;
        let shown = mounts.iter().filter(|mount| !mount.is_synthetic());
        let own = credentials(std::process::id().cast_signed())?;
        let listed = shown.filter_map(|mount| self.listed(&own, mount));
        let in_kernel = mounts.in_kernel().iter();
        let in_kernel = in_kernel.filter_map(|mount| self.in_kernel(mount));
        let listed: Vec<_> = listed.chain(in_kernel).collect();
        let mut content = mount_list::with_mounts(self.list, &native, &mountinfo, &listed);
        if let Some(root) = &self.root {
            content = mount_list::seen_below(self.list, &content, &root.path(&own)?.0);
        }
        let place = mounts.host_place(caller, &self.path)?;
        call.monitor.shadows.snapshot(place, &content)
    }

    /// The entry of `mount`, with the monitor's own credentials; `None` if its back end fails.
    fn listed<'m>(&self, own: &Caller, mount: &'m Arc<Mount>) -> Option<ListedMount<'m>> {
        let fs = &mount.fs;
        let root = Place {
            mount: Arc::clone(mount),
            node: fs.root(),
        };
        // Attributes can wait for a lock; these figures cannot.
        let figures = ops::statfs(own, &root).ok()?;
        let (inside, _) = mount.whole().fs.path(own, &root.node).unwrap_or_default();
        // In another mount namespace the host's directory has another path.
        let host_path = fs.host_path(&root.node).filter(|_| self.prefix.is_empty());
        Some(ListedMount {
            id: self.mounts.id(mount),
            device: self.mounts.device(mount, figures.fsid),
            target: self.shown(&mount.target)?,
            kind: fs.kind(),
            source: mount.source.as_bytes(),
            host_path: host_path.map(|path| path.into_os_string().into_vec()),
            root: [b"/", &inside[..]].concat(),
            is_hosted: mount.is_hosted(),
            in_place_of: match &mount.in_kernel {
                Some(in_kernel) => Some(self.shown(&in_kernel.path)?.to_vec()),
                None => None,
            },
            is_read_only: fs.is_read_only(),
            flags: figures.flags,
        })
    }

    /// The entry of a mount of the kernel on something in a mount.
    fn in_kernel<'m>(&self, mount: &'m KernelMount) -> Option<ListedMount<'m>> {
        Some(ListedMount {
            id: 0,
            device: 0,
            target: self.shown(&mount.target)?,
            kind: "",
            source: b"",
            host_path: Some(self.shown(&mount.path)?.to_vec()),
            root: Vec::new(),
            is_hosted: true,
            in_place_of: None,
            is_read_only: false,
            flags: 0,
        })
    }

    /// The path as the process sees it.
    fn shown<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        match path.strip_prefix(&*self.prefix)? {
            b"" => Some(b"/"),
            path => Some(path),
        }
    }

    fn mountinfo(&self) -> Vec<u8> {
        [paths::parent(&self.path), b"/mountinfo"].concat()
    }
}

fn read(caller: &Caller, path: &[u8], flags: i32) -> Result<Vec<u8>> {
    let flags = OFlag::from_bits_retain(flags) | OFlag::O_CLOEXEC;
    let fd = acting_as(caller, None, || {
        nix::fcntl::open(OsStr::from_bytes(path), flags, Mode::empty())
    })?;
    let mut content = Vec::new();
    let mut file = File::from(fd).take(LIST_MAX);
    file.read_to_end(&mut content).map_err(errno)?;
    Ok(content)
}
