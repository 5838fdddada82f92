//! The measured calls. They run in the tracee, in its working directory, and time themselves. They are those of the C library, as
//! in most programs: the monitor's stubs replace its calls, and not those that a program makes by itself.

use std::ffi::CString;
use std::fmt;
use std::io::{self, Error, ErrorKind};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open, renameat};
use nix::sys::stat::{Mode, fstat, stat};
use nix::sys::uio::{pread, pwrite};
use nix::unistd::{fsync, getppid, mkdir, write};

/// A read or write: one page.
const PAGE: usize = 4096;
/// Pages of the file that is read and written; small enough to stay cached everywhere.
const FILE_PAGES: u64 = 16;
/// A large read or write.
const LARGE: usize = 1 << 20;
/// Pages of the file on which [`Operation::ReadLarge`] and the operations after it work.
const LARGE_PAGES: u64 = 4096;
/// Entries of the directory that is listed.
const ENTRIES: usize = 1000;
/// Files made at a time by [`Operation::Create`] and [`Operation::Unlink`]: directories do not grow with the
/// iterations, so the price per call does not either.
const CHUNK: u64 = 500;

/// A call, or the smallest sequence of calls that a program makes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// getppid: concerns no file, must not be intercepted.
    Getppid,
    /// stat of a file.
    Stat,
    /// stat of a name that does not exist.
    StatMissing,
    /// stat of a file outside of every mount.
    StatHost,
    /// fstat of a descriptor.
    Fstat,
    /// open for reading, and close.
    Open,
    /// open with `O_CREAT|O_EXCL`, write of 4 KiB, close.
    Create,
    /// pread of 4 KiB that was read before.
    Pread,
    /// pwrite of 4 KiB over existing data.
    Pwrite,
    /// pread of 1 MiB, one after the other, from a file of 16 MiB.
    ReadLarge,
    /// pwrite of 1 MiB, one after the other, to a file of 16 MiB, and one fsync at the end.
    WriteLarge,
    /// pread of 4 KiB anywhere in a file of 16 MiB.
    ReadRandom,
    /// pwrite of 4 KiB anywhere in a file of 16 MiB, and one fsync at the end.
    WriteRandom,
    /// open, getdents64 and close of a directory of 1000 names.
    Readdir,
    /// unlink of a file of 4 KiB.
    Unlink,
    /// rename to a name that is free, in the same directory.
    Rename,
    /// A child that executes `/bin/true`, and waiting for it.
    Spawn,
}

impl Operation {
    /// All, in the order of the page.
    pub const ALL: [Self; 17] = [
        Self::Getppid,
        Self::Stat,
        Self::StatMissing,
        Self::StatHost,
        Self::Fstat,
        Self::Open,
        Self::Create,
        Self::Pread,
        Self::Pwrite,
        Self::ReadLarge,
        Self::WriteLarge,
        Self::ReadRandom,
        Self::WriteRandom,
        Self::Readdir,
        Self::Unlink,
        Self::Rename,
        Self::Spawn,
    ];

