//! Opens the back ends of mount specifications, and makes the mount table.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use amino_fs::AminoFs;
use goanna_passfs::PassFs;
use goanna_vfs::{Caller, FileSystem, MountFlags, Mounts, Place, escape_path, walk};

use super::mount_file;
use super::spec::{MountSpec, Source};
use super::types::{MountType, MountTypes};
use crate::store::{self, Create, Opening};
use crate::{Durability, Engine, Error, MountPointError};

/// An open store and its directory.
pub type OpenStore = (PathBuf, Arc<AminoFs>);

/// The mounts of a run, and the stores among them. The end of the run closes them.
pub struct MountedStores {
    /// The table.
    pub mounts: Mounts,
    /// Open stores.
    pub stores: Vec<OpenStore>,
}

/// Parses the mounts of the mount file `config`, and then those of `specifications`.
pub fn parse(
    types: MountTypes,
    config: Option<&Path>,
    specifications: &[OsString],
) -> Result<Vec<MountSpec>, Error> {
    let mut specs = Vec::new();
    if let Some(file) = config {
        let text = fs::read(file).map_err(|why| Error::host(file, why))?;
        specs = mount_file::parse(types, &text).map_err(|(line, why)| Error::MountFile {
            file: file.to_owned(),
            line,
            why,
        })?;
    }
    for text in specifications {
        let spec = MountSpec::parse(types, text.as_bytes()).map_err(|why| Error::Spec {
            spec: text.as_bytes().to_vec(),
            why,
        })?;
        specs.push(spec);
    }
    Ok(specs)
}

/// The mount of the store in `dir` at the place `at`.
pub fn of_store(dir: PathBuf, at: &Path, durability: Durability) -> Result<MountSpec, Error> {
    let spec = MountSpec {
        source: Source::Store { dir, durability },
        target: at.as_os_str().as_bytes().to_vec(),
        read_only: false,
        no_exec: false,
    };
    check_mount_point(&spec)?;
    Ok(spec)
}

/// Whether a mount at `at` hides files of the host.
pub fn hides_host(at: &Path) -> bool {
    let entries = fs::read_dir(at);
    entries.is_ok_and(|mut entries| entries.next().is_some())
}

/// A store's mount point must be a place below the root that neither contains the store nor lies in it.
fn check_mount_point(spec: &MountSpec) -> Result<(), Error> {
    let at = Path::new(std::ffi::OsStr::from_bytes(&spec.target));
    let fail = |why| {
        Err(Error::MountPoint {
            at: spec.target.clone(),
            why,
        })
    };
    if !at.is_absolute() {
        return fail(MountPointError::Relative);
    }
    if !at.components().any(|c| matches!(c, Component::Normal(_))) {
        return fail(MountPointError::Root);
    }
    let (place, store) = (real(at), real(spec.source.path()));
    if place.starts_with(&store) {
        return fail(MountPointError::InsideStore(escape_path(&store)));
    }
    if store.starts_with(&place) {
        return fail(MountPointError::HidesStore(escape_path(&store)));
    }
    Ok(())
}

/// `path` as an absolute path. Symbolic links are resolved in the part of it that exists.
pub fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut existing = path.as_path();
    let mut missing = Vec::new();
    loop {
        if let Ok(mut real) = existing.canonicalize() {
            real.extend(missing.iter().rev());
            return real;
        }
        match (existing.parent(), existing.file_name()) {
            (Some(parent), Some(name)) => {
                missing.push(name.to_owned());
                existing = parent;
            }
            _ => return path,
        }
    }
}

/// The settings with which [`build`] opens stores and back ends.
pub struct Builder<'a> {
    /// The available types of mounts.
    pub types: MountTypes,
    /// The credentials of the user of the run.
    pub caller: &'a Caller,
    /// A store that this process has open already.
    pub owned: Option<&'a OpenStore>,
    /// The engine of the first store, if it is made now.
    pub engine: Option<Engine>,
    /// Whether the first store keeps its log from now on.
    pub keep_log: Option<bool>,
    /// Where stores may be made.
    pub create: Create,
    /// Reports each store that is made.
    pub note: &'a dyn Fn(&str),
}

/// Opens the back ends of `specs`, in order, and mounts them.
pub fn build(specs: &[MountSpec], how: Builder<'_>) -> Result<MountedStores, Error> {
    let host = PassFs::host().map_err(Error::pass)?;
    let mut built = MountedStores {
        mounts: Mounts::new(Arc::new(host)),
        stores: Vec::new(),
    };
    build_on(&mut built, specs, how)?;
    Ok(built)
}

