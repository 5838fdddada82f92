//! The config file: `gocryptfs.conf`.

use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use super::content::{Cipher, ContentCipher};
use super::keys::{KEY, MasterKey, ScryptParams, Secret};
use super::names::NameKind;
use crate::Error;

/// The version of the format.
const VERSION: u64 = 2;

/// The largest config file that is read, bytes.
pub const MAX_BYTES: usize = 64 << 10;

/// The config file, as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Config {
    /// The program that made the volume.
    #[serde(default)]
    pub creator: String,
    /// The master key, encrypted under a key that is derived from the password.
    #[serde(with = "super::base64_text")]
    encrypted_key: Vec<u8>,
    /// How that key is derived.
    scrypt_object: ScryptParams,
    version: u64,
    feature_flags: Vec<String>,
    /// Length in bytes from which on encrypted names are stored as long names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    long_name_max: Option<u64>,
}

/// The features of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// How contents are encrypted.
    pub cipher: Cipher,
    /// How names are encrypted.
    pub names: NameKind,
    /// Whether keys are derived with HKDF (gocryptfs 1.3 and newer).
    pub hkdf: bool,
}

/// The features that this version knows.
const KNOWN: [&str; 10] = [
    "PlaintextNames",
    "DirIV",
    "EMENames",
    "GCMIV128",
    "LongNames",
    "LongNameMax",
    "AESSIV",
    "XChaCha20Poly1305",
    "Raw64",
    "HKDF",
];

impl Config {
    /// The config of a new volume with this master key, and its text.
    pub fn create(
        features: &Features,
        log_n: u8,
        password: &Secret,
        master: &MasterKey,
    ) -> Result<Self, Error> {
        let mut config = Self {
            creator: format!("goanna {}", env!("CARGO_PKG_VERSION")),
            encrypted_key: Vec::new(),
            scrypt_object: ScryptParams::new(log_n)?,
            version: VERSION,
            feature_flags: features.flags(),
            long_name_max: match features.names {
                NameKind::Encrypted { long_name_max, .. } if long_name_max < 255 => {
                    Some(long_name_max as u64)
                }
                _ => None,
            },
        };
        config.encrypt_key(password, master)?;
        Ok(config)
    }

