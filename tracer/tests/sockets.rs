//! Streams that go to `goanna-trace listen`: many at once, through connections that break, to receivers that are gone.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod postmark;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use amino_schema::trace::{BlockHeader, FILE_HEADER_LEN, FileHeader, Footer, Kind};
use goanna_tracer::assemble::{DataMode, Groups, StreamAssembly, WriterOptions};
use goanna_tracer::codec::Key;
use goanna_tracer::output::{
    Address, FileOptions, FileOutput, OnFailure, SocketOptions, SocketOutput,
};
use goanna_tracer::read::{Item, Keys, Reader};
use goanna_tracer::{Error, Event, OutputFilter, Pipeline, PipelineOptions, Sink, receive};
use nix::unistd::Pid;
use postmark::Workload;

fn pipeline(
    address: &Address,
    patient: SocketOptions,
    filters: Vec<OutputFilter>,
) -> Result<Pipeline, Error> {
    let options = PipelineOptions {
        writer: WriterOptions {
            block: Some(2000),
            ..WriterOptions::default()
        },
        filters,
        on_failure: OnFailure::Continue,
        ..PipelineOptions::default()
    };
    let assembly = Box::new(StreamAssembly::new(Groups::default(), DataMode::None));
    let driver = Box::new(SocketOutput::new(address.clone(), patient));
    Pipeline::start(options, assembly, driver)
}

fn send(address: &Address, events: &[Event], filters: Vec<OutputFilter>) -> Result<(), Error> {
    let pipeline = pipeline(address, SocketOptions::default(), filters)?;
    events.iter().try_for_each(|event| pipeline.take(event))?;
    pipeline.finish().map(|_| ())
}

/// Records in the file, which must be a whole trace.
fn records(path: &Path) -> u64 {
    let mut reader = Reader::open(path, &Keys::default()).unwrap();
    let mut count = 0;
    while let Some(item) = reader.next().unwrap() {
        match item {
            Item::Records(header, _) => count += u64::from(header.records),
            Item::Finding(finding) => assert_eq!(finding.to_string(), ""),
            _ => {}
        }
    }
    count
}

/// A receiver as a user starts it. A failing test kills it: otherwise it would keep the test runner's output open.
struct Receiver(Child);

impl Receiver {
    fn ends_well(mut self) -> bool {
        self.0.wait().unwrap().success()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a receiver, and returns it with the address on which it listens.
fn listen(dir: &Path, on: &str, more: &[&str]) -> (Receiver, Address) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_goanna-trace"));
    command
        .args(["listen", "--on", on, "-o", "trace"])
        .args(more);
    let mut child = command
        .current_dir(dir)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let address = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
    // Its later output is discarded, so that it does not fill the pipe.
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    (Receiver(child), address)
}

#[test]
fn many_streams_at_once_arrive_whole() {
    let dir = tempfile::tempdir().unwrap();
    for on in ["tcp://127.0.0.1:0", "unix:socket"] {
        let (receiver, address) = listen(dir.path(), on, &["--streams", "4"]);
        let address = match address {
            Address::Unix(path) => Address::Unix(dir.path().join(path)),
            tcp => tcp,
        };
        let senders = (1..=4).map(|seed| {
            let address = address.clone();
            std::thread::spawn(move || {
                let events = Workload::postmark(seed, 60, 40);
                send(&address, &events, vec![OutputFilter::Zstd(1)]).unwrap();
                events.len() as u64
            })
        });
        let senders = senders.collect::<Vec<_>>();
        let mut sent = senders
            .into_iter()
            .map(|it| it.join().unwrap())
            .collect::<Vec<_>>();
        assert!(receiver.ends_well());
        let names = ["trace", "trace.1", "trace.2", "trace.3"];
        let mut stored = names.map(|name| records(&dir.path().join(name)));
        sent.sort_unstable();
        stored.sort_unstable();
        assert_eq!(sent, stored);
    }
}

#[test]
fn a_connection_that_breaks_loses_and_doubles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let events = Workload::postmark(1, 60, 60);
    let fickle = UnixListener::bind(&socket).unwrap();
    let on = format!("unix:{}", socket.display());
    // This receiver never confirms a block, and leaves within one.
    let server = std::thread::spawn(move || {
        let (mut stream, _) = fickle.accept().unwrap();
        stream.read_exact(&mut [0; 32]).unwrap();
        stream.write_all(&0u64.to_le_bytes()).unwrap();
        stream.read_exact(&mut vec![0; 3333]).unwrap();
    });
    let sender = pipeline(&on.parse().unwrap(), SocketOptions::default(), vec![]).unwrap();
    let (first, second) = events.split_at(events.len() / 2);
    first.iter().for_each(|event| sender.take(event).unwrap());
    server.join().unwrap();
    std::fs::remove_file(&socket).unwrap();
    let (receiver, _) = listen(dir.path(), &on, &["--streams", "1"]);
    second.iter().for_each(|event| sender.take(event).unwrap());
    sender.finish().unwrap();
    assert!(receiver.ends_well());
    assert_eq!(records(&dir.path().join("trace")), events.len() as u64);
}

