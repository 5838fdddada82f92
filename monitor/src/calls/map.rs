//! Shared file mappings. The kernel maps the cache object, so mappings, reads and writes of all processes are
//! coherent; the back end must only know that content can change without a call.

use std::collections::HashMap;

use goanna_vfs::{Place, PlaceKey, Result};
use parking_lot::Mutex;

use crate::Monitor;
use crate::call::{Answer, Call, Descriptor};
use crate::shadow::Shadow;

/// mmap(2) with MAP_SHARED of a file.
pub fn mmap(call: &mut Call<'_>) -> Result<Answer> {
    // A bad descriptor is the kernel's to report, among the other errors of mmap in their order.
    let Ok(Descriptor::Shadow(shadow, ofd)) = call.descriptor(call.int(4)) else {
        return Ok(Answer::PassOn);
    };
    if let Shadow::File { place, .. } = &*shadow
        && Monitor::access_mode(&ofd)? == libc::O_RDWR
    {
        place.mount.fs.mapped_shared(&place.node);
        call.monitor.mapped.add(place);
    }
    Ok(Answer::PassOn)
}

/// Files that tracees have mapped shared and writable, until their last user leaves.
#[derive(Debug, Default)]
pub struct Mapped {
    files: Mutex<HashMap<PlaceKey, Place>>,
}

impl Mapped {
    fn add(&self, place: &Place) {
        self.files.lock().insert(place.key(), place.clone());
    }

    /// The file's last user has left.
    pub fn remove(&self, place: &Place) {
        self.files.lock().remove(&place.key());
    }

    /// All of them.
    pub fn places(&self) -> Vec<Place> {
        self.files.lock().values().cloned().collect()
    }
}