    /// Reads the text of a config file. Refuses other versions, and unknown features by their names.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        /// Only the version is read first: another version may have other fields.
        #[derive(Deserialize)]
        struct Any {
            #[serde(rename = "Version")]
            version: u64,
        }
        let wrong = |error: serde_json::Error| Error::Config(error.to_string());
        if text.len() > MAX_BYTES {
            return Err(Error::Config("too large".into()));
        }
        let any: Any = serde_json::from_slice(text).map_err(wrong)?;
        if any.version != VERSION {
            return Err(Error::Version(any.version));
        }
        let config: Self = serde_json::from_slice(text).map_err(wrong)?;
        config.features()?;
        config.scrypt_object.check()?;
        Ok(config)
    }

    /// The text of the config file.
    pub fn text(&self) -> Result<Vec<u8>, Error> {
        let mut text = Vec::new();
        let tabs = serde_json::ser::PrettyFormatter::with_indent(b"\t");
        let mut to = serde_json::Serializer::with_formatter(&mut text, tabs);
        self.serialize(&mut to)
            .map_err(|error| Error::Config(error.to_string()))?;
        text.push(b'\n');
        Ok(text)
    }

    /// The names of the features, as in the file.
    pub fn feature_flags(&self) -> &[String] {
        &self.feature_flags
    }

    /// How the password's key is derived.
    pub fn scrypt(&self) -> &ScryptParams {
        &self.scrypt_object
    }

    /// Bytes of the encrypted master key.
    pub fn encrypted_key_len(&self) -> usize {
        self.encrypted_key.len()
    }

    /// The features, parsed.
    pub fn features(&self) -> Result<Features, Error> {
        let has = |name: &str| self.feature_flags.iter().any(|flag| flag == name);
        if let Some(unknown) = self
            .feature_flags
            .iter()
            .find(|flag| !KNOWN.contains(&&***flag))
        {
            return Err(Error::Feature(unknown.clone()));
        }
        let wrong = |why: &str| Err(Error::Config(format!("FeatureFlags: {why}")));
        let cipher = match (has("XChaCha20Poly1305"), has("AESSIV"), has("GCMIV128")) {
            (true, false, false) => Cipher::XChaCha,
            (false, true, true) => Cipher::Siv,
            (false, false, true) => Cipher::Gcm,
            (false, false, false) => {
                return wrong("none of GCMIV128, AESSIV and XChaCha20Poly1305");
            }
            _ => return wrong("two ciphers for contents"),
        };
        let hkdf = has("HKDF");
        if cipher == Cipher::XChaCha && !hkdf {
            return wrong("XChaCha20Poly1305 without HKDF");
        }
        let names = if has("PlaintextNames") {
            let encrypts = ["DirIV", "EMENames", "LongNames", "LongNameMax", "Raw64"];
            if encrypts.into_iter().any(has) {
                return wrong("PlaintextNames together with features of encrypted names");
            }
            NameKind::Plain
        } else {
            if !has("EMENames") {
                return wrong("neither EMENames nor PlaintextNames");
            }
            NameKind::Encrypted {
                has_dir_iv: has("DirIV"),
                has_long_names: has("LongNames"),
                long_name_max: self.long_name_max(has("LongNameMax"))?,
                is_padded: !has("Raw64"),
            }
        };
        Ok(Features {
            cipher,
            names,
            hkdf,
        })
    }

    fn long_name_max(&self, has_limit: bool) -> Result<usize, Error> {
        let limit = match (has_limit, self.long_name_max) {
            (false, None | Some(0)) => 255,
            (true, Some(limit)) => limit,
            _ => return Err(Error::Config("LongNameMax without its feature".into())),
        };
        let limit = usize::try_from(limit)
            .ok()
            .filter(|it| (62..=255).contains(it));
        limit.ok_or_else(|| Error::Config("LongNameMax is not from 62 to 255".into()))
    }

    /// The master key. [`Error::Password`] for a wrong password, and for a key that was altered.
    pub fn unlock(&self, password: &Secret) -> Result<MasterKey, Error> {
        let cipher = self.key_cipher(password)?;
        let mut key = [0; KEY];
        let result = cipher
            .decrypt(&self.encrypted_key, 0, None, &mut key)
            .map_err(|_| Error::Password)
            .and_then(|()| MasterKey::from_bytes(&mut key));
        key.zeroize();
        result
    }

    /// Encrypts the master key under another password, with a new salt and perhaps another cost.
    pub fn change_password(
        &mut self,
        password: &Secret,
        master: &MasterKey,
        log_n: Option<u8>,
    ) -> Result<(), Error> {
        let log_n =
            log_n.unwrap_or(u8::try_from(self.scrypt_object.n.trailing_zeros()).unwrap_or(16));
        self.scrypt_object = ScryptParams::new(log_n)?;
        self.encrypt_key(password, master)
    }

    fn encrypt_key(&mut self, password: &Secret, master: &MasterKey) -> Result<(), Error> {
        if password.bytes().is_empty() {
            return Err(Error::EmptyPassword);
        }
        let cipher = self.key_cipher(password)?;
        self.encrypted_key.clear();
        cipher.encrypt(master.bytes(), 0, None, &mut self.encrypted_key)
    }

    /// The cipher that encrypts the master key: AES-GCM, whatever encrypts the contents.
    fn key_cipher(&self, password: &Secret) -> Result<ContentCipher, Error> {
        let hkdf = self.features()?.hkdf;
        if !hkdf {
            // Until gocryptfs 1.2 the master key was encrypted with a nonce of 96 bits.
            return Err(Error::Feature("a master key from before HKDF".into()));
        }
        let key = self.scrypt_object.derive(password)?;
        ContentCipher::under(Cipher::Gcm, &key, hkdf)
    }
}

impl Features {
    /// The features' names, in gocryptfs's order.
    fn flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        let mut flag = |is_set: bool, name: &str| {
            if is_set {
                flags.push(name.to_owned());
            }
        };
        flag(self.hkdf, "HKDF");
        flag(self.cipher == Cipher::XChaCha, "XChaCha20Poly1305");
        flag(self.cipher != Cipher::XChaCha, "GCMIV128");
        match self.names {
            NameKind::Plain => flag(true, "PlaintextNames"),
            NameKind::Encrypted {
                has_dir_iv,
                has_long_names,
                long_name_max,
                is_padded,
            } => {
                flag(has_dir_iv, "DirIV");
                flag(long_name_max < 255, "LongNameMax");
                flag(true, "EMENames");
                flag(has_long_names, "LongNames");
                flag(!is_padded, "Raw64");
            }
        }
        flag(self.cipher == Cipher::Siv, "AESSIV");
        flags
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const NAMES: NameKind = NameKind::Encrypted {
        has_dir_iv: true,
        has_long_names: true,
        long_name_max: 255,
        is_padded: false,
    };