/// Opens the back ends of `specs`, in order, and mounts them in addition to those of `built`. After an error the first ones may be mounted.
pub fn build_on(
    built: &mut MountedStores,
    specs: &[MountSpec],
    mut how: Builder<'_>,
) -> Result<(), Error> {
    for spec in specs {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::READ_ONLY, spec.read_only);
        flags.set(MountFlags::NO_EXEC, spec.no_exec);
        let fs: Arc<dyn FileSystem> = match &spec.source {
            Source::Backend {
                name,
                path,
                options,
            } => match MountType::find(how.types, name.as_bytes()) {
                Some(MountType::Backend(backend)) => {
                    let inside = place_inside(&built.mounts, how.caller, path);
                    let over = inside.as_ref().and_then(|place| {
                        // Through a read-only mount nothing can be changed.
                        flags |= place.mount.flags & MountFlags::READ_ONLY;
                        backend.open_over(&place.mount.fs, &place.node, path, options)
                    });
                    let opened = match over {
                        Some(opened) => opened,
                        None => backend.open(&on_host(path, inside.as_ref())?, options),
                    };
                    opened.map_err(|why| Error::source(path, why))?
                }
                _ => return Err(Error::UnknownType(name.clone())),
            },
            Source::Store { dir, durability } => {
                check_mount_point(spec)?;
                let dir = &store_on_host(&built.mounts, how.caller, (dir, spec.read_only))?;
                let is_same = |(other, _): &OpenStore| real(other) == real(dir);
                if built.stores.iter().any(is_same) {
                    return Err(Error::MountedTwice(dir.clone()));
                }
                let fs = how.open_store(dir, *durability, spec.read_only)?;
                built.stores.push((dir.clone(), Arc::clone(&fs)));
                fs
            }
        };
        built
            .mounts
            .add(how.caller, &spec.target, fs, flags, spec.source_text())
            .map_err(|why| Error::Mount {
                target: spec.target.clone(),
                why,
            })?;
    }
    Ok(())
}

/// The place of `source` in one of `mounts`. `None` if it is on the host, or cannot be looked up: then the back end reports the
/// error.
fn place_inside(mounts: &Mounts, caller: &Caller, source: &Path) -> Option<Place> {
    let source = std::path::absolute(source).ok()?;
    let found = walk::resolve_mounted(mounts, caller, source.as_os_str().as_bytes());
    found.ok().flatten()
}

/// The path on the host of `source`, which is at `place` in a mount, if that is given. Fails where the mount does not show the host's files.
fn on_host(source: &Path, place: Option<&Place>) -> Result<PathBuf, Error> {
    let Some(Place { mount, node }) = place.filter(|place| !place.mount.is_synthetic()) else {
        return Ok(source.to_owned());
    };
    let shows_host = mount.fs.host_dir(&mount.fs.root()).is_some();
    let path = shows_host.then(|| mount.fs.host_path(node)).flatten();
    path.ok_or_else(|| Error::Source {
        path: source.to_owned(),
        why: "it is in a mount of the run".into(),
        hint: Some("name a directory or file of the host"),
    })
}

/// The path on the host of the store's directory `dir`, which may have to be made. Fails in a mount that does not show the host's files, and in a read-only
/// one unless the store `is_read_only`.
pub fn store_on_host(
    mounts: &Mounts,
    caller: &Caller,
    (dir, is_read_only): (&Path, bool),
) -> Result<PathBuf, Error> {
    let (place, name) = match (place_inside(mounts, caller, dir), dir.parent()) {
        (Some(place), _) => (place, None),
        (None, Some(parent)) => match place_inside(mounts, caller, parent) {
            Some(place) => (place, dir.file_name()),
            None => return Ok(dir.to_owned()),
        },
        (None, None) => return Ok(dir.to_owned()),
    };
    if place.mount.flags.contains(MountFlags::READ_ONLY) && !is_read_only {
        return Err(Error::Source {
            path: dir.to_owned(),
            why: "it is in a read-only mount of the run".into(),
            hint: None,
        });
    }
    let path = on_host(dir, Some(&place))?;
    Ok(name.map_or_else(|| path.clone(), |name| path.join(name)))
}

