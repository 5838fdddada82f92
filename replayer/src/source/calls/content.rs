//! Calls that read, write and copy content.

use amino_schema::replay::Call;

use super::{Look, Skip};
use crate::source::note;

const FAILED_COPY: Skip = "failed copies from files outside of the directory";

impl Look<'_, '_> {
    /// The name of the buffer of a read or write, and the number of bytes requested.
    fn asked(&self) -> (&'static str, u64) {
        // Most traces have no addresses, so that the argument itself is not in the record.
        let is_vectored = self.name.ends_with('v') || self.name.ends_with("v2");
        if !is_vectored {
            return ("buf", self.number("count"));
        }
        let length = self.fields.member("iov", "length").unwrap_or(0);
        let result = self.result().unwrap_or(0).max(0).cast_unsigned();
        ("iov", length.max(result))
    }

    /// The offset of a positioned call.
    fn position(&self) -> Option<u64> {
        let offset = match self.name {
            "pread64" | "pwrite64" => self.fields.number("offset"),
            _ => self.fields.number("pos_l"),
        };
        // preadv2(2) takes -1 for the current one.
        offset.filter(|offset| *offset != u64::MAX || !self.name.ends_with("v2"))
    }

    pub(super) fn read(&mut self) -> Result<(), Skip> {
        self.transfer(Call::Read, Call::Pread)
    }

    pub(super) fn write(&mut self) -> Result<(), Skip> {
        self.transfer(Call::Write, Call::Pwrite)
    }

    fn transfer(&mut self, plain: Call, positioned: Call) -> Result<(), Skip> {
        let target = self.slot("fd")?;
        let (buffer, length) = self.asked();
        let position = self.position();
        let mut step = self.step(position.map_or(plain, |_| positioned));
        step.targets = vec![target];
        step.numbers.extend(position);
        step.data = Some(self.payload(buffer, length));
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn copy(&mut self) -> Result<(), Skip> {
        let (source, destination, offsets, length) = match self.name {
            "sendfile" => ("in_fd", "out_fd", ["offset", ""], "count"),
            _ => ("fd_in", "fd_out", ["off_in", "off_out"], "size"),
        };
        let target = self.slot(destination)?;
        let offset = |name: &str| self.fields.number(name).unwrap_or(u64::MAX);
        let numbers = offsets.map(offset);
        let length = self.number(length);
        let from = self.slot(source);
        let Ok(from) = from.map_err(|_| ()) else {
            return self.copy_from_elsewhere(target, numbers.get(1).copied());
        };
        let mut step = self.step(Call::Copy);
        step.targets = vec![from, target];
        step.numbers = numbers.to_vec();
        step.numbers
            .extend([length, u64::from(self.name == "sendfile")]);
        self.steps.push(step);
        Ok(())
    }

    /// Replaces a copy from a file that is not below the directory by a write of the copied bytes. A copy that failed is skipped: a write
    /// could succeed, as `O_APPEND` makes only the copy fail.
    fn copy_from_elsewhere(
        &mut self,
        target: super::Subject,
        offset: Option<u64>,
    ) -> Result<(), Skip> {
        let moved = self.result().and_then(|result| u64::try_from(result).ok());
        let length = moved.ok_or(FAILED_COPY)?;
        let offset = offset.filter(|it| *it != u64::MAX);
        let mut step = self.step(offset.map_or(Call::Write, |_| Call::Pwrite));
        step.targets = vec![target];
        step.numbers.extend(offset);
        step.data = Some(self.payload("copied", length));
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn sync(&mut self) -> Result<(), Skip> {
        let mut step = self.step(Call::Sync);
        step.targets = vec![self.slot("fd")?];
        step.numbers = match self.name {
            "fsync" => vec![0],
            "fdatasync" => vec![1],
            "syncfs" => vec![3],
            _ => vec![
                2,
                self.number("offset"),
                self.number("nbytes"),
                self.number("flags"),
            ],
        };
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn advise(&mut self) -> Result<(), Skip> {
        let (offset, advice) = (self.number("offset"), self.number("advice"));
        let length = match self.name {
            "readahead" => self.number("count"),
            _ => self.number("size"),
        };
        let is_root = self.fields.text("fd", "path") == Some(self.directory);
        let is_note = matches!(
            length,
            note::THREAD | note::OWN | note::PLACEHOLDER | note::AT_ONCE
        );
        if is_root && advice == 0 && is_note {
            self.note = Some((length, offset));
            return Ok(());
        }
        let mut step = self.step(Call::Advise);
        step.targets = vec![self.slot("fd")?];
        let advice = if self.name == "readahead" {
            u64::MAX
        } else {
            advice
        };
        step.numbers = vec![offset, length, advice];
        self.steps.push(step);
        Ok(())
    }
}
