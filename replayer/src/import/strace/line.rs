//! Parses lines of strace's text: the thread, the time and the rest; calls that take two lines; the parts of a call.

/// An error in a line: the reason, and the byte of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineError {
    /// Byte of the text, from 0.
    pub at: usize,
    pub why: &'static str,
}

/// A line without its thread and time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// The thread; 0 where the trace has only one and does not name it.
    pub tid: i32,
    /// Nanoseconds since 1970.
    pub at_ns: u64,
    /// Where `rest` begins in the line.
    pub start: usize,
    pub rest: &'a [u8],
}

/// The end of a line whose call continues in another line.
const UNFINISHED: &[u8] = b"<unfinished ...>";
const TIME: LineError = LineError {
    at: 0,
    why: "here should be seconds since 1970 with a fraction: record with strace -f -ttt -T -y",
};

impl<'a> Line<'a> {
    /// Splits a line; `None` where it is one of strace's own messages.
    pub fn split(line: &'a [u8]) -> Result<Option<Self>, LineError> {
        let text = line.trim_ascii_end();
        if text.is_empty() || text.starts_with(b"strace: ") || text.starts_with(b"[ Process ") {
            return Ok(None);
        }
        let mut at = 0;
        let mut tid = 0;
        if let Some(rest) = text.strip_prefix(b"[pid ") {
            let end = find(rest, b"]").ok_or(LineError {
                at: 5,
                why: "the ] behind the thread id is missing",
            })?;
            tid = thread(rest.get(..end).unwrap_or_default().trim_ascii(), 5)?;
            at = 5 + end + 1;
        } else if !word(text).contains(&b'.') {
            tid = thread(word(text), 0)?;
            at = word(text).len();
        }
        at += spaces(text, at);
        let time = word(text.get(at..).unwrap_or_default());
        let at_ns = nanoseconds(time).ok_or(LineError { at, ..TIME })?;
        at += time.len();
        at += spaces(text, at);
        Ok(Some(Self {
            tid,
            at_ns,
            start: at,
            rest: text.get(at..).unwrap_or_default(),
        }))
    }

    /// The text after `<... NAME resumed>`.
    pub fn resumed(&self) -> Option<(usize, &'a [u8])> {
        let rest = self.rest.strip_prefix(b"<... ")?;
        let end = find(rest, b" resumed>")? + b" resumed>".len();
        Some((5 + end, rest.get(end..)?))
    }

    /// The text before `<unfinished ...>`.
    pub fn unfinished(&self) -> Option<&'a [u8]> {
        Some(self.rest.strip_suffix(UNFINISHED)?.trim_ascii_end())
    }

    /// The text between `+++ ` and ` +++`.
    pub fn ended(&self) -> Option<&'a [u8]> {
        self.rest.strip_prefix(b"+++ ")?.strip_suffix(b" +++")
    }

    /// Whether the line reports a signal, or a call whose end strace did not see.
    pub fn is_other(&self) -> bool {
        let detached = self.rest.ends_with(b"<detached ...>");
        let lost = find(self.rest, b"<unfinished ...>) ").is_some_and(|_| !has_duration(self.rest));
        self.rest.starts_with(b"--- ") || self.rest.starts_with(b"????") || detached || lost
    }
}

/// A call: its name, its arguments, its result.
#[derive(Debug)]
pub struct Parts<'a> {
    pub name: &'a [u8],
    pub arguments: Vec<Argument<'a>>,
    pub result: &'a [u8],
    pub result_at: usize,
    pub duration_ns: Option<u64>,
}

/// The text of an argument, and where it begins.
#[derive(Debug, Clone, Copy)]
pub struct Argument<'a> {
    pub at: usize,
    pub text: &'a [u8],
}

/// Splits `NAME(ARGUMENT, ...) = RESULT <SECONDS>`.
pub fn split_call(text: &[u8]) -> Result<Parts<'_>, LineError> {
    let open = find(text, b"(").ok_or(LineError {
        at: 0,
        why: "here should be a call, as in close(3) = 0",
    })?;
    let name = text.get(..open).unwrap_or_default();
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    if name.is_empty() || !name.iter().all(is_name) {
        return Err(LineError {
            at: 0,
            why: "here should be the name of a call",
        });
    }
    let (arguments, end) = split_list(text, open + 1, b')')?;
    let mut at = end + 1;
    at += spaces(text, at);
    if text.get(at) != Some(&b'=') {
        return Err(LineError {
            at,
            why: "here should be = and the result",
        });
    }
    at += 1;
    at += spaces(text, at);
    let mut result = text.get(at..).unwrap_or_default().trim_ascii_end();
    let mut duration_ns = None;
    if let Some(last) = result.iter().rposition(|byte| *byte == b'<')
        && let Some(inner) = result.get(last + 1..).and_then(|it| it.strip_suffix(b">"))
        && let Some(ns) = nanoseconds(inner)
    {
        duration_ns = Some(ns);
        result = result.get(..last).unwrap_or_default().trim_ascii_end();
    }
    if result.is_empty() {
        return Err(LineError {
            at,
            why: "the result is missing",
        });
    }
    Ok(Parts {
        name,
        arguments,
        result,
        result_at: at,
        duration_ns,
    })
}

