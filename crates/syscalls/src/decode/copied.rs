//! The content that a call copies from file to file, which no memory of the program has.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::Limits;
use crate::signature::{Kind, Place};
use crate::{DecodedCall, Value};

/// The open files of a thread.
pub trait OpenFiles {
    /// The regular file that descriptor `number` names, open for reading, and the offset of the thread's open file description. `None` for other
    /// files, and for files that cannot be read.
    fn regular(&self, number: i32) -> Option<(File, u64)>;
}

impl DecodedCall {
    /// Adds the bytes that the call has copied, as far as `limits` go: those of the source, or of the target if the source is not a regular
    /// file. To be called after the call, which returned `result`. Another process may have changed the file since.
    pub fn complete_copy(&mut self, result: i64, files: &dyn OpenFiles, limits: &Limits) {
        let params = self.signature.map_or(&[][..], |signature| signature.params);
        let mut params = params.iter().enumerate();
        let copied = params.find_map(|(index, param)| match param.kind {
            Kind::Copied { source, target } => Some((index, [source, target])),
            _ => None,
        });
        let (Some((index, places)), Ok(len @ 1..)) = (copied, u64::try_from(result)) else {
            return;
        };
        let wanted = usize::try_from(len).unwrap_or(usize::MAX).min(limits.data);
        if wanted == 0 {
            return;
        }
        let content = |place: &Place| self.content(place, len, wanted, files);
        if let Some(data) = places.iter().find_map(content)
            && let Some(arg) = self.args.get_mut(index)
        {
            let data = data.into();
            *arg = Value::Bytes { len, data };
        }
    }

    /// The first `wanted` of the `len` bytes that the call has read or written in a file.
    fn content(
        &self,
        place: &Place,
        len: u64,
        wanted: usize,
        files: &dyn OpenFiles,
    ) -> Option<Vec<u8>> {
        let number = self.raw.get(usize::from(place.descriptor))?;
        let (file, offset) = files.regular(*number as i32)?;
        let given = place
            .offset
            .and_then(|index| self.args.get(usize::from(index)));
        let start = match given {
            Some(Value::Unsigned(before)) => *before,
            // The call has moved the file's offset.
            _ => offset.checked_sub(len)?,
        };
        let mut data = vec![0; wanted];
        file.read_exact_at(&mut data, start).ok()?;
        Some(data)
    }
}
