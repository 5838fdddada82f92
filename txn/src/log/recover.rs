//! Recovery: reads the log after a crash.
//!
//! A crash may lose any of the frames that were not synced, whole or in part and in any order, and nothing else. So
//! reading continues after a hole, but later frames are not replayed. If a frame after the hole records that the hole had
//! been on disk, the log is damaged; recovery reports that, and does not drop durable transactions. The log is also damaged
//! when it ends before the point that the file `synced` names, and when a segment that the header lists is missing or
//! shorter than listed.

use std::fs;
use std::path::{Path, PathBuf};

use amino_schema::header::{Header, Kept, SegmentSize};
use amino_schema::log::{FRAME_ALIGN, FoundFrame, SEGMENT_HEADER_LEN, SegmentHeader, read_changes};
use bytes::Bytes;

use super::segment_files::{SUFFIX, segment_name, segments};
use super::{Former, kept, read_synced};
use crate::dir::LOG;
use crate::{Changes, Error};

/// The result of recovery.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// Number of frames handed over.
    pub(crate) replayed: u64,
    /// The sequence number reached.
    pub(crate) seq: u64,
    /// The files that were in use, and those that are not needed.
    pub(crate) segments: Vec<Former>,
    /// The highest segment number seen.
    pub(crate) last_number: u64,
}

struct Replay<'a> {
    state: Recovered,
    /// The first place where a frame should have been and was not, since the last frame replayed.
    hole: Option<(PathBuf, usize)>,
    apply: &'a mut Apply<'a>,
    damage: &'a mut Damage<'a>,
}

/// Takes a frame's changes.
pub(crate) type Apply<'a> = dyn FnMut(u64, &Changes) -> Result<(), Error> + 'a;
/// Receives reports of damage: an error ends the recovery, `Ok` continues it behind the damage.
pub(crate) type Damage<'a> = dyn FnMut(Error) -> Result<(), Error> + 'a;

/// Hands every frame of the store's log after `applied` to `apply`, in order, up to the end of the log.
pub(crate) fn recover<'a>(
    store: &Path,
    header: &Header,
    applied: u64,
    apply: &'a mut Apply<'a>,
    damage: &'a mut Damage<'a>,
) -> Result<Recovered, Error> {
    let dir = &store.join(LOG);
    let state = Recovered {
        seq: applied,
        ..Recovered::default()
    };
    let mut replay = Replay {
        state,
        hole: None,
        apply,
        damage,
    };
    let lists_segments = header.checkpoint.is_some();
    let mut expected = header.segments.iter().peekable();
    let mut end = (dir.to_owned(), 0);
    replay.state.last_number = kept::last_number(dir)?;
    for (number, path) in segments(dir, SUFFIX)? {
        replay.state.last_number = replay.state.last_number.max(number);
        while let Some(missing) = expected.next_if(|listed| listed.number < number) {
            (replay.damage)(missing_segment(dir, missing))?;
        }
        let listed = expected.next_if(|listed| listed.number == number);
        if lists_segments && listed.is_none() {
            // The segment was released, or never used.
            if !kept::is_kept(&path, header)? {
                replay.state.segments.push(Former::unused(path));
            }
            continue;
        }
        let raw = Bytes::from(fs::read(&path).map_err(Error::io("read", &path))?);
        replay.state.segments.push(Former {
            bytes: raw.len() as u64,
            ..Former::unused(path.clone())
        });
        if let Some(Err(cut)) = listed.map(|listed| check_size(&path, &raw, listed)) {
            (replay.damage)(cut)?;
        }
        match read_header(&path, &raw, header.store_id, number, listed.is_some()) {
            Ok(Some(head)) => replay.segment(&path, &raw, &head)?,
            Ok(None) => {}
            Err(headless) => (replay.damage)(headless)?,
        }
        end = (path, raw.len());
    }
    for missing in expected {
        (replay.damage)(missing_segment(dir, missing))?;
    }
    let (seq, synced) = (replay.state.seq, read_synced(store, &header.store_id)?);
    if seq < synced {
        let (path, at) = replay.hole.unwrap_or(end);
        (replay.damage)(lost(&path, at, seq + 1, synced))?;
    }
    Ok(replay.state)
}

fn missing_segment(dir: &Path, listed: &SegmentSize) -> Error {
    Error::Damaged {
        place: dir.join(segment_name(listed.number)).display().to_string(),
        why: "this segment of the log is missing".to_owned(),
    }
}

