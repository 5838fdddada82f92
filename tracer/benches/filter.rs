//! Measures the cost of an input filter per call: expressions of 1, 10 and 50 predicates, where the last one decides, with the outcomes
//! true and false, as in section 4.3 of Tracefs; and the same with file names.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use goanna_syscalls::{DecodedCall, Outcome, Subject, Treatment, Value};
use goanna_tracer::event::{Call, File};
use goanna_tracer::select::{Facts, Filter};

fn call() -> Call {
    let path: Box<[u8]> = b"/usr/src/linux/fs/open.c".as_slice().into();
    Call {
        subject: Subject {
            pid: 100,
            tid: 100,
            uid: 1000,
            gid: 1000,
            sid: 90,
            comm: "cc1".into(),
        },
        call: DecodedCall {
            signature: None,
            nr: libc::SYS_openat as u32,
            raw: [0; 6],
            args: vec![Value::Path {
                given: path.clone(),
                resolved: None,
            }],
        },
        entered_ns: 1,
        outcome: Some(Outcome {
            result: 3,
            left_ns: 2,
            treatment: Treatment::Kernel,
        }),
        files: vec![(
            0,
            File {
                device: 1,
                inode: 77,
                mode: 0o100_644,
                links: 1,
                size: 10,
                path: Some(path),
            },
        )],
    }
}

/// An expression of predicates that do not hold, followed by `last`.
fn expression(number: usize, what: &str, last: &str) -> String {
    let others = (1..number).map(|at| format!("{what}{at}"));
    let all: Vec<String> = others.chain([last.to_string()]).collect();
    all.join(" or ")
}

fn filters(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("filter");
    let call = call();
    for (kind, what, yes, no) in [
        ("pid", "pid == 1000", "pid == 100", "pid == 2"),
        ("name", "name == file", "name == open.c", "name == x"),
    ] {
        for number in [1, 10, 50] {
            for (outcome, last) in [(true, yes), (false, no)] {
                let filter = match Filter::parse(&expression(number, what, last)) {
                    Ok(filter) => filter,
                    Err(error) => {
                        eprintln!("{error}");
                        return;
                    }
                };
                let mut cache = filter.name_cache();
                assert_eq!(filter.selects(&Facts::of(&call), &mut cache), outcome);
                let id = BenchmarkId::new(format!("{kind} {outcome}"), number);
                group.bench_function(id, |bencher| {
                    bencher.iter(|| {
                        filter.selects(black_box(&Facts::of(black_box(&call))), &mut cache)
                    });
                });
            }
        }
    }
}

criterion_group!(benches, filters);
criterion_main!(benches);
