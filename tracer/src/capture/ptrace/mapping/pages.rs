//! Reports the pages of mapped files that the followed programs read and write (`--mmap`).
//!
//! A process that maps a file makes a userfaultfd on the tracer's behalf, by two injected calls, and the tracer watches the mapping with it; see
//! [`goanna_sys::page_watch`]. The tracer examines a mapping before the mapping or the process ends: at the entry of munmap(2), mremap(2),
//! madvise(2), execve(2) and of an mmap(2) at a fixed address, when a thread exits, and when the capture ends. Each examination reports the pages
//! written since the last one; a page that was only read is reported once.
//!
//! docs/decisions/0069 lists the accesses that this misses.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use goanna_sys::clock::monotonic_ns;
use goanna_sys::page_watch::{CREATE_FLAGS, PageWatch};
use goanna_sys::{Errno, pidfd, procfs};
use goanna_syscalls::{Names, Subject};

use super::super::files::{ThreadNames, is_regular};
use super::super::follow::Follower;
use super::super::inject::Site;
use super::{Change, Mapped, PAGE};
use crate::Event;
use crate::capture::Details;
use crate::event::File;

impl Follower<'_> {
    /// Handles the entry of a call of thread `tid`. Returns the change to apply when the call has succeeded.
    pub(in crate::capture::ptrace) fn mapping_begins(
        &mut self,
        tid: i32,
        nr: u32,
        args: [u64; 6],
    ) -> Option<Change> {
        self.pages.as_ref()?;
        let change = Change::of(nr, args)?;
        if change.may_end_mappings()
            && let Some(subject) = self.subject_of(tid)
        {
            self.look_at_pages(&subject);
        }
        Some(change)
    }

    /// Handles the exit of a call of thread `tid` that has succeeded.
    pub(in crate::capture::ptrace) fn mapping_changed(
        &mut self,
        tid: i32,
        change: Change,
        result: i64,
    ) {
        let Some(subject) = self.subject_of(tid) else {
            return;
        };
        let Some(pages) = &mut self.pages else {
            return;
        };
        if matches!(change.nr, libc::SYS_execve | libc::SYS_execveat) {
            pages.processes.remove(&subject.pid);
            return;
        }
        let start = result.cast_unsigned();
        let mut moved = None;
        if let Some(process) = pages.processes.get_mut(&subject.pid) {
            moved = process.moved(change, start);
            if let Some((from, to)) = change.unmapped(start) {
                process.forget(from, to);
            }
        }
        let mapped = match change.nr {
            libc::SYS_mmap => self.mapped(tid, change, start),
            _ => moved,
        };
        if let Some(mapped) = mapped {
            self.watch(tid, &subject, vec![mapped]);
        }
    }

    /// The mapping that an mmap(2) of thread `tid` has made, if it maps a file.
    fn mapped(&self, tid: i32, change: Change, start: u64) -> Option<Mapped> {
        let [_, len, _, flags, fd, offset] = change.args;
        if flags & libc::MAP_ANONYMOUS as u64 != 0 {
            return None;
        }
        Some(Mapped {
            start,
            end: start.saturating_add(len).next_multiple_of(PAGE),
            offset,
            file: self.mapped_file(tid, fd as i32)?,
            known: BTreeSet::new(),
        })
    }

    /// The file of a mapping that was just made, if it is a regular one.
    fn mapped_file(&self, tid: i32, fd: i32) -> Option<File> {
        let thread = self.threads.get(&tid)?;
        let names = ThreadNames::new(&self.tracer, thread, Details::default());
        let file = names.of_descriptor(fd, names.descriptor(fd))?;
        is_regular(&file).then_some(file)
    }

    /// The mappings with which the new thread `tid` begins, if its process is a new copy of process `parent`. None if the thread belongs to
    /// `parent`.
    pub(in crate::capture::ptrace) fn mappings_for_copy(
        &self,
        tid: i32,
        parent: i32,
    ) -> Vec<Mapped> {
        let is_process = self
            .subject_of(tid)
            .is_some_and(|subject| subject.pid == tid);
        let pages = self.pages.as_ref().filter(|_| is_process);
        let parent = pages.and_then(|pages| pages.processes.get(&parent));
        let mut mappings = parent.map_or_else(Vec::new, |parent| parent.mappings.clone());
        for mapped in &mut mappings {
            mapped.known.clear();
        }
        mappings
    }

    /// Handles the first stop of thread `tid`.
    pub(in crate::capture::ptrace) fn watch_inherited(&mut self, tid: i32) {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        let inherited = std::mem::take(&mut thread.inherited);
        if !inherited.is_empty() {
            let subject = thread.subject.clone();
            self.watch(tid, &subject, inherited);
        }
    }

    /// Watches mappings.
    fn watch(&mut self, tid: i32, subject: &Subject, mappings: Vec<Mapped>) {
        let process = self
            .pages
            .as_ref()
            .and_then(|pages| pages.processes.get(&subject.pid));
        if process.is_some_and(|process| process.has_failed) {
            return;
        }
        let has_watch = process.is_some_and(|process| process.watch.is_some());
        let made = match has_watch {
            true => Ok(None),
            false => self.make_watch(tid, subject.pid),
        };
        let Some(pages) = &mut self.pages else { return };
        let process = pages.processes.entry(subject.pid).or_default();
        let mut failure = made.as_ref().err().copied();
        if let Ok(Some(watch)) = made {
            process.watch = Some(watch);
        }
        if let Some(watch) = &process.watch {
            for mut mapped in mappings {
                let watched = watch.add(mapped.start, mapped.end).and_then(|()| {
                    let present = watch.mapped(mapped.start, mapped.end)?;
                    mapped.known.extend(mapped.numbers(&present));
                    Ok(())
                });
                match watched {
                    Ok(()) => process.mappings.push(mapped),
                    // A child of vfork(2) has its parent's memory, which is watched there.
                    Err(Errno::EBUSY) => {}
                    Err(errno) => failure = Some(errno),
                }
            }
        }
        if let Some(errno) = failure {
            process.has_failed = process.watch.is_none();
            let (pid, comm, why) = (subject.pid, &subject.comm, errno.desc());
            let reason =
                format!("pages that process {pid} ({comm}) touches are not recorded: {why}");
            self.send(Event::Lost {
                events: 0,
                reason: reason.into(),
                at_ns: monotonic_ns(),
            });
        }
    }

    /// Makes the process of thread `tid`, which is stopped after a call, create a userfaultfd, and takes the descriptor from it. `None`: another
    /// stop came first.
    fn make_watch(&mut self, tid: i32, pid: i32) -> Result<Option<PageWatch>, Errno> {
        let filters = procfs::status(tid)?.seccomp_filters;
        if self
            .pages
            .as_ref()
            .is_none_or(|pages| filters > pages.filters)
        {
            return Err(Errno::EPERM);
        }
        let thread = self.threads.get(&tid);
        let Some(stopped) = thread.and_then(|thread| thread.stopped.as_ref()) else {
            return Ok(None);
        };
        let site = Site::of(stopped)?;
        let args = [CREATE_FLAGS, 0, 0, 0, 0, 0];
        let Some(number) = self.perform(tid, &site, libc::SYS_userfaultfd, args)? else {
            return Ok(None);
        };
        let ours = pidfd::open(tid).and_then(|thread| pidfd::getfd(thread.as_fd(), number as i32));
        let args = [number, 0, 0, 0, 0, 0];
        self.perform(tid, &site, libc::SYS_close, args)?;
        PageWatch::new(ours?, pid).map(Some)
    }

    /// Reports the pages that a process has touched since the last examination.
    pub(in crate::capture::ptrace) fn look_at_pages(&mut self, subject: &Subject) {
        let at_ns = monotonic_ns();
        let Some(pages) = &mut self.pages else { return };
        let Some(process) = pages.processes.get_mut(&subject.pid) else {
            return;
        };
        let Some(watch) = &process.watch else { return };
        let mut events = Vec::new();
        for mapped in &mut process.mappings {
            // A process that was killed has no memory any more.
            let Ok([written, read]) = mapped.look(watch) else {
                continue;
            };
            for (ranges, written) in [(written, true), (read, false)] {
                events.extend(ranges.into_iter().map(|(first, pages)| Event::Touched {
                    subject: subject.clone(),
                    file: mapped.file.clone(),
                    offset: first * PAGE,
                    pages,
                    written,
                    at_ns,
                }));
            }
        }
        for event in events {
            self.send(event);
        }
    }

    /// Reports the pages that all processes have touched, and ends the watch.
    pub(in crate::capture::ptrace) fn end_watch(&mut self) {
        let mut subjects: Vec<Subject> = Vec::new();
        for thread in self.threads.values() {
            if !subjects.iter().any(|one| one.pid == thread.subject.pid) {
                subjects.push(thread.subject.clone());
            }
        }
        for subject in subjects {
            self.look_at_pages(&subject);
        }
        self.pages = None;
    }

    /// Forgets process `pid`, which has ended.
    pub(in crate::capture::ptrace) fn mappings_are_gone(&mut self, pid: i32) {
        if let Some(pages) = &mut self.pages {
            pages.processes.remove(&pid);
        }
    }

    pub(in crate::capture::ptrace) fn subject_of(&self, tid: i32) -> Option<Subject> {
        self.threads.get(&tid).map(|thread| thread.subject.clone())
    }
}
