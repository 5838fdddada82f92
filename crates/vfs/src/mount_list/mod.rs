//! The lists of mounts in /proc (proc_pid_mountinfo(5), proc_pid_mounts(5)), with a run's mounts added.
//!
//! The lines have the kernel's form. A mount that shows a directory of the host is described as a bind mount of that directory, and any
//! other mount as a separate file system.

mod host_lines;

use crate::paths;

/// A list of mounts that a process has in /proc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountList {
    /// `mountinfo`
    MountInfo,
    /// `mounts`
    Mounts,
    /// `mountstats`
    MountStats,
}

impl MountList {
    /// The list at the canonical path `path`, and the thread whose list it is.
    pub fn at(path: &[u8]) -> Option<(Self, i32)> {
        let rest = path.strip_prefix(b"/proc/")?;
        let (owner, name) = paths::split(rest)?;
        let list = match name {
            b"mountinfo" => Self::MountInfo,
            b"mounts" => Self::Mounts,
            b"mountstats" => Self::MountStats,
            _ => return None,
        };
        let mut parts = owner.split(|&byte| byte == b'/');
        let (process, task, thread) = (parts.next(), parts.next(), parts.next());
        let id = match (task, thread, parts.next()) {
            (None, None, None) => process,
            (Some(b"task"), Some(_), None) => thread,
            _ => None,
        };
        let id = str::from_utf8(id?).ok()?.parse().ok()?;
        Some((list, id))
    }
}

/// A mount of a run, as a list is to show it.
#[derive(Debug, Clone)]
pub struct ListedMount<'a> {
    /// Its mount ID.
    pub id: u64,
    /// The device number of its files, in the encoding of `makedev(3)`.
    pub device: u64,
    /// Canonical absolute path of the mount point.
    pub target: &'a [u8],
    /// Type of the file system.
    pub kind: &'a str,
    /// The source of the mount, for example a device or a store.
    pub source: &'a [u8],
    /// The directory of the host that it shows under its own device number, if it does.
    pub host_path: Option<Vec<u8>>,
    /// The path in its file system of the directory or file that it shows.
    pub root: Vec<u8>,
    /// It is a mount of the host, with this directory as its mount point there. The kernel's line is about it.
    pub is_hosted: bool,
    /// The mount point of the mount that the kernel has in its place, if it has one, with the ID `id`. Its line is that of the kernel's, and has the options of
    /// that.
    pub in_place_of: Option<Vec<u8>>,
    /// The file system itself cannot be changed.
    pub is_read_only: bool,
    /// `ST_*` flags of statvfs(3).
    pub flags: u64,
}

