//! The kernel's lines of the host's mounts, as a run sees these mounts.

use super::{HostMount, ListedMount, MountList, PATH, below, escape, parent, unescape};
use crate::Mounts;

/// A line by its fields.
struct Line<'l> {
    list: MountList,
    fields: Vec<&'l [u8]>,
    /// The mount point, unescaped.
    target: Vec<u8>,
}

impl<'l> Line<'l> {
    fn parse(list: MountList, line: &'l [u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let target = unescape(fields.get(target_field(list))?);
        Some(Self {
            list,
            fields,
            target,
        })
    }

    /// The IDs of the mount and of its parent, which only mountinfo has.
    fn ids(&self) -> Option<[u64; 2]> {
        let id = |index: usize| str::from_utf8(self.fields.get(index)?).ok()?.parse().ok();
        match self.list {
            MountList::MountInfo => Some([id(0)?, id(1)?]),
            MountList::Mounts | MountList::MountStats => None,
        }
    }

    /// The line of the same mount at `target`, with `ids`, where it has any.
    fn at(&self, target: &[u8], ids: Option<[u64; 2]>) -> Vec<u8> {
        let mut fields = self.fields.clone();
        let target = escape(target, PATH);
        let ids = ids.map(|ids| ids.map(|id| id.to_string()));
        for (field, id) in fields.iter_mut().zip(ids.iter().flatten()) {
            *field = id.as_bytes();
        }
        if let Some(field) = fields.get_mut(target_field(self.list)) {
            *field = &target;
        }
        fields.join(&b' ')
    }
}

/// The index of the field with the mount point.
fn target_field(list: MountList) -> usize {
    match list {
        MountList::MountInfo | MountList::MountStats => 4,
        MountList::Mounts => 1,
    }
}

/// The line of the mount that the kernel has in the place of one in `mounts`, about the latter.
fn in_place(
    line: &Line<'_>,
    hosts: &[HostMount<'_>],
    mounts: &[ListedMount<'_>],
) -> Option<Vec<u8>> {
    let ids = line.ids();
    let is_its = |mount: &&ListedMount<'_>| {
        mount.in_place_of.as_ref() == Some(&line.target) && ids.is_none_or(|[id, _]| id == mount.id)
    };
    // Of several places, the one in which descriptors are seen ([`Mounts::by_number`]).
    let mount = mounts.iter().rfind(is_its)?;
    let host = hosts.iter().find(|host| host.id == mount.id)?;
    let mount = ListedMount {
        flags: host.own_flags(),
        ..mount.clone()
    };
    let own = super::Line::new(&mount, None);
    Some(match line.list {
        // One that is inside of a mount of the run is elsewhere for the kernel.
        MountList::MountInfo if mount.target != line.target => {
            own.mountinfo(&mount, parent_in_run(&mount, mounts))
        }
        MountList::MountInfo => own.mountinfo(&mount, ids?[1]),
        MountList::Mounts => own.mounts(&mount),
        MountList::MountStats => own.mountstats(&mount),
    })
}

/// The lines with the mount points that hosted mounts in `mounts` have in the run. What is mounted inside of these is moved with them.
pub(super) fn in_run(
    list: MountList,
    native: &[u8],
    hosts: &[HostMount<'_>],
    mounts: &[ListedMount<'_>],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(native.len());
    let hosted = |target: &[u8]| {
        let hosted = mounts.iter().filter(|mount| mount.is_hosted);
        let inside = hosted.filter_map(|mount| {
            let dir = mount.host_path.as_deref()?;
            Some((mount, dir, below(dir, target)?.to_vec()))
        });
        // Of several places, the last one, as in [`in_place`].
        inside.max_by_key(|(_, dir, _)| dir.len())
    };
    for text in native.split_inclusive(|&byte| byte == b'\n') {
        let line = Line::parse(list, text);
        if let Some(line) = line.as_ref().and_then(|line| in_place(line, hosts, mounts)) {
            out.extend(line);
            continue;
        }
        let Some((line, (mount, dir, rest))) = line.and_then(|line| {
            let hosted = hosted(&line.target)?;
            Some((line, hosted))
        }) else {
            out.extend(text);
            continue;
        };
        let ids = line.ids().map(|[id, parent]| {
            // One that is mounted on another one, or inside of it, keeps its parent.
            let is_inside = |host: &HostMount<'_>| below(dir, &host.target).is_some();
            let stays = hosts
                .iter()
                .any(|host| host.id == parent && is_inside(host));
            [
                id,
                if stays {
                    parent
                } else {
                    parent_in_run(mount, mounts)
                },
            ]
        });
        out.extend(line.at(&[mount.target, &rest].concat(), ids));
    }
    out
}

/// The ID of the mount of the run that the hosted mount `mount` covers a directory of.
fn parent_in_run(mount: &ListedMount<'_>, mounts: &[ListedMount<'_>]) -> u64 {
    let others = mounts
        .iter()
        .filter(|other| !other.is_hosted && other.target != mount.target);
    let others: Vec<_> = others.map(|other| (other.target, other.id)).collect();
    parent(&others, mount)
}

/// The lines for what is mounted inside of the directory of the host that `mount` shows. A hosted mount has them already ([`in_run`]).
pub(super) fn seen_in(
    mount: &ListedMount<'_>,
    list: MountList,
    native: &[u8],
    hosts: &[HostMount<'_>],
) -> Vec<u8> {
    let Some(dir) = mount.host_path.as_deref().filter(|_| !mount.is_hosted) else {
        return Vec::new();
    };
    let is_inside = |target: &[u8]| below(dir, target).is_some_and(|rest| !rest.is_empty());
    let lines = native.split_inclusive(|&byte| byte == b'\n');
    let lines = lines.filter_map(|text| {
        let line = Line::parse(list, text).filter(|line| is_inside(&line.target))?;
        let target = [mount.target, below(dir, &line.target)?].concat();
        let ids = line.ids().map(|[id, parent]| {
            let mut above = hosts.iter().filter(|host| host.id == parent);
            let is_seen = above.any(|host| is_inside(&host.target));
            [
                Mounts::id_inside(id),
                if is_seen {
                    Mounts::id_inside(parent)
                } else {
                    mount.id
                },
            ]
        });
        Some(line.at(&target, ids))
    });
    lines.flatten().collect()
}
