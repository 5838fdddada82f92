//! What recoverable memory costs: nanoseconds for each page written, and for each transaction, against a hand-written undo
//! log and plain memory. Run it with `cargo run --release -p amino-rvm --example cost`, below `amino run` for files, too.

use std::alloc::Layout;
use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use amino_rvm::{AminoFiles, Heap, NoFiles, RegionId, Rvm};

const PAGE: usize = 4096;
/// Pages that are written in turn, so that none is among those written lately.
const PAGES: usize = 40_000;
const BUDGET: Duration = Duration::from_millis(400);

fn main() -> Result<(), Box<dyn Error>> {
    empty()?;
    read_only()?;
    println!("\nns for each page written, 8 bytes each, begin and end included");
    println!(
        "{:>7} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "pages", "same", "other", "abort", "nested", "log page", "log word", "plain"
    );
    for pages in [1, 10, 100, 1000, 10_000] {
        let by_hand = [by_hand(pages, PAGE), by_hand(pages, 8), by_hand(pages, 0)];
        let figures = [
            written(pages, Pattern::Same)?,
            written(pages, Pattern::Other)?,
            written(pages, Pattern::Abort)?,
            written(pages, Pattern::Nested)?,
        ];
        print!("{pages:>7}");
        for figure in figures.iter().chain(&by_hand) {
            print!(" {:>10.0}", figure / pages as f64);
        }
        println!();
    }
    heap()
}

/// The median time of `body`, in nanoseconds.
fn median_ns(
    mut body: impl FnMut() -> Result<(), amino_rvm::Error>,
) -> Result<f64, amino_rvm::Error> {
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < BUDGET || times.len() < 20 {
        let begin = Instant::now();
        body()?;
        times.push(begin.elapsed());
    }
    times.sort();
    Ok(times
        .get(times.len() / 2)
        .map_or(0.0, |t| t.as_nanos() as f64))
}

fn empty() -> Result<(), amino_rvm::Error> {
    println!("ns for begin and commit of nothing");
    for (regions, len) in [(0, 0), (1, PAGE), (1, 1 << 30), (10, 1 << 30)] {
        let mut rvm = Rvm::new(NoFiles)?;
        for _ in 0..regions {
            rvm.map(len)?;
        }
        let ns = median_ns(|| {
            rvm.begin()?;
            rvm.commit()
        })?;
        println!("{ns:>10.0}  {regions} regions of {len} bytes");
    }
    if let Ok(files) = AminoFiles::connect() {
        let mut rvm = Rvm::new(files)?;
        let ns = median_ns(|| {
            rvm.begin()?;
            rvm.commit()
        })?;
        println!("{ns:>10.0}  0 regions, with files");
    }
    Ok(())
}

/// Pages that are read, never written, in each transaction, or once.
fn read_only() -> Result<(), amino_rvm::Error> {
    for always in [true, false] {
        let (mut rvm, region) = filled()?;
        let read = |rvm: &Rvm| -> Result<(), amino_rvm::Error> {
            let bytes = rvm.bytes(region)?;
            black_box(
                bytes
                    .iter()
                    .step_by(PAGE)
                    .map(|b| u64::from(*b))
                    .sum::<u64>(),
            );
            Ok(())
        };
        read(&rvm)?;
        let mut spent = Duration::ZERO;
        let rounds = 640;
        for _ in 0..rounds {
            let begin = Instant::now();
            rvm.begin()?;
            rvm.commit()?;
            spent += begin.elapsed();
            if always {
                read(&rvm)?;
            }
        }
        let ns = spent.as_nanos() as f64 / f64::from(rounds);
        let when = if always { "each time" } else { "once" };
        println!("{ns:>10.0}  {PAGES} pages read {when} (mean)");
    }
    Ok(())
}

/// A region whose pages are all in the base, and none is mapped.
fn filled() -> Result<(Rvm, RegionId), amino_rvm::Error> {
    let mut rvm = Rvm::new(NoFiles)?;
    let region = rvm.map(PAGES * PAGE)?;
    rvm.bytes_mut(region)?.fill(1);
    for _ in 0..2 {
        rvm.begin()?;
        rvm.abort()?;
    }
    Ok((rvm, region))
}

#[derive(Clone, Copy, PartialEq)]
enum Pattern {
    /// The same pages each time, committed.
    Same,
    /// Other pages each time, committed.
    Other,
    /// The same pages each time, aborted.
    Abort,
    /// The same pages by the outer and the nested transaction, both committed.
    Nested,
}

fn written(pages: usize, pattern: Pattern) -> Result<f64, amino_rvm::Error> {
    let (mut rvm, region) = filled()?;
    let (mut first, mut value) = (0, 0_u64);
    let mut write = |rvm: &mut Rvm| -> Result<(), amino_rvm::Error> {
        value += 1;
        touch(rvm.bytes_mut(region)?, first, pages, value);
        if pattern == Pattern::Other {
            first = (first + pages) % PAGES;
        }
        Ok(())
    };
    median_ns(|| {
        rvm.begin()?;
        write(&mut rvm)?;
        match pattern {
            Pattern::Abort => return rvm.abort(),
            Pattern::Nested => {
                rvm.begin()?;
                write(&mut rvm)?;
                rvm.commit()?;
            }
            Pattern::Same | Pattern::Other => {}
        }
        rvm.commit()
    })
}

/// Writes eight bytes to each of `pages` pages from `first` on.
fn touch(bytes: &mut [u8], first: usize, pages: usize, value: u64) {
    for page in bytes.chunks_exact_mut(PAGE).skip(first).take(pages) {
        if let Some(word) = page.first_chunk_mut() {
            *word = value.to_le_bytes();
        }
    }
}

/// Plain memory, whose writer copies `logged` bytes of each page to a log before writing there.
fn by_hand(pages: usize, logged: usize) -> f64 {
    let mut memory = vec![1_u8; PAGES * PAGE];
    let mut log = Vec::with_capacity(pages * logged);
    let mut value = 0_u64;
    median_ns(|| {
        value += 1;
        log.clear();
        for page in memory.chunks_exact_mut(PAGE).take(pages) {
            log.extend_from_slice(page.get(..logged).unwrap_or_default());
            if let Some(word) = page.first_chunk_mut() {
                *word = value.to_le_bytes();
            }
        }
        black_box((&log, &memory));
        Ok(())
    })
    .unwrap_or(f64::NAN)
}

fn heap() -> Result<(), Box<dyn Error>> {
    let mut rvm = Rvm::new(NoFiles)?;
    let heap = Heap::new(&mut rvm, 1 << 30)?;
    let layout = Layout::from_size_align(100, 8)?;
    let count = 1000;
    let ns = median_ns(|| {
        let mut blocks = Vec::with_capacity(count);
        for _ in 0..count {
            blocks.push(heap.alloc(&mut rvm, layout)?);
        }
        blocks
            .into_iter()
            .try_for_each(|block| heap.free(&mut rvm, block))
    })?;
    let mut plain: Vec<Vec<u8>> = Vec::with_capacity(count);
    let plain_ns = median_ns(|| {
        for _ in 0..count {
            plain.push(black_box(Vec::with_capacity(layout.size())));
        }
        plain.clear();
        Ok(())
    })?;
    let each = count as f64;
    println!("\nns to allocate and free 100 bytes, of 1000 at a time");
    println!("{:>10.0}  recoverable heap", ns / each);
    println!("{:>10.0}  malloc", plain_ns / each);
    Ok(())
}
