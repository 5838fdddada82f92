//! Rock Ridge: the POSIX attributes of a file, in fields of its System Use area (IEEE P1282).

use std::borrow::Cow;

use goanna_vfs::{PATH_MAX, Stamp};

use crate::format::fields::Fields;
use crate::format::zisofs::Zisofs;
use crate::{Error, Record, Result};

/// Longest name that is assembled, in bytes.
const MAX_NAME: usize = 1024;

/// The fields of one record.
#[derive(Debug, Default)]
pub(crate) struct Rock {
    pub posix: Option<Posix>,
    /// Device number, as `makedev(3)` encodes it.
    pub device: Option<u64>,
    pub name: Option<Vec<u8>>,
    name_continues: bool,
    pub link: Option<Link>,
    pub times: RockTimes,
    /// Block of the directory that belongs here but was relocated.
    pub child: Option<u32>,
    /// This directory belongs elsewhere.
    pub relocated: bool,
    pub zisofs: Option<Zisofs>,
    /// A field whose kind of content this reader does not support.
    pub refusal: Option<&'static str>,
    /// The extension's identifier, from the root's ER fields.
    pub extension: Option<String>,
    /// The area has a field that only Rock Ridge has.
    pub seen: bool,
}

/// PX.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Posix {
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// File serial number; not in images of the older version.
    pub serial: Option<u32>,
}

/// TF.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct RockTimes {
    pub created: Option<Stamp>,
    pub modified: Option<Stamp>,
    pub accessed: Option<Stamp>,
    pub changed: Option<Stamp>,
}

impl Rock {
    /// Adds one field. Fields of other extensions are ignored.
    pub fn add(&mut self, field: Fields<'_>) -> Result<()> {
        let Record::SystemUse(signature) = field.record else {
            return Ok(());
        };
        let version = field.u8(3)?;
        match (&signature, version) {
            (b"PX", 1) => self.posix = Some(posix(field)?),
            (b"PN", 1) => self.device = Some(device(field.u32(4)?, field.u32(12)?)),
            (b"NM", 1) => self.add_name(field)?,
            (b"SL", 1) => {
                let link = self.link.get_or_insert_default();
                if let Err(error) = link.add(field) {
                    link.damage.get_or_insert(error);
                }
            }
            (b"TF", 1) => self.times.add(field)?,
            (b"CL", 1) => self.child = Some(field.u32(4)?),
            (b"RE", 1) => self.relocated = true,
            (b"SF", _) => self.refusal = Some("a sparse file (SF)"),
            (b"ZF" | b"Z2", _) => match Zisofs::parse(field)? {
                Ok(zisofs) => self.zisofs = Some(zisofs),
                Err(what) => self.refusal = Some(what),
            },
            (b"ER", 1) => {
                let id = field.slice(8, field.u8(4)?.into())?;
                let id = String::from_utf8_lossy(id);
                if id.starts_with("RRIP") || id.starts_with("IEEE") {
                    self.extension = Some(id.into_owned());
                }
                return Ok(());
            }
            (b"RR" | b"PL", 1) => {}
            _ => return Ok(()),
        }
        self.seen = true;
        Ok(())
    }

    fn add_name(&mut self, field: Fields<'_>) -> Result<()> {
        const CONTINUE: u8 = 1;
        const CURRENT: u8 = 2;
        const PARENT: u8 = 4;
        let flags = field.u8(4)?;
        if self.name.is_some() && !self.name_continues {
            return Err(field.damaged("a second name"));
        }
        let name = self.name.get_or_insert_default();
        match flags & (CURRENT | PARENT) {
            CURRENT => name.push(b'.'),
            PARENT => name.extend(b".."),
            _ => name.extend(field.bytes.get(5..).unwrap_or_default()),
        }
        if name.len() > MAX_NAME {
            return Err(field.damaged(format!("a name longer than {MAX_NAME} bytes")));
        }
        self.name_continues = flags & CONTINUE != 0;
        Ok(())
    }
}

