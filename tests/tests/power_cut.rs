//! Power cuts under real file systems: no store is lost, no acknowledged operation is lost, none is there by half.
//!
//! A bounded number of cuts with a fixed seed. `GOANNA_LONG=1` makes 306 for each engine; `GOANNA_SEED` chooses other ones.

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
    for (index, kind) in Kind::ALL.into_iter().enumerate() {
        for (turn, level) in LEVELS.into_iter().enumerate() {
            // The short campaign has one level for each file system.
            if !is_long() && turn != index {
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
            Workload::record(setting, operations).judge(cuts);
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
