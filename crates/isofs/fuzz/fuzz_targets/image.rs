//! All that the reader does, with any image.
#![no_main]

#[path = "../seed.rs"]
mod seed;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    goanna_isofs::read_everything(&seed::decode(input));
});
