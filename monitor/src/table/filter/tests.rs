//! The assembled program, run by an interpreter against the table.

use super::*;

const NOTIFY: Purpose = Purpose {
    delivery: Delivery::Notify,
    shadow_files: true,
    inherited: None,
    key: None,
    interest: SysnoSet::EMPTY,
};

/// Runs the program as the kernel would.
fn run(program: &[Insn], arch: u32, nr: u32, args: [u64; 6]) -> u32 {
    run_at(program, arch, nr, args, 0)
}

fn run_at(program: &[Insn], arch: u32, nr: u32, args: [u64; 6], ip: u64) -> u32 {
    let (mut pc, mut acc, mut index) = (0usize, 0u32, 0u32);
    loop {
        let i = &program[pc];
        pc += 1;
        let jump = |taken: bool| usize::from(if taken { i.jt } else { i.jf });
        match i.code {
            LD_W_ABS => {
                acc = match i.k {
                    OFFSET_NR => nr,
                    OFFSET_ARCH => arch,
                    k if k < OFFSET_ARGS => (ip >> (8 * (k - OFFSET_IP))) as u32,
                    k => {
                        let (argument, byte) = ((k - OFFSET_ARGS) / 8, (k - OFFSET_ARGS) % 8);
                        (args[argument as usize] >> (8 * byte)) as u32
                    }
                }
            }
            JEQ => pc += jump(acc == i.k),
            JGE => pc += jump(acc >= i.k),
            JA => pc += i.k as usize,
            AND => acc &= i.k,
            XOR => acc ^= i.k,
            TAX => index = acc,
            JEQ_X => pc += jump(acc == index),
            RET => return i.k,
            code => panic!("instruction {code:#x}"),
        }
    }
}

#[test]
fn every_row_gets_its_verdict() {
    let program = compile(NOTIFY);
    for entry in ROWS {
        let got = run(&program, AUDIT_ARCH, entry.nr, [0; 6]);
        let want = Verdict::of(entry, NOTIFY).on(&[0; 6]);
        assert_eq!(got, want, "{}", entry.name);
    }
}

#[test]
fn calls_of_a_stub_pass_by_their_cookie_and_no_others_do() {
    let (key, ip) = (0x9e37_79b9_7f4a_7c15, 0x7fff_dead_beef);
    let purpose = Purpose {
        key: Some(key),
        ..NOTIFY
    };
    let program = compile(purpose);
    let verdict = |nr: i64, sixth: u64| {
        let args = [1, 2, 3, 4, 5, sixth];
        run_at(&program, AUDIT_ARCH, nr as u32, args, ip)
    };
    for nr in [
        libc::SYS_openat2,
        libc::SYS_newfstatat,
        libc::SYS_write,
        libc::SYS_ioctl,
    ] {
        assert_eq!(verdict(nr, ip ^ key), RET_ALLOW);
        for wrong in [0, key, ip, ip ^ key ^ 1, ip ^ key ^ 1 << 32] {
            assert_eq!(verdict(nr, wrong), RET_NOTIFY);
        }
    }
    // The sixth argument of copy_file_range(2) is its own.
    for nr in [
        libc::SYS_unlink,
        libc::SYS_mkdir,
        libc::SYS_fchdir,
        libc::SYS_copy_file_range,
    ] {
        assert_eq!(verdict(nr, ip ^ key), RET_NOTIFY);
    }
    assert_eq!(verdict(libc::SYS_execve, ip ^ key), RET_TRACE);
}

#[test]
fn without_an_observer_the_program_is_made_of_the_rows_alone() {
    for (delivery, shadow_files) in [
        (Delivery::Notify, true),
        (Delivery::Notify, false),
        (Delivery::Stop, true),
    ] {
        let purpose = Purpose {
            delivery,
            shadow_files,
            ..NOTIFY
        };
        let unobserved = assemble(RET_ERRNO | libc::ENOSYS as u32, |entry| {
            Verdict::of(entry, purpose)
        });
        assert_eq!(compile(purpose), unobserved);
    }
}

#[test]
fn every_call_of_interest_stops_and_says_what_it_would_have_been_without() {
    let plain = compile(NOTIFY);
    let observed = compile(Purpose {
        interest: SysnoSet::of(|_| true),
        ..NOTIFY
    });
    let samples = [
        [0; 6],
        [1; 6],
        [3, 0xffff_ffff, 0x1, 0x1, 4, 0],
        [u64::MAX; 6],
        [1, 9, 9, 0, 0, 0],
    ];
    for entry in ROWS
        .iter()
        .filter(|row| goanna_syscalls::signature(row.nr).is_some())
    {
        for args in samples {
            let before = run(&plain, AUDIT_ARCH, entry.nr, args);
            let after = run(&observed, AUDIT_ARCH, entry.nr, args);
            assert_eq!(after & RET_ACTION, RET_TRACE, "{}", entry.name);
            let message = match before & RET_ACTION {
                RET_ALLOW => OBSERVED,
                RET_ERRNO => OBSERVED_REFUSAL,
                RET_TRACE => before & !RET_ACTION,
                _ => 0,
            };
            assert_eq!(after & !RET_ACTION, message, "{}", entry.name);
        }
    }
    let one = compile(Purpose {
        interest: SysnoSet::of(|call| call.name == "close"),
        ..NOTIFY
    });
    let others = ROWS.iter().filter(|row| row.name != "close");
    for entry in others {
        let of = |program: &[Insn]| run(program, AUDIT_ARCH, entry.nr, [1; 6]);
        assert_eq!(of(&one), of(&plain), "{}", entry.name);
    }
}

