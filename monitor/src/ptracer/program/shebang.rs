//! The first line of a script.

/// Linux reads this many bytes of a program to recognise its format (`BINPRM_BUF_SIZE`).
pub(super) const HEAD: usize = 256;

/// The first line of a script.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shebang {
    pub interpreter: Vec<u8>,
    pub argument: Option<Vec<u8>>,
}

impl Shebang {
    /// Parses the line as `fs/binfmt_script.c` does: one optional argument, which may contain blanks. `None`
    /// if the file is not a script, names no interpreter, or the interpreter's name does not fit the buffer.
    pub fn parse(head: &[u8]) -> Option<Self> {
        let line = head.strip_prefix(b"#!")?;
        let end = line.iter().position(|&b| b == b'\n');
        let is_blank = |b: u8| b == b' ' || b == b'\t';
        let whole = end.is_some() || head.len() < HEAD;
        let line = line.get(..end.unwrap_or(line.len()))?;
        let line = line.split(|&b| b == 0).next().unwrap_or(line);
        let start = line.iter().position(|&b| !is_blank(b))?;
        let line = line.get(start..)?;
        let stop = line.iter().rposition(|&b| !is_blank(b))? + 1;
        let line = line.get(..stop)?;
        let Some(blank) = line.iter().position(|&b| is_blank(b)) else {
            return whole.then(|| Self {
                interpreter: line.to_vec(),
                argument: None,
            });
        };
        let (interpreter, rest) = line.split_at(blank);
        let argument = rest
            .iter()
            .position(|&b| !is_blank(b))
            .and_then(|from| rest.get(from..));
        Some(Self {
            interpreter: interpreter.to_vec(),
            argument: argument.map(<[u8]>::to_vec),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(head: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        Shebang::parse(head).map(|line| (line.interpreter, line.argument))
    }

    #[test]
    fn first_lines_are_read_as_linux_reads_them() {
        assert_eq!(parsed(b"#!/bin/sh\n"), Some((b"/bin/sh".to_vec(), None)));
        assert_eq!(
            parsed(b"#! /usr/bin/env  python3 -u \nrest"),
            Some((b"/usr/bin/env".to_vec(), Some(b"python3 -u".to_vec())))
        );
        assert_eq!(parsed(b"#!bin/sh"), Some((b"bin/sh".to_vec(), None)));
        assert_eq!(parsed(b"#!\n"), None);
        assert_eq!(parsed(b"#!   \t\n"), None);
        assert_eq!(parsed(b"\x7fELF"), None);
        assert_eq!(parsed(b""), None);
    }

    #[test]
    fn a_cut_interpreter_is_no_interpreter() {
        let mut long = b"#!/".to_vec();
        long.resize(HEAD, b'a');
        assert_eq!(parsed(&long), None);
    }
}
