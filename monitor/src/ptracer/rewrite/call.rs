//! The calls that the kernel performs in place of those that programs make: their registers, and the strings and
//! structures that these point to.

use goanna_sys::arch::Registers;
use goanna_sys::filter::Insn;
use goanna_sys::restarts::ERESTARTSYS;
use goanna_vfs::Description;

use crate::answer::Argument;
use crate::ptracer::program::Arg;

/// The call that replaces the program's call.
pub enum Rewrite {
    /// chdir(2) to a host path.
    Chdir(Vec<u8>),
    /// chdir(2) to a backing directory; fchdir(2) if its path does not lead there for the tracee.
    Enter(Vec<u8>),
    /// execve(2) of a host path.
    Execve {
        /// Program.
        program: Vec<u8>,
        /// Arguments, where they change.
        argv: Option<Vec<Arg>>,
        /// Address of the vector given.
        old_argv: u64,
        /// Address of the environment.
        envp: u64,
    },
    /// open(2) of a host path: how a descriptor gets into a tracee without notification.
    Open {
        /// The path, of the monitor's own descriptor or another host object.
        path: Vec<u8>,
        /// Flags.
        flags: i32,
        /// Kept until the tracee has opened it.
        source: Option<Description>,
    },
    /// The call itself, which sends or connects, with other addresses.
    Addressed(Addressed),
    /// The call itself, with other arguments at these positions.
    Arguments(Vec<(usize, Argument)>),
    /// mmap(2) of memory that then gets this content, instead of a private mapping of a file.
    MapCopy(Vec<u8>),
    /// No call: it gets the kernel's result for a wait that a signal has ended, so that the kernel restarts it
    /// or returns EINTR.
    Interrupted,
    /// seccomp(2): a further filter for all threads of the program, which then makes its own call again.
    Filter(Vec<Insn>),
}

/// A call that sends or connects, with addresses of ours.
pub struct Addressed {
    /// The content of the scratch area: the structures of the call, and the addresses.
    pub image: Vec<u8>,
    /// The positions in the image of offsets that become pointers.
    pub pointers: Vec<usize>,
    /// The call.
    pub kind: AddressedKind,
}

/// The call of an [`Addressed`], and the beginning of its image.
#[derive(Debug, Clone, Copy)]
pub enum AddressedKind {
    /// connect(2): the address, of this length.
    Connect(u64),
    /// sendto(2): the address, of this length.
    To(u64),
    /// sendmsg(2): a `struct msghdr`.
    Message,
    /// sendmmsg(2): this many `struct mmsghdr`, whose lengths the kernel sets.
    Messages(u64),
}

/// Size of a `struct msghdr`.
pub const MSGHDR: usize = 56;
/// Size of a `struct mmsghdr`, and the offset of the length that the kernel sets in it.
pub const MMSGHDR: (usize, usize) = (64, 56);

/// The next step when a rewritten call returns, besides restoring the registers.
pub(super) enum Then {
    Nothing,
    /// The tracee has opened the description `source` again, by the path at `scratch`. It was kept open until
    /// now.
    Opened {
        source: Description,
        cloexec: bool,
        scratch: u64,
    },
    /// The tracee has entered the backing directory with this path, which is at `scratch`.
    Entered {
        path: Vec<u8>,
        scratch: u64,
    },
    /// The program's own call follows.
    Again,
    /// The memory that was mapped gets this content.
    Fill(Vec<u8>),
    /// The lengths in the messages are copied from our copy to the program's.
    Lengths {
        from: u64,
        to: u64,
    },
}

impl Rewrite {
    /// `saved`: the registers of the call as the program made it.
    pub(super) fn then(self, base: u64, saved: &Registers) -> Then {
        match self {
            Self::Open {
                source: Some(source),
                flags,
                ..
            } => Then::Opened {
                source,
                cloexec: flags & libc::O_CLOEXEC != 0,
                scratch: base,
            },
            Self::Addressed(Addressed {
                kind: AddressedKind::Messages(_),
                ..
            }) => Then::Lengths {
                from: base,
                to: saved.args()[1],
            },
            Self::Enter(path) => Then::Entered {
                path,
                scratch: base,
            },
            Self::Filter(_) => Then::Again,
            Self::MapCopy(content) => Then::Fill(content),
            _ => Then::Nothing,
        }
    }

    pub(super) fn len(&self) -> u64 {
        let strings = match self {
            Self::Chdir(path) | Self::Enter(path) | Self::Open { path, .. } => path.len() + 1,
            Self::Execve { program, argv, .. } => {
                let args = argv.as_deref().unwrap_or_default();
                let new: usize = args
                    .iter()
                    .map(|arg| {
                        if let Arg::New(bytes) = arg {
                            bytes.len() + 1
                        } else {
                            0
                        }
                    })
                    .sum();
                program.len() + 1 + new + 8 * (args.len() + 2)
            }
            Self::Addressed(send) => send.image.len(),
            Self::Arguments(arguments) => {
                let text = |argument: &(usize, Argument)| match &argument.1 {
                    Argument::Text(text) => text.len() + 1,
                    Argument::Value(_) => 0,
                };
                arguments.iter().map(text).sum()
            }
            Self::MapCopy(_) | Self::Interrupted => 0,
            Self::Filter(program) => FPROG + program.len() * size_of::<Insn>(),
        };
        strings as u64
    }

