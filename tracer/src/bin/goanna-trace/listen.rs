//! `goanna-trace listen`.

use std::path::PathBuf;

use goanna_tracer::output::Address;
use goanna_tracer::receive::Receiver;

use crate::common::{Failure, KeyFiles, note};

/// Receive the traces that goanna-trace --to sends, many at a time, each into a file
///
/// The first stream goes to FILE, others to FILE.1, FILE.2 and so on. A sender whose connection breaks connects again and continues. With
/// --hmac-key, blocks without a valid HMAC are refused.
#[derive(Debug, clap::Args)]
pub struct Listen {
    /// Where to listen: tcp://HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    on: Address,
    /// The file of the first stream
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// End when this many streams have ended; else with Ctrl-C
    #[arg(long, value_name = "N")]
    streams: Option<u64>,
    #[command(flatten)]
    keys: KeyFiles,
}

impl Listen {
    pub fn run(&self) -> Result<u8, Failure> {
        let keys = self.keys.read()?;
        let receiver = Receiver::new(&self.output, keys, Box::new(|line| note(&line)));
        receiver.listen(&self.on, self.streams, |bound| {
            note(&format!("listening on {bound}"))
        })?;
        Ok(0)
    }
}
