//! The commands that work on a store without a monitor: on one that nobody has open they open it, else they ask its owner.

mod content;
mod export;
mod fsck;
mod host;
mod import;
mod info;
mod look;
mod record;
mod report;
mod salvaged;
#[cfg(test)]
mod tests;
mod tree;
mod trouble;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amino_fs::AminoFs;
use goanna_vfs::Errno;

pub use content::{Copied, Source, fill};
pub use export::Modes;
pub use fsck::fsck;
pub use info::{Facts, info};
pub use look::{cat as print, ls as list};
pub use record::time_text;
pub use tree::{Details, Tree, join};
pub use trouble::Trouble;

use self::export::Selection;
use self::import::Entrance;
use self::report::Report;
use self::salvaged::Losses;
use self::tree::absolute;
use crate::args::amino::{self, StoreArg};
use crate::args::{Engine, Level, Loudness};
use crate::daemon::{self, RemoteFs};
use crate::error::Error;
use crate::messages::note;
use crate::store::{self, Create, Opening};
use crate::{caller, mounts};

/// A store and its tree.
struct StoreHandle {
    dir: PathBuf,
    access: Access,
    tree: Tree,
    /// What is missing, where the store is what was saved of a damaged one.
    losses: Losses,
}

/// Who has the store open.
enum Access {
    /// This process.
    Own(Arc<AminoFs>),
    /// Its owner.
    Remote(Arc<RemoteFs>),
}

impl StoreHandle {
    fn existing(arg: &StoreArg) -> Result<Self, Error> {
        Self::open(arg, Create::Never, None, Loudness::default())
    }

    fn open(
        arg: &StoreArg,
        create: Create,
        engine: Option<Engine>,
        loud: Loudness,
    ) -> Result<Self, Error> {
        let dir = store::dir(arg)?;
        let caller = caller::current();
        let opening = Opening {
            engine,
            durability: Level::Aci,
            create,
        };
        let access = daemon::reach(
            &dir,
            |owner| Ok(RemoteFs::attach(owner, engine)?.map(Access::Remote)),
            || {
                let made = |text: &str| note(text, loud);
                let fs = store::open_or_make(&dir, opening, &caller, made);
                fs.map(Access::Own)
            },
        )?;
        Ok(Self::new(dir, access, Losses::default()))
    }

    /// Opens a store to read it; with `salvage` what is left of it.
    fn open_to_read(arg: &StoreArg, salvage: bool) -> Result<Self, Error> {
        if !salvage {
            return Self::existing(arg);
        }
        let losses = Losses::find(&store::dir(arg)?)?;
        let dir = losses.store()?;
        let opening = Opening {
            engine: None,
            durability: Level::Aci,
            create: Create::Never,
        };
        let fs = store::open(&dir, opening, &caller::current())?;
        Ok(Self::new(dir, Access::Own(fs), losses))
    }

    fn new(dir: PathBuf, access: Access, losses: Losses) -> Self {
        let mut caller = caller::current();
        // What a copy sets is what the original had.
        caller.umask = 0;
        let tree = match &access {
            Access::Own(fs) => Tree::new(fs.clone(), caller),
            Access::Remote(fs) => Tree::new(fs.clone(), caller),
        };
        Self {
            dir,
            access,
            tree,
            losses,
        }
    }

    fn entrance(&self) -> Entrance<'_> {
        match &self.access {
            Access::Own(fs) => Entrance::Store(fs),
            Access::Remote(fs) => Entrance::Owner(fs),
        }
    }

    /// Ends the use of the store; its failure is worse than the command's own.
    fn close(self, result: Result<u8, Error>) -> Result<u8, Error> {
        drop(self.tree);
        match self.access {
            Access::Own(fs) => store::close(&self.dir, &fs)?,
            Access::Remote(fs) => Arc::into_inner(fs).map_or(Ok(()), RemoteFs::close)?,
        }
        self.losses.report();
        result.map(|status| status.max(self.losses.status()))
    }
}

/// `amino ls`.
pub fn ls(args: &amino::Ls) -> Result<u8, Error> {
    let handle = StoreHandle::open_to_read(&args.store, args.salvage)?;
    let result = look::ls(&handle.tree, args.listing, &args.paths);
    handle.close(result)
}

/// `amino cat`.
pub fn cat(args: &amino::Cat) -> Result<u8, Error> {
    let handle = StoreHandle::open_to_read(&args.store, args.salvage)?;
    let result = look::cat(&handle.tree, &args.paths);
    handle.close(result)
}

