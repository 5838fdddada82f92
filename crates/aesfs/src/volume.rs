//! A volume in a directory of the host: makes it, opens it, and changes its password.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use goanna_vfs::{Caller, Errno, FileSystem, FsError, Node};

use crate::Error;
use crate::format::CONFIG_FILE;
use crate::format::config::{self, Config, Features};
use crate::format::keys::{self, MasterKey, Secret};
use crate::format::names::{DIR_IV_FILE, DirIv};

/// A volume and its config file. Nothing is decrypted yet.
#[derive(Debug)]
pub struct Volume {
    config_path: PathBuf,
    config: Config,
}

impl Volume {
    /// The volume in `dir`; its config file may lie elsewhere.
    pub fn open(dir: &Path, config: Option<&Path>) -> Result<Self, Error> {
        let config_path = config_path(dir, config);
        let mut text = Vec::new();
        let read = File::open(&config_path).and_then(|file| {
            let limit = config::MAX_BYTES as u64 + 1;
            file.take(limit).read_to_end(&mut text)
        });
        read.map_err(Error::ReadConfig)?;
        Self::of_text(&text, config_path)
    }

    /// The volume in the directory `dir` of a file system, whose config file is there.
    pub fn open_in(fs: &dyn FileSystem, caller: &Caller, dir: &Node) -> Result<Self, Error> {
        let read = || {
            let file = fs.lookup(caller, dir, CONFIG_FILE.as_bytes())?;
            let mut text = vec![0; config::MAX_BYTES + 1];
            let mut len = 0;
            while let Some(rest) = text.get_mut(len..).filter(|rest| !rest.is_empty()) {
                match fs.read_at(caller, &file, len as u64, rest)? {
                    0 => break,
                    got => len += got,
                }
            }
            text.truncate(len);
            Ok(text)
        };
        let text = read().map_err(|error: FsError| {
            let errno = error.errno().unwrap_or(Errno::EAGAIN);
            Error::ReadConfig(errno.into())
        })?;
        Self::of_text(&text, CONFIG_FILE.into())
    }

    fn of_text(text: &[u8], config_path: PathBuf) -> Result<Self, Error> {
        Ok(Self {
            config: Config::parse(text)?,
            config_path,
        })
    }

    /// Fails unless `dir` is an empty directory.
    pub fn check_new(dir: &Path) -> Result<(), Error> {
        let is_empty = fs::read_dir(dir)
            .map_err(Error::NoDirectory)?
            .next()
            .is_none();
        is_empty.then_some(()).ok_or(Error::NotEmpty)
    }

    /// Makes a volume in `dir`, an empty directory. The caller must show the master key to the user once.
    pub fn create(
        dir: &Path,
        config: Option<&Path>,
        features: &Features,
        log_n: u8,
        password: &Secret,
    ) -> Result<(Self, MasterKey), Error> {
        Self::check_new(dir)?;
        let master = MasterKey::random()?;
        let volume = Self {
            config: Config::create(features, log_n, password, &master)?,
            config_path: config_path(dir, config),
        };
        write_new(&volume.config_path, 0o400, &volume.config.text()?)
            .map_err(Error::WriteConfig)?;
        if features.names.has_dir_iv() {
            let mut iv = DirIv::default();
            keys::random(&mut iv)?;
            let path = dir.join(String::from_utf8_lossy(DIR_IV_FILE).as_ref());
            write_new(&path, 0o444, &iv)?;
        }
        sync_dir(&volume.config_path).map_err(Error::WriteConfig)?;
        Ok((volume, master))
    }

    /// Its config file.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The master key. [`Error::Password`] for a wrong password.
    pub fn unlock(&self, password: &Secret) -> Result<MasterKey, Error> {
        self.config.unlock(password)
    }

    /// Encrypts the master key under another password. The old config file is kept beside the new one, with `.bak` added to its name;
    /// its path is returned.
    pub fn change_password(
        &mut self,
        password: &Secret,
        master: &MasterKey,
        log_n: Option<u8>,
    ) -> Result<PathBuf, Error> {
        self.config.change_password(password, master, log_n)?;
        let text = self.config.text()?;
        let with = |suffix: &str| {
            let mut path = self.config_path.clone().into_os_string();
            path.push(suffix);
            PathBuf::from(path)
        };
        let (temporary, backup) = (with(".tmp"), with(".bak"));
        let replace = || {
            remove_if_there(&temporary)?;
            remove_if_there(&backup)?;
            fs::hard_link(&self.config_path, &backup)?;
            write_new(&temporary, 0o400, &text)?;
            fs::rename(&temporary, &self.config_path)?;
            sync_dir(&self.config_path)
        };
        replace().map_err(Error::WriteConfig)?;
        Ok(backup)
    }
}

fn config_path(dir: &Path, config: Option<&Path>) -> PathBuf {
    config.map_or_else(|| dir.join(CONFIG_FILE), Path::to_owned)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Writes a file that must not exist, durably.
fn write_new(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_dir(file: &Path) -> io::Result<()> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}
