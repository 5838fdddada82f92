//! `ls`, `cat`, `stat` and `tree`.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use goanna_vfs::{Attr, Errno, FileKind, Place};
use serde_json::{Value, json};

use super::record::{self, Owners};
use super::tree::{Tree, absolute, join};
use crate::args;
use crate::args::amino;
use crate::error::Error;
use crate::messages::{self, complain};
use crate::names;
use crate::output::{JsonArray, Output};

/// Why a directory that was met before is not entered again.
pub const TWO_PLACES: &str = "the directory appears in two places";

/// How much of a file is read at once.
const CHUNK: usize = 1 << 20;

/// One line of a listing.
struct Line {
    name: Vec<u8>,
    path: Vec<u8>,
    place: Place,
    attr: Attr,
    target: Option<Vec<u8>>,
}

impl Line {
    fn is_dir(&self) -> bool {
        self.attr.kind() == FileKind::Directory
    }
}

/// Goes through all of `paths`; those that fail are told on stderr and make the status 1.
fn each<'a>(
    paths: impl IntoIterator<Item = &'a OsStr>,
    mut action: impl FnMut(&'a [u8]) -> Result<(), Error>,
) -> Result<u8, Error> {
    let mut status = 0;
    for path in paths {
        match action(path.as_bytes()) {
            Err(error @ Error::InTree { .. }) => {
                status = error.exit_code();
                messages::tell(&error);
            }
            result => result?,
        }
    }
    Ok(status)
}

/// `ls` of `paths`.
pub fn ls(tree: &Tree, args: args::Listing, paths: &[OsString]) -> Result<u8, Error> {
    let mut files = Vec::new();
    let mut dirs = Vec::new();
    let mut status = each(paths.iter().map(AsRef::as_ref), |path| {
        let path = absolute(path);
        let fail = |errno| tree.error(&path, errno);
        // As ls: a link named on the command line is followed, but one that leads nowhere is shown, and -l shows it.
        let place = match tree.resolve(&path, !args.long) {
            Err(Errno::ENOENT) => tree.resolve(&path, false).map_err(fail)?,
            place => place.map_err(fail)?,
        };
        if place.node.is_dir() {
            dirs.push((path, place));
        } else {
            files.push(line(tree, path.clone(), path, place)?);
        }
        Ok(())
    })?;
    let titled = args.recursive || paths.len() > 1;
    let mut listing = Listing::new(args)?;
    listing.group(None, &files)?;
    for top in dirs {
        let mut seen = HashSet::from([top.1.node.ino()]);
        let mut left = vec![top];
        while let Some((path, dir)) = left.pop() {
            let (lines, complete) = match entries(tree, &path, &dir, args.all) {
                Ok(entries) => entries,
                Err(error) => {
                    complain(&error.to_string());
                    status = 1;
                    continue;
                }
            };
            status |= u8::from(!complete);
            listing.group(titled.then_some(&path), &lines)?;
            if !args.recursive {
                continue;
            }
            for line in lines.into_iter().rev().filter(Line::is_dir) {
                // In a damaged image; the number of ways to it may be without bounds.
                if seen.insert(line.attr.ino) {
                    left.push((line.path, line.place));
                } else {
                    complain(&Error::in_tree(&line.path, TWO_PLACES).to_string());
                    status = 1;
                }
            }
        }
    }
    listing.finish()?;
    Ok(status)
}

/// What is in a directory, and whether that is all: names of which nothing can be said are told and left out.
fn entries(tree: &Tree, path: &[u8], dir: &Place, all: bool) -> Result<(Vec<Line>, bool), Error> {
    let list = tree.list(dir).map_err(|errno| tree.error(path, errno))?;
    let mut lines = Vec::with_capacity(list.len());
    let mut complete = true;
    for entry in list {
        if !all && entry.name.first() == Some(&b'.') {
            continue;
        }
        let path = join(path, &entry.name);
        match line(tree, entry.name, path, entry.place) {
            Ok(line) => lines.push(line),
            Err(error) => {
                complain(&error.to_string());
                complete = false;
            }
        }
    }
    Ok((lines, complete))
}

fn line(tree: &Tree, name: Vec<u8>, path: Vec<u8>, place: Place) -> Result<Line, Error> {
    let fail = |errno| tree.error(&path, errno);
    let attr = tree.attr(&place).map_err(fail)?;
    let target = tree.target(&place).map_err(fail)?;
    Ok(Line {
        name,
        path,
        place,
        attr,
        target,
    })
}

/// Where a listing goes.
enum Listing {
    Names(Output, bool),
    Long(Output, bool, Owners),
    Json(JsonArray),
}

impl Listing {
    fn new(args: args::Listing) -> Result<Self, Error> {
        let out = Output::new();
        Ok(match (args.json, args.long) {
            (true, _) => Self::Json(JsonArray::new(out)?),
            (_, true) => Self::Long(out, false, Owners::default()),
            _ => Self::Names(out, false),
        })
    }