#[test]
fn calls_about_cpus_stop() {
    let stop = Purpose {
        delivery: Delivery::Stop,
        ..NOTIFY
    };
    let observed = Purpose {
        interest: SysnoSet::of(|call| call.name == "close"),
        ..NOTIFY
    };
    for nr in [libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity] {
        for purpose in [NOTIFY, stop, observed] {
            let verdict = run(&compile(purpose), AUDIT_ARCH, nr as u32, [0; 6]);
            assert_eq!(verdict, RET_TRACE | OBSERVED);
        }
    }
}

#[test]
fn foreign_and_unknown_calls_are_refused() {
    let program = compile(NOTIFY);
    let enosys = RET_ERRNO | libc::ENOSYS as u32;
    assert_eq!(run(&program, 0x4000_0003, 5, [0; 6]), enosys);
    assert_eq!(run(&program, AUDIT_ARCH, X32_BIT | 2, [0; 6]), enosys);
    assert_eq!(run(&program, AUDIT_ARCH, 9999, [0; 6]), enosys);
}

#[test]
fn data_calls_run_in_the_kernel_where_all_files_are_the_hosts() {
    let host_files = Purpose {
        shadow_files: false,
        ..NOTIFY
    };
    let write = libc::SYS_write as u32;
    let verdict = |purpose| run(&compile(purpose), AUDIT_ARCH, write, [0; 6]);
    assert_eq!(verdict(NOTIFY), RET_NOTIFY);
    assert_eq!(verdict(host_files), RET_ALLOW);
}

#[test]
fn sockets_are_stopped_under_a_second_filter_only() {
    let first = compile(NOTIFY);
    let sockets = compile_socket_filter(SocketFilter::Sockets);
    let datagrams = compile_socket_filter(SocketFilter::Datagrams);
    let verdict = |program: &[Insn], nr: i64, args| run(program, AUDIT_ARCH, nr as u32, args);
    let socket = |domain: i32| [domain as u64, libc::SOCK_DGRAM as u64, 0, 0, 0, 0];
    for nr in [libc::SYS_socket, libc::SYS_socketpair] {
        assert_eq!(verdict(&first, nr, socket(libc::AF_UNIX)), RET_TRACE);
        for (program, filter) in [
            (&sockets, SocketFilter::Sockets),
            (&datagrams, SocketFilter::Datagrams),
        ] {
            let stop = verdict(program, nr, socket(libc::AF_UNIX));
            assert_eq!(stop & !0xffff, RET_TRACE);
            assert_eq!(SocketFilter::of_message(stop & 0xffff), Some(filter));
        }
        for program in [&first, &sockets, &datagrams] {
            assert_eq!(verdict(program, nr, socket(libc::AF_INET)), RET_ALLOW);
        }
    }
    for nr in [libc::SYS_connect, libc::SYS_sendmsg, libc::SYS_sendmmsg] {
        assert_eq!(verdict(&first, nr, [0; 6]), RET_ALLOW);
        assert_eq!(verdict(&sockets, nr, [0; 6]), RET_TRACE);
        assert_eq!(verdict(&datagrams, nr, [0; 6]), RET_TRACE);
    }
    let (bare, addressed) = ([3, 16, 1, 0, 16, 0], [3, 16, 1, 0, 16, 110]);
    let to = libc::SYS_sendto;
    assert_eq!(verdict(&first, to, addressed), RET_ALLOW);
    assert_eq!(verdict(&sockets, to, addressed), RET_ALLOW);
    assert_eq!(verdict(&datagrams, to, addressed), RET_TRACE);
    assert_eq!(verdict(&datagrams, to, bare), RET_ALLOW);
    assert_eq!(verdict(&datagrams, libc::SYS_openat, [0; 6]), RET_ALLOW);
    assert_eq!(verdict(&datagrams, 9999, [0; 6]), RET_ALLOW);
}

#[test]
fn inherited_sockets_are_stopped_from_the_start() {
    let verdict = |inherited, nr: i64| {
        let program = compile(Purpose {
            inherited,
            ..NOTIFY
        });
        run(&program, AUDIT_ARCH, nr as u32, [1; 6])
    };
    assert_eq!(verdict(None, libc::SYS_connect), RET_ALLOW);
    let sockets = Some(SocketFilter::Sockets);
    assert_eq!(verdict(sockets, libc::SYS_connect), RET_TRACE);
    assert_eq!(verdict(sockets, libc::SYS_sendmsg), RET_TRACE);
    assert_eq!(verdict(sockets, libc::SYS_sendto), RET_ALLOW);
    assert_eq!(
        verdict(Some(SocketFilter::Datagrams), libc::SYS_sendto),
        RET_TRACE
    );
}

