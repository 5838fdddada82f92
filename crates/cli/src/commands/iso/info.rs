//! `goanna iso info`.

use std::ops::ControlFlow;

use goanna_isofs::{BootImage, Entry, Error as IsoError, Info, Iso, Namespace, Visit, Volume};
use goanna_offline::join;
use goanna_sys::plural::counted;
use goanna_vfs::{FileKind, Stamp, io_error_text};
use serde_json::{Map, Value, json};

use crate::args::iso;
use crate::error::Error;
use crate::report::lines::Lines;
use crate::report::metadata::time_text;
use crate::report::names;

/// Findings that are printed one by one.
const MOST_FINDINGS: u64 = 100;

/// `goanna iso info`. The status is 1 when the image is damaged.
pub fn info(args: &iso::Info) -> Result<u8, Error> {
    let image = super::open(&args.image)?;
    let info = image.info();
    let scan = Scan::of(&image);
    let mut lines = Lines::default();
    lines.put_path("image", "image", &args.image.image);
    let size = counted(info.size, "byte");
    lines.put("size", "image_bytes", size, info.size);
    volumes(&mut lines, &info);
    namespaces(&mut lines, &info);
    sessions(&mut lines, &info);
    boot(&mut lines, &info.boot);
    let status = u8::from(scan.damaged > 0);
    contents(&mut lines, &info, scan);
    lines.print(args.json)?;
    Ok(status)
}

fn word(namespace: Namespace) -> &'static str {
    match namespace {
        Namespace::RockRidge => "rockridge",
        Namespace::Joliet => "joliet",
        Namespace::Plain => "plain",
    }
}

fn volumes(lines: &mut Lines, info: &Info) {
    let shown = match (&info.joliet, info.namespace) {
        (Some(joliet), Namespace::Joliet) => joliet,
        _ => &info.primary,
    };
    for (label, text) in [
        ("volume", &shown.volume_id),
        ("system", &shown.system_id),
        ("volume set", &shown.set_id),
        ("publisher", &shown.publisher),
        ("preparer", &shown.preparer),
        ("application", &shown.application),
        ("copyright file", &shown.copyright_file),
        ("abstract file", &shown.abstract_file),
        ("bibliography", &shown.bibliographic_file),
    ] {
        if !text.is_empty() {
            lines.put_text(label, names::escape(text.as_bytes()));
        }
    }
    if shown.set_size > 1 {
        let text = format!("{} of {}", shown.sequence, shown.set_size);
        lines.put_text("volume number", text);
    }
    for (label, stamp) in [
        ("created", shown.created),
        ("modified", shown.modified),
        ("effective", shown.effective),
        ("expires", shown.expires),
    ] {
        if let Some(stamp) = stamp {
            lines.put_text(label, time_text(stamp, "%Y-%m-%d %H:%M:%S %z"));
        }
    }
    let (blocks, block_size, bytes) = (shown.blocks, shown.block_size, bytes(shown));
    let blocks = counted(blocks.into(), "block");
    let text = format!("{blocks} of {block_size} bytes, {bytes} bytes");
    lines.put_text("volume size", text);
    lines.put_json("volume", volume_json(&info.primary));
    lines.put_json(
        "joliet_volume",
        info.joliet.as_ref().map_or(Value::Null, volume_json),
    );
}

fn bytes(volume: &Volume) -> u64 {
    u64::from(volume.blocks) * u64::from(volume.block_size)
}