    fn group(&mut self, title: Option<&Vec<u8>>, lines: &[Line]) -> Result<(), Error> {
        if let Self::Names(out, later) | Self::Long(out, later, _) = self {
            if let Some(title) = title {
                out.text(if *later { "\n" } else { "" })?;
                out.name(title)?;
                out.text(":\n")?;
            }
            *later |= title.is_some() || !lines.is_empty();
        }
        match self {
            Self::Names(out, _) => lines.iter().try_for_each(|line| {
                out.name(&line.name)?;
                out.raw(b"\n")
            }),
            Self::Long(out, _, owners) => long(out, owners, lines),
            Self::Json(array) => lines.iter().try_for_each(|line| {
                array.push(record::json(&line.path, &line.attr, line.target.as_deref()))
            }),
        }
    }

    fn finish(self) -> Result<(), Error> {
        match self {
            Self::Names(out, _) | Self::Long(out, ..) => out.finish(),
            Self::Json(array) => array.finish(),
        }
    }
}

fn long(out: &mut Output, owners: &mut Owners, lines: &[Line]) -> Result<(), Error> {
    let rows: Vec<[String; 4]> = lines
        .iter()
        .map(|line| {
            let attr = &line.attr;
            [
                attr.nlink.to_string(),
                names::escape(owners.user(attr.uid).as_bytes()),
                names::escape(owners.group(attr.gid).as_bytes()),
                match attr.kind() {
                    FileKind::CharDevice | FileKind::BlockDevice => {
                        let (major, minor) = record::device(attr.rdev);
                        format!("{major}, {minor}")
                    }
                    _ => attr.size.to_string(),
                },
            ]
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2), width(3)];
    for (line, [nlink, user, group, size]) in lines.iter().zip(&rows) {
        let [w0, w1, w2, w3] = widths;
        let mode = record::mode_text(line.attr.mode);
        let time = record::time_text(line.attr.mtime, "%Y-%m-%d %H:%M");
        out.text(&format!(
            "{mode} {nlink:>w0$} {user:<w1$} {group:<w2$} {size:>w3$} {time} "
        ))?;
        out.name(&line.name)?;
        if let Some(target) = &line.target {
            out.text(" -> ")?;
            out.name(target)?;
        }
        out.raw(b"\n")?;
    }
    Ok(())
}

/// `cat` of `paths`.
pub fn cat(tree: &Tree, paths: &[OsString]) -> Result<u8, Error> {
    let mut out = Output::new();
    let mut buffer = vec![0; CHUNK];
    let status = each(paths.iter().map(AsRef::as_ref), |path| {
        let fail = |errno| tree.error(path, errno);
        let place = tree.resolve(&absolute(path), true).map_err(fail)?;
        match place.node.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(fail(Errno::EISDIR)),
            _ => return Err(fail(Errno::ENXIO)),
        }
        tree.may_read(&place).map_err(fail)?;
        let mut offset = 0;
        loop {
            let count = tree.read(&place, offset, &mut buffer).map_err(fail)?;
            out.raw(buffer.get(..count).unwrap_or_default())?;
            // Short only at the end.
            if count < buffer.len() {
                return Ok(());
            }
            offset += count as u64;
        }
    })?;
    out.finish()?;
    Ok(status)
}

/// `amino stat`.
pub fn stat(tree: &Tree, args: &amino::Stat) -> Result<u8, Error> {
    let mut listing = if args.json {
        Details::Json(JsonArray::new(Output::new())?)
    } else {
        Details::Text(Output::new(), Owners::default())
    };
    let status = each(args.paths.iter().map(AsRef::as_ref), |path| {
        let path = absolute(path);
        let fail = |errno| tree.error(&path, errno);
        let place = tree.resolve(&path, args.dereference).map_err(fail)?;
        let xattrs = tree.xattrs(&place).map_err(fail)?;
        listing.put(&line(tree, path.clone(), path.clone(), place)?, &xattrs)
    })?;
    listing.finish()?;
    Ok(status)
}

enum Details {
    Text(Output, Owners),
    Json(JsonArray),
}

