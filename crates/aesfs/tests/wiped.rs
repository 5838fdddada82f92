//! Keys in this process's memory while a volume is mounted, and after that.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use goanna_aesfs::AesFs;
use goanna_aesfs::format::config::Features;
use goanna_aesfs::format::content::Cipher;
use goanna_aesfs::format::keys::{MasterKey, Purpose, derive};
use goanna_aesfs::format::names::NameKind;
use goanna_passfs::PassFs;
use goanna_vfs::{Caller, FileSystem};

/// Counts the places of each key in the process's writable memory, and whether all of them are locked and not dumped. The keys are passed with all bits
/// inverted.
fn places(inverted: &[[u8; 32]]) -> Vec<(usize, bool)> {
    let memory = File::open("/proc/self/mem").unwrap();
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found = vec![(0, true); inverted.len()];
    let mut range = None;
    for line in smaps.lines() {
        let first = line.split(' ').next().unwrap();
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let writable = line.split(' ').nth(1).unwrap().starts_with("rw");
            range = writable.then(|| (number(start), number(end)));
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            let Some((start, end)) = range.take() else {
                continue;
            };
            let is_safe = [" lo", " dd", " dc"]
                .iter()
                .all(|flag| flags.contains(flag));
            let mut piece = vec![0; 1 << 20];
            let mut at = start;
            while at < end {
                let len = piece.len().min((end - at) as usize);
                let Ok(got) = memory.read_at(&mut piece[..len], at) else {
                    break;
                };
                for (key, (count, all_safe)) in inverted.iter().zip(&mut found) {
                    let is_key =
                        |window: &[u8]| window.iter().zip(key).all(|(byte, not)| *byte == !*not);
                    let here = piece[..got]
                        .windows(32)
                        .filter(|window| is_key(window))
                        .count();
                    *count += here;
                    *all_safe &= here == 0 || is_safe;
                }
                piece.fill(0);
                // A key may lie across two pieces.
                at += if got == 1 << 20 {
                    got as u64 - 31
                } else {
                    got as u64
                };
            }
        }
    }
    found
}

#[inline(never)]
fn overwrite_stack() {
    std::hint::black_box(&mut [0_u8; 64 << 10]);
}

/// Each key lies in locked memory only, and nowhere after the volume is unmounted.
#[test]
fn keys_lie_in_locked_memory_and_are_wiped() {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).unwrap();
    let not = |key: &[u8; 32]| std::array::from_fn(|at| !key[at]);
    let mut inverted = vec![not(&bytes)];
    for purpose in [Purpose::Gcm, Purpose::Names] {
        let mut key = [0; 32];
        derive(&bytes, purpose, true, &mut key);
        inverted.push(not(&key));
        key.fill(0);
        std::hint::black_box(&mut key);
    }
    // The keys that this test has derived, and their remains on the stack, do not belong to the file system.
    overwrite_stack();
    let dir = tempfile::tempdir().unwrap();
    let features = Features {
        cipher: Cipher::Gcm,
        names: NameKind::Encrypted {
            has_dir_iv: false,
            has_long_names: true,
            long_name_max: 255,
            is_padded: false,
        },
        hkdf: true,
    };
    let master = MasterKey::from_bytes(&mut bytes).unwrap();
    assert_eq!(bytes, [0; 32]);
    let lower: Arc<dyn FileSystem> = Arc::new(PassFs::new(dir.path()).unwrap());
    let root = lower.root();
    let report = Box::new(|_: &[u8], _| {});
    let fs = AesFs::new(lower, root, &features, &master, None, report).unwrap();
    drop(master);
    let caller = Caller::own();
    let made = fs
        .create(&caller, &fs.root(), b"f", 0o600, libc::O_RDWR)
        .unwrap();
    let mounted = places(&inverted);
    drop(made);
    drop(fs);
    let unmounted = places(&inverted);
    // The master key is needed for the others only.
    assert_eq!(mounted[0].0, 0);
    for (count, is_safe) in &mounted[1..] {
        assert!(*count > 0 && *is_safe, "{mounted:?}");
    }
    assert!(
        unmounted.iter().all(|(count, _)| *count == 0),
        "{unmounted:?}"
    );
    // The search finds an existing key.
    let key = Box::new(inverted[0].map(|byte| !byte));
    assert!(places(&inverted)[0].0 > 0, "{}", key.len());
}
