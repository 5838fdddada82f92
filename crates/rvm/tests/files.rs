//! Memory and files end together.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use std::sync::{Arc, Mutex};

use amino_rvm::{Errno, Error, Files, NoFiles, RegionId, Rvm};

/// Records what it is asked, and answers the next call with `refuse`.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Record>>);

#[derive(Default)]
struct Record {
    calls: Vec<&'static str>,
    refuse: Option<Errno>,
}

impl Recorder {
    fn call(&self, name: &'static str) -> Result<(), Errno> {
        let mut record = self.0.lock().unwrap();
        record.calls.push(name);
        record.refuse.take().map_or(Ok(()), Err)
    }

    fn refuse(&self, errno: Errno) {
        self.0.lock().unwrap().refuse = Some(errno);
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap().calls)
    }
}

impl Files for Recorder {
    fn begin(&mut self) -> Result<(), Errno> {
        self.call("begin")
    }

    fn commit(&mut self) -> Result<(), Errno> {
        self.call("commit")
    }

    fn abort(&mut self) -> Result<(), Errno> {
        self.call("abort")
    }
}

fn fixture() -> (Recorder, Rvm, RegionId) {
    let files = Recorder::default();
    let mut rvm = Rvm::new(files.clone()).unwrap();
    let region = rvm.map(1).unwrap();
    (files, rvm, region)
}

fn write(rvm: &mut Rvm, region: RegionId, value: u8) {
    rvm.bytes_mut(region).unwrap()[0] = value;
}

fn read(rvm: &Rvm, region: RegionId) -> u8 {
    rvm.bytes(region).unwrap()[0]
}

#[test]
fn each_step_is_one_of_files() {
    let (files, mut rvm, _) = fixture();
    rvm.begin().unwrap();
    rvm.begin().unwrap();
    rvm.commit().unwrap();
    rvm.abort().unwrap();
    assert_eq!(files.take(), ["begin", "begin", "commit", "abort"]);
}

#[test]
fn a_failed_commit_of_files_aborts_memory() {
    let (files, mut rvm, region) = fixture();
    rvm.begin().unwrap();
    write(&mut rvm, region, 1);
    files.refuse(Errno::ENOSPC);
    assert_eq!(rvm.commit(), Err(Error::Files(Errno::ENOSPC)));
    assert_eq!((rvm.depth(), read(&rvm, region)), (0, 0));
}

#[test]
fn files_that_cannot_end_now_leave_both_open() {
    let (files, mut rvm, region) = fixture();
    rvm.begin().unwrap();
    write(&mut rvm, region, 1);
    files.refuse(Errno::EBUSY);
    assert_eq!(rvm.commit(), Err(Error::Files(Errno::EBUSY)));
    assert_eq!((rvm.depth(), read(&rvm, region)), (1, 1));
    rvm.commit().unwrap();
    assert_eq!((rvm.depth(), read(&rvm, region)), (0, 1));
}

#[test]
fn files_that_do_not_begin_leave_memory_without_a_transaction() {
    let (files, mut rvm, _) = fixture();
    files.refuse(Errno::EMLINK);
    assert_eq!(rvm.begin(), Err(Error::Files(Errno::EMLINK)));
    assert_eq!(rvm.depth(), 0);
}

#[test]
fn memory_aborts_even_when_files_do_not() {
    let (files, mut rvm, region) = fixture();
    for (errno, answer) in [
        (Errno::EIO, Err(Error::Files(Errno::EIO))),
        (Errno::ENODATA, Ok(())),
    ] {
        rvm.begin().unwrap();
        write(&mut rvm, region, 1);
        files.refuse(errno);
        assert_eq!(rvm.abort(), answer);
        assert_eq!((rvm.depth(), read(&rvm, region)), (0, 0));
    }
}

#[test]
fn dropping_aborts_what_is_open() {
    let (files, mut rvm, _) = fixture();
    rvm.begin().unwrap();
    rvm.begin().unwrap();
    drop(rvm);
    assert_eq!(files.take(), ["begin", "begin", "abort", "abort"]);
}

#[test]
fn memory_alone_asks_nobody() {
    let mut rvm = Rvm::new(NoFiles).unwrap();
    assert_eq!(rvm.begin(), Ok(1));
    assert_eq!(rvm.commit(), Ok(()));
}
