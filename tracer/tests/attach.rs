//! Attaching to running processes, and detaching from them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod capturing;

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use capturing::{Kept, calls, marks, once, program};
use goanna_tracer::Event;
use goanna_tracer::capture::ptrace::{Ptrace, Target};
use goanna_tracer::capture::{CaptureEnd, Data, Source, Wanted};
use goanna_tracer::select::Filter;

/// Pause between two checks of the tracer, and between two signals to it: without a pause the test leaves it no CPU time.
const PAUSE: Duration = Duration::from_millis(1);

#[test]
fn a_running_process_is_attached_to_and_left_without_a_trace() {
    let mut server = Command::new(program("hard"))
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = server.id() as i32;
    let (mut input, mut output) = (server.stdin.take().unwrap(), server.stdout.take().unwrap());
    let mut ask = move |byte: u8| {
        input.write_all(&[byte]).unwrap();
        let mut answer = [0];
        output.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [byte]);
    };
    ask(b'1');
    for round in 0..10 {
        let mut source = Ptrace::new(Target::Processes(vec![pid]));
        let ends = source.ends();
        let kept = Kept::default();
        let wanted = Wanted::new(vec![Filter::everything().into()], Data::None);
        let tracer = Mutex::new(None);
        std::thread::scope(|scope| {
            let capturing = scope.spawn(|| {
                *tracer.lock().unwrap() =
                    Some(goanna_sys::interrupt::Waiter::with_own_mask().unwrap());
                source.capture(&wanted, &kept)
            });
            // Both threads of the program have stopped once when the first mappings are known.
            while !kept
                .0
                .lock()
                .unwrap()
                .iter()
                .any(|event| matches!(event, Event::Mapping { .. }))
            {
                assert!(!capturing.is_finished());
                std::thread::sleep(PAUSE);
            }
            ask(b'2');
            ask(b'3');
            ends.store(true, Ordering::Release);
            while !capturing.is_finished() {
                let _ = tracer.lock().unwrap().unwrap().poke();
                std::thread::sleep(PAUSE);
            }
            assert_eq!(capturing.join().unwrap().unwrap(), CaptureEnd::Detached);
        });
        let events = kept.0.into_inner().unwrap();
        assert_eq!(goanna_sys::procfs::status(pid).unwrap().tracer, 0);
        assert_eq!(marks(&events), once(&["2", "3"]), "round {round}");
        let descriptors: Vec<i32> = events
            .iter()
            .filter_map(|event| match event {
                Event::Descriptor { number, .. } => Some(*number),
                _ => None,
            })
            .collect();
        assert_eq!(descriptors[..4], [libc::AT_FDCWD, 0, 1, 2]);
        let interrupted =
            calls(&events).filter(|call| call.outcome.is_some_and(|outcome| outcome.result == -4));
        assert_eq!(interrupted.count(), 0);
        ask(b'4');
    }
    ask(b'5');
    server.kill().unwrap();
    server.wait().unwrap();
}