impl Details {
    fn put(&mut self, line: &Line, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<(), Error> {
        match self {
            Self::Text(out, owners) => details(out, owners, line, xattrs),
            Self::Json(array) => {
                let mut map = record::json(&line.path, &line.attr, line.target.as_deref());
                let list = xattrs.iter().map(|(name, value)| {
                    let mut map = serde_json::Map::new();
                    names::put(&mut map, "name", name);
                    map.insert("value".into(), names::hex(value).into());
                    Value::Object(map)
                });
                map.insert("xattrs".into(), list.collect());
                array.push(map)
            }
        }
    }

    fn finish(self) -> Result<(), Error> {
        match self {
            Self::Text(out, _) => out.finish(),
            Self::Json(array) => array.finish(),
        }
    }
}

fn details(
    out: &mut Output,
    owners: &mut Owners,
    line: &Line,
    xattrs: &[(Vec<u8>, Vec<u8>)],
) -> Result<(), Error> {
    let attr = &line.attr;
    let time = |stamp| record::time_text(stamp, "%Y-%m-%d %H:%M:%S.%9f %z");
    out.text("  File: ")?;
    out.name(&line.name)?;
    if let Some(target) = &line.target {
        out.text(" -> ")?;
        out.name(target)?;
    }
    let mut text = format!(
        "\n  Type: {}   Size: {}   Blocks: {}   IO Block: {}\n Inode: {}   Links: {}",
        record::kind_text(attr.kind()),
        attr.size,
        attr.blocks,
        attr.blksize,
        attr.ino,
        attr.nlink,
    );
    if matches!(attr.kind(), FileKind::CharDevice | FileKind::BlockDevice) {
        let (major, minor) = record::device(attr.rdev);
        text += &format!("   Device type: {major},{minor}");
    }
    text += &format!(
        "\nAccess: ({:04o}/{})   Uid: ({}/{})   Gid: ({}/{})\n",
        attr.perm(),
        record::mode_text(attr.mode),
        attr.uid,
        names::escape(owners.user(attr.uid).as_bytes()),
        attr.gid,
        names::escape(owners.group(attr.gid).as_bytes()),
    );
    text += &format!(
        "Access: {}\nModify: {}\n",
        time(attr.atime),
        time(attr.mtime)
    );
    text += &format!("Change: {}\n", time(attr.ctime));
    text += &format!(" Birth: {}\n", attr.btime.map_or_else(|| "-".into(), time));
    for (name, value) in xattrs {
        text += &format!(" Xattr: {}={}\n", names::escape(name), names::escape(value));
    }
    out.text(&text)
}

/// What is left of a directory in work of `amino tree`.
type Level = std::iter::Peekable<std::vec::IntoIter<Line>>;

/// `amino tree`.
pub fn tree(tree: &Tree, args: &amino::Tree) -> Result<u8, Error> {
    let path = absolute(args.path.as_bytes());
    let fail = |errno| tree.error(&path, errno);
    let root = tree.resolve(&path, true).map_err(fail)?;
    if !root.node.is_dir() {
        return Err(fail(Errno::ENOTDIR));
    }
    let top = line(tree, path.clone(), path.clone(), root)?;
    let mut drawing = if args.json {
        Drawing::Json(JsonArray::new(Output::new())?)
    } else {
        Drawing::Text(Output::new())
    };
    drawing.put(&top, &[])?;
    let (level, complete) = open_level(tree, &top, args.all)?;
    let mut stack = vec![level];
    let (mut directories, mut files) = (0_u64, 0_u64);
    let mut status = u8::from(!complete);
    while let Some(level) = stack.last_mut() {
        let Some(line) = level.next() else {
            stack.pop();
            continue;
        };
        let lasts: Vec<bool> = stack.iter_mut().map(|l| l.peek().is_none()).collect();
        drawing.put(&line, &lasts)?;
        if !line.is_dir() {
            files += 1;
            continue;
        }
        directories += 1;
        if args
            .level
            .is_some_and(|limit| stack.len() as u64 >= u64::from(limit))
        {
            continue;
        }
        match open_level(tree, &line, args.all) {
            Ok((level, complete)) => {
                stack.push(level);
                status |= u8::from(!complete);
            }
            Err(error) => {
                complain(&error.to_string());
                status = 1;
            }
        }
    }
    drawing.finish(directories, files)?;
    Ok(status)
}

fn open_level(tree: &Tree, dir: &Line, all: bool) -> Result<(Level, bool), Error> {
    let (entries, complete) = entries(tree, &dir.path, &dir.place, all)?;
    Ok((entries.into_iter().peekable(), complete))
}

enum Drawing {
    Text(Output),
    Json(JsonArray),
}

impl Drawing {
    /// `lasts` says of every level from the top whether its current entry is its last.
    fn put(&mut self, line: &Line, lasts: &[bool]) -> Result<(), Error> {
        match self {
            Self::Json(array) => {
                let mut map = record::json(&line.path, &line.attr, line.target.as_deref());
                map.insert("depth".into(), json!(lasts.len()));
                array.push(map)
            }
            Self::Text(out) => {
                if let Some((last, above)) = lasts.split_last() {
                    for last in above {
                        out.text(if *last { "    " } else { "\u{2502}   " })?;
                    }
                    out.text(if *last {
                        "\u{2514}\u{2500}\u{2500} "
                    } else {
                        "\u{251c}\u{2500}\u{2500} "
                    })?;
                }
                out.name(&line.name)?;
                if let Some(target) = &line.target {
                    out.text(" -> ")?;
                    out.name(target)?;
                }
                out.raw(b"\n")
            }
        }
    }

    fn finish(self, directories: u64, files: u64) -> Result<(), Error> {
        match self {
            Self::Json(array) => array.finish(),
            Self::Text(mut out) => {
                let plural = |count, one, many| if count == 1 { one } else { many };
                out.text(&format!(
                    "\n{directories} {}, {files} {}\n",
                    plural(directories, "directory", "directories"),
                    plural(files, "file", "files"),
                ))?;
                out.finish()
            }
        }
    }
}
