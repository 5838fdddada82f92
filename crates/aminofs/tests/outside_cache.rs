//! Caches in other processes that serve reads from their own copies, kept fresh by reports of changes alone.
//!
//! This process has the store. Each of several other processes writes to files of its own, in different ways, and reads all
//! files from its cache. Values only grow. After a write has returned its value is put where all processes see it; a reader looks
//! there first, and must not get an older value afterwards.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use amino_fs::{AminoFs, EngineKind};
use common::user::User;
use common::*;
use goanna_vfs::{Change, FileId, FileSystem, Identity, Node, Subscriber, WritePosition};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const PROCESSES: usize = 3;
const FILES: usize = 6;
/// A value that no transaction commits.
const ABORTED: u64 = u64::MAX;
/// Where a process that is a cache finds the directory it shares with this one, and its number.
const SHARED_DIR: &str = "AMINO_TEST_CACHE_DIR";
const NUMBER: &str = "AMINO_TEST_CACHE_NUMBER";

#[derive(Serialize, Deserialize)]
enum Request {
    /// The names of the root directory.
    List,
    /// The content of a file.
    Read(String),
    /// Gives a file another value.
    Write(String, u64, How),
}

#[derive(Serialize, Deserialize, Clone, Copy)]
enum How {
    /// In one write.
    InPlace,
    /// By a new file that takes the name.
    Replace,
    /// In a transaction, in several steps.
    Commit,
    /// The same, which is then aborted.
    Abort,
}

#[derive(Serialize, Deserialize, Clone)]
enum Content {
    Names(Vec<(String, FileId)>),
    Value(u64),
}

/// What a cache keeps of a file.
#[derive(Serialize, Deserialize, Clone)]
struct Copy {
    file: FileId,
    version: u64,
    content: Content,
}

fn send(stream: &mut UnixStream, message: &impl Serialize) {
    let mut line = serde_json::to_vec(message).unwrap();
    line.push(b'\n');
    stream.write_all(&line).unwrap();
}

/// `None` at the end of the connection.
fn receive<T: DeserializeOwned>(stream: &mut BufReader<UnixStream>) -> Option<T> {
    let mut line = String::new();
    stream.read_line(&mut line).ok().filter(|&len| len > 0)?;
    Some(serde_json::from_str(&line).unwrap())
}

// The process that has the store.

/// Reports to one cache, and waits until the cache has dropped its copies.
struct Reporter(Mutex<(UnixStream, BufReader<UnixStream>)>);

impl Subscriber for Reporter {
    fn changed(&self, changes: &[Change]) {
        let (stream, answers) = &mut *self.0.lock().unwrap();
        let mut line = serde_json::to_vec(changes).unwrap();
        line.push(b'\n');
        // A process that has ended needs no more reports.
        if stream.write_all(&line).is_ok() {
            let _ = receive::<()>(answers);
        }
    }

    fn lost(&self) {
        unreachable!("the store is in this process");
    }
}

/// A file's content: its value, so often that it takes several pages or a part of one.
fn content(value: u64) -> Vec<u8> {
    let words = [1, 700, 3000][(value % 3) as usize];
    value.to_le_bytes().repeat(words)
}

/// What `node` holds, with the version that it belongs to.
fn copy_of(fs: &AminoFs, node: &Node) -> goanna_vfs::Result<Copy> {
    let user = root();
    loop {
        let version = fs.getattr(&user, node)?.version;
        let content = if node.is_dir() {
            let mut names = Vec::new();
            fs.readdir(&user, node, 0, &mut |entry| {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                true
            })?;
            let id = |name: String| {
                let node = fs.lookup(&user, node, name.as_bytes()).ok()?;
                Some((name, fs.file_id(&user, &node).ok()?))
            };
            Content::Names(names.into_iter().filter_map(id).collect())
        } else {
            let raw = read_direct(fs, node)?;
            let mut words = raw.chunks(8);
            let first = words.next().unwrap_or_default();
            let is_whole = words.all(|word| word == first);
            let is_same = fs.getattr(&user, node)?.version == version;
            assert!(is_whole || !is_same, "half a write has a version");
            Content::Value(first.try_into().map_or(0, u64::from_le_bytes))
        };
        if fs.getattr(&user, node)?.version == version {
            let file = fs.file_id(&user, node)?;
            return Ok(Copy {
                file,
                version,
                content,
            });
        }
    }
}

