//! Patterns for names and paths: `*` (anything without a slash), `**` (anything), `?`, `[a-z]`, `[!a-z]`, and `\` before a character that
//! stands for itself. Matching neither allocates nor recurses.

/// One element of a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Element {
    Byte(u8),
    /// `?`
    One,
    /// `[...]`; ranges of bytes, and whether they are excluded.
    Set(Box<[(u8, u8)]>, bool),
    /// `*`
    Star,
    /// `**`
    Anything,
    /// `**/` at the beginning of a component: nothing, or anything that ends with a slash.
    Directories,
}

/// A compiled pattern.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Glob(Box<[Element]>);

/// Where matching continues after a mismatch: behind this element, with the text from this offset on.
type Resume = Option<(usize, usize)>;

impl Glob {
    /// Compiles a pattern. The error has the byte position and a description of the fault.
    pub fn new(pattern: &[u8]) -> Result<Self, (usize, &'static str)> {
        let mut elements = Vec::new();
        let mut at = 0;
        while let Some(&byte) = pattern.get(at) {
            let rest = &pattern[at..];
            let (element, length) = match byte {
                b'*' if rest.starts_with(b"**/") && is_component_start(&elements) => {
                    (Element::Directories, 3)
                }
                b'*' if rest.starts_with(b"**") => (Element::Anything, 2),
                b'*' => (Element::Star, 1),
                b'?' => (Element::One, 1),
                b'[' => set(rest).ok_or((at, "a set without a closing ']'"))?,
                b'\\' => match rest.get(1) {
                    Some(&next) => (Element::Byte(next), 2),
                    None => return Err((at, "a backslash at the end of a pattern")),
                },
                other => (Element::Byte(other), 1),
            };
            elements.push(element);
            at += length;
        }
        Ok(Self(elements.into()))
    }

    /// The pattern for paths: a pattern without a slash is for the last component, a pattern that does not begin with a slash matches at
    /// any depth.
    pub fn for_paths(pattern: &[u8]) -> Result<Self, (usize, &'static str)> {
        let Self(elements) = Self::new(pattern)?;
        let is_absolute = matches!(
            elements.first(),
            Some(Element::Byte(b'/') | Element::Directories | Element::Anything)
        );
        if is_absolute {
            return Ok(Self(elements));
        }
        let any_depth = std::iter::once(Element::Directories);
        Ok(Self(any_depth.chain(elements).collect()))
    }

    /// Whether the whole of `text` matches.
    ///
    /// After a mismatch only the last `*` takes another byte, or the last `**` if that byte is a slash: the elements before it have
    /// already matched as little as they can.
    pub fn matches(&self, text: &[u8]) -> bool {
        let (mut element, mut at) = (0, 0);
        let mut star: Resume = None;
        let mut anything: Resume = None;
        loop {
            match self.0.get(element) {
                Some(Element::Star) => {
                    star = Some((element + 1, at));
                    element += 1;
                    continue;
                }
                Some(Element::Anything | Element::Directories) => {
                    star = None;
                    anything = Some((element + 1, at));
                    element += 1;
                    continue;
                }
                Some(one) if text.get(at).is_some_and(|&byte| one.takes(byte)) => {
                    element += 1;
                    at += 1;
                    continue;
                }
                None if at == text.len() => return true,
                _ => {}
            }
            let Some(next) = self.resume(text, &mut star, &mut anything) else {
                return false;
            };
            (element, at) = next;
        }
    }

    /// Lets the last `*` or `**` take more.
    fn resume(
        &self,
        text: &[u8],
        star: &mut Resume,
        anything: &mut Resume,
    ) -> Option<(usize, usize)> {
        if let Some((element, at)) = *star
            && text.get(at).is_some_and(|&byte| byte != b'/')
        {
            *star = Some((element, at + 1));
            return *star;
        }
        *star = None;
        let (element, at) = (*anything)?;
        let rest = text.get(at..)?;
        let more = match self.0.get(element - 1) {
            Some(Element::Directories) => rest.iter().position(|&byte| byte == b'/')? + 1,
            _ if rest.is_empty() => return None,
            _ => 1,
        };
        *anything = Some((element, at + more));
        *anything
    }
}

