//! Mappings of files.

use amino_schema::replay::{Call, MAX_SLOTS};

use super::{Look, NOT_REPLAYED, OUTSIDE, Skip};
use crate::source::process::Mapped;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Bytes of the pages that `length` bytes take.
fn whole_pages(length: u64) -> u64 {
    length.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

impl Look<'_, '_> {
    pub(super) fn map(&mut self) -> Result<(), Skip> {
        if self.number("flags") & libc::MAP_ANONYMOUS as u64 != 0 {
            return Err(NOT_REPLAYED);
        }
        let target = self.slot("fd")?;
        let mut step = self.step(Call::Map);
        step.targets = vec![target];
        let length = self.number("length");
        let mut slot = 0;
        if let Some(start) = self.result().filter(|_| !self.failed()) {
            let taken = self
                .mappings
                .take(self.tid, MAX_SLOTS)
                .ok_or(NOT_REPLAYED)?;
            let mapped = Mapped {
                slot: taken,
                length: whole_pages(length),
                offset: self.number("offset"),
                path: self.fields.text("fd", "path").unwrap_or_default().to_vec(),
                since_ns: self.ended_ns(),
            };
            let start = start.cast_unsigned();
            let mut gone = self.process.mappings.insert(start, mapped);
            if self.number("flags") & libc::MAP_FIXED as u64 == 0
                && let Some(unmapped) = gone.take()
            {
                // The kernel has chosen the address, so that it was free: the record of a munmap(2) by another thread comes later.
                gone = self.process.unmapping.insert(start, unmapped);
            }
            if let Some(gone) = gone {
                self.drop_mapping(gone.slot);
            }
            slot = u64::from(taken) + 1;
        }
        step.numbers = vec![
            length,
            self.number("prot"),
            self.number("flags"),
            self.number("offset"),
            slot,
        ];
        self.steps.push(step);
        Ok(())
    }

    fn drop_mapping(&mut self, slot: u32) {
        let mut step = self.step(Call::Drop);
        step.result = None;
        step.numbers = vec![slot.into()];
        self.mappings.give(self.tid, slot);
        self.steps.push(step);
    }

    /// Removes mappings. If only a part of a mapping is unmapped, the replay keeps it all.
    pub(super) fn unmap(&mut self) -> Result<(), Skip> {
        if self.failed() {
            return Err(NOT_REPLAYED);
        }
        let start = self.number("addr");
        let end = start.saturating_add(whole_pages(self.number("length")));
        let entered_ns = self.number("time");
        let mut unmapped = self.process.unmap(start, end, entered_ns).into_iter();
        let first = unmapped.next().ok_or(OUTSIDE)?;
        let mut step = self.step(Call::Unmap);
        step.numbers = vec![first.slot.into()];
        self.mappings.give(self.tid, first.slot);
        self.steps.push(step);
        for further in unmapped {
            self.drop_mapping(further.slot);
        }
        Ok(())
    }

    pub(super) fn msync(&mut self) -> Result<(), Skip> {
        let start = self.number("addr");
        let before = self.process.mappings.range(..=start).next_back();
        let (at, mapped) = before
            .filter(|(at, mapped)| start < at.saturating_add(mapped.length))
            .ok_or(OUTSIDE)?;
        let within = start - at;
        let mut step = self.step(Call::Msync);
        step.numbers = vec![
            mapped.slot.into(),
            within,
            self.number("length").min(mapped.length - within),
            self.number("flags"),
        ];
        self.steps.push(step);
        Ok(())
    }

    /// Pages that were read or written through a mapping.
    pub(super) fn touched(&mut self) -> Result<(), Skip> {
        let path = self.fields.bytes("path").ok_or(OUTSIDE)?;
        let offset = self.number("offset");
        let length = self.number("pages").saturating_mul(PAGE);
        let found = self.process.mappings.values().find(|mapped| {
            let end = mapped.offset.saturating_add(mapped.length);
            mapped.path == path && (mapped.offset..end).contains(&offset)
        });
        let mapped = found.ok_or(OUTSIDE)?;
        let within = offset - mapped.offset;
        let mut step = self.step(Call::Touch);
        step.result = None;
        step.numbers = vec![
            mapped.slot.into(),
            within,
            length.min(mapped.length - within),
            self.number("written"),
        ];
        self.steps.push(step);
        Ok(())
    }
}
