//! The format of the files in images/, which are also the fuzzer's inputs: an image without its zeros.
//!
//! Two bytes: sectors of the image. Then sectors that hold something: two bytes number, two bytes length, and so many
//! bytes. Numbers are little-endian. Any bytes mean something; an image has at most 8191 sectors, and nothing that
//! decodes is longer than that. A real image shrinks to its records, so that most changes to the input matter.

/// Bytes of a sector.
const SECTOR: usize = 2048;

/// The image that `input` stands for.
pub fn decode(input: &[u8]) -> Vec<u8> {
    let (sectors, mut rest) = number(input);
    let mut image = vec![0; usize::from(sectors & 0x1fff) * SECTOR];
    while !rest.is_empty() {
        let (sector, after) = number(rest);
        let (len, after) = number(after);
        let (bytes, after) = after.split_at(usize::from(len).min(SECTOR).min(after.len()));
        let at = usize::from(sector) * SECTOR;
        if let Some(to) = image.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
        rest = after;
    }
    image
}

fn number(bytes: &[u8]) -> (u16, &[u8]) {
    match bytes.split_first_chunk() {
        Some((number, rest)) => (u16::from_le_bytes(*number), rest),
        None => (0, &[]),
    }
}
