//! A real file system on a recorded disk: FUSE file, loop device, mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption};
use goanna_skip::Facility;
use parking_lot::Mutex;

use super::fuse::{DiskFs, NAME};
use super::image::{Image, Recording};

/// Size of a disk in bytes: large enough for a workload with large files on an engine that keeps two copies.
const DISK: usize = 768 << 20;

/// A file system of the host's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// ext4 with its journal.
    Ext4,
    /// XFS.
    Xfs,
    /// btrfs.
    Btrfs,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    /// The name in `mkfs.NAME`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    fn format(self, device: &str) {
        let options: &[&str] = match self {
            Self::Ext4 => &["-q", "-F", "-E", "nodiscard"],
            Self::Xfs => &["-q", "-f", "-K"],
            Self::Btrfs => &["-q", "-f", "-K"],
        };
        let mkfs = format!("mkfs.{}", self.name());
        run(Command::new(mkfs).args(options).arg(device));
    }

    /// Repairs the superblock of the file system on `device`. That of ext4 is two sectors long and has one checksum: a power cut may tear
    /// it, and the kernel then mounts it no more.
    fn repair(self, device: &str) {
        if self == Self::Ext4 {
            // Its status describes only its findings; mounting shows whether the repair helped.
            let _ = Command::new("e2fsck").args(["-fy", device]).output();
        }
    }

    /// Whether a power cut that tears a write may end the file system. btrfs refers to the changes that fsync(2) brought to the disk
    /// since its last commit in its first superblock only, eight sectors with one checksum; the other superblocks lead to an older state.
    pub fn may_be_torn(self) -> bool {
        self == Self::Btrfs
    }

    fn mount_options(self) -> &'static str {
        match self {
            Self::Ext4 => "rw",
            // Volumes cut from one recording have one identifier, which XFS otherwise mounts once.
            Self::Xfs => "nouuid",
            Self::Btrfs => "nodiscard",
        }
    }
}

/// The facility for volumes that the machine lacks; `None` if it has all.
pub fn missing() -> Option<(Facility, &'static str)> {
    if !crate::is_root() {
        return Some((Facility::Root, "only root can mount a disk"));
    }
    if !Path::new("/dev/fuse").exists() {
        return Some((Facility::Fuse, "the disk is a FUSE file"));
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some((Facility::LoopDevices, "the disk is a loop device"));
    }
    let programs = ["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "losetup"];
    let has = |name: &str| {
        ["/sbin", "/usr/sbin"]
            .iter()
            .any(|dir| Path::new(dir).join(name).exists())
    };
    let why = "e2fsprogs, xfsprogs, btrfs-progs or mount is not installed";
    (!programs.into_iter().all(has)).then_some((Facility::Program, why))
}

/// A mounted file system whose disk records what it receives. Unmounted when dropped.
pub struct Volume {
    dir: PathBuf,
    device: String,
    disk: Arc<Mutex<Recording>>,
    session: Option<BackgroundSession>,
}

impl Volume {
    /// A new file system of `kind`; its mount point is made in `dir`. The recording starts before mkfs.
    ///
    /// # Panics
    ///
    /// When it cannot be made or mounted.
    pub fn format(kind: Kind, dir: &Path) -> Self {
        let volume = Self::attach(Image::new(DISK), dir);
        kind.format(&volume.device);
        volume
            .mount(kind)
            .expect("a new file system can be mounted");
        volume
    }

    /// The file system of `kind` that `image` holds.
    ///
    /// # Errors
    ///
    /// The message of mount(8) if the kernel does not mount it.
    pub fn mount_image(kind: Kind, image: Image, dir: &Path) -> Result<Self, String> {
        let volume = Self::attach(image, dir);
        // As a system does when it starts.
        if volume.mount(kind).is_err() {
            kind.repair(&volume.device);
            volume.mount(kind)?;
        }
        Ok(volume)
    }

    fn attach(image: Image, dir: &Path) -> Self {
        let disk = Arc::new(Mutex::new(Recording::new(image)));
        let fuse = dir.join("fuse");
        for dir in [&fuse, &dir.join("mnt")] {
            fs::create_dir_all(dir).expect("a mount point");
        }
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("power-cut".to_owned())];
        let session = fuser::spawn_mount(DiskFs::new(Arc::clone(&disk)), &fuse, &config);
        let session = session.expect("a FUSE mount");
        let file = fuse.join(NAME);
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(file));
        Self {
            dir: dir.to_owned(),
            device: device.trim().to_owned(),
            disk,
            session: Some(session),
        }
    }

    fn mount(&self, kind: Kind) -> Result<(), String> {
        let mut command = Command::new("mount");
        command.args(["-t", kind.name(), "-o", kind.mount_options()]);
        output(command.arg(&self.device).arg(self.path())).map(drop)
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// The position in the recording.
    pub fn position(&self) -> usize {
        self.disk.lock().position()
    }

    /// Unmounts the file system and returns the recording.
    pub fn into_recording(self) -> Arc<Mutex<Recording>> {
        Arc::clone(&self.disk)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // A process of the test may need a moment to leave the mount.
        for _ in 0..200 {
            match output(Command::new("umount").arg(self.path())) {
                Err(why) if why.contains("busy") => thread::sleep(Duration::from_millis(50)),
                _ => break,
            }
        }
        let _ = output(Command::new("losetup").args(["--detach", &self.device]));
        // If another process has the device open, the kernel detaches it later, and the FUSE mount is busy until then.
        let name = self.device.trim_start_matches("/dev/");
        let attached = Path::new("/sys/block").join(name).join("loop");
        for _ in 0..200 {
            if !attached.exists() {
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
    }
}

/// Runs a command that must succeed; returns its standard output.
fn run(command: &mut Command) -> String {
    output(command).unwrap_or_else(|why| panic!("{command:?}: {why}"))
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
