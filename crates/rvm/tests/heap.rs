//! The allocator: blocks do not overlap, and what it knows rolls back.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;

use amino_rvm::{Error, Heap, NoFiles, Rvm};
use proptest::prelude::*;

fn fixture(len: usize) -> (Rvm, Heap) {
    let mut rvm = Rvm::new(NoFiles).unwrap();
    let heap = Heap::new(&mut rvm, len).unwrap();
    (rvm, heap)
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 1).unwrap()
}

#[test]
fn an_allocation_rolls_back() {
    let (mut rvm, heap) = fixture(1 << 16);
    rvm.begin().unwrap();
    let lost = heap.alloc(&mut rvm, layout(100)).unwrap();
    rvm.abort().unwrap();
    assert_eq!(heap.free(&mut rvm, lost), Err(Error::NotAllocated));
    assert_eq!(heap.alloc(&mut rvm, layout(100)), Ok(lost));
}

#[test]
fn a_deallocation_rolls_back() {
    let (mut rvm, heap) = fixture(1 << 16);
    let kept = heap.alloc(&mut rvm, layout(100)).unwrap();
    rvm.begin().unwrap();
    heap.free(&mut rvm, kept).unwrap();
    let reused = heap.alloc(&mut rvm, layout(100)).unwrap();
    assert_eq!(reused, kept);
    rvm.abort().unwrap();
    let other = heap.alloc(&mut rvm, layout(100)).unwrap();
    assert_ne!(other, kept);
    assert_eq!(heap.free(&mut rvm, kept), Ok(()));
}

#[test]
fn a_heap_made_in_a_transaction_vanishes_with_it() {
    let (mut rvm, _) = fixture(1 << 16);
    rvm.begin().unwrap();
    let heap = Heap::new(&mut rvm, 1 << 16).unwrap();
    rvm.abort().unwrap();
    assert_eq!(heap.alloc(&mut rvm, layout(1)), Err(Error::NoRegion));
}

#[test]
fn what_was_not_allocated_is_not_freed() {
    let (mut rvm, heap) = fixture(1 << 16);
    let blocks: Vec<_> = (0..5)
        .map(|_| heap.alloc(&mut rvm, layout(64)).unwrap())
        .collect();
    for block in [1, 3, 2] {
        heap.free(&mut rvm, blocks[block]).unwrap();
    }
    // Inside of what has become one free block.
    for block in [1, 3, 2] {
        let again = heap.free(&mut rvm, blocks[block]);
        assert_eq!(again, Err(Error::NotAllocated));
    }
    let start = rvm.start(heap.region()).unwrap().addr().get();
    let end = rvm.bytes(heap.region()).unwrap().len() + start;
    let inside = blocks[0].addr().get() + 16;
    for address in [
        1,
        start - 64,
        start,
        start + 16,
        inside,
        inside + 1,
        end,
        end + 16,
    ] {
        let pointer = NonNull::without_provenance(address.try_into().unwrap());
        assert_eq!(heap.free(&mut rvm, pointer), Err(Error::NotAllocated));
    }
}

#[test]
fn a_full_heap_says_so_and_is_whole_again_when_all_is_freed() {
    let (mut rvm, heap) = fixture(1 << 20);
    let whole = heap.alloc(&mut rvm, layout(1_000_000)).unwrap();
    heap.free(&mut rvm, whole).unwrap();
    let mut blocks = Vec::new();
    loop {
        match heap.alloc(&mut rvm, layout(fastrand::usize(0..3000))) {
            Ok(block) => blocks.push(block),
            Err(error) => {
                assert_eq!(error, Error::Full);
                break;
            }
        }
    }
    assert!(blocks.len() > 500);
    fastrand::shuffle(&mut blocks);
    for block in blocks {
        heap.free(&mut rvm, block).unwrap();
    }
    assert_eq!(heap.alloc(&mut rvm, layout(1_000_000)), Ok(whole));
}

#[test]
fn sizes_and_alignments_beyond_bounds_are_refused() {
    let (mut rvm, heap) = fixture(1 << 16);
    let huge = Layout::from_size_align(isize::MAX as usize - 8192, 4096).unwrap();
    assert_eq!(heap.alloc(&mut rvm, huge), Err(Error::Full));
    assert_eq!(
        heap.alloc(&mut rvm, layout(isize::MAX as usize)),
        Err(Error::Full)
    );
    let align = Layout::from_size_align(1, 8192).unwrap();
    assert_eq!(heap.alloc(&mut rvm, align), Err(Error::Alignment));
}

