//! The program of libFuzzer. `GOANNA_FUZZ_TARGET` names the target; `GOANNA_FUZZ_SEEDS` is a directory, which gets its seeds.
#![no_main]

use std::path::Path;
use std::process;
use std::sync::OnceLock;

use goanna_fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<&Target> = OnceLock::new();

fn begin() {
    let name = std::env::var("GOANNA_FUZZ_TARGET").unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.name == name);
    let chosen = target.ok_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        format!("{name:?} is not a target; these are: {}", names.join(", "))
    });
    let begun = chosen.and_then(|target| {
        TARGET.get_or_init(|| target);
        let directory = std::env::var_os("GOANNA_FUZZ_SEEDS");
        directory.map_or(Ok(()), |directory| {
            let write = target.write_seeds(Path::new(&directory));
            write.map_err(|why| format!("{}: {why}", Path::new(&directory).display()))
        })
    });
    if let Err(why) = begun {
        eprintln!("fuzz: {why}");
        process::exit(2);
    }
}

fuzz_target!(
    init: begin(),
    |input: &[u8]| {
        if let Some(target) = TARGET.get() {
            (target.read)(input);
        }
    }
);
