//! `ls`, `cat`, `stat` and `tree`, of a store and of an image.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use goanna_offline::Tree;
use goanna_offline::list::{self, FileInfo, ListOptions, Listed, WalkOptions, Walked};
use goanna_sys::plural::{counted, counted_as};
use goanna_vfs::FileKind;
use serde_json::{Value, json};

use crate::args::{Listing, amino};
use crate::commands::open::StoreHandle;
use crate::error::Error;
use crate::report::messages::{show_error, show_failure};
use crate::report::metadata::{self, Owners};
use crate::report::names;
use crate::report::output::{JsonArray, Output};

/// `amino ls`.
pub fn ls(args: &amino::Ls) -> Result<u8, Error> {
    let handle = StoreHandle::open_to_read(&args.store, args.salvage)?;
    let result = print_list(&handle.tree, args.listing, &args.paths);
    handle.close(result)
}

/// `amino cat`.
pub fn cat(args: &amino::Cat) -> Result<u8, Error> {
    let handle = StoreHandle::open_to_read(&args.store, args.salvage)?;
    let result = print_files(&handle.tree, &args.paths);
    handle.close(result)
}

/// `amino stat`.
pub fn stat(args: &amino::Stat) -> Result<u8, Error> {
    let handle = StoreHandle::open_to_read(&args.store, false)?;
    let result = print_metadata(&handle.tree, args);
    handle.close(result)
}

/// `amino tree`.
pub fn tree(args: &amino::Tree) -> Result<u8, Error> {
    let handle = StoreHandle::open_to_read(&args.store, false)?;
    let result = print_tree(&handle.tree, args);
    handle.close(result)
}

/// Prints the list of `paths`.
pub fn print_list(tree: &Tree, args: Listing, paths: &[OsString]) -> Result<u8, Error> {
    let options = ListOptions {
        follow: !args.long,
        hidden: args.all,
        recursive: args.recursive,
    };
    let titled = args.recursive || paths.len() > 1;
    let mut status = 0;
    let mut printer = ListPrinter::new(args)?;
    list::list(
        tree,
        paths.iter().map(|path| path.as_bytes()),
        options,
        &mut |listed| {
            match listed {
                Listed::Files(files) => return printer.group(None, &files),
                Listed::Directory { path, entries } => {
                    return printer.group(titled.then_some(&path), &entries);
                }
                Listed::PathFailed(error) => show_error(&error.into()),
                Listed::EntryFailed(error) => show_failure(&error.to_string()),
            }
            status = 1;
            Ok(())
        },
    )?;
    printer.finish()?;
    Ok(status)
}

/// Prints the content of `paths`.
pub fn print_files(tree: &Tree, paths: &[OsString]) -> Result<u8, Error> {
    let mut out = Output::new();
    let status = for_each(paths, |path| {
        list::read(tree, path, &mut |piece| out.raw(piece))
    })?;
    out.finish()?;
    Ok(status)
}

fn print_metadata(tree: &Tree, args: &amino::Stat) -> Result<u8, Error> {
    let mut printer = MetadataPrinter::new(args.json)?;
    let status = for_each(&args.paths, |path| {
        let (file, xattrs) = list::stat(tree, path, args.dereference)?;
        printer.put(&file, &xattrs)
    })?;
    printer.finish()?;
    Ok(status)
}

fn print_tree(tree: &Tree, args: &amino::Tree) -> Result<u8, Error> {
    let options = WalkOptions {
        hidden: args.all,
        levels: args.level,
    };
    let mut printer = TreePrinter::new(args.json)?;
    let mut status = 0;
    list::walk(
        tree,
        args.path.as_bytes(),
        options,
        &mut |walked| match walked {
            Walked::File { file, is_last } => printer.put(file, is_last),
            Walked::Failed(error) => {
                show_failure(&error.to_string());
                status = 1;
                Ok(())
            }
        },
    )?;
    printer.finish()?;
    Ok(status)
}