#[test]
fn a_receiver_that_is_gone_does_not_hold_the_program_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let patient = SocketOptions {
        spool: 10_000,
        patience: Duration::from_millis(20),
    };
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 32]).unwrap();
        stream.write_all(&0u64.to_le_bytes()).unwrap();
    });
    let sender = pipeline(&Address::Unix(socket.clone()), patient, vec![]).unwrap();
    server.join().unwrap();
    std::fs::remove_file(&socket).unwrap();
    let events = Workload::postmark(1, 60, 60);
    events.iter().for_each(|event| sender.take(event).unwrap());
    let error = sender.finish().unwrap_err();
    assert!(error.to_string().contains("unix:"), "{error}");
    assert!(pipeline(&Address::Unix(socket), patient, vec![]).is_err());
}

#[test]
fn a_receiver_with_a_key_takes_authenticated_blocks_only() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("key"), [4; 32]).unwrap();
    let words = ["--streams", "1", "--hmac-key", "key"];
    let (receiver, address) = listen(dir.path(), "tcp://127.0.0.1:0", &words);
    let events = Workload::postmark(1, 10, 10);
    let patient = SocketOptions {
        patience: Duration::from_millis(100),
        ..SocketOptions::default()
    };
    for filters in [vec![], vec![OutputFilter::Authenticate(Key::new([5; 32]))]] {
        let refused = pipeline(&address, patient, filters).and_then(|sender| {
            events.iter().try_for_each(|event| sender.take(event))?;
            sender.finish()
        });
        assert!(refused.is_err());
    }
    send(
        &address,
        &events,
        vec![OutputFilter::Authenticate(Key::new([4; 32]))],
    )
    .unwrap();
    assert!(receiver.ends_well());
    // The refused streams have left no files.
    assert_eq!(records(&dir.path().join("trace")), events.len() as u64);
    assert!(!dir.path().join("trace.1").exists());
}

/// The first bytes of a stream with this number: its header, and the head of a block of `len` bytes that does not come.
fn beginning(number: u8, len: u32) -> Vec<u8> {
    let serial = [number; 16];
    let header = BlockHeader {
        kind: Kind::Context,
        raw_len: len,
        codecs: [0; 8],
        serial,
        sequence: 0,
        records_before: 0,
        records: 0,
        schema_id: 0,
        first_ns: 0,
        last_ns: 0,
        lost: 0,
    };
    let mut bytes = FileHeader { serial }.encode().to_vec();
    let begin = bytes.len();
    header.encode(&vec![0; len as usize], &mut bytes);
    // One byte is missing.
    bytes.truncate(begin + BlockHeader::LEN + len as usize - 1);
    bytes
}

