//! Real images with bytes changed: the result may be anything except a panic, or more time and memory than the image justifies.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says so by failing"
)]

#[path = "../seeds/seed.rs"]
mod seed;
mod support;

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use goanna_isofs::read_everything;
use nix::sys::resource::{UsageWho, getrusage};
use proptest::prelude::*;
use support::tools::{Work, genisoimage, xorriso};

/// Images of a few hundred kilobytes, most of it records.
fn images() -> &'static [Vec<u8>] {
    static IMAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let work = Work::full();
        fs::write(work.tree.join("large.bin"), vec![b'x'; 3000]).unwrap();
        fs::create_dir(work.tree.join("boot")).unwrap();
        fs::write(work.tree.join("boot/bios.img"), [0; 2048]).unwrap();
        let image = work.path("i.iso");
        let mut images = Vec::new();
        for args in [
            "-R -J -joliet-long",
            "-R -udf",
            "-J",
            "-R -b boot/bios.img -no-emul-boot",
            "-iso-level 4 -D",
        ] {
            genisoimage(args, &image, &work.tree);
            images.push(fs::read(&image).unwrap());
        }
        for (args, after) in [
            ("-joliet on", "-set_filter_r --zisofs / --"),
            (
                "-hardlinks on -zisofs version_2=on:susp_z2=off",
                "-set_filter_r --zisofs / --",
            ),
        ] {
            fs::remove_file(&image).unwrap();
            xorriso(args, &image, &work.tree, after);
            images.push(fs::read(&image).unwrap());
        }
        // Ours, since no writer makes extended attribute records.
        images.push(seed::decode(include_bytes!("../seeds/images/attributes")));
        images
    })
}

/// Places worth changing: those that are not zero, and their neighbours.
fn places(image: &[u8]) -> Vec<usize> {
    let in_use = |at: &usize| {
        image[at.saturating_sub(4)..image.len().min(at + 4)]
            .iter()
            .any(|byte| *byte != 0)
    };
    (0x8000..image.len()).filter(in_use).collect()
}

/// Reads everything in a changed image, and returns the time that it took.
fn check(image: &[u8], what: &dyn std::fmt::Debug) -> Duration {
    let start = Instant::now();
    read_everything(image);
    let took = start.elapsed();
    let memory = highest_memory();
    // Generous, since tests run side by side; a loop or an unchecked length is far above either.
    assert!(took < Duration::from_secs(20), "{what:?} took {took:?}");
    assert!(memory < 512 << 20, "{what:?} needed {memory} bytes");
    took
}

/// The unchanged images have this many entries: with fewer, the tests here would prove little.
#[test]
fn the_images_are_sound() {
    let (ours, written) = images().split_last().unwrap();
    for image in written {
        assert!(read_everything(image) > 300);
    }
    // Eleven names with the root, in three choices of names and two of sessions.
    assert_eq!(read_everything(ours), 66);
}

/// For 10 seconds, or 20 minutes in the long run: bytes, fields and whole records changed, moved and cut.
#[test]
fn changed_at_random() {
    let long = std::env::var_os("GOANNA_LONG").is_some_and(|value| value == "1");
    let limit = Duration::from_secs(if long { 1200 } else { 10 });
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let places: Vec<_> = images().iter().map(|image| places(image)).collect();
    let start = Instant::now();
    let (mut rounds, mut slowest) = (0, Duration::ZERO);
    while start.elapsed() < limit {
        let which = random.usize(..places.len());
        let mut image = images()[which].clone();
        let mut changes = Vec::new();
        for _ in 0..random.usize(1..6) {
            let at = places[which][random.usize(..places[which].len())];
            changes.push(change(&mut image, at, &mut random));
        }
        slowest = slowest.max(check(&image, &(seed, rounds, which, changes)));
        rounds += 1;
    }
    println!("{rounds} images, seed {seed}, the slowest in {slowest:?}");
    assert!(rounds > 10);
}

fn change(image: &mut Vec<u8>, at: usize, random: &mut fastrand::Rng) -> (usize, &'static str) {
    const NUMBERS: [u32; 8] = [0, 1, 16, 23, 0x7fff_ffff, 0xffff_ffff, 2048, 0x8000_0000];
    let end = image.len();
    let at = at.min(end.saturating_sub(1));
    match random.u8(..8) {
        0 => {
            image[at] ^= 1 << random.u8(..8);
            (at, "bit")
        }
        1 | 2 => {
            image[at] = random.u8(..);
            (at, "byte")
        }
        3 => {
            let number = NUMBERS[random.usize(..NUMBERS.len())].to_le_bytes();
            let len = number.len().min(end - at);
            image[at..at + len].copy_from_slice(&number[..len]);
            (at, "number")
        }
        4 => {
            // Blocks of directories lie near each other: one for another makes loops.
            image[at] = image[at].wrapping_add(random.u8(..5)).wrapping_sub(2);
            (at, "near")
        }
        5 => {
            let len = random.usize(1..256).min(end - at);
            let from = random.usize(..end - len);
            image.copy_within(from..from + len, at);
            (at, "copy")
        }
        6 => {
            let sector = at / 2048 * 2048;
            let from = random.usize(16..end / 2048) * 2048;
            let len = (end - from).min(end - sector).min(2048);
            image.copy_within(from..from + len, sector);
            (at, "sector")
        }
        _ if at > 0x9000 && random.u8(..8) == 0 => {
            image.truncate(at);
            (at, "end")
        }
        _ => {
            image[at] = 0xff;
            (at, "ones")
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_anywhere(
        which in 0..7_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..200),
    ) {
        let mut image = images()[which].clone();
        for (at, byte) in &changes {
            let at = 0x8000 + at.index(image.len() - 0x8000);
            image[at] = *byte;
        }
        check(&image, &(which, &changes));
    }

    /// No image at all, except for the descriptors' names.
    #[test]
    fn garbage_behind_descriptors(garbage in prop::collection::vec(any::<u8>(), 0..20_000)) {
        let mut image = support::Image::new(20).bytes;
        image.extend(&garbage);
        check(&image, &garbage);
    }
}

/// The most memory this process has needed so far, in bytes.
fn highest_memory() -> usize {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    usize::try_from(usage.max_rss()).unwrap() << 10
}
