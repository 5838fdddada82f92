//! The integrity constraints over the survey of a store, one function each. `mod.rs` lists them, with those on the engine and on the
//! kept log.

use std::collections::HashSet;

use amino_schema::{FileKind, INLINE_MAX, ROOT_INO, ROOT_PARENT, key};

use super::survey::{File, Survey};
use super::{Constraint, Finding};

fn find(
    out: &mut Vec<Finding>,
    survey: &Survey,
    constraint: Constraint,
    key: Vec<u8>,
    ino: u64,
    what: String,
) {
    out.push(Finding {
        constraint,
        key,
        ino: Some(ino),
        path: survey.path(ino),
        what,
    });
}

/// A key under which the file's metadata is, or should be.
fn meta_key(ino: u64, file: &File) -> Vec<u8> {
    match file.names.iter().find(|(_, _, has_meta)| *has_meta) {
        Some(((parent, name), _, _)) => key::path_key(*parent, name),
        None if file.orphan => key::orphan_key(ino),
        None => key::data_key(ino),
    }
}

/// UNIQID: one identifier, one file. Two copies of metadata would be two files of one identifier.
pub fn uniq_id(survey: &Survey, out: &mut Vec<Finding>) {
    const CONSTRAINT: Constraint = Constraint::UniqId;
    for (&ino, file) in &survey.files {
        let at = meta_key(ino, file);
        if file.metas > 1 {
            let what = format!("there are {} copies of its metadata", file.metas);
            find(out, survey, CONSTRAINT, at.clone(), ino, what);
        }
        if file
            .names
            .iter()
            .any(|(_, kind, _)| file.metas > 0 && Some(*kind) != file.kind())
        {
            let what = "a directory entry has another file type than the metadata".to_owned();
            find(out, survey, CONSTRAINT, at.clone(), ino, what);
        }
        if ino >= survey.next_ino {
            let what = format!(
                "the number is not below the next one to be allocated, {}",
                survey.next_ino
            );
            find(out, survey, CONSTRAINT, at, ino, what);
        }
    }
}

/// REFCOUNT: the number of names equals the link count. A directory has one name; see [`directory_counts`].
pub fn ref_count(survey: &Survey, out: &mut Vec<Finding>) {
    const CONSTRAINT: Constraint = Constraint::RefCount;
    for (&ino, file) in &survey.files {
        if file.metas == 0 {
            continue;
        }
        let names = file.names.len();
        let expected = match (file.is_dir(), file.orphan) {
            (_, true) => 0,
            (true, false) => 1,
            (false, false) => file.nlink as usize,
        };
        if names != expected || (file.orphan && file.nlink != 0) {
            let what = format!("it has {names} names and the link count {}", file.nlink);
            find(out, survey, CONSTRAINT, meta_key(ino, file), ino, what);
        }
    }
}

/// NOORPHANEDFILES: metadata that belongs to no name is in the orphan key space, and names have metadata.
pub fn no_orphaned_files(survey: &Survey, out: &mut Vec<Finding>) {
    const CONSTRAINT: Constraint = Constraint::NoOrphanedFiles;
    for (&ino, file) in &survey.files {
        let at = meta_key(ino, file);
        if file.data && file.names.is_empty() && !file.orphan {
            let what = "no name refers to it, and it is not an orphan".to_owned();
            find(out, survey, CONSTRAINT, at.clone(), ino, what);
        }
        if file.metas == 0 {
            let what = match file.names.is_empty() {
                true => "the link index mentions a file that does not exist".to_owned(),
                false => "a name refers to a file without metadata".to_owned(),
            };
            find(out, survey, CONSTRAINT, at, ino, what);
        }
    }
}

/// NOORPHANEDBLOCKS: pages and attributes belong to files.
pub fn no_orphaned_blocks(survey: &Survey, out: &mut Vec<Finding>) {
    const CONSTRAINT: Constraint = Constraint::NoOrphanedBlocks;
    for (&ino, pages) in &survey.pages {
        let owner = survey.files.get(&ino).filter(|file| file.metas > 0);
        if owner.is_none() {
            let what = format!("{} pages belong to no file", pages.count);
            find(
                out,
                survey,
                CONSTRAINT,
                key::page_key(ino, pages.last),
                ino,
                what,
            );
        }
    }
    for (&ino, name) in &survey.xattrs {
        let owner = survey.files.get(&ino).filter(|file| file.metas > 0);
        if owner.is_none() {
            let what = "an extended attribute belongs to no file".to_owned();
            find(
                out,
                survey,
                CONSTRAINT,
                key::xattr_key(ino, name),
                ino,
                what,
            );
        }
    }
}