/// The list `list` of a process, with `mounts` added in the order in which they were mounted. `native` is the kernel's text of
/// this list, and `mountinfo` the kernel's text of the process's `mountinfo`.
pub fn with_mounts(
    list: MountList,
    native: &[u8],
    mountinfo: &[u8],
    mounts: &[ListedMount<'_>],
) -> Vec<u8> {
    let hosts: Vec<HostMount<'_>> = host_mounts(mountinfo).collect();
    let mut above: Vec<(&[u8], u64)> = hosts
        .iter()
        .map(|host| (host.target.as_slice(), host.id))
        .collect();
    let mut out = host_lines::in_run(list, native, &hosts, mounts);
    let has_no_line = |mount: &&ListedMount<'_>| !mount.is_hosted && mount.in_place_of.is_none();
    for mount in mounts.iter().filter(has_no_line) {
        let bound = mount.host_path.as_deref();
        let host = bound.and_then(|path| Some((innermost(&hosts, path)?, path)));
        let line = Line::new(mount, host);
        match list {
            MountList::MountInfo => out.extend(line.mountinfo(mount, parent(&above, mount))),
            MountList::Mounts => out.extend(line.mounts(mount)),
            MountList::MountStats => out.extend(line.mountstats(mount)),
        }
        out.extend(host_lines::seen_in(mount, list, native, &hosts));
        above.push((mount.target, mount.id));
    }
    out
}

/// The lines of `content`, a text of `list`, that a process with the root directory `root` sees: those of the mounts at and below
/// `root`, with mount points relative to it.
pub fn seen_below(list: MountList, content: &[u8], root: &[u8]) -> Vec<u8> {
    let index = match list {
        MountList::Mounts => 1,
        MountList::MountInfo | MountList::MountStats => 4,
    };
    let root = escape(root, PATH);
    let mut out = Vec::new();
    let mut is_seen = false;
    for line in content.split_inclusive(|&byte| byte == b'\n') {
        // Statistics of the mount in the line before.
        if line.first() == Some(&b'\t') {
            out.extend_from_slice(if is_seen { line } else { b"" });
            continue;
        }
        let mut fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let target = fields.get_mut(index);
        let seen = target.and_then(|target| Some((below(&root, target)?, target)));
        is_seen = seen.is_some();
        if let Some((path, target)) = seen {
            *target = if path.is_empty() { b"/" } else { path };
            out.extend(fields.join(&b' '));
        }
    }
    out
}

/// What is mounted at `target`, by the text of a process's `mountinfo`, if that is a file system of type `kind`.
pub fn source_at(mountinfo: &[u8], target: &[u8], kind: &str) -> Option<Vec<u8>> {
    let there = host_mounts(mountinfo).filter(|mount| mount.target == target);
    let last = there.last()?;
    (last.kind == kind.as_bytes()).then(|| unescape(last.source))
}

/// The ID of the mount that `mount` is mounted on: the one with the longest mount point that contains it. Of several mounts with
/// the same mount point, the last one hides the others.
fn parent(above: &[(&[u8], u64)], mount: &ListedMount<'_>) -> u64 {
    let holds = above
        .iter()
        .filter(|(target, _)| below(target, mount.target).is_some());
    holds
        .max_by_key(|(target, _)| target.len())
        .map_or(mount.id, |(_, id)| *id)
}

/// The mount that the canonical path `path` leads into.
pub fn innermost<'h, 'a>(hosts: &'h [HostMount<'a>], path: &[u8]) -> Option<&'h HostMount<'a>> {
    let holds = hosts
        .iter()
        .filter(|host| below(&host.target, path).is_some());
    holds.max_by_key(|host| host.target.len())
}

/// The rest of `path` after the directory `dir`: empty, or beginning with a slash. `None` if `path` is not in `dir`.
fn below<'p>(dir: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    if dir == b"/" {
        return Some(if path == b"/" { b"" } else { path });
    }
    let rest = path.strip_prefix(dir)?;
    (rest.is_empty() || rest.first() == Some(&b'/')).then_some(rest)
}

/// The mounts in the text of a process's `mountinfo`.
pub fn host_mounts(mountinfo: &[u8]) -> impl Iterator<Item = HostMount<'_>> {
    let lines = mountinfo.split(|&byte| byte == b'\n');
    lines.filter_map(HostMount::parse)
}

/// A line of mountinfo. Fields are in the kernel's escaped form unless marked otherwise.
#[derive(Debug)]
pub struct HostMount<'a> {
    /// Its mount ID.
    pub id: u64,
    /// Its device number, `MAJOR:MINOR`.
    pub device: &'a [u8],
    root: &'a [u8],
    /// The mount point, as the process sees it. Unescaped.
    pub target: Vec<u8>,
    own_options: &'a [u8],
    /// The type of the file system.
    pub kind: &'a [u8],
    /// What was mounted.
    pub source: &'a [u8],
    options: &'a [u8],
}

