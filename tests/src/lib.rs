//! Support of the end-to-end tests: the binaries under test, places to run commands in, tracee programs, comparison.
//!
//! A [`Place`] is a temporary directory with a back end; a command runs there natively, under `goanna run` or under
//! `amino run`. The kernel is the specification: a program must print the same in every place as natively.
//!
//! The isolation of transactions is tested on the file system itself, where each step can be chosen: [`isolation`].
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, and this package is nothing but tests"
)]

pub mod binaries;
pub mod compare;
pub mod finish;
pub mod held;
pub mod isolation;
mod mounted;
mod once;
pub mod place;
pub mod power;
pub mod program;
pub mod tools;

pub use goanna_skip::{Facility, skip};

pub use self::binaries::binary;
pub use self::compare::{differences, same_tree, tree};
pub use self::finish::{Ended, finish, finish_within};
pub use self::held::{Held, command_in_path};
pub use self::mounted::run_mounted;
pub use self::once::OnceEach;
pub use self::place::{Backend, Engine, Intercept, Place, User};
pub use self::program::{fill_padding, go_program, program};

/// Whether the tests run as root; only then other users can be tried.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether the tests run as root, and so can become another user. If not, the calling test is recorded as skipped.
pub fn may_become_another_user() -> bool {
    if !is_root() {
        skip(Facility::Root, "only root can become another user");
    }
    is_root()
}

/// Whether calls are answered in the process here. `GOANNA_TEST_FAST_PATH` switches that off.
///
/// # Panics
///
/// When `goanna check` cannot be run.
pub fn uses_stubs(place: &Place) -> bool {
    if std::env::var_os("GOANNA_TEST_FAST_PATH").is_some() {
        skip(Facility::Stubs, "GOANNA_TEST_FAST_PATH is set");
        return false;
    }
    let check = finish(place.native(binary("goanna")).arg("check"));
    let can_be = check.text().contains("ok       calls in the process");
    if !can_be {
        skip(Facility::Stubs, check.text());
    }
    can_be
}

/// Whether the longer versions of tests were asked for with `GOANNA_LONG=1`.
pub fn is_long() -> bool {
    std::env::var_os("GOANNA_LONG").is_some_and(|value| value == "1")
}

/// Defines one test for each place that `$body` is to hold in: back end, interception and user.
///
/// A test for another user is recorded as skipped when the tests do not run as root.
#[macro_export]
macro_rules! in_every_place {
    ($($name:ident => $body:expr;)*) => {
        $(mod $name {
            #[allow(unused_imports, reason = "the body may need nothing from its file")]
            use super::*;
            $crate::in_every_place!(@ $body;
                pass_notify(Pass, Notify) pass_ptrace(Pass, Ptrace)
                fjall_notify(Amino(Fjall), Notify) fjall_ptrace(Amino(Fjall), Ptrace)
                sled_notify(Amino(Sled), Notify) sled_ptrace(Amino(Sled), Ptrace));
        })*
    };
    (@ $body:expr; $($test:ident($backend:ident $(($engine:ident))?, $intercept:ident))*) => {
        mod own {
            #[allow(unused_imports, reason = "the body may need nothing from its file")]
            use super::*;
            $(#[test]
            fn $test() {
                let backend = $crate::Backend::$backend $(($crate::Engine::$engine))?;
                $body($crate::Place::new(backend, $crate::Intercept::$intercept, $crate::User::Own));
            })*
        }
        mod nobody {
            #[allow(unused_imports, reason = "the body may need nothing from its file")]
            use super::*;
            $(#[test]
            fn $test() {
                if !$crate::may_become_another_user() {
                    return;
                }
                let backend = $crate::Backend::$backend $(($crate::Engine::$engine))?;
                $body($crate::Place::new(backend, $crate::Intercept::$intercept, $crate::User::Nobody));
            })*
        }
    };
}
