//! The facts about a call that a filter can test.

use goanna_syscalls::{Subject, Value};

use crate::event::{Call, File};

use super::operation::{self, OperationSet};

/// The facts of a call that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    call: &'a Call,
    /// The number of bytes that the call requests.
    pub size: Option<i64>,
    /// Its result.
    pub result: Option<i64>,
}

/// A name that a call has for a file.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// Its absolute path where that is known, else the path as given.
    pub path: &'a [u8],
    /// The file.
    pub file: Option<&'a File>,
}

impl<'a> Facts<'a> {
    /// The facts of `call`.
    pub fn of(call: &'a Call) -> Self {
        Self {
            call,
            size: operation::size(&call.call),
            result: call.outcome.map(|outcome| outcome.result),
        }
    }

    /// The thread.
    pub fn subject(&self) -> &'a Subject {
        &self.call.subject
    }

    /// The call's number.
    pub fn nr(&self) -> u32 {
        self.call.call.nr
    }

    /// Whether it does one of these operations.
    pub fn does(&self, operations: OperationSet) -> bool {
        let operation = self.call.call.operation();
        operation.is_some_and(|operation| operations.contains(operation))
    }

    /// The names that the call has for files: its paths, its descriptors' files, and the file of a descriptor that it returned.
    pub fn names(&self) -> impl Iterator<Item = Named<'a>> {
        let call = self.call;
        let arguments = call.call.args.iter().enumerate().filter_map(|(at, value)| {
            let path = match value {
                Value::Path { given, resolved } => resolved.as_deref().unwrap_or(given),
                Value::Descriptor {
                    file: Some(path), ..
                } => path,
                _ => return None,
            };
            let of_argument = |&&(index, _): &&(u8, File)| usize::from(index) == at;
            let file = call.files.iter().find(of_argument).map(|(_, file)| file);
            Some(Named { path, file })
        });
        let others = call.files.iter().filter_map(|(_, file)| {
            let path = file.path.as_deref()?;
            Some(Named {
                path,
                file: Some(file),
            })
        });
        arguments.chain(others)
    }
}
