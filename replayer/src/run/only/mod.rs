//! `--only`: the commands that a filter selects, and those that they depend on.
//!
//! The first pass reads the commands in the order of the trace, and lists the resources that each one needs and changes: names, descriptors,
//! offsets, content, attributes, entries of directories. The second pass goes from the last command to the first one: a command that
//! changes a resource which a later selected one needs is selected, too. It does not examine how a resource is changed, so it may select
//! more commands than necessary, never fewer. `forms.rs` describes a command as a call, for the filter.

mod forms;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;

use amino_schema::replay::{Block, Call, Command, Place, Target};
use goanna_tracer::select::{Facts, Filter};

use crate::Error;
use crate::stored::Stored;

/// The commands of a replay that are performed.
#[derive(Debug, Default)]
pub struct Only {
    commands: HashSet<u64>,
    /// Commands that the filter selects; the others are those that they depend on.
    pub selected: u64,
}

impl Only {
    /// The commands of `stored` that `filter` selects, and those that they depend on.
    pub fn of(stored: &Stored, filter: &Filter) -> Result<Self, Error> {
        let mut cache = filter.name_cache();
        let mut merged = Merged::new(stored)?;
        let mut state = State::new(stored);
        let mut only = Self::default();
        // For each command: its order, whether it is selected, and where its resources end.
        let mut seen: Vec<(u64, bool, usize)> = Vec::new();
        let mut resources = Vec::new();
        while let Some((lane, command)) = merged.next()? {
            if command.call == Call::Begin {
                state.threads.insert(lane, first(&command));
            }
            let tid = state.threads.get(&lane).copied().unwrap_or(0);
            let paths = state.paths(&command);
            let mut calls = forms::of(&command, &paths, tid).into_iter();
            let is_selected = calls.any(|call| filter.selects(&Facts::of(&call), &mut cache));
            only.selected += u64::from(is_selected);
            state.resources(&command, &mut resources);
            seen.push((command.order, is_selected, resources.len()));
        }
        let mut needed: HashSet<u64> = HashSet::new();
        let starts = std::iter::once(0).chain(seen.iter().map(|(.., end)| *end));
        let starts: Vec<usize> = starts.collect();
        for ((order, is_selected, end), start) in seen.iter().zip(starts).rev() {
            let own: &[Resource] = resources.get(start..*end).unwrap_or_default();
            let is_needed = own
                .iter()
                .any(|it| it.is_changed && needed.contains(&it.key));
            if *is_selected || is_needed {
                only.commands.insert(*order);
                let own = own.iter().filter(|it| it.is_needed);
                needed.extend(own.map(|it| it.key));
            }
        }
        Ok(only)
    }

    /// Whether the command with this number is performed.
    pub fn has(&self, order: u64) -> bool {
        self.commands.contains(&order)
    }
}

fn first(command: &Command) -> u64 {
    command.numbers.first().copied().unwrap_or(0)
}

/// The commands of all lanes in the order of the trace.
struct Merged<'a> {
    stored: &'a Stored,
    lanes: Vec<Cursor>,
    next: BinaryHeap<Reverse<(u64, u32)>>,
}

#[derive(Default)]
struct Cursor {
    /// Blocks that were read.
    blocks: usize,
    commands: VecDeque<Command>,
    /// Order of the last command that was read.
    after: u64,
}

impl<'a> Merged<'a> {
    fn new(stored: &'a Stored) -> Result<Self, Error> {
        let mut merged = Self {
            stored,
            lanes: Vec::new(),
            next: BinaryHeap::new(),
        };
        for lane in 0..stored.index.lanes.len() as u32 {
            merged.lanes.push(Cursor::default());
            merged.offer(lane)?;
        }
        Ok(merged)
    }