/// Whether the element after these begins a component of a path. Elsewhere `**/` is a `**` and a slash.
fn is_component_start(elements: &[Element]) -> bool {
    matches!(
        elements.last(),
        None | Some(Element::Byte(b'/') | Element::Directories)
    )
}

impl Element {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Self::Byte(own) => *own == byte,
            Self::One => byte != b'/',
            Self::Set(ranges, excluded) => {
                let is_in = ranges
                    .iter()
                    .any(|&(low, high)| (low..=high).contains(&byte));
                byte != b'/' && is_in != *excluded
            }
            Self::Star | Self::Anything | Self::Directories => false,
        }
    }
}

/// The set at the beginning of `text`, and its length. A `]` that comes first belongs to the set.
fn set(text: &[u8]) -> Option<(Element, usize)> {
    let excluded = matches!(text.get(1), Some(b'!' | b'^'));
    let mut at = if excluded { 2 } else { 1 };
    let mut ranges = Vec::new();
    loop {
        let mut low = *text.get(at)?;
        if low == b']' && !ranges.is_empty() {
            return Some((Element::Set(ranges.into(), excluded), at + 1));
        }
        if low == b'\\' {
            at += 1;
            low = *text.get(at)?;
        }
        let is_range =
            text.get(at + 1) == Some(&b'-') && text.get(at + 2).is_some_and(|&b| b != b']');
        let high = if is_range { *text.get(at + 2)? } else { low };
        ranges.push((low, high));
        at += if is_range { 3 } else { 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Glob::new(pattern.as_bytes())
            .unwrap()
            .matches(text.as_bytes())
    }

    #[test]
    fn patterns_match_as_a_shell_does() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("*.c", "main.c"),
            ("*.c", ".c"),
            ("a*b*c", "aXbYbZc"),
            ("?[a-c]*", "xb"),
            ("[!a]", "b"),
            ("[]x]", "]"),
            ("\\*", "*"),
            ("/a/**/b", "/a/b"),
            ("/a/**/b", "/a/x/y/b"),
            ("/a/**", "/a/x/y"),
            ("**/x*y/z", "/q/xy/x1/x2y/z"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("*", "a/b"),
            ("?", "/"),
            ("[!a]", "/"),
            ("*.c", "main.h"),
            ("/a/**/b", "/a/xb"),
            ("/a/*/b", "/a/x/y/b"),
            ("**/x*y/z", "/q/x/y/z"),
            ("a", ""),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
        let path = |pattern: &str| Glob::for_paths(pattern.as_bytes()).unwrap();
        assert!(path("*.c").matches(b"/src/deep/main.c"));
        assert!(path("src/*.c").matches(b"/x/src/main.c"));
        assert!(!path("src/*.c").matches(b"/x/osrc/main.c"));
        assert!(Glob::new(b"[a").is_err() && Glob::new(b"\\").is_err());
    }

    /// Matches a pattern by trying every possibility.
    fn naive(elements: &[Element], text: &[u8]) -> bool {
        let Some((first, rest)) = elements.split_first() else {
            return text.is_empty();
        };
        let splits = || (0..=text.len()).map(|at| text.split_at(at));
        match first {
            Element::Star => {
                splits().any(|(taken, left)| !taken.contains(&b'/') && naive(rest, left))
            }
            Element::Anything => splits().any(|(_, left)| naive(rest, left)),
            Element::Directories => splits().any(|(taken, left)| {
                (taken.is_empty() || taken.ends_with(b"/")) && naive(rest, left)
            }),
            one => text
                .split_first()
                .is_some_and(|(&byte, left)| one.takes(byte) && naive(rest, left)),
        }
    }

    #[test]
    fn matching_equals_trying_everything() {
        let mut random = fastrand::Rng::with_seed(12);
        for _ in 0..20_000 {
            let pattern: Vec<&str> = (0..random.usize(..7))
                .map(|_| ["a", "b", "/", "*", "**", "**/", "?", "[ab]"][random.usize(..8)])
                .collect();
            let glob = Glob::new(pattern.concat().as_bytes()).unwrap();
            let text: Vec<u8> = (0..random.usize(..9))
                .map(|_| b"ab/"[random.usize(..3)])
                .collect();
            assert_eq!(
                glob.matches(&text),
                naive(&glob.0, &text),
                "{glob:?} {text:?}"
            );
        }
    }
}