    /// Sets the registers for the call, and returns the bytes that must be at `base`: its strings and
    /// structures.
    pub(super) fn apply(&self, base: u64, regs: &mut Registers) -> Vec<u8> {
        match self {
            Self::Chdir(path) | Self::Enter(path) => {
                regs.set_first_args([base]);
                with_nul(path)
            }
            Self::Open { path, flags, .. } => {
                regs.set_number(libc::SYS_open);
                regs.set_first_args([base, *flags as u64, 0]);
                with_nul(path)
            }
            Self::Execve {
                program,
                argv,
                old_argv,
                envp,
            } => {
                regs.set_number(libc::SYS_execve);
                let mut vector = *old_argv;
                let mut image = with_nul(program);
                if let Some(argv) = argv {
                    let mut pointers = Vec::with_capacity(argv.len() + 1);
                    for arg in argv {
                        match arg {
                            Arg::Old(address) => pointers.push(*address),
                            Arg::New(bytes) => {
                                pointers.push(base + image.len() as u64);
                                image.extend_from_slice(bytes);
                                image.push(0);
                            }
                        }
                    }
                    pointers.push(0);
                    image.resize(image.len().next_multiple_of(8), 0);
                    vector = base + image.len() as u64;
                    image.extend(pointers.into_iter().flat_map(u64::to_ne_bytes));
                }
                regs.set_first_args([base, vector, *envp]);
                image
            }
            Self::Addressed(send) => send.apply(base, regs),
            Self::Arguments(arguments) => apply_arguments(arguments, base, regs),
            Self::Filter(program) => {
                regs.set_number(libc::SYS_seccomp);
                let mode = u64::from(libc::SECCOMP_SET_MODE_FILTER);
                regs.set_first_args([mode, libc::SECCOMP_FILTER_FLAG_TSYNC, base]);
                filter_image(program, base)
            }
            Self::Interrupted => {
                regs.leave_call();
                regs.set_result(ERESTARTSYS);
                Vec::new()
            }
            Self::MapCopy(_) => {
                let [address, length, access, kind, ..] = regs.args();
                let kind = kind & !(libc::MAP_SHARED as u64) | MAP_MEMORY;
                regs.set_args([address, length, access, kind, u64::MAX, 0]);
                Vec::new()
            }
        }
    }
}

/// As [`Rewrite::apply`].
fn apply_arguments(arguments: &[(usize, Argument)], base: u64, regs: &mut Registers) -> Vec<u8> {
    let mut image = Vec::new();
    let mut args = regs.args();
    for (at, argument) in arguments {
        let value = match argument {
            Argument::Value(value) => *value,
            Argument::Text(text) => {
                let address = base + image.len() as u64;
                image.extend(with_nul(text));
                address
            }
        };
        if let Some(arg) = args.get_mut(*at) {
            *arg = value;
        }
    }
    regs.set_args(args);
    image
}

/// Flags of a mapping of memory instead of a file.
const MAP_MEMORY: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;

/// A `struct sock_fprog` for address `base`, and the filter's program behind it.
pub fn filter_image(program: &[Insn], base: u64) -> Vec<u8> {
    let mut image = (program.len() as u64).to_ne_bytes().to_vec();
    image.extend((base + FPROG as u64).to_ne_bytes());
    for insn in program {
        image.extend(insn.code.to_ne_bytes());
        image.extend([insn.jt, insn.jf]);
        image.extend(insn.k.to_ne_bytes());
    }
    image
}

/// Size of a `struct sock_fprog`: a count in the first bytes of eight, a pointer.
const FPROG: usize = 16;

impl Addressed {
    fn apply(&self, base: u64, regs: &mut Registers) -> Vec<u8> {
        let [fd, second, third, fourth, ..] = regs.args();
        match self.kind {
            AddressedKind::Connect(len) => regs.set_first_args([fd, base, len]),
            AddressedKind::To(len) => regs.set_args([fd, second, third, fourth, base, len]),
            AddressedKind::Message => regs.set_first_args([fd, base]),
            AddressedKind::Messages(count) => regs.set_first_args([fd, base, count]),
        }
        let mut image = self.image.clone();
        for &at in &self.pointers {
            if let Some(pointer) = image.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<8>) {
                *pointer = (base + u64::from_ne_bytes(*pointer)).to_ne_bytes();
            }
        }
        image
    }
}

fn with_nul(path: &[u8]) -> Vec<u8> {
    let mut bytes = path.to_vec();
    bytes.push(0);
    bytes
}
