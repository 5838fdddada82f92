//! `goanna aes`: volumes in gocryptfs's format.

use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use goanna_aesfs::format::config::Features;
use goanna_aesfs::format::content;
use goanna_aesfs::format::keys::MasterKey;
use goanna_aesfs::format::names::NameKind;
use goanna_aesfs::{AesFs, Error as AesError, Finding, PasswordSource, Secret, Volume};
use goanna_passfs::PassFs;
use goanna_session::credentials;
use goanna_vfs::{FileSystem, escape_path};
use serde_json::{Map, Value, json};

use crate::args::aes::{self, Cipher, Command, Names};
use crate::error::Error;
use crate::prompt;
use crate::report::lines::Lines;
use crate::report::{messages, names};

/// The exit status of fsck when the volume has errors.
const FOUND: u8 = 26;

/// `goanna aes`.
pub fn aes(args: &aes::Aes) -> Result<u8, Error> {
    match &args.command {
        Command::Init(args) => init(args),
        Command::Info(args) => info(args),
        Command::Passwd(args) => passwd(args),
        Command::Fsck(args) => fsck(args),
    }
}

/// The source of the password: an option, else the terminal, or standard input if that is not a terminal, as for gocryptfs.
fn source(file: Option<&Path>, command: Option<&std::ffi::OsString>) -> PasswordSource {
    match PasswordSource::named(file, command.map(|command| command.as_bytes())) {
        Some(PasswordSource::File(path)) if path == Path::new("-") => PasswordSource::Stdin,
        Some(named) => named,
        None if std::io::stdin().is_terminal() => PasswordSource::Terminal,
        None => PasswordSource::Stdin,
    }
}

fn password(volume: &aes::Volume) -> Result<Secret, Error> {
    let source = source(volume.passfile.as_deref(), volume.extpass.as_ref());
    let read = source.read("Password: ", prompt::password);
    read.map_err(|why| Error::volume(&volume.dir, why))
}

/// Reads a new password, from the terminal twice.
fn new_password(dir: &Path, source: &PasswordSource) -> Result<Secret, Error> {
    let wrong = |why| Error::volume(dir, why);
    let ask = |prompt| source.read(prompt, prompt::password).map_err(wrong);
    let first = ask("New password: ")?;
    if matches!(source, PasswordSource::Terminal) {
        let second = ask("The same again: ")?;
        if first.bytes() != second.bytes() {
            let why = AesError::ReadPassword("the two are not the same".into());
            return Err(wrong(why));
        }
    }
    Ok(first)
}

fn init(args: &aes::Init) -> Result<u8, Error> {
    let volume = &args.volume;
    let has_long_names = true;
    let encrypted = |has_dir_iv| NameKind::Encrypted {
        has_dir_iv,
        has_long_names,
        long_name_max: usize::from(args.long_name_max),
        is_padded: false,
    };
    let features = Features {
        cipher: match args.cipher {
            Cipher::AesGcm => content::Cipher::Gcm,
            Cipher::Xchacha => content::Cipher::XChaCha,
            Cipher::AesSiv => content::Cipher::Siv,
        },
        names: match args.names {
            Names::Encrypted => encrypted(true),
            Names::Deterministic => encrypted(false),
            Names::Plain => NameKind::Plain,
        },
        hkdf: true,
    };
    let wrong = |why| Error::volume(&volume.dir, why);
    Volume::check_new(&volume.dir).map_err(wrong)?;
    let source = source(volume.passfile.as_deref(), volume.extpass.as_ref());
    let password = new_password(&volume.dir, &source)?;
    let config = volume.config.as_deref();
    let (_, master) =
        Volume::create(&volume.dir, config, &features, args.scrypt_n, &password).map_err(wrong)?;
    let text = master.text();
    let text = String::from_utf8_lossy(text.bytes());
    let mut lines = Lines::default();
    lines.put_text("master key", text.into_owned());
    lines.print(false)?;
    Ok(0)
}

