//! Regions against plain vectors with a stack of snapshots.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use std::collections::BTreeMap;

use amino_rvm::{NoFiles, RegionId, Rvm};
use proptest::prelude::*;
use proptest::sample::Index;

const PAGE: usize = 4096;
const PAGES_MAX: usize = 12;

#[derive(Debug, Clone)]
enum Step {
    Write {
        region: Index,
        at: Index,
        len: usize,
        value: u8,
    },
    Read {
        region: Index,
        at: Index,
    },
    Map {
        pages: usize,
    },
    Unmap {
        region: Index,
    },
    Begin,
    Commit,
    Abort,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = any::<Index>;
    let step = prop_oneof![
        10 => (any(), any(), 1..3 * PAGE, 0_u8..4)
            .prop_map(|(region, at, len, value)| Step::Write { region, at, len, value }),
        3 => (any(), any()).prop_map(|(region, at)| Step::Read { region, at }),
        1 => (1..=PAGES_MAX).prop_map(|pages| Step::Map { pages }),
        1 => any().prop_map(|region| Step::Unmap { region }),
        4 => Just(Step::Begin),
        2 => Just(Step::Commit),
        2 => Just(Step::Abort),
    ];
    proptest::collection::vec(step, 1..120)
}

type Model = BTreeMap<RegionId, Vec<u8>>;

struct Pair {
    rvm: Rvm,
    model: Model,
    stack: Vec<Model>,
}

impl Pair {
    fn pick(&self, region: Index) -> Option<RegionId> {
        let ids: Vec<RegionId> = self.model.keys().copied().collect();
        (!ids.is_empty()).then(|| *region.get(&ids))
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write {
                region,
                at,
                len,
                value,
            } => {
                let Some(id) = self.pick(region) else { return };
                let model = self.model.get_mut(&id).unwrap();
                let at = at.index(model.len());
                let range = at..(at + len).min(model.len());
                model[range.clone()].fill(value);
                self.rvm.bytes_mut(id).unwrap()[range].fill(value);
            }
            Step::Read { region, at } => {
                let Some(id) = self.pick(region) else { return };
                let at = at.index(self.model[&id].len());
                assert_eq!(self.rvm.bytes(id).unwrap()[at], self.model[&id][at]);
            }
            Step::Map { pages } => {
                let id = self.rvm.map(pages * PAGE).unwrap();
                self.model.insert(id, vec![0; pages * PAGE]);
            }
            Step::Unmap { region } => {
                let Some(id) = self.pick(region) else { return };
                self.rvm.unmap(id).unwrap();
                self.model.remove(&id);
            }
            Step::Begin => {
                self.stack.push(self.model.clone());
                assert_eq!(self.rvm.begin(), Ok(self.stack.len()));
            }
            Step::Commit => {
                assert_eq!(self.rvm.commit().is_ok(), self.stack.pop().is_some());
            }
            Step::Abort => {
                let before = self.stack.pop();
                assert_eq!(self.rvm.abort().is_ok(), before.is_some());
                if let Some(before) = before {
                    for id in self.model.keys().filter(|id| !before.contains_key(id)) {
                        assert!(self.rvm.bytes(*id).is_err());
                    }
                    self.model = before;
                }
                self.compare();
            }
        }
    }

    /// Reads all, so it is not done at each step: pages that were never read are another case.
    fn compare(&self) {
        for (id, model) in &self.model {
            assert!(self.rvm.bytes(*id).unwrap() == model, "{id:?} differs");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn regions_are_vectors_with_snapshots(steps in steps()) {
        let mut rvm = Rvm::new(NoFiles).unwrap();
        let id = rvm.map(PAGES_MAX * PAGE).unwrap();
        let model = Model::from([(id, vec![0; PAGES_MAX * PAGE])]);
        let mut pair = Pair { rvm, model, stack: Vec::new() };
        // Depth stays far below the limit: 120 steps, of which a fifth begin.
        for step in steps {
            if pair.stack.len() == amino_rvm::DEPTH_MAX {
                break;
            }
            pair.step(step);
        }
        pair.compare();
    }
}
