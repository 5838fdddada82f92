//! Traces, and files of keys for anonymizing them.

#[path = "../../../../tracer/tests/every_tool/mod.rs"]
mod every_tool;

use std::sync::LazyLock;

use amino_schema::trace::{BlockHeader, Codec, FILE_HEADER_LEN, SYNC, Stored};
use goanna_replayer::compile;
use goanna_tracer::tools::anonymize::FieldKeys;

use crate::{checksums, scratch};

/// Traces of both minor versions.
const GOLDEN: [&[u8]; 2] = [
    include_bytes!("../../../../tracer/tests/golden/version-1.gtr"),
    include_bytes!("../../../../tracer/tests/golden/version-1.2.gtr"),
];

/// Reads the trace by each tool.
pub fn read(input: &[u8]) {
    let trace = checksums::of_trace(input);
    if let (Ok(scratch), Some(keys)) = (scratch(), &*KEYS) {
        let _ = every_tool::run(&trace, &scratch, keys);
    }
}

static KEYS: LazyLock<Option<FieldKeys>> = LazyLock::new(|| {
    let path = scratch().ok()?.join("keys");
    FieldKeys::create(&path).ok()
});

/// Compiles the trace to a replay.
pub fn compile(input: &[u8]) {
    let Ok(scratch) = scratch() else {
        return;
    };
    let (trace, out) = (scratch.join("trace"), scratch.join("compiled"));
    if std::fs::write(&trace, checksums::of_trace(input)).is_ok() {
        let _ = compile::compile(&trace, &out, &compile::Options::default(), &mut |_| {});
    }
}

/// The golden traces, with blocks that are not compressed.
pub fn seeds() -> Vec<Vec<u8>> {
    GOLDEN
        .iter()
        .filter_map(|trace| decompressed(trace))
        .collect()
}

fn decompressed(trace: &[u8]) -> Option<Vec<u8>> {
    let (head, mut rest) = trace.split_at_checked(FILE_HEADER_LEN)?;
    let mut out = head.to_vec();
    while rest.starts_with(&SYNC) {
        let Stored {
            mut header,
            stored_len,
            ..
        } = Stored::decode(rest).ok()?;
        let payload;
        (payload, rest) = rest
            .get(BlockHeader::LEN..)?
            .split_at_checked(stored_len as usize)?;
        if header.codecs().is_ok_and(|codecs| codecs == [Codec::Zstd]) {
            header.codecs = Default::default();
            header.encode(
                &zstd::bulk::decompress(payload, header.raw_len as usize).ok()?,
                &mut out,
            );
        } else {
            header.encode(payload, &mut out);
        }
    }
    Some(out)
}

/// Reads a file of keys.
pub fn read_keys(input: &[u8]) {
    let Ok(path) = scratch().map(|scratch| scratch.join("read")) else {
        return;
    };
    if std::fs::write(&path, input).is_ok() {
        let _ = FieldKeys::read(&path);
    }
}

/// A file of keys.
pub fn key_seeds() -> Vec<Vec<u8>> {
    let path = scratch().map(|scratch| scratch.join("created"));
    let keys = path.and_then(|path| {
        let _ = std::fs::remove_file(&path);
        FieldKeys::create(&path).map_err(std::io::Error::other)?;
        std::fs::read(&path)
    });
    keys.into_iter().collect()
}
