//! The seeds of all targets, unchanged, and changed at random as by a fuzzer without a compiler's help.
//!
//! Each target for 5 seconds, for an hour with `GOANNA_LONG=1`. `GOANNA_SEED=N` repeats a test that failed.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::{Duration, Instant};

use goanna_fuzz::TARGETS;

/// The time within which a target reads an input. Generous, since tests run side by side.
const LIMIT: Duration = Duration::from_secs(20);

fn changed_at_random(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty());
    seeds.iter().for_each(|seed| (target.read)(seed));
    let is_long = std::env::var_os("GOANNA_LONG").is_some_and(|value| value == "1");
    let end = Duration::from_secs(if is_long { 3600 } else { 5 });
    let given = std::env::var("GOANNA_SEED").ok();
    let number = given.map_or_else(|| fastrand::u64(..), |it| it.parse().unwrap());
    // Shown when the test fails.
    println!("GOANNA_SEED={number}");
    let mut random = fastrand::Rng::with_seed(number);
    let start = Instant::now();
    let mut inputs = 0;
    while start.elapsed() < end {
        let mut input = seeds[random.usize(..seeds.len())].clone();
        for _ in 0..1 << random.u8(..5) {
            change(&mut input, &seeds, &mut random);
        }
        let before = Instant::now();
        (target.read)(&input);
        let took = before.elapsed();
        assert!(took < LIMIT, "input {inputs}: {took:?}");
        inputs += 1;
    }
    println!("{inputs} inputs");
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
            // In both byte orders, as most numbers of an image are stored.
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
            let from = random.usize(..other.len().max(1));
            let end = other.len().min(from + len);
            let piece = other.get(from..end).unwrap_or_default().to_vec();
            let to = at + piece.len().min(input.len() - at);
            input.splice(at..to, piece);
        }
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                changed_at_random(stringify!($name));
            }
        )*

        #[test]
        fn each_target_has_a_test() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

targets! { image trace compile keys filter replay strace fio store volume library }