fn volume_json(volume: &Volume) -> Value {
    let stamp = |stamp: Option<Stamp>| {
        stamp.map_or(
            Value::Null,
            |stamp| json!({"sec": stamp.sec, "nsec": stamp.nsec}),
        )
    };
    json!({
        "offset": volume.offset,
        "volume_id": volume.volume_id,
        "system_id": volume.system_id,
        "set_id": volume.set_id,
        "publisher": volume.publisher,
        "preparer": volume.preparer,
        "application": volume.application,
        "copyright_file": volume.copyright_file,
        "abstract_file": volume.abstract_file,
        "bibliographic_file": volume.bibliographic_file,
        "created": stamp(volume.created),
        "modified": stamp(volume.modified),
        "expires": stamp(volume.expires),
        "effective": stamp(volume.effective),
        "blocks": volume.blocks,
        "block_size": volume.block_size,
        "bytes": bytes(volume),
        "set_size": volume.set_size,
        "sequence": volume.sequence,
    })
}

fn namespaces(lines: &mut Lines, info: &Info) {
    let spaces = &info.namespaces;
    let mut there = Vec::new();
    if let Some(extension) = &spaces.rock_ridge {
        there.push(match &extension[..] {
            "" => "Rock Ridge".to_owned(),
            extension => format!("Rock Ridge ({})", names::escape(extension.as_bytes())),
        });
    }
    if let Some(level) = spaces.joliet {
        there.push(format!("Joliet (level {level})"));
    }
    there.push("plain".to_owned());
    if spaces.enhanced {
        there.push("enhanced (ISO 9660:1999, not read)".to_owned());
    }
    lines.put_text("names", there.join(", "));
    lines.put(
        "names in use",
        "namespace",
        info.namespace,
        word(info.namespace),
    );
    lines.put_json(
        "namespaces",
        json!({
            "rock_ridge": spaces.rock_ridge,
            "joliet": spaces.joliet,
            "enhanced": spaces.enhanced,
        }),
    );
    let udf = if spaces.udf { "yes" } else { "no" };
    lines.put("UDF, too", "udf_bridge", udf, spaces.udf);
}

fn sessions(lines: &mut Lines, info: &Info) {
    for session in &info.sessions {
        let in_use = if session.number == info.session {
            ", in use"
        } else {
            ""
        };
        lines.put_text(
            "session",
            format!(
                "{}: from sector {}, {}, {}{in_use}",
                session.number,
                session.start,
                counted(session.blocks.into(), "block"),
                names::escape(session.volume_id.as_bytes()),
            ),
        );
    }
    let list = info.sessions.iter().map(|session| {
        json!({
            "number": session.number,
            "start": session.start,
            "blocks": session.blocks,
            "volume_id": session.volume_id,
        })
    });
    lines.put_json("sessions", list.collect::<Value>());
    lines.put_json("session", info.session);
}

fn platform(id: u8) -> &'static str {
    match id {
        0 => "x86",
        1 => "PowerPC",
        2 => "Mac",
        0xef => "EFI",
        _ => "unknown",
    }
}

fn emulation(kind: u8) -> &'static str {
    match kind {
        0 => "none",
        1 => "floppy 1.2 MB",
        2 => "floppy 1.44 MB",
        3 => "floppy 2.88 MB",
        4 => "hard disk",
        _ => "unknown",
    }
}

fn boot(lines: &mut Lines, images: &[BootImage]) {
    for image in images {
        let mut text = format!(
            "{}, emulation {}, block {}, loads {}",
            platform(image.platform),
            emulation(image.emulation),
            image.block,
            counted(u64::from(image.load_sectors) * 512, "byte"),
        );
        if !image.section_id.is_empty() {
            text += &format!(", {}", names::escape(image.section_id.as_bytes()));
        }
        if !image.bootable {
            text += ", not bootable";
        }
        lines.put_text("boot", text);
    }
    let list = images.iter().map(|image| {
        json!({
            "platform": platform(image.platform),
            "platform_id": image.platform,
            "bootable": image.bootable,
            "emulation": emulation(image.emulation),
            "load_segment": image.load_segment,
            "system_type": image.system_type,
            "load_sectors": image.load_sectors,
            "block": image.block,
            "section": image.section_id,
        })
    });
    lines.put_json("boot", list.collect::<Value>());
}

