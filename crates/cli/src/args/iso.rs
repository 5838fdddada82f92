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
  0    success
  1    some files were not found, or could not be read or created; stderr names
       each, damage with the kind of record and its offset in bytes
  125  the command line is wrong, IMAGE is not an ISO 9660 image or lacks the
       requested names or session, or the output cannot be written"
    };
}

const ISO_HELP: &str = concat!(
    "\
Notes:
  Reads images without root and without a mount. Prefers Rock Ridge names, then
  Joliet, then plain names; and the last session. Ignores permissions that are
  recorded in the image: a user who can read IMAGE can read all files in it.
  Programs see an image as a directory with
  `goanna run --mount iso=IMAGE:/cd`.

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
    /// Print the properties of an image, and its damage
    Info(Info),
    /// List directories of an image
    Ls(Ls),
    /// Print files of an image
    Cat(Cat),
    /// Copy files of an image to the host
    Extract(Extract),
}

/// Kinds of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Names {
    /// POSIX names, with modes, owners and links
    Rockridge,
    /// Unicode names
    Joliet,
    /// The names that every image has, in lower case and without ;1
    Plain,
}

/// Which image, and how it is read.
#[derive(Debug, Args)]
pub struct Image {
    /// The kind of names [default: rockridge, else joliet, else plain]
    #[arg(long, value_name = "NAMES", value_enum)]
    pub namespace: Option<Names>,
    /// The number of the session, from 1 [default: the last]
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
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const INFO_HELP: &str = "\
Notes:
  Reads all directories and the position of every file's content, but not the
  content. Omits fields that are empty in the image.

JSON:
  An object with
  image, image_bytes   the file and its size
  session, sessions    the number of the session in use, and an array of
                       {number, start (sector), blocks, volume_id}
  namespace            rockridge, joliet or plain: the one in use
  namespaces           {rock_ridge: extension or null, joliet: level or null,
                       enhanced: whether there is an ISO 9660:1999 volume}
  udf_bridge           whether the image can be read as UDF, too
  volume, joliet_volume
                       the fields of the primary and the Joliet descriptor,
                       the latter null if there is none: {offset, volume_id,
                       system_id, set_id, publisher, preparer, application,
                       copyright_file, abstract_file, bibliographic_file,
                       created, modified, expires, effective ({sec, nsec} or
                       null), blocks, block_size, bytes, set_size, sequence}
  boot                 El Torito: an array of {platform, platform_id,
                       bootable, emulation, load_segment, system_type,
                       load_sectors (of 512 bytes), block, section}
  files, directories, symlinks, special, bytes, zisofs
                       counts, the sum of file sizes, and the number of
                       compressed files
  missing_bytes        by how much the image is shorter than its volume
  damaged              number of damaged records
  damage               the first 100: an array of {path (null outside of the
                       tree), record, offset (null if not known), what}

Exit status:
  0    no damage
  1    damage, which the report describes
  125  IMAGE is not an ISO 9660 image, its descriptors or root directory cannot
       be read, or it lacks the requested names or session

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
  Prints the decompressed content of compressed files (zisofs).

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
    /// The directory to copy to; created if necessary
    #[arg(
        short = 'C',
        long = "to",
        value_name = "DIR",
        default_value = ".",
        value_hint = clap::ValueHint::DirPath
    )]
    pub to: PathBuf,
    /// Replace existing files
    #[arg(short, long)]
    pub force: bool,
    /// Print what was copied as JSON on stdout
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
  Extracts /a/b of the image to DIR/a/b, whether all files or only that path are
  requested. Keeps modes, times, symbolic and hard links and fifos; as root
  also owners and device nodes. An ordinary user's copies of other users' files
  have no set-id bits. Images with only Joliet or plain names have no modes,
  owners and links: new files get modes by the umask.
  Never writes outside DIR: symbolic links in DIR or from the image are not
  followed. Existing directories keep their modes. Existing files are reported
  and kept, unless --force is given. A file that cannot be extracted is
  reported, and the others are extracted; a file that cannot be read to its end
  is removed.

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
