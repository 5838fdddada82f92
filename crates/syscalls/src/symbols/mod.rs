//! Names of values: flags, commands, signals, errors. The values are those of the `libc` crate.

pub mod files;
pub mod memory;
pub mod network;
pub mod numbers;
pub mod other;
pub mod process;

use std::fmt::Write;

/// Names of values.
#[derive(Debug)]
pub struct Symbols {
    /// What they are, as in the man page: `open_flags`, `at_flags`.
    pub name: &'static str,
    /// Of a set of bits: those that together hold one value, such as the access mode in the flags of open(2). All others stand for
    /// themselves.
    pub field: u64,
    /// Each value with its name. Of a set of bits, those of several bits come before those of one.
    pub values: &'static [(u64, &'static str)],
}

impl Symbols {
    /// The name of one value.
    pub fn name_of(&self, value: u64) -> Option<&'static str> {
        let found = self.values.iter().find(|(one, _)| *one == value)?;
        Some(found.1)
    }

    /// The value that has this name.
    pub fn value_of(&self, name: &str) -> Option<u64> {
        let found = self.values.iter().find(|(_, one)| *one == name)?;
        Some(found.0)
    }

    /// A set of bits in words: `O_WRONLY|O_CREAT|0x80000000`.
    pub fn flags(&self, value: u64) -> String {
        let mut text = String::new();
        let mut rest = value & !self.field;
        match self.name_of(value & self.field) {
            // That no bit is set needs a word only where there is no other.
            Some(name) if self.field != 0 || value == 0 => text.push_str(name),
            _ => rest = value,
        }
        for &(bits, name) in self.values {
            if bits != 0 && bits & self.field == 0 && rest & bits == bits {
                rest &= !bits;
                separate(&mut text);
                text.push_str(name);
            }
        }
        if rest != 0 || text.is_empty() {
            separate(&mut text);
            // Writing to a String does not fail.
            let _ = write!(text, "{rest:#x}");
        }
        text
    }
}

fn separate(text: &mut String) {
    if !text.is_empty() {
        text.push('|');
    }
}

/// A value of any integer type, as the low bits of a register hold it.
macro_rules! value {
    ($constant:expr) => {{
        let value = $constant;
        let width = 8 * size_of_val(&value) as u32;
        value as u64 & (u64::MAX >> (64 - width))
    }};
}

/// A table of constants of the `libc` crate under their own names; those after `and` have values that it does not name.
macro_rules! symbols {
    ($(#[$doc:meta])* $table:ident, $name:literal, $field:expr, [$($constant:ident),* $(,)?] $(and [$($more:ident = $value:expr),* $(,)?])?) => {
        $(#[$doc])*
        pub static $table: $crate::Symbols = $crate::Symbols {
            name: $name,
            field: $field,
            values: &[
                $((value!(libc::$constant), stringify!($constant)),)*
                $($(($value, stringify!($more)),)*)?
            ],
        };
    };
}

pub(crate) use {symbols, value};

#[cfg(test)]
mod tests {
    use super::{Symbols, files, memory, network, process};

    #[test]
    fn flags_are_put_into_words() {
        let open = |flags: i32| files::OPEN_FLAGS.flags(u64::from(flags as u32));
        assert_eq!(open(0), "O_RDONLY");
        assert_eq!(open(libc::O_RDWR | libc::O_SYNC), "O_RDWR|O_SYNC");
        assert_eq!(open(libc::O_DSYNC), "O_RDONLY|O_DSYNC");
        let temporary = libc::O_WRONLY | libc::O_TMPFILE;
        assert_eq!(open(temporary), "O_WRONLY|O_TMPFILE");
        assert_eq!(open(3 | 1 << 30), "0x40000003");
        assert_eq!(files::AT_FLAGS.flags(0), "0x0");
        assert_eq!(files::ACCESS_MODES.flags(0), "F_OK");
        assert_eq!(files::ACCESS_MODES.flags(6), "R_OK|W_OK");
        let stream = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        assert_eq!(
            network::SOCKET_TYPES.flags(stream as u64),
            "SOCK_STREAM|SOCK_CLOEXEC"
        );
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        assert_eq!(
            memory::MAP_FLAGS.flags(private as u64),
            "MAP_PRIVATE|MAP_ANONYMOUS"
        );
        let thread = libc::CLONE_VM | libc::CLONE_IO | libc::SIGCHLD;
        assert_eq!(
            process::CLONE_FLAGS.flags(u64::from(thread as u32)),
            "SIGCHLD|CLONE_VM|CLONE_IO"
        );
    }

    #[test]
    fn bits_of_several_come_before_those_of_one() {
        let tables: [&Symbols; 3] = [
            &files::OPEN_FLAGS,
            &memory::MAP_FLAGS,
            &process::CLONE_FLAGS,
        ];
        for table in tables {
            for (at, (later, name)) in table.values.iter().enumerate() {
                let hidden = table.values[..at].iter().any(|(earlier, _)| {
                    *earlier & table.field == 0 && *earlier != 0 && later & earlier == *earlier
                });
                assert!(!hidden, "{name} never shows");
            }
        }
    }
}
