//! Opens the store that a command works on without a monitor: in this process, or at its owner where it has one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use amino_fs::AminoFs;
use goanna_daemon::client::{Access, RemoteFs, RemoteWriter, reach};
use goanna_offline::Tree;
use goanna_offline::copy::{ContentWriter, StoreWriter};
use goanna_offline::salvage::{Loss, Salvage};
use goanna_session::store::{self, Create, Opening};
use goanna_session::{Durability, Error as SessionError, credentials};

use crate::args::amino::StoreArg;
use crate::args::{Engine, Verbosity};
use crate::error::Error;
use crate::report::messages::{self, note};
use crate::report::names;

/// How a store that exists is opened to read it, or to work on it as a whole.
pub const EXISTING: Opening = Opening {
    engine: None,
    durability: Durability::Aci,
    create: Create::Never,
};

/// The store's directory: the option or $AMINO_STORE (clap has merged them), else the default.
pub fn store_dir(arg: &StoreArg) -> Result<PathBuf, Error> {
    let given = arg.store.as_ref().filter(|dir| !dir.as_os_str().is_empty());
    let dir = given.cloned().or_else(store::default_dir);
    dir.ok_or(Error::NoStoreDir)
}

/// A store and its tree.
pub struct StoreHandle {
    /// Its directory.
    pub dir: PathBuf,
    /// Its file system.
    pub tree: Tree,
    opened: Opened,
    /// The missing parts, if the store is the salvaged part of a damaged one.
    salvage: Salvage,
}

/// The process that has the store open.
enum Opened {
    /// This process.
    Own(Arc<AminoFs>),
    /// Its owner, `aminod`.
    Remote(Arc<RemoteFs>),
}

impl StoreHandle {
    /// Opens a store to change it, or makes one as `create` allows.
    pub fn open_to_change(
        arg: &StoreArg,
        create: Create,
        engine: Option<Engine>,
        verbosity: Verbosity,
    ) -> Result<Self, Error> {
        Self::open(arg, Access::Change, create, engine, verbosity)
    }

    fn open(
        arg: &StoreArg,
        access: Access,
        create: Create,
        engine: Option<Engine>,
        verbosity: Verbosity,
    ) -> Result<Self, Error> {
        let dir = store_dir(arg)?;
        let caller = credentials::current();
        let opening = Opening {
            engine: engine.map(Into::into),
            durability: Durability::Aci,
            create,
        };
        let attach = |owner| RemoteFs::attach(owner, opening.engine, access);
        let opened = reach(
            &dir,
            |owner| Ok(attach(owner)?.map(Opened::Remote)),
            || {
                let made = |text: &str| note(text, verbosity);
                let fs = store::open_or_make(&dir, opening, &caller, made);
                fs.map(Opened::Own)
            },
        )?;
        Ok(Self::new(dir, opened, Salvage::default()))
    }

    /// Opens an existing store to read its present state; with `salvage` the readable part of a damaged store.
    pub fn open_to_read(arg: &StoreArg, salvage: bool) -> Result<Self, Error> {
        if !salvage {
            let verbosity = Verbosity::default();
            return Self::open(arg, Access::Read, Create::Never, None, verbosity);
        }
        let (dir, salvage) = salvaged(&store_dir(arg)?)?;
        let fs = store::open(&dir, EXISTING, &credentials::current())?;
        Ok(Self::new(dir, Opened::Own(fs), salvage))
    }

    fn new(dir: PathBuf, opened: Opened, salvage: Salvage) -> Self {
        let mut caller = credentials::current();
        // Copies get the modes of their originals: no umask.
        caller.umask = 0;
        let tree = match &opened {
            Opened::Own(fs) => Tree::new(fs.clone(), caller),
            Opened::Remote(fs) => Tree::new(fs.clone(), caller),
        };
        Self {
            dir,
            tree,
            opened,
            salvage,
        }
    }

    /// The fastest way to make files with the content of host files.
    pub fn content_writer(&self) -> Box<dyn ContentWriter> {
        match &self.opened {
            Opened::Own(fs) => Box::new(StoreWriter(Arc::clone(fs))),
            Opened::Remote(fs) => Box::new(RemoteWriter(Arc::clone(fs))),
        }
    }

    /// Ends the use of the store. Its failure takes precedence over that of the command.
    pub fn close(self, result: Result<u8, Error>) -> Result<u8, Error> {
        drop(self.tree);
        match self.opened {
            Opened::Own(fs) => store::close(&self.dir, &fs)?,
            Opened::Remote(fs) => Arc::into_inner(fs).map_or(Ok(()), RemoteFs::close)?,
        }
        for loss in self.salvage.losses() {
            messages::line(&format!("missing: {}", loss_text(loss)));
        }
        result.map(|status| status.max(loss_status(&self.salvage)))
    }
}

/// Salvages the store in `dir`. Returns the directory of the salvaged store.
pub fn salvaged(dir: &Path) -> Result<(PathBuf, Salvage), Error> {
    store::must_exist(dir)?;
    let salvage = Salvage::of(dir).map_err(|why| SessionError::store(dir, why))?;
    let store = salvage.store().ok_or(Error::NoStoreDir)?;
    Ok((store, salvage))
}

/// The exit status: 1 when parts of the store are missing.
pub fn loss_status(salvage: &Salvage) -> u8 {
    u8::from(!salvage.losses().is_empty())
}

/// The line that reports a missing part.
pub fn loss_text(Loss { place, what }: &Loss) -> String {
    let [place, what] = [place, what].map(|text| names::escape(text.as_bytes()));
    format!("{place}: {what}")
}