fn check_size(path: &Path, raw: &Bytes, listed: &SegmentSize) -> Result<(), Error> {
    if raw.len() as u64 >= listed.bytes {
        return Ok(());
    }
    let why = format!("it has been cut; it had {} bytes", listed.bytes);
    Err(damaged(path, raw.len(), why))
}

/// The transactions `first` to `last` are not where they should be.
fn lost(path: &Path, at: usize, first: u64, last: u64) -> Error {
    let which = if first == last {
        format!("transaction {first}, which was durable, is")
    } else {
        format!("transactions {first} to {last}, which were durable, are")
    };
    damaged(path, at, format!("{which} not to be read"))
}

fn damaged(path: &Path, offset: usize, why: impl Into<String>) -> Error {
    Error::Damaged {
        place: format!("{} at byte {offset}", path.display()),
        why: why.into(),
    }
}

/// The segment's header; `None` for a file whose creation was interrupted, which has no content at all.
fn read_header(
    path: &Path,
    raw: &Bytes,
    store_id: [u8; 16],
    number: u64,
    listed: bool,
) -> Result<Option<SegmentHeader>, Error> {
    // The header is synced before the first frame is written.
    let frames = raw.get(SEGMENT_HEADER_LEN..).unwrap_or_default();
    match SegmentHeader::decode(raw) {
        Ok(header) if header.store_id != store_id => {
            Err(damaged(path, 16, "it belongs to another store"))
        }
        Ok(header) if header.number != number => {
            Err(damaged(path, 32, "its number is not that of its name"))
        }
        Ok(header) => Ok(Some(header)),
        Err(_) if !listed && frames.iter().all(|&byte| byte == 0) => Ok(None),
        Err(why) => Err(damaged(path, why.offset, why.why)),
    }
}

impl Replay<'_> {
    fn segment(&mut self, path: &Path, raw: &Bytes, header: &SegmentHeader) -> Result<(), Error> {
        let mut at = SEGMENT_HEADER_LEN;
        while at < raw.len() {
            match read_frame(header, raw, at) {
                Some((found, payload, end)) => {
                    self.frame(path, at, &found, &payload)?;
                    self.note_frame(found.header.seq, end);
                    at = end;
                }
                None => {
                    self.hole.get_or_insert_with(|| (path.to_owned(), at));
                    at += FRAME_ALIGN;
                }
            }
        }
        Ok(())
    }

    /// Records that the last segment has frame `seq`, which ends at `end`, if the frame was replayed and follows the frames
    /// before.
    fn note_frame(&mut self, seq: u64, end: usize) {
        let reached = self.state.seq;
        let Some(segment) = self.state.segments.last_mut() else {
            return;
        };
        let first = match segment.frames {
            Some(Kept { first, last }) if last.checked_add(1) == Some(seq) => first,
            Some(_) => return,
            None => seq,
        };
        if seq <= reached {
            segment.frames = Some(Kept { first, last: seq });
            segment.used = end as u64;
        }
    }

    fn frame(
        &mut self,
        path: &Path,
        at: usize,
        found: &FoundFrame,
        payload: &Bytes,
    ) -> Result<(), Error> {
        let (seq, next) = (found.header.seq, self.state.seq + 1);
        if seq < next {
            return Ok(());
        }
        if seq > next {
            if found.header.durable < next {
                return Ok(());
            }
            let hole = self.hole.take();
            let (path, at) = hole.unwrap_or_else(|| (path.to_owned(), at));
            (self.damage)(lost(&path, at, next, seq - 1))?;
        }
        match read_changes(payload, found.header.changes) {
            Ok(changes) => (self.apply)(seq, &changes.into_iter().collect())?,
            Err(why) => {
                let at = at + found.header_len + why.offset;
                (self.damage)(damaged(path, at, why.why))?;
            }
        }
        self.state.seq = seq;
        self.state.replayed += 1;
        self.hole = None;
        Ok(())
    }
}

/// The whole and undamaged frame at `at`, its payload, and where the next one starts.
fn read_frame(
    header: &SegmentHeader,
    raw: &Bytes,
    at: usize,
) -> Option<(FoundFrame, Bytes, usize)> {
    let found = FoundFrame::decode(header, raw.get(at..)?).ok()?;
    let start = at + found.header_len;
    let end = start.checked_add(usize::try_from(found.header.payload_len).ok()?)?;
    let payload = raw.get(start..end)?;
    if !found.matches(payload) {
        return None;
    }
    let next = at.checked_add(usize::try_from(found.padded_len()?).ok()?)?;
    Some((found, raw.slice_ref(payload), next))
}
