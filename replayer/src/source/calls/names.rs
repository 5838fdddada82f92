//! Calls that make, change and remove names.

use amino_schema::replay::Call;

use super::{Look, SPECIAL, Skip};

impl Look<'_, '_> {
    pub(super) fn unlink(&mut self) -> Result<(), Skip> {
        let removes_directory = self.number("flags") & libc::AT_REMOVEDIR as u64 != 0;
        let call = match self.name {
            "rmdir" => Call::Rmdir,
            _ if removes_directory => Call::Rmdir,
            _ => Call::Unlink,
        };
        self.on_path(call, Some("dirfd"), "pathname", &[])
    }

    pub(super) fn mknod(&mut self) -> Result<(), Skip> {
        let mode = self.number("mode");
        let kind = mode as u32 & libc::S_IFMT;
        if matches!(kind, libc::S_IFCHR | libc::S_IFBLK) {
            return Err(SPECIAL);
        }
        let mut step = self.step(Call::Mknod);
        let target = self.path(Some("dirfd"), "pathname")?;
        step.numbers = vec![u64::from(kind) | self.mode(mode & 0o7777, target.info)];
        step.targets = vec![target];
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn mkdir(&mut self) -> Result<(), Skip> {
        let mut step = self.step(Call::Mkdir);
        let target = self.path(Some("dirfd"), "pathname")?;
        step.numbers = vec![self.mode(self.number("mode"), target.info)];
        step.targets = vec![target];
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn rename(&mut self) -> Result<(), Skip> {
        let from = self.path(Some("olddirfd"), "oldpath")?;
        let to = self.path(Some("newdirfd"), "newpath")?;
        let mut step = self.step(Call::Rename);
        step.targets = vec![from, to];
        step.numbers = vec![self.number("flags")];
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn link(&mut self) -> Result<(), Skip> {
        let from = match self.number("flags") & libc::AT_EMPTY_PATH as u64 {
            0 => self.path(Some("olddirfd"), "oldpath")?,
            _ => self.either("olddirfd", "oldpath")?,
        };
        let to = self.path(Some("newdirfd"), "newpath")?;
        let mut step = self.step(Call::Link);
        step.targets = vec![from, to];
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn symlink(&mut self) -> Result<(), Skip> {
        let mut step = self.step(Call::Symlink);
        step.targets = vec![self.path(Some("newdirfd"), "linkpath")?];
        step.text = self.fields.bytes("target").map(<[u8]>::to_vec);
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn readlink(&mut self) -> Result<(), Skip> {
        let mut step = self.step(Call::Readlink);
        step.targets = vec![self.either("dirfd", "pathname")?];
        step.numbers = vec![self.number("bufsiz")];
        step.text = self.fields.bytes("buf").map(<[u8]>::to_vec);
        self.steps.push(step);
        Ok(())
    }
}
