//! Runs inside of a run: the command asks the monitor for its mounts, which the monitor makes for the command's processes alone
//! (docs/decisions/0137).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use goanna_monitor::Nesting;
use goanna_sys::txncall::{self, Op, RUN_TEXT_MAX};
use goanna_vfs::{Caller, Errno, Mount, MountFlags, Mounts};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::mounts::{self, Builder, MountSpec, MountTypes, MountedStores, OpenStore, Source};
use crate::store::{self, Create};
use crate::{Engine, Error, Report};

/// What a nested run asks for.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// The mounts, with absolute paths.
    pub specs: Vec<MountSpec>,
    /// The engine of the first store, if the run makes the store.
    pub engine: Option<Engine>,
    /// Whether the first store keeps its log from now on; `None`: as before.
    pub keep_log: Option<bool>,
    /// Make missing parent directories of new stores, too.
    pub create: bool,
}

/// The answer of the monitor.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Answer {
    notes: Vec<String>,
    failure: Option<Report>,
}

/// Why a nested run could not be begun or ended.
#[derive(Debug)]
pub enum Refusal {
    /// The monitor has tried, and reports this.
    Failed(Report),
    /// The monitor refuses nested runs (EPERM, EOPNOTSUPP), or is of another version (EINVAL).
    Refused(Errno),
}

/// Begins a nested run: this thread, and what it starts from now on, see its mounts. `note` receives notes for the user.
pub fn enter(request: &Request, note: impl FnMut(&str)) -> Result<(), Refusal> {
    let text = postcard::to_allocvec(request).map_err(|_| Refusal::Refused(Errno::EINVAL))?;
    ask(Op::EnterRun, text, note)
}

/// Leaves the nested run that this thread has begun; returns when the changes in its mounts are on the disk.
pub fn leave(note: impl FnMut(&str)) -> Result<(), Refusal> {
    ask(Op::LeaveRun, Vec::new(), note)
}

fn ask(op: Op, mut text: Vec<u8>, note: impl FnMut(&str)) -> Result<(), Refusal> {
    if text.len() > RUN_TEXT_MAX {
        return Err(Refusal::Refused(Errno::E2BIG));
    }
    text.resize(RUN_TEXT_MAX, 0);
    let len = txncall::call(op, 0, &mut text).map_err(Refusal::Refused)?;
    let answer = usize::try_from(len).ok().and_then(|len| text.get(..len));
    let answer = answer.and_then(|answer| postcard::from_bytes::<Answer>(answer).ok());
    let Answer { notes, failure } = answer.ok_or(Refusal::Refused(Errno::EBADMSG))?;
    notes.iter().map(String::as_str).for_each(note);
    failure.map_or(Ok(()), |report| Err(Refusal::Failed(report)))
}

/// Converts an error to the report for the user.
pub type Describe = Box<dyn Fn(Error) -> Report + Send + Sync>;

/// Makes the mounts of the runs inside of a run.
pub struct NestedMounts {
    types: MountTypes,
    describe: Describe,
    /// The stores of the run itself.
    outer: Vec<OpenStore>,
    /// Those of nested runs, each with the number of its mount.
    stores: Mutex<Vec<(u64, OpenStore)>>,
}

impl NestedMounts {
    /// None yet, for a run with the stores `outer`.
    pub fn new(types: MountTypes, describe: Describe, outer: Vec<OpenStore>) -> Self {
        Self {
            types,
            describe,
            outer,
            stores: Mutex::default(),
        }
    }

    /// Closes the stores that are open yet. The run has ended.
    pub fn close(&self) -> Result<(), Error> {
        let stores = std::mem::take(&mut *self.stores.lock());
        let closed = stores.iter().map(|(_, (dir, fs))| store::close(dir, fs));
        // Every store is closed, even if one fails.
        closed.fold(Ok(()), Result::and)
    }

    fn mounts(
        &self,
        request: Request,
        outer: &Mounts,
        reused: &[Arc<Mount>],
        caller: &Caller,
        note: &dyn Fn(&str),
    ) -> Result<Mounts, Error> {
        let mut stores = self.stores.lock();
        let mut built = MountedStores {
            mounts: outer.branch(),
            stores: self.outer.clone(),
        };
        let mut missing = Vec::new();
        for spec in request.specs {
            match open_mount(&spec, outer, caller, (&self.outer, &stores), reused)? {
                Some(mount) => built.mounts.share(mount),
                None => missing.push(spec),
            }
        }
        let builder = Builder {
            types: self.types,
            caller,
            owned: None,
            engine: request.engine,
            keep_log: request.keep_log,
            create: Create::new(request.create),
            note,
        };
        mounts::build_on(&mut built, &missing, builder)?;
        for (dir, fs) in built.stores.into_iter().skip(self.outer.len()) {
            let is_its =
                |mount: &&Arc<Mount>| ptr::addr_eq(Arc::as_ptr(&mount.fs), Arc::as_ptr(&fs));
            if let Some(mount) = built.mounts.iter().find(is_its) {
                stores.push((mount.number, (dir, fs)));
            }
        }
        Ok(built.mounts)
    }

