//! `amino import`, `amino export`, and the copy of `goanna iso extract`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use goanna_offline::copy::{self, Export, Import, Modes, Selection};
use goanna_offline::{Tree, absolute};
use goanna_session::mounts;
use goanna_session::store::Create;
use goanna_vfs::Errno;

use crate::args::{Verbosity, amino};
use crate::commands::open::StoreHandle;
use crate::error::Error;
use crate::report::copy::CopyReport;

/// `amino import`.
pub fn import(args: &amino::Import, verbosity: Verbosity) -> Result<u8, Error> {
    // Checked first, so that no store is made in vain.
    if !args
        .host
        .metadata()
        .map_err(|why| Error::host(&args.host, why))?
        .is_dir()
    {
        return Err(Error::host(&args.host, Errno::ENOTDIR));
    }
    copy::raise_descriptor_limit();
    let create = Create::new(args.create || args.store.store.is_none());
    let handle = StoreHandle::open_to_change(&args.store, create, args.engine, verbosity)?;
    let report = CopyReport::new(|| copy::import_total(&args.host), verbosity);
    let writer = handle.content_writer();
    let import = Import::new(&handle.tree, &*writer, &handle.dir, args.force, &report);
    let result = import
        .run(&args.host, args.path.as_bytes())
        .map_err(Error::from)
        .and_then(|summary| report.finish(&summary, args.json));
    drop(writer);
    handle.close(result)
}

/// `amino export`.
pub fn export(args: &amino::Export, verbosity: Verbosity) -> Result<u8, Error> {
    copy::raise_descriptor_limit();
    let handle = StoreHandle::open_to_read(&args.store, args.salvage)?;
    let result = export_from(&handle, args, verbosity);
    handle.close(result)
}

fn export_from(
    handle: &StoreHandle,
    args: &amino::Export,
    verbosity: Verbosity,
) -> Result<u8, Error> {
    let tree = &handle.tree;
    let path = absolute(args.path.as_bytes());
    let fail = |errno| tree.error(&path, errno);
    let place = tree.resolve(&path, true).map_err(fail)?;
    if !place.node.is_dir() {
        return Err(fail(Errno::ENOTDIR).into());
    }
    if is_inside(&args.host, &handle.dir) {
        return Err(Error::InsideStore(args.host.clone()));
    }
    let (target, empty) = copy::open_target(&args.host, args.force)?;
    let all = Selection::default();
    let report = CopyReport::new(|| copy::export_total(tree, &place, &path, &all), verbosity);
    let summary = Export::new(tree, args.force, target, &report).run(place, &path, empty)?;
    report.finish(&summary, args.json)
}

/// The options of [`extract`].
pub struct Extraction<'a> {
    /// The host directory.
    pub to: &'a Path,
    /// Existing files are replaced.
    pub force: bool,
    /// The report is JSON.
    pub json: bool,
    /// Owners and modes.
    pub modes: Modes,
}

/// Copies `paths` of a tree to the host, each under its own path from the root; without any path the whole tree.
pub fn extract<'a>(
    tree: &Tree,
    paths: impl Iterator<Item = &'a [u8]>,
    how: Extraction<'_>,
    verbosity: Verbosity,
) -> Result<u8, Error> {
    copy::raise_descriptor_limit();
    let mut selection = Selection::default();
    let mut missing = Vec::new();
    let mut all = true;
    for path in paths {
        all = false;
        let path = absolute(path);
        let found = tree.resolve(&path, false).and_then(|place| {
            // Its own path: without dots, and not through links.
            tree.retry_while_locked(|| tree.fs().path(&tree.caller, &place.node))
        });
        match found {
            Ok((own, _)) => selection.add(absolute(&own)),
            Err(errno) => missing.push((path, tree.why(errno))),
        }
    }
    let root = tree.root();
    let (target, made) = copy::make_target(how.to)?;
    let wanted = all || !selection.is_empty();
    let total = || match wanted {
        true => copy::export_total(tree, &root, b"/", &selection),
        false => copy::Total::default(),
    };
    let report = CopyReport::new(total, verbosity);
    let mut summary = copy::Summary::default();
    for (path, why) in missing {
        summary.skip(path, why, &report);
    }
    if wanted {
        let copied = Export::new(tree, how.force, target, &report)
            .merging()
            .with_modes(how.modes)
            .only(selection)
            .run(root, b"/", made)?;
        summary.counts = copied.counts;
        summary.skipped.extend(copied.skipped);
    }
    report.finish(&summary, how.json)
}

fn is_inside(path: &Path, dir: &Path) -> bool {
    mounts::real(path).starts_with(mounts::real(dir))
}
