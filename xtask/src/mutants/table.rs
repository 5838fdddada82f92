//! The mutants: the ways in which isolation is broken, and the tests that must detect each.

/// A text that occurs once in a file, and its replacement.
pub struct Edit {
    pub file: &'static str,
    pub find: &'static str,
    pub replace: &'static str,
}

/// A broken store.
pub struct Mutant {
    /// The broken part, in words.
    pub name: &'static str,
    pub edits: &'static [Edit],
    /// Tests that have to fail; others may.
    pub fails: &'static [&'static str],
}

const STATE: &str = "txn/src/locks/state.rs";
const VIEW: &str = "crates/aminofs/src/view.rs";
const ATTR: &str = "crates/aminofs/src/metadata/attr.rs";
const TRANSACTION: &str = "crates/aminofs/src/transaction/mod.rs";

const NO_LOCKS: Edit = Edit {
    file: STATE,
    find: "if self.blockers(owner, resource, mode).next().is_some() {\n            return false;",
    replace: "if false {\n            return false;",
};

const IN_PLACE: Edit = Edit {
    file: VIEW,
    find: "        let Some(txn) = self.within else {\n            return Ok(Arc::clone(inode));\n        };",
    replace: "        let Some(txn) = self.within.filter(|_| inode.kind == FileKind::Directory) else {\n            return Ok(Arc::clone(inode.base()));\n        };",
};

/// Data that is written in place needs space in the log before the commit.
const RESERVE: Edit = Edit {
    file: VIEW,
    find: "        let Some(txn) = self.within else {\n            return Ok(self.fs.reserve(bytes)?);",
    replace: "        let Some(txn) = self.within.filter(|_| false) else {\n            return Ok(self.fs.reserve(bytes)?);",
};

const LOCK: &str = "        let locks = &self.transactions.locks;\n        locks.acquire(";

/// The lock that a stat takes.
const GETATTR: &str = "let inode = self.inode_to_read(node)?;\n        // The namespace lock";

