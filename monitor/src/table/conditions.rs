//! Conditions on argument registers that the seccomp filter tests.

/// A test of one argument register in the filter: whether `(args[arg] & mask == value) == holds`, for the low or the high 32
/// bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    /// Argument number, 0 to 5.
    pub arg: u8,
    /// Whether the test is on the high 32 bits.
    pub high: bool,
    /// Bits that are compared.
    pub mask: u32,
    /// The value that they are compared with.
    pub value: u32,
    /// Whether they must be equal, or must differ.
    pub holds: bool,
}

impl Condition {
    /// Whether a call with these arguments meets it.
    pub fn is_met(&self, args: &[u64; 6]) -> bool {
        let arg = args.get(usize::from(self.arg)).copied().unwrap_or(0);
        let half = if self.high { arg >> 32 } else { arg } as u32;
        (half & self.mask == self.value) == self.holds
    }
}

/// A test of one argument register in the filter: whether its low 32 bits have one of several values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnyOf {
    /// Argument number, 0 to 5.
    pub arg: u8,
    /// Bits that are compared.
    pub mask: u32,
    /// The values that they are compared with; at most 250.
    pub values: &'static [u32],
}

impl AnyOf {
    /// Whether a call with these arguments meets it.
    pub fn is_met(&self, args: &[u64; 6]) -> bool {
        let arg = args.get(usize::from(self.arg)).copied().unwrap_or(0) as u32;
        self.values.contains(&(arg & self.mask))
    }
}

/// An open with `O_PATH` in the flags, which are argument `arg`.
pub const fn o_path(arg: u8) -> [Condition; 1] {
    flag(arg, libc::O_PATH)
}
/// A call with the flag in argument `arg`.
const fn flag(arg: u8, flag: i32) -> [Condition; 1] {
    [Condition {
        arg,
        high: false,
        mask: flag as u32,
        value: flag as u32,
        holds: true,
    }]
}
/// mmap(2) of a file, shared.
pub const MAP_SHARED_FILE: Condition = Condition {
    arg: 3,
    high: false,
    mask: (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as u32,
    value: libc::MAP_SHARED as u32,
    holds: true,
};
/// mmap(2) of a file.
pub const MAP_FILE: Condition = Condition {
    arg: 3,
    high: false,
    mask: libc::MAP_ANONYMOUS as u32,
    value: 0,
    holds: true,
};
/// prctl(PR_SET_DUMPABLE) and prctl(PR_SET_PDEATHSIG), and two operations that no program needs.
pub const DUMPABLE_OR_PDEATHSIG: Condition = Condition {
    arg: 0,
    high: false,
    mask: !(libc::PR_SET_DUMPABLE | libc::PR_SET_PDEATHSIG) as u32,
    value: 0,
    holds: true,
};
/// fcntl(2) with F_SETLEASE, F_NOTIFY, F_ADD_SEALS, F_GET_SEALS, and a few operations that are as rare.
pub const LEASE_NOTIFY_OR_SEALS: Condition = Condition {
    arg: 1,
    high: false,
    mask: !((libc::F_SETLEASE ^ libc::F_ADD_SEALS) | (libc::F_SETLEASE ^ libc::F_GET_SEALS)) as u32,
    value: libc::F_SETLEASE as u32,
    holds: true,
};
/// A call whose argument `arg` is SIGKILL.
pub const fn sigkill(arg: u8) -> Condition {
    Condition {
        arg,
        high: false,
        mask: u32::MAX,
        value: libc::SIGKILL as u32,
        holds: true,
    }
}
/// A call that sends the signal in argument `arg`: with 0 it only checks whether it could.
pub const fn any_signal(arg: u8) -> Condition {
    Condition {
        arg,
        high: false,
        mask: u32::MAX,
        value: 0,
        holds: false,
    }
}
/// clone(2) with CLONE_UNTRACED.
pub const CLONE_UNTRACED: [Condition; 1] = flag(0, libc::CLONE_UNTRACED);
/// wait4(2) with __WALL, as programs wait for threads that they have attached to.
pub const WAIT_FOR_ALL: [Condition; 1] = flag(2, libc::__WALL);
/// socket(2) or socketpair(2) of Unix sockets.
pub const UNIX_SOCKETS: [Condition; 1] = [Condition {
    arg: 0,
    high: false,
    mask: u32::MAX,
    value: libc::AF_UNIX as u32,
    holds: true,
}];
/// seccomp(2) that installs a filter.
pub const INSTALL_FILTER: [Condition; 1] = [Condition {
    arg: 0,
    high: false,
    mask: u32::MAX,
    value: libc::SECCOMP_SET_MODE_FILTER,
    holds: true,
}];
/// prctl(2) that installs a filter.
pub const INSTALL_FILTER_BY_PRCTL: [Condition; 2] = [
    Condition {
        arg: 0,
        high: false,
        mask: u32::MAX,
        value: libc::PR_SET_SECCOMP as u32,
        holds: true,
    },
    Condition {
        arg: 1,
        high: false,
        mask: u32::MAX,
        value: libc::SECCOMP_MODE_FILTER,
        holds: true,
    },
];
/// preadv2(2) with `RWF_NOWAIT` or `RWF_DONTCACHE`.
pub const HINTS: [Condition; 1] = [Condition {
    arg: 5,
    high: false,
    mask: 0x88,
    value: 0,
    holds: false,
}];
/// sendto(2) with an address.
pub const TO_ADDRESS: Condition = Condition {
    arg: 5,
    high: false,
    mask: u32::MAX,
    value: 0,
    holds: false,
};

/// lseek(2) to an offset of 16 TiB or more: the kernel allows it for a cache object, but no back end has such large files.
pub const FAR: [Condition; 2] = [
    Condition {
        arg: 1,
        high: true,
        mask: 1 << 31,
        value: 0,
        holds: true,
    },
    Condition {
        arg: 1,
        high: true,
        mask: !((1 << 12) - 1),
        value: 0,
        holds: false,
    },
];
