//! Converts arguments, as strace shows them, to the values that the table of calls describes.

use goanna_syscalls::symbols::numbers::{ERRNO, SIGNALS};
use goanna_syscalls::{Kind, Structure, Symbols, Time, TimeFormat, Value};

use super::line::{Argument, LineError, find, skip_angles, split_list};

/// Facts about a call besides its values.
#[derive(Debug, Default)]
pub struct Notes {
    /// Names of flags and values that the table does not have; they count as 0.
    pub unknown: Vec<String>,
    /// Buffers of which strace shows only the beginning.
    pub cut: u64,
}

/// A string of strace, unescaped, and whether it is complete.
pub fn string(argument: Argument<'_>) -> Result<(Vec<u8>, bool), LineError> {
    let wrong = |why| LineError {
        at: argument.at,
        why,
    };
    let quoted = argument.text.strip_prefix(b"\"");
    let rest = quoted.ok_or_else(|| wrong("here should be a string"))?;
    let mut out = Vec::with_capacity(rest.len());
    let mut at = 0;
    loop {
        match rest.get(at) {
            None => return Err(wrong("the string has no end")),
            Some(b'"') => {
                let behind = rest.get(at + 1..).unwrap_or_default();
                return Ok((out, !behind.starts_with(b"...")));
            }
            Some(b'\\') => at += escape(rest.get(at + 1..).unwrap_or_default(), &mut out),
            Some(byte) => out.push(*byte),
        }
        at += 1;
    }
}

/// Unescapes the text after a backslash, and returns the number of bytes consumed.
fn escape(text: &[u8], out: &mut Vec<u8>) -> usize {
    let digits = |text: &[u8], radix: u32, most: usize| {
        let digits = text.iter().take(most);
        let digits = digits.map_while(|byte| char::from(*byte).to_digit(radix));
        digits.fold((0, 0), |(value, length), digit| {
            (value * radix + digit, length + 1)
        })
    };
    let Some(&first) = text.first() else {
        return 0;
    };
    match first {
        b'n' => out.push(b'\n'),
        b't' => out.push(b'\t'),
        b'r' => out.push(b'\r'),
        b'f' => out.push(0x0c),
        b'v' => out.push(0x0b),
        b'x' => {
            let (value, length) = digits(text.get(1..).unwrap_or_default(), 16, 2);
            out.push(value as u8);
            return 1 + length;
        }
        b'0'..=b'7' => {
            let (value, length) = digits(text, 8, 3);
            out.push(value as u8);
            return length;
        }
        other => out.push(other),
    }
    1
}

/// Text in angle brackets, unescaped.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\\' => at += escape(text.get(at + 1..).unwrap_or_default(), &mut out),
            byte => out.push(byte),
        }
        at += 1;
    }
    out
}

/// A number as strace shows it: decimal, octal with a leading 0, hexadecimal with 0x, a product as 8192*1024, or a power of 2 as 1<<3.
pub fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let text = text.split("/*").next().unwrap_or(text);
    let (factors, shift) = match text.split_once("<<") {
        Some((factors, shift)) => (factors, shift.trim().parse().ok()?),
        None => (text, 0),
    };
    let mut product = 1_u64;
    for factor in factors.split('*') {
        product = product.checked_mul(plain_number(factor.trim())?)?;
    }
    product.checked_shl(shift)
}