/// HARDLINKUSESDLMD: several names, and only then, share a data record; all of them are in the link index.
pub fn hard_link_uses_dlmd(survey: &Survey, out: &mut Vec<Finding>) {
    const CONSTRAINT: Constraint = Constraint::HardLinkUsesDlmd;
    for (&ino, file) in &survey.files {
        let at = meta_key(ino, file);
        if file.data != (file.names.len() > 1) {
            let what = format!(
                "it has {} names and {} data record",
                file.names.len(),
                if file.data { "a" } else { "no" }
            );
            find(out, survey, CONSTRAINT, at.clone(), ino, what);
        }
        let listed = |(name, _, _): &(_, _, bool)| file.links.contains(name);
        let complete = if file.data {
            file.names.iter().all(listed) && file.links.len() == file.names.len()
        } else {
            file.links.is_empty()
        };
        if !complete {
            let what = format!(
                "its {} names are not the {} of the link index",
                file.names.len(),
                file.links.len()
            );
            find(out, survey, CONSTRAINT, at, ino, what);
        }
    }
}

/// PAGESMATCHSIZE: no page at or beyond the size.
pub fn pages_match_size(survey: &Survey, out: &mut Vec<Finding>) {
    const CONSTRAINT: Constraint = Constraint::PagesMatchSize;
    for (&ino, pages) in &survey.pages {
        let Some(file) = survey.files.get(&ino) else {
            continue;
        };
        let at = key::page_key(ino, pages.last);
        if pages.last >= file.size.div_ceil(survey.page_size) {
            let what = format!(
                "page {} lies beyond the size of {} bytes",
                pages.last, file.size
            );
            find(out, survey, CONSTRAINT, at.clone(), ino, what);
        }
        if file.inline_len.is_some() || (file.metas > 0 && file.kind() != Some(FileKind::Regular)) {
            let what = "it has pages beside inline content, or is not a regular file".to_owned();
            find(out, survey, CONSTRAINT, at, ino, what);
        }
    }
    for (&ino, file) in &survey.files {
        let (Some(kind), Some(len)) = (file.kind(), file.inline_len) else {
            continue;
        };
        let too_long = kind == FileKind::Regular && len > INLINE_MAX;
        if len as u64 != file.size || too_long {
            let what = format!("{len} bytes are inline, the size is {}", file.size);
            find(out, survey, CONSTRAINT, meta_key(ino, file), ino, what);
        }
    }
}

/// LASTPAGEMATCHESSIZE: the last page does not extend beyond the size.
pub fn last_page_matches_size(survey: &Survey, out: &mut Vec<Finding>) {
    for (&ino, pages) in &survey.pages {
        let Some(file) = survey.files.get(&ino) else {
            continue;
        };
        let rest = file.size % survey.page_size;
        if pages.last == file.size / survey.page_size && pages.last_len > rest {
            let what = format!("the last page has {} bytes of {rest}", pages.last_len);
            let at = key::page_key(ino, pages.last);
            find(out, survey, Constraint::LastPageMatchesSize, at, ino, what);
        }
    }
}

/// A directory's counts.
pub fn directory_counts(survey: &Survey, out: &mut Vec<Finding>) {
    const CONSTRAINT: Constraint = Constraint::DirectoryCounts;
    for (&ino, file) in survey.files.iter().filter(|(_, file)| file.is_dir()) {
        let (entries, subdirs) = survey.counts.get(&ino).copied().unwrap_or_default();
        if !file.orphan && file.nlink != subdirs.saturating_add(2) {
            let what = format!(
                "it has {subdirs} subdirectories and the link count {}",
                file.nlink
            );
            find(out, survey, CONSTRAINT, meta_key(ino, file), ino, what);
        }
        if file.size != entries {
            let what = format!("it has {entries} entries and the size {}", file.size);
            find(out, survey, CONSTRAINT, meta_key(ino, file), ino, what);
        }
    }
}

/// Every name lies in a directory, and every directory below the root.
pub fn reachable(survey: &Survey, out: &mut Vec<Finding>) {
    const CONSTRAINT: Constraint = Constraint::Reachable;
    let root = survey.files.get(&ROOT_INO);
    if !root.is_some_and(|root| {
        root.names
            .iter()
            .any(|((parent, _), _, _)| *parent == ROOT_PARENT)
    }) {
        let what = "there is no root directory".to_owned();
        find(out, survey, CONSTRAINT, key::root_key(), ROOT_INO, what);
    }
    let mut known: HashSet<u64> = HashSet::from([ROOT_INO]);
    for (&ino, file) in &survey.files {
        for ((parent, name), _, _) in &file.names {
            if ino == ROOT_INO && *parent == ROOT_PARENT {
                continue;
            }
            if !leads_to_root(survey, *parent, &mut known) {
                let what =
                    format!("a name lies in {parent}, which is not a directory below the root");
                find(
                    out,
                    survey,
                    CONSTRAINT,
                    key::path_key(*parent, name),
                    ino,
                    what,
                );
            }
        }
    }
}

/// Whether `dir` is a directory below the root. If so, adds it and the directories above it to `known`.
fn leads_to_root(survey: &Survey, dir: u64, known: &mut HashSet<u64>) -> bool {
    let (mut way, mut at) = (Vec::new(), dir);
    while !known.contains(&at) {
        let up = survey.files.get(&at).filter(|file| file.is_dir());
        let Some(((parent, _), _, _)) = up.and_then(|file| file.names.first()) else {
            return false;
        };
        if way.len() > survey.files.len() {
            return false;
        }
        way.push(at);
        at = *parent;
    }
    known.extend(way);
    true
}
