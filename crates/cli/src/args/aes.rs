//! The command line of `goanna aes`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `goanna aes`.
#[derive(Debug, Args)]
#[command(after_help = AES_HELP)]
pub struct Aes {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Statuses of all commands, which are those of gocryptfs.
macro_rules! status {
    () => {
        "\
Exit status, as of gocryptfs:
  0    done
  6    init: DIR is not an empty directory
  8    gocryptfs.conf is damaged
  9    the password cannot be read
  12   the password is wrong
  14   the master key is not 64 hexadecimal digits
  22   the password is empty
  23   gocryptfs.conf cannot be read
  24   gocryptfs.conf cannot be written
  26   fsck: something is wrong with the volume
  27   the volume has another version, or features that are not supported
  125  the command line is wrong, or something else failed"
    };
}

const AES_HELP: &str = concat!(
    "\
Notes:
  A volume is a directory with encrypted names and contents, in the format of
  gocryptfs: either program can be used. Programs see it in plain with
  `goanna run --mount aes=DIR:/secret`, without root and without a mount.
  Without --passfile or --extpass the command asks for the password on the
  terminal. If standard input is not a terminal, it reads a line from there.

",
    status!(),
    "

Examples:
  goanna aes init ~/vault
  goanna run --mount aes=$HOME/vault:/secret -- bash
  goanna aes fsck ~/vault"
);

/// The commands of `goanna aes`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a volume in an empty directory
    Init(Init),
    /// Print the parameters in a volume's config file
    Info(Info),
    /// Change a volume's password
    Passwd(Passwd),
    /// Check all names and contents of a volume
    Fsck(Fsck),
}

/// The volume, and its password.
#[derive(Debug, Args)]
pub struct Volume {
    /// Read the password from the first line of FILE; - is standard input
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub passfile: Option<PathBuf>,
    /// Read the password from what the shell command prints
    #[arg(long, value_name = "COMMAND", conflicts_with = "passfile")]
    pub extpass: Option<OsString>,
    /// The config file [default: gocryptfs.conf in DIR]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// The encrypted directory
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub dir: PathBuf,
}

/// Where a master key comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MasterKey {
    /// The first line of standard input
    Stdin,
}

/// How contents are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Cipher {
    /// AES-256-GCM, the quickest where the processor has AES
    AesGcm,
    /// XChaCha20-Poly1305
    Xchacha,
    /// AES-256-SIV
    AesSiv,
}

/// How names are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Names {
    /// With an IV for each directory
    Encrypted,
    /// Equal names alike in all directories
    Deterministic,
    /// Not at all
    Plain,
}

/// `goanna aes init`.
#[derive(Debug, Args)]
#[command(after_help = INIT_HELP)]
pub struct Init {
    /// Which volume.
    #[command(flatten)]
    pub volume: Volume,
    /// How contents are encrypted
    #[arg(long, value_enum, default_value_t = Cipher::AesGcm)]
    pub cipher: Cipher,
    /// How names are encrypted
    #[arg(long, value_enum, default_value_t = Names::Encrypted)]
    pub names: Names,
    /// Maximum length of an encrypted name; longer ones are stored in files
    #[arg(long, value_name = "N", default_value_t = 255, value_parser = clap::value_parser!(u8).range(62..))]
    pub long_name_max: u8,
    /// The cost of scrypt: 2^N steps and 2^N KiB of memory for each password
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u8).range(10..=22))]
    pub scrypt_n: u8,
}

const INIT_HELP: &str = concat!(
    "\
Notes:
  Prints the master key, once. Whoever has it can read the volume without the
  password; without password and master key nobody can. Keep it on paper.

",
    status!(),
    "

Examples:
  goanna aes init ~/vault
  goanna aes init --cipher xchacha --passfile pw --config ~/vault.conf ~/vault"
);

/// `goanna aes info`.
#[derive(Debug, Args)]
#[command(after_help = INFO_HELP)]
pub struct Info {
    /// The config file [default: gocryptfs.conf in DIR]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The encrypted directory
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub dir: PathBuf,
}

const INFO_HELP: &str = concat!(
    "\
JSON:
  An object with volume, creator, version, features (an array), contents (the
  cipher), names (encrypted, deterministic or plain), and scrypt: an object
  of n, r, p, key_bytes and salt_bytes.

",
    status!()
);

/// `goanna aes passwd`.
#[derive(Debug, Args)]
#[command(after_help = PASSWD_HELP)]
pub struct Passwd {
    /// Which volume, and its old password.
    #[command(flatten)]
    pub volume: Volume,
    /// Use the master key instead of the old password
    #[arg(long, value_name = "FROM", value_enum, conflicts_with_all = ["passfile", "extpass"])]
    pub masterkey: Option<MasterKey>,
    /// Read the new password from the first line of FILE
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub new_passfile: Option<PathBuf>,
    /// Read the new password from what the shell command prints
    #[arg(long, value_name = "COMMAND", conflicts_with = "new_passfile")]
    pub new_extpass: Option<OsString>,
    /// The cost of scrypt from now on [default: as before]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(10..=22))]
    pub scrypt_n: Option<u8>,
}

const PASSWD_HELP: &str = concat!(
    "\
Notes:
  Only the master key is encrypted anew, not the files. The config file with
  the old password stays as gocryptfs.conf.bak: remove it when the new one
  works. Whoever has a copy of it can read the volume by the old password.
  gocryptfs -fsck reports a backup in DIR as a foreign entry.

",
    status!(),
    "

Examples:
  goanna aes passwd ~/vault
  goanna aes passwd --masterkey stdin --new-passfile pw ~/vault < key"
);

/// `goanna aes fsck`.
#[derive(Debug, Args)]
#[command(after_help = FSCK_HELP)]
pub struct Fsck {
    /// Which volume.
    #[command(flatten)]
    pub volume: Volume,
    /// Use the master key instead of the password
    #[arg(long, value_name = "FROM", value_enum, conflicts_with_all = ["passfile", "extpass"])]
    pub masterkey: Option<MasterKey>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const FSCK_HELP: &str = concat!(
    "\
Notes:
  Reads every name, block, link and attribute, and changes nothing. Names that
  do not decrypt are shown as they are stored. fsck cannot detect files that
  were removed, or replaced by an older version.

JSON:
  An object with directories, files, links, special, bytes, findings: an array
  of {path, problem}.

",
    status!()
);