fn plain_number(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix('-') {
        return Some(digits.parse::<u64>().ok()?.wrapping_neg());
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    match text.strip_prefix('0') {
        Some("") | None => text.parse().ok(),
        Some(digits) => u64::from_str_radix(digits, 8).ok(),
    }
}

/// The number of an error with this name.
pub fn errno(name: &[u8]) -> Option<i64> {
    let name = std::str::from_utf8(name).ok()?;
    // Other names of errors that the table has.
    let name = match name {
        "ENOTSUP" => "EOPNOTSUPP",
        "EWOULDBLOCK" => "EAGAIN",
        name => name,
    };
    let number = ERRNO.value_of(name)?;
    Some(number.cast_signed())
}

/// The number of a signal with this name.
pub fn signal(name: &[u8]) -> Option<u64> {
    SIGNALS.value_of(std::str::from_utf8(name).ok()?)
}

impl Notes {
    /// Names and numbers with bars between them.
    fn symbols(&mut self, text: &[u8], tables: &[&Symbols]) -> u64 {
        let text = String::from_utf8_lossy(text);
        let text = text.split("/*").next().unwrap_or(&text);
        let mut value = 0;
        for part in text.split('|').map(str::trim).filter(|it| !it.is_empty()) {
            // Requests of ioctl(2) may have several names.
            let mut names = part.split(" or ").map(str::trim);
            let known = |name: &str| {
                // A name of no bit.
                let none = (name == "AT_STATX_SYNC_AS_STAT").then_some(0);
                let table = tables.iter().find_map(|table| table.value_of(name));
                let table = table.or(none);
                table.or_else(|| number(name.as_bytes()))
            };
            match names.find_map(known) {
                Some(bits) => value |= bits,
                None => self.unknown.push(part.to_owned()),
            }
        }
        value
    }

    fn mode(&mut self, text: &[u8]) -> u64 {
        const TYPES: Symbols = Symbols {
            name: "types",
            field: 0,
            values: &[
                (libc::S_IFREG as u64, "S_IFREG"),
                (libc::S_IFDIR as u64, "S_IFDIR"),
                (libc::S_IFLNK as u64, "S_IFLNK"),
                (libc::S_IFCHR as u64, "S_IFCHR"),
                (libc::S_IFBLK as u64, "S_IFBLK"),
                (libc::S_IFIFO as u64, "S_IFIFO"),
                (libc::S_IFSOCK as u64, "S_IFSOCK"),
                (libc::S_ISUID as u64, "S_ISUID"),
                (libc::S_ISGID as u64, "S_ISGID"),
                (libc::S_ISVTX as u64, "S_ISVTX"),
            ],
        };
        self.symbols(text, &[&TYPES])
    }

    /// A number of this kind.
    fn plain(&mut self, kind: Kind, text: &[u8]) -> u64 {
        match kind {
            Kind::Flags(table) | Kind::Choice(table) => self.symbols(text, &[table]),
            Kind::Mode => self.mode(text),
            Kind::Device => device(text),
            Kind::Signal => self.symbols(text, &[&SIGNALS]),
            // NULL, and structures and arrays within structures.
            _ if text == b"NULL" || matches!(text.first(), Some(b'{' | b'[' | b'"')) => 0,
            _ => number(text).unwrap_or_else(|| self.symbols(text, &[])),
        }
    }

    /// The value of an argument of this kind, and the value of its register. `result` is the result of the call.
    pub fn value(
        &mut self,
        kind: Kind,
        argument: Argument<'_>,
        result: Option<i64>,
    ) -> Result<(Value, u64), LineError> {
        let text = argument.text;
        let value = match kind {
            Kind::Signed | Kind::Offset | Kind::Pid | Kind::Signal => {
                let number = self.plain(kind, text);
                return Ok((Value::Signed(number.cast_signed()), number));
            }
            Kind::Descriptor | Kind::Directory => {
                let (number, file) = descriptor(argument)?;
                let raw = i64::from(number).cast_unsigned();
                return Ok((Value::Descriptor { number, file }, raw));
            }
            Kind::Unsigned
            | Kind::Flags(_)
            | Kind::Choice(_)
            | Kind::Mode
            | Kind::Device
            | Kind::Size
            | Kind::Count
            | Kind::Uid
            | Kind::Gid
            | Kind::FcntlArgument
            | Kind::PrctlArgument
            | Kind::IoctlArgument => {
                let number = match text.first() {
                    Some(b'{' | b'[' | b'"') => 0,
                    _ => self.plain(kind, text),
                };
                return Ok((Value::Unsigned(number), number));
            }
            _ if text == b"NULL" => return Ok((Value::Null, 0)),
            Kind::Address => {
                let number = number(text).unwrap_or(0);
                return Ok((Value::Unsigned(number), number));
            }
            _ => self.pointed(kind, argument, result)?,
        };
        let address = number(text).unwrap_or(1);
        Ok((value.unwrap_or(Value::Unread(address)), address))
    }

    /// The data to which an argument points; `None` if strace shows only the address.
    fn pointed(
        &mut self,
        kind: Kind,
        argument: Argument<'_>,
        result: Option<i64>,
    ) -> Result<Option<Value>, LineError> {
        let first = argument.text.first().copied();
        Ok(match (kind, first) {
            (Kind::Path(_), Some(b'"')) => {
                let given = string(argument)?.0.into();
                let resolved = None;
                Some(Value::Path { given, resolved })
            }
            (Kind::Text | Kind::OutputText(_), Some(b'"')) => {
                let (text, is_whole) = string(argument)?;
                self.cut += u64::from(!is_whole);
                is_whole.then(|| Value::Text(text.into()))
            }
            (Kind::Texts, Some(b'[')) => {
                let texts = list(argument)?.into_iter();
                let texts = texts.filter(|it| it.text.starts_with(b"\""));
                let texts = texts.map(|it| Ok(string(it)?.0.into()));
                Some(Value::Texts(texts.collect::<Result<_, LineError>>()?))
            }
            (Kind::OffsetPointer, Some(b'[')) => {
                let inner = list(argument)?;
                let offset = inner.first().and_then(|it| number(it.text));
                offset.map(Value::Unsigned)
            }
            (Kind::Input(_) | Kind::Output(_), Some(b'"')) => {
                let (data, is_whole) = string(argument)?;
                Some(self.bytes(data, is_whole, None))
            }
            (Kind::InputVector(_) | Kind::OutputVector(_), Some(b'[')) => {
                let filled = matches!(kind, Kind::OutputVector(_)).then_some(result);
                Some(self.vector(argument, filled.flatten())?)
            }
            (Kind::InputStructure(layout, _) | Kind::OutputStructure(layout), Some(b'{')) => {
                Some(self.structure(layout, argument)?)
            }
            (Kind::Times(format, _), Some(b'[' | b'{')) => Some(self.times(format, argument)?),
            (Kind::DescriptorPair, Some(b'[')) => {
                let pair = list(argument)?;
                let numbers = pair.into_iter().map(|it| Ok(descriptor(it)?.0));
                let numbers: Vec<i32> = numbers.collect::<Result<_, LineError>>()?;
                match numbers.as_slice() {
                    [first, second] => Some(Value::DescriptorPair([*first, *second])),
                    _ => None,
                }
            }
            _ => None,
        })
    }

    /// Data that was read or written; without content if strace shows only the beginning.
    fn bytes(&mut self, data: Vec<u8>, is_whole: bool, len: Option<u64>) -> Value {
        self.cut += u64::from(!is_whole);
        let len = len.unwrap_or(data.len() as u64);
        let data = if is_whole { data } else { Vec::new() };
        Value::Bytes {
            len,
            data: data.into(),
        }
    }

    /// Buffers one after the other; `filled` is how many bytes the kernel put into them.
    fn vector(&mut self, argument: Argument<'_>, filled: Option<i64>) -> Result<Value, LineError> {
        let (mut data, mut total, mut is_whole) = (Vec::new(), 0_u64, true);
        for element in list(argument)? {
            is_whole &= element.text.starts_with(b"{");
            for (name, value) in members(element)? {
                match name {
                    b"iov_base" if value.text.starts_with(b"\"") => {
                        let (piece, all) = string(value)?;
                        is_whole &= all;
                        data.extend(piece);
                    }
                    b"iov_len" => total = total.saturating_add(number(value.text).unwrap_or(0)),
                    _ => {}
                }
            }
        }
        let filled = filled.and_then(|it| u64::try_from(it).ok());
        let len = filled.map_or(total, |filled| filled.min(total));
        data.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        is_whole &= data.len() as u64 == len;
        Ok(self.bytes(data, is_whole, Some(len)))
    }

    /// A structure. Members that strace leaves out are 0.
    fn structure(
        &mut self,
        layout: &'static Structure,
        argument: Argument<'_>,
    ) -> Result<Value, LineError> {
        let mut data = vec![0; layout.size as usize];
        for (name, value) in members(argument)? {
            let field = layout.fields.iter().find(|it| it.name.as_bytes() == name);
            let Some(field) = field else {
                continue;
            };
            let number = match field.kind {
                Kind::Descriptor => i64::from(descriptor(value)?.0).cast_unsigned(),
                kind => self.plain(kind, value.text),
            };
            let bytes = number.to_le_bytes();
            let length = usize::from(field.bits / 8);
            let into = data.get_mut(field.offset as usize..);
            if let (Some(into), Some(bytes)) = (
                into.and_then(|into| into.get_mut(..length)),
                bytes.get(..length),
            ) {
                into.copy_from_slice(bytes);
            }
        }
        Ok(Value::Bytes {
            len: layout.size.into(),
            data: data.into(),
        })
    }

    fn times(&mut self, format: TimeFormat, argument: Argument<'_>) -> Result<Value, LineError> {
        let elements = match argument.text.first() {
            Some(b'[') => list(argument)?,
            _ => vec![argument],
        };
        let mut times = Vec::new();
        for element in elements {
            let mut time = Time {
                seconds: 0,
                nanoseconds: 0,
            };
            if element.text.starts_with(b"UTIME_NOW") {
                time.nanoseconds = libc::UTIME_NOW;
            } else if element.text.starts_with(b"UTIME_OMIT") {
                time.nanoseconds = libc::UTIME_OMIT;
            } else if element.text.starts_with(b"{") {
                for (name, value) in members(element)? {
                    let value = number(value.text).unwrap_or(0).cast_signed();
                    match name {
                        b"tv_sec" | b"actime" | b"modtime" => time.seconds = value,
                        b"tv_nsec" => time.nanoseconds = value,
                        b"tv_usec" => time.nanoseconds = value.saturating_mul(1000),
                        _ => {}
                    }
                    // struct utimbuf has two times.
                    if format == TimeFormat::Seconds && name == b"actime" {
                        times.push(time);
                    }
                }
            } else {
                time.seconds = number(element.text).unwrap_or(0).cast_signed();
            }
            times.push(time);
        }
        Ok(Value::Times(times.into()))
    }
}

/// The number of a descriptor, and the path of its file if strace shows one.
pub type Descriptor = (i32, Option<Box<[u8]>>);

/// Reads a descriptor as `3</path>` shows it.
pub fn descriptor(argument: Argument<'_>) -> Result<Descriptor, LineError> {
    let text = argument.text;
    let end = text.iter().position(|byte| matches!(byte, b'<' | b' '));
    let first = text.get(..end.unwrap_or(text.len())).unwrap_or_default();
    let value = match first {
        b"AT_FDCWD" => Some(i64::from(libc::AT_FDCWD)),
        // Descriptors are 32 bits wide.
        digits => number(digits).map(|it| i64::from(it as i32)),
    };
    let value = value.ok_or(LineError {
        at: argument.at,
        why: "here should be a descriptor",
    })?;
    let mut file = None;
    if let Some(start) = find(text, b"<") {
        let close = skip_angles(text, start).map_err(|wrong| LineError {
            at: argument.at + wrong.at,
            ..wrong
        })?;
        let path = unescape(text.get(start + 1..close).unwrap_or_default());
        let path = path.strip_suffix(b" (deleted)").unwrap_or(&path);
        file = path.starts_with(b"/").then(|| path.into());
    }
    Ok((value as i32, file))
}

fn device(text: &[u8]) -> u64 {
    let inner = text
        .strip_prefix(b"makedev(")
        .and_then(|it| it.strip_suffix(b")"));
    let Some(inner) = inner else {
        return number(text).unwrap_or(0);
    };
    let mut parts = inner
        .split(|byte| *byte == b',')
        .map(|it| number(it).unwrap_or(0) as u32);
    let (major, minor) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    libc::makedev(major, minor)
}

/// The elements of `[A, B]`.
fn list(argument: Argument<'_>) -> Result<Vec<Argument<'_>>, LineError> {
    within(argument, b']')
}

/// The members of `{NAME=VALUE, ...}`.
fn members(argument: Argument<'_>) -> Result<Vec<(&[u8], Argument<'_>)>, LineError> {
    let elements = within(argument, b'}')?.into_iter();
    Ok(elements
        .filter_map(|element| {
            let equals = find(element.text, b"=")?;
            let value = Argument {
                at: element.at + equals + 1,
                text: element.text.get(equals + 1..)?,
            };
            Some((element.text.get(..equals)?, value))
        })
        .collect())
}

fn within(argument: Argument<'_>, close: u8) -> Result<Vec<Argument<'_>>, LineError> {
    let place = |at| argument.at + at;
    let split = split_list(argument.text, 1, close);
    let (elements, _) = split.map_err(|wrong| LineError {
        at: place(wrong.at),
        ..wrong
    })?;
    let elements = elements.into_iter().map(|element| Argument {
        at: place(element.at),
        ..element
    });
    Ok(elements.collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn argument(text: &str) -> Argument<'_> {
        let text = text.as_bytes();
        Argument { at: 0, text }
    }

    #[test]
    fn strings_are_unescaped_and_cut_ones_known() {
        let (text, is_whole) = string(argument(r#""a\n\"\\\x41\0012\376""#)).unwrap();
        assert_eq!(text, b"a\n\"\\A\x012\xfe");
        assert!(is_whole);
        assert!(!string(argument("\"a\"...")).unwrap().1);
    }

    #[test]
    fn numbers_have_the_forms_of_strace() {
        for (text, value) in [
            ("0", 0),
            ("12", 12),
            ("-1", u64::MAX),
            ("0x1f", 31),
            ("0644", 0o644),
            ("1<<3", 8),
            ("8192*1024", 8 << 20),
        ] {
            assert_eq!(number(text.as_bytes()), Some(value), "{text}");
        }
        assert_eq!(number(b"O_RDONLY"), None);
    }

    /// Each factor was once a level of recursion, and a long line ended the program.
    #[test]
    fn a_product_may_have_any_number_of_factors() {
        let factors = "1*".repeat(1 << 20) + "7";
        assert_eq!(number(factors.as_bytes()), Some(7));
        assert_eq!(number(b"2*"), None);
        assert_eq!(number(b"0x100000000*0x100000000"), None);
    }

    #[test]
    fn descriptors_have_paths_without_what_strace_adds() {
        let path = |text| descriptor(argument(text)).unwrap();
        assert_eq!(path("3"), (3, None));
        assert_eq!(path("3</a\\76b>"), (3, Some(b"/a>b".as_slice().into())));
        assert_eq!(path("3</a (deleted)>").1, Some(b"/a".as_slice().into()));
        assert_eq!(path("3</a>(deleted)").1, Some(b"/a".as_slice().into()));
        assert_eq!(path("4<pipe:[12]>"), (4, None));
        assert_eq!(path("AT_FDCWD</a>").0, libc::AT_FDCWD);
        assert!(descriptor(argument("x")).is_err());
    }

    #[test]
    fn times_and_structures_are_read() {
        let mut notes = Notes::default();
        let text = "[{tv_sec=5, tv_nsec=7} /* 1970 */, UTIME_OMIT]";
        let kind = Kind::Times(TimeFormat::Timespec, 2);
        let (value, _) = notes.value(kind, argument(text), Some(0)).unwrap();
        let Value::Times(times) = value else {
            unreachable!("{value:?}")
        };
        assert_eq!((times[0].seconds, times[0].nanoseconds), (5, 7));
        assert_eq!(times[1].nanoseconds, libc::UTIME_OMIT);
        let stat = "{st_mode=S_IFREG|0644, st_size=6, ...}";
        let layout = &goanna_syscalls::structures::STAT;
        let kind = Kind::OutputStructure(layout);
        let (value, _) = notes.value(kind, argument(stat), Some(0)).unwrap();
        let Value::Bytes { data, .. } = value else {
            unreachable!("{value:?}")
        };
        assert_eq!(layout.field(&data, "st_mode"), Some(0o100_644));
        assert_eq!(layout.field(&data, "st_size"), Some(6));
        assert!(notes.unknown.is_empty());
    }
}
