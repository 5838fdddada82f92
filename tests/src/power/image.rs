//! The content of a disk, the writes and flushes that it received, and its content after a power cut.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// The unit that a disk writes whole or not at all, in bytes.
const SECTOR: usize = 512;
/// The unit of [`Image`], in bytes.
const BLOCK: usize = 4096;

/// The content of a disk. Blocks that were never written are holes; clones share their blocks.
#[derive(Debug, Clone)]
pub struct Image {
    blocks: Vec<Option<Arc<[u8; BLOCK]>>>,
}

impl Image {
    /// An empty disk of `bytes`, rounded down to whole blocks.
    pub fn new(bytes: usize) -> Self {
        Self {
            blocks: vec![None; bytes / BLOCK],
        }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.blocks.len() * BLOCK
    }

    /// Whether the disk has no size.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// At most `length` bytes from `offset`; fewer at the end of the disk.
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let end = self.len().min(offset.saturating_add(length));
        let mut data = vec![0; end.saturating_sub(offset)];
        for (at, part) in parts(offset, data.len()) {
            if let Some(block) = &self.blocks[(offset + at) / BLOCK] {
                let from = (offset + at) % BLOCK;
                data[at..at + part].copy_from_slice(&block[from..from + part]);
            }
        }
        data
    }

    /// Writes the content to a new sparse file at `path`.
    ///
    /// # Errors
    ///
    /// Those of open(2), pwrite(2) and ftruncate(2).
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create_new(path)?;
        file.set_len(self.len() as u64)?;
        for (index, block) in self.blocks.iter().enumerate() {
            if let Some(block) = block {
                file.write_all_at(&block[..], (index * BLOCK) as u64)?;
            }
        }
        Ok(())
    }

    /// Writes `data` at `offset`; bytes beyond the end of the disk are dropped.
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        let data = &data[..data.len().min(self.len().saturating_sub(offset))];
        for (at, part) in parts(offset, data.len()) {
            let block =
                self.blocks[(offset + at) / BLOCK].get_or_insert_with(|| Arc::new([0; BLOCK]));
            let from = (offset + at) % BLOCK;
            Arc::make_mut(block)[from..from + part].copy_from_slice(&data[at..at + part]);
        }
    }
}

/// Splits a range of a disk at block boundaries: pairs of a position within the range and a length.
fn parts(offset: usize, length: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let part = (BLOCK - (offset + at) % BLOCK).min(length - at);
        let item = (at, part);
        at += part;
        (part > 0).then_some(item)
    })
}

/// A request to a disk.
#[derive(Debug, Clone)]
enum Event {
    Write {
        offset: usize,
        data: Arc<[u8]>,
    },
    /// Everything before it is on the medium.
    Flush,
}

/// The effect of a power cut on the writes that no flush followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// All of them are on the medium.
    Nothing,
    /// None of them is.
    Everything,
    /// Each exists or not, in any order.
    Writes,
    /// Each of their sectors is on the medium or not.
    Sectors,
}

impl Loss {
    /// One of them, by `rng`.
    pub fn any(rng: &mut fastrand::Rng) -> Self {
        const ALL: [Loss; 4] = [Loss::Nothing, Loss::Everything, Loss::Writes, Loss::Sectors];
        ALL[rng.usize(..ALL.len())]
    }
}

/// A disk that remembers the writes and flushes since it was attached.
#[derive(Debug)]
pub struct Recording {
    base: Image,
    now: Image,
    events: Vec<Event>,
}

impl Recording {
    /// Starts from `image`.
    pub fn new(image: Image) -> Self {
        Self {
            base: image.clone(),
            now: image,
            events: Vec::new(),
        }
    }

    /// The content with everything written so far.
    pub fn now(&self) -> &Image {
        &self.now
    }

    /// Number of writes and flushes so far: a position for [`Recording::cut`].
    pub fn position(&self) -> usize {
        self.events.len()
    }

    /// Records and performs a write.
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        self.now.write(offset, data);
        self.events.push(Event::Write {
            offset,
            data: data.into(),
        });
    }

    /// Records a flush.
    pub fn flush(&mut self) {
        self.events.push(Event::Flush);
    }

    /// The content after a power cut behind the first `position` events, with `loss` of the writes that were
    /// not flushed.
    pub fn cut(&self, position: usize, loss: Loss, rng: &mut fastrand::Rng) -> Image {
        let events = &self.events[..position.min(self.events.len())];
        let flushed = events
            .iter()
            .rposition(|event| matches!(event, Event::Flush))
            .map_or(0, |last| last + 1);
        // After some cuts most of the pending writes are on the medium, after others only a few.
        let kept = [0.1, 0.5, 0.9][rng.usize(..3)];
        let mut image = self.base.clone();
        for (at, event) in events.iter().enumerate() {
            let Event::Write { offset, data } = event else {
                continue;
            };
            let is_torn = at >= flushed && loss == Loss::Sectors;
            for (index, part) in data
                .chunks(if is_torn { SECTOR } else { data.len() })
                .enumerate()
            {
                let is_kept = match loss {
                    _ if at < flushed => true,
                    Loss::Nothing => true,
                    Loss::Everything => false,
                    Loss::Writes | Loss::Sectors => rng.f64() < kept,
                };
                if is_kept {
                    image.write(offset + index * SECTOR, part);
                }
            }
        }
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded() -> Recording {
        let mut disk = Recording::new(Image::new(4 * BLOCK));
        disk.write(BLOCK - 512, &[1; 1024]);
        disk.flush();
        disk.write(0, &[2; 1024]);
        disk
    }

    #[test]
    fn flushed_writes_survive_every_loss() {
        let disk = recorded();
        for seed in 0..50 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let image = disk.cut(disk.position(), Loss::any(&mut rng), &mut rng);
            assert_eq!(image.read(BLOCK - 512, 1024), [1; 1024]);
        }
    }

    #[test]
    fn pending_writes_are_lost_whole_or_by_sector() {
        let disk = recorded();
        let mut rng = fastrand::Rng::with_seed(1);
        let everything = disk.cut(disk.position(), Loss::Everything, &mut rng);
        assert_eq!(everything.read(0, 1024), [0; 1024]);
        let torn = (0..50).any(|_| {
            let image = disk.cut(disk.position(), Loss::Sectors, &mut rng);
            image.read(0, 512) != image.read(512, 512)
        });
        assert!(torn, "no write was torn");
    }

    #[test]
    fn a_cut_before_the_flush_may_lose_what_it_covers() {
        let disk = recorded();
        let mut rng = fastrand::Rng::with_seed(1);
        let image = disk.cut(1, Loss::Everything, &mut rng);
        assert_eq!(image.read(BLOCK - 512, 1024), [0; 1024]);
    }
}
