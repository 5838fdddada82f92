//! Measures what a store costs on this machine: `cargo run --release --example measure -- DIRECTORY`.
//!
//! Prints microseconds per call of submit, get and sync, by one thread and by several, and the time to open.

use std::error::Error;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::time::Instant;

use amino_schema::key;
use amino_txn::{Changes, EngineKind, Options, Records, Store};

const FILES: u64 = 100_000;
/// Pages of 16 KiB.
const PAGES: u64 = 16_384;

fn one(number: u64, len: usize) -> Changes {
    let mut changes = Changes::new();
    changes.put(
        key::path_key(1, format!("file{number:08}").as_bytes()),
        vec![7; len],
    );
    changes
}

fn report(what: &str, count: u64, start: Instant) {
    println!(
        "  {what:<40} {:>9.2} us",
        start.elapsed().as_secs_f64() * 1e6 / count as f64
    );
}

fn measure(dir: &Path, engine: EngineKind) -> Result<(), Box<dyn Error>> {
    println!("{}", engine.name());
    let options = Options {
        engine,
        create: true,
        ..Options::default()
    };
    open_and_close(dir, &options)?;
    let start = Instant::now();
    let store = Store::open(dir, options.clone())?;
    report("open a small store", 1, start);

    small_records(&store)?;
    synced_records(&store)?;
    pages(&store)?;

    println!("  {:?}", store.stats());
    let start = Instant::now();
    store.close()?;
    report("close", 1, start);
    let start = Instant::now();
    let store = Store::open(dir, options)?;
    report("open", 1, start);
    println!("  {} MB on disk", store.info().engine_bytes_on_disk >> 20);
    Ok(())
}

fn open_and_close(dir: &Path, options: &Options) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let store = Store::open(dir, options.clone())?;
    report("create a store", 1, start);
    (0..100).try_for_each(|number| store.submit(&store.enter(), one(number, 100)))?;
    let start = Instant::now();
    store.close()?;
    report("close a small store", 1, start);
    Ok(())
}

fn small_records(store: &Store) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    for number in 0..FILES {
        store.throttle();
        store.submit(&store.enter(), one(number, 100))?;
    }
    report("submit 100 bytes", FILES, start);
    let start = Instant::now();
    store.sync()?;
    report("sync after that", 1, start);
    std::thread::sleep(std::time::Duration::from_millis(500));

    let start = Instant::now();
    for number in 0..FILES {
        store.get(&key::path_key(
            1,
            format!("file{:08}", number * 7919 % FILES).as_bytes(),
        ))?;
    }
    report("get", FILES, start);
    let start = Instant::now();
    let mut seen = 0;
    store.scan(Bound::Unbounded, &key::path_prefix(1), &mut |_, _| {
        seen += 1;
        ControlFlow::Continue(())
    })?;
    report("scan, per entry", seen, start);
    Ok(())
}

fn synced_records(store: &Store) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    for number in 0..2000 {
        store.submit(&store.enter(), one(number, 100))?;
        store.sync()?;
    }
    report("submit and sync, one thread", 2000, start);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            scope.spawn(move || -> Result<(), amino_txn::Error> {
                for number in 0..500 {
                    store.submit(&store.enter(), one(thread * 1000 + number, 100))?;
                    store.sync()?;
                }
                Ok(())
            });
        }
    });
    report("submit and sync, each of 8 threads", 4000, start);
    Ok(())
}

fn pages(store: &Store) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    for index in 0..PAGES {
        store.throttle();
        let mut changes = Changes::new();
        changes.put(key::page_key(9, index), vec![(index % 251) as u8; 16 << 10]);
        store.submit(&store.enter(), changes)?;
    }
    store.sync()?;
    report_throughput("write pages of 16 KiB and sync", start);
    let start = Instant::now();
    for index in 0..PAGES {
        store.get(&key::page_key(9, index))?;
    }
    report_throughput("read them", start);
    Ok(())
}

fn report_throughput(what: &str, start: Instant) {
    let megabytes = PAGES as f64 * 16_384e-6;
    let seconds = start.elapsed().as_secs_f64();
    println!("  {what:<40} {:>9.0} MB/s", megabytes / seconds);
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("which directory?")?;
    for engine in [EngineKind::Fjall, EngineKind::Sled] {
        measure(&Path::new(&dir).join(engine.name()), engine)?;
    }
    Ok(())
}
