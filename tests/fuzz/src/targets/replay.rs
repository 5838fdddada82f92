//! Compiled replays. Their commands are read, not performed: `replayer/tests/hostile` performs altered ones.

use std::os::unix::fs::FileExt;

use amino_schema::replay::{Block, Command, Content};
use goanna_replayer::compile;
use goanna_replayer::stored::Stored;

use super::trace;
use crate::{checksums, scratch};

/// Reads the index, all commands, and the buffers that they name.
pub fn read(input: &[u8]) {
    let Ok(path) = scratch().map(|scratch| scratch.join("replay")) else {
        return;
    };
    if std::fs::write(&path, checksums::of_replay(input)).is_err() {
        return;
    }
    let Ok(stored) = Stored::open(&path) else {
        return;
    };
    for (number, lane) in (0..).zip(&stored.index.lanes) {
        let mut after = 0;
        for block in &lane.blocks {
            let mut raw = vec![0; block.length as usize];
            let read = stored.file().read_exact_at(&mut raw, block.offset);
            let Ok(mut commands) = read
                .map_err(drop)
                .and_then(|()| Block::commands(&raw, number, after).map_err(drop))
            else {
                return;
            };
            while let Ok(Some(command)) = commands.next() {
                after = command.order;
                buffers(&stored, &command);
            }
        }
    }
}

fn buffers(stored: &Stored, command: &Command) {
    if let Some(data) = &command.data
        && let Content::Buffers(buffers) = &data.content
    {
        for buffer in buffers {
            let _ = stored.buffer(*buffer);
        }
    }
}

/// The replays of the golden traces.
pub fn seeds() -> Vec<Vec<u8>> {
    let Ok(scratch) = scratch() else {
        return Vec::new();
    };
    let (path, out) = (scratch.join("trace"), scratch.join("compiled"));
    let compiled = |trace: Vec<u8>| {
        std::fs::write(&path, trace).ok()?;
        compile::compile(&path, &out, &compile::Options::default(), &mut |_| {}).ok()?;
        std::fs::read(&out).ok()
    };
    trace::seeds().into_iter().filter_map(compiled).collect()
}
