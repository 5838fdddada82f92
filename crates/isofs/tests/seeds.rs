//! The images in `seeds/`. The fuzz target `image` (tests/fuzz) changes them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says so by failing"
)]

#[path = "../seeds/seed.rs"]
mod seed;

use std::fs;
use std::path::Path;

use goanna_isofs::read_everything;

fn seeds() -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/images");
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let read = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, fs::read(path).unwrap())
    };
    let mut seeds: Vec<_> = files.map(read).collect();
    seeds.sort();
    seeds
}

#[test]
fn seeds_are_images() {
    let seeds = seeds();
    assert!(seeds.len() > 20);
    let bytes: usize = seeds.iter().map(|(_, seed)| seed.len()).sum();
    assert!(bytes < 300_000, "{bytes} bytes");
    for (name, seed) in seeds {
        let entries = read_everything(&seed::decode(&seed));
        // The root, in each name space and session.
        let least = if name.ends_with("empty") { 4 } else { 16 };
        assert!(entries >= least, "{name}: {entries} entries");
    }
}

/// Decodes inputs at the limits of the format.
#[test]
fn inputs_of_all_kinds() {
    assert!(seed::decode(b"").is_empty());
    assert!(seed::decode(b"\x01").is_empty());
    assert_eq!(seed::decode(&[0xff; 9]).len(), 0x1fff * 2048);
    let mut image = vec![0; 4096];
    image[2048..2051].copy_from_slice(b"abc");
    assert_eq!(seed::decode(b"\x02\0\x01\0\x03\0abc"), image);
    assert_eq!(seed::decode(b"\x02\0\x01\0\x09\0abc"), image, "cut");
    assert_eq!(seed::decode(b"\x02\0\x07\0\x03\0abc"), [0; 4096], "beyond");
}
