//! Sessions of an image file.
//!
//! A disc has a table of its sessions; a plain file has none, so they are found by the way in which writers place them. Each
//! session begins with 16 sectors of system area and its own descriptors, and holds a whole tree, whose files may lie
//! in earlier sessions. The next one begins where the volume ends, rounded up to 16 sectors (mkisofs with `-C` and
//! `-M`, growisofs) or to 32 (xorriso). xorriso also writes the first session from sector 32 on, and copies the
//! newest descriptors to sector 16.
//!
//! Something that looks like a session may be a file that is itself an image, or another image behind this one. A
//! session's root directory lies within it, after its descriptors, at a block counted from the start of the file;
//! that of an embedded image counts from elsewhere.

use crate::format::volume::{self, Descriptors, SECTOR, SYSTEM_AREA};
use crate::source::Image;
use crate::{Error, Record, Result};

/// Sessions looked for.
const MAX_SESSIONS: usize = 1000;

/// Where xorriso begins the first session of a file.
const XORRISO_START: u64 = 32;

/// One session.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    /// Its first sector.
    pub start: u64,
    pub descriptors: Descriptors,
}

impl Session {
    /// The session at sector `start` behind sector 0, if there is one.
    fn at(image: &Image, start: u64) -> Option<Self> {
        let id_at = (start + SYSTEM_AREA) * SECTOR + 1;
        let mut id = [0; 5];
        image.fill(Record::VolumeDescriptor, id_at, &mut id).ok()?;
        if &id != b"CD001" {
            return None;
        }
        let descriptors = volume::read(image, start).ok()?;
        let primary = &descriptors.primary;
        (primary.root_start() >= (start + SYSTEM_AREA + 1) * SECTOR)
            .then_some(Self { start, descriptors })
    }

    /// Where the next one may begin: writers count a volume's size from the session's start or from the file's.
    fn next_starts(&self) -> impl Iterator<Item = u64> + use<> {
        let primary = &self.descriptors.primary;
        let sectors = u64::from(primary.blocks) * u64::from(primary.block_size) / SECTOR;
        let start = self.start;
        [start + sectors, sectors]
            .into_iter()
            .flat_map(|end| [end.next_multiple_of(16), end.next_multiple_of(32)])
            .filter(move |next| *next > start + SYSTEM_AREA)
    }
}

/// All sessions, oldest first; at least one.
pub(crate) fn find(image: &Image) -> Result<Vec<Session>> {
    let first = Session {
        start: 0,
        descriptors: volume::read(image, 0)?,
    };
    if let Some(grown) = Session::at(image, XORRISO_START) {
        let sessions = chain(image, grown);
        let root = first.descriptors.primary.root_start();
        let copied = |session: &Session| session.descriptors.primary.root_start() == root;
        if sessions.iter().any(copied) {
            return Ok(sessions);
        }
    }
    Ok(chain(image, first))
}

/// Each start is greater than the one before, so this ends.
fn chain(image: &Image, first: Session) -> Vec<Session> {
    let mut last = first;
    let mut sessions = Vec::new();
    while sessions.len() < MAX_SESSIONS {
        let next = last
            .next_starts()
            .find_map(|start| Session::at(image, start));
        sessions.push(last);
        match next {
            Some(session) => last = session,
            None => break,
        }
    }
    sessions
}

/// Session `number` (from 1), the last one with `None`.
pub(crate) fn choose(mut sessions: Vec<Session>, number: Option<u32>) -> Result<Session> {
    let found = sessions.len();
    let index = match number {
        None => found.saturating_sub(1),
        Some(asked) => (asked as usize).wrapping_sub(1),
    };
    if index >= found {
        let asked = number.unwrap_or_default();
        return Err(Error::NoSession { asked, found });
    }
    Ok(sessions.swap_remove(index))
}
