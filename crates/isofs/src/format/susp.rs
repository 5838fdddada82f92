//! The System Use Sharing Protocol: fields in the System Use areas of directory records, and areas that continue them.

use crate::format::fields::Fields;
use crate::source::Image;
use crate::{Error, Record, Result};

/// Continuation areas of one record. A link's target of 4095 bytes needs two or three.
const MAX_AREAS: usize = 64;

/// Longest continuation area; real ones lie in one block.
const MAX_AREA: u32 = 32 << 10;

/// Bytes read at once where continuation areas lie, which are those of neighbours.
const WINDOW: u64 = 4096;

/// Whether an image uses the protocol.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Protocol {
    /// Bytes before the first field in each System Use area.
    pub skip: usize,
}

impl Protocol {
    /// Reads the System Use area of the root's first record; `None` without an SP field. On a CD-ROM XA disc 14
    /// bytes come before it.
    pub fn detect(area: Fields<'_>) -> Result<Option<Self>> {
        for at in [0, 14] {
            let is_sp = |sp: &[u8]| sp.starts_with(b"SP\x07\x01\xbe\xef");
            if area.bytes.get(at..at + 7).is_some_and(is_sp) {
                let skip = area.u8(at + 6)?.into();
                return Ok(Some(Self { skip }));
            }
        }
        Ok(None)
    }
}

/// Reads the continuation areas of one directory, and bounds their total size: areas may overlap.
pub(crate) struct Continuations<'a> {
    image: &'a Image,
    block_size: u32,
    window: (u64, Vec<u8>),
    budget: u64,
    /// The error concerns the directory, not one record.
    pub is_exhausted: bool,
}

/// A place of a continuation area.
#[derive(Clone, Copy)]
struct Area {
    offset: u64,
    len: u32,
}

impl<'a> Continuations<'a> {
    /// For a directory of `len` bytes.
    pub fn new(image: &'a Image, block_size: u32, len: u64) -> Self {
        Self {
            image,
            block_size,
            window: (0, Vec::new()),
            budget: len.saturating_mul(32).saturating_add(1 << 20),
            is_exhausted: false,
        }
    }

    /// Calls `visit` for each field of the area `first` and of those that continue it.
    pub fn fields(
        &mut self,
        first: Fields<'_>,
        visit: &mut dyn FnMut(Fields<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut next = self.area(first, visit)?;
        let mut seen = Vec::new();
        while let Some(area) = next {
            let fail =
                |why: &'static str| Err(Error::damaged(Record::Continuation, area.offset, why));
            if seen.contains(&area.offset) {
                return fail("it continues itself");
            }
            if seen.len() == MAX_AREAS {
                return fail("too many of them for one record");
            }
            seen.push(area.offset);
            let bytes = self.read(area)?;
            let fields = Fields::new(Record::Continuation, area.offset, &bytes);
            next = self.area(fields, visit)?;
        }
        Ok(())
    }

    /// Visits the fields of one area. Returns the place of its continuation.
    fn area(
        &self,
        area: Fields<'_>,
        visit: &mut dyn FnMut(Fields<'_>) -> Result<()>,
    ) -> Result<Option<Area>> {
        let mut next = None;
        let mut at = 0;
        // Fewer bytes than a field has, or a zero: padding.
        while let Some(&[first, second, len, _]) = area.bytes.get(at..at + 4) {
            if first == 0 {
                break;
            }
            let signature = [first, second];
            let record = Record::SystemUse(signature);
            let offset = area.offset + at as u64;
            let field = area
                .bytes
                .get(at..at + usize::from(len))
                .filter(|_| len >= 4);
            let Some(field) = field else {
                let why = format!("its length of {len} is wrong");
                return Err(Error::damaged(record, offset, why));
            };
            at += field.len();
            let field = Fields::new(record, offset, field);
            match &signature {
                b"CE" => {
                    let start = u64::from(field.u32(4)?) * u64::from(self.block_size);
                    next = Some(Area {
                        offset: start + u64::from(field.u32(12)?),
                        len: field.u32(20)?,
                    });
                }
                b"ST" => break,
                b"PD" => {}
                _ => visit(field)?,
            }
        }
        Ok(next)
    }

    fn read(&mut self, area: Area) -> Result<Vec<u8>> {
        let Area { offset, len } = area;
        if len > MAX_AREA {
            let why = format!("{len} bytes long");
            return Err(Error::damaged(Record::Continuation, offset, why));
        }
        self.image.check(Record::Continuation, offset, len.into())?;
        let len = len as usize;
        if let Some(bytes) = self.in_window(offset, len) {
            return Ok(bytes);
        }
        let want = WINDOW.max(len as u64).min(self.image.size() - offset);
        if want > self.budget {
            self.is_exhausted = true;
            let why = "the directory's continuation areas overlap too much";
            return Err(Error::damaged(Record::Continuation, offset, why));
        }
        self.budget -= want;
        self.window = (offset, self.image.read(Record::Continuation, offset, want)?);
        Ok(self.in_window(offset, len).unwrap_or_default())
    }

    fn in_window(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let (start, bytes) = &self.window;
        let at = usize::try_from(offset.checked_sub(*start)?).ok()?;
        Some(bytes.get(at..at.checked_add(len)?)?.to_vec())
    }
}
