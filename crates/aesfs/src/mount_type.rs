//! The type of mount `aes`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use goanna_passfs::PassFs;
use goanna_vfs::{
    Backend, Caller, FileSystem, MountOption, MountOptions, Node, OpenError, escape, escape_path,
};

use crate::password::{Ask, PasswordSource};
use crate::{AesFs, Damage, Error, Volume};

/// `aes=/cipher/dir:/plain[,passfile=F][,extpass=COMMAND][,config=F][,memory=SIZE]`: shows an encrypted directory in plain. The directory may be in another
/// mount of the run, such as a store's.
pub struct AesBackend {
    /// Asks the user for the password if no option names its source.
    pub ask: Ask,
    /// Receives reports of damage: the volume and the plain path in it.
    pub report: fn(&Path, &[u8], Damage),
}

impl Backend for AesBackend {
    fn name(&self) -> &'static str {
        "aes"
    }

    fn options(&self) -> &'static [MountOption] {
        const fn option(name: &'static str, value: &'static str) -> MountOption {
            MountOption {
                name,
                value: Some(value),
            }
        }
        const OPTIONS: [MountOption; 4] = [
            option("passfile", "FILE"),
            option("extpass", "COMMAND"),
            option("config", "FILE"),
            option("memory", "SIZE"),
        ];
        &OPTIONS
    }

    fn check(&self, options: &MountOptions) -> Result<(), String> {
        if options.has("passfile") && options.has("extpass") {
            return Err("passfile and extpass both".into());
        }
        if let Some(text) = options.value("memory")
            && size(text).is_none()
        {
            let text = escape(text);
            return Err(format!(
                "memory={text}: not a number of bytes, or of K, M, G or T"
            ));
        }
        for name in ["passfile", "config"] {
            if let Some(path) = options.value(name).filter(|path| !path.starts_with(b"/")) {
                return Err(format!("{name}={}: not an absolute path", escape(path)));
            }
        }
        Ok(())
    }

    fn open(
        &self,
        source: &Path,
        options: &MountOptions,
    ) -> Result<Arc<dyn FileSystem>, OpenError> {
        self.open_on_host(source, options).map_err(open_error)
    }

    fn open_over(
        &self,
        lower: &Arc<dyn FileSystem>,
        dir: &Node,
        source: &Path,
        options: &MountOptions,
    ) -> Option<Result<Arc<dyn FileSystem>, OpenError>> {
        let volume = match config_elsewhere(options) {
            None => Volume::open_in(&**lower, &Caller::own(), dir),
            config => Volume::open(source, config),
        };
        let opened = volume.and_then(|volume| {
            self.unlock((Arc::clone(lower), dir.clone()), &volume, source, options)
        });
        Some(opened.map_err(open_error))
    }
}

impl AesBackend {
    fn open_on_host(
        &self,
        dir: &Path,
        options: &MountOptions,
    ) -> Result<Arc<dyn FileSystem>, Error> {
        let lower = PassFs::new(dir).map_err(|error| match error {
            goanna_passfs::Error::Directory { errno, .. } => Error::Host(errno.into()),
            error => Error::Host(std::io::Error::other(error.to_string())),
        })?;
        let volume = Volume::open(dir, config_elsewhere(options))?;
        let root = lower.root();
        self.unlock((Arc::new(lower), root), &volume, dir, options)
    }

    /// Opens the volume whose top directory is `root` in `lower`; messages name it `dir`.
    fn unlock(
        &self,
        (lower, root): (Arc<dyn FileSystem>, Node),
        volume: &Volume,
        dir: &Path,
        options: &MountOptions,
    ) -> Result<Arc<dyn FileSystem>, Error> {
        let source = PasswordSource::named(path(options, "passfile"), options.value("extpass"));
        let source = source.unwrap_or(PasswordSource::Terminal);
        // Before there are secrets. Without it, programs ask the monitor for each open.
        let _ = goanna_sys::table_holder::start();
        let password = source.read(&format!("Password of {}: ", escape_path(dir)), self.ask)?;
        // The process now holds keys, and programs of the run have the same user: they must not be able to trace it.
        goanna_sys::secret::forbid_reading().map_err(|errno| Error::Memory(errno.into()))?;
        let master = volume.unlock(&password)?;
        let (report, source) = (self.report, dir.to_owned());
        let fs = AesFs::new(
            lower,
            root,
            &volume.config().features()?,
            &master,
            options.value("memory").and_then(size),
            Box::new(move |path, damage| report(&source, path, damage)),
        )?;
        Ok(Arc::new(fs))
    }
}

fn path<'a>(options: &'a MountOptions, name: &str) -> Option<&'a Path> {
    let value = options.value(name);
    value.map(|path| Path::new(OsStr::from_bytes(path)))
}

/// A number of bytes, perhaps with a unit of 1024 bytes, its square and so on: `512M`.
fn size(text: &[u8]) -> Option<u64> {
    let (digits, shift) = match text {
        [digits @ .., b'K'] => (digits, 10),
        [digits @ .., b'M'] => (digits, 20),
        [digits @ .., b'G'] => (digits, 30),
        [digits @ .., b'T'] => (digits, 40),
        digits => (digits, 0),
    };
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    is_number.then_some(())?;
    number.checked_mul(1 << shift)
}

fn config_elsewhere(options: &MountOptions) -> Option<&Path> {
    path(options, "config")
}

fn open_error(error: Error) -> OpenError {
    let hint = match &error {
        Error::ReadConfig(why) if why.kind() == std::io::ErrorKind::NotFound => {
            Some("goanna aes init makes a volume; config=FILE names a config file elsewhere")
        }
        Error::Memory(_) => Some("raise the limit on locked memory: ulimit -l"),
        _ => None,
    };
    match error {
        Error::Host(why) => OpenError::Host(why),
        error => OpenError::Source {
            why: error.to_string(),
            hint,
        },
    }
}
