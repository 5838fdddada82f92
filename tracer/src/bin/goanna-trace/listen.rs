//! `goanna-trace listen`.

use std::path::PathBuf;
use std::sync::Arc;

use goanna_sys::limits;
use goanna_tracer::output::Address;
use goanna_tracer::receive::Receiver;

use crate::common::{Failure, KeyFiles, note};

const LISTEN_HELP: &str = "\
Exit status:
  0    success
  125  the command line is wrong, or the streams cannot be received or written

Examples:
  goanna-trace listen --on tcp://127.0.0.1:7000 -o server.gtr
  goanna-trace listen --on unix:/run/trace.sock -o trace.gtr --streams 1";

/// Receive the traces that goanna-trace --to sends, many at a time, each into a file
///
/// The first stream goes to FILE, others to FILE.1, FILE.2 and so on. A sender whose connection breaks connects again and continues. With
/// --hmac-key, blocks without a valid HMAC are refused, and a stream gets its file with its first valid block.
#[derive(Debug, clap::Args)]
#[command(after_help = LISTEN_HELP)]
pub struct Listen {
    /// Where to listen: tcp://HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    on: Address,
    /// The file of the first stream
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Exit when this many streams have ended [default: run until a signal]
    #[arg(long, value_name = "N")]
    streams: Option<u64>,
    #[command(flatten)]
    keys: KeyFiles,
}

impl Listen {
    pub fn run(&self) -> Result<u8, Failure> {
        let keys = self.keys.read()?;
        limits::block_xfsz();
        let receiver = Receiver::new(&self.output, keys, Box::new(|line| note(&line)));
        let receiver = Arc::new(receiver);
        receiver.listen(&self.on, self.streams, |bound| {
            note(&format!("listening on {bound}"))
        })?;
        Ok(0)
    }
}
