//! The seeds of the fuzzer (`fuzz/`), unchanged, and changed as by a fuzzer without a compiler's help: CI has only the
//! stable compiler.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says so by failing"
)]

#[path = "../fuzz/seed.rs"]
mod seed;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use goanna_isofs::read_everything;

fn seeds() -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
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

/// For 20 seconds, an hour in the long run.
#[test]
fn changed_at_random() {
    let long = std::env::var_os("GOANNA_LONG").is_some_and(|value| value == "1");
    let limit = Duration::from_secs(if long { 3600 } else { 20 });
    let seeds: Vec<Vec<u8>> = seeds().into_iter().map(|(_, seed)| seed).collect();
    let number = fastrand::u64(..);
    // Shown when the test fails; the same number repeats the test.
    println!("seed {number}");
    let mut random = fastrand::Rng::with_seed(number);
    let start = Instant::now();
    let (mut rounds, mut opened) = (0, 0);
    while start.elapsed() < limit {
        let mut input = seeds[random.usize(..seeds.len())].clone();
        for _ in 0..1 << random.u8(..5) {
            change(&mut input, &seeds, &mut random);
        }
        let began = Instant::now();
        let entries = read_everything(&seed::decode(&input));
        let took = began.elapsed();
        // Generous, since tests run side by side.
        assert!(took < Duration::from_secs(20), "input {rounds}: {took:?}");
        rounds += 1;
        opened += usize::from(entries > 0);
    }
    println!("{rounds} inputs, {opened} of them images");
    assert!(opened > rounds / 10, "{opened} of {rounds}");
}

/// One change: of a bit, a byte, a number; a piece taken out, put twice, or from another seed.
fn change(input: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut fastrand::Rng) {
    const NUMBERS: [u32; 10] = [
        0,
        1,
        2,
        0xff,
        2048,
        0x7fff,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
    ];
    if input.len() < 16 {
        input.extend([0; 16]);
    }
    let at = random.usize(..input.len() - 8);
    let len = random.usize(1..256).min(input.len() - at);
    match random.u8(..8) {
        0 => input[at] ^= 1 << random.u8(..8),
        1 => input[at] = random.u8(..),
        2 => input[at] = input[at].wrapping_add(random.u8(..5)).wrapping_sub(2),
        3 => {
            let number = NUMBERS[random.usize(..NUMBERS.len())];
            input[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        4 => {
            // In both byte orders, as most numbers stand there.
            let number = random.u32(..64);
            input[at..at + 4].copy_from_slice(&number.to_le_bytes());
            input[at + 4..at + 8].copy_from_slice(&number.to_be_bytes());
        }
        5 => drop(input.drain(at..at + len)),
        6 => {
            let piece = input[at..at + len].to_vec();
            let to = random.usize(..input.len());
            input.splice(to..to, piece);
        }
        _ => {
            let other = &seeds[random.usize(..seeds.len())];
            let from = random.usize(..other.len());
            let end = other.len().min(from + len);
            let piece = other[from..end].to_vec();
            let to = at + piece.len().min(input.len() - at);
            input.splice(at..to, piece);
        }
    }
}
