//! The entry point of the fuzzer.

use std::ops::ControlFlow;
use std::sync::Arc;

use goanna_vfs::FileKind;

use crate::{Entry, Iso, Namespace, Options, Visit};

/// Entries visited of one tree.
const MAX_ENTRIES: usize = 20_000;

/// Bytes of content read of one tree.
const MAX_CONTENT: u64 = 32 << 20;

/// Opens `bytes` as an image in each name space, in the first session and the last, and reads everything, within
/// bounds. Any bytes must give results or errors. Returns the number of entries seen.
pub fn read_everything(bytes: &[u8]) -> usize {
    let bytes: Arc<[u8]> = bytes.into();
    let namespaces = [
        None,
        Some(Namespace::RockRidge),
        Some(Namespace::Joliet),
        Some(Namespace::Plain),
    ];
    let mut seen = 0;
    for namespace in namespaces {
        for session in [None, Some(1)] {
            let options = Options { namespace, session };
            if let Ok(iso) = Iso::open(Arc::clone(&bytes), &options) {
                seen += look_at(&iso);
            }
        }
    }
    seen
}

fn look_at(iso: &Iso) -> usize {
    // Errors are formatted as well: what they say must not panic either.
    let _ = format!(
        "{:?} {:?}",
        iso.info(),
        iso.boot_images().map_err(|e| e.to_string())
    );
    let mut entries = 0;
    let mut content = MAX_CONTENT;
    iso.walk(iso.root(), &mut |visit| {
        match visit {
            Visit::Unreadable(_, error) => drop((error.to_string(), error.errno())),
            Visit::Entry(entry) => {
                entries += 1;
                look_at_entry(iso, entry, &mut content);
            }
        }
        if entries < MAX_ENTRIES {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    entries
}

fn look_at_entry(iso: &Iso, entry: &Arc<Entry>, left: &mut u64) {
    let _ = (entry.path(), iso.readlink(entry));
    if entry.kind != FileKind::Regular || iso.check_content(entry).is_err() {
        return;
    }
    let mut buf = vec![0; 64 << 10];
    let mut at = 0;
    while let Ok(Some(data)) = iso.next_data(entry, at) {
        match iso.read_at(entry, data, &mut buf) {
            Ok(len) if len > 0 && *left > len as u64 => {
                *left -= len as u64;
                at = data + len as u64;
            }
            _ => break,
        }
    }
    let _ = iso.read_at(entry, entry.size.saturating_sub(1), &mut buf);
}
