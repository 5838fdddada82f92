//! The page: the measurements as Markdown that is also readable on a terminal.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::thread;

use crate::Kind;

/// The measurements of one row.
#[derive(Debug, Clone)]
pub struct Row {
    /// The label of the operation or phase.
    pub label: String,
    /// Nanoseconds, by round and setting; `None` where a setting could not do it.
    pub rounds: Vec<Vec<Option<f64>>>,
}

impl Row {
    fn median_ns(&self, setting: usize) -> Option<f64> {
        median(self.rounds.iter().filter_map(|round| at(round, setting)))
    }

    /// The median of the ratios within each round: a disturbance of a whole round cancels out.
    fn ratio(&self, setting: usize, to: usize) -> Option<f64> {
        median(self.rounds.iter().filter_map(|round| {
            let to = at(round, to).filter(|&ns| ns > 0.0)?;
            Some(at(round, setting)? / to)
        }))
    }
}

/// In what times are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds per call.
    Micros,
    /// Seconds per phase.
    Seconds,
}

impl Unit {
    const fn heading(self) -> &'static str {
        match self {
            Self::Micros => "Microseconds per call",
            Self::Seconds => "Seconds",
        }
    }

    const fn ns(self) -> f64 {
        match self {
            Self::Micros => 1e3,
            Self::Seconds => 1e9,
        }
    }
}

/// Everything on the page.
#[derive(Debug, Clone)]
pub struct Page {
    /// The first line.
    pub title: String,
    /// The conditions of the measurement; see [`Page::conditions`].
    pub conditions: String,
    /// In what times are printed.
    pub unit: Unit,
    /// The columns, in the order of the samples in each row.
    pub kinds: Vec<Kind>,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Page {
    /// The machine, and the host's file system below all settings.
    pub fn conditions(dir: &Path) -> String {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let cpu = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name"))
            .map_or("unknown CPU", |rest| {
                rest.trim_start_matches([' ', '\t', ':'])
            });
        format!(
            "Linux {}, {} CPUs ({cpu}), {} below all settings.",
            read("/proc/sys/kernel/osrelease").trim(),
            thread::available_parallelism().map_or(0, usize::from),
            file_system(&read("/proc/self/mounts"), dir),
        )
    }

    /// The page as Markdown.
    pub fn markdown(&self) -> String {
        let rounds = self.rows.iter().map(|row| row.rounds.len()).max();
        let mut text = format!(
            "# {}\n\n{}\nMedians of {} rounds; a ratio is the median of the ratios within the rounds.\n",
            self.title,
            self.conditions,
            rounds.unwrap_or(0),
        );
        let columns: Vec<(usize, Kind)> = self.kinds.iter().copied().enumerate().collect();
        let names = columns.iter().map(|(_, kind)| kind.name().to_owned());
        self.table(&mut text, self.unit.heading(), names.collect(), |row| {
            let cell = |&(at, _): &(usize, Kind)| row.median_ns(at).map(|ns| ns / self.unit.ns());
            columns.iter().map(cell).collect()
        });
        let pairs = ratios(&columns);
        if !pairs.is_empty() {
            let name = |at: usize| self.kinds.get(at).map_or("", |kind| kind.name());
            let names = pairs
                .iter()
                .map(|&(of, to)| format!("{}/{}", name(of), name(to)));
            self.table(&mut text, "Ratios", names.collect(), |row| {
                let cell = |&(of, to): &(usize, usize)| row.ratio(of, to);
                pairs.iter().map(cell).collect()
            });
        }
        text
    }

    fn table(
        &self,
        text: &mut String,
        heading: &str,
        columns: Vec<String>,
        cells: impl Fn(&Row) -> Vec<Option<f64>>,
    ) {
        let first = self.rows.iter().map(|row| row.label.len()).max();
        let first = first.unwrap_or(0).max(heading.len());
        let widths: Vec<usize> = columns.iter().map(|name| name.len().max(8)).collect();
        let _ = write!(text, "\n| {heading:first$} |");
        for (name, width) in columns.iter().zip(&widths) {
            let _ = write!(text, " {name:>width$} |");
        }
        let _ = write!(text, "\n|{:-<w$}|", "", w = first + 2);
        for width in &widths {
            let _ = write!(text, "{:->w$}:|", "", w = width + 1);
        }
        text.push('\n');
        for row in &self.rows {
            let _ = write!(text, "| {:first$} |", row.label);
            for (cell, width) in cells(row).into_iter().zip(&widths) {
                let cell = cell.map_or_else(|| "-".to_owned(), number);
                let _ = write!(text, " {cell:>width$} |");
            }
            text.push('\n');
        }
    }
}

/// Which settings are compared: each with native, then ours with each FUSE that does the same.
fn ratios(columns: &[(usize, Kind)]) -> Vec<(usize, usize)> {
    let is_peer = |ours, peer| match peer {
        Kind::Fuse | Kind::FuseUncached => matches!(ours, Kind::Passfs | Kind::Amino),
        Kind::Gocryptfs | Kind::GocryptfsUncached => ours == Kind::Aes,
        _ => false,
    };
    let mut pairs = Vec::new();
    for &(to, base) in columns {
        for &(of, kind) in columns {
            let against_native = base == Kind::Native && kind != Kind::Native;
            if against_native || is_peer(kind, base) {
                pairs.push((of, to));
            }
        }
    }
    pairs
}

fn at(round: &[Option<f64>], setting: usize) -> Option<f64> {
    round.get(setting).copied().flatten()
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle).copied()?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = values.get(middle.checked_sub(1)?).copied()?;
    Some((lower + upper) / 2.0)
}