    fn made(features: &Features) -> (Config, MasterKey) {
        let master = MasterKey::random().unwrap();
        let password = Secret::new(b"pw".to_vec());
        let config = Config::create(features, 10, &password, &master).unwrap();
        (config, master)
    }

    #[test]
    fn a_config_comes_back_from_its_text() {
        for cipher in [Cipher::Gcm, Cipher::Siv, Cipher::XChaCha] {
            for names in [NAMES, NameKind::Plain] {
                let features = Features {
                    cipher,
                    names,
                    hkdf: true,
                };
                let (config, master) = made(&features);
                let back = Config::parse(&config.text().unwrap()).unwrap();
                assert_eq!(back.features().unwrap(), features);
                let key = back.unlock(&Secret::new(b"pw".to_vec())).unwrap();
                assert_eq!(key.bytes(), master.bytes());
                let wrong = back.unlock(&Secret::new(b"pw2".to_vec()));
                assert!(matches!(wrong, Err(Error::Password)));
            }
        }
    }

    fn text_with(from: &str, to: &str) -> Vec<u8> {
        let features = Features {
            cipher: Cipher::Gcm,
            names: NAMES,
            hkdf: true,
        };
        let text = String::from_utf8(made(&features).0.text().unwrap()).unwrap();
        assert!(text.contains(from), "{text}");
        text.replacen(from, to, 1).into_bytes()
    }

    #[test]
    fn unknown_features_are_refused_by_name() {
        let error = Config::parse(&text_with("\"DirIV\"", "\"FIDO2\"")).unwrap_err();
        assert!(
            matches!(&error, Error::Feature(name) if name == "FIDO2"),
            "{error}"
        );
    }

    /// gocryptfs 1.2 and older encrypted the master key with another length of nonces.
    #[test]
    fn a_master_key_from_before_hkdf_is_refused_by_name() {
        let config = Config::parse(&text_with("\"HKDF\",", "")).unwrap();
        let unlocked = config.unlock(&Secret::new(b"pw".to_vec()));
        let is_named = |error: &Error| matches!(error, Error::Feature(name) if name == "a master key from before HKDF");
        assert!(unlocked.err().as_ref().is_some_and(is_named));
    }

    #[test]
    fn other_versions_and_bad_fields_are_refused() {
        let version = Config::parse(&text_with("\"Version\": 2", "\"Version\": 3"));
        assert!(matches!(version, Err(Error::Version(3))));
        for (from, to) in [
            ("\"N\": 1024", "\"N\": 1023"),
            ("\"N\": 1024", "\"N\": 4611686018427387904"),
            ("\"R\": 8", "\"R\": 4294967295"),
            ("\"P\": 1", "\"P\": 0"),
            ("\"KeyLen\": 32", "\"KeyLen\": 16"),
            ("\"DirIV\"", "\"AESSIV\",\"XChaCha20Poly1305\""),
            ("\"DirIV\"", "\"PlaintextNames\""),
            ("\"DirIV\"", "\"LongNameMax\""),
            ("\"GCMIV128\",", ""),
            ("\"EMENames\",", ""),
            ("\"Salt\": \"", "\"Salt\": \"!"),
            ("{", "["),
        ] {
            let error = Config::parse(&text_with(from, to)).unwrap_err();
            assert!(matches!(error, Error::Config(_)), "{to}: {error}");
        }
    }

    /// Cut off, and altered at random places: an error or a config, never a panic.
    #[test]
    fn damaged_text_never_panics() {
        let text = text_with("", "");
        let mut random = fastrand::Rng::with_seed(14);
        for len in 0..text.len() {
            let _ = Config::parse(&text[..len]);
        }
        for _ in 0..20_000 {
            let mut altered = text.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..altered.len());
                altered[at] = random.u8(..);
            }
            if let Ok(config) = Config::parse(&altered) {
                config.scrypt().check().unwrap();
            }
        }
    }

    #[test]
    fn master_keys_come_back_from_their_text() {
        let key = MasterKey::random().unwrap();
        let text = key.text();
        assert_eq!(text.bytes().len(), 71);
        assert_eq!(MasterKey::parse(text.bytes()).unwrap().bytes(), key.bytes());
        for wrong in [&b"00"[..], &[b'0'; 63], &[b'0'; 66], &[b'g'; 64]] {
            assert!(MasterKey::parse(wrong).is_err());
        }
    }
}