impl<'a> HostMount<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let _parent = fields.next()?;
        let (device, root, target) = (fields.next()?, fields.next()?, fields.next()?);
        let own_options = fields.next()?;
        // Any number of optional fields end with a dash.
        fields.by_ref().find(|field| *field == b"-")?;
        let (kind, source) = (fields.next()?, fields.next()?);
        let options = fields.next().unwrap_or_default();
        let target = unescape(target);
        Some(Self {
            id,
            device,
            root,
            target,
            own_options,
            kind,
            source,
            options,
        })
    }

    /// The directory or file of its file system that it shows.
    pub fn root(&self) -> Vec<u8> {
        unescape(self.root)
    }

    /// Whether the mount has this option, such as `ro`, which need not be one of its file system.
    pub fn has_option(&self, option: &str) -> bool {
        let mut options = self.own_options.split(|&byte| byte == b',');
        options.any(|set| set == option.as_bytes())
    }

    /// The mount's own options, as `ST_*` flags of statvfs(3).
    pub fn own_flags(&self) -> u64 {
        let access = [(libc::ST_RDONLY, ",ro")];
        let all = OPTIONS.iter().chain(&access);
        let set = all.filter(|(_, name)| self.has_option(name.trim_start_matches(',')));
        set.map(|(flag, _)| flag).sum()
    }

    /// The path in its file system of the directory that has the canonical path `path`, if that is in this mount.
    pub fn inside(&self, path: &[u8]) -> Option<Vec<u8>> {
        let rest = below(&self.target, path)?;
        let root = self.root();
        Some(match (&root[..], rest) {
            (b"/", b"") => root,
            (b"/", rest) => rest.to_vec(),
            (root, rest) => [root, rest].concat(),
        })
    }

    /// The canonical path of `inside`, a path in its file system, if this mount shows that.
    pub fn shows(&self, inside: &[u8]) -> Option<Vec<u8>> {
        let rest = below(&self.root(), inside)?;
        Some(match (&self.target[..], rest) {
            (b"/", b"") => b"/".to_vec(),
            (b"/", rest) => rest.to_vec(),
            (target, rest) => [target, rest].concat(),
        })
    }
}

/// The escaped fields of a mount's lines.
struct Line {
    device: Vec<u8>,
    root: Vec<u8>,
    kind: Vec<u8>,
    source: Vec<u8>,
    /// The file system's options, beginning with `rw` or `ro`.
    options: Vec<u8>,
}

impl Line {
    fn new(mount: &ListedMount<'_>, host: Option<(&HostMount<'_>, &[u8])>) -> Self {
        let (major, minor) = (libc::major(mount.device), libc::minor(mount.device));
        match host {
            Some((host, path)) => {
                let rest = escape(below(&host.target, path).unwrap_or_default(), PATH);
                let root = match (host.root, rest.is_empty()) {
                    (root, true) => root.to_vec(),
                    (b"/", false) => rest,
                    (root, false) => [root, &rest].concat(),
                };
                Self {
                    device: host.device.to_vec(),
                    root,
                    kind: host.kind.to_vec(),
                    source: host.source.to_vec(),
                    options: host.options.to_vec(),
                }
            }
            None => Self {
                device: format!("{major}:{minor}").into_bytes(),
                root: escape(&mount.root, PATH),
                kind: escape(mount.kind.as_bytes(), WORD),
                source: escape(mount.source, WORD),
                options: if mount.is_read_only { "ro" } else { "rw" }.into(),
            },
        }
    }

    fn mountinfo(&self, mount: &ListedMount<'_>, parent: u64) -> Vec<u8> {
        let ids = format!("{} {parent}", mount.id);
        let options = [access(mount.flags), &own_options(mount.flags)].concat();
        let line: [&[u8]; 9] = [
            ids.as_bytes(),
            &self.device,
            &self.root,
            &escape(mount.target, PATH),
            options.as_bytes(),
            b"-",
            &self.kind,
            &self.source,
            &self.options,
        ];
        [line.join(&b' '), b"\n".to_vec()].concat()
    }

    fn mounts(&self, mount: &ListedMount<'_>) -> Vec<u8> {
        // Both the mount and the file system may forbid changes, and the first option is for both.
        let (is_ro, more) = match self.options.get(2..) {
            Some(more) => (self.options.starts_with(b"ro"), more),
            None => (false, &b""[..]),
        };
        let access = if is_ro { "ro" } else { access(mount.flags) };
        let options = [access.as_bytes(), own_options(mount.flags).as_bytes(), more].concat();
        let line: [&[u8]; 5] = [
            &self.source,
            &escape(mount.target, PATH),
            &self.kind,
            &options,
            b"0 0\n",
        ];
        line.join(&b' ')
    }

    fn mountstats(&self, mount: &ListedMount<'_>) -> Vec<u8> {
        let target = escape(mount.target, PATH);
        let line: [&[u8]; 7] = [
            b"device ",
            &self.source,
            b" mounted on ",
            &target,
            b" with fstype ",
            &self.kind,
            b"\n",
        ];
        line.concat()
    }
}

fn access(flags: u64) -> &'static str {
    if flags & libc::ST_RDONLY == 0 {
        "rw"
    } else {
        "ro"
    }
}

