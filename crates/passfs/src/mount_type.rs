//! The type of mount `pass`.

use std::path::Path;
use std::sync::Arc;

use goanna_vfs::{Backend, FileSystem, MountOptions, OpenError};

use crate::{Error, PassFs};

/// `pass=/host/dir:/mnt`: shows a directory of the host.
pub struct PassBackend;

impl Backend for PassBackend {
    fn name(&self) -> &'static str {
        "pass"
    }

    fn open(&self, source: &Path, _: &MountOptions) -> Result<Arc<dyn FileSystem>, OpenError> {
        match PassFs::new(source) {
            Ok(fs) => Ok(Arc::new(fs)),
            Err(Error::Directory { errno, .. }) => Err(OpenError::Host(errno.into())),
            Err(Error::Proc { errno, .. }) => Err(OpenError::Source {
                why: format!("/proc/self/fd is not usable: {}", errno.desc()),
                hint: None,
            }),
        }
    }
}
