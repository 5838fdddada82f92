//! `goanna iso`: an image as a tree, with the commands that stores have.

mod info;

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use goanna_isofs::{Iso, IsoFs, Namespace, Options};
use goanna_offline::copy::Modes;
use goanna_offline::{ErrorDetails, Tree};
use goanna_session::credentials;
use goanna_vfs::caps;

use crate::args::Verbosity;
use crate::args::iso::{self, Command, Image, Names};
use crate::commands::tree::copy::{self, Extraction};
use crate::commands::tree::list;
use crate::error::Error;

/// `goanna iso`.
pub fn iso(args: &iso::Iso, verbosity: Verbosity) -> Result<u8, Error> {
    match &args.command {
        Command::Info(args) => info::info(args),
        Command::Ls(args) => list::print_list(&tree(open(&args.image)?), args.listing, &args.paths),
        Command::Cat(args) => list::print_files(&tree(open(&args.image)?), &args.paths),
        Command::Extract(args) => extract(args, verbosity),
    }
}

fn open(image: &Image) -> Result<Iso, Error> {
    let options = Options {
        namespace: image.namespace.map(|names| match names {
            Names::Rockridge => Namespace::RockRidge,
            Names::Joliet => Namespace::Joliet,
            Names::Plain => Namespace::Plain,
        }),
        session: image.session,
    };
    let iso = Iso::open_file(&image.image, &options);
    iso.map_err(|why| Error::image(&image.image, why))
}

/// The tree of an image. A user who can read the image can read all of it, whatever modes it records.
fn tree(iso: Iso) -> Tree {
    let details = Arc::new(ErrorDetails::default());
    let recorder = Arc::clone(&details);
    let fs = IsoFs::new(iso).with_listener(move |why| recorder.set(why.errno(), why.to_string()));
    let mut caller = credentials::current();
    caller.caps |= 1 << caps::DAC_READ_SEARCH;
    Tree::new(Arc::new(fs), caller).of_image(details)
}

fn extract(args: &iso::Extract, verbosity: Verbosity) -> Result<u8, Error> {
    let iso = open(&args.image)?;
    let modes = match iso.namespace() {
        Namespace::RockRidge => Modes::Recorded,
        Namespace::Joliet | Namespace::Plain => Modes::New(credentials::current().umask),
    };
    let extraction = Extraction {
        to: &args.to,
        force: args.force,
        json: args.json,
        modes,
    };
    let paths = args.paths.iter().map(|path| path.as_bytes());
    copy::extract(&tree(iso), paths, extraction, verbosity)
}
