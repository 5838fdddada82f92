//! Commands that would wait forever: for each other, for a FIFO, for a lock.

use amino_schema::replay::{Call, Command, Content, Data, Target, Wait};

use crate::scene::{Scene, command, index, on, place};

#[test]
fn commands_that_wait_for_each_other_are_refused() {
    let waiting = |order, lane, other| Command {
        waits: vec![Wait { lane, order: other }],
        ..command(order, Call::Begin)
    };
    // Each waits for the other: one of the two waits for a later command.
    let scene = Scene::new();
    let lanes = [vec![waiting(1, 1, 2)], vec![waiting(2, 0, 1)]];
    let why = scene.run(index(&[""]), &lanes).unwrap_err();
    assert!(
        why.to_string()
            .contains("waits for itself or a later command"),
        "{why}"
    );
    // A lane that ends before that command, and one that does not exist.
    let lanes = [vec![waiting(9, 1, 8)], vec![command(2, Call::Begin)]];
    scene.run(index(&[""]), &lanes).unwrap();
    let why = scene
        .run(index(&[""]), &[vec![waiting(9, 7, 8)]])
        .unwrap_err();
    assert!(
        why.to_string().contains("a lane that does not exist"),
        "{why}"
    );
}

/// Opening one end of a FIFO waits for the other end, which a trace need not open.
#[test]
fn a_trace_that_opens_a_fifo_does_not_hang() {
    let scene = Scene::new();
    let fifo = || place(0, "fifo");
    let open = |order, flags: i32, slot| Command {
        result: Some(slot),
        ..on(order, Call::Open, fifo(), &[flags as u64, 0])
    };
    let read = |order, slot| Command {
        data: Some(Data {
            length: 10,
            content: Content::Unknown,
        }),
        ..on(order, Call::Read, Target::Slot(slot), &[])
    };
    let flags = [libc::F_SETFL as u64, 0];
    let mode = u64::from(libc::S_IFIFO | 0o600);
    let commands = vec![
        on(1, Call::Mknod, fifo(), &[mode]),
        open(2, libc::O_WRONLY, 0),
        open(3, libc::O_RDONLY, 1),
        open(4, libc::O_WRONLY, 2),
        on(5, Call::Fcntl, Target::Slot(1), &flags),
        read(6, 1),
    ];
    let report = scene.run(index(&[""]), &[commands]).unwrap();
    let got: Vec<String> = report.first().map(|it| it.got).collect();
    // At the first open the FIFO has no reader, and at the read it is empty.
    assert!(got.contains(&"ENXIO".to_owned()), "{got:?}");
    assert!(got.contains(&"EAGAIN".to_owned()), "{got:?}");
}

/// A lock that is never released is given up.
#[test]
fn a_trace_that_waits_for_a_lock_that_it_holds_does_not_hang() {
    let scene = Scene::new();
    let flags = (libc::O_CREAT | libc::O_RDWR) as u64;
    let open = |order, slot| Command {
        result: Some(slot),
        ..on(order, Call::Open, place(0, "locked"), &[flags, 0o600])
    };
    let flock = [libc::LOCK_EX as u64];
    let whole = [libc::F_OFD_SETLKW as u64, libc::F_WRLCK as u64, 0, 0, 0];
    let lanes = [
        vec![
            open(1, 0),
            open(2, 1),
            on(3, Call::Flock, Target::Slot(0), &flock),
            on(5, Call::Flock, Target::Slot(1), &flock),
        ],
        vec![
            open(6, 2),
            open(7, 3),
            on(8, Call::Lock, Target::Slot(2), &whole),
            on(9, Call::Lock, Target::Slot(3), &whole),
        ],
    ];
    let report = scene.run(index(&[""]), &lanes).unwrap();
    let mut timed_out: Vec<_> = report
        .first()
        .filter(|it| it.got == "ETIMEDOUT")
        .map(|it| it.order)
        .collect();
    timed_out.sort_unstable();
    assert_eq!(timed_out, [5, 9]);
}
