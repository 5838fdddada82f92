//! Path walk (in work).
use crate::{Caller, FileKind, Mounts, Result};
/// Resolves an absolute path.
pub fn resolve_absolute(_m: &Mounts, _c: &Caller, _p: &[u8]) -> Result<(Vec<u8>, FileKind)> {
    Err(crate::Errno::ENOENT)
}