fn write(
    fs: &AminoFs,
    user: &mut User<'_>,
    name: &str,
    value: u64,
    how: How,
) -> goanna_vfs::Result<()> {
    let raw = content(value);
    match how {
        How::InPlace => {
            // One write, of the size that the file has.
            let file = user.open(name, libc::O_RDWR)?;
            let size = fs.getattr(&user.caller, &file.node)?.size as usize;
            let raw = value.to_le_bytes().repeat(size / 8);
            let written = user.write(&file, WritePosition::At(0), &raw);
            file.close(fs);
            written.map(drop)
        }
        How::Replace => {
            let new = format!("{name}.new");
            user.put(&new, &raw)?;
            let (top, user) = (fs.root(), &user.caller);
            fs.rename(user, &top, new.as_bytes(), &top, name.as_bytes(), 0)
        }
        How::Commit | How::Abort => {
            user.begin();
            let done = user
                .open(name, libc::O_RDWR | libc::O_TRUNC)
                .and_then(|file| {
                    for part in raw.chunks(3000) {
                        user.write(&file, WritePosition::Cursor, part)?;
                    }
                    file.close(fs);
                    Ok(())
                });
            if done.is_err() || matches!(how, How::Abort) {
                user.abort(None);
                return done;
            }
            user.commit(None)
        }
    }
}

fn serve(fs: &AminoFs, stream: UnixStream, tid: i32) {
    let mut requests = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    let mut user = User::new(fs, tid);
    while let Some(request) = receive::<Request>(&mut requests) {
        match request {
            Request::List => send(&mut stream, &copy_of(fs, &fs.root()).ok()),
            Request::Read(name) => {
                let copy = walk(fs, &name).and_then(|node| copy_of(fs, &node));
                send(&mut stream, &copy.ok());
            }
            Request::Write(name, value, how) => {
                // A lock that another process's transaction holds is free soon.
                while let Err(error) = write(fs, &mut user, &name, value, how) {
                    assert!(!matches!(how, How::InPlace), "{error:?}");
                    std::thread::yield_now();
                }
                send(&mut stream, &());
            }
        }
    }
}

fn shared_file(dir: &Path) -> PathBuf {
    dir.join("returned")
}