/// Anyone can connect. The receiver opened a file for each header that it got, kept all of them open, and ended when it could open no more
/// (100 here); and it kept 16 MiB for each unauthenticated peer that announced a block of that size.
#[test]
fn strangers_take_neither_files_nor_memory() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("key"), [4; 32]).unwrap();
    let words = ["--streams", "1", "--hmac-key", "key"];
    let (receiver, address) = listen(dir.path(), "tcp://127.0.0.1:0", &words);
    let pid = Pid::from_raw(receiver.0.id().cast_signed());
    setrlimit_of(pid, 100);
    let Address::Tcp(host) = &address else {
        return;
    };
    for number in 0..150 {
        send_bytes(&address, &beginning(number, 1000)[..FILE_HEADER_LEN]);
    }
    let strangers = (150..162).map(|number| {
        let host = host.clone();
        std::thread::spawn(move || {
            let mut connection = TcpStream::connect(host).unwrap();
            let patience = Duration::from_millis(500);
            connection.set_write_timeout(Some(patience)).unwrap();
            // The bytes that the receiver does not read stay in the buffers of the socket.
            let _ = connection.write_all(&beginning(number, 15 << 20));
            connection
        })
    });
    let strangers: Vec<_> = strangers.collect();
    let strangers: Vec<TcpStream> = strangers.into_iter().map(|it| it.join().unwrap()).collect();
    let events = Workload::postmark(1, 10, 10);
    let filters = vec![OutputFilter::Authenticate(Key::new([4; 32]))];
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    send(&address, &events, filters).unwrap();
    assert!(receiver.ends_well());
    drop(strangers);
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.unwrap().trim().trim_end_matches(" kB");
    assert!(peak.parse::<u64>().unwrap() < 80 << 10, "{peak} kB");
    assert_eq!(records(&dir.path().join("trace")), events.len() as u64);
    let files = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(files, 2, "the key and the trace");
}

/// Limits the open files of a process.
fn setrlimit_of(pid: Pid, files: u64) {
    let pid = rustix::process::Pid::from_raw(pid.as_raw());
    let limit = rustix::process::Rlimit {
        current: Some(files),
        maximum: Some(files),
    };
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).unwrap();
}

/// Connections that sent nothing occupied their places for ever.
#[test]
fn a_connection_without_a_block_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let address = Address::Unix(socket.clone());
    let receiver =
        receive::Receiver::new(&dir.path().join("trace"), Keys::default(), Box::new(|_| {}));
    let receiver = receiver.with_first_block_within(Duration::from_millis(50));
    let (on, (bound, is_bound)) = (address.clone(), std::sync::mpsc::channel());
    let listens = std::thread::spawn(move || {
        let receiver = Arc::new(receiver);
        receiver.listen(&on, Some(1), |_| bound.send(()).unwrap())
    });
    is_bound.recv().unwrap();
    for bytes in [&[][..], &beginning(1, 1000)] {
        let mut silent = UnixStream::connect(&socket).unwrap();
        silent.write_all(bytes).unwrap();
        let timeout = Some(Duration::from_secs(60));
        silent.set_read_timeout(timeout).unwrap();
        silent.read_to_end(&mut Vec::new()).unwrap();
    }
    // A sender that pauses for longer connects again.
    let events = Workload::postmark(1, 10, 10);
    let sender = pipeline(&address, SocketOptions::default(), vec![]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    events.iter().for_each(|event| sender.take(event).unwrap());
    sender.finish().unwrap();
    listens.join().unwrap().unwrap();
    assert_eq!(records(&dir.path().join("trace")), events.len() as u64);
}

