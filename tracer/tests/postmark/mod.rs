//! Events that look like those of Postmark: many small files, made, read, extended and removed.

#![allow(dead_code, clippy::unwrap_used)] // each test uses a part; helpers of tests are tests too

use std::sync::Arc;

use goanna_syscalls::{DecodedCall, Outcome, Subject, Treatment, Value, by_name};
use goanna_tracer::Event;
use goanna_tracer::event::{Call, File};

/// Makes events.
pub struct Workload {
    random: fastrand::Rng,
    now_ns: u64,
    threads: Vec<Subject>,
    files: Vec<(u64, u64)>,
    next_file: u64,
    /// Bytes of content that are kept of each read and write.
    pub data: usize,
    pub events: Vec<Event>,
}

impl Workload {
    pub fn new(seed: u64, threads: i32) -> Self {
        let threads = (0..threads).map(|number| Subject {
            pid: 4200,
            tid: 4200 + number,
            uid: 1000,
            gid: 1000,
            sid: 4100,
            comm: Arc::from("postmark"),
        });
        Self {
            random: fastrand::Rng::with_seed(seed),
            now_ns: 81_234_567_890_123,
            threads: threads.collect(),
            files: Vec::new(),
            next_file: 0,
            data: 0,
            events: Vec::new(),
        }
    }

    /// The events of a run with this many files and transactions.
    pub fn postmark(seed: u64, files: usize, transactions: usize) -> Vec<Event> {
        let mut workload = Self::new(seed, 1);
        workload.run(files, transactions);
        workload.events
    }

    pub fn run(&mut self, files: usize, transactions: usize) {
        for _ in 0..files {
            self.create();
        }
        for _ in 0..transactions {
            match self.random.u8(..4) {
                0 => self.create(),
                1 => self.delete(),
                2 => self.read(),
                _ => self.append(),
            }
        }
    }

    fn path(file: u64) -> Vec<u8> {
        format!("/tmp/postmark/s{}/{file}", file % 200).into_bytes()
    }

    fn file(file: u64, size: u64) -> File {
        File {
            device: 0x801,
            inode: 1_310_000 + file,
            mode: 0o100_644,
            links: 1,
            size,
            path: Some(Self::path(file).into()),
        }
    }

    pub fn call(&mut self, name: &str, args: Vec<Value>, result: i64, files: Vec<(u8, File)>) {
        let signature = by_name(name).unwrap();
        let took = 900 + self.random.u64(..3000);
        self.now_ns += 1500 + self.random.u64(..6000);
        let subject = self.random.choice(&self.threads).unwrap().clone();
        let outcome = Outcome {
            result,
            left_ns: self.now_ns + took,
            treatment: Treatment::Kernel,
        };
        let entered_ns = self.now_ns;
        self.now_ns += took;
        self.events.push(Event::Call(Box::new(Call {
            subject,
            call: DecodedCall {
                signature: Some(signature),
                nr: signature.nr,
                raw: [0; 6],
                args,
            },
            entered_ns,
            outcome: Some(outcome),
            files,
        })));
    }

    fn open(&mut self, file: u64, size: u64, flags: u64) {
        let path: Box<[u8]> = Self::path(file).into();
        let creates = flags & 0o100 != 0;
        let args = vec![
            Value::Descriptor {
                number: -100,
                file: Some(b"/tmp/postmark".as_slice().into()),
            },
            Value::Path {
                given: path.clone(),
                resolved: Some(path),
            },
            Value::Unsigned(flags),
            if creates {
                Value::Unsigned(0o644)
            } else {
                Value::Absent
            },
        ];
        self.call("openat", args, 5, vec![(6, Self::file(file, size))]);
    }

    fn descriptor(file: u64) -> Value {
        Value::Descriptor {
            number: 5,
            file: Some(Self::path(file).into()),
        }
    }

    fn content(&mut self, len: u64) -> Value {
        let kept = (len as usize).min(self.data);
        let seed = self.random.u8(..16);
        let data = (0..kept).map(|at| (at as u8).wrapping_mul(seed)).collect();
        Value::Bytes { len, data }
    }

    fn transfer(&mut self, name: &str, file: u64, size: u64, len: u64, done: u64) {
        let content = self.content(done);
        let args = vec![Self::descriptor(file), content, Value::Unsigned(len)];
        self.call(name, args, done as i64, vec![(0, Self::file(file, size))]);
    }

    fn close(&mut self, file: u64, size: u64) {
        let files = vec![(0, Self::file(file, size))];
        self.call("close", vec![Self::descriptor(file)], 0, files);
    }

    fn write_all(&mut self, file: u64, mut size: u64, bytes: u64) -> u64 {
        let mut left = bytes;
        while left > 0 {
            let len = left.min(512);
            size += len;
            self.transfer("write", file, size, len, len);
            left -= len;
        }
        size
    }

    fn create(&mut self) {
        let file = self.next_file;
        self.next_file += 1;
        self.open(file, 0, 0o102);
        let bytes = self.random.u64(500..9770);
        let size = self.write_all(file, 0, bytes);
        self.close(file, size);
        self.files.push((file, size));
    }

    fn delete(&mut self) {
        if self.files.is_empty() {
            return;
        }
        let at = self.random.usize(..self.files.len());
        let (file, _) = self.files.swap_remove(at);
        let path: Box<[u8]> = Self::path(file).into();
        let args = vec![Value::Path {
            given: path.clone(),
            resolved: Some(path),
        }];
        self.call("unlink", args, 0, Vec::new());
    }

    fn read(&mut self) {
        let Some(&(file, size)) = self.random.choice(&self.files) else {
            return;
        };
        self.open(file, size, 0);
        let mut left = size;
        loop {
            let done = left.min(512);
            self.transfer("read", file, size, 512, done);
            left -= done;
            if done < 512 {
                break;
            }
        }
        self.close(file, size);
    }

    fn append(&mut self) {
        if self.files.is_empty() {
            return;
        }
        let at = self.random.usize(..self.files.len());
        let (file, size) = self.files[at];
        self.open(file, size, 0o2001);
        let bytes = self.random.u64(500..5000);
        let size = self.write_all(file, size, bytes);
        self.files[at].1 = size;
        self.close(file, size);
    }
}