impl Builder<'_> {
    fn open_store(
        &mut self,
        dir: &Path,
        durability: Durability,
        read_only: bool,
    ) -> Result<Arc<AminoFs>, Error> {
        let keep_log = self.keep_log.take();
        let fs = self.opened(dir, durability, read_only)?;
        if let Some(keep) = keep_log {
            store::keep_log(dir, &fs, keep)?;
        }
        Ok(fs)
    }

    fn opened(
        &mut self,
        dir: &Path,
        durability: Durability,
        read_only: bool,
    ) -> Result<Arc<AminoFs>, Error> {
        let engine = self.engine.take();
        if let Some((_, fs)) = self.owned.filter(|(own, _)| real(own) == real(dir)) {
            store::check_engine(dir, fs, engine)?;
            return Ok(fs.with_durability(durability.into()));
        }
        let opening = Opening {
            engine,
            durability,
            create: if read_only {
                Create::Never
            } else {
                self.create
            },
        };
        store::open_or_make(dir, opening, self.caller, self.note)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use goanna_vfs::{Backend, MountOptions, OpenError, SynthFs};

    use super::*;
    use crate::credentials;

    fn mount_point_error(store: &Path, at: &Path) -> Option<MountPointError> {
        match of_store(store.to_owned(), at, Durability::Commit) {
            Err(Error::MountPoint { why, .. }) => Some(why),
            Err(other) => panic!("{other}"),
            Ok(_) => None,
        }
    }

    #[test]
    fn the_store_and_its_mount_point_keep_apart() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let store = top.join("store");
        fs::create_dir(&store).unwrap();
        std::os::unix::fs::symlink(&store, top.join("link")).unwrap();
        let shown = || escape_path(&store);

        assert_eq!(
            mount_point_error(&store, Path::new("amino")),
            Some(MountPointError::Relative)
        );
        assert_eq!(
            mount_point_error(&store, Path::new("/")),
            Some(MountPointError::Root)
        );
        assert_eq!(
            mount_point_error(&store, Path::new("//.")),
            Some(MountPointError::Root)
        );
        let inside = Some(MountPointError::InsideStore(shown()));
        assert_eq!(mount_point_error(&store, &store), inside);
        assert_eq!(mount_point_error(&store, &store.join("deep/er")), inside);
        assert_eq!(mount_point_error(&store, &top.join("link/x")), inside);
        assert_eq!(mount_point_error(&top.join("link"), &store), inside);
        let hides = Some(MountPointError::HidesStore(shown()));
        assert_eq!(mount_point_error(&store, &top), hides);
        assert_eq!(mount_point_error(&store, &top.join("stor")), None);
        assert!(mount_point_error(&top.join("new"), &top.join("new/x")).is_some());
        assert_eq!(mount_point_error(&store, &top.join("other")), None);
    }

    #[test]
    fn paths_are_real_as_far_as_they_exist() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        fs::create_dir(top.join("a")).unwrap();
        std::os::unix::fs::symlink("a", top.join("l")).unwrap();
        assert_eq!(real(&top.join("l/b/c")), top.join("a/b/c"));
        let bytes = top.join(std::ffi::OsString::from_vec(b"\xff/x".to_vec()));
        assert_eq!(real(&bytes), bytes);
    }

    /// A back end that exists only in this test.
    struct Empty;

    impl Backend for Empty {
        fn name(&self) -> &'static str {
            "empty"
        }

        fn open(&self, source: &Path, _: &MountOptions) -> Result<Arc<dyn FileSystem>, OpenError> {
            match source.exists() {
                true => Ok(Arc::new(SynthFs::default())),
                false => Err(OpenError::Source {
                    why: "nothing here".into(),
                    hint: Some("a hint"),
                }),
            }
        }
    }

    fn mount(types: MountTypes, spec: &MountSpec) -> Result<MountedStores, Error> {
        let builder = Builder {
            types,
            caller: &credentials::current(),
            owned: None,
            engine: None,
            keep_log: None,
            create: Create::Never,
            note: &|_| {},
        };
        build(std::slice::from_ref(spec), builder)
    }

    #[test]
    fn a_back_end_in_the_list_is_mounted_by_its_name() {
        const TYPES: MountTypes = &[MountType::Backend(&Empty)];
        let parse = |text: &[u8]| MountSpec::parse(TYPES, text).unwrap();
        assert!(mount(TYPES, &parse(b"empty=/:/mnt")).is_ok());
        match mount(TYPES, &parse(b"empty=/nonexistent:/mnt")) {
            Err(error @ Error::Source { hint, .. }) => {
                assert_eq!(error.to_string(), "/nonexistent: nothing here");
                assert_eq!(hint, Some("a hint"));
            }
            _ => panic!("it is mounted"),
        }
        let other = mount(&[], &parse(b"empty=/:/mnt"));
        assert!(matches!(other, Err(Error::UnknownType(name)) if name == "empty"));
    }
}
