//! Mount files: `TYPE SOURCE TARGET [OPTIONS]`, one mount a line, as fstab(5).

use super::spec::{MountSpec, SpecError};
use super::types::MountTypes;

/// Parses a file's text. An error has the number of the wrong line, from 1.
pub fn parse(types: MountTypes, text: &[u8]) -> Result<Vec<MountSpec>, (usize, SpecError)> {
    let mut mounts = Vec::new();
    for (index, line) in text.split(|&b| b == b'\n').enumerate() {
        let mount = parse_line(types, line).map_err(|error| (index + 1, error))?;
        mounts.extend(mount);
    }
    Ok(mounts)
}

/// A comment begins with `#` at the start of a field, so a `#` inside one is literal.
fn parse_line(types: MountTypes, line: &[u8]) -> Result<Option<MountSpec>, SpecError> {
    let fields: Vec<&[u8]> = line
        .split(|b| matches!(b, b' ' | b'\t' | b'\r'))
        .filter(|field| !field.is_empty())
        .take_while(|field| field.first() != Some(&b'#'))
        .collect();
    let (kind, source, target, options) = match fields.as_slice() {
        [] => return Ok(None),
        [kind, source, target] => (kind, source, target, &b"defaults"[..]),
        [kind, source, target, options] => (kind, source, target, *options),
        fields => return Err(SpecError::Fields(fields.len())),
    };
    let options: Vec<Vec<u8>> = options
        .split(|&b| b == b',')
        .filter(|option| !matches!(*option, b"defaults" | b"rw" | b"exec"))
        .map(unescape)
        .collect();
    MountSpec::build(types, kind, unescape(source), unescape(target), &options).map(Some)
}

/// Decodes `\NNN`, three octal digits, as getmntent(3) does; any other backslash is literal.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    loop {
        match rest {
            [] => return bytes,
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                tail @ ..,
            ] => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            [byte, tail @ ..] => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use goanna_vfs::MountOptions;

    use crate::Durability;
    use crate::mounts::Source;
    use crate::mounts::types::ALL;

    #[test]
    fn a_file_with_everything() {
        let text = b"# mounts\n\npass /srv /srv ro # the data\n\
            pass\t/with\\040blank\\134\t/a\\043b\tdefaults\r\n\
            amino /store /db durability=acid,noexec\n  pass /a#b /c";
        let pass = |path: &str| Source::Backend {
            name: "pass".into(),
            path: path.into(),
            options: MountOptions::default(),
        };
        let mounts = parse(ALL, text).unwrap();
        let targets: Vec<&[u8]> = mounts.iter().map(|m| m.target.as_slice()).collect();
        assert_eq!(targets, [&b"/srv"[..], b"/a#b", b"/db", b"/c"]);
        assert!(mounts[0].read_only && !mounts[1].read_only);
        assert_eq!(mounts[1].source, pass("/with blank\\"));
        assert_eq!(
            mounts[2].source,
            Source::Store {
                dir: "/store".into(),
                durability: Durability::Acid
            }
        );
        assert!(mounts[2].no_exec);
        assert_eq!(mounts[3].source, pass("/a#b"));
    }

    #[test]
    fn errors_name_their_line() {
        let types = || "pass, amino and iso".to_owned();
        let cases: &[(&[u8], usize, SpecError)] = &[
            (b"pass /a", 1, SpecError::Fields(2)),
            (b"\n# c\npass /a /b ro 0 0", 3, SpecError::Fields(6)),
            (
                b"pass /a /b\naes /a /b",
                2,
                SpecError::UnknownType("aes".into(), types()),
            ),
            (b"pass /a b", 1, SpecError::Relative("b".into())),
            (
                b"ext4 /a /b",
                1,
                SpecError::UnknownType("ext4".into(), types()),
            ),
            (b"pass /a /b ro,ro", 1, SpecError::Twice("ro".into())),
            (b"pass /a\\000 /b", 1, SpecError::Nul),
        ];
        for (text, line, error) in cases {
            assert_eq!(parse(ALL, text), Err((*line, error.clone())));
        }
    }
}
