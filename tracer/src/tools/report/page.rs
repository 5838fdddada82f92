//! The page of a report.

use std::collections::HashMap;
use std::fmt::Write;

use super::chart::{class, escape, histogram, short, size, stacked, time};
use super::{Count, Histogram, Operation, Report};

/// Operations that have a colour of their own in the chart over time.
const COLOURED: usize = 7;
/// Lines of a table.
const LINES: usize = 20;
/// Operations whose latencies are drawn.
const LATENCIES: usize = 9;

impl Report {
    /// The page as one file without references to others.
    pub fn html(&self, title: &str) -> String {
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n\
             <title>{0}: trace report</title>\n<style>\n{1}</style></head>\n<body>\n<h1>{0}</h1>\n",
            escape(title),
            include_str!("style.css")
        );
        self.head(&mut page);
        if self.total.calls == 0 {
            page.push_str(match self.counters {
                0 => "<p>The trace has no calls.</p>\n",
                _ => "<p>The trace has counters (--assemble aggregate) and no single calls; goanna-trace cat prints them.</p>\n",
            });
        } else {
            self.over_time(&mut page);
            table(&mut page, "Busiest files", "file", &self.files);
            table(&mut page, "Busiest processes", "process", &self.processes);
            self.operations_table(&mut page);
            self.latencies(&mut page);
            self.sizes(&mut page);
            self.errors(&mut page);
        }
        let _ = writeln!(
            page,
            "<footer>Made by goanna-trace {} of {} records.</footer>\n</body></html>",
            env!("CARGO_PKG_VERSION"),
            self.records
        );
        page
    }

    fn of_context(&self, name: &str) -> String {
        let values = self.context.iter().filter(|(it, _)| it == name);
        let values = values.map(|(_, value)| String::from_utf8_lossy(value));
        values.collect::<Vec<_>>().join(" ")
    }

    fn head(&self, page: &mut String) {
        let mut text = String::from("<p>");
        for (name, label) in [
            ("command", "Command"),
            ("directory", "in"),
            ("attached", "Processes"),
            ("host", "on"),
            ("kernel", "Linux"),
            ("filter", "filter"),
        ] {
            let value = self.of_context(name);
            if !value.is_empty() {
                let _ = write!(text, "{label} <b>{}</b> ", escape(&value));
            }
        }
        if let Some(start) = self.timeline.start_ns().filter(|_| self.offset_ns != 0) {
            let real = start.wrapping_add_signed(self.offset_ns);
            let _ = write!(text, "from <b>{}</b>", date(real / 1_000_000_000));
        }
        let _ = writeln!(page, "{text}</p>\n<div class=\"tiles\">");
        let total = &self.total;
        let span = self
            .timeline
            .width_ns()
            .saturating_mul(self.timeline.rows(&[]).len() as u64);
        for (label, value) in [
            ("calls", short(total.calls)),
            ("errors", short(total.errors)),
            ("time, about", time(span)),
            ("in calls, all threads", time(total.nanoseconds)),
            ("read", size(total.read)),
            ("written", size(total.written)),
            ("files", short(self.files.len() as u64)),
            ("processes", short(self.processes.len() as u64)),
        ] {
            let _ = writeln!(
                page,
                "<div class=\"tile\"><b>{value}</b><span>{label}</span></div>"
            );
        }
        page.push_str("</div>\n");
    }

    /// The operations, the most frequent ones first.
    fn sorted(&self) -> Vec<(&str, &Operation)> {
        let all = self.operations.iter().map(|(name, it)| (&**name, it));
        let mut all = all.collect::<Vec<_>>();
        all.sort_by(|a, b| b.1.count.calls.cmp(&a.1.count.calls).then(a.0.cmp(b.0)));
        all
    }

    fn over_time(&self, page: &mut String) {
        let sorted = self.sorted();
        let mut names = sorted
            .iter()
            .map(|it| it.0)
            .take(COLOURED)
            .collect::<Vec<_>>();
        let rows = self.timeline.rows(&names);
        if rows.is_empty() {
            return;
        }
        names.push("other operations");
        let width = self.timeline.width_ns();
        let _ = writeln!(
            page,
            "<h2>Operations over time</h2>\n<p>Calls in each interval of {}.</p>\n<div class=\"legend\">",
            time(width)
        );
        for (series, name) in names.iter().enumerate() {
            let class = class(series, names.len());
            let _ = write!(
                page,
                "<span><i class=\"{class}\"></i>{}</span>",
                escape(name)
            );
        }
        page.push_str("</div>\n");
        let end = width.saturating_mul(rows.len() as u64);
        let ticks = (0..=5u64).map(|at| (at as f64 / 5.0, time(end / 5 * at)));
        let label = |index: usize| format!("after {}", time(width.saturating_mul(index as u64)));
        page.push_str(&stacked(&rows, &names, label, &ticks.collect::<Vec<_>>()));
        page.push('\n');
    }

    fn operations_table(&self, page: &mut String) {
        page.push_str("<h2>Operations</h2>\n<table><tr><th>operation</th><th>calls</th><th>errors</th><th>bytes</th><th>time</th><th>median</th><th>99 %</th></tr>\n");
        let sorted = self.sorted();
        let most = sorted.first().map_or(0, |(_, it)| it.count.calls);
        for (name, operation) in sorted {
            let count = &operation.count;
            let moved = count.read.saturating_add(count.written);
            let _ = writeln!(
                page,
                "<tr><td>{}</td>{}<td>{}</td><td>{}</td><td>{}</td><td>&lt; {}</td><td>&lt; {}</td></tr>",
                escape(name),
                share(count.calls, most),
                or_dash(count.errors, short),
                or_dash(moved, size),
                time(count.nanoseconds),
                time(operation.latencies.quantile(0.5)),
                time(operation.latencies.quantile(0.99)),
            );
        }
        page.push_str("</table>\n");
    }

    fn latencies(&self, page: &mut String) {
        let mut by_time = self.sorted();
        by_time.retain(|(_, it)| it.latencies.total() > 0);
        by_time.sort_by_key(|(_, it)| std::cmp::Reverse(it.count.nanoseconds));
        if by_time.is_empty() {
            return;
        }
        page.push_str("<h2>Latencies</h2>\n<p>How long calls took, for the operations that took the most time; each bar is twice as slow as the one before. A wait for input counts as well.</p>\n<div class=\"cards\">\n");
        for (name, operation) in by_time.into_iter().take(LATENCIES) {
            let about = format!(
                "{} calls, {} in all, 99 % below {}",
                short(operation.latencies.total()),
                time(operation.count.nanoseconds),
                time(operation.latencies.quantile(0.99))
            );
            card(page, name, &about, &operation.latencies, time);
        }
        page.push_str("</div>\n");
    }

    fn sizes(&self, page: &mut String) {
        let mut sides = [
            ("Reads", Histogram::default(), 0),
            ("Writes", Histogram::default(), 0),
        ];
        for operation in self.operations.values() {
            let [reads, writes] = &mut sides;
            for (side, is, bytes) in [
                (reads, operation.reads, operation.count.read),
                (writes, operation.writes, operation.count.written),
            ] {
                if is {
                    side.1.merge(&operation.sizes);
                    side.2 = bytes.saturating_add(side.2);
                }
            }
        }
        if sides.iter().all(|side| side.1.total() == 0) {
            return;
        }
        page.push_str("<h2>Sizes of reads and writes</h2>\n<p>Bytes that a call handed over; each bar is twice as large as the one before.</p>\n<div class=\"cards\">\n");
        for (name, histogram, bytes) in sides.iter().filter(|side| side.1.total() > 0) {
            let calls = histogram.total();
            let about = format!(
                "{} calls, {} in all, {} each",
                short(calls),
                size(*bytes),
                size(bytes / calls.max(1))
            );
            card(page, name, &about, histogram, size);
        }
        page.push_str("</div>\n");
    }

    fn errors(&self, page: &mut String) {
        let mut errors = self.errors.iter().collect::<Vec<_>>();
        if errors.is_empty() {
            return;
        }
        errors.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        page.push_str(
            "<h2>Errors</h2>\n<table><tr><th>error</th><th>call</th><th>times</th></tr>\n",
        );
        let most = errors.first().map_or(0, |(_, times)| **times);
        for ((error, call), times) in errors.into_iter().take(LINES) {
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td>{}</td>{}</tr>",
                escape(error),
                escape(call),
                share(*times, most)
            );
        }
        page.push_str("</table>\n");
    }
}

