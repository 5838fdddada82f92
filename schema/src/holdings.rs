//! Counts of an engine's content: the number of entries of each key space, and a sum over them.
//!
//! The sum does not depend on the order in which entries were added, and an entry can be removed from it, so each batch
//! updates it. Two engines with the same holdings hold the same entries.
//!
//! The engine keeps its holdings under [`crate::key::APPLIED`], written in the same batch as the entries: version u8 = 2,
//! sequence number u64, then for each key space in ascending order its tag u8, entries u64, sum u64; CRC-32C u32. The
//! former layout is eight bytes, the sequence number alone.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

use crate::DecodeError;
use crate::wire::{Reader, seal, unseal};

const NAME: &str = "engine's holdings";
const VERSION: u8 = 2;
const SPACE_LEN: usize = 17;

/// The entries of one key space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of entries.
    pub entries: u64,
    /// Sum of the entries' hashes, modulo 2^64.
    pub sum: u64,
}

/// The counts of an engine's content after a transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Sequence number of the last transaction applied.
    pub seq: u64,
    /// Key spaces with entries, by tag: the first byte of their keys.
    pub spaces: BTreeMap<u8, Tally>,
}

fn hash(key: &[u8], value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, xxh3_64(key))
}

fn tag(key: &[u8]) -> u8 {
    key.first().copied().unwrap_or_default()
}

impl Holdings {
    /// Adds an entry to the counts.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        let tally = self.spaces.entry(tag(key)).or_default();
        tally.entries = tally.entries.wrapping_add(1);
        tally.sum = tally.sum.wrapping_add(hash(key, value));
    }

    /// Removes an entry from the counts.
    pub fn remove(&mut self, key: &[u8], value: &[u8]) {
        let tag = tag(key);
        let tally = self.spaces.entry(tag).or_default();
        tally.entries = tally.entries.wrapping_sub(1);
        tally.sum = tally.sum.wrapping_sub(hash(key, value));
        if *tally == Tally::default() {
            self.spaces.remove(&tag);
        }
    }

    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(13 + SPACE_LEN * self.spaces.len());
        out.push(VERSION);
        out.extend_from_slice(&self.seq.to_le_bytes());
        for (tag, tally) in &self.spaces {
            out.push(*tag);
            out.extend_from_slice(&tally.entries.to_le_bytes());
            out.extend_from_slice(&tally.sum.to_le_bytes());
        }
        seal(&mut out);
        out
    }

    /// Reads what [`Holdings::encode`] wrote.
    pub fn decode(raw: &[u8]) -> Result<Self, DecodeError> {
        let body = unseal(NAME, raw)?;
        let mut reader = Reader::new(NAME, body);
        if reader.u8()? != VERSION {
            return Err(reader.error(0, "its version is not one this program knows"));
        }
        let seq = reader.u64()?;
        let mut spaces = BTreeMap::new();
        while reader.at() < body.len() {
            let tag = reader.u8()?;
            let (entries, sum) = (reader.u64()?, reader.u64()?);
            spaces.insert(tag, Tally { entries, sum });
        }
        Ok(Self { seq, spaces })
    }

    /// The sequence number in the former layout; `None` if `raw` is not in it.
    pub fn former_seq(raw: &[u8]) -> Option<u64> {
        raw.try_into().ok().map(u64::from_le_bytes)
    }
}

/// A checksum of bytes that are added in pieces, for [`crate::header::FileSum`].
#[derive(Default)]
pub struct Sum(Xxh3);

impl Sum {
    /// The checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> u64 {
        xxh3_64(bytes)
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all added bytes.
    pub fn finish(&self) -> u64 {
        self.0.digest()
    }
}
