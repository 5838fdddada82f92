//! The open file descriptions that slots hold while a trace is compiled, with their files and offsets.

use std::collections::HashMap;

use super::initial::FileId;

/// A slot that holds a descriptor.
#[derive(Debug, Clone)]
pub struct Held {
    pub description: u64,
    /// Path at the open.
    pub path: Vec<u8>,
}

/// An open file description.
#[derive(Debug, Clone, Default)]
pub struct Description {
    /// Number of its file for dependencies.
    pub key: u64,
    /// Its file in the initial state.
    pub file: Option<FileId>,
    /// Where the next read or write begins, if that is known.
    pub offset: Option<u64>,
    /// Writes go to the end.
    pub appends: bool,
    /// Slots that hold it.
    pub holders: u32,
}

/// All slots.
#[derive(Debug, Default)]
pub struct Slots {
    held: HashMap<u32, Held>,
    descriptions: HashMap<u64, Description>,
    next: u64,
}

impl Slots {
    /// Puts a new description into a slot.
    pub fn open(&mut self, slot: u32, path: &[u8], description: Description) {
        self.close(slot);
        self.next += 1;
        let holders = 1;
        let description = Description {
            holders,
            ..description
        };
        self.descriptions.insert(self.next, description);
        let held = Held {
            description: self.next,
            path: path.to_vec(),
        };
        self.held.insert(slot, held);
    }

    /// Puts the description of one slot into another one.
    pub fn copy(&mut self, from: u32, to: u32) {
        self.close(to);
        let Some(held) = self.held.get(&from).cloned() else {
            return;
        };
        if let Some(description) = self.descriptions.get_mut(&held.description) {
            description.holders += 1;
        }
        self.held.insert(to, held);
    }

    pub fn close(&mut self, slot: u32) {
        let Some(held) = self.held.remove(&slot) else {
            return;
        };
        if let Some(description) = self.descriptions.get_mut(&held.description) {
            description.holders -= 1;
            if description.holders == 0 {
                self.descriptions.remove(&held.description);
            }
        }
    }

    pub fn get(&self, slot: u32) -> Option<(&Held, &Description)> {
        let held = self.held.get(&slot)?;
        Some((held, self.descriptions.get(&held.description)?))
    }

    pub fn description_mut(&mut self, slot: u32) -> Option<&mut Description> {
        let held = self.held.get(&slot)?;
        self.descriptions.get_mut(&held.description)
    }
}
