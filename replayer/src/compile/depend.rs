//! Dependencies: an operation must follow earlier ones on the same descriptor, the same name or one above it, or the same bytes.
//!
//! The table keeps, for each resource, the accesses that later ones may have to follow. Accesses of the same kind, except [`Kind::Alone`],
//! may come in any order. Names are stored as hashes: a collision only adds an unnecessary dependency. Dependencies lead only from later to
//! earlier commands, so there are no cycles.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use amino_schema::replay::Wait;

/// How an operation uses a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only reads.
    Look,
    /// It changes the resource, but the order among such changes does not matter: entries of a directory.
    Change,
    /// Its order relative to all other accesses matters.
    Alone,
}

/// A resource that operations share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Resource(u64);

impl Resource {
    pub fn slot(slot: u32) -> Self {
        Self::of(1, &slot)
    }

    pub fn description(number: u64) -> Self {
        Self::of(2, &number)
    }

    pub fn name(path: &[u8]) -> Self {
        Self::of(3, path)
    }

    pub fn entries(path: &[u8]) -> Self {
        Self::of(4, path)
    }

    pub fn attributes(file: u64) -> Self {
        Self::of(5, &file)
    }

    pub fn locks(file: u64) -> Self {
        Self::of(6, &file)
    }

    pub fn mapping(slot: u32) -> Self {
        Self::of(7, &slot)
    }

    fn of<T: Hash + ?Sized>(sort: u8, what: &T) -> Self {
        let mut hasher = DefaultHasher::new();
        sort.hash(&mut hasher);
        what.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// A command that used a resource.
#[derive(Debug, Clone, Copy)]
struct Access {
    lane: u32,
    order: u64,
    left_ns: u64,
}

/// Bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub start: u64,
    pub end: u64,
}

impl Range {
    pub const ALL: Self = Self {
        start: 0,
        end: u64::MAX,
    };

    pub fn new(start: u64, length: u64) -> Self {
        let end = start.saturating_add(length);
        Self { start, end }
    }

    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// The resources that a command uses.
#[derive(Debug, Default)]
pub struct Uses {
    pub resources: Vec<(Resource, Kind)>,
    /// Files by number, with ranges, and whether the command writes them.
    pub bytes: Vec<(u64, Range, bool)>,
}

impl Uses {
    pub fn add(&mut self, resource: Resource, kind: Kind) {
        self.resources.push((resource, kind));
    }
}

/// A command, as the table of dependencies sees it.
#[derive(Debug, Clone, Copy)]
pub struct Issuer {
    pub lane: u32,
    pub order: u64,
    pub entered_ns: u64,
    pub left_ns: u64,
}

/// The commands that a command must wait for.
#[derive(Debug, Default)]
pub struct Prerequisites {
    pub waits: Vec<Wait>,
    /// A conflicting command overlapped it in the trace.
    pub is_racy: bool,
}

#[derive(Debug, Default)]
struct State {
    kind: Option<Kind>,
    now: Vec<Access>,
    before: Vec<Access>,
}

type Ranges = Vec<(Range, bool, Access)>;

/// The state of all resources.
#[derive(Debug, Default)]
pub struct Dependencies {
    resources: HashMap<Resource, State>,
    files: HashMap<u64, Ranges>,
    /// The order of the last command of each lane.
    last: HashMap<u32, u64>,
    /// For two lanes: the order up to which the first one is known to follow the second one.
    known: HashMap<(u32, u32), u64>,
    /// Lanes whose next command waits for all commands before that order.
    barrier: HashMap<u32, Vec<Wait>>,
    waits: u64,
}

/// Maximum number of resources in the table. One more empties it, and the next command of each lane waits for all earlier ones.
const MAX_RESOURCES: usize = 1 << 20;
/// Maximum number of ranges of a file that are kept separately.
const MAX_RANGES: usize = 64;

impl Dependencies {
    /// Adds a command; `extra` are dependencies that do not come from resources.
    pub fn add(&mut self, issuer: Issuer, uses: &Uses, extra: &[Wait]) -> Prerequisites {
        if self.resources.len() + self.files.len() > MAX_RESOURCES {
            self.start_anew();
        }
        let mut found: Vec<Access> = Vec::new();
        for (resource, kind) in &uses.resources {
            self.use_resource(issuer, *resource, *kind, &mut found);
        }
        for (file, range, writes) in &uses.bytes {
            self.use_bytes(issuer, *file, *range, *writes, &mut found);
        }
        let mut must = Prerequisites::default();
        for access in found.iter().filter(|access| access.lane != issuer.lane) {
            must.is_racy |= access.left_ns > issuer.entered_ns;
        }
        let mut latest: HashMap<u32, u64> = HashMap::new();
        let barrier = self.barrier.remove(&issuer.lane).unwrap_or_default();
        let waits = extra.iter().chain(&barrier).map(|it| (it.lane, it.order));
        for (lane, order) in waits.chain(found.iter().map(|it| (it.lane, it.order))) {
            if lane != issuer.lane && order < issuer.order {
                let slot = latest.entry(lane).or_insert(order);
                *slot = order.max(*slot);
            }
        }
        for (lane, order) in latest {
            let known = self.known.entry((issuer.lane, lane)).or_insert(0);
            if order > *known || must.is_racy {
                *known = order.max(*known);
                must.waits.push(Wait { lane, order });
            }
        }
        must.waits.sort_unstable_by_key(|wait| wait.lane);
        self.waits += must.waits.len() as u64;
        self.last.insert(issuer.lane, issuer.order);
        must
    }