    /// The name in the tracee's protocol and in criterion's filter.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Getppid => "getppid",
            Self::Stat => "stat",
            Self::StatMissing => "stat-missing",
            Self::StatHost => "stat-host",
            Self::Fstat => "fstat",
            Self::Open => "open",
            Self::Create => "create",
            Self::Pread => "pread",
            Self::Pwrite => "pwrite",
            Self::ReadLarge => "read-large",
            Self::WriteLarge => "write-large",
            Self::ReadRandom => "read-random",
            Self::WriteRandom => "write-random",
            Self::Readdir => "readdir",
            Self::Unlink => "unlink",
            Self::Rename => "rename",
            Self::Spawn => "spawn",
        }
    }

    /// The label on the page.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Getppid => "getppid (no file call)",
            Self::Stat => "stat",
            Self::StatMissing => "stat, missing name",
            Self::StatHost => "stat, outside of the mount",
            Self::Fstat => "fstat",
            Self::Open => "open+close",
            Self::Create => "create+write 4 KiB+close",
            Self::Pread => "pread 4 KiB, cached",
            Self::Pwrite => "pwrite 4 KiB",
            Self::ReadLarge => "pread 1 MiB in order",
            Self::WriteLarge => "pwrite 1 MiB in order, fsync",
            Self::ReadRandom => "pread 4 KiB at random",
            Self::WriteRandom => "pwrite 4 KiB at random, fsync",
            Self::Readdir => "readdir of 1000",
            Self::Unlink => "unlink",
            Self::Rename => "rename",
            Self::Spawn => "fork+exec /bin/true+wait",
        }
    }

    /// The operation of that [`name`](Self::name).
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }

    /// Performs the operation `iterations` times in the working directory. Returns the time, without preparation and cleaning up.
    ///
    /// # Errors
    ///
    /// A call failed, or returned a wrong result.
    pub fn run(self, iterations: u64) -> io::Result<Duration> {
        match self {
            Self::Getppid => timed(iterations, |_| {
                std::hint::black_box(getppid());
                Ok(())
            }),
            Self::Stat => {
                file()?;
                timed(iterations, |_| Ok(stat(c"file").map(drop)?))
            }
            Self::StatMissing => timed(iterations, |_| match stat(c"missing") {
                Err(Errno::ENOENT) => Ok(()),
                Err(errno) => Err(errno.into()),
                Ok(_) => Err(wrong("a name that is not there was found")),
            }),
            Self::StatHost => timed(iterations, |_| Ok(stat(c"/etc/passwd").map(drop)?)),
            Self::Fstat => {
                let fd = file()?;
                timed(iterations, |_| Ok(fstat(&fd).map(drop)?))
            }
            Self::Open => {
                file()?;
                timed(iterations, |_| {
                    Ok(open(c"file", OFlag::O_RDONLY, Mode::empty()).map(drop)?)
                })
            }
            Self::Create => chunked(iterations, |names| {
                let elapsed = create(names)?;
                unlink(names)?;
                Ok(elapsed)
            }),
            Self::Unlink => chunked(iterations, |names| {
                create(names)?;
                unlink(names)
            }),
            Self::Pread => preads(iterations),
            Self::Pwrite => {
                let fd = file()?;
                let page = [0x5a; PAGE];
                timed(iterations, |i| whole(pwrite(&fd, &page, offset(i))?, PAGE))
            }
            Self::ReadLarge => large(iterations, LARGE, in_order, pread_whole),
            Self::WriteLarge => large(iterations, LARGE, in_order, pwrite_whole),
            Self::ReadRandom => large(iterations, PAGE, at_random, pread_whole),
            Self::WriteRandom => large(iterations, PAGE, at_random, pwrite_whole),
            Self::Readdir => readdirs(iterations),
            Self::Rename => renames(iterations),
            Self::Spawn => timed(iterations, |_| {
                let status = Command::new("/bin/true").stdin(Stdio::null()).status()?;
                if status.success() {
                    Ok(())
                } else {
                    Err(wrong("/bin/true failed"))
                }
            }),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn timed(iterations: u64, mut call: impl FnMut(u64) -> io::Result<()>) -> io::Result<Duration> {
    let start = Instant::now();
    for i in 0..iterations {
        call(i)?;
    }
    Ok(start.elapsed())
}

/// Adds up the times that `run` returns for each chunk of fresh names.
fn chunked(
    iterations: u64,
    mut run: impl FnMut(&[CString]) -> io::Result<Duration>,
) -> io::Result<Duration> {
    // Made in advance: formatting must not be measured.
    let names = (0..iterations.min(CHUNK))
        .map(|i| Ok(CString::new(format!("new{i}"))?))
        .collect::<io::Result<Vec<_>>>()?;
    let mut elapsed = Duration::ZERO;
    let mut left = iterations;
    while left > 0 {
        let count = left.min(CHUNK);
        elapsed += run(names.get(..count as usize).unwrap_or(&names))?;
        left -= count;
    }
    Ok(elapsed)
}

fn create(names: &[CString]) -> io::Result<Duration> {
    let page = [0xa5; PAGE];
    let start = Instant::now();
    for name in names {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        let fd = open(name.as_c_str(), flags, Mode::from_bits_truncate(0o644))?;
        whole(write(&fd, &page)?, PAGE)?;
    }
    Ok(start.elapsed())
}

fn unlink(names: &[CString]) -> io::Result<Duration> {
    let start = Instant::now();
    for name in names {
        nix::unistd::unlink(name.as_c_str())?;
    }
    Ok(start.elapsed())
}

fn preads(iterations: u64) -> io::Result<Duration> {
    file()?;
    let fd = open(c"file", OFlag::O_RDONLY, Mode::empty())?;
    let mut page = [0; PAGE];
    for i in 0..FILE_PAGES {
        whole(pread(&fd, &mut page, offset(i))?, PAGE)?;
    }
    timed(iterations, |i| {
        whole(pread(&fd, &mut page, offset(i))?, PAGE)
    })
}

/// Reads or writes pieces of `length` bytes of the large file, then brings what was written to the disk.
fn large(
    iterations: u64,
    length: usize,
    place: impl Fn(u64) -> i64,
    call: impl Fn(&OwnedFd, &mut [u8], i64) -> io::Result<()>,
) -> io::Result<Duration> {
    let fd = open(
        c"large",
        OFlag::O_RDWR | OFlag::O_CREAT,
        Mode::from_bits_truncate(0o644),
    )?;
    let mut bytes = vec![0x5a; LARGE];
    if fstat(&fd)?.st_size == 0 {
        for piece in 0..LARGE_PAGES * PAGE as u64 / LARGE as u64 {
            pwrite_whole(&fd, &mut bytes, in_order(piece))?;
        }
        fsync(&fd)?;
    }
    bytes.truncate(length);
    let start = Instant::now();
    for i in 0..iterations {
        call(&fd, &mut bytes, place(i))?;
    }
    fsync(&fd)?;
    Ok(start.elapsed())
}

fn pread_whole(fd: &OwnedFd, bytes: &mut [u8], offset: i64) -> io::Result<()> {
    whole(pread(fd, bytes, offset)?, bytes.len())
}

fn pwrite_whole(fd: &OwnedFd, bytes: &mut [u8], offset: i64) -> io::Result<()> {
    whole(pwrite(fd, bytes, offset)?, bytes.len())
}

const fn in_order(i: u64) -> i64 {
    (i * LARGE as u64 % (LARGE_PAGES * PAGE as u64)) as i64
}

/// The same order in each run: a permutation of the pages, from an odd factor.
const fn at_random(i: u64) -> i64 {
    (i.wrapping_mul(2_654_435_761) % LARGE_PAGES * PAGE as u64) as i64
}

fn readdirs(iterations: u64) -> io::Result<Duration> {
    match mkdir(c"many", Mode::from_bits_truncate(0o755)) {
        Ok(()) => {
            for i in 0..ENTRIES {
                let flags = OFlag::O_WRONLY | OFlag::O_CREAT;
                open(
                    format!("many/entry{i}").as_str(),
                    flags,
                    Mode::from_bits_truncate(0o644),
                )?;
            }
        }
        Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    timed(iterations, |_| {
        let fd = open(c"many", OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?;
        let mut count = 0;
        for entry in Dir::from_fd(fd)?.iter() {
            entry?;
            count += 1;
        }
        // "." and ".." are entries too.
        if count == ENTRIES + 2 {
            Ok(())
        } else {
            Err(wrong("the directory has not the names that were made"))
        }
    })
}

fn renames(iterations: u64) -> io::Result<Duration> {
    let names = [c"name0", c"name1"];
    for name in names {
        match nix::unistd::unlink(name) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    open(
        names[0],
        OFlag::O_WRONLY | OFlag::O_CREAT,
        Mode::from_bits_truncate(0o644),
    )?;
    timed(iterations, |i| {
        let (from, to) = if i % 2 == 0 { (0, 1) } else { (1, 0) };
        Ok(renameat(AT_FDCWD, names[from], AT_FDCWD, names[to])?)
    })
}

/// The file that is read and written, with all its pages, open for both.
fn file() -> io::Result<OwnedFd> {
    let fd = open(
        c"file",
        OFlag::O_RDWR | OFlag::O_CREAT,
        Mode::from_bits_truncate(0o644),
    )?;
    if fstat(&fd)?.st_size == 0 {
        for _ in 0..FILE_PAGES {
            whole(write(&fd, &[1; PAGE])?, PAGE)?;
        }
    }
    Ok(fd)
}

const fn offset(i: u64) -> i64 {
    (i % FILE_PAGES * PAGE as u64) as i64
}

fn whole(transferred: usize, length: usize) -> io::Result<()> {
    if transferred == length {
        Ok(())
    } else {
        Err(wrong("a short read or write"))
    }
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}
