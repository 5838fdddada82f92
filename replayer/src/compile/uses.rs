//! Determines the resources that a step uses, and how: steps that use the same resource keep their order, unless both only
//! read it. Calls that are not named here, such as fsync(2), use only their descriptor's slot.

use std::hash::{DefaultHasher, Hash, Hasher};

use amino_schema::replay::Call;

use super::depend::{Kind, Range, Resource, Uses};
use super::held::Slots;
use crate::source::{Info, Name, Step, Subject};

/// Number of a file: by its inode where that is recorded.
pub fn file_key(info: Option<Info>, path: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    match info.filter(|info| info.inode != 0) {
        Some(info) => (info.device, info.inode).hash(&mut hasher),
        None => path.hash(&mut hasher),
    }
    hasher.finish()
}

/// The directory that `path` is in.
pub fn parent(path: &[u8]) -> &[u8] {
    let at = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    path.get(..at).unwrap_or_default()
}

/// The resources of a step. `mapped` gives the file of a mapping slot.
pub fn of(step: &Step, slots: &Slots, mapped: &dyn Fn(u32) -> Option<u64>) -> Uses {
    let mut uses = Uses::default();
    for (number, target) in step.targets.iter().enumerate() {
        match &target.name {
            Name::Slot(slot) => of_slot(step, *slot, number, slots, &mut uses),
            Name::Path { path, .. } => of_path(step, target, path, number, &mut uses),
        }
    }
    if let Some(slot) = step.opened {
        uses.add(Resource::slot(slot), Kind::Alone);
    }
    let mapping = match step.call {
        Call::Map => step.number(4).checked_sub(1),
        Call::Unmap | Call::Drop | Call::Touch | Call::Msync => Some(step.number(0)),
        _ => None,
    };
    if let Some(slot) = mapping.map(|slot| slot as u32) {
        let is_use = matches!(step.call, Call::Touch | Call::Msync);
        let kind = if is_use { Kind::Look } else { Kind::Alone };
        uses.add(Resource::mapping(slot), kind);
        if let Some(file) = mapped(slot).filter(|_| step.call == Call::Touch) {
            uses.bytes.push((file, Range::ALL, step.number(3) != 0));
        }
    }
    uses
}

fn of_slot(step: &Step, slot: u32, number: usize, slots: &Slots, uses: &mut Uses) {
    let ends = matches!(step.call, Call::Close | Call::Release);
    let kind = if ends { Kind::Alone } else { Kind::Look };
    uses.add(Resource::slot(slot), kind);
    let Some((held, description)) = slots.get(slot) else {
        return;
    };
    let offset = || Resource::description(held.description);
    let file = description.key;
    let whole = |writes| (file, Range::ALL, writes);
    let asked = step.data.as_ref().map_or(0, |data| data.length);
    match step.call {
        Call::Read | Call::Write => {
            uses.add(offset(), Kind::Alone);
            let writes = step.call == Call::Write;
            let start = description
                .offset
                .filter(|_| !description.appends || !writes);
            let range = start.map_or(Range::ALL, |start| Range::new(start, asked));
            uses.bytes.push((file, range, writes));
        }
        Call::Pread => uses
            .bytes
            .push((file, Range::new(step.number(0), asked), false)),
        Call::Pwrite => {
            let range = Range::new(step.number(0), asked);
            uses.bytes.push((file, range, true));
        }
        Call::Seek => {
            uses.add(offset(), Kind::Alone);
            // All but SEEK_SET and SEEK_CUR look at the content.
            if step.number(1) > libc::SEEK_CUR as u64 {
                uses.bytes.push(whole(false));
            }
        }
        Call::Readdir => {
            uses.add(offset(), Kind::Alone);
            uses.add(Resource::entries(&held.path), Kind::Look);
        }
        Call::Truncate | Call::Allocate => uses.bytes.push(whole(true)),
        Call::Copy | Call::Clone => {
            uses.add(offset(), Kind::Alone);
            uses.bytes.push(whole(number == 1));
        }
        Call::Map => uses.bytes.push(whole(false)),
        Call::Chmod | Call::Chown | Call::Setxattr | Call::Removexattr | Call::Utimes => {
            uses.add(Resource::attributes(file), Kind::Alone);
        }
        Call::Getxattr | Call::Listxattr | Call::Stat => {
            uses.add(Resource::attributes(file), Kind::Look);
        }
        Call::Flock | Call::Lock => uses.add(Resource::locks(file), Kind::Alone),
        Call::Close | Call::Release => uses.add(Resource::locks(file), Kind::Change),
        Call::Fcntl => uses.add(offset(), Kind::Alone),
        _ => {}
    }
}

fn of_path(step: &Step, target: &Subject, path: &[u8], number: usize, uses: &mut Uses) {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    for (end, _) in slashes {
        let above = path.get(..end).unwrap_or_default();
        uses.add(Resource::name(above), Kind::Look);
    }
    let makes = match step.call {
        Call::Open => step.number(0) & libc::O_CREAT as u64 != 0,
        Call::Unlink | Call::Rmdir | Call::Mkdir | Call::Mknod | Call::Rename | Call::Symlink => {
            true
        }
        Call::Link => number == 1,
        _ => false,
    };
    let file = file_key(target.info, path);
    let changes = matches!(
        step.call,
        Call::Chmod | Call::Chown | Call::Setxattr | Call::Removexattr | Call::Utimes
    );
    let alone = makes || changes;
    let kind = if alone { Kind::Alone } else { Kind::Look };
    uses.add(Resource::name(path), kind);
    if makes {
        uses.add(Resource::entries(parent(path)), Kind::Change);
    }
    if step.call == Call::Rmdir {
        uses.add(Resource::entries(path), Kind::Look);
    }
    if matches!(step.call, Call::Getxattr | Call::Listxattr | Call::Stat) {
        uses.add(Resource::attributes(file), Kind::Look);
    }
    if changes {
        uses.add(Resource::attributes(file), Kind::Alone);
    }
    let truncates = match step.call {
        Call::Open => step.number(0) & libc::O_TRUNC as u64 != 0,
        Call::Truncate => true,
        _ => false,
    };
    if truncates {
        uses.bytes.push((file, Range::ALL, true));
    }
}
