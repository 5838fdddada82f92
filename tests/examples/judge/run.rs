//! Runs of a suite: natively, and in each place.

use std::path::Path;
use std::process::Command;

use goanna_tests::{Backend, Engine, Intercept, Place, User, finish_within};

use super::outcome::Outcomes;
use super::suite::Suite;

/// What stands for a back end on the command line, in reports, and in the list of explained differences.
pub const BACKENDS: [(&str, Backend); 4] = [
    ("pass", Backend::Pass),
    ("aes", Backend::Aes),
    ("amino", Backend::Amino(Engine::Fjall)),
    ("amino-sled", Backend::Amino(Engine::Sled)),
];

/// As [`BACKENDS`], for ways of interception.
pub const INTERCEPTS: [(&str, Intercept); 2] =
    [("notify", Intercept::Notify), ("ptrace", Intercept::Ptrace)];

/// The word for the rights of a user.
pub fn rights(user: User) -> &'static str {
    if user == User::Own && goanna_tests::is_root() {
        "root"
    } else {
        "user"
    }
}

/// Runs `suite`, which is in `dir`, natively as `user`.
///
/// # Errors
///
/// A run in which no case was reported, with the end of its output.
pub fn natively(suite: &Suite, dir: &Path, user: User) -> Result<Outcomes, String> {
    let place = Place::new(Backend::Pass, Intercept::Notify, user);
    let top = place.path("native");
    let script = suite.run_script(dir, &top);
    perform(suite, place.native("/bin/bash").args(["-c", &script]))
}

/// Runs `suite`, which is in `dir`, in `place`.
///
/// # Errors
///
/// As [`natively`].
pub fn within(suite: &Suite, dir: &Path, place: &Place) -> Result<Outcomes, String> {
    let script = suite.run_script(dir, Path::new(place.top()));
    perform(suite, place.run().args(["/bin/bash", "-c", &script]))
}

fn perform(suite: &Suite, command: &mut Command) -> Result<Outcomes, String> {
    // Programs of the tests are patched at their first call; here they are as users have them.
    let ended = finish_within(command.env_remove("GOANNA_TEST_CALLS_BEFORE"), suite.limit);
    let outcomes = suite.format.outcomes(&ended.text());
    if outcomes.is_empty() {
        let output = ended.text() + &ended.errors();
        let lines: Vec<&str> = output.lines().rev().take(10).collect();
        let last: Vec<&str> = lines.into_iter().rev().collect();
        return Err(format!(
            "no case was reported, {}\n{}",
            ended.how(),
            last.join("\n")
        ));
    }
    Ok(outcomes)
}
