//! Reading records for operations of the file system: a failure becomes the errno that the program gets.

use std::ops::{Bound, ControlFlow};

use amino_schema::DecodeError;
use amino_txn::Records;
use bytes::Bytes;
use goanna_vfs::{Errno, Result};

use crate::{damaged, errno};

/// The value of a record.
pub(crate) fn get(records: &dyn Records, key: &[u8]) -> Result<Option<Bytes>, Errno> {
    records.get(key).map_err(|error| errno(&error))
}

/// Calls `visit` for all records with `prefix` behind `from`, in order, until it returns false.
pub(crate) fn scan(
    records: &dyn Records,
    from: Bound<&[u8]>,
    prefix: &[u8],
    mut visit: impl FnMut(&[u8], &Bytes) -> std::result::Result<bool, DecodeError>,
) -> Result<(), Errno> {
    let mut failure = None;
    let scanned = records.scan(from, prefix, &mut |key, value| {
        match visit(key, value) {
            Ok(true) => return ControlFlow::Continue(()),
            Ok(false) => {}
            Err(error) => failure = Some(error),
        }
        ControlFlow::Break(())
    });
    scanned.map_err(|error| errno(&error))?;
    failure.map_or(Ok(()), |error| Err(damaged(error)))
}