/// `amino stat`.
pub fn stat(args: &amino::Stat) -> Result<u8, Error> {
    let handle = StoreHandle::existing(&args.store)?;
    let result = look::stat(&handle.tree, args);
    handle.close(result)
}

/// `amino tree`.
pub fn tree(args: &amino::Tree) -> Result<u8, Error> {
    let handle = StoreHandle::existing(&args.store)?;
    let result = look::tree(&handle.tree, args);
    handle.close(result)
}

/// `amino import`.
pub fn import(args: &amino::Import, loud: Loudness) -> Result<u8, Error> {
    // Before a store is made for nothing.
    if !args
        .host
        .metadata()
        .map_err(|why| Error::host(&args.host, why))?
        .is_dir()
    {
        return Err(Error::host(&args.host, Errno::ENOTDIR));
    }
    host::raise_descriptor_limit();
    let create = Create::at(&args.store, args.create);
    let handle = StoreHandle::open(&args.store, create, args.engine, loud)?;
    let total = report::shows_progress(loud).then(|| import::total(&args.host));
    let report = Report::new(total, loud);
    let import = import::Import::new(
        &handle.tree,
        handle.entrance(),
        &handle.dir,
        args.force,
        report,
    );
    let result = import
        .run(&args.host, args.path.as_bytes())
        .and_then(|report| report.finish(args.json));
    handle.close(result)
}

/// `amino export`.
pub fn export(args: &amino::Export, loud: Loudness) -> Result<u8, Error> {
    host::raise_descriptor_limit();
    let handle = StoreHandle::open_to_read(&args.store, args.salvage)?;
    let result = export_from(&handle, args, loud);
    handle.close(result)
}

fn export_from(handle: &StoreHandle, args: &amino::Export, loud: Loudness) -> Result<u8, Error> {
    let path = absolute(args.path.as_bytes());
    let fail = |errno| Error::in_store(&path, errno);
    let place = handle.tree.resolve(&path, true).map_err(fail)?;
    if !place.node.is_dir() {
        return Err(fail(Errno::ENOTDIR));
    }
    if inside(&args.host, &handle.dir) {
        return Err(Error::InsideStore(args.host.clone()));
    }
    let (target, empty) = export::open_target(&args.host, args.force)?;
    let all = Selection::default();
    let total =
        report::shows_progress(loud).then(|| export::total(&handle.tree, &place, &path, &all));
    let report = Report::new(total, loud);
    export::Export::new(&handle.tree, args.force, target, report)
        .run(place, &path, empty)?
        .finish(args.json)
}

/// How [`extract`] copies.
pub struct Extraction<'a> {
    /// The host directory.
    pub to: &'a Path,
    /// Files that are in the way are replaced.
    pub force: bool,
    /// The report is JSON.
    pub json: bool,
    /// Owners and modes.
    pub modes: Modes,
}

/// Copies `paths` of a tree, everything when there are none, to the host, each under its own path from the root.
pub fn extract<'a>(
    tree: &Tree,
    paths: impl Iterator<Item = &'a [u8]>,
    how: Extraction<'_>,
    loud: Loudness,
) -> Result<u8, Error> {
    host::raise_descriptor_limit();
    let mut selection = Selection::default();
    let mut missing = Vec::new();
    let mut all = true;
    for path in paths {
        all = false;
        let path = absolute(path);
        let found = tree.resolve(&path, false).and_then(|place| {
            // Its own path: without dots, and not through links.
            tree.fs().path(&tree.caller, &place.node)
        });
        match found {
            Ok((own, _)) => selection.add(absolute(&own)),
            Err(errno) => missing.push((path, tree.why(errno))),
        }
    }
    let root = tree.root();
    let (target, made) = export::make_target(how.to)?;
    let wanted = all || !selection.is_empty();
    let total = (wanted && report::shows_progress(loud))
        .then(|| export::total(tree, &root, b"/", &selection));
    let mut report = Report::new(total, loud);
    for (path, why) in missing {
        report.skip(&path, why);
    }
    if wanted {
        report = export::Export::new(tree, how.force, target, report)
            .merging()
            .with_modes(how.modes)
            .only(selection)
            .run(root, b"/", made)?;
    }
    report.finish(how.json)
}

fn inside(path: &Path, dir: &Path) -> bool {
    mounts::real(path).starts_with(mounts::real(dir))
}