fn posix(field: Fields<'_>) -> Result<Posix> {
    let has_serial = field.bytes.len() >= 44;
    let serial = has_serial.then(|| field.u32(36)).transpose()?;
    Ok(Posix {
        mode: field.u32(4)?,
        links: field.u32(12)?.max(1),
        uid: field.u32(20)?,
        gid: field.u32(28)?,
        serial: serial.filter(|serial| *serial != 0),
    })
}

/// Writers put the major and minor number into the two halves, or the whole number of 16 bits into the low one.
fn device(high: u32, low: u32) -> u64 {
    match high {
        0 if low & !0xff != 0 => libc::makedev(low >> 8, low & 0xff),
        _ => libc::makedev(high, low),
    }
}

impl RockTimes {
    fn add(&mut self, field: Fields<'_>) -> Result<()> {
        const LONG: u8 = 0x80;
        let flags = field.u8(4)?;
        let mut at = 5;
        // In this order. Backup, expiry and effect follow, which POSIX files do not have.
        let mut next = |bit: u8| {
            if flags & 1 << bit == 0 {
                return Ok(None);
            }
            let time = match flags & LONG {
                0 => field.short_time(at),
                _ => field.long_time(at),
            };
            at += if flags & LONG == 0 { 7 } else { 17 };
            time
        };
        let read = [next(0)?, next(1)?, next(2)?, next(3)?];
        let held = [
            &mut self.created,
            &mut self.modified,
            &mut self.accessed,
            &mut self.changed,
        ];
        for (held, read) in held.into_iter().zip(read) {
            *held = read.or(*held);
        }
        Ok(())
    }
}

/// A symbolic link's target, from SL fields.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub target: Vec<u8>,
    /// The next component is a further piece of the last one.
    is_continued: bool,
    /// A slash precedes the next component.
    separated: bool,
    /// A component with unknown flags.
    pub refusal: Option<&'static str>,
    /// The error in the target; other names are not affected. genisoimage writes wrong fields for long targets.
    pub damage: Option<Error>,
}

impl Link {
    fn add(&mut self, field: Fields<'_>) -> Result<()> {
        if self.damage.is_some() {
            return Ok(());
        }
        let mut at = 5;
        while at < field.bytes.len() {
            let flags = field.u8(at)?;
            let len = usize::from(field.u8(at + 1)?);
            let text = field.slice(at + 2, len)?;
            at += 2 + len;
            self.component(flags, text);
            if self.target.len() >= PATH_MAX {
                let why = format!("a target of {PATH_MAX} bytes or more");
                return Err(field.damaged(why));
            }
        }
        Ok(())
    }

    fn component(&mut self, flags: u8, text: &[u8]) {
        const CONTINUE: u8 = 1;
        const CURRENT: u8 = 2;
        const PARENT: u8 = 4;
        const ROOT: u8 = 8;
        const VOLUME_ROOT: u8 = 0x10;
        const HOST: u8 = 0x20;
        if self.separated && !self.is_continued {
            self.target.push(b'/');
        }
        self.separated = true;
        let text: Cow<'_, [u8]> = match flags & !CONTINUE {
            CURRENT => b"."[..].into(),
            PARENT => b".."[..].into(),
            ROOT => {
                self.separated = false;
                b"/"[..].into()
            }
            VOLUME_ROOT => {
                self.refusal = Some("a link to a volume's root (VOLROOT)");
                text.into()
            }
            HOST => {
                self.refusal = Some("a link to a host's name (HOST)");
                text.into()
            }
            _ => text.into(),
        };
        self.target.extend_from_slice(&text);
        self.is_continued = flags & CONTINUE != 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rock(fields: &[&[u8]]) -> Result<Rock> {
        let mut rock = Rock::default();
        for field in fields {
            let mut bytes = field.to_vec();
            bytes[2] = bytes.len() as u8;
            let signature = [bytes[0], bytes[1]];
            rock.add(Fields::new(Record::SystemUse(signature), 0, &bytes))?;
        }
        Ok(rock)
    }