#[test]
fn a_command_is_recorded_across_a_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (receiver, address) = listen(dir.path(), "tcp://127.0.0.1:0", &["--streams", "1"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_goanna-trace"));
    command.args([
        "--to",
        &address.to_string(),
        "--compress",
        "zstd",
        "--",
        "ls",
        "/",
    ]);
    let status = command.stdout(Stdio::null()).status().unwrap();
    assert!(status.success());
    assert!(receiver.ends_well());
    assert!(records(&dir.path().join("trace")) > 20);
}

#[test]
fn addresses_that_are_none_are_refused() {
    for wrong in [
        "127.0.0.1:80",
        "tcp://host",
        "tcp://host:port",
        "unix:",
        "udp://a:1",
    ] {
        let error = wrong.parse::<Address>().unwrap_err();
        assert!(error.contains("tcp://HOST:PORT or unix:PATH"), "{error}");
    }
}

/// The bytes that a sender of a small trace sends.
fn stream(dir: &Path) -> Vec<u8> {
    let path = dir.join("stream");
    let options = FileOptions::default();
    let assembly = Box::new(StreamAssembly::new(Groups::default(), DataMode::None));
    let driver = Box::new(FileOutput::new(&path, options));
    let pipeline = Pipeline::start(PipelineOptions::default(), assembly, driver).unwrap();
    let events = Workload::postmark(1, 5, 5);
    events
        .iter()
        .for_each(|event| pipeline.take(event).unwrap());
    pipeline.finish().unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    let index = bytes.windows(8).rposition(|it| it == Footer::MAGIC);
    bytes.truncate(index.unwrap());
    bytes
}

/// Sends bytes and closes that direction; waits until the receiver has closed the other one.
fn send_bytes(address: &Address, bytes: &[u8]) {
    let Address::Tcp(host) = address else {
        return;
    };
    let mut connection = TcpStream::connect(host).unwrap();
    // The receiver may refuse the rest.
    let _ = connection.write_all(bytes);
    let _ = connection.shutdown(Shutdown::Write);
    let _ = connection.read_to_end(&mut Vec::new());
}

/// The sender has missed the confirmation of its last block, and connects again. The receiver wrote a second index then, and counted the
/// stream twice.
#[test]
fn a_stream_that_is_complete_stays_so_when_its_sender_connects_again() {
    let dir = tempfile::tempdir().unwrap();
    let (receiver, address) = listen(dir.path(), "tcp://127.0.0.1:0", &["--streams", "2"]);
    let bytes = stream(dir.path());
    send_bytes(&address, &bytes);
    let complete = std::fs::read(dir.path().join("trace")).unwrap();
    assert!(complete.ends_with(&Footer::END));
    for again in [&bytes[..FILE_HEADER_LEN], &bytes[..]] {
        send_bytes(&address, again);
        let stored = std::fs::read(dir.path().join("trace")).unwrap();
        assert!(
            stored == complete,
            "{} bytes more",
            stored.len() - complete.len()
        );
    }
    // The second stream is awaited still.
    send(&address, &Workload::postmark(2, 5, 5), vec![]).unwrap();
    assert!(receiver.ends_well());
    assert!(records(&dir.path().join("trace.1")) > 0);
}

#[test]
fn a_receiver_survives_whatever_senders_send() {
    let dir = tempfile::tempdir().unwrap();
    let (receiver, address) = listen(dir.path(), "tcp://127.0.0.1:0", &["--streams", "1"]);
    let bytes = stream(dir.path());
    let mut random = fastrand::Rng::with_seed(12);
    for _ in 0..60 {
        let mut damaged = bytes.clone();
        // Another serial number, so that no damaged stream is taken for the one below.
        damaged[12..28].fill_with(|| random.u8(..));
        let sum = crc32c::crc32c(&damaged[..28]);
        damaged[28..32].copy_from_slice(&sum.to_le_bytes());
        for _ in 0..random.usize(..3) {
            let at = random.usize(..damaged.len());
            damaged[at] = random.u8(..);
        }
        damaged.truncate(random.usize(1..=damaged.len()));
        send_bytes(&address, &damaged);
    }
    send(&address, &Workload::postmark(2, 5, 5), vec![]).unwrap();
    assert!(receiver.ends_well());
}
