//! Recordings of other programs, which `replayer import` reads.

use std::path::Path;

use goanna_replayer::Error;
use goanna_replayer::import::{self, Options, Summary};

use crate::scratch;

type Import = fn(&Path, &Path, &Options<'_>, &mut dyn FnMut(u64)) -> Result<Summary, Error>;

fn import(input: &[u8], import: Import) {
    let Ok(scratch) = scratch() else {
        return;
    };
    let (path, out) = (scratch.join("recording"), scratch.join("imported"));
    let options = Options {
        directory: Some(Path::new("/work")),
    };
    if std::fs::write(&path, input).is_ok() {
        for options in [&options, &Options::default()] {
            let _ = import(&path, &out, options, &mut |_| {});
        }
    }
}

/// Imports the text of strace.
pub fn strace(input: &[u8]) {
    import(input, import::strace);
}

/// Imports a log of fio.
pub fn fio(input: &[u8]) {
    import(input, import::fio);
}

/// The text of strace for a shell script.
pub fn strace_seeds() -> Vec<Vec<u8>> {
    vec![include_bytes!("strace.txt").to_vec()]
}

/// Logs of each version.
pub fn fio_seeds() -> Vec<Vec<u8>> {
    let second = b"fio version 2 iolog\n/f/a add\n/f/a open\n/f/a write 0 4096\n/f/a wait 100 0\n/f/a fsync 0 0\n/f/a close\n";
    let third = b"fio version 3 iolog\n10 /f/a add\n12 /f/a open\n20 /f/a write 0 4096\n30 /f/a read 4096 512\n31 /f/a trim 0 512\n32 /f/a datasync 0 0\n40 /f/a close\n";
    vec![second.to_vec(), third.to_vec()]
}
