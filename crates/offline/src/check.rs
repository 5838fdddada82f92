//! Checks a store's integrity constraints and checksums: `amino fsck`.
//!
//! The constraints are the back end's own (`crates/aminofs/src/fsck/`). [`check_closed`] opens a store for the check;
//! [`check_open`] checks one that other threads use meanwhile.

pub use amino_fs::fsck::{Constraint, Finding, Report, check as check_open, fsck as check_closed};