/// Splits a list at its commas, from `start` on up to the byte that closes it. Also gives where that byte stands.
pub fn split_list(
    text: &[u8],
    start: usize,
    close: u8,
) -> Result<(Vec<Argument<'_>>, usize), LineError> {
    let mut arguments = Vec::new();
    let (mut at, mut from, mut depth) = (start, start, 0_usize);
    let mut push = |from: usize, to: usize| {
        let whole = text.get(from..to).unwrap_or_default();
        let at = from + (whole.len() - whole.trim_ascii_start().len());
        let text = whole.trim_ascii();
        if !text.is_empty() {
            arguments.push(Argument { at, text });
        }
    };
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => at = skip_string(text, at)?,
            b'<' if text.get(at + 1) == Some(&b'<') => at += 1,
            b'<' => at = skip_angles(text, at)?,
            b'/' if text.get(at + 1) == Some(&b'*') => {
                let rest = text.get(at..).unwrap_or_default();
                let why = "the comment has no end";
                at += find(rest, b"*/").ok_or(LineError { at, why })? + 1;
            }
            byte if byte == close && depth == 0 => {
                push(from, at);
                return Ok((arguments, at));
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                let why = "this bracket closes none";
                depth = depth.checked_sub(1).ok_or(LineError { at, why })?;
            }
            b',' if depth == 0 => {
                push(from, at);
                from = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    Err(LineError {
        at: text.len(),
        why: "the list has no end",
    })
}

/// Where the string that begins at `at` ends.
fn skip_string(text: &[u8], at: usize) -> Result<usize, LineError> {
    let mut end = at + 1;
    while let Some(&byte) = text.get(end) {
        match byte {
            b'"' => return Ok(end),
            b'\\' => end += 2,
            _ => end += 1,
        }
    }
    Err(LineError {
        at,
        why: "the string has no end",
    })
}

/// The end of the path in angle brackets that begins at `at`. Within paths, strace escapes these brackets.
pub fn skip_angles(text: &[u8], at: usize) -> Result<usize, LineError> {
    let mut depth = 0_usize;
    let mut end = at;
    while let Some(&byte) = text.get(end) {
        match byte {
            b'<' => depth += 1,
            // As in <TCP:[1.2.3.4:5->6.7.8.9:10]>.
            b'>' if text.get(end - 1) == Some(&b'-') && depth == 1 && has_angle(text, end + 1) => {}
            b'>' if depth == 1 => return Ok(end),
            b'>' => depth -= 1,
            _ => {}
        }
        end += 1;
    }
    Err(LineError {
        at,
        why: "the < has no >",
    })
}

fn has_angle(text: &[u8], from: usize) -> bool {
    let rest = text.get(from..).unwrap_or_default();
    let close = rest.iter().position(|byte| *byte == b'>');
    let socket = find(rest, b"]>");
    close.is_some() && close == socket.map(|at| at + 1)
}

fn has_duration(text: &[u8]) -> bool {
    let last = text.iter().rposition(|byte| *byte == b'<');
    let inner = last.and_then(|last| text.get(last + 1..)?.strip_suffix(b">"));
    inner.and_then(nanoseconds).is_some()
}

/// Where `part` begins in `text`.
pub fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn word(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == b' ');
    text.get(..end.unwrap_or(text.len())).unwrap_or_default()
}

fn spaces(text: &[u8], from: usize) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    rest.iter().take_while(|byte| **byte == b' ').count()
}

fn thread(text: &[u8], at: usize) -> Result<i32, LineError> {
    let number = std::str::from_utf8(text)
        .ok()
        .and_then(|it| it.parse().ok());
    number.filter(|it| *it > 0).ok_or(LineError {
        at,
        why: "here should be a thread id or a time",
    })
}

/// Seconds with a fraction, in nanoseconds.
fn nanoseconds(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let (seconds, fraction) = text.split_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    if !is_number(seconds) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let seconds: u64 = seconds.parse().ok()?;
    let fraction: u64 = format!("{fraction:0<9}").parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(fraction)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_their_thread_in_two_ways_or_not_at_all() {
        for (text, tid) in [
            ("12 1.000000001 close(3) = 0", 12),
            ("[pid   12] 1.000000001 close(3) = 0", 12),
            ("1.000000001 close(3) = 0", 0),
        ] {
            let line = Line::split(text.as_bytes()).unwrap().unwrap();
            assert_eq!((line.tid, line.at_ns), (tid, 1_000_000_001), "{text}");
            assert_eq!(line.rest, b"close(3) = 0");
        }
        assert_eq!(Line::split(b"strace: Process 12 attached").unwrap(), None);
        let wrong = Line::split(b"12 13:00:01 close(3) = 0").unwrap_err();
        assert_eq!(wrong.at, 3);
    }

    #[test]
    fn commas_and_brackets_of_strings_paths_and_structures_split_nothing() {
        let text = br#"f("a, \") b", 3</a, (b>, {x=1, y=[2, 3]}, 1<<3, 4 /* 1, 2 */, 5<TCP:[1.1.1.1:1->2.2.2.2:2]>) = 3</a b> <0.000002>"#;
        let parts = split_call(text).unwrap();
        let texts: Vec<_> = parts.arguments.iter().map(|it| it.text).collect();
        assert_eq!(texts.len(), 6, "{texts:?}");
        assert_eq!(texts[1], b"3</a, (b>");
        assert_eq!(parts.result, b"3</a b>");
        assert_eq!(parts.duration_ns, Some(2000));
    }

    #[test]
    fn what_is_wrong_is_found_where_it_stands() {
        assert_eq!(split_call(b"f(1").unwrap_err().at, 3);
        assert_eq!(split_call(b"f(1]) = 0").unwrap_err().at, 3);
        assert_eq!(split_call(b"f(\"1) = 0").unwrap_err().at, 2);
        assert_eq!(split_call(b"f(1) 0").unwrap_err().at, 5);
        assert_eq!(split_call(b"no call").unwrap_err().at, 0);
    }
}
