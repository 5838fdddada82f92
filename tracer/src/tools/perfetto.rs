//! Perfetto's trace format: a slice for each call, on a track for each thread. <https://ui.perfetto.dev> opens it.
//!
//! The messages are those of `protos/perfetto/trace/trace.proto`, as far as they are needed; the numbers are those of their fields.

use std::collections::HashSet;
use std::io::Write;

use amino_schema::trace::record::Record;

use super::Consumer;
use super::fields::Fields;
use crate::Error;

/// Writes packets to `out`.
pub struct Perfetto<W> {
    out: W,
    threads: HashSet<i64>,
}

/// `TracePacket`.
mod packet {
    pub const TIMESTAMP: u32 = 8;
    pub const SEQUENCE_ID: u32 = 10;
    pub const TRACK_EVENT: u32 = 11;
    pub const TIMESTAMP_CLOCK_ID: u32 = 58;
    pub const TRACK_DESCRIPTOR: u32 = 60;
}

/// `TrackEvent`, its `DebugAnnotation`, `TrackDescriptor` and `ThreadDescriptor`.
mod field {
    pub const EVENT_ANNOTATIONS: u32 = 4;
    pub const EVENT_TYPE: u32 = 9;
    pub const EVENT_TRACK: u32 = 11;
    pub const EVENT_NAME: u32 = 23;
    pub const ANNOTATION_STRING: u32 = 6;
    pub const ANNOTATION_INT: u32 = 4;
    pub const ANNOTATION_NAME: u32 = 10;
    pub const TRACK_UUID: u32 = 1;
    pub const TRACK_THREAD: u32 = 4;
    pub const THREAD_PID: u32 = 1;
    pub const THREAD_TID: u32 = 2;
    pub const THREAD_NAME: u32 = 5;
}

const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;
/// `BUILTIN_CLOCK_MONOTONIC`.
const MONOTONIC: u64 = 3;
const TRACE_PACKET: u32 = 1;
const MAX_TRACKS: usize = 1 << 20;

impl<W: Write> Perfetto<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Self {
        let threads = HashSet::new();
        Self { out, threads }
    }

    fn packet(&mut self, time: u64, of: (u32, &[u8])) -> Result<(), Error> {
        let mut packet = Vec::new();
        put_number(&mut packet, packet::TIMESTAMP, time);
        put_number(&mut packet, packet::TIMESTAMP_CLOCK_ID, MONOTONIC);
        put_number(&mut packet, packet::SEQUENCE_ID, 1);
        put_bytes(&mut packet, of.0, of.1);
        let mut framed = Vec::new();
        put_bytes(&mut framed, TRACE_PACKET, &packet);
        self.out
            .write_all(&framed)
            .map_err(|why| Error::output("", why))
    }

    fn track(&mut self, fields: &Fields<'_>, time: u64) -> Result<u64, Error> {
        let tid = fields.thread();
        let uuid = tid.unsigned_abs() + 1;
        if self.threads.len() < MAX_TRACKS && self.threads.insert(tid) {
            let mut thread = Vec::new();
            let pid = fields.pid.unwrap_or(tid);
            put_number(&mut thread, field::THREAD_PID, pid as u64);
            put_number(&mut thread, field::THREAD_TID, tid as u64);
            put_bytes(
                &mut thread,
                field::THREAD_NAME,
                fields.comm.unwrap_or_default(),
            );
            let mut track = Vec::new();
            put_number(&mut track, field::TRACK_UUID, uuid);
            put_bytes(&mut track, field::TRACK_THREAD, &thread);
            self.packet(time, (packet::TRACK_DESCRIPTOR, &track))?;
        }
        Ok(uuid)
    }
}

impl<W: Write> Consumer for Perfetto<W> {
    fn record(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let fields = Fields::of(record);
        let Some(time) = fields.time else {
            return Ok(());
        };
        let track = self.track(&fields, time)?;
        let mut event = Vec::new();
        for group in &fields.arguments {
            let path = group.part("file.path").or(group.part("resolved"));
            let path = path.unwrap_or(group.value);
            if let Some(path) = super::fields::bytes(path) {
                let text = String::from_utf8_lossy(path);
                let name = &group.argument.name;
                annotate(&mut event, name, |out| {
                    put_bytes(out, field::ANNOTATION_STRING, text.as_bytes())
                });
            }
        }
        if let Some(result) = fields.result {
            annotate(&mut event, "result", |out| {
                put_number(out, field::ANNOTATION_INT, result as u64)
            });
        }
        let kind = if fields.duration.is_some() {
            SLICE_BEGIN
        } else {
            INSTANT
        };
        put_number(&mut event, field::EVENT_TYPE, kind);
        put_number(&mut event, field::EVENT_TRACK, track);
        put_bytes(
            &mut event,
            field::EVENT_NAME,
            record.message.name.as_bytes(),
        );
        self.packet(time, (packet::TRACK_EVENT, &event))?;
        if let Some(took) = fields.duration {
            let mut end = Vec::new();
            put_number(&mut end, field::EVENT_TYPE, SLICE_END);
            put_number(&mut end, field::EVENT_TRACK, track);
            self.packet(time.saturating_add(took), (packet::TRACK_EVENT, &end))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.out.flush().map_err(|why| Error::output("", why))
    }
}

fn annotate(event: &mut Vec<u8>, name: &str, value: impl Fn(&mut Vec<u8>)) {
    let mut annotation = Vec::new();
    value(&mut annotation);
    put_bytes(&mut annotation, field::ANNOTATION_NAME, name.as_bytes());
    put_bytes(event, field::EVENT_ANNOTATIONS, &annotation);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field of wire type 0.
fn put_number(out: &mut Vec<u8>, number: u32, value: u64) {
    put_varint(out, u64::from(number) << 3);
    put_varint(out, value);
}

/// A field of wire type 2.
fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_varint(out, u64::from(number) << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}
