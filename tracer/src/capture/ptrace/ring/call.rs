//! Makes the event of a call from its record.

use goanna_sys::recorder::{Item, Record};
use goanna_syscalls::{DecodedCall, Memory, Names, Outcome, Subject, Treatment, decode};

use crate::capture::Wanted;
use crate::capture::ptrace::files::{
    self, RESULT, descriptors, opens, paths, returned_descriptor, without_suffix,
};
use crate::event::{Call, File};

/// A record, which says what a stopped thread would have shown.
struct Recorded<'r> {
    items: Vec<Item<'r>>,
    /// The descriptor of the call that has opened its path.
    opened: Option<i32>,
    /// What an empty path is: the first argument.
    directory: i32,
}

impl Memory for Recorded<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let found = self.items.iter().find_map(|item| match item {
            Item::Memory(start, content) => {
                let at = usize::try_from(address.checked_sub(*start)?).ok()?;
                content.get(at..).filter(|rest| !rest.is_empty())
            }
            _ => None,
        });
        let found = found.unwrap_or_default();
        let len = found.len().min(into.len());
        for (to, from) in into.iter_mut().zip(found) {
            *to = *from;
        }
        len
    }
}

impl Names for Recorded<'_> {
    fn descriptor(&self, number: i32) -> Option<Box<[u8]>> {
        let link = self.items.iter().find_map(|item| match item {
            Item::Link(own, link) if *own == number => Some(*link),
            _ => None,
        })?;
        let is_removed = || self.file(number, None).is_some_and(|file| file.links == 0);
        Some(without_suffix(link, is_removed).into())
    }

    fn path(&self, directory: i32, path: &[u8], _: bool) -> Option<Box<[u8]>> {
        if path.is_empty() {
            return self.descriptor(directory);
        }
        if let Some(opened) = self.opened {
            return self.descriptor(opened);
        }
        self.items.iter().find_map(|item| match item {
            Item::PathLink(link) => Some(Box::from(*link)),
            Item::ParentLink(link) => files::with_last_component(link, path),
            Item::PathWithoutLinks => Some(files::normal(path)),
            Item::ParentWithoutLinks => {
                let parent = files::normal(files::split(path).0);
                files::with_last_component(&parent, path)
            }
            _ => None,
        })
    }
}

impl Recorded<'_> {
    fn file(&self, number: i32, path: Option<Box<[u8]>>) -> Option<File> {
        self.items.iter().find_map(|item| match item {
            Item::FileStat(own, stat) if *own == number => file(stat, path.clone()),
            _ => None,
        })
    }

    /// As `files::after`, of a thread that is stopped.
    fn files(&self, call: &DecodedCall, result: Option<i64>) -> Vec<(u8, File)> {
        let of_descriptors = descriptors(call);
        let mut files: Vec<(u8, File)> = of_descriptors
            .filter_map(|(index, number, path)| Some((index, self.file(number, path)?)))
            .collect();
        let returned = result.and_then(|result| returned_descriptor(call, result));
        let returned = returned.and_then(|number| self.file(number, self.descriptor(number)));
        let of_path = self.items.iter().find_map(|item| match item {
            Item::PathStat(stat) => Some(*stat),
            _ => None,
        });
        for (index, given, resolved) in paths(call) {
            let found = match &returned {
                Some(file) if opens(call) => Some(file.clone()),
                _ if given.is_empty() => self.file(self.directory, resolved.clone()),
                _ => of_path.and_then(|stat| file(stat, resolved.clone())),
            };
            files.extend(found.map(|file| (index, file)));
        }
        files.extend(returned.map(|file| (RESULT, file)));
        files
    }
}

/// What a `struct stat` says.
fn file(stat: &[u8], path: Option<Box<[u8]>>) -> Option<File> {
    let word = |at: usize| {
        let bytes = stat.get(at..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    };
    Some(File {
        device: word(0)?,
        inode: word(8)?,
        mode: word(24)? as u32,
        links: word(16)?,
        size: word(48)?,
        path,
    })
}

/// The event of a call of `subject`; `None` if it is not wanted. A call that is not `finished` has no outcome.
pub fn event(
    record: &Record<'_>,
    subject: &Subject,
    wanted: &Wanted,
    finished: bool,
) -> Option<Call> {
    if !wanted.may_want(record.nr, subject) {
        return None;
    }
    let (limits, details) = (wanted.limits(), wanted.details());
    let mut recorded = Recorded {
        items: record.items().collect(),
        opened: None,
        directory: record.args.first().map_or(0, |first| *first as i32),
    };
    let mut call = decode(record.nr, record.args, &recorded, &limits);
    let result = finished.then_some(record.result);
    if let Some(result) = result {
        call.complete(result, &recorded, &limits);
        recorded.opened = returned_descriptor(&call, result).filter(|_| opens(&call));
    }
    let mut files = Vec::new();
    if details.paths || details.files {
        call.name(&recorded);
        if finished {
            files = recorded.files(&call, result);
        }
        if !details.files {
            files.retain(|(index, _)| *index == RESULT);
        }
    }
    Some(Call {
        subject: subject.clone(),
        call,
        entered_ns: record.entered_ns,
        outcome: result.map(|result| Outcome {
            result,
            left_ns: record.left_ns,
            treatment: Treatment::Kernel,
        }),
        files,
    })
}