/// Performs `action` for each of `paths`. An error of one path is shown and makes the status 1; the other paths continue.
fn for_each(
    paths: &[OsString],
    mut action: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<u8, Error> {
    let mut status = 0;
    for path in paths.iter().map(OsStr::new) {
        match action(path.as_bytes()) {
            Err(error) if error.is_in_tree() => {
                status = error.exit_code();
                show_error(&error);
            }
            result => result?,
        }
    }
    Ok(status)
}

/// Prints a list; the flag says whether something was printed before.
enum ListPrinter {
    Names(Output, bool),
    Long(Output, bool, Owners),
    Json(JsonArray),
}

impl ListPrinter {
    fn new(args: Listing) -> Result<Self, Error> {
        let out = Output::new();
        Ok(match (args.json, args.long) {
            (true, _) => Self::Json(JsonArray::new(out)?),
            (_, true) => Self::Long(out, false, Owners::default()),
            _ => Self::Names(out, false),
        })
    }

    fn group(&mut self, title: Option<&Vec<u8>>, files: &[FileInfo]) -> Result<(), Error> {
        if let Self::Names(out, later) | Self::Long(out, later, _) = self {
            if let Some(title) = title {
                out.text(if *later { "\n" } else { "" })?;
                out.name(title)?;
                out.text(":\n")?;
            }
            *later |= title.is_some() || !files.is_empty();
        }
        match self {
            Self::Names(out, _) => files.iter().try_for_each(|file| {
                out.name(&file.name)?;
                out.raw(b"\n")
            }),
            Self::Long(out, _, owners) => long(out, owners, files),
            Self::Json(array) => files.iter().try_for_each(|file| {
                array.push(metadata::json(
                    &file.path,
                    &file.attr,
                    file.target.as_deref(),
                ))
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

fn long(out: &mut Output, owners: &mut Owners, files: &[FileInfo]) -> Result<(), Error> {
    let rows: Vec<[String; 4]> = files
        .iter()
        .map(|file| {
            let attr = &file.attr;
            [
                attr.nlink.to_string(),
                names::escape(owners.user(attr.uid).as_bytes()),
                names::escape(owners.group(attr.gid).as_bytes()),
                match attr.kind() {
                    FileKind::CharDevice | FileKind::BlockDevice => {
                        let (major, minor) = metadata::device(attr.rdev);
                        format!("{major}, {minor}")
                    }
                    _ => attr.size.to_string(),
                },
            ]
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2), width(3)];
    for (file, [nlink, user, group, size]) in files.iter().zip(&rows) {
        let [w0, w1, w2, w3] = widths;
        let mode = metadata::mode_text(file.attr.mode);
        let time = metadata::time_text(file.attr.mtime, "%Y-%m-%d %H:%M");
        out.text(&format!(
            "{mode} {nlink:>w0$} {user:<w1$} {group:<w2$} {size:>w3$} {time} "
        ))?;
        out.name(&file.name)?;
        if let Some(target) = &file.target {
            out.text(" -> ")?;
            out.name(target)?;
        }
        out.raw(b"\n")?;
    }
    Ok(())
}

/// Prints all metadata of files.
enum MetadataPrinter {
    Text(Output, Owners),
    Json(JsonArray),
}

impl MetadataPrinter {
    fn new(json: bool) -> Result<Self, Error> {
        let out = Output::new();
        Ok(match json {
            true => Self::Json(JsonArray::new(out)?),
            false => Self::Text(out, Owners::default()),
        })
    }

    fn put(&mut self, file: &FileInfo, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<(), Error> {
        match self {
            Self::Text(out, owners) => details(out, owners, file, xattrs),
            Self::Json(array) => {
                let mut map = metadata::json(&file.path, &file.attr, file.target.as_deref());
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
    file: &FileInfo,
    xattrs: &[(Vec<u8>, Vec<u8>)],
) -> Result<(), Error> {
    let attr = &file.attr;
    let time = |stamp| metadata::time_text(stamp, "%Y-%m-%d %H:%M:%S.%9f %z");
    out.text("  File: ")?;
    out.name(&file.name)?;
    if let Some(target) = &file.target {
        out.text(" -> ")?;
        out.name(target)?;
    }
    let mut text = format!(
        "\n  Type: {}   Size: {}   Blocks: {}   IO Block: {}\n Inode: {}   Links: {}",
        metadata::kind_text(attr.kind()),
        attr.size,
        attr.blocks,
        attr.blksize,
        attr.ino,
        attr.nlink,
    );
    if attr.kind().is_device() {
        let (major, minor) = metadata::device(attr.rdev);
        text += &format!("   Device type: {major},{minor}");
    }
    text += &format!(
        "\nAccess: ({:04o}/{})   Uid: ({}/{})   Gid: ({}/{})\n",
        attr.perm(),
        metadata::mode_text(attr.mode),
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

/// Prints a tree, and counts directories and other files.
enum TreePrinter {
    Text(Output, u64, u64),
    Json(JsonArray),
}

impl TreePrinter {
    fn new(json: bool) -> Result<Self, Error> {
        let out = Output::new();
        Ok(match json {
            true => Self::Json(JsonArray::new(out)?),
            false => Self::Text(out, 0, 0),
        })
    }

    fn put(&mut self, file: &FileInfo, is_last: &[bool]) -> Result<(), Error> {
        match self {
            Self::Json(array) => {
                let mut map = metadata::json(&file.path, &file.attr, file.target.as_deref());
                map.insert("depth".into(), json!(is_last.len()));
                array.push(map)
            }
            Self::Text(out, directories, files) => {
                if let Some((last, above)) = is_last.split_last() {
                    *(if file.is_dir() { directories } else { files }) += 1;
                    for last in above {
                        out.text(if *last { "    " } else { "\u{2502}   " })?;
                    }
                    out.text(if *last {
                        "\u{2514}\u{2500}\u{2500} "
                    } else {
                        "\u{251c}\u{2500}\u{2500} "
                    })?;
                }
                out.name(&file.name)?;
                if let Some(target) = &file.target {
                    out.text(" -> ")?;
                    out.name(target)?;
                }
                out.raw(b"\n")
            }
        }
    }

    fn finish(self) -> Result<(), Error> {
        match self {
            Self::Json(array) => array.finish(),
            Self::Text(mut out, directories, files) => {
                let directories = counted_as(directories, "directory", "directories");
                out.text(&format!("\n{directories}, {}\n", counted(files, "file")))?;
                out.finish()
            }
        }
    }
}
