//! Parts of canonical paths, which are absolute and have neither links nor empty names nor dots.

/// The directory of a path, and its name there: of `/a/b` these are `/a` and `b`. The root directory is empty. `None` for a path without a slash.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = path.iter().rposition(|&byte| byte == b'/')?;
    let (dir, name) = path.split_at_checked(slash)?;
    Some((dir, name.get(1..)?))
}

/// The directory of a path; empty for the root directory.
pub fn parent(path: &[u8]) -> &[u8] {
    split(path).map_or(b"", |(dir, _)| dir)
}

/// The last name of a path.
pub fn name(path: &[u8]) -> &[u8] {
    split(path).map_or(path, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_directory_and_a_name() {
        assert_eq!(split(b"/a/b"), Some((&b"/a"[..], &b"b"[..])));
        assert_eq!((parent(b"/a"), name(b"/a")), (&b""[..], &b"a"[..]));
        assert_eq!((parent(b"/"), name(b"/")), (&b""[..], &b""[..]));
        assert_eq!((parent(b""), name(b"")), (&b""[..], &b""[..]));
        assert_eq!((parent(b"a"), name(b"a")), (&b""[..], &b"a"[..]));
    }
}
