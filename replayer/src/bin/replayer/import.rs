//! `replayer import`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use goanna_replayer::import::{Options, Summary, fio, strace};
use goanna_sys::plural::counted;

use crate::common::{Failure, bytes, message, print, progress, require_different};

const IMPORT_HELP: &str = "\
Exit status:
  0    success
  125  the command line is wrong, or replayer failed

Examples:
  strace -f -ttt -T -y -s 1000000000 -o job.txt ./job.sh
  replayer import --format strace job.txt -o job.gtr

  fio job.fio --write_iolog=job.log
  replayer import --format fio job.log -o job.gtr";

/// Convert the recording of another program to a trace
///
/// fio: a log of fio's I/O (write_iolog=FILE), version 2 or 3: opens, transfers, syncs and closes of one job, without data and results.
///
/// strace: the text of strace -f -ttt -T -y -o FILE. Add -s 1000000000 to have all data that was read and written: of buffers that strace
/// shortens, the trace has only the lengths. The text contains neither users nor the state of files before the calls. Symbolic links are
/// followed only in paths that were opened.
#[derive(Debug, Args)]
#[command(after_help = IMPORT_HELP)]
pub struct Import {
    /// The format of FILE
    #[arg(long, value_name = "FORMAT")]
    format: Format,
    /// The recording
    file: PathBuf,
    /// Write the trace to TRACE
    #[arg(short, long, value_name = "TRACE")]
    output: PathBuf,
    /// The directory to replay, as a trace names it [default: with strace the first working directory that FILE shows, with fio the deepest one that holds all files]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Formats that can be imported.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// A log of fio's I/O
    Fio,
    /// The text of strace -f -ttt -T -y
    Strace,
}

/// Maximum number of unknown names that are shown.
const SHOWN: usize = 20;

impl Import {
    pub fn run(self) -> Result<u8, Failure> {
        require_different(&self.file, &self.output)?;
        let length = std::fs::metadata(&self.file).map_or(0, |it| it.len());
        let bar = progress(length.saturating_mul(2));
        let options = Options {
            directory: self.directory.as_deref(),
        };
        let import = match self.format {
            Format::Fio => fio,
            Format::Strace => strace,
        };
        let result = import(&self.file, &self.output, &options, &mut |at| {
            bar.set_position(at);
        });
        bar.finish_and_clear();
        self.show(&result?)
    }

    fn show(&self, summary: &Summary) -> Result<u8, Failure> {
        let path = self.file.display();
        for (name, count) in summary.unknown.iter().take(SHOWN) {
            message(&format!("{path}: {name} is not known ({count} times)"));
        }
        if summary.unknown.len() > SHOWN {
            let more = summary.unknown.len() - SHOWN;
            message(&format!("{path}: and {more} more names are not known"));
        }
        if summary.cut > 0 {
            let cut = summary.cut;
            message(&format!(
                "{path}: {cut} buffers are cut short; strace -s 1000000000 shows all of them"
            ));
        }
        print(&format!(
            "{} in {}; left out, because they concern no files: {}",
            counted(summary.calls, "call"),
            bytes(summary.bytes),
            counted(summary.others, "call")
        ))?;
        Ok(0)
    }
}