    /// How many dependencies there are.
    pub fn count(&self) -> u64 {
        self.waits
    }

    fn use_resource(
        &mut self,
        issuer: Issuer,
        resource: Resource,
        kind: Kind,
        found: &mut Vec<Access>,
    ) {
        let state = self.resources.entry(resource).or_default();
        if state.kind != Some(kind) || kind == Kind::Alone {
            state.before = std::mem::take(&mut state.now);
            state.kind = Some(kind);
        }
        found.extend(&state.before);
        let access = access(issuer);
        match state.now.iter_mut().find(|it| it.lane == issuer.lane) {
            Some(own) => *own = access,
            None => state.now.push(access),
        }
    }

    fn use_bytes(
        &mut self,
        issuer: Issuer,
        file: u64,
        range: Range,
        writes: bool,
        found: &mut Vec<Access>,
    ) {
        let ranges = self.files.entry(file).or_default();
        let conflicts = |(other, written, _): &&(Range, bool, Access)| {
            other.overlaps(range) && (writes || *written)
        };
        found.extend(
            ranges
                .iter()
                .filter(conflicts)
                .map(|(_, _, access)| *access),
        );
        // Later commands follow this one, so they need not follow the accesses that it covers.
        if writes {
            ranges.retain(|(other, _, access)| {
                let covered = range.start <= other.start && other.end <= range.end;
                !covered && (access.lane != issuer.lane || *other != range)
            });
        } else {
            ranges.retain(|(other, written, access)| {
                *written || access.lane != issuer.lane || *other != range
            });
        }
        if ranges.len() >= MAX_RANGES {
            Self::merge(ranges);
        }
        ranges.push((range, writes, access(issuer)));
    }

    /// Replaces ranges by the whole file, one entry for each lane and kind.
    fn merge(ranges: &mut Ranges) {
        let mut merged: Ranges = Vec::new();
        for (_, written, access) in ranges.drain(..) {
            let same = merged
                .iter_mut()
                .find(|(_, other, it)| it.lane == access.lane && *other == written);
            match same {
                Some((_, _, it)) => *it = access,
                None => merged.push((Range::ALL, written, access)),
            }
        }
        *ranges = merged;
    }

    fn start_anew(&mut self) {
        self.resources.clear();
        self.files.clear();
        let all: Vec<Wait> = self
            .last
            .iter()
            .map(|(&lane, &order)| Wait { lane, order })
            .collect();
        self.barrier = self.last.keys().map(|&lane| (lane, all.clone())).collect();
    }

    /// If the table has been emptied, makes the first command of a new lane wait, like the next command of each other lane.
    pub fn of_new_lane(&mut self, lane: u32) {
        if let Some(all) = self.barrier.values().next().cloned() {
            self.barrier.insert(lane, all);
        }
    }
}

fn access(issuer: Issuer) -> Access {
    Access {
        lane: issuer.lane,
        order: issuer.order,
        left_ns: issuer.left_ns,
    }
}
