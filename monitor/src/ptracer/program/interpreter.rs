//! The ELF interpreter of a program: the dynamic loader that its program header PT_INTERP names (elf(5)).
//!
//! The kernel opens it by that path, so it finds no file in a mount. A host copy of the program names the host file of the interpreter instead. Only the place in the file
//! changes at which the kernel finds the path. The C library reads it at its address in memory, and still finds the old one.
//!
//! Files are not trusted. What the kernel would refuse has no interpreter here, and is left to the kernel.

use goanna_vfs::{PATH_MAX, Result};

use goanna_callsites::elf::{u16_at, u32_at, u64_at};

const PT_INTERP: u32 = 3;
const EM_X86_64: u16 = 62;
/// Size of a program header, bytes.
const PROGRAM_HEADER: usize = 56;
/// The kernel reads no more program headers than fit a page.
const HEADERS_MAX: usize = 4096;

/// What PT_INTERP says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Interpreter {
    /// The path of the interpreter.
    pub path: Vec<u8>,
    /// Offset of the program header in the file.
    header: u64,
}

impl Interpreter {
    /// The interpreter of the program that begins with `head`, and whose bytes `read` reads: up to the length of the buffer from an offset.
    pub fn of(head: &[u8], read: impl Fn(u64, &mut [u8]) -> Result<usize>) -> Result<Option<Self>> {
        let is_program =
            head.starts_with(b"\x7fELF\x02\x01") && u16_at(head, 18) == Some(EM_X86_64);
        let headers = (|| {
            let offset = u64_at(head, 32)?;
            let size = usize::from(u16_at(head, 54)?);
            let count = usize::from(u16_at(head, 56)?);
            let len = count.checked_mul(PROGRAM_HEADER)?;
            (is_program && size == PROGRAM_HEADER && len <= HEADERS_MAX).then_some((offset, len))
        })();
        let Some((offset, len)) = headers else {
            return Ok(None);
        };
        // Behind the ELF header, nearly always.
        let there = usize::try_from(offset)
            .ok()
            .and_then(|at| head.get(at..)?.get(..len));
        let headers = match there {
            Some(there) => Some(there.to_vec()),
            None => read_exact(&read, offset, len)?,
        };
        let headers = headers.unwrap_or_default();
        let all = headers
            .chunks_exact(PROGRAM_HEADER)
            .zip((offset..).step_by(PROGRAM_HEADER));
        let mut all = all.filter(|(header, _)| u32_at(header, 0) == Some(PT_INTERP));
        let Some((found, header)) = all.next() else {
            return Ok(None);
        };
        let word = |at: u64| u64_at(found, at).unwrap_or(0);
        let (from, len) = (word(8), usize::try_from(word(32)).unwrap_or(usize::MAX));
        if !(2..=PATH_MAX).contains(&len) {
            return Ok(None);
        }
        let text = read_exact(&read, from, len)?;
        let path = text.as_deref().and_then(|text| text.strip_suffix(b"\0"));
        let path = path.and_then(|path| path.split(|&byte| byte == 0).next());
        Ok(path.map(|path| Self {
            path: path.to_vec(),
            header,
        }))
    }

    /// What to write to a copy of `len` bytes of the program, so that the kernel takes the interpreter from `path`: offsets, and bytes.
    pub fn replaced_by(&self, path: &[u8], len: u64) -> [(u64, Vec<u8>); 3] {
        let text = [path, b"\0"].concat();
        let size = (text.len() as u64).to_le_bytes().to_vec();
        [
            (len, text),
            (self.header + 8, len.to_le_bytes().to_vec()),
            (self.header + 32, size),
        ]
    }
}

/// `None` if the file ends before.
fn read_exact(
    read: impl Fn(u64, &mut [u8]) -> Result<usize>,
    offset: u64,
    len: usize,
) -> Result<Option<Vec<u8>>> {
    let mut buf = vec![0; len];
    let got = read(offset, &mut buf)?;
    Ok((got == len).then_some(buf))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn interpreter(file: &[u8]) -> Option<Interpreter> {
        let read = |offset: u64, buf: &mut [u8]| {
            let rest = usize::try_from(offset).ok().and_then(|at| file.get(at..));
            let rest = rest.unwrap_or_default();
            let len = rest.len().min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        };
        Interpreter::of(&file[..file.len().min(256)], read).unwrap()
    }

    #[test]
    fn this_program_has_one_and_a_copy_another_one() {
        let mut file = std::fs::read("/proc/self/exe").unwrap();
        let own = interpreter(&file).unwrap();
        assert!(
            own.path.starts_with(b"/lib") && !own.path.contains(&0),
            "{own:?}"
        );
        let other = b"/a/path/that/is/a/good/deal/longer/than/the/one/before";
        let len = file.len() as u64;
        for (offset, bytes) in own.replaced_by(other, len) {
            let at = usize::try_from(offset).unwrap();
            file.resize(file.len().max(at + bytes.len()), 0);
            file[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        assert_eq!(interpreter(&file).unwrap().path, other);
    }

    #[test]
    fn damaged_headers_have_none() {
        let file = std::fs::read("/proc/self/exe").unwrap();
        let own = interpreter(&file).unwrap();
        let at = usize::try_from(own.header).unwrap();
        let with = |at: usize, bytes: &[u8]| {
            let mut file = file.clone();
            file[at..at + bytes.len()].copy_from_slice(bytes);
            interpreter(&file)
        };
        assert_eq!(with(at + 32, &u64::MAX.to_le_bytes()), None, "its size");
        assert_eq!(with(at + 32, &[1, 0]), None, "an empty path");
        assert_eq!(
            with(at + 8, &u64::MAX.to_le_bytes()),
            None,
            "beyond the end"
        );
        assert_eq!(with(32, &u64::MAX.to_le_bytes()), None, "no headers");
        assert_eq!(with(54, &[55, 0]), None, "headers of another size");
        assert_eq!(with(56, &[255, 255]), None, "too many headers");
        assert_eq!(with(18, &[3, 0]), None, "another machine");
        for len in [0, 3, 63, 64, 100, 200] {
            assert_eq!(interpreter(&file[..len]), None, "{len}");
        }
    }
}
