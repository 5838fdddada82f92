//! The type of mount `iso`.

use std::path::Path;
use std::sync::Arc;

use goanna_vfs::{Backend, FileSystem, MountOption, MountOptions, OpenError, escape};

use crate::{Error, Iso, IsoFs, Namespace, Options};

/// `iso=/image.iso:/mnt[,rockridge|joliet|plain][,session=N]`: shows an ISO 9660 image.
pub struct IsoBackend;

impl Backend for IsoBackend {
    fn name(&self) -> &'static str {
        "iso"
    }

    fn options(&self) -> &'static [MountOption] {
        const fn option(name: &'static str, value: Option<&'static str>) -> MountOption {
            MountOption { name, value }
        }
        const OPTIONS: [MountOption; 4] = [
            option("rockridge", None),
            option("joliet", None),
            option("plain", None),
            option("session", Some("N")),
        ];
        &OPTIONS
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn check(&self, options: &MountOptions) -> Result<(), String> {
        parse(options).map(drop)
    }

    fn open(
        &self,
        source: &Path,
        options: &MountOptions,
    ) -> Result<Arc<dyn FileSystem>, OpenError> {
        let refused = |why| OpenError::Source { why, hint: None };
        let options = parse(options).map_err(refused)?;
        match Iso::open_file(source, &options) {
            Ok(iso) => Ok(Arc::new(IsoFs::new(iso))),
            Err(Error::Read { offset: 0, source }) => Err(OpenError::Host(source)),
            Err(error) => Err(OpenError::Source {
                hint: error.hint(),
                why: error.to_string(),
            }),
        }
    }
}

fn parse(options: &MountOptions) -> Result<Options, String> {
    let mut parsed = Options::default();
    for (name, namespace) in [
        ("rockridge", Namespace::RockRidge),
        ("joliet", Namespace::Joliet),
        ("plain", Namespace::Plain),
    ] {
        if options.has(name) && parsed.namespace.replace(namespace).is_some() {
            return Err("more than one of joliet, rockridge and plain".into());
        }
    }
    if let Some(value) = options.value("session") {
        let number = str::from_utf8(value).ok().and_then(|it| it.parse().ok());
        let number = number.filter(|number| *number > 0);
        let wrong = || format!("session={}: not a number from 1", escape(value));
        parsed.session = Some(number.ok_or_else(wrong)?);
    }
    Ok(parsed)
}