/// Sets a word of the heap, given by a block and an offset to it.
fn overwrite(rvm: &mut Rvm, heap: Heap, block: NonNull<u8>, offset: isize, value: u64) {
    let start = rvm.start(heap.region()).unwrap();
    let at = (block.addr().get() - start.addr().get())
        .checked_add_signed(offset)
        .unwrap();
    rvm.bytes_mut(heap.region()).unwrap()[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// One that is too small, and says that the next one is itself.
#[test]
fn a_list_that_runs_in_a_cycle_is_damage() {
    let (mut rvm, heap) = fixture(1 << 16);
    let block = heap.alloc(&mut rvm, layout(1024)).unwrap();
    heap.alloc(&mut rvm, layout(1)).unwrap();
    heap.free(&mut rvm, block).unwrap();
    let start = rvm.start(heap.region()).unwrap();
    let header = block.addr().get() - 16 - start.addr().get();
    overwrite(&mut rvm, heap, block, 0, header as u64);
    assert_eq!(heap.alloc(&mut rvm, layout(1200)), Err(Error::Damaged));
}

#[test]
fn a_size_that_cannot_be_is_damage() {
    let (mut rvm, heap) = fixture(1 << 16);
    let block = heap.alloc(&mut rvm, layout(16)).unwrap();
    let size_of_next = 16;
    for size in [1 << 16, 1 << 40, !15, 16, 0, 40] {
        overwrite(&mut rvm, heap, block, size_of_next, size);
        let refused = heap.alloc(&mut rvm, layout(1 << 15));
        assert_eq!(refused, Err(Error::Damaged), "{size}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the program writes over the heap's own data, each call ends and stays inside.
    #[test]
    fn damage_is_an_error(
        spots in proptest::collection::vec((0_usize..4096, any::<u8>()), 1..40),
        sizes in proptest::collection::vec(0_usize..2000, 1..20),
    ) {
        let (mut rvm, heap) = fixture(1 << 15);
        let mut blocks = Vec::new();
        for (n, size) in sizes.iter().enumerate() {
            if let Ok(block) = heap.alloc(&mut rvm, layout(*size)) {
                let start = rvm.start(heap.region()).unwrap().addr().get();
                let offset = block.addr().get() - start;
                prop_assert!(offset + size <= 1 << 15);
                blocks.push(block);
            }
            for (at, value) in spots.iter().skip(n).step_by(sizes.len()) {
                rvm.bytes_mut(heap.region()).unwrap()[*at] = *value;
            }
            if n % 2 == 0 && let Some(block) = blocks.pop() {
                let _ = heap.free(&mut rvm, block);
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Alloc { size: usize, align: u32 },
    Free(prop::sample::Index),
    Begin,
    Commit,
    Abort,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0_usize..5000, 0_u32..=12).prop_map(|(size, align)| Step::Alloc { size, align }),
        5 => any::<prop::sample::Index>().prop_map(Step::Free),
        2 => Just(Step::Begin),
        1 => Just(Step::Commit),
        1 => Just(Step::Abort),
    ];
    proptest::collection::vec(step, 1..150)
}

/// Allocated blocks by offset: length, and the byte that fills them.
type Model = BTreeMap<usize, (usize, u8)>;

fn check(rvm: &Rvm, heap: Heap, model: &Model) {
    let bytes = rvm.bytes(heap.region()).unwrap();
    let mut end = 0;
    for (offset, (len, fill)) in model {
        assert!(*offset >= end, "blocks overlap");
        end = offset + len;
        assert!(bytes[*offset..end].iter().all(|b| b == fill));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn blocks_are_apart_and_roll_back(steps in steps()) {
        let (mut rvm, heap) = fixture(1 << 17);
        let start = rvm.start(heap.region()).unwrap();
        let mut model = Model::new();
        let mut stack: Vec<Model> = Vec::new();
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Alloc { size, align } => {
                    let layout = Layout::from_size_align(size, 1 << align).unwrap();
                    let Ok(block) = heap.alloc(&mut rvm, layout) else { continue };
                    prop_assert!(block.addr().get().is_multiple_of(1 << align));
                    let offset = block.addr().get() - start.addr().get();
                    rvm.bytes_mut(heap.region()).unwrap()[offset..offset + size].fill(n as u8);
                    model.insert(offset, (size, n as u8));
                }
                Step::Free(which) if !model.is_empty() => {
                    let offset = *which.get(&model.keys().copied().collect::<Vec<_>>());
                    model.remove(&offset);
                    let block = start.with_addr(start.addr().checked_add(offset).unwrap());
                    heap.free(&mut rvm, block).unwrap();
                }
                Step::Free(_) => {}
                Step::Begin => {
                    if rvm.begin().is_ok() {
                        stack.push(model.clone());
                    }
                }
                Step::Commit => prop_assert_eq!(rvm.commit().is_ok(), stack.pop().is_some()),
                Step::Abort => {
                    let before = stack.pop();
                    prop_assert_eq!(rvm.abort().is_ok(), before.is_some());
                    model = before.unwrap_or(model);
                }
            }
            check(&rvm, heap, &model);
        }
        for offset in model.keys() {
            let block = start.with_addr(start.addr().checked_add(*offset).unwrap());
            heap.free(&mut rvm, block).unwrap();
        }
        while rvm.abort().is_ok() {}
        check(&rvm, heap, stack.first().unwrap_or(&Model::new()));
    }
}