const RANDOM: &str = "random_histories_are_serialisable";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "every lock is granted",
        edits: &[NO_LOCKS],
        fails: &[
            "dirty_write",
            "dirty_read",
            "aborted_read",
            "intermediate_read",
            "lost_update",
            "lost_update_of_a_single_operation",
            "lost_update_of_nested_transactions",
            "read_skew",
            "unrepeatable_read",
            "write_skew",
            "phantom_by_listing",
            "phantom_by_listing_with_two_writers",
            "phantom_by_absent_name",
            "phantom_by_removed_name",
            "observed_transaction_vanishes",
            "stat_skew",
            "mode_skew_of_a_directory",
            "a_directory_that_was_looked_at_stays",
            "working_directory_skew",
            "directories_are_not_moved_into_each_other",
            RANDOM,
        ],
    },
    Mutant {
        name: "every lock is granted, and files are written in place",
        edits: &[NO_LOCKS, IN_PLACE, RESERVE],
        fails: &[
            "dirty_write",
            "dirty_read",
            "aborted_read",
            "intermediate_read",
            "observed_transaction_vanishes",
            "dirty_read_of_a_nested_transaction",
            "single_operations_see_all_of_a_transaction_or_nothing",
            RANDOM,
        ],
    },
    Mutant {
        name: "readers take no locks",
        edits: &[Edit {
            file: VIEW,
            find: "Some(txn) => self.lock(txn.owner, &resource(), Mode::Shared),",
            replace: "Some(_) => Ok(()),",
        }],
        fails: &[
            "dirty_read",
            "lost_update",
            "read_skew",
            "unrepeatable_read",
            "write_skew",
            "phantom_by_listing",
            "phantom_by_absent_name",
            "stat_skew",
            "working_directory_skew",
            RANDOM,
        ],
    },
    Mutant {
        name: "readers do not wait for writers",
        edits: &[Edit {
            file: STATE,
            find: "Mode::Shared | Mode::Intent => Self::of(mode),",
            replace: "Mode::Intent => Self::of(mode),\n            Mode::Shared => Self(7),",
        }],
        fails: &[
            "dirty_read",
            "aborted_read",
            "intermediate_read",
            "dirty_read_of_a_nested_transaction",
            RANDOM,
        ],
    },
    Mutant {
        name: "writers do not wait for readers",
        edits: &[Edit {
            file: STATE,
            find: "Mode::Exclusive => Self::default(),",
            replace: "Mode::Exclusive => Self::of(Mode::Shared),",
        }],
        fails: &[
            "lost_update",
            "lost_update_of_a_single_operation",
            "lost_update_of_nested_transactions",
            "read_skew",
            "unrepeatable_read",
            "write_skew",
            "phantom_by_absent_name",
            "phantom_by_removed_name",
            RANDOM,
        ],
    },
    Mutant {
        name: "writers do not wait for writers",
        edits: &[Edit {
            file: STATE,
            find: "Mode::Exclusive => Self::default(),",
            replace: "Mode::Exclusive => Self::of(Mode::Exclusive),",
        }],
        fails: &["dirty_write", "observed_transaction_vanishes", RANDOM],
    },
    Mutant {
        name: "names are not locked",
        edits: &[Edit {
            file: VIEW,
            find: LOCK,
            replace: "        if matches!(resource, Resource::Name(..)) {\n            return Ok(());\n        }\n        let locks = &self.transactions.locks;\n        locks.acquire(",
        }],
        fails: &["phantom_by_absent_name", RANDOM],
    },
    Mutant {
        name: "sets of entries are not locked",
        edits: &[Edit {
            file: VIEW,
            find: LOCK,
            replace: "        if matches!(resource, Resource::Entries(_)) {\n            return Ok(());\n        }\n        let locks = &self.transactions.locks;\n        locks.acquire(",
        }],
        fails: &[
            "phantom_by_listing",
            "phantom_by_listing_with_two_writers",
            "a_removed_directory_gets_no_entry_of_a_single_operation",
            RANDOM,
        ],
    },
    Mutant {
        name: "inodes are not locked",
        edits: &[Edit {
            file: VIEW,
            find: LOCK,
            replace: "        if matches!(resource, Resource::Inode(_)) {\n            return Ok(());\n        }\n        let locks = &self.transactions.locks;\n        locks.acquire(",
        }],
        fails: &[
            "dirty_write",
            "lost_update",
            "read_skew",
            "write_skew",
            "stat_skew",
            "directories_are_not_moved_into_each_other",
            RANDOM,
        ],
    },
    Mutant {
        name: "a transaction that adds entries does not wait for one that lists them",
        edits: &[Edit {
            file: STATE,
            find: "Mode::Shared | Mode::Intent => Self::of(mode),",
            replace: "Mode::Shared => Self::of(mode),\n            Mode::Intent => Self(3),",
        }],
        fails: &[
            "phantom_by_listing",
            "phantom_by_listing_with_two_writers",
            RANDOM,
        ],
    },
    Mutant {
        name: "single operations take no locks",
        edits: &[Edit {
            file: VIEW,
            find: "(None, _) if !self.locking.get() => return Ok(()),",
            replace: "(None, _) if true => return Ok(()),",
        }],
        fails: &[
            "lost_update_of_a_single_operation",
            "unrepeatable_read",
            "phantom_by_absent_name",
            "a_removed_directory_gets_no_entry_of_a_single_operation",
            RANDOM,
        ],
    },
    Mutant {
        name: "the locks of a nested transaction go when it commits",
        edits: &[Edit {
            file: TRANSACTION,
            find: "(Ok(()), Some(_)) => locks.pass_to_parent(txn.owner),",
            replace: "(Ok(()), Some(_)) => locks.end(txn.owner),",
        }],
        fails: &["dirty_read_of_a_nested_transaction", RANDOM],
    },
    Mutant {
        name: "transactions inside the same one are not in each other's way",
        edits: &[Edit {
            file: STATE,
            find: ".filter(move |holder| self.line(owner).all(|relative| relative != *holder))",
            replace: ".filter(move |holder| self.line(owner).last() != self.line(*holder).last())",
        }],
        fails: &["lost_update_of_nested_transactions", RANDOM],
    },
    Mutant {
        name: "nobody sees what is nested by a commit of its parent",
        edits: &[Edit {
            file: TRANSACTION,
            find: "Some(parent) => self.merge_into(&txn, parent),",
            replace: "Some(_) => Ok(()),",
        }],
        fails: &["dirty_read_of_a_nested_transaction", RANDOM],
    },
    Mutant {
        name: "a commit publishes files, but no entries",
        edits: &[Edit {
            file: "crates/aminofs/src/transaction/publish.rs",
            find: "        for delta in std::mem::take(&mut level.dirs).into_values() {\n            touched.push(Arc::clone(&delta.base));\n            self.publish_entries(delta);\n        }\n",
            replace: "        drop(std::mem::take(&mut level.dirs));\n",
        }],
        fails: &["a_removed_directory_gets_no_entries", RANDOM],
    },
    Mutant {
        name: "a directory moves below one that may move",
        edits: &[Edit {
            file: "crates/aminofs/src/directory/rename.rs",
            find: "            self.lock_read(|| Resource::Inode(inode.ino))?;\n            let parent",
            replace: "            let _ = || Resource::Inode(inode.ino);\n            let parent",
        }],
        fails: &["directories_are_not_moved_into_each_other"],
    },
    Mutant {
        name: "a path is not locked",
        edits: &[Edit {
            file: "crates/aminofs/src/directory/names.rs",
            find: "            self.lock_read(|| Resource::Inode(inode.ino))?;\n            let (name, parent)",
            replace: "            let (name, parent)",
        }],
        fails: &["working_directory_skew"],
    },
    Mutant {
        name: "attributes are not locked",
        edits: &[Edit {
            file: ATTR,
            find: GETATTR,
            replace: "let inode = self.inode(node)?;\n        // Shared",
        }],
        fails: &[
            "stat_skew",
            "mode_skew_of_a_directory",
            "a_directory_that_was_looked_at_stays",
            RANDOM,
        ],
    },
    Mutant {
        name: "a transaction that adds entries waits for one that reads the directory's attributes",
        edits: &[Edit {
            file: ATTR,
            find: GETATTR,
            replace: "let inode = self.inode_to_read(node)?;\n        self.lock_read(|| amino_txn::locks::Resource::Entries(node.ino()))?;\n        // The namespace lock",
        }],
        fails: &["links_of_a_directory_are_those_committed_at_that_moment"],
    },
    Mutant {
        name: "a transaction does not see its own links",
        edits: &[Edit {
            file: VIEW,
            find: "nlink += delta.nlink;",
            replace: "nlink += 0;",
        }],
        fails: &[
            "links_of_a_directory_are_those_committed_at_that_moment",
            RANDOM,
        ],
    },
    Mutant {
        name: "links are seen before they are committed",
        edits: &[Edit {
            file: VIEW,
            find: "delta.nlink += nlink;",
            replace: "let links = &mut dir.base().state.lock().meta.nlink;\n        *links = links.saturating_add_signed(nlink as i32);",
        }],
        fails: &[
            "links_of_a_directory_are_those_committed_at_that_moment",
            RANDOM,
        ],
    },
    Mutant {
        name: "a directory that a transaction has changed keeps its links",
        edits: &[Edit {
            file: VIEW,
            find: "(meta.size, meta.nlink) = (base.meta.size, base.meta.nlink);",
            replace: "meta.size = base.meta.size;",
        }],
        fails: &["links_of_a_changed_directory_are_those_committed_at_that_moment"],
    },
    Mutant {
        name: "a removed directory keeps its links",
        edits: &[Edit {
            file: VIEW,
            find: "        if state.home == MetaLocation::Orphan {\n            meta.nlink = 0;\n        }\n",
            replace: "        let _ = MetaLocation::Orphan;\n",
        }],
        fails: &["a_removed_directory_has_no_links"],
    },
];
