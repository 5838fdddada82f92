//! The output filters of a tracer, which blocks pass in the order in which the command line names them.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use goanna_tracer::codec::Key;
use goanna_tracer::{Error, OutputFilter};

/// Output filters in their order.
#[derive(Debug, Clone, Default)]
pub struct OutputFilters(Vec<Choice>);

#[derive(Debug, Clone)]
enum Choice {
    Compress(i32),
    Authenticate(PathBuf),
    Encrypt(PathBuf),
}

const COMPRESS: &str = "compress";
const HMAC_KEY: &str = "hmac_key";
const ENCRYPT_KEY: &str = "encrypt_key";

impl OutputFilters {
    /// The filters, with their keys read.
    pub fn read(&self) -> Result<Vec<OutputFilter>, Error> {
        let filter = |choice: &Choice| {
            Ok(match choice {
                Choice::Compress(level) => OutputFilter::Zstd(*level),
                Choice::Authenticate(key) => OutputFilter::Authenticate(Key::read(key)?),
                Choice::Encrypt(key) => OutputFilter::Encrypt(Key::read(key)?),
            })
        };
        self.0.iter().map(filter).collect()
    }
}

impl Args for OutputFilters {
    fn augment_args(command: Command) -> Command {
        command
            .arg(
                Arg::new(COMPRESS)
                    .long("compress")
                    .value_name("METHOD")
                    .value_parser(compression)
                    .help("Compress blocks: zstd or zstd:LEVEL. Blocks pass this and the next two in the order of the command line"),
            )
            .arg(
                Arg::new(HMAC_KEY)
                    .long("hmac-key")
                    .value_name("FILE")
                    .value_parser(value_parser!(PathBuf))
                    .help("Authenticate blocks by HMAC-SHA-256 with the key in FILE (32 bytes, or 64 hexadecimal digits)"),
            )
            .arg(
                Arg::new(ENCRYPT_KEY)
                    .long("encrypt-key")
                    .value_name("FILE")
                    .value_parser(value_parser!(PathBuf))
                    .help("Encrypt blocks by AES-256-GCM with the key in FILE"),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OutputFilters {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut choices = Vec::new();
        let path = |id| matches.get_one::<PathBuf>(id).cloned();
        let level = matches.get_one(COMPRESS).copied();
        for (id, choice) in [
            (COMPRESS, level.map(Choice::Compress)),
            (HMAC_KEY, path(HMAC_KEY).map(Choice::Authenticate)),
            (ENCRYPT_KEY, path(ENCRYPT_KEY).map(Choice::Encrypt)),
        ] {
            choices.extend(choice.map(|choice| (matches.index_of(id), choice)));
        }
        choices.sort_by_key(|(place, _)| *place);
        Ok(Self(
            choices.into_iter().map(|(_, choice)| choice).collect(),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn compression(text: &str) -> Result<i32, String> {
    let level = match text.split_once(':') {
        None => "3",
        Some((_, level)) => level,
    };
    let is_zstd = text.split(':').next() == Some("zstd");
    let level = level.parse().ok().filter(|level| (1..=22).contains(level));
    level
        .filter(|_| is_zstd)
        .ok_or_else(|| "zstd, or zstd:LEVEL with a level from 1 to 22, is known".into())
}
