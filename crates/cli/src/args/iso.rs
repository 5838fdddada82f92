//! The command line of `goanna iso`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::common::{Listing, listing_help};

/// `goanna iso`.
#[derive(Debug, Args)]
#[command(after_help = ISO_HELP)]
pub struct Iso {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Statuses of the commands that read a tree.
macro_rules! status {
    () => {
        "\
Exit status:
  0    done
  1    something is not in the image, or could not be read or made; each is
       named on stderr, damage with the kind of record and its place in bytes
  125  the command line is wrong, IMAGE is no ISO 9660 image or lacks the
       names or the session asked for, or the output cannot be written"
    };
}

const ISO_HELP: &str = concat!(
    "\
Notes:
  Reads images as they are, without root and without a mount. Of the names an
  image has, Rock Ridge is preferred, then Joliet, then plain; of its
  sessions, the last. Permissions recorded in an image are not asked for:
  who can read IMAGE can read all of it. Programs see an image as a directory
  with `goanna run --mount iso=IMAGE:/cd`.

",
    status!(),
    "

Examples:
  goanna iso info cd.iso
  goanna iso ls -lR cd.iso
  goanna iso cat cd.iso docs/readme.txt
  goanna iso extract --to out cd.iso"
);

/// The commands of `goanna iso`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print what an image says of itself, and what is damaged in it
    Info(Info),
    /// List directories of an image
    Ls(Ls),
    /// Print files of an image
    Cat(Cat),
    /// Copy an image, or paths of it, to the host
    Extract(Extract),
}

/// Kinds of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Names {
    /// POSIX names, with modes, owners and links
    Rockridge,
    /// Unicode names
    Joliet,
    /// The names every image has, in lower case and without ;1
    Plain,
}

/// Which image, and how it is read.
#[derive(Debug, Args)]
pub struct Image {
    /// Which names [default: rockridge, else joliet, else plain]
    #[arg(long, value_name = "NAMES", value_enum)]
    pub namespace: Option<Names>,
    /// Which session, from 1 [default: the last]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub session: Option<u32>,
    /// The image, a file or a block device
    #[arg(value_name = "IMAGE", value_hint = clap::ValueHint::FilePath)]
    pub image: PathBuf,
}

/// `goanna iso info`.
#[derive(Debug, Args)]
#[command(after_help = INFO_HELP)]
pub struct Info {
    /// Which image.
    #[command(flatten)]
    pub image: Image,
    /// The same as JSON
    #[arg(long)]
    pub json: bool,
}

const INFO_HELP: &str = "\
Notes:
  Reads all directories, and of every file where its content stands, but not
  the content. Fields that the image leaves empty are left out.

JSON:
  An object with
  image, image_bytes   the file and its size
  session, sessions    the number of the one in use, and an array of {number,
                       start, blocks, volume_id}, start in sectors of 2048
  namespace            rockridge, joliet or plain: the one in use
  namespaces           {rock_ridge: extension or null, joliet: level or null,
                       enhanced: whether there is an ISO 9660:1999 volume}
  udf_bridge           whether the image can be read as UDF, too
  volume, joliet_volume
                       what the primary and the Joliet descriptor say, the
                       latter null where there is none: {offset, volume_id,
                       system_id, set_id, publisher, preparer, application,
                       copyright_file, abstract_file, bibliographic_file,
                       created, modified, expires, effective ({sec, nsec} or
                       null), blocks, block_size, bytes, set_size, sequence}
  boot                 El Torito: an array of {platform, platform_id,
                       bootable, emulation, load_segment, system_type,
                       load_sectors (of 512 bytes), block, section}
  files, directories, symlinks, special, bytes, zisofs
                       counts, the sum of file sizes, and how many files are
                       compressed
  missing_bytes        how much shorter the image is than its volume
  damaged              how many records are
  damage               the first 100: an array of {path (null outside of the
                       tree), record, offset (null where not known), what}

Exit status:
  0    nothing is damaged
  1    something is; what and where is in the report
  125  IMAGE is no ISO 9660 image, its descriptors or root directory cannot
       be read, or it lacks the names or the session asked for

Examples:
  goanna iso info cd.iso
  goanna iso info --json cd.iso | jq '.volume.volume_id, .damaged'";

/// `goanna iso ls`.
#[derive(Debug, Args)]
#[command(after_help = LS_HELP)]
pub struct Ls {
    /// How.
    #[command(flatten)]
    pub listing: Listing,
    /// Which image.
    #[command(flatten)]
    pub image: Image,
    /// Directories and files of the image, from its root
    #[arg(value_name = "PATH", default_value = "/")]
    pub paths: Vec<OsString>,
}

const LS_HELP: &str = concat!(
    listing_help!(),
    "\n\n",
    status!(),
    "

Examples:
  goanna iso ls -la cd.iso
  goanna iso ls -R --json cd.iso | jq -r '.[] | select(.size > 1e6) | .path'
  goanna iso ls --namespace joliet --session 1 cd.iso docs"
);

/// `goanna iso cat`.
#[derive(Debug, Args)]
#[command(after_help = CAT_HELP)]
pub struct Cat {
    /// Which image.
    #[command(flatten)]
    pub image: Image,
    /// Files of the image, from its root; symbolic links are followed within it
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
}

const CAT_HELP: &str = concat!(
    "\
Notes:
  Compressed files (zisofs) are printed as what they decompress to.

",
    status!(),
    "

Examples:
  goanna iso cat cd.iso boot/grub/grub.cfg"
);

/// `goanna iso extract`.
#[derive(Debug, Args)]
#[command(after_help = EXTRACT_HELP)]
pub struct Extract {
    /// Where to: a directory, made when it does not exist
    #[arg(
        short = 'C',
        long = "to",
        value_name = "DIR",
        default_value = ".",
        value_hint = clap::ValueHint::DirPath
    )]
    pub to: PathBuf,
    /// Replace files that are in the way
    #[arg(short, long)]
    pub force: bool,
    /// What was copied, as JSON on stdout
    #[arg(long)]
    pub json: bool,
    /// Which image.
    #[command(flatten)]
    pub image: Image,
    /// Files and directories of the image, from its root [default: everything]
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
}

const EXTRACT_HELP: &str = concat!(
    "\
Notes:
  What is /a/b in the image becomes DIR/a/b, whether all is extracted or that
  path only. Kept are modes, times, symbolic and hard links and fifos, as
  root also owners and device nodes; others lose set-id bits of files that
  were somebody else's. Joliet and plain names come without modes, owners and
  links: then files are made as any new ones, according to the umask.
  Nothing is written outside DIR, whatever the image holds: links found there
  or made from the image are never followed. Directories that exist are
  filled and keep their own modes; files that exist are left as they are and
  told, unless --force is given. What cannot be extracted is told and the
  rest goes on; of a file that cannot be read to its end nothing is left.

JSON:
  An object with files, directories, symlinks, hard_links, special, bytes (of
  data, without holes), and skipped: an array of {path, why}.

",
    status!(),
    "

Examples:
  goanna iso extract --to out cd.iso
  goanna iso extract cd.iso docs           makes ./docs
  goanna iso extract -f -C out cd.iso docs/readme.txt docs/images"
);
