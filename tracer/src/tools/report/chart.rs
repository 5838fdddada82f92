//! Drawings as SVG, without scripts or outside assets.

use std::fmt::Write;

/// Number of series with a colour, by the class names that the style sheet of the page defines; the last one is for
/// the rest.
pub(super) const SERIES: usize = 8;

const WIDTH: f64 = 1060.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 56.0;
const BOTTOM: f64 = 26.0;
const TOP: f64 = 8.0;

/// Bars of stacked values. `labels` has a text for each bar, `ticks` where on the axis (0 to 1) which text stands.
pub(super) fn stacked(
    rows: &[Vec<u64>],
    names: &[&str],
    labels: impl Fn(usize) -> String,
    ticks: &[(f64, String)],
) -> String {
    let most = rows
        .iter()
        .map(|row| row.iter().sum::<u64>())
        .max()
        .unwrap_or(0);
    let (step, top) = nice(most);
    let (wide, high) = (WIDTH - LEFT, HEIGHT - TOP - BOTTOM);
    let y = |value: u64| TOP + high * (1.0 - value as f64 / top.max(1) as f64);
    let mut svg = open(WIDTH, HEIGHT);
    let mut value = 0;
    while value <= top {
        let at = y(value);
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{at:.1}" y2="{at:.1}"/><text class="axis" x="{:.0}" y="{:.1}" text-anchor="end">{}</text>"#,
            LEFT - 8.0,
            at + 4.0,
            short(value)
        );
        value += step;
    }
    let bar = wide / rows.len().max(1) as f64;
    for (index, row) in rows.iter().enumerate() {
        let all = row.iter().sum::<u64>();
        if all == 0 {
            continue;
        }
        let x = LEFT + bar * index as f64;
        let _ = write!(svg, "<g><title>{}: {} calls", labels(index), short(all));
        for (name, value) in names.iter().zip(row).filter(|(_, value)| **value > 0) {
            let _ = write!(svg, "\n{}: {}", escape(name), short(*value));
        }
        svg.push_str("</title>");
        let mut below = 0;
        for (series, value) in row.iter().enumerate().filter(|(_, value)| **value > 0) {
            let (low, up) = (y(below), y(below + value));
            let class = class(series, names.len());
            let _ = write!(
                svg,
                r#"<rect class="{class}" x="{x:.2}" y="{up:.2}" width="{:.2}" height="{:.2}"/>"#,
                (bar - 0.6).max(0.6),
                low - up
            );
            below += value;
        }
        svg.push_str("</g>");
    }
    for (place, text) in ticks {
        let x = LEFT + wide * place;
        let anchor = match *place {
            place if place <= 0.0 => "start",
            place if place >= 1.0 => "end",
            _ => "middle",
        };
        let _ = write!(
            svg,
            r#"<text class="axis" x="{x:.0}" y="{:.0}" text-anchor="{anchor}">{}</text>"#,
            HEIGHT - 8.0,
            escape(text)
        );
    }
    svg.push_str("</svg>");
    svg
}

/// Bars of a histogram, each with the text of its range; every other one is written below.
pub(super) fn histogram(counts: &[u64], range: impl Fn(usize) -> String, class: &str) -> String {
    const WIDE: f64 = 340.0;
    const HIGH: f64 = 120.0;
    const FOOT: f64 = 18.0;
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let all = counts.iter().sum::<u64>().max(1);
    let bar = WIDE / counts.len().max(1) as f64;
    let every = (46.0 / bar).ceil().max(1.0) as usize;
    let mut svg = open(WIDE, HIGH);
    let _ = write!(
        svg,
        r#"<line class="grid" x1="0" x2="{WIDE}" y1="{0:.1}" y2="{0:.1}"/>"#,
        HIGH - FOOT
    );
    for (index, count) in counts.iter().enumerate() {
        let high = (HIGH - FOOT - 4.0) * *count as f64 / most as f64;
        let high = if *count > 0 { high.max(1.0) } else { 0.0 };
        let x = bar * index as f64;
        let _ = write!(
            svg,
            r#"<rect class="{class}" x="{:.2}" y="{:.2}" width="{:.2}" height="{high:.2}"><title>{}: {count} ({:.1} %)</title></rect>"#,
            x + 0.75,
            HIGH - FOOT - high,
            (bar - 1.5).max(1.0),
            escape(&range(index)),
            *count as f64 * 100.0 / all as f64
        );
        if index % every == 0 && x + 44.0 < WIDE {
            let _ = write!(
                svg,
                r#"<text class="axis" x="{x:.1}" y="{:.0}">{}</text>"#,
                HIGH - 4.0,
                escape(&range(index))
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

fn open(width: f64, height: f64) -> String {
    format!(r#"<svg viewBox="0 0 {width} {height}" role="img">"#)
}

/// The class of a series of `count`; the last series is the rest.
pub(super) fn class(series: usize, count: usize) -> String {
    if series + 1 >= count {
        "rest".to_owned()
    } else {
        format!("s{}", series % SERIES)
    }
}

/// A step of an axis that ends at or above `most`, and that end.
fn nice(most: u64) -> (u64, u64) {
    let rough = (most / 4).max(1);
    let mut power = 1u64;
    while power <= rough / 10 {
        power *= 10;
    }
    let step = [1, 2, 5, 10]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    (step, most.div_ceil(step).max(1) * step)
}

/// A number with k, M or G.
pub(super) fn short(number: u64) -> String {
    scaled(number as f64, 1000.0, &["", " k", " M", " G", " T"])
}

/// A number of bytes.
pub(super) fn size(bytes: u64) -> String {
    scaled(
        bytes as f64,
        1024.0,
        &[" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"],
    )
}

/// A time.
pub(super) fn time(nanoseconds: u64) -> String {
    match nanoseconds {
        60_000_000_000.. => {
            let seconds = nanoseconds / 1_000_000_000;
            format!("{} min {} s", seconds / 60, seconds % 60)
        }
        _ => scaled(nanoseconds as f64, 1000.0, &[" ns", " µs", " ms", " s"]),
    }
}

fn scaled(mut number: f64, factor: f64, units: &[&str]) -> String {
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    for next in units {
        if number < factor {
            break;
        }
        number /= factor;
        unit = next;
    }
    let digits = match number {
        number if number >= 100.0 || number.fract() < 0.005 => 0,
        number if number >= 10.0 => 1,
        _ => 2,
    };
    format!("{number:.digits$}{unit}")
}

/// Text that stands for itself in HTML.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            letter => out.push(letter),
        }
    }
    out
}
