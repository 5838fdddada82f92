//! Checking a store: the seven integrity constraints of the papers (section 2.3), and further ones.
//!
//! The store's records are read once, in key order, into tables of the required data; each constraint is a function over
//! these tables. Memory grows with the number of files, not with their content. Nothing is changed.

mod constraints;
mod survey;

use std::fmt;
use std::path::Path;

use amino_txn::{Loss, Store};

use crate::{Error, Options};

pub use survey::Survey;

/// A constraint.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub enum Constraint {
    /// Every record can be read and is of a known version.
    Records,
    /// The number and the sum of the engine's entries are as recorded.
    Holdings,
    /// The kept segments of the log have all transactions that the header lists.
    KeptLog,
    /// Each file identifier is unique, and below the next one to be allocated.
    UniqId,
    /// Each file's link count equals the number of names that refer to it.
    RefCount,
    /// Each file has a name, or is in the orphan key space.
    NoOrphanedFiles,
    /// Each data page, and each extended attribute, belongs to a file.
    NoOrphanedBlocks,
    /// If and only if a file has several names, its metadata is data-local; its names are in the link index.
    HardLinkUsesDlmd,
    /// A file has no pages beyond its size, and none when its content is inline.
    PagesMatchSize,
    /// The last page does not extend beyond the size.
    LastPageMatchesSize,
    /// A directory's link count is 2 and its subdirectories, its size the number of its entries.
    DirectoryCounts,
    /// Every name can be reached from the root, through directories only.
    Reachable,
}

impl Constraint {
    /// Its name; that of the papers for their constraints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Records => "RECORDS",
            Self::Holdings => "HOLDINGS",
            Self::KeptLog => "KEPTLOG",
            Self::UniqId => "UNIQID",
            Self::RefCount => "REFCOUNT",
            Self::NoOrphanedFiles => "NOORPHANEDFILES",
            Self::NoOrphanedBlocks => "NOORPHANEDBLOCKS",
            Self::HardLinkUsesDlmd => "HARDLINKUSESDLMD",
            Self::PagesMatchSize => "PAGESMATCHSIZE",
            Self::LastPageMatchesSize => "LASTPAGEMATCHESSIZE",
            Self::DirectoryCounts => "DIRECTORYCOUNTS",
            Self::Reachable => "REACHABLE",
        }
    }
}

/// A violation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Finding {
    /// The violated constraint.
    pub constraint: Constraint,
    /// The key at which it was found.
    pub key: Vec<u8>,
    /// The inode, where known.
    pub ino: Option<u64>,
    /// A path of the inode, where known.
    pub path: Option<Vec<u8>>,
    /// The description of the violation.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.constraint.name())?;
        if let Some(path) = &self.path {
            write!(f, "/{}: ", path.escape_ascii())?;
        }
        if let Some(ino) = self.ino {
            write!(f, "inode {ino}: ")?;
        }
        write!(f, "{} (key {})", self.what, self.key.escape_ascii())
    }
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Report {
    /// Records read.
    pub records: u64,
    /// Files of any kind, directories included.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Files without names that were in use; the next open removes them.
    pub orphans: u64,
    /// Data pages.
    pub pages: u64,
    /// Bytes of regular files.
    pub bytes: u64,
    /// Transactions in segments of the log that were kept.
    pub kept_transactions: u64,
    /// The violations, in the order of the constraints.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether there is no violation.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// A check function over the survey.
pub type Check = fn(&Survey, &mut Vec<Finding>);

/// The constraints and their functions, in the order of the report.
pub const CHECKS: [(Constraint, Check); 9] = [
    (Constraint::UniqId, constraints::uniq_id),
    (Constraint::RefCount, constraints::ref_count),
    (Constraint::NoOrphanedFiles, constraints::no_orphaned_files),
    (
        Constraint::NoOrphanedBlocks,
        constraints::no_orphaned_blocks,
    ),
    (
        Constraint::HardLinkUsesDlmd,
        constraints::hard_link_uses_dlmd,
    ),
    (Constraint::PagesMatchSize, constraints::pages_match_size),
    (
        Constraint::LastPageMatchesSize,
        constraints::last_page_matches_size,
    ),
    (Constraint::DirectoryCounts, constraints::directory_counts),
    (Constraint::Reachable, constraints::reachable),
];

/// Opens the store in `store_dir`, which no process may have open, and checks it. Recovery of the log is part of opening;
/// orphans are left alone. `progress` receives the number of records read, now and then.
pub fn fsck(store_dir: &Path, progress: &mut dyn FnMut(u64)) -> Result<Report, Error> {
    let store = crate::open_store(store_dir, &Options::default())?;
    let report = check(&store, progress)?;
    store.close()?;
    Ok(report)
}

fn holdings((tag, what): (u8, String)) -> Finding {
    Finding {
        constraint: Constraint::Holdings,
        key: vec![tag],
        ino: None,
        path: None,
        what,
    }
}

fn kept_log(Loss { place, what }: Loss) -> Finding {
    Finding {
        constraint: Constraint::KeptLog,
        key: place.into_bytes(),
        ino: None,
        path: None,
        what,
    }
}

/// Checks the state of an open store at one moment; other threads may change the store meanwhile.
pub fn check(store: &Store, progress: &mut dyn FnMut(u64)) -> Result<Report, Error> {
    let snapshot = store.snapshot()?;
    let mut survey = Survey::read(&snapshot, progress)?;
    if survey.records == 0 && store.info().appended_seq == 0 {
        // A crash came between the creation of the store and its first record, the root directory; the next open writes it.
        return Ok(Report::default());
    }
    let mut findings = std::mem::take(&mut survey.undecodable);
    findings.extend(snapshot.differences()?.into_iter().map(holdings));
    drop(snapshot);
    let kept = store.kept_log(true)?;
    findings.extend(kept.losses.into_iter().map(kept_log));
    for (_, check) in CHECKS {
        check(&survey, &mut findings);
    }
    Ok(Report {
        records: survey.records,
        files: survey.files.len() as u64,
        directories: survey.files.values().filter(|file| file.is_dir()).count() as u64,
        orphans: survey.files.values().filter(|file| file.orphan).count() as u64,
        pages: survey.pages.values().map(|pages| pages.count).sum(),
        bytes: survey
            .files
            .values()
            .map(survey::File::content_len)
            .fold(0, u64::saturating_add),
        kept_transactions: kept.transactions,
        findings,
    })
}
