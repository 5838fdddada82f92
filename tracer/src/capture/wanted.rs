//! The events and facts that tracers request from a source.

use std::sync::Arc;

use goanna_syscalls::{Limits, Subject};

use crate::select::{CallSet, Filter, Verdict};

/// How much of the data of reads and writes is captured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Data {
    /// Nothing; the length of each transfer is known nevertheless.
    #[default]
    None,
    /// At most so many bytes of each call.
    UpTo(usize),
}

/// Which facts about the files that a call names are determined. Each fact costs some calls to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Details {
    /// Where paths lead, and the paths of the files that descriptors name.
    pub paths: bool,
    /// Identity and state of the files.
    pub files: bool,
}

impl Default for Details {
    /// All of it.
    fn default() -> Self {
        Self {
            paths: true,
            files: true,
        }
    }
}

/// The request to a source: the union of the events and facts that several tracers want.
#[derive(Debug)]
pub struct Wanted {
    filters: Vec<Arc<Filter>>,
    calls: CallSet,
    data: Data,
    details: Details,
    pages: bool,
}

impl Wanted {
    /// The request of tracers with these filters.
    pub fn new(filters: Vec<Arc<Filter>>, data: Data) -> Self {
        let mut calls = CallSet::default();
        for filter in &filters {
            calls.add(&filter.traced_calls());
        }
        Self {
            filters,
            calls,
            data,
            details: Details::default(),
            pages: false,
        }
    }

    /// Adds the pages of mapped files that are read and written.
    #[must_use]
    pub fn with_pages(mut self) -> Self {
        self.pages = true;
        self
    }

    /// Whether the pages of mapped files are wanted.
    pub fn wants_pages(&self) -> bool {
        self.pages
    }

    /// Restricts the facts about files to `details`. A filter that asks for names of files needs all of them.
    #[must_use]
    pub fn with_details(mut self, details: Details) -> Self {
        if !self.filters.iter().any(|filter| filter.asks_for_names()) {
            self.details = details;
        }
        self
    }

    /// The facts that are determined about files.
    pub fn details(&self) -> Details {
        self.details
    }

    /// The calls that may be wanted.
    pub fn calls(&self) -> &CallSet {
        &self.calls
    }

    /// Whether call `nr` of `subject` may be wanted, as far as that is known at its entry.
    pub fn may_want(&self, nr: u32, subject: &Subject) -> bool {
        let rejects = |filter: &Arc<Filter>| filter.at_entry(nr, subject) == Verdict::Rejected;
        self.calls.contains(nr) && !self.filters.iter().all(rejects)
    }

    /// How much of a call's memory is copied.
    pub fn limits(&self) -> Limits {
        Limits {
            data: match self.data {
                Data::None => 0,
                Data::UpTo(bytes) => bytes,
            },
            ..Limits::default()
        }
    }
}
