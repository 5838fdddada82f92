//! The values of the options of a run: durability, engine, treatment of changes outside of transactions. The options
//! together are [`Plan`](crate::Plan), in `plan.rs`.

use amino_fs::EngineKind;
use serde::{Deserialize, Serialize};

/// The durability of operations: when programs wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durability {
    /// Only at fsync(2) and similar calls.
    Aci,
    /// Also at the commit of an explicit transaction.
    Commit,
    /// At every operation that changes something.
    Acid,
}

impl Durability {
    /// The level that a mount option names.
    pub fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"aci" => Self::Aci,
            b"commit" => Self::Commit,
            b"acid" => Self::Acid,
            _ => return None,
        })
    }
}

impl From<Durability> for amino_fs::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Aci => Self::Aci,
            Durability::Commit => Self::Commit,
            Durability::Acid => Self::Acid,
        }
    }
}

/// Storage engines of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Engine {
    /// Log-structured merge trees.
    Fjall,
    /// A B+-tree on a log.
    Sled,
}

impl From<Engine> for EngineKind {
    fn from(engine: Engine) -> Self {
        match engine {
            Engine::Fjall => Self::Fjall,
            Engine::Sled => Self::Sled,
        }
    }
}

/// The treatment of changes that a program makes within a transaction, but outside of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outside {
    /// They are allowed.
    Allow,
    /// They are allowed, and a note names each path.
    Warn,
    /// They fail with EROFS.
    Deny,
}

impl From<Outside> for goanna_monitor::Outside {
    fn from(outside: Outside) -> Self {
        match outside {
            Outside::Allow => Self::Allow,
            Outside::Warn => Self::Warn,
            Outside::Deny => Self::Deny,
        }
    }
}
