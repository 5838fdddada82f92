//! A cache in another process than `aminod` receives a report of every change that runs make, before the changing call returns.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};

use goanna_daemon::client::{Access, Connection, RemoteFs};
use goanna_tests::held::until;
use goanna_tests::{Backend, Engine, Intercept, Place, User, command_in_path};
use goanna_vfs::{Caller, Change, FileId, FileSystem, Identity, Node, Subscriber};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// A run whose shell performs lines one by one.
struct Shell {
    child: Child,
    lines: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Shell {
    fn new(place: &Place) -> Self {
        let script = format!(
            "cd {}; while read -r line; do eval \"$line\"; echo done; done",
            place.top()
        );
        let mut child = command_in_path(place, &[])
            .args(["bash", "-ec", &script])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            lines,
            answers,
        }
    }

    #[track_caller]
    fn perform(&mut self, line: &str) {
        writeln!(self.lines, "{line}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, "done\n", "{line}");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

fn attach(place: &Place) -> Arc<RemoteFs> {
    let owner = Connection::present(&place.path("store")).unwrap().unwrap();
    RemoteFs::attach(owner, None, Access::Change)
        .unwrap()
        .unwrap()
}

fn me() -> Caller {
    goanna_monitor::credentials(std::process::id() as i32).unwrap()
}

fn node(fs: &RemoteFs, path: &str) -> Node {
    path.split('/').fold(fs.root(), |dir, name| {
        fs.lookup(&me(), &dir, name.as_bytes()).unwrap()
    })
}

fn identify(fs: &RemoteFs, path: &str) -> (FileId, u64) {
    let node = node(fs, path);
    let id = fs.identity().unwrap().file_id(&me(), &node).unwrap();
    (id, fs.getattr(&me(), &node).unwrap().version)
}

/// The last version reported of each file, and whether reports are lost.
#[derive(Default)]
struct Cache(Mutex<(BTreeMap<FileId, u64>, bool)>);

impl Subscriber for Cache {
    fn changed(&self, changes: &[Change]) {
        let (versions, _) = &mut *self.0.lock().unwrap();
        for change in changes {
            let last = versions.entry(change.file).or_default();
            *last = change.version.max(*last);
        }
    }

    fn lost(&self) {
        self.0.lock().unwrap().1 = true;
    }
}

impl Cache {
    fn take(&self) -> BTreeMap<FileId, u64> {
        std::mem::take(&mut self.0.lock().unwrap().0)
    }

    fn is_lost(&self) -> bool {
        self.0.lock().unwrap().1
    }
}

fn place() -> Place {
    Place::new(Backend::Amino(Engine::Fjall), Intercept::Notify, User::Own)
}

#[test]
fn a_cache_outside_hears_what_two_runs_change() {
    let place = place();
    let mut runs = [Shell::new(&place), Shell::new(&place)];
    runs[0].perform("echo 0 > a; echo 0 > b; mkdir d e; echo 0 > d/f");
    let fs = attach(&place);
    let cache = Arc::<Cache>::default();
    let weak: Weak<Cache> = Arc::downgrade(&cache);
    fs.subscribe(weak).unwrap();
    let steps: [(&str, &[&str]); 9] = [
        ("echo 1 > a", &["a"]),
        ("echo 2 >> b", &["b"]),
        ("chmod 600 d/f", &["d/f"]),
        ("mv d/f e/f", &["d", "e"]),
        ("ln a e/a", &["a", "e"]),
        (
            "amino -q txn run -- sh -c 'echo 3 > a; echo 3 > b'",
            &["a", "b"],
        ),
        ("echo new > b.new; mv b.new b", &["b"]),
        ("amino -q txn run -- sh -c 'echo 4 > a; exit 1' || :", &[]),
        ("setfattr -n user.x -v 1 a 2>/dev/null || touch a", &["a"]),
    ];
    for round in 0..4 {
        for (number, (line, changed)) in steps.iter().enumerate() {
            cache.take();
            runs[(round + number) % 2].perform(line);
            let reported = cache.take();
            for path in *changed {
                let (id, version) = identify(&fs, path);
                assert_eq!(reported.get(&id), Some(&version), "{line}: {path}");
            }
            assert!(!changed.is_empty() || reported.is_empty(), "{line}");
        }
        runs[0].perform("mv e/f d/f; rm e/a");
    }
    let owner = place.owner().unwrap().0;
    kill_process(Pid::from_raw(owner).unwrap(), Signal::KILL).unwrap();
    until("the loss is reported", || cache.is_lost());
}

/// Returns from a report when the test says so.
struct Stuck(Mutex<Receiver<()>>, Mutex<bool>);

impl Subscriber for Stuck {
    fn changed(&self, _: &[Change]) {
        let _ = self.0.lock().unwrap().recv();
    }

    fn lost(&self) {
        *self.1.lock().unwrap() = true;
    }
}

#[test]
fn a_cache_that_hangs_loses_its_subscription_and_stops_nobody() {
    let place = place();
    let mut run = Shell::new(&place);
    run.perform("echo 0 > a");
    let fs = attach(&place);
    let (go_on, wait): (Sender<()>, _) = channel();
    let stuck = Arc::new(Stuck(Mutex::new(wait), Mutex::new(false)));
    let cache = Arc::<Cache>::default();
    let weak: Weak<Stuck> = Arc::downgrade(&stuck);
    fs.subscribe(weak).unwrap();
    let weak: Weak<Cache> = Arc::downgrade(&cache);
    fs.subscribe(weak).unwrap();
    run.perform("echo 1 > a");
    let (id, version) = identify(&fs, "a");
    assert_eq!(cache.take().get(&id), Some(&version), "the other cache");
    drop(go_on);
    until("the loss is reported", || *stuck.1.lock().unwrap());
    run.perform("echo 2 > a");
    let (id, version) = identify(&fs, "a");
    assert_eq!(cache.take().get(&id), Some(&version));
    assert!(!cache.is_lost());
}
