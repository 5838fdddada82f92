//! Profiles: rules that insert transactions into unmodified programs.

pub mod profiled;

use std::fmt;
use std::sync::Arc;

use crate::Status;

type Matches = dyn Fn(&[u8]) -> bool + Send + Sync;

/// Which programs a rule is for.
#[derive(Clone)]
pub struct Programs(Arc<Matches>);

impl Programs {
    /// Those for whose path, as it was given to execve(2), `matches` is true.
    pub fn new(matches: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(matches))
    }

    /// Whether the program at `path` is one of them.
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
    /// Whenever a process of it that has none opens a file of the store.
    Open,
    /// Whenever a process of it that has none makes a call that changes the store.
    FirstWrite,
}

/// Where it ends, if the process does not exit before.
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
    /// Which.
    pub programs: Programs,
    /// Where a transaction begins.
    pub begin: Begin,
    /// Where it ends.
    pub end: End,
    /// Exit statuses that abort it; `None`: every one but 0. So does death by a signal, always.
    pub aborts: Option<Vec<u8>>,
    /// Whether the commit of an outermost one waits for the disk; `None`: as the back end's durability says.
    pub durable: Option<bool>,
}

impl Rule {
    /// For every program; nothing but exit status 0 commits.
    fn for_all(begin: Begin, end: End) -> Self {
        Self {
            programs: Programs::new(|_| true),
            begin,
            end,
            aborts: None,
            durable: None,
        }
    }

    /// Whether a process that ended so commits.
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
    /// These rules.
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
