//! Compiles a filter to a directed acyclic graph.
//!
//! A node is a test and two targets: another node, "yes" or "no". `a and b` is the graph of `a` with that of `b` in the place of its "yes";
//! `a or b` has it in the place of "no"; `not a` exchanges both. So each test of the expression becomes at most one node, and equal
//! nodes are one. Nodes lead to earlier ones only: the graph has no cycles, evaluation ends, and a property of all nodes is found in
//! one pass from the first to the last.

use std::collections::HashMap;

use goanna_syscalls::Subject;

use super::Verdict;
use super::facts::Facts;
use super::names::NameCache;
use super::operation::{CallSet, LIMIT};
use super::parse::{Expression, Parsed};
use super::predicate::{Number, Predicate, contains};

/// The target of an outcome of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Target {
    Node(usize),
    Yes,
    No,
}

/// The test of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Test {
    /// One of [`Graph::others`].
    Fact(usize),
    /// One of [`Graph::files`].
    File(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Node {
    test: Test,
    yes: Target,
    no: Target,
}

/// A compiled expression.
#[derive(Debug)]
pub struct Graph {
    nodes: Vec<Node>,
    root: Target,
    /// Tests of files' names and paths, whose outcomes the name cache keeps.
    files: Vec<Predicate>,
    others: Vec<Predicate>,
}

impl Graph {
    /// Compiles an expression.
    pub fn compile(parsed: Parsed) -> Self {
        let mut compiler = Compiler {
            graph: Self {
                nodes: Vec::new(),
                root: Target::Yes,
                files: Vec::new(),
                others: Vec::new(),
            },
            nodes: HashMap::new(),
            tests: HashMap::new(),
        };
        let root = compiler.expression(parsed.expression, Target::Yes, Target::No);
        let mut graph = compiler.graph;
        graph.root = root;
        graph
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Number of different tests of files.
    pub fn file_predicates(&self) -> usize {
        self.files.len()
    }

    /// Whether a test depends on the process that makes a call; thread ids do not count.
    pub fn asks_for_process(&self) -> bool {
        self.others.iter().any(|test| match test {
            Predicate::Number(number, _) => {
                !matches!(number, Number::Tid | Number::Size | Number::Ret)
            }
            Predicate::Comm(_) => true,
            _ => false,
        })
    }

    /// Whether a call is selected.
    pub fn selects(&self, facts: &Facts<'_>, cache: &mut NameCache) -> bool {
        let mut is_looked_up = false;
        let mut target = self.root;
        while let Target::Node(at) = target {
            let Some(node) = self.nodes.get(at) else {
                return false;
            };
            let holds = match node.test {
                Test::Fact(at) => self.others.get(at).is_some_and(|test| fact(test, facts)),
                Test::File(at) => {
                    if !is_looked_up {
                        cache.look_up(&self.files, facts);
                        is_looked_up = true;
                    }
                    cache.holds(at)
                }
            };
            target = if holds { node.yes } else { node.no };
        }
        target == Target::Yes
    }

    /// The verdict that is known at the entry of a call; without `nr`, the one that the thread alone decides.
    pub fn at_entry(&self, nr: Option<u32>, subject: &Subject) -> Verdict {
        let mut target = self.root;
        while let Target::Node(at) = target {
            let Some(node) = self.nodes.get(at) else {
                return Verdict::Undecided;
            };
            let holds = match node.test {
                Test::Fact(at) => self
                    .others
                    .get(at)
                    .and_then(|test| test.at_entry(nr, subject)),
                Test::File(_) => None,
            };
            target = match holds {
                Some(true) => node.yes,
                Some(false) => node.no,
                None => return Verdict::Undecided,
            };
        }
        if target == Target::Yes {
            Verdict::Selected
        } else {
            Verdict::Rejected
        }
    }

    /// The calls that the expression names, one by one or by their operation.
    pub fn named_calls(&self) -> CallSet {
        let mut set = CallSet::default();
        for test in &self.others {
            match test {
                Predicate::Call(calls) => set.add(calls),
                Predicate::Operation(operations) => {
                    let does = |nr: &u32| operations.has_call(*nr) != Some(false);
                    set.add(&(0..=LIMIT).filter(does).collect());
                }
                _ => {}
            }
        }
        set
    }

    /// The calls from whose tests "yes" can be reached.
    pub fn calls(&self) -> CallSet {
        let mut set = CallSet::default();
        // LIMIT stands for all numbers from there on.
        let mut reaches = Vec::with_capacity(self.nodes.len());
        for nr in 0..=LIMIT {
            reaches.clear();
            for node in &self.nodes {
                let leads = |target| match target {
                    Target::Yes => true,
                    Target::No => false,
                    Target::Node(at) => reaches.get(at).copied().unwrap_or(false),
                };
                let of_call = match node.test {
                    Test::Fact(at) => self.others.get(at),
                    Test::File(_) => None,
                };
                let outcome = match of_call {
                    Some(Predicate::Call(calls)) => Some(calls.contains(nr)),
                    Some(Predicate::Operation(operations)) => operations.has_call(nr),
                    _ => None,
                };
                let reach = match outcome {
                    Some(true) => leads(node.yes),
                    Some(false) => leads(node.no),
                    None => leads(node.yes) || leads(node.no),
                };
                reaches.push(reach);
            }
            let can_match = match self.root {
                Target::Yes => true,
                Target::No => false,
                Target::Node(at) => reaches.get(at).copied().unwrap_or(false),
            };
            if can_match {
                set.insert(nr);
            }
        }
        set
    }
}

/// The outcome of a test that does not concern names of files.
fn fact(test: &Predicate, facts: &Facts<'_>) -> bool {
    let number = |value: Option<i64>, ranges: &[(i64, i64)]| {
        value.is_some_and(|value| contains(ranges, value))
    };
    match test {
        Predicate::Number(Number::Size, ranges) => number(facts.size, ranges),
        Predicate::Number(Number::Ret, ranges) => number(facts.result, ranges),
        Predicate::Operation(set) => facts.does(*set),
        other => other
            .at_entry(Some(facts.nr()), facts.subject())
            .unwrap_or(false),
    }
}

/// How many nodes in a row are searched for a test whose outcome is known.
const LOOK_AHEAD: u8 = 4;

struct Compiler {
    graph: Graph,
    nodes: HashMap<Node, usize>,
    tests: HashMap<Predicate, Test>,
}

impl Compiler {
    /// The graph of an expression that leads to `yes` or `no`. The parser bounds the depth.
    fn expression(&mut self, expression: Expression, yes: Target, no: Target) -> Target {
        match expression {
            Expression::Is(predicate) => {
                let test = self.test(predicate);
                self.node(test, yes, no)
            }
            Expression::Not(inner) => self.expression(*inner, no, yes),
            Expression::All(parts) => in_order(parts)
                .into_iter()
                .rev()
                .fold(yes, |next, part| self.expression(part, next, no)),
            Expression::Any(parts) => in_order(parts)
                .into_iter()
                .rev()
                .fold(no, |next, part| self.expression(part, yes, next)),
        }
    }

    fn test(&mut self, predicate: Predicate) -> Test {
        if let Some(&test) = self.tests.get(&predicate) {
            return test;
        }
        let is_file = matches!(predicate, Predicate::File(..));
        let list = if is_file {
            &mut self.graph.files
        } else {
            &mut self.graph.others
        };
        let at = list.len();
        list.push(predicate.clone());
        let test = if is_file {
            Test::File(at)
        } else {
            Test::Fact(at)
        };
        self.tests.insert(predicate, test);
        test
    }

    /// The node of a test; not needed where both outcomes lead to the same.
    fn node(&mut self, test: Test, yes: Target, no: Target) -> Target {
        let node = Node {
            test,
            yes: self.known(yes, test, true, LOOK_AHEAD),
            no: self.known(no, test, false, LOOK_AHEAD),
        };
        if node.yes == node.no {
            return node.yes;
        }
        let next = self.graph.nodes.len();
        let at = *self.nodes.entry(node).or_insert(next);
        if at == next {
            self.graph.nodes.push(node);
        }
        Target::Node(at)
    }

    /// Where `target` leads when the outcome of `test` is known already. Looks at this many nodes in a row.
    fn known(&self, target: Target, test: Test, outcome: bool, ahead: u8) -> Target {
        let Target::Node(at) = target else {
            return target;
        };
        let Some(node) = self.graph.nodes.get(at) else {
            return target;
        };
        if node.test == test {
            return if outcome { node.yes } else { node.no };
        }
        let Some(ahead) = ahead.checked_sub(1) else {
            return target;
        };
        let yes = self.known(node.yes, test, outcome, ahead);
        let no = self.known(node.no, test, outcome, ahead);
        if yes == no { yes } else { target }
    }
}

/// Sorts the parts: first those that the call's number decides, then those that its entry decides.
fn in_order(mut parts: Vec<Expression>) -> Vec<Expression> {
    parts.sort_by_cached_key(Expression::rank);
    parts
}