    fn target(fields: &[&[u8]]) -> String {
        let link = rock(fields).unwrap().link.unwrap();
        String::from_utf8(link.target).unwrap()
    }

    #[test]
    fn links() {
        assert_eq!(target(&[b"SL\0\x01\0\x08\0\0\x03usr\0\x03lib"]), "/usr/lib");
        assert_eq!(
            target(&[b"SL\0\x01\0\x04\0\x04\0\x02\0\0\x01x"]),
            "../.././x"
        );
        assert_eq!(target(&[b"SL\0\x01\0\x01\x02ab\0\x02cd\0\x01e"]), "abcd/e");
        let two: [&[u8]; 2] = [b"SL\0\x01\x01\x01\x02ab", b"SL\0\x01\0\0\x02cd\0\x01e"];
        assert_eq!(target(&two), "abcd/e");
        let two: [&[u8]; 2] = [b"SL\0\x01\x01\0\x02ab", b"SL\0\x01\0\0\x02cd"];
        assert_eq!(target(&two), "ab/cd");
        assert_eq!(target(&[b"SL\0\x01\0\0\x01a\0\0"]), "a/");
        let refused = rock(&[b"SL\0\x01\0\x10\0\0\x01a"]).unwrap().link.unwrap();
        assert!(refused.refusal.unwrap().contains("VOLROOT"));
        let damaged = rock(&[b"SL\0\x01\0\0\x09a"]).unwrap().link.unwrap();
        assert!(damaged.damage.is_some());
    }

    #[test]
    fn a_target_that_never_ends_is_refused() {
        let mut field = b"SL\0\x01\x01\x01\xf0".to_vec();
        field.resize(7 + 0xf0, b'a');
        let fields = vec![&field[..]; 18];
        let link = rock(&fields).unwrap().link.unwrap();
        let error = link.damage.unwrap().to_string();
        assert!(error.contains("4096"), "{error}");
        assert!(link.target.len() < 2 * PATH_MAX);
    }

    #[test]
    fn names_in_pieces() {
        let two: [&[u8]; 2] = [b"NM\0\x01\x01ab", b"NM\0\x01\0cd"];
        assert_eq!(rock(&two).unwrap().name.unwrap(), b"abcd");
        assert!(rock(&[b"NM\0\x01\0ab", b"NM\0\x01\0cd"]).is_err());
        let field = [&b"NM\0\x01\x01"[..], &[b'n'; 200]].concat();
        assert!(rock(&[&field[..]; 6]).is_err());
    }

    #[test]
    fn times_in_both_forms() {
        let short = b"TF\0\x01\x0e\x46\x01\x01\0\0\0\0\x46\x01\x02\0\0\0\0\x46\x01\x03\0\0\0\0";
        let times = rock(&[short]).unwrap().times;
        let at = |day: i64, nsec| {
            Some(Stamp {
                sec: day * 86_400,
                nsec,
            })
        };
        assert_eq!(times.modified, at(0, 0));
        assert_eq!(times.accessed, at(1, 0));
        assert_eq!(times.changed, at(2, 0));
        assert_eq!(times.created, None);
        let long = b"TF\0\x01\x831970010100000050\x001970010200000000\0";
        let times = rock(&[long]).unwrap().times;
        assert_eq!(times.created, at(0, 500_000_000));
        assert_eq!(times.modified, at(1, 0));
        assert!(rock(&[b"TF\0\x01\x02\x46\x01"]).is_err(), "too short");
    }

    #[test]
    fn devices() {
        assert_eq!(device(8, 1), libc::makedev(8, 1));
        assert_eq!(device(0, 0x801), libc::makedev(8, 1));
        assert_eq!(device(0, 5), libc::makedev(0, 5));
    }
}
