//! Images of ISO 9660. An input is an image without its zeros, as in crates/isofs/seeds.

#[path = "../../../../crates/isofs/seeds/seed.rs"]
mod seed;

use std::path::Path;

/// Opens the image that `input` stands for, and reads everything in it.
pub fn read(input: &[u8]) {
    goanna_isofs::read_everything(&seed::decode(input));
}

/// Images of genisoimage and xorriso.
pub fn seeds() -> Vec<Vec<u8>> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(package.join("../../crates/isofs/seeds/images"));
    let files = files.into_iter().flatten().flatten();
    files
        .filter_map(|file| std::fs::read(file.path()).ok())
        .collect()
}