#[test]
fn filters_of_the_program_itself_come_after_ours() {
    let first = compile(NOTIFY);
    let verdict = |nr: i64, args| run(&first, AUDIT_ARCH, nr as u32, args);
    let filter = [u64::from(libc::SECCOMP_SET_MODE_FILTER), 0, 0, 0, 0, 0];
    assert_eq!(verdict(libc::SYS_seccomp, filter), RET_TRACE);
    assert_eq!(verdict(libc::SYS_seccomp, [2, 0, 0, 0, 0, 0]), RET_ALLOW);
    let set = libc::PR_SET_SECCOMP as u64;
    let by_prctl = [set, u64::from(libc::SECCOMP_MODE_FILTER), 0, 0, 0, 0];
    assert_eq!(verdict(libc::SYS_prctl, by_prctl), RET_TRACE);
    let dumpable = [libc::PR_SET_DUMPABLE as u64, 0, 0, 0, 0, 0];
    assert_eq!(verdict(libc::SYS_prctl, dumpable), RET_NOTIFY);
    let name = [libc::PR_SET_NAME as u64, 0, 0, 0, 0, 0];
    assert_eq!(verdict(libc::SYS_prctl, name), RET_ALLOW);
}

#[test]
fn participants_are_distinguished_and_only_closers_stop_at_close() {
    let (member, closer) = (compile_participant(false), compile_participant(true));
    let verdict = |program: &[Insn], nr: i64| run(program, AUDIT_ARCH, nr as u32, [0; 6]);
    for nr in [libc::SYS_execve, libc::SYS_execveat] {
        assert_eq!(verdict(&member, nr), RET_TRACE | PARTICIPANT);
        assert_eq!(verdict(&closer, nr), RET_TRACE | CLOSER);
    }
    let closing = [
        libc::SYS_close,
        libc::SYS_close_range,
        libc::SYS_dup2,
        libc::SYS_dup3,
    ];
    for nr in closing {
        assert_eq!(verdict(&compile(NOTIFY), nr), RET_ALLOW);
        assert_eq!(verdict(&member, nr), RET_ALLOW);
        assert_eq!(verdict(&closer, nr), RET_TRACE);
    }
    assert_eq!(verdict(&closer, libc::SYS_read), RET_TRACE);
    assert_eq!(verdict(&closer, libc::SYS_openat), RET_ALLOW);
}

#[test]
fn only_requests_of_devices_run_in_the_kernel_unseen() {
    let program = compile(NOTIFY);
    let verdict = |request: u64| {
        let args = [3, request, 0, 0, 0, 0];
        run(&program, AUDIT_ARCH, libc::SYS_ioctl as u32, args)
    };
    let natively = [
        libc::TCGETS,
        libc::FIONREAD,
        libc::FIOCLEX,
        libc::SIOCGIFCONF,
    ];
    for request in natively {
        assert_eq!(verdict(request), RET_ALLOW, "{request:#x}");
    }
    // FICLONE, FICLONERANGE, FS_IOC_UNRESVSP64, FIFREEZE, FITRIM, and an unknown one.
    let seen = [
        0x4004_9409,
        0x4020_940d,
        0x4030_582b,
        0xc004_5877,
        0xc018_5879,
        0x4004_f0f0,
    ];
    for request in seen {
        assert_eq!(verdict(request), RET_NOTIFY, "{request:#x}");
        // The kernel looks at 32 bits.
        assert_eq!(verdict(1 << 32 | request), RET_NOTIFY, "{request:#x}");
    }
}

#[test]
fn seeks_beyond_the_largest_file_are_seen() {
    let program = compile(NOTIFY);
    let verdict = |offset: i64| {
        let args = [3, offset as u64, 0, 0, 0, 0];
        run(&program, AUDIT_ARCH, libc::SYS_lseek as u32, args)
    };
    for offset in [0, 4096, (1 << 44) - 1, -1, -(1 << 50), i64::MIN] {
        assert_eq!(verdict(offset), RET_ALLOW, "{offset}");
    }
    for offset in [1 << 44, 1 << 62, i64::MAX] {
        assert_eq!(verdict(offset), RET_NOTIFY, "{offset}");
    }
}

#[test]
fn conditions_look_at_arguments() {
    let program = compile(NOTIFY);
    let mmap = libc::SYS_mmap as u32;
    let verdict = |flags: i32| run(&program, AUDIT_ARCH, mmap, [0, 0, 0, flags as u64, 3, 0]);
    assert_eq!(verdict(libc::MAP_SHARED), RET_NOTIFY);
    assert_eq!(verdict(libc::MAP_PRIVATE), RET_ALLOW);
    assert_eq!(verdict(libc::MAP_SHARED | libc::MAP_ANONYMOUS), RET_ALLOW);
}