fn info(args: &aes::Info) -> Result<u8, Error> {
    let volume = Volume::open(&args.dir, args.config.as_deref());
    let volume = volume.map_err(|why| Error::volume(&args.dir, why))?;
    let config = volume.config();
    let features = config
        .features()
        .map_err(|why| Error::volume(&args.dir, why))?;
    let contents = match features.cipher {
        content::Cipher::Gcm => "AES-256-GCM",
        content::Cipher::XChaCha => "XChaCha20-Poly1305",
        content::Cipher::Siv => "AES-256-SIV",
    };
    let how = match features.names {
        NameKind::Plain => "plain",
        kind if kind.has_dir_iv() => "encrypted",
        NameKind::Encrypted { .. } => "deterministic",
    };
    let mut lines = Lines::default();
    lines.put_path("volume", "volume", &args.dir);
    let creator = names::escape(config.creator.as_bytes());
    lines.put("creator", "creator", &creator, config.creator.as_str());
    lines.put("version", "version", 2, 2);
    let flags = config.feature_flags();
    lines.put("features", "features", flags.join(" "), flags);
    lines.put("contents", "contents", contents, contents);
    lines.put("names", "names", how, how);
    let scrypt = config.scrypt();
    let text = format!(
        "N={} R={} P={} key of {} bytes, salt of {} bytes",
        scrypt.n,
        scrypt.r,
        scrypt.p,
        scrypt.key_len,
        scrypt.salt.len()
    );
    let json = json!({
        "n": scrypt.n,
        "r": scrypt.r,
        "p": scrypt.p,
        "key_bytes": scrypt.key_len,
        "salt_bytes": scrypt.salt.len(),
    });
    lines.put("scrypt", "scrypt", text, json);
    lines.print(args.json)?;
    Ok(0)
}

/// The master key, by itself or by the password.
fn master_key(
    volume: &aes::Volume,
    opened: &Volume,
    masterkey: Option<aes::MasterKey>,
) -> Result<MasterKey, Error> {
    let wrong = |why| Error::volume(&volume.dir, why);
    match masterkey {
        Some(aes::MasterKey::Stdin) => {
            let text = PasswordSource::Stdin
                .read("", prompt::password)
                .map_err(wrong)?;
            MasterKey::parse(text.bytes()).map_err(wrong)
        }
        None => opened.unlock(&password(volume)?).map_err(wrong),
    }
}

fn passwd(args: &aes::Passwd) -> Result<u8, Error> {
    let volume = &args.volume;
    let wrong = |why| Error::volume(&volume.dir, why);
    let mut opened = Volume::open(&volume.dir, volume.config.as_deref()).map_err(wrong)?;
    let master = master_key(volume, &opened, args.masterkey)?;
    let source = source(args.new_passfile.as_deref(), args.new_extpass.as_ref());
    let password = new_password(&volume.dir, &source)?;
    let backup = opened
        .change_password(&password, &master, args.scrypt_n)
        .map_err(wrong)?;
    messages::line(&format!(
        "the old config file, which the old password opens, is {}",
        escape_path(&backup)
    ));
    Ok(0)
}

fn fsck(args: &aes::Fsck) -> Result<u8, Error> {
    let volume = &args.volume;
    let wrong = |why| Error::volume(&volume.dir, why);
    let opened = Volume::open(&volume.dir, volume.config.as_deref()).map_err(wrong)?;
    let master = master_key(volume, &opened, args.masterkey)?;
    let lower = PassFs::new(&volume.dir)
        .map_err(|why| Error::host(&volume.dir, std::io::Error::other(why.to_string())))?;
    let features = opened.config().features().map_err(wrong)?;
    let quiet = Box::new(|_: &[u8], _| {});
    let root = lower.root();
    let fs = AesFs::new(Arc::new(lower), root, &features, &master, None, quiet).map_err(wrong)?;
    let mut findings: Vec<Finding> = Vec::new();
    let checked = fs.check(&credentials::current(), &mut |finding| {
        findings.push(finding);
    });
    let mut lines = Lines::default();
    for (label, key, count) in [
        ("directories", "directories", checked.directories),
        ("files", "files", checked.files),
        ("symbolic links", "links", checked.links),
        ("other entries", "special", checked.special),
        ("bytes", "bytes", checked.bytes),
    ] {
        lines.put(label, key, count, count);
    }
    for finding in &findings {
        let path = names::escape(&finding.path);
        lines.put_text("wrong", format!("/{path}: {}", finding.problem));
    }
    let all = findings.iter().map(|finding| {
        let mut json = Map::new();
        names::put(&mut json, "path", &finding.path);
        json.insert("problem".into(), finding.problem.to_string().into());
        Value::Object(json)
    });
    lines.put_json("findings", all.collect::<Vec<_>>());
    if findings.is_empty() {
        lines.put_text("wrong", "nothing");
    }
    lines.print(args.json)?;
    Ok(if findings.is_empty() { 0 } else { FOUND })
}
