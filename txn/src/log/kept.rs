//! The segments of the log that a store keeps although it does not need them any more: `amino run --keep-log`.
//!
//! They stay in the directory of the log, under another name. The header does not list the segments, but the transactions that
//! they have, so that a missing, truncated or damaged segment is detected. Bytes behind the last whole frame of a segment do not
//! count.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use amino_schema::header::{Header, Kept};
use amino_schema::log::{
    FRAME_ALIGN, FRAME_HEADER_LEN, FoundFrame, SEGMENT_HEADER_LEN, SegmentHeader,
};

use super::segment_files::{SUFFIX, segments};
use crate::{Error, Loss};

/// The suffix of the names of kept segments.
const KEPT: &str = ".kept";

const WINDOW: usize = 256 << 10;

/// The content of the segments that were kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptLog {
    /// Whether the store keeps further segments from now on.
    pub keeps: bool,
    /// Number of segments.
    pub segments: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Number of transactions.
    pub transactions: u64,
    /// The times of the first and the last one, nanoseconds since 1970.
    pub times: Option<(u64, u64)>,
    /// The gaps: transactions that should exist and cannot be read.
    pub losses: Vec<Loss>,
}

/// Adds the transactions of segments that are released to those that are kept.
pub(super) fn extend(kept: &mut Vec<Kept>, segments: &[Kept]) {
    for segment in segments {
        match kept.last_mut() {
            Some(last) if segment.last <= last.last => {}
            Some(last) if segment.first <= last.last.saturating_add(1) => last.last = segment.last,
            _ => kept.push(*segment),
        }
    }
}

pub(super) fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Renames a segment as a kept one.
pub(super) fn rename(path: &Path) -> std::io::Result<()> {
    fs::rename(path, path.with_extension(&KEPT[1..]))
}

/// The highest number of a kept segment in `dir`; 0 without one.
pub(super) fn last_number(dir: &Path) -> Result<u64, Error> {
    let kept = segments(dir, KEPT)?;
    Ok(kept.last().map_or(0, |(number, _)| *number))
}

/// Whether a segment that the header does not list is a kept one without the new name, because a crash came before the renaming.
pub(super) fn is_kept(path: &Path, header: &Header) -> Result<bool, Error> {
    if header.kept.is_empty() {
        return Ok(false);
    }
    let file = File::open(path).map_err(Error::io("open", path))?;
    let mut runs = Vec::new();
    read_segment(path, &Window::new(path, file)?, header, false, &mut runs)?;
    let first = runs.first().map_or(0, |run| run.frames.first);
    let mut kept = header.kept.iter();
    Ok(kept.any(|kept| kept.first <= first && first <= kept.last))
}

/// Frames that follow each other in a segment.
struct Run {
    path: PathBuf,
    /// Length of the file.
    bytes: u64,
    frames: Kept,
    times: (u64, u64),
}

/// Reads the kept segments in `dir`: their headers, and with `payloads` everything.
pub(super) fn read(dir: &Path, header: &Header, payloads: bool) -> Result<KeptLog, Error> {
    let mut log = KeptLog {
        keeps: header.keep_log,
        ..KeptLog::default()
    };
    if header.kept.is_empty() {
        return Ok(log);
    }
    let mut runs = Vec::new();
    let mut found = segments(dir, KEPT)?;
    found.extend(segments(dir, SUFFIX)?);
    found.sort_unstable();
    for (number, path) in found {
        if header.segments.iter().any(|listed| listed.number == number) {
            continue;
        }
        match File::open(&path) {
            Ok(file) => read_segment(
                &path,
                &Window::new(&path, file)?,
                header,
                payloads,
                &mut runs,
            )?,
            // It was just released.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("open", &path)(error)),
        }
    }
    for kept in &header.kept {
        log.add(dir, *kept, &runs);
    }
    Ok(log)
}