/// A number with three significant digits.
fn number(value: f64) -> String {
    let decimals = match value {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// The type of the file system that holds `dir`, from the text of `/proc/self/mounts`: of the mounts above it the
/// deepest, and of those at one place the last.
fn file_system(mounts: &str, dir: &Path) -> String {
    let mut best = (0, "unknown file system");
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        if let (Some(at), Some(kind)) = (fields.next(), fields.next())
            && dir.starts_with(at)
            && at.len() >= best.0
        {
            best = (at.len(), kind);
        }
    }
    best.1.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(label: &str, rounds: &[&[f64]]) -> Row {
        let some = |round: &&[f64]| round.iter().copied().map(Some).collect();
        Row {
            label: label.to_owned(),
            rounds: rounds.iter().map(some).collect(),
        }
    }

    #[test]
    fn a_slow_round_does_not_bend_the_ratio() {
        let row = row(
            "stat",
            &[&[1.0, 10.0], &[50.0, 500.0], &[2.0, 20.0], &[1.0, 30.0]],
        );
        assert_eq!(row.ratio(1, 0), Some(10.0));
        assert_eq!(row.median_ns(0), Some(1.5));
        assert_eq!(row.median_ns(1), Some(25.0));
        assert_eq!(row.median_ns(2), None);
    }

    #[test]
    fn the_page_has_times_and_ratios_and_says_what_is_missing() {
        let mut open = row("open+close", &[&[2_000.0, 14_000.0, 50_000.0]]);
        open.rounds[0][1] = None;
        let page = Page {
            title: "Calls".to_owned(),
            conditions: "Here.".to_owned(),
            unit: Unit::Micros,
            kinds: vec![Kind::Native, Kind::Amino, Kind::Fuse],
            rows: vec![row("stat", &[&[1_000.0, 9_000.0, 36_000.0]]), open],
        };
        let expected = "\
# Calls

Here.
Medians of 1 rounds; a ratio is the median of the ratios within the rounds.

| Microseconds per call |   native |    amino |     fuse |
|-----------------------|---------:|---------:|---------:|
| stat                  |     1.00 |     9.00 |     36.0 |
| open+close            |     2.00 |        - |     50.0 |

| Ratios     | amino/native | fuse/native | amino/fuse |
|------------|-------------:|------------:|-----------:|
| stat       |         9.00 |        36.0 |       0.25 |
| open+close |            - |        25.0 |          - |
";
        assert_eq!(page.markdown(), expected);
    }

    #[test]
    fn the_file_system_is_that_of_the_deepest_and_last_mount() {
        let mounts =
            "/dev/a / ext4 rw 0 0\nx /tmp tmpfs rw 0 0\ny /tmp xfs rw 0 0\nz /t btrfs rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/tmp/w")), "xfs");
        assert_eq!(file_system(mounts, Path::new("/tmpw")), "ext4");
    }
}
