//! Recoverable memory under `amino run`: memory and files end together.
//!
//! The test starts itself once more as the command of a run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::io::Read;
use std::path::Path;

use amino_rvm::{AminoFiles, Errno, Error, Files, RegionId, Rvm};
use goanna_tests::{Backend, Engine, Intercept, Place, User, finish};

/// Set for the command of the run: where the store is.
const INSIDE: &str = "RVM_TEST_INSIDE";

#[test]
fn memory_and_files_end_together() {
    if let Some(top) = std::env::var_os(INSIDE) {
        return inside(Path::new(&top));
    }
    for intercept in [Intercept::Notify, Intercept::Ptrace] {
        let place = Place::new(Backend::Amino(Engine::Fjall), intercept, User::Own);
        let mut command = place.run();
        command
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "memory_and_files_end_together"])
            .env(INSIDE, place.top());
        let ended = finish(&mut command).expect(0);
        assert!(ended.text().contains("1 passed"), "{}", ended.text());
        finish(&mut place.shell("test \"$(cat f)\" = five")).expect(0);
    }
}

fn inside(top: &Path) {
    let file = top.join("f");
    let mut rvm = Rvm::new(AminoFiles::connect().unwrap()).unwrap();
    let region = rvm.map(10_000).unwrap();
    let both = |rvm: &Rvm| (memory(rvm, region), fs::read_to_string(&file).unwrap());
    let set = |rvm: &mut Rvm, text: &str| {
        rvm.bytes_mut(region).unwrap()[..text.len()].copy_from_slice(text.as_bytes());
        fs::write(&file, text).unwrap();
    };
    let are = |text: &str| (text.to_owned(), text.to_owned());

    rvm.begin().unwrap();
    set(&mut rvm, "one!");
    rvm.commit().unwrap();
    assert_eq!(both(&rvm), are("one!"));

    rvm.begin().unwrap();
    set(&mut rvm, "two!");
    assert_eq!(rvm.begin(), Ok(2));
    set(&mut rvm, "tri!");
    rvm.abort().unwrap();
    assert_eq!(both(&rvm), are("two!"));
    rvm.abort().unwrap();
    assert_eq!(both(&rvm), are("one!"));

    // Data read from the store into memory, by the kernel or the monitor.
    fs::write(top.join("input"), vec![b'i'; 9000]).unwrap();
    rvm.begin().unwrap();
    let mut input = fs::File::open(top.join("input")).unwrap();
    let target = &mut rvm.bytes_mut(region).unwrap()[..9000];
    input.read_exact(target).unwrap();
    assert_eq!(memory(&rvm, region), "iiii");
    rvm.abort().unwrap();
    assert_eq!(memory(&rvm, region), "one!");
    assert!(rvm.bytes(region).unwrap()[4..].iter().all(|b| *b == 0));

    // Another process ends the file transaction: memory is rolled back with it.
    rvm.begin().unwrap();
    set(&mut rvm, "four");
    AminoFiles::connect().unwrap().abort().unwrap();
    assert_eq!(rvm.commit(), Err(Error::Files(Errno::ENODATA)));
    assert_eq!(both(&rvm), are("one!"));

    let ended: Result<(), Error> = rvm.transaction(|rvm| {
        set(rvm, "five");
        Ok(())
    });
    ended.unwrap();
    assert_eq!(both(&rvm), are("five"));
    // Left open: it ends with the process.
    rvm.begin().unwrap();
    set(&mut rvm, "lost");
    std::mem::forget(rvm);
}

fn memory(rvm: &Rvm, region: RegionId) -> String {
    let start = &rvm.bytes(region).unwrap()[..4];
    String::from_utf8(start.to_vec()).unwrap()
}