/// A histogram with its title, from the first bucket that is not empty to the last one.
fn card(page: &mut String, name: &str, about: &str, of: &Histogram, unit: fn(u64) -> String) {
    let used = |count: &u64| *count > 0;
    let first = of.0.iter().position(used).unwrap_or(0);
    let last = of.0.iter().rposition(used).unwrap_or(0);
    let counts = of.0.get(first..=last).unwrap_or_default();
    let drawn = histogram(counts, |at| unit(Histogram::from(first + at)), "plain");
    let _ = writeln!(
        page,
        "<div class=\"card\"><h3>{}</h3><p>{}</p>{drawn}</div>",
        escape(name),
        escape(about)
    );
}

fn table(page: &mut String, title: &str, what: &str, counts: &HashMap<Box<[u8]>, Count>) {
    if counts.is_empty() {
        return;
    }
    let mut sorted = counts.iter().collect::<Vec<_>>();
    sorted.sort_by(|a, b| b.1.calls.cmp(&a.1.calls).then(a.0.cmp(b.0)));
    let _ = writeln!(
        page,
        "<h2>{title}</h2>\n<table><tr><th>{what}</th><th>calls</th><th>errors</th><th>read</th><th>written</th><th>time</th></tr>"
    );
    let most = sorted.first().map_or(0, |(_, count)| count.calls);
    for (name, count) in sorted.iter().take(LINES) {
        let name = String::from_utf8_lossy(name);
        let name = escape(&name);
        let _ = writeln!(
            page,
            "<tr><td title=\"{name}\">{name}</td>{}<td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            share(count.calls, most),
            or_dash(count.errors, short),
            or_dash(count.read, size),
            or_dash(count.written, size),
            time(count.nanoseconds)
        );
    }
    page.push_str("</table>\n");
    if let Some(more) = sorted.len().checked_sub(LINES).filter(|more| *more > 0) {
        let _ = writeln!(page, "<p>and {more} more</p>");
    }
}

/// A cell with a bar as long as the count's part of the largest one.
fn share(count: u64, most: u64) -> String {
    let percent = count as f64 * 100.0 / most.max(1) as f64;
    format!("<td class=\"share\"><i style=\"width:{percent:.1}%\"></i><span>{count}</span></td>")
}

fn or_dash(number: u64, text: fn(u64) -> String) -> String {
    match number {
        0 => "–".to_owned(),
        number => text(number),
    }
}

/// Date and time in UTC, of seconds since 1970.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of the year 0, in eras of 400 years; a year that begins in March has its leap day at its end.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (era * 400 + year, month + 3),
        _ => (era * 400 + year + 1, month - 9),
    };
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{month:02}-{day_of_month:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_700_000_000, "2023-11-14 22:13:20 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }
}