fn caches_are_never_stale(engine: EngineKind) {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let fs = open_with(&store, &options(engine));
    for number in 0..FILES {
        write_file(&fs, &format!("f{number}"), &content(0)).unwrap();
    }
    std::fs::write(shared_file(dir.path()), [0; 8 * FILES]).unwrap();
    let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
    let this = std::env::current_exe().unwrap();
    let mut processes: Vec<_> = (0..PROCESSES)
        .map(|number| {
            Command::new(&this)
                .args(["--exact", "be_a_cache", "--ignored", "--nocapture"])
                .env(SHARED_DIR, dir.path())
                .env(NUMBER, number.to_string())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut reporters = Vec::new();
    std::thread::scope(|scope| {
        for number in 0..PROCESSES {
            let (reports, _) = listener.accept().unwrap();
            let answers = BufReader::new(reports.try_clone().unwrap());
            let reporter = Arc::new(Reporter(Mutex::new((reports, answers))));
            let weak: std::sync::Weak<Reporter> = Arc::downgrade(&reporter);
            fs.subscribe(weak).unwrap();
            reporters.push(reporter);
            let (requests, _) = listener.accept().unwrap();
            let fs = &fs;
            scope.spawn(move || serve(fs, requests, 100 + number as i32));
        }
        for process in &mut processes {
            assert!(process.wait().unwrap().success());
        }
    });
    drop(reporters);
    close_and_check(fs, &store);
}

#[test]
fn a_cache_in_another_process_is_never_stale_after_a_write_has_returned() {
    caches_are_never_stale(EngineKind::Fjall);
}

// A process that is a cache.

#[derive(Default)]
struct Cache {
    copies: HashMap<FileId, Copy>,
    /// The versions reported; a copy of an older one comes too late.
    reported: HashMap<FileId, u64>,
    dropped: usize,
    hits: usize,
}

impl Cache {
    fn drop_stale(&mut self, changes: &[Change]) {
        for change in changes {
            let last = self.reported.entry(change.file).or_default();
            *last = change.version.max(*last);
            if self
                .copies
                .get(&change.file)
                .is_some_and(|copy| copy.version < *last)
            {
                self.copies.remove(&change.file);
                self.dropped += 1;
            }
        }
    }

    fn put(&mut self, copy: &Copy) {
        if self
            .reported
            .get(&copy.file)
            .is_none_or(|&last| last <= copy.version)
        {
            self.copies.insert(copy.file, copy.clone());
        }
    }
}

struct Client {
    cache: Arc<Mutex<Cache>>,
    /// The root directory's id, once it is known.
    top: Option<FileId>,
    stream: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Client {
    fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> T {
        send(&mut self.stream, request);
        receive(&mut self.answers).unwrap()
    }

    fn copy(&mut self, file: Option<FileId>, request: &Request) -> Option<Copy> {
        if let Some(file) = file {
            let mut cache = self.cache.lock().unwrap();
            if let Some(copy) = cache.copies.get(&file).cloned() {
                cache.hits += 1;
                return Some(copy);
            }
        }
        let copy: Option<Copy> = self.ask(request);
        let copy = copy?;
        self.cache.lock().unwrap().put(&copy);
        Some(copy)
    }

    fn value(&mut self, name: &str) -> u64 {
        let top = self.copy(self.top, &Request::List).unwrap();
        self.top = Some(top.file);
        let Content::Names(names) = top.content else {
            unreachable!("the root is a directory");
        };
        let file = names.into_iter().find(|(found, _)| found == name);
        let copy = self.copy(file.map(|(_, id)| id), &Request::Read(name.to_owned()));
        match copy.unwrap().content {
            Content::Value(value) => value,
            Content::Names(_) => unreachable!("{name} is a file"),
        }
    }
}

#[test]
#[ignore = "run as a process of its own by a_cache_in_another_process_is_never_stale_after_a_write_has_returned"]
fn be_a_cache() {
    let dir = PathBuf::from(std::env::var_os(SHARED_DIR).unwrap());
    let number: usize = std::env::var(NUMBER).unwrap().parse().unwrap();
    let connect = || UnixStream::connect(dir.join("socket")).unwrap();
    // One process at a time, so that its two connections come one after the other.
    let turn = File::create(dir.join("turn")).unwrap();
    turn.lock().unwrap();
    let (mut reports, stream) = (connect(), connect());
    turn.unlock().unwrap();
    let cache = Arc::<Mutex<Cache>>::default();
    let stale = Arc::clone(&cache);
    std::thread::spawn(move || {
        let mut incoming = BufReader::new(reports.try_clone().unwrap());
        while let Some(changes) = receive::<Vec<Change>>(&mut incoming) {
            stale.lock().unwrap().drop_stale(&changes);
            send(&mut reports, &());
        }
    });
    let answers = BufReader::new(stream.try_clone().unwrap());
    let mut client = Client {
        cache: Arc::clone(&cache),
        top: None,
        stream,
        answers,
    };
    let returned = File::options()
        .read(true)
        .write(true)
        .open(shared_file(&dir))
        .unwrap();
    let mut rng = fastrand::Rng::with_seed(number as u64);
    let mut last = [0_u64; FILES];
    for step in 0..4000 {
        if rng.u8(..10) == 0 {
            let file = number + PROCESSES * rng.usize(..FILES / PROCESSES);
            let how = [How::InPlace, How::Replace, How::Commit, How::Abort][rng.usize(..4)];
            let is_aborted = matches!(how, How::Abort);
            let value = if is_aborted { ABORTED } else { last[file] + 1 };
            let () = client.ask(&Request::Write(format!("f{file}"), value, how));
            if !is_aborted {
                last[file] = value;
                returned
                    .write_all_at(&value.to_le_bytes(), 8 * file as u64)
                    .unwrap();
            }
        } else {
            let file = rng.usize(..FILES);
            let mut before = [0; 8];
            returned
                .read_exact_at(&mut before, 8 * file as u64)
                .unwrap();
            let value = client.value(&format!("f{file}"));
            let before = u64::from_le_bytes(before);
            assert!(
                value >= before && value != ABORTED,
                "process {number}, step {step}, f{file}: {value} after {before}"
            );
        }
    }
    let cache = cache.lock().unwrap();
    assert!(
        cache.hits > 500 && cache.dropped > 50,
        "{} {}",
        cache.hits,
        cache.dropped
    );
}