    /// Brings the changes in `mount` to the disk. Closes its store if it `is_used` no more.
    fn end_mount(&self, mount: &Mount, is_used: bool) -> Result<(), Error> {
        let mut stores = self.stores.lock();
        let at = stores
            .iter()
            .position(|(number, _)| *number == mount.number);
        match at {
            Some(at) if !is_used => {
                let (_, (dir, fs)) = stores.remove(at);
                store::close(&dir, &fs)
            }
            Some(at) => stores
                .get(at)
                .map_or(Ok(()), |(_, (dir, fs))| store::flush(dir, &**fs)),
            // Another run has closed it.
            None if mount.fs.transactions().is_some() => Ok(()),
            None => {
                let dir = Path::new(OsStr::from_bytes(&mount.target));
                store::flush(dir, &*mount.fs)
            }
        }
    }
}

/// The mount of the store that `spec` names, if a nested run has it mounted at the same place. Fails if it is mounted elsewhere.
fn open_mount(
    spec: &MountSpec,
    outer: &Mounts,
    caller: &Caller,
    (of_run, stores): (&[OpenStore], &[(u64, OpenStore)]),
    reused: &[Arc<Mount>],
) -> Result<Option<Arc<Mount>>, Error> {
    let Source::Store { dir, .. } = &spec.source else {
        return Ok(None);
    };
    let dir = mounts::real(&mounts::store_on_host(
        outer,
        caller,
        (dir, spec.read_only),
    )?);
    if of_run.iter().any(|(open, _)| mounts::real(open) == dir) {
        return Err(Error::MountedElsewhere(dir));
    }
    let mut same = stores
        .iter()
        .filter(|(_, (open, _))| mounts::real(open) == dir);
    let Some((number, _)) = same.next() else {
        return Ok(None);
    };
    let target = mounts::real(Path::new(OsStr::from_bytes(&spec.target)));
    let is_it = |mount: &&Arc<Mount>| {
        mount.number == *number
            && mount.target == target.as_os_str().as_bytes()
            && mount.flags.contains(MountFlags::READ_ONLY) == spec.read_only
    };
    match reused.iter().find(is_it) {
        Some(mount) => Ok(Some(Arc::clone(mount))),
        None => Err(Error::MountedElsewhere(dir)),
    }
}

impl Nesting for NestedMounts {
    fn begin(
        &self,
        request: &[u8],
        outer: &Mounts,
        reused: &[Arc<Mount>],
        caller: &Caller,
    ) -> (Vec<u8>, Option<Mounts>) {
        let notes = Mutex::new(Vec::new());
        let note = |text: &str| notes.lock().push(text.to_owned());
        // Behind the request is space for the answer.
        let (mounts, failure) = match postcard::take_from_bytes::<Request>(request) {
            Ok((request, _)) => match self.mounts(request, outer, reused, caller, &note) {
                Ok(mounts) => (Some(mounts), None),
                Err(error) => (None, Some((self.describe)(error))),
            },
            Err(_) => (None, Some((self.describe)(Error::OtherVersion))),
        };
        let notes = notes.into_inner();
        (encoded(&Answer { notes, failure }), mounts)
    }

    fn end(&self, mounts: &[(Arc<Mount>, bool)]) -> Vec<u8> {
        let ended = mounts
            .iter()
            .map(|(mount, is_used)| self.end_mount(mount, *is_used));
        let failure = ended.fold(Ok(()), Result::and).err().map(&self.describe);
        encoded(&Answer {
            notes: Vec::new(),
            failure,
        })
    }
}

fn encoded(answer: &Answer) -> Vec<u8> {
    postcard::to_allocvec(answer).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use goanna_vfs::SynthFs;

    use super::*;

    #[test]
    fn a_request_of_another_version_is_refused_by_name() {
        let describe = |error: Error| Report {
            text: error.to_string(),
            hint: None,
            code: 125,
        };
        let nested = NestedMounts::new(&[], Box::new(describe), Vec::new());
        let outer = Mounts::new(Arc::new(SynthFs::new(1)));
        let caller = Caller::with_ids(0, 0);
        let (answer, mounts) = nested.begin(&[0xff; 64], &outer, &[], &caller);
        assert!(mounts.is_none());
        let answer: Answer = postcard::from_bytes(&answer).unwrap();
        let text = answer.failure.unwrap().text;
        assert!(text.contains("another version of amino"), "{text}");
    }
}
