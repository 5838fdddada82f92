//! Volumes that gocryptfs 2.3 made, in `golden/`: this crate must always read every kind. The password is `secret`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::path::Path;
use std::sync::Arc;

use goanna_aesfs::{AesFs, Secret, Volume};
use goanna_passfs::PassFs;
use goanna_vfs::{FileSystem, Node};
use support::caller;

fn open(dir: &Path) -> AesFs {
    let volume = Volume::open(dir, None).unwrap();
    let master = volume.unlock(&Secret::new(b"secret".to_vec())).unwrap();
    let lower: Arc<dyn FileSystem> = Arc::new(PassFs::new(dir).unwrap());
    let features = volume.config().features().unwrap();
    let report = Box::new(|path: &[u8], damage| panic!("{}: {damage}", path.escape_ascii()));
    AesFs::new(
        Arc::clone(&lower),
        lower.root(),
        &features,
        &master,
        None,
        report,
    )
    .unwrap()
}

fn find(fs: &AesFs, path: &str) -> Node {
    let names = path.split('/');
    names.fold(fs.root(), |dir, name| {
        fs.lookup(&caller(), &dir, name.as_bytes()).unwrap()
    })
}

fn content(fs: &AesFs, node: &Node) -> Vec<u8> {
    let mut content = vec![0; 20_000];
    let len = fs.read_at(&caller(), node, 0, &mut content).unwrap();
    content.truncate(len);
    content
}

fn check(kind: &str, has_odd_name: bool) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let fs = open(&dir.join(kind));
    let numbers: String = (1..=2000).map(|number| format!("{number}\n")).collect();
    for (path, wanted) in [
        ("empty", &b""[..]),
        ("one", b"x"),
        ("blocks", &numbers.as_bytes()[..5000]),
        ("dir/file", b"deep\n"),
        (&"l".repeat(200), b"long\n"),
        ("hole", &[0; 9000]),
    ] {
        let node = find(&fs, path);
        assert_eq!(content(&fs, &node), wanted, "{kind}: {path}");
        let size = fs.getattr(&caller(), &node).unwrap().size;
        assert_eq!(size, wanted.len() as u64, "{kind}: {path}");
    }
    let link = find(&fs, "link");
    assert_eq!(fs.readlink(&caller(), &link).unwrap(), b"dir/file");
    let mut names = Vec::new();
    fs.readdir(&caller(), &fs.root(), 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .unwrap();
    names.retain(|name| !matches!(&name[..], b"." | b".."));
    assert_eq!(names.contains(&b"caf\xe9".to_vec()), has_odd_name, "{kind}");
    assert_eq!(names.len(), 7 + usize::from(has_odd_name), "{kind}");
    let checked = fs.check(&caller(), &mut |found| panic!("{kind}: {found:?}"));
    assert_eq!((checked.directories, checked.links), (2, 1), "{kind}");
}

#[test]
fn volumes_of_gocryptfs_2_3_are_read() {
    for kind in ["gcm", "siv", "xchacha", "deterministic"] {
        check(kind, true);
    }
    // A name that is not UTF-8 would be one in this repository, too.
    check("plain", false);
}
