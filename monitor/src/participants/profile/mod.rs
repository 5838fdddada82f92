//! Profiles: rules that insert transactions into unmodified programs.

pub mod profiled;

use std::fmt;
use std::sync::Arc;

use crate::Status;

type Matches = dyn Fn(&[u8]) -> bool + Send + Sync;

/// The programs that a rule applies to.
#[derive(Clone)]
pub struct Programs(Arc<Matches>);

impl Programs {
    /// The programs for which `matches` is true. It gets the path as it was given to execve(2).
    pub fn new(matches: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(matches))
    }

    /// Whether the rule applies to the program at `path`.
    pub fn contains(&self, path: &[u8]) -> bool {
        (self.0)(path)
    }
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Programs")
    }
}

/// Where a transaction begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// When the program is executed.
    Exec,
    /// Whenever a process of the program that has no transaction opens a file of the store.
    Open,
    /// Whenever a process of the program that has no transaction makes a call that changes the store.
    FirstWrite,
}

/// Where a transaction ends, if the process does not exit before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// When the process that it began for exits.
    Exit,
    /// When that process closes the last file of the store that it has opened since.
    LastClose,
}

/// A rule for some programs.
#[derive(Debug, Clone)]
pub struct Rule {
    /// The programs.
    pub programs: Programs,
    /// Where a transaction begins.
    pub begin: Begin,
    /// Where it ends.
    pub end: End,
    /// Exit statuses that abort it; `None`: all but 0. Death by a signal always aborts it.
    pub aborts: Option<Vec<u8>>,
    /// Whether the commit of an outermost transaction waits for the disk; `None`: the back end's durability level
    /// decides.
    pub durable: Option<bool>,
}

impl Rule {
    /// A rule for every program; only exit status 0 commits.
    fn for_all(begin: Begin, end: End) -> Self {
        Self {
            programs: Programs::new(|_| true),
            begin,
            end,
            aborts: None,
            durable: None,
        }
    }

    /// Whether the transaction of a process that ended in this way is committed.
    pub(crate) fn commits(&self, status: Status) -> bool {
        match (status, &self.aborts) {
            (Status::Exited(code), None) => code == 0,
            (Status::Exited(code), Some(aborts)) => {
                !aborts.iter().any(|&abort| i32::from(abort) == code)
            }
            (Status::Signaled(_), _) => false,
        }
    }
}

/// Rules; the first that matches a program applies.
#[derive(Debug, Clone)]
pub struct Profile {
    rules: Vec<Arc<Rule>>,
}

impl Profile {
    /// A profile of these rules.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self {
            rules: rules.into_iter().map(Arc::new).collect(),
        }
    }

    /// Every program is a transaction: it begins when the program is executed, and is committed when it exits with 0.
    pub fn exec() -> Self {
        Self::new([Rule::for_all(Begin::Exec, End::Exit)])
    }

    /// Every program's file sessions are transactions: from the first file of the store that it opens to the last that
    /// it closes.
    pub fn session() -> Self {
        Self::new([Rule::for_all(Begin::Open, End::LastClose)])
    }

    /// The rule for the program at `path`.
    pub(crate) fn rule(&self, path: &[u8]) -> Option<Arc<Rule>> {
        self.rules
            .iter()
            .find(|rule| rule.programs.contains(path))
            .cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_commit_as_the_rule_says() {
        let mut rule = Rule::for_all(Begin::Exec, End::Exit);
        assert!(rule.commits(Status::Exited(0)));
        assert!(!rule.commits(Status::Exited(1)));
        assert!(!rule.commits(Status::Signaled(15)));
        rule.aborts = Some(vec![75, 255]);
        assert!(rule.commits(Status::Exited(0)) && rule.commits(Status::Exited(1)));
        assert!(!rule.commits(Status::Exited(75)) && !rule.commits(Status::Exited(255)));
        assert!(!rule.commits(Status::Signaled(9)));
    }

    #[test]
    fn the_first_rule_for_a_program_counts() {
        let named = |name: &'static [u8], begin| Rule {
            programs: Programs::new(move |path| path == name),
            ..Rule::for_all(begin, End::Exit)
        };
        let profile = Profile::new([
            named(b"/bin/a", Begin::Open),
            named(b"/bin/a", Begin::Exec),
            named(b"/bin/b", Begin::FirstWrite),
        ]);
        let begin = |path: &[u8]| profile.rule(path).map(|rule| rule.begin);
        assert_eq!(begin(b"/bin/a"), Some(Begin::Open));
        assert_eq!(begin(b"/bin/b"), Some(Begin::FirstWrite));
        assert_eq!(begin(b"/bin/c"), None);
    }
}