    /// Reads the lane's next block where its commands are used up, and puts its next command among those that may be next.
    fn offer(&mut self, lane: u32) -> Result<(), Error> {
        let stored = self.stored;
        let blocks = stored.index.lanes.get(lane as usize);
        let Some(cursor) = self.lanes.get_mut(lane as usize) else {
            return Ok(());
        };
        while cursor.commands.is_empty() {
            let Some(block) = blocks.and_then(|lane| lane.blocks.get(cursor.blocks)) else {
                return Ok(());
            };
            cursor.blocks += 1;
            let mut raw = vec![0; block.length as usize];
            let read = stored.file().read_exact_at(&mut raw, block.offset);
            read.map_err(|why| stored.failed(why))?;
            let damaged = |why| stored.damaged(why);
            let mut commands = Block::commands(&raw, lane, cursor.after).map_err(damaged)?;
            while let Some(command) = commands.next().map_err(damaged)? {
                cursor.after = command.order;
                cursor.commands.push_back(command);
            }
        }
        if let Some(command) = cursor.commands.front() {
            self.next.push(Reverse((command.order, lane)));
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(u32, Command)>, Error> {
        let Some(Reverse((_, lane))) = self.next.pop() else {
            return Ok(None);
        };
        let cursor = self.lanes.get_mut(lane as usize);
        let command = cursor.and_then(|cursor| cursor.commands.pop_front());
        self.offer(lane)?;
        Ok(command.map(|command| (lane, command)))
    }
}

/// A resource that a command changes, or needs in the state that earlier commands have left.
#[derive(Debug, Clone, Copy)]
struct Resource {
    key: u64,
    is_changed: bool,
    is_needed: bool,
}

/// Kinds of resources.
#[derive(Debug, Clone, Copy, Hash)]
enum Sort {
    /// A name in a directory.
    Name,
    /// Which names a directory has.
    Entries,
    Content,
    Attributes,
    Locks,
    /// That a slot has its descriptor.
    Slot,
    /// The offset and the flags of an open file.
    Description,
    Mapping,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    /// Number of this use of the slot.
    slot: u64,
    description: u64,
    file: u64,
}

/// Which files names, slots and mappings lead to at a point of the trace.
struct State<'a> {
    stored: &'a Stored,
    threads: HashMap<u32, u64>,
    /// Files by directory and name.
    names: HashMap<(u64, Box<[u8]>), u64>,
    slots: HashMap<u32, Held>,
    /// Paths of slots, for the filter.
    opened: HashMap<u32, Vec<u8>>,
    /// Uses of slots of mappings, and their files.
    mappings: HashMap<u64, (u64, u64)>,
    next: u64,
}

/// Number of the root directory.
const ROOT: u64 = 0;

/// The directory of a name, and its file.
struct Found {
    directory: u64,
    name: Box<[u8]>,
    file: u64,
}

impl<'a> State<'a> {
    fn new(stored: &'a Stored) -> Self {
        Self {
            stored,
            threads: HashMap::new(),
            names: HashMap::new(),
            slots: HashMap::new(),
            opened: HashMap::new(),
            mappings: HashMap::new(),
            next: ROOT,
        }
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The path of a place, which begins with a slash: that of the root.
    fn path(&self, place: &Place) -> Vec<u8> {
        let directories = &self.stored.index.directories;
        let directory = directories.get(place.directory as usize);
        let directory = directory.map(Vec::as_slice).unwrap_or_default();
        let name = place.name.strip_suffix(b"/").unwrap_or(&place.name);
        match (directory, name) {
            (b"", b".") => b"/".to_vec(),
            (b"", name) => [b"/", name].concat(),
            (directory, b".") => [b"/", directory].concat(),
            (directory, name) => [b"/", directory, b"/", name].concat(),
        }
    }

    /// The paths of a command's targets, for the filter.
    fn paths(&self, command: &Command) -> Vec<Vec<u8>> {
        let targets = command.targets.iter();
        let paths = targets.map(|target| match target {
            Target::Place(place) => self.path(place),
            Target::Slot(slot) => self.opened.get(slot).cloned().unwrap_or_default(),
        });
        paths.collect()
    }

    /// Resolves a path. The command needs each name on the way.
    fn find(&mut self, path: &[u8], out: &mut Vec<Resource>) -> Found {
        let mut found = Found {
            directory: ROOT,
            name: Box::default(),
            file: ROOT,
        };
        let parts = path.split(|byte| *byte == b'/');
        for part in parts.filter(|part| !part.is_empty() && *part != b".") {
            let directory = found.file;
            let key = (directory, part.into());
            out.push(needs(Sort::Name, &key));
            let next = self.next + 1;
            let file = *self.names.entry(key).or_insert(next);
            self.next = self.next.max(file);
            found = Found {
                directory,
                name: part.into(),
                file,
            };
        }
        found
    }

    /// Appends the resources that a command needs and changes, and applies the command to the state.
    fn resources(&mut self, command: &Command, out: &mut Vec<Resource>) {
        let failed = command.expected.is_some_and(|it| (-4095..0).contains(&it));
        let from = out.len();
        let mut files = Vec::new();
        let mut places = Vec::new();
        for target in &command.targets {
            match target {
                Target::Slot(slot) => {
                    let Some(held) = self.slots.get(slot).copied() else {
                        continue;
                    };
                    out.push(needs(Sort::Slot, &held.slot));
                    if uses_offset(command) {
                        out.push(changes(Sort::Description, &held.description));
                    }
                    files.push(held.file);
                    places.push(None);
                }
                Target::Place(place) => {
                    let found = self.find(&self.path(place), out);
                    files.push(found.file);
                    places.push(Some(found));
                }
            }
        }
        of_files(command, &files, out);
        self.names(command, &places, failed, out);
        self.descriptors(command, failed, &files, &places, out);
        if failed {
            // A command that fails changes nothing.
            for resource in out.get_mut(from..).unwrap_or_default() {
                resource.is_changed = false;
            }
        }
    }

    /// Names that the command makes, moves and removes.
    fn names(
        &mut self,
        command: &Command,
        places: &[Option<Found>],
        failed: bool,
        out: &mut Vec<Resource>,
    ) {
        let creates = first(command) & libc::O_CREAT as u64 != 0;
        let is_made = |index: usize| match command.call {
            Call::Open => creates,
            Call::Link => index == 1,
            Call::Mkdir | Call::Mknod | Call::Symlink => true,
            Call::Unlink | Call::Rmdir | Call::Rename => true,
            _ => false,
        };
        let changed = places
            .iter()
            .enumerate()
            .filter(|(index, _)| is_made(*index));
        for found in changed.filter_map(|(_, place)| place.as_ref()) {
            let key = (found.directory, found.name.clone());
            out.push(changes(Sort::Name, &key));
            // The order of such changes does not matter.
            out.push(Resource {
                is_needed: false,
                ..changes(Sort::Entries, &found.directory)
            });
        }
        if failed {
            return;
        }
        let key = |found: &Found| (found.directory, found.name.clone());
        match (command.call, places) {
            (Call::Unlink | Call::Rmdir, [Some(found)]) => {
                self.names.remove(&key(found));
            }
            (Call::Mkdir | Call::Mknod | Call::Symlink, [Some(found)]) => {
                let file = self.fresh();
                self.names.insert(key(found), file);
            }
            (Call::Link, [_, Some(to)]) => {
                let from = match (command.targets.first(), places.first()) {
                    (_, Some(Some(from))) => Some(from.file),
                    (Some(Target::Slot(slot)), _) => self.slots.get(slot).map(|it| it.file),
                    _ => None,
                };
                let from = from.unwrap_or(to.file);
                self.names.insert(key(to), from);
            }
            (Call::Rename, [Some(from), Some(to)]) => {
                let exchanges = first(command) & u64::from(libc::RENAME_EXCHANGE) != 0;
                self.names.remove(&key(from));
                if exchanges {
                    self.names.insert(key(from), to.file);
                }
                self.names.insert(key(to), from.file);
            }
            _ => {}
        }
    }

    /// Slots and mappings that begin and end.
    fn descriptors(
        &mut self,
        command: &Command,
        failed: bool,
        files: &[u64],
        places: &[Option<Found>],
        out: &mut Vec<Resource>,
    ) {
        let file = files.first().copied();
        match (command.call, command.result, file) {
            (Call::Open | Call::Restore, Some(slot), Some(file)) => {
                let flags = first(command) as i32;
                let is_unnamed = flags & libc::O_TMPFILE == libc::O_TMPFILE;
                let file = if is_unnamed { self.fresh() } else { file };
                let held = Held {
                    slot: self.fresh(),
                    description: self.fresh(),
                    file,
                };
                out.push(changes(Sort::Slot, &held.slot));
                self.slots.insert(slot, held);
                let place = command.targets.first();
                if let (Some(Target::Place(place)), true) = (place, !places.is_empty()) {
                    let path = self.path(place);
                    self.opened.insert(slot, path);
                }
            }
            (Call::Dup | Call::Inherit, Some(to), _) => {
                let Some(Target::Slot(from)) = command.targets.first() else {
                    return;
                };
                let slot = self.fresh();
                out.push(changes(Sort::Slot, &slot));
                if let Some(held) = self.slots.get(from).copied() {
                    self.slots.insert(to, Held { slot, ..held });
                }
                if let Some(path) = self.opened.get(from).cloned() {
                    self.opened.insert(to, path);
                }
            }
            (Call::Close | Call::Release, ..) => {
                if let Some(Target::Slot(slot)) = command.targets.first() {
                    self.slots.remove(slot);
                }
            }
            (Call::Map, _, Some(file)) if !failed => {
                let mapping = self.fresh();
                out.push(changes(Sort::Mapping, &mapping));
                let slot = command.numbers.get(4).copied().unwrap_or(0);
                self.mappings.insert(slot.wrapping_sub(1), (mapping, file));
            }
            (Call::Touch | Call::Msync, ..) => {
                let Some((mapping, file)) = self.mappings.get(&first(command)).copied() else {
                    return;
                };
                out.push(needs(Sort::Mapping, &mapping));
                let is_changed = command.call == Call::Touch && command.numbers.get(3) != Some(&0);
                out.push(Resource {
                    is_changed,
                    ..needs(Sort::Content, &file)
                });
            }
            _ => {}
        }
    }
}

/// Appends the resources of files that a command needs and changes.
fn of_files(command: &Command, files: &[u64], out: &mut Vec<Resource>) {
    let truncates = first(command) & libc::O_TRUNC as u64 != 0;
    for (index, file) in files.iter().enumerate() {
        match command.call {
            Call::Write | Call::Pwrite | Call::Truncate | Call::Allocate => {
                out.push(changes(Sort::Content, file));
            }
            Call::Copy | Call::Clone if index == 1 => out.push(changes(Sort::Content, file)),
            Call::Open if truncates => out.push(changes(Sort::Content, file)),
            Call::Read | Call::Pread | Call::Copy | Call::Clone | Call::Sync | Call::Map => {
                out.push(needs(Sort::Content, file));
            }
            // A seek may be relative to the end of the file, or look for holes.
            Call::Seek => out.push(needs(Sort::Content, file)),
            Call::Chmod | Call::Chown | Call::Utimes | Call::Setxattr | Call::Removexattr => {
                out.push(changes(Sort::Attributes, file));
            }
            Call::Stat | Call::Access | Call::Getxattr | Call::Listxattr | Call::Open => {
                out.push(needs(Sort::Attributes, file));
            }
            Call::Flock | Call::Lock => out.push(changes(Sort::Locks, file)),
            Call::Readdir | Call::Rmdir => out.push(needs(Sort::Entries, file)),
            _ => {}
        }
    }
}

/// Whether a command uses the offset or the flags of the open file.
fn uses_offset(command: &Command) -> bool {
    matches!(
        command.call,
        Call::Read
            | Call::Write
            | Call::Seek
            | Call::Readdir
            | Call::Copy
            | Call::Fcntl
            | Call::Flock
    )
}

fn needs<T: Hash>(sort: Sort, what: &T) -> Resource {
    let mut hasher = DefaultHasher::new();
    sort.hash(&mut hasher);
    what.hash(&mut hasher);
    // A collision only adds an unnecessary dependency.
    Resource {
        key: hasher.finish(),
        is_changed: false,
        is_needed: true,
    }
}

fn changes<T: Hash>(sort: Sort, what: &T) -> Resource {
    Resource {
        is_changed: true,
        ..needs(sort, what)
    }
}
