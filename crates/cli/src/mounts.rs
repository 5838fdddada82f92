//! Builds the mount table: the one place that picks back ends.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use amino_fs::AminoFs;
use goanna_isofs::{Iso, IsoFs};
use goanna_passfs::PassFs;
use goanna_vfs::{Caller, FileSystem, MountFlags, Mounts};

use crate::args::amino::How;
use crate::args::{Engine, Level};
use crate::error::{AtError, Error};
use crate::report::names;
use crate::spec::{MountSpec, Source};
use crate::store::{self, Create, Opening};
use crate::tab;

/// An open store and its directory.
pub type OpenStore = (PathBuf, Arc<AminoFs>);

/// The mounts of a run, and the stores among them, which are to be closed at its end.
pub struct Built {
    /// The table.
    pub mounts: Mounts,
    /// Open stores.
    pub stores: Vec<OpenStore>,
}

/// The mounts of `--config` and then of `--mount`.
pub fn requested(how: &How) -> Result<Vec<MountSpec>, Error> {
    let mut specs = Vec::new();
    if let Some(file) = &how.config {
        let text = fs::read(file).map_err(|why| Error::host(file, why))?;
        specs = tab::parse(&text).map_err(|(line, why)| Error::Tab {
            file: file.clone(),
            line,
            why,
        })?;
    }
    for text in &how.mount {
        let spec = MountSpec::parse(text.as_bytes()).map_err(|why| Error::Spec {
            spec: text.as_bytes().to_vec(),
            why,
        })?;
        specs.push(spec);
    }
    Ok(specs)
}

/// What `amino run` mounts by itself.
pub fn own(dir: PathBuf, at: &Path, durability: Level) -> Result<MountSpec, Error> {
    let spec = MountSpec {
        source: Source::Amino { dir, durability },
        target: at.as_os_str().as_bytes().to_vec(),
        read_only: false,
        no_exec: false,
    };
    check_at(&spec)?;
    Ok(spec)
}

/// Whether a mount at `at` hides files of the host.
pub fn hides_host(at: &Path) -> bool {
    let entries = fs::read_dir(at);
    entries.is_ok_and(|mut entries| entries.next().is_some())
}

/// A store's mount point is a real place below the root that neither holds the store nor lies in it.
fn check_at(spec: &MountSpec) -> Result<(), Error> {
    let at = Path::new(std::ffi::OsStr::from_bytes(&spec.target));
    let fail = |why| {
        Err(Error::At {
            at: spec.target.clone(),
            why,
        })
    };
    if !at.is_absolute() {
        return fail(AtError::Relative);
    }
    if !at.components().any(|c| matches!(c, Component::Normal(_))) {
        return fail(AtError::Root);
    }
    let (place, store) = (real(at), real(spec.source.dir()));
    if place.starts_with(&store) {
        return fail(AtError::InsideStore(names::escape_path(&store)));
    }
    if store.starts_with(&place) {
        return fail(AtError::HidesStore(names::escape_path(&store)));
    }
    Ok(())
}

/// `path` without symbolic links as far as it exists, absolute.
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

/// Opens what is to be mounted, in order, but for the store that is `owned`. `engine` is for the first store, when it is
/// made now; `create` says where stores may be made, which `note` is told of.
pub fn build(
    specs: &[MountSpec],
    engine: Option<Engine>,
    create: Create,
    caller: &Caller,
    owned: Option<&OpenStore>,
    note: impl Fn(&str),
) -> Result<Built, Error> {
    let host = PassFs::host().map_err(Error::from_pass)?;
    let mut built = Built {
        mounts: Mounts::new(Arc::new(host)),
        stores: Vec::new(),
    };
    let mut engine = engine;
    for spec in specs {
        let fs: Arc<dyn FileSystem> = match &spec.source {
            Source::Pass { dir } => Arc::new(PassFs::new(dir).map_err(Error::from_pass)?),
            Source::Iso { image, options } => {
                let iso = Iso::open_file(image, options);
                Arc::new(IsoFs::new(iso.map_err(|why| Error::iso(image, why))?))
            }
            Source::Amino { dir, durability } => {
                check_at(spec)?;
                if built
                    .stores
                    .iter()
                    .any(|(other, _)| real(other) == real(dir))
                {
                    return Err(Error::Twice(dir.clone()));
                }
                let engine = engine.take();
                let fs = match owned.filter(|(own, _)| real(own) == real(dir)) {
                    Some((_, fs)) => {
                        store::check_engine(dir, fs, engine)?;
                        fs.with_durability(store::durability(*durability))
                    }
                    None => {
                        let opening = Opening {
                            engine,
                            durability: *durability,
                            create: if spec.read_only {
                                Create::Never
                            } else {
                                create
                            },
                        };
                        store::open_or_make(dir, opening, caller, &note)?
                    }
                };
                built.stores.push((dir.clone(), Arc::clone(&fs)));
                fs
            }
        };
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::READ_ONLY, spec.read_only);
        flags.set(MountFlags::NO_EXEC, spec.no_exec);
        built
            .mounts
            .add(caller, &spec.target, fs, flags, spec.source_text())
            .map_err(|why| Error::Mount {
                target: spec.target.clone(),
                why,
            })?;
    }
    Ok(built)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn at_error(store: &Path, at: &Path) -> Option<AtError> {
        match own(store.to_owned(), at, Level::Commit) {
            Err(Error::At { why, .. }) => Some(why),
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
        let shown = || names::escape_path(&store);

        assert_eq!(
            at_error(&store, Path::new("amino")),
            Some(AtError::Relative)
        );
        assert_eq!(at_error(&store, Path::new("/")), Some(AtError::Root));
        assert_eq!(at_error(&store, Path::new("//.")), Some(AtError::Root));
        let inside = Some(AtError::InsideStore(shown()));
        assert_eq!(at_error(&store, &store), inside);
        assert_eq!(at_error(&store, &store.join("deep/er")), inside);
        assert_eq!(at_error(&store, &top.join("link/x")), inside);
        assert_eq!(at_error(&top.join("link"), &store), inside);
        let hides = Some(AtError::HidesStore(shown()));
        assert_eq!(at_error(&store, &top), hides);
        assert_eq!(at_error(&store, &top.join("stor")), None);
        assert!(at_error(&top.join("new"), &top.join("new/x")).is_some());
        assert_eq!(at_error(&store, &top.join("other")), None);
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
}
