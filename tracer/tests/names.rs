//! Which files the paths and descriptors of captured calls name.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod capturing;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use capturing::{Kept, calls, of_command, program, run};
use goanna_skip::{Facility, skip};
use goanna_syscalls::Value;
use goanna_tracer::Event;
use goanna_tracer::capture::{Data, Details, Source, Wanted};
use goanna_tracer::event::Call;
use goanna_tracer::select::Filter;

/// The path that a call gave, and where it led.
fn path(call: &Call) -> (String, Option<String>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let path = call.call.args.iter().find_map(|value| match value {
        Value::Path { given, resolved } => Some((text(given), resolved.as_deref().map(text))),
        _ => None,
    });
    path.unwrap()
}

#[test]
fn paths_after_a_change_of_the_root_directory_lead_into_the_new_one() {
    if !rustix::process::geteuid().is_root() {
        skip(Facility::Root, "chroot");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    fs::write(place.join("file"), "x").unwrap();
    let program = program("hard");
    let command = [program.to_str().unwrap(), "root", place.to_str().unwrap()];
    let (ending, events) = run(&command, "op in {open, create}");
    ending.unwrap();
    let opened: Vec<_> = calls(&events).map(path).collect();
    let at = |name: &str| Some(place.join(name).to_str().unwrap().to_owned());
    let expected = [
        ("/proc/version", Some("/proc/version".to_owned())),
        ("/nowhere", Some("/nowhere".to_owned())),
        ("/file", at("file")),
        ("file", at("file")),
        ("/nowhere", at("nowhere")),
        ("/new", at("new")),
    ];
    let expected = expected.map(|(given, resolved)| (given.to_owned(), resolved));
    assert_eq!(opened[opened.len() - expected.len()..], expected);
}

#[test]
fn an_opened_path_has_the_identity_of_the_file_behind_its_links() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    fs::write(place.join("file"), "four").unwrap();
    std::os::unix::fs::symlink("file", place.join("link")).unwrap();
    let link = place.join("link");
    let (ending, events) = run(&["cat", link.to_str().unwrap()], "op == open");
    ending.unwrap();
    let call = calls(&events).last().unwrap();
    let (given, resolved) = path(call);
    assert_eq!(given, link.to_str().unwrap());
    assert_eq!(resolved.as_deref(), place.join("file").to_str());
    let inode = fs::metadata(place.join("file")).unwrap().ino();
    let files: Vec<_> = call.files.iter().map(|(at, file)| (*at, file)).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    for (file, at) in files.iter().zip([1, 6]) {
        assert_eq!((file.0, file.1.inode, file.1.size), (at, inode, 4));
        assert_eq!(
            file.1.path.as_deref(),
            resolved.as_deref().map(str::as_bytes)
        );
    }
}

#[test]
fn what_no_tracer_wants_of_files_is_not_looked_up() {
    let names_of = |details: Details, filter: &str| {
        let filter = Arc::new(Filter::parse(filter).unwrap());
        let wanted = Wanted::new(vec![filter], Data::None).with_details(details);
        let kept = Kept::default();
        of_command(&["cat", "/proc/version"])
            .capture(&wanted, &kept)
            .unwrap();
        let events = kept.0.into_inner().unwrap();
        let has_paths = calls(&events).any(|call| {
            call.call.args.iter().any(|value| match value {
                Value::Path { resolved, .. } => resolved.is_some(),
                Value::Descriptor { file, .. } => file.is_some(),
                _ => false,
            })
        });
        let of_arguments = |event: &Event| match event {
            Event::Call(call) => call.files.iter().any(|(at, _)| *at < 6),
            _ => false,
        };
        (has_paths, events.iter().any(of_arguments))
    };
    let details = |paths, files| Details { paths, files };
    assert_eq!(names_of(details(true, true), ""), (true, true));
    assert_eq!(names_of(details(true, false), ""), (true, false));
    assert_eq!(names_of(details(false, false), ""), (false, false));
    let by_name = "name == \"version\"";
    assert_eq!(names_of(details(false, false), by_name), (true, true));
}
