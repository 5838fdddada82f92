//! Calls that make, copy and close descriptors.

use amino_schema::replay::Call;

use super::{Look, NOT_REPLAYED, Name, OUTSIDE, SPECIAL, Skip, Subject, subject};

impl Look<'_, '_> {
    pub(super) fn open(&mut self) -> Result<(), Skip> {
        let (flags, mode) = match self.name {
            "creat" => (
                (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) as u64,
                self.number("mode"),
            ),
            "openat2" => (
                self.fields.member("how", "flags").unwrap_or(0),
                self.fields.member("how", "mode").unwrap_or(0),
            ),
            _ => (self.number("flags"), self.number("mode")),
        };
        let subject = self.path(Some("dirfd"), "pathname");
        let made = self.fields.info("result");
        let info = made.or_else(|| self.fields.info("pathname"));
        let is_special = info.is_some_and(|info| {
            let kind = info.kind();
            !matches!(kind, libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK)
        });
        let mut subject = match subject {
            Ok(_) if is_special => {
                self.foreign();
                return Err(SPECIAL);
            }
            Ok(subject) => subject,
            Err(why) => {
                self.foreign();
                return Err(why);
            }
        };
        subject.info = info;
        let mut step = self.step(Call::Open);
        step.targets = vec![subject];
        let makes = flags & (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u64 != 0;
        step.numbers = vec![flags, if makes { self.mode(mode, info) } else { 0 }];
        if let Some(number) = self.result().filter(|it| *it >= 0) {
            self.reuse(number as i32);
            step.opened = self.hold(number as i32, flags & libc::O_CLOEXEC as u64 != 0);
        }
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn close(&mut self) -> Result<(), Skip> {
        let number = self.number("fd") as i32;
        let mut step = self.step(Call::Close);
        // Whatever close(2) returns, the descriptor is gone.
        let entry = self.closed(number).ok_or(OUTSIDE)?;
        let info = self.fields.info("fd");
        step.targets = vec![Subject {
            info,
            ..subject(Name::Slot(entry.slot))
        }];
        self.slots.give(self.tid, entry.slot);
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn close_range(&mut self) -> Result<(), Skip> {
        if self.failed() {
            return Err(NOT_REPLAYED);
        }
        let (first, last) = (self.number("first") as u32, self.number("last") as u32);
        let is_in = |number: i32| (first..=last).contains(&number.cast_unsigned());
        if self.number("flags") & u64::from(libc::CLOSE_RANGE_CLOEXEC) != 0 {
            for (number, entry) in &mut self.process.descriptors {
                entry.cloexec |= is_in(*number);
            }
            return Err(NOT_REPLAYED);
        }
        let numbers = self.process.descriptors.keys().copied();
        let mut closed: Vec<i32> = numbers.filter(|number| is_in(*number)).collect();
        closed.sort_unstable();
        for number in closed {
            self.forget(number);
        }
        Err(NOT_REPLAYED)
    }

    pub(super) fn dup(&mut self) -> Result<(), Skip> {
        let cloexec = self.number("flags") & libc::O_CLOEXEC as u64 != 0;
        self.duplicate("oldfd", cloexec)
    }

    /// A descriptor is copied: the result is the number of the copy.
    fn duplicate(&mut self, old: &str, cloexec: bool) -> Result<(), Skip> {
        let number = self.fields.number(old).unwrap_or(u64::MAX) as i32;
        let source = match self.slot(old) {
            Ok(source) => source,
            Err(why) => {
                self.foreign();
                return Err(why);
            }
        };
        let mut step = self.step(Call::Dup);
        step.targets = vec![source];
        step.numbers = vec![u64::from(cloexec)];
        if let Some(new) = self.result().filter(|it| *it >= 0).map(|it| it as i32)
            && new != number
        {
            // dup2(2) closes the descriptor that had the number before.
            let before = self.process.descriptors.get_mut(&new);
            step.opened = match before {
                Some(entry) if self.name != "dup" && self.name != "fcntl" => {
                    entry.cloexec = cloexec;
                    Some(entry.slot)
                }
                _ => {
                    self.reuse(new);
                    self.hold(new, cloexec)
                }
            };
        }
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn fcntl(&mut self) -> Result<(), Skip> {
        let command = self.number("op") as i32;
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                self.duplicate("fd", command == libc::F_DUPFD_CLOEXEC)
            }
            libc::F_GETFD | libc::F_GETFL | libc::F_SETFL | libc::F_SETFD => {
                let mut step = self.step(Call::Fcntl);
                step.targets = vec![self.slot("fd")?];
                let argument = self.number("arg");
                step.numbers = vec![command as u64, argument];
                let number = self.number("fd") as i32;
                if command == libc::F_SETFD
                    && let Some(entry) = self.process.descriptors.get_mut(&number)
                {
                    entry.cloexec = argument & libc::FD_CLOEXEC as u64 != 0;
                }
                self.steps.push(step);
                Ok(())
            }
            libc::F_SETLK
            | libc::F_SETLKW
            | libc::F_GETLK
            | libc::F_OFD_SETLK
            | libc::F_OFD_SETLKW
            | libc::F_OFD_GETLK => {
                let mut step = self.step(Call::Lock);
                step.targets = vec![self.slot("fd")?];
                let member = |part| self.fields.member("arg", part).unwrap_or(0);
                step.numbers = vec![
                    command as u64,
                    member("l_type"),
                    member("l_whence"),
                    member("l_start"),
                    member("l_len"),
                ];
                self.steps.push(step);
                Ok(())
            }
            _ => Err(NOT_REPLAYED),
        }
    }

    pub(super) fn ioctl(&mut self) -> Result<(), Skip> {
        let command = self.number("op");
        let destination = self.slot("fd")?;
        let member = |part| self.fields.member("argp", part).unwrap_or(0);
        let (source, numbers) = match command {
            libc::FICLONE => (self.number("argp") as i32, vec![0, 0, 0, 0]),
            libc::FICLONERANGE => (
                member("src_fd") as i32,
                vec![
                    member("src_offset"),
                    member("src_length"),
                    member("dest_offset"),
                    1,
                ],
            ),
            _ => return Err(NOT_REPLAYED),
        };
        let source = self.process.descriptors.get(&source).ok_or(OUTSIDE)?;
        let mut step = self.step(Call::Clone);
        step.targets = vec![subject(Name::Slot(source.slot)), destination];
        step.numbers = numbers;
        self.steps.push(step);
        Ok(())
    }
}
