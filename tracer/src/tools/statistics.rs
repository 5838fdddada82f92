//! The figures of a trace that `goanna-trace stat` prints.

use std::collections::{BTreeMap, BTreeSet};

use amino_schema::trace::pairs::Pairs;
use amino_schema::trace::record::Record;
use serde_json::{Value as Json, json};

use super::Consumer;
use super::fields::Fields;
use crate::Error;

/// Counts the records of a trace.
#[derive(Debug, Default)]
pub struct Statistics {
    context: Pairs,
    messages: BTreeMap<String, Message>,
    threads: BTreeSet<i64>,
    first_ns: Option<u64>,
    last_ns: u64,
}

#[derive(Debug, Default)]
struct Message {
    records: u64,
    errors: u64,
    bytes: u64,
    nanoseconds: u64,
}

/// Maximum number of threads that are distinguished.
const MAX_THREADS: usize = 1 << 20;

impl Consumer for Statistics {
    fn context(&mut self, context: &Pairs) -> Result<(), Error> {
        if self.context.is_empty() {
            self.context.clone_from(context);
        }
        Ok(())
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let fields = Fields::of(record);
        let message = self
            .messages
            .entry(record.message.name.clone())
            .or_default();
        message.records += 1;
        message.errors += u64::from(fields.error().is_some());
        let took = fields.duration.unwrap_or(0);
        message.nanoseconds = message.nanoseconds.saturating_add(took);
        if let ("bytes", Some(result @ 0..)) = (fields.result_unit, fields.result) {
            message.bytes = message.bytes.saturating_add(result.unsigned_abs());
        }
        if let Some(time) = fields.time {
            self.first_ns.get_or_insert(time);
            self.last_ns = self
                .last_ns
                .max(time.saturating_add(fields.duration.unwrap_or(0)));
        }
        if fields.thread() != 0 && self.threads.len() < MAX_THREADS {
            self.threads.insert(fields.thread());
        }
        Ok(())
    }
}

impl Statistics {
    fn records(&self) -> u64 {
        self.messages.values().map(|message| message.records).sum()
    }

    fn spanned_ns(&self) -> u64 {
        self.last_ns
            .saturating_sub(self.first_ns.unwrap_or(self.last_ns))
    }

    /// All figures as JSON.
    pub fn json(&self, bytes: Option<u64>) -> Json {
        let messages = self.messages.iter().map(|(name, message)| {
            json!({
                "message": name,
                "records": message.records,
                "errors": message.errors,
                "bytes": message.bytes,
                "nanoseconds": message.nanoseconds,
            })
        });
        let context =
            self.context.iter().filter(|(name, _)| name != "mount").map(
                |(name, value)| json!({ "name": name, "value": String::from_utf8_lossy(value) }),
            );
        json!({
            "records": self.records(),
            "threads": self.threads.len(),
            "nanoseconds": self.spanned_ns(),
            "bytes": bytes,
            "messages": messages.collect::<Vec<_>>(),
            "context": context.collect::<Vec<_>>(),
        })
    }

    /// The figures as a table, the most frequent messages first.
    pub fn table(&self, bytes: Option<u64>) -> String {
        let seconds = |ns: u64| format!("{:.6}", ns as f64 / 1e9);
        let records = self.records();
        let mut text = format!(
            "records  {records}\nthreads  {}\nseconds  {}\n",
            self.threads.len(),
            seconds(self.spanned_ns())
        );
        if let Some(bytes) = bytes {
            let each = bytes as f64 / records.max(1) as f64;
            text.push_str(&format!("bytes    {bytes} ({each:.1} a record)\n"));
        }
        text.push_str(&format!(
            "\n{:>10} {:>8} {:>14} {:>12}  message\n",
            "records", "errors", "bytes", "seconds"
        ));
        let mut messages = self.messages.iter().collect::<Vec<_>>();
        messages.sort_by_key(|(_, message)| std::cmp::Reverse(message.records));
        for (name, message) in messages {
            text.push_str(&format!(
                "{:>10} {:>8} {:>14} {:>12}  {name}\n",
                message.records,
                message.errors,
                message.bytes,
                seconds(message.nanoseconds)
            ));
        }
        text
    }
}