fn contents(lines: &mut Lines, info: &Info, scan: Scan) {
    for (label, count) in [
        ("files", scan.files),
        ("directories", scan.directories),
        ("symlinks", scan.symlinks),
        ("special", scan.special),
        ("bytes", scan.bytes),
        ("zisofs", scan.zisofs),
    ] {
        lines.put(label, label, count, count);
    }
    // Writers count the volume of a later session from different places, so this is a lower bound of the missing
    // bytes.
    let missing = bytes(&info.primary).saturating_sub(info.size);
    if missing > 0 {
        let text = format!(
            "the image is {} shorter than its volume",
            counted(missing, "byte")
        );
        lines.put_text("note", text);
    }
    lines.put_json("missing_bytes", missing);
    lines.put("damaged", "damaged", scan.damaged, scan.damaged);
    let mut list = Vec::new();
    for (path, why) in scan.findings {
        lines.put_text(
            "damage",
            match &path {
                Some(path) => format!("{}: {why}", names::escape(path)),
                None => why.to_string(),
            },
        );
        list.push(finding_json(path.as_deref(), &why));
    }
    let left = scan.damaged.saturating_sub(MOST_FINDINGS);
    if left > 0 {
        lines.put_text("damage", format!("and {left} more"));
    }
    lines.put_json("damage", list);
}

fn finding_json(path: Option<&[u8]>, why: &IsoError) -> Value {
    let mut map = Map::new();
    match path {
        Some(path) => names::put(&mut map, "path", path),
        None => _ = map.insert("path".into(), Value::Null),
    }
    let (record, offset, what) = match why {
        IsoError::Damaged {
            record,
            offset,
            why,
        } => (Some(record), Some(offset), why.to_string()),
        IsoError::Unsupported {
            record,
            offset,
            what,
        } => (Some(record), Some(offset), format!("{what} cannot be read")),
        IsoError::Read { offset, source } => (None, Some(offset), io_error_text(source)),
        other => (None, None, other.to_string()),
    };
    map.insert("record".into(), json!(record.map(ToString::to_string)));
    map.insert("offset".into(), json!(offset));
    map.insert("what".into(), what.into());
    Value::Object(map)
}

/// The findings in the directories.
#[derive(Default)]
struct Scan {
    files: u64,
    directories: u64,
    symlinks: u64,
    special: u64,
    bytes: u64,
    zisofs: u64,
    damaged: u64,
    /// The first of them.
    findings: Vec<(Option<Vec<u8>>, IsoError)>,
}

impl Scan {
    fn of(image: &Iso) -> Self {
        let mut scan = Self::default();
        if let Err(why) = image.boot_images() {
            scan.found(None, why);
        }
        image.walk(image.root(), &mut |visit| {
            match visit {
                Visit::Entry(entry) => scan.count(image, entry),
                Visit::Unreadable(dir, why) => scan.found(Some(dir), why),
            }
            ControlFlow::Continue(())
        });
        scan
    }

    fn count(&mut self, image: &Iso, entry: &Entry) {
        let checked = match entry.kind {
            FileKind::Regular => {
                self.files += 1;
                self.zisofs += u64::from(entry.is_compressed());
                self.bytes = self.bytes.saturating_add(entry.size);
                image.check_content(entry)
            }
            FileKind::Directory => {
                self.directories += 1;
                Ok(())
            }
            FileKind::Symlink => {
                self.symlinks += 1;
                image.readlink(entry).map(|_| ())
            }
            _ => {
                self.special += 1;
                Ok(())
            }
        };
        if let Err(why) = checked {
            self.found(Some(entry), why);
        }
    }

    fn found(&mut self, entry: Option<&Entry>, why: IsoError) {
        self.damaged += 1;
        if self.damaged <= MOST_FINDINGS {
            let path = entry.map(|entry| join(b"/", &entry.path()));
            self.findings.push((path, why));
        }
    }
}
