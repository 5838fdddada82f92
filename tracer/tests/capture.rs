//! Tests of the events that the ptrace source reports of small programs.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod capturing;

use capturing::{calls, run, text};
use goanna_tracer::Event;
use goanna_tracer::capture::CaptureEnd;

#[test]
fn a_command_and_its_children_are_captured_from_beginning_to_end() {
    let (ending, events) = run(
        &[
            "/bin/sh",
            "-c",
            "cat /etc/passwd >/dev/null; (exit 4); exit 3",
        ],
        "",
    );
    assert_eq!(ending.unwrap(), CaptureEnd::Ended(3 << 8));
    let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
    assert_eq!(count(|event| matches!(event, Event::Began { .. })), 3);
    assert_eq!(count(|event| matches!(event, Event::Executed { .. })), 2);
    assert_eq!(count(|event| matches!(event, Event::Ended { .. })), 3);
    assert_eq!(count(|event| matches!(event, Event::Lost { .. })), 0);
    let opened = calls(&events)
        .any(|call| text(call).starts_with("openat(") && text(call).contains("/etc/passwd"));
    assert!(
        opened,
        "{:#?}",
        calls(&events).map(text).collect::<Vec<_>>()
    );
}