/// A mount's own options but `rw` and `ro`, in the kernel's order, each after a comma.
const OPTIONS: [(u64, &str); 6] = [
    (libc::ST_NOSUID, ",nosuid"),
    (libc::ST_NODEV, ",nodev"),
    (libc::ST_NOEXEC, ",noexec"),
    (libc::ST_NOATIME, ",noatime"),
    (libc::ST_NODIRATIME, ",nodiratime"),
    (libc::ST_RELATIME, ",relatime"),
];

/// See [`OPTIONS`].
fn own_options(flags: u64) -> String {
    let set = OPTIONS.iter().filter(|(flag, _)| flags & flag != 0);
    set.map(|(_, name)| *name).collect()
}

/// The bytes that the kernel escapes in a path.
const PATH: &[u8] = b" \t\n\\";
/// The bytes that the kernel escapes in names of devices and types.
const WORD: &[u8] = b" \t\n\\#";

/// `text` with the bytes of `special` in octal.
fn escape(text: &[u8], special: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        if special.contains(&byte) {
            out.extend_from_slice(format!("\\{byte:03o}").as_bytes());
        } else {
            out.push(byte);
        }
    }
    out
}

fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, behind)) = rest.split_first() {
        let octal = (first == b'\\')
            .then(|| behind.split_first_chunk::<3>())
            .flatten()
            .and_then(|(digits, after)| {
                let value = u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok()?;
                Some((value, after))
            });
        let (byte, after) = octal.unwrap_or((first, behind));
        out.push(byte);
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_directory_hides_the_mounts_that_are_not_below_it() {
        let seen = |list, content: &str| {
            String::from_utf8(seen_below(list, content.as_bytes(), b"/a b")).unwrap()
        };
        let mountinfo = "1 1 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /a\\040b rw - tmpfs  rw\n\
            3 2 0:3 / /a\\040b/c rw - proc proc rw\n4 1 0:4 / /a\\040bc rw - tmpfs none rw\n";
        assert_eq!(
            seen(MountList::MountInfo, mountinfo),
            "2 1 0:2 / / rw - tmpfs  rw\n3 2 0:3 / /c rw - proc proc rw\n"
        );
        let mounts = "/dev/a / ext4 rw 0 0\nproc /a\\040b/c proc rw 0 0\n";
        assert_eq!(seen(MountList::Mounts, mounts), "proc /c proc rw 0 0\n");
        let stats = "device a mounted on / with fstype nfs statvers=1.1\n\tage:\t1\n\
            no device mounted on /a\\040b/c with fstype nfs statvers=1.1\n\tage:\t2\n";
        assert_eq!(
            seen(MountList::MountStats, stats),
            "no device mounted on /c with fstype nfs statvers=1.1\n\tage:\t2\n"
        );
    }

    #[test]
    fn a_directory_is_found_where_another_mount_shows_it() {
        let list = b"20 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            21 20 254:0 /home/me /m rw,ro,nosuid shared:1 - ext4 /dev/vda rw\n\
            22 20 0:22 / /home rw - tmpfs t rw\n";
        let mounts: Vec<HostMount<'_>> = host_mounts(list).collect();
        let inside = |path: &str| {
            let mount = innermost(&mounts, path.as_bytes()).unwrap();
            String::from_utf8(mount.inside(path.as_bytes()).unwrap()).unwrap()
        };
        assert_eq!(
            ["/", "/etc", "/home/x", "/m", "/m/a"].map(inside),
            ["/", "/etc", "/x", "/home/me", "/home/me/a"]
        );
        let shows = |mount: usize, inside: &[u8]| {
            let path = mounts[mount].shows(inside)?;
            Some(String::from_utf8(path).unwrap())
        };
        assert_eq!(shows(0, b"/"), Some("/".into()));
        assert_eq!(shows(0, b"/home/me/a"), Some("/home/me/a".into()));
        assert_eq!(shows(1, b"/home/me/a"), Some("/m/a".into()));
        assert_eq!(shows(1, b"/home/me"), Some("/m".into()));
        assert_eq!(shows(1, b"/home/men"), None);
        assert!(mounts[1].has_option("ro") && !mounts[0].has_option("ro"));
        assert_eq!(mounts[1].own_flags(), libc::ST_RDONLY | libc::ST_NOSUID);
    }

    const NATIVE: &[u8] = b"20 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n\
        21 20 0:22 /a\\040b /mnt/with\\040space rw,nosuid - tmpfs tmp\\043fs rw,size=4k\n";

    #[test]
    fn the_line_of_a_mount_in_place_is_about_the_one_of_the_run() {
        let native = b"20 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            21 20 0:22 /goanna/m/1 /x ro,nosuid,relatime - tmpfs tmp rw\n";
        let bound = ListedMount {
            id: 21,
            root: b"/a b".to_vec(),
            in_place_of: Some(b"/x".to_vec()),
            ..mount(b"/x", None, 0)
        };
        let text = |list, native: &[u8]| {
            let info = b"20 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                21 20 0:22 /goanna/m/1 /x ro,nosuid,relatime - tmpfs tmp rw\n";
            let text = with_mounts(list, native, info, std::slice::from_ref(&bound));
            String::from_utf8(text).unwrap()
        };
        assert_eq!(
            text(MountList::MountInfo, native).lines().nth(1),
            Some(
                "21 20 2608:7 /a\\040b /x ro,nosuid,relatime - amino /home/me/my\\040store\\0431 rw"
            )
        );
        let mounts = b"/dev/vda / ext4 rw 0 0\ntmp /x tmpfs ro,nosuid,relatime 0 0\n";
        assert_eq!(
            text(MountList::Mounts, mounts).lines().nth(1),
            Some("/home/me/my\\040store\\0431 /x amino ro,nosuid,relatime 0 0")
        );
    }

    fn mount<'a>(target: &'a [u8], host_path: Option<&[u8]>, flags: u64) -> ListedMount<'a> {
        ListedMount {
            id: 100,
            device: libc::makedev(0xa30, 7),
            target,
            kind: "amino",
            source: b"/home/me/my store#1",
            host_path: host_path.map(<[u8]>::to_vec),
            root: b"/".to_vec(),
            is_hosted: false,
            in_place_of: None,
            is_read_only: false,
            flags,
        }
    }

    fn added(list: MountList, native: &[u8], mounts: &[ListedMount<'_>]) -> String {
        let whole = with_mounts(list, native, NATIVE, mounts);
        let rest = whole.strip_prefix(native).unwrap_or_default();
        String::from_utf8_lossy(rest).into_owned()
    }

    #[test]
    fn finds_what_is_mounted() {
        let at = |target: &[u8], kind| source_at(NATIVE, target, kind);
        assert_eq!(at(b"/", "ext4").as_deref(), Some(&b"/dev/vda"[..]));
        let spaced = at(b"/mnt/with space", "tmpfs");
        assert_eq!(spaced.as_deref(), Some(&b"tmp#fs"[..]));
        assert_eq!((at(b"/", "tmpfs"), at(b"/mnt", "tmpfs")), (None, None));
        let hidden = [NATIVE, b"22 20 0:9 / / rw - tmpfs over rw\n"].concat();
        assert_eq!(source_at(&hidden, b"/", "ext4"), None);
        let over = source_at(&hidden, b"/", "tmpfs");
        assert_eq!(over.as_deref(), Some(&b"over"[..]));
    }

    #[test]
    fn finds_the_lists_of_processes_and_threads() {
        use MountList::*;
        let at = |path: &str| MountList::at(path.as_bytes());
        assert_eq!(at("/proc/12/mounts"), Some((Mounts, 12)));
        assert_eq!(at("/proc/12/mountinfo"), Some((MountInfo, 12)));
        assert_eq!(at("/proc/12/task/13/mountstats"), Some((MountStats, 13)));
        for other in [
            "/proc/mounts",
            "/proc/12/maps",
            "/proc/12/task/mounts",
            "/proc/12/fd/mounts",
            "/proc/x/mounts",
            "/proc/12/task/13/x/mounts",
            "/tmp/12/mounts",
        ] {
            assert_eq!(at(other), None, "{other}");
        }
    }

    #[test]
    fn a_file_system_of_its_own() {
        let flags = libc::ST_RDONLY | libc::ST_NOEXEC;
        let mounts = [mount(b"/a mino", None, flags)];
        assert_eq!(
            added(MountList::MountInfo, NATIVE, &mounts),
            "100 20 2608:7 / /a\\040mino ro,noexec - amino /home/me/my\\040store\\0431 rw\n"
        );
        assert_eq!(
            added(MountList::Mounts, b"", &mounts),
            "/home/me/my\\040store\\0431 /a\\040mino amino ro,noexec 0 0\n"
        );
        assert_eq!(
            added(MountList::MountStats, b"", &mounts),
            "device /home/me/my\\040store\\0431 mounted on /a\\040mino with fstype amino\n"
        );
    }

    #[test]
    fn a_directory_of_the_host_is_a_bind_mount() {
        let nested = b"/mnt/with space/in it";
        let relatime = libc::ST_RELATIME;
        let mounts = [
            mount(b"/sub", Some(b"/src/dir"), relatime),
            mount(b"/sub/again", Some(nested), 0),
            mount(b"/sub/whole", Some(b"/mnt/with space"), 0),
        ];
        assert_eq!(
            added(MountList::MountInfo, NATIVE, &mounts),
            "100 20 254:0 /src/dir /sub rw,relatime - ext4 /dev/vda rw,discard\n\
             100 100 0:22 /a\\040b/in\\040it /sub/again rw - tmpfs tmp\\043fs rw,size=4k\n\
             100 100 0:22 /a\\040b /sub/whole rw - tmpfs tmp\\043fs rw,size=4k\n"
        );
        assert_eq!(
            added(MountList::Mounts, b"", &mounts[..1]),
            "/dev/vda /sub ext4 rw,relatime,discard 0 0\n"
        );
    }

    const DIR: &[u8] = b"/dev/shm/m/1";

    /// With a mount that a program has made, and another one inside of it.
    fn with_hosted() -> Vec<u8> {
        let lines = "30 20 0:30 / /dev/shm/m/1 rw - tmpfs x rw\n31 30 0:31 / /dev/shm/m/1/a\\040b rw - tmpfs y rw\n";
        [NATIVE, lines.as_bytes()].concat()
    }

    #[test]
    fn a_mount_of_a_program_is_where_the_program_mounted_it() {
        let native = with_hosted();
        let hosted = ListedMount {
            is_hosted: true,
            ..mount(b"/amino/d", Some(DIR), 0)
        };
        let store = ListedMount {
            id: 99,
            ..mount(b"/amino", None, 0)
        };
        let whole = with_mounts(MountList::MountInfo, &native, &native, &[store, hosted]);
        let added = whole.strip_prefix(NATIVE).unwrap();
        assert_eq!(
            String::from_utf8_lossy(added),
            "30 99 0:30 / /amino/d rw - tmpfs x rw\n\
             31 30 0:31 / /amino/d/a\\040b rw - tmpfs y rw\n\
             99 20 2608:7 / /amino rw - amino /home/me/my\\040store\\0431 rw\n"
        );
    }

    #[test]
    fn what_is_mounted_inside_of_a_directory_is_shown_there_too() {
        let native = with_hosted();
        let shm = mount(b"/p", Some(b"/dev/shm"), 0);
        let whole = with_mounts(
            MountList::MountInfo,
            &native,
            &native,
            std::slice::from_ref(&shm),
        );
        let added = whole.strip_prefix(&native[..]).unwrap();
        assert_eq!(
            String::from_utf8_lossy(added),
            "100 20 254:0 /dev/shm /p rw - ext4 /dev/vda rw,discard\n\
             1610612766 100 0:30 / /p/m/1 rw - tmpfs x rw\n\
             1610612767 1610612766 0:31 / /p/m/1/a\\040b rw - tmpfs y rw\n"
        );
        let mounts = b"y /dev/shm/m/1/a\\040b tmpfs rw 0 0\n";
        let whole = with_mounts(MountList::Mounts, mounts, &native, &[shm]);
        assert!(whole.ends_with(b"\ny /p/m/1/a\\040b tmpfs rw 0 0\n"));
    }

    #[test]
    fn a_mount_at_a_mount_point_of_the_host_covers_it() {
        let mounts = [mount(b"/mnt/with space", None, 0)];
        let line = added(MountList::MountInfo, NATIVE, &mounts);
        assert!(line.starts_with("100 21 "), "{line}");
    }

    #[test]
    fn lines_that_are_none_are_left_alone() {
        let odd = b"\n20\nx y z\n20 1 2:3 / / rw";
        let whole = with_mounts(MountList::MountInfo, odd, odd, &[mount(b"/a", None, 0)]);
        assert!(whole.starts_with(odd));
    }
}
