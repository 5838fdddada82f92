//! All tools for traces, one after the other. The fuzz target of traces (tests/fuzz) runs them, too.

use std::io::Cursor;
use std::path::Path;

use goanna_tracer::Error;
use goanna_tracer::read::{Keys, Reader};
use goanna_tracer::tools::anonymize::{Anonymize, DataRule, FieldKeys, anonymize, deanonymize};
use goanna_tracer::tools::{
    Consumer, Ctf, JsonLines, Parquet, Perfetto, Report, Statistics, Text, Top, consume, recover,
};

/// Reads a trace by each tool; what they say of it does not count. An error if it cannot be opened, or if `directory` cannot be written.
pub fn run(trace: &[u8], directory: &Path, keys: &FieldKeys) -> Result<(), Error> {
    let reader = || Reader::new(Cursor::new(trace), &Keys::default());
    let mut report = Report::default();
    let ctf = directory.join("ctf");
    let _ = std::fs::remove_dir_all(&ctf);
    let mut consumers: [Box<dyn Consumer>; 7] = [
        Box::new(Text::new(Vec::new())),
        Box::new(JsonLines::new(Vec::new())),
        Box::new(Perfetto::new(Vec::new())),
        Box::new(Parquet::new(Vec::new())),
        Box::new(Statistics::default()),
        Box::new(Top::new(|_: &_| {})),
        Box::new(Ctf::create(&ctf)?),
    ];
    for consumer in &mut consumers {
        let _ = consume(&mut reader()?, &mut **consumer, &mut |_| {});
    }
    let _ = consume(&mut reader()?, &mut report, &mut |_| {});
    assert!(report.html("t").ends_with("</html>\n"));
    let new = directory.join("new");
    let _ = recover(&mut reader()?, &new, &mut |_| {});
    let fields = "all".parse();
    assert!(fields.is_ok());
    let how = Anonymize {
        fields: fields.unwrap_or_default(),
        keep_extensions: true,
        data: DataRule::Encrypt,
    };
    let _ = anonymize(&mut reader()?, &new, keys, how, &mut |_| {});
    let _ = deanonymize(&mut reader()?, &new, keys, &mut |_| {});
    Ok(())
}
