//! How to replay.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use goanna_tracer::select::Filter;

/// How to replay.
#[derive(Debug, Clone)]
pub struct Options {
    /// Everything happens below this directory.
    pub root: PathBuf,
    /// When calls are made.
    pub speed: Speed,
    /// Which reads are made.
    pub reads: Reads,
    /// The checks.
    pub verify: Verify,
    /// Where the replay stops.
    pub until: Option<Until>,
    /// The commands that are performed, with those that they depend on; all of them without a filter.
    pub only: Option<Arc<Filter>>,
}

/// When calls are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Speed {
    /// As soon as the commands that they must follow are done.
    Fast,
    /// At the times of the trace, this many times as fast: 1 is on time.
    Factor(f64),
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "afap" => Ok(Self::Fast),
            "on-time" => Ok(Self::Factor(1.0)),
            text => {
                let factor = text
                    .parse()
                    .ok()
                    .filter(|it: &f64| it.is_finite() && *it > 0.0);
                let why = "afap, on-time, or a factor such as 2 (twice as fast) or 0.5 is needed";
                factor.map(Self::Factor).ok_or_else(|| why.into())
            }
        }
    }
}

/// Which reads are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// All of them.
    Now,
    /// Those whose bytes are not in the page cache.
    Uncached,
    /// None.
    None,
}

impl FromStr for Reads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "now" => Ok(Self::Now),
            "cached" => Ok(Self::Uncached),
            "none" => Ok(Self::None),
            _ => Err("now, cached and none are known".into()),
        }
    }
}

/// The checks of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Nothing.
    Off,
    /// Results and content; differences are reported.
    Warn,
    /// The same; the replay stops at the first difference that no race explains.
    Stop,
}

impl FromStr for Verify {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "warn" => Ok(Self::Warn),
            "stop" => Ok(Self::Stop),
            _ => Err("off, warn and stop are known".into()),
        }
    }
}

/// Where a replay stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Before calls that began this many nanoseconds after the first one, or later.
    Time(u64),
    /// After the command with this number.
    Command(u64),
}

impl FromStr for Until {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let why = "a number of a command, or seconds as 1.5s, is needed";
        let Some(seconds) = text.strip_suffix('s') else {
            return text.parse().map(Self::Command).map_err(|_| why.into());
        };
        let seconds = seconds
            .parse()
            .ok()
            .filter(|it: &f64| it.is_finite() && *it >= 0.0);
        let time = seconds.map(|it| Self::Time((it * 1e9) as u64));
        time.ok_or_else(|| why.into())
    }
}
