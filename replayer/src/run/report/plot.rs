//! Draws the accuracy of a replay: the distribution of issue errors, and the errors of each second.

use std::fmt::Write;

use super::accuracy::Accuracy;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
/// Space around a panel for its axes.
const MARGIN: f64 = 60.0;
/// Maximum number of points of a curve.
const MAX_POINTS: usize = 2000;

/// A picture of `accuracy` in SVG. Errors are on logarithmic axes.
pub fn svg(accuracy: &Accuracy) -> String {
    let height = 2.0 * (HEIGHT + MARGIN) + MARGIN;
    let width = WIDTH + 2.0 * MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let most = decades(accuracy.quantile_ns(1.0));
    distribution(&mut out, accuracy, most);
    seconds(&mut out, accuracy, most);
    out.push_str("</svg>\n");
    out
}

/// How many powers of ten an axis needs that ends at `ns`; at least from 1 ns to 1 us.
fn decades(ns: u64) -> f64 {
    (ns.max(1) as f64).log10().ceil().max(3.0)
}

/// The share of the calls, over the error that they do not exceed.
fn distribution(out: &mut String, accuracy: &Accuracy, most: f64) {
    let top = MARGIN / 2.0;
    panel(out, top, "share of the calls, by issue error");
    for power in 0..=most as u32 {
        let x = MARGIN + WIDTH * f64::from(power) / most;
        tick(out, x, top + HEIGHT + 16.0, &duration(power));
    }
    for share in [0.0, 0.5, 1.0] {
        let y = top + HEIGHT * (1.0 - share);
        tick(
            out,
            MARGIN - 24.0,
            y + 4.0,
            &format!("{:.0} %", share * 100.0),
        );
    }
    let calls = accuracy.calls().max(1) as f64;
    let mut sum = 0;
    let points = accuracy.distribution().map(|(to_ns, count)| {
        sum += count;
        let x = (to_ns.max(1) as f64).log10() / most;
        (x.min(1.0), sum as f64 / calls)
    });
    curve(out, top, "steelblue", points);
}

/// The mean and the largest error of each second.
fn seconds(out: &mut String, accuracy: &Accuracy, most: f64) {
    let top = MARGIN * 1.5 + HEIGHT;
    panel(
        out,
        top,
        "issue error of each second: mean (blue), largest (red)",
    );
    for power in (0..=most as u32).step_by(3) {
        let y = top + HEIGHT * (1.0 - f64::from(power) / most);
        tick(out, MARGIN - 30.0, y + 4.0, &duration(power));
    }
    let seconds = accuracy.seconds();
    let count = seconds.len().max(1);
    tick(out, MARGIN, top + HEIGHT + 16.0, "0 s");
    tick(
        out,
        MARGIN + WIDTH,
        top + HEIGHT + 16.0,
        &format!("{count} s"),
    );
    let step = count.div_ceil(MAX_POINTS);
    let height = |ns: u64| ((ns.max(1) as f64).log10() / most).clamp(0.0, 1.0);
    let place = |at: usize| (at as f64 + 0.5) / count as f64;
    for (color, is_mean) in [("steelblue", true), ("firebrick", false)] {
        let shown = seconds.iter().enumerate().step_by(step);
        let points = shown
            .filter(|(_, second)| second.calls > 0)
            .map(|(at, second)| {
                let error_ns = if is_mean {
                    second.mean_ns()
                } else {
                    second.max_ns
                };
                (place(at), height(error_ns))
            });
        curve(out, top, color, points);
    }
}

fn panel(out: &mut String, top: f64, title: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "<rect x=\"{MARGIN}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"gray\"/>\n\
         <text x=\"{MARGIN}\" y=\"{y}\">{title}</text>",
        y = top - 6.0
    );
}

fn tick(out: &mut String, x: f64, y: f64, text: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{text}</text>"
    );
}

/// A line through points whose coordinates go from 0 to 1, the second one upwards.
fn curve(out: &mut String, top: f64, color: &str, points: impl Iterator<Item = (f64, f64)>) {
    let mut path = String::new();
    for (x, y) in points {
        let (x, y) = (MARGIN + WIDTH * x, top + HEIGHT * (1.0 - y));
        let _ = write!(path, "{x:.1},{y:.1} ");
    }
    let path = path.trim_end();
    let _ = writeln!(
        out,
        "<polyline points=\"{path}\" fill=\"none\" stroke=\"{color}\"/>"
    );
}

/// A power of ten of nanoseconds.
fn duration(power: u32) -> String {
    let number = 10u64.pow(power % 3);
    match power / 3 {
        0 => format!("{number} ns"),
        1 => format!("{number} us"),
        2 => format!("{number} ms"),
        more => format!("{} s", number * 1000u64.pow(more.saturating_sub(3).min(3))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_the_curves_of_each_second_and_of_the_distribution() {
        let mut accuracy = Accuracy::default();
        for second in 0..3 {
            for error_ns in [500, 5_000, 90_000] {
                accuracy.add(second * 1_000_000_000, error_ns);
            }
        }
        let text = svg(&accuracy);
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
        let curves: Vec<usize> = text
            .lines()
            .filter_map(|line| line.strip_prefix("<polyline points=\""))
            .map(|line| line.split('"').next().unwrap_or_default())
            .map(|points| points.split(' ').count())
            .collect();
        assert_eq!(curves, [3, 3, 3]);
        assert!(text.contains(">100 us<"), "{text}");
        assert!(!text.contains("NaN"), "{text}");
    }

    #[test]
    fn a_replay_without_calls_has_an_empty_picture() {
        let text = svg(&Accuracy::default());
        assert!(
            text.contains("points=\"\"") && !text.contains("NaN"),
            "{text}"
        );
    }
}
