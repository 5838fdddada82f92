//! A decoded call, and what it does as far as its arguments tell.

use crate::structures::OPEN_HOW;
use crate::{Operation, Signature, Value};

/// A call whose arguments are decoded.
#[derive(Debug, Clone)]
pub struct DecodedCall {
    /// What it is. `None` for a number that the table does not have.
    pub signature: Option<&'static Signature>,
    /// Call number.
    pub nr: u32,
    /// The six argument registers.
    pub raw: [u64; 6],
    /// One value for each of the signature's parameters.
    pub args: Vec<Value>,
}

impl DecodedCall {
    /// What the call does; `None` for a number that the table does not have.
    pub fn operation(&self) -> Option<Operation> {
        let signature = self.signature?;
        Some(match signature.operation {
            Operation::Open if self.may_create() => Operation::Create,
            Operation::Unlink if self.has_flag("flags", libc::AT_REMOVEDIR) => Operation::Rmdir,
            Operation::Fcntl => self.of_fcntl(),
            Operation::Ioctl => self.of_ioctl(),
            operation => operation,
        })
    }

    /// The flags of a call that opens; `None` for others, and where they could not be read.
    pub fn open_flags(&self) -> Option<u64> {
        let signature = self.signature?;
        if !matches!(signature.operation, Operation::Open | Operation::Create) {
            return None;
        }
        if signature.name == "creat" {
            return Some((libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) as u64);
        }
        let Some(index) = signature.index_of("how") else {
            return self.bits("flags");
        };
        match self.args.get(index)? {
            Value::Bytes { data, .. } => OPEN_HOW.field(data, "flags"),
            _ => None,
        }
    }

    fn may_create(&self) -> bool {
        // memfd_create(2) has other flags.
        let creates = self
            .signature
            .is_some_and(|one| one.index_of("pathname").is_some());
        let flags = self.open_flags().unwrap_or(0);
        creates && flags & libc::O_CREAT as u64 != 0
    }

    fn has_flag(&self, name: &str, flag: i32) -> bool {
        self.bits(name).is_some_and(|bits| bits & flag as u64 != 0)
    }

    fn bits(&self, name: &str) -> Option<u64> {
        match self.args.get(self.signature?.index_of(name)?)? {
            Value::Unsigned(bits) => Some(*bits),
            _ => None,
        }
    }

    fn of_fcntl(&self) -> Operation {
        match self.bits("op").map(|command| command as i32) {
            Some(libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => Operation::Dup,
            Some(
                libc::F_GETLK
                | libc::F_SETLK
                | libc::F_SETLKW
                | libc::F_OFD_GETLK
                | libc::F_OFD_SETLK
                | libc::F_OFD_SETLKW
                | libc::F_CANCELLK,
            ) => Operation::Lock,
            _ => Operation::Fcntl,
        }
    }

    fn of_ioctl(&self) -> Operation {
        match self.bits("op") {
            Some(libc::FICLONE | libc::FICLONERANGE) => Operation::Copy,
            _ => Operation::Ioctl,
        }
    }
}
