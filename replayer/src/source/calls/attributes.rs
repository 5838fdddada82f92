//! Calls that ask for and change attributes.

use amino_schema::replay::Call;

use super::{Look, Skip, Subject};
use crate::source::step::Info;

impl Look<'_, '_> {
    /// The file of a call with forms for descriptors (`fNAME`) and paths.
    fn file(&mut self) -> Result<Subject, Skip> {
        if self.fields.has("dirfd") {
            return self.either("dirfd", "pathname");
        }
        for name in ["pathname", "path", "filename"] {
            if self.fields.has(name) {
                return self.path(None, name);
            }
        }
        self.slot("fd")
    }

    pub(super) fn stat(&mut self) -> Result<(), Skip> {
        let mut target = self.file()?;
        for (buffer, prefix) in [("statbuf", "st"), ("statxbuf", "stx")] {
            let member = |part: &str| self.fields.member(buffer, &format!("{prefix}_{part}"));
            if let (Some(mode), Some(size)) = (member("mode"), member("size")) {
                let before = target.info.unwrap_or_default();
                let id = |part| member(part).map(|id| id as u32);
                target.info = Some(Info {
                    mode: mode as u32,
                    size,
                    inode: member("ino").unwrap_or(before.inode),
                    links: member("nlink").unwrap_or(before.links),
                    device: member("dev").unwrap_or(before.device),
                    owner: id("uid").zip(id("gid")),
                });
            }
        }
        let mut step = self.step(Call::Stat);
        step.targets = vec![target];
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn access(&mut self) -> Result<(), Skip> {
        let mut step = self.step(Call::Access);
        step.targets = vec![self.file()?];
        // Links were followed when the path was resolved.
        let flags = self.number("flags") & libc::AT_EACCESS as u64;
        step.numbers = vec![self.number("mode"), flags];
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn chmod(&mut self) -> Result<(), Skip> {
        let mut step = self.step(Call::Chmod);
        step.targets = vec![self.file()?];
        step.numbers = vec![self.number("mode") & 0o7777];
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn chown(&mut self) -> Result<(), Skip> {
        let mut step = self.step(Call::Chown);
        step.targets = vec![self.file()?];
        step.numbers = vec![self.number("owner"), self.number("group")];
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn utimes(&mut self) -> Result<(), Skip> {
        let mut step = self.step(Call::Utimes);
        step.targets = vec![self.file()?];
        for number in ["0", "1"] {
            for part in ["seconds", "nanoseconds"] {
                let value = self.fields.member("times", &format!("{number}.{part}"));
                step.numbers.extend(value);
            }
        }
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn xattr(&mut self, call: Call) -> Result<(), Skip> {
        let mut step = self.step(call);
        step.targets = vec![self.file()?];
        step.text = self.fields.bytes("name").map(<[u8]>::to_vec);
        let size = self.number("size");
        match call {
            Call::Setxattr => {
                step.numbers = vec![self.number("flags")];
                step.data = Some(self.payload("value", size));
            }
            Call::Removexattr => {}
            Call::Getxattr => {
                step.numbers = vec![size];
                step.data = Some(self.payload("value", size));
            }
            _ => step.numbers = vec![size],
        }
        self.steps.push(step);
        Ok(())
    }
}