fn read_segment(
    path: &Path,
    window: &Window,
    header: &Header,
    payloads: bool,
    runs: &mut Vec<Run>,
) -> Result<(), Error> {
    let mut buffer = Buffer::default();
    let head = window.at(0, SEGMENT_HEADER_LEN, &mut buffer)?;
    let Ok(segment) = SegmentHeader::decode(head) else {
        return Ok(());
    };
    if segment.store_id != header.store_id {
        return Ok(());
    }
    let (mut at, mut follows) = (SEGMENT_HEADER_LEN as u64, false);
    while at < window.len {
        let raw = window.at(at, FRAME_HEADER_LEN, &mut buffer)?;
        let found = FoundFrame::decode(&segment, raw).ok();
        let found =
            found.filter(|found| found.padded_len().is_some_and(|len| len <= window.len - at));
        let found = match found {
            Some(found) if payloads && !window.has_payload(at, &found)? => None,
            found => found,
        };
        let Some(found) = found else {
            at += FRAME_ALIGN as u64;
            follows = false;
            continue;
        };
        let (seq, time) = (found.header.seq, found.header.time_ns);
        match runs.last_mut() {
            Some(run) if follows && run.frames.last.checked_add(1) == Some(seq) => {
                run.frames.last = seq;
                run.times.1 = time;
            }
            _ => runs.push(Run {
                path: path.to_owned(),
                bytes: window.len,
                frames: Kept {
                    first: seq,
                    last: seq,
                },
                times: (time, time),
            }),
        }
        follows = true;
        at += found.padded_len().unwrap_or(FRAME_ALIGN as u64);
    }
    Ok(())
}

impl KeptLog {
    /// Adds the transactions of `kept` that `runs` contain, and lists the missing ones. A run that begins behind the end of the
    /// one before is the remainder after a hole of a crash.
    fn add(&mut self, dir: &Path, kept: Kept, runs: &[Run]) {
        let mut next = kept.first;
        let mut last_path: Option<&Path> = None;
        while next <= kept.last {
            let has_next = |run: &&Run| run.frames.first <= next && next <= run.frames.last;
            let Some(run) = runs.iter().find(has_next) else {
                let later = runs.iter().map(|run| run.frames.first);
                let later = later.filter(|first| *first > next).min();
                let end = later.unwrap_or(u64::MAX).min(kept.last.saturating_add(1));
                self.losses.push(Loss {
                    place: last_path.unwrap_or(dir).display().to_string(),
                    what: format!(
                        "transactions {next} to {}, which were kept, are not to be read here or behind",
                        end - 1
                    ),
                });
                next = end;
                continue;
            };
            if last_path != Some(&run.path) {
                self.segments += 1;
                self.bytes += run.bytes;
                last_path = Some(&run.path);
            }
            let end = run.frames.last.min(kept.last);
            self.transactions += end - next + 1;
            let first = self.times.map_or(run.times.0, |(first, _)| first);
            self.times = Some((first, run.times.1));
            next = end.saturating_add(1);
        }
    }
}

/// A file that is read from its beginning on.
struct Window {
    path: PathBuf,
    file: File,
    len: u64,
}

/// Part of a file.
#[derive(Default)]
struct Buffer {
    start: u64,
    raw: Vec<u8>,
}

impl Window {
    fn new(path: &Path, file: File) -> Result<Self, Error> {
        let len = file.metadata().map_err(Error::io("read", path))?.len();
        Ok(Self {
            path: path.to_owned(),
            file,
            len,
        })
    }

    /// The `len` bytes at `at`, or as many as there are.
    fn at<'a>(&self, at: u64, len: usize, buffer: &'a mut Buffer) -> Result<&'a [u8], Error> {
        let held = |buffer: &Buffer| {
            let from = usize::try_from(at.checked_sub(buffer.start)?).ok()?;
            let to = from.checked_add(len)?;
            (to <= buffer.raw.len()).then_some(from..to)
        };
        if held(buffer).is_none() {
            let size = usize::try_from(self.len.saturating_sub(at)).unwrap_or(usize::MAX);
            buffer.raw.resize(size.min(WINDOW.max(len)), 0);
            buffer.start = at;
            let read = self.file.read_exact_at(&mut buffer.raw, at);
            read.map_err(Error::io("read", &self.path))?;
        }
        let range = held(buffer).unwrap_or(0..buffer.raw.len());
        Ok(buffer.raw.get(range).unwrap_or_default())
    }

    /// Whether the payload of the frame at `at` is whole.
    fn has_payload(&self, at: u64, found: &FoundFrame) -> Result<bool, Error> {
        let len = usize::try_from(found.header.payload_len).unwrap_or(usize::MAX);
        let mut payload = vec![0; len];
        let start = at + found.header_len as u64;
        let read = self.file.read_exact_at(&mut payload, start);
        read.map_err(Error::io("read", &self.path))?;
        Ok(found.matches(&payload))
    }
}
