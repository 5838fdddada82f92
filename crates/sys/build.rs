//! Compiles the recorder, code that runs in tracees (`src/recorder/`).

/// The code is copied to another address: nothing in it may refer to what is outside of its section. It saves general registers only.
const FLAGS: [&str; 9] = [
    "-std=gnu11",
    "-ffreestanding",
    "-mgeneral-regs-only",
    "-mno-red-zone",
    "-fno-stack-protector",
    "-fno-jump-tables",
    "-fno-asynchronous-unwind-tables",
    "-fcf-protection=none",
    // The file that it includes.
    "-Wa,-Isrc/recorder",
];

fn main() {
    println!("cargo::rerun-if-changed=src/recorder");
    let mut build = cc::Build::new();
    build
        .file("src/recorder/recorder.c")
        .opt_level(2)
        .pic(true)
        .debug(false)
        .warnings(true)
        .extra_warnings(true)
        .flags(FLAGS)
        // Of gcc only.
        .flag_if_supported("-fno-toplevel-reorder")
        .flag_if_supported("-fno-tree-loop-distribute-patterns")
        .compile("goanna_recorder");
}
