//! Power cuts under real file systems: no store is lost, no acknowledged operation is lost, and no operation takes effect partly.
//!
//! A bounded number of cuts with a fixed seed. `GOANNA_LONG=1` makes 306 for each engine; `GOANNA_SEED` chooses other ones, and
//! `GOANNA_FILE_SYSTEM` (ext4, xfs, btrfs) one of the file systems.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use goanna_tests::power::volume::{Kind, missing};
use goanna_tests::{Engine, is_long};
use goanna_tests::{
    power::campaign::{Setting, Workload},
    skip,
};

const LEVELS: [&str; 3] = ["aci", "commit", "acid"];

fn campaign(engine: Engine) {
    if let Some((facility, why)) = missing() {
        skip(facility, why);
        return;
    }
    let seed = std::env::var("GOANNA_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let (operations, cuts) = if is_long() { (300, 34) } else { (90, 4) };
    let only = std::env::var("GOANNA_FILE_SYSTEM").ok();
    for (index, kind) in Kind::ALL.into_iter().enumerate() {
        for (turn, level) in LEVELS.into_iter().enumerate() {
            // The short campaign has one level for each file system.
            if !is_long() && turn != index {
                continue;
            }
            if only.as_deref().is_some_and(|only| only != kind.name()) {
                continue;
            }
            let setting = Setting {
                kind,
                engine,
                level,
                is_bulky: is_long() && turn == index,
                seed: seed + turn as u64,
            };
            eprintln!("{setting:?}: {cuts} cuts");
            Workload::record(setting, operations).check_cuts(cuts);
        }
    }
}

#[test]
fn a_store_on_fjall_survives_power_cuts() {
    campaign(Engine::Fjall);
}

#[test]
fn a_store_on_sled_survives_power_cuts() {
    campaign(Engine::Sled);
}

/// The guarantee at its limit: the power fails at the moment when a commit or an fsync returns.
#[test]
fn what_is_acknowledged_is_on_the_disk() {
    if let Some((facility, why)) = missing() {
        skip(facility, why);
        return;
    }
    for (seed, engine) in [(2, Engine::Fjall), (2, Engine::Sled)] {
        let setting = Setting {
            kind: Kind::Ext4,
            engine,
            level: "commit",
            is_bulky: false,
            seed,
        };
        let operations = if is_long() { 300 } else { 40 };
        Workload::record(setting, operations).check_acknowledged();
    }
}

/// The power fails before the first operation: there is no store, or a sound one. `amino fsck` found no root directory in a store that
/// was as sound as an empty one.
#[test]
fn a_store_that_was_being_made_is_sound_or_made_again() {
    if let Some((facility, why)) = missing() {
        skip(facility, why);
        return;
    }
    let cuts = if is_long() { 60 } else { 12 };
    for engine in [Engine::Fjall, Engine::Sled] {
        let setting = Setting {
            kind: Kind::Ext4,
            engine,
            level: "aci",
            is_bulky: false,
            seed: 3,
        };
        Workload::record(setting, 3).check_making(cuts);
    }
}
