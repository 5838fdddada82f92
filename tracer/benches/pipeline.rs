//! Measures the cost of an event in the pipeline: assembly, elision, output filters. The goal is at most 1 us
//! an event.
//!
//! `cargo bench -p goanna-tracer --bench pipeline`; the figure is the time for one event ("elem").

#[path = "../tests/postmark/mod.rs"]
mod postmark;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use goanna_tracer::assemble::{
    Aggregate, Assembly, DataMode, Groups, StreamAssembly, WriterOptions,
};
use goanna_tracer::codec::Key;
use goanna_tracer::output::StreamOutput;
use goanna_tracer::select::Filter;
use goanna_tracer::{Event, OutputFilter, Pipeline, PipelineOptions, Sink};

fn pipeline(options: PipelineOptions, assembly: Box<dyn Assembly>) -> Pipeline {
    let driver = Box::new(StreamOutput::new("nothing", std::io::sink()));
    #[allow(clippy::expect_used)] // a bench that cannot begin has nothing to measure
    Pipeline::start(options, assembly, driver).expect("the pipeline begins")
}

fn run(pipeline: &Pipeline, events: &[Event]) -> Duration {
    let begin = Instant::now();
    for event in events {
        let _ = pipeline.take(event);
    }
    let _ = pipeline.finish();
    begin.elapsed()
}

fn pipelines(criterion: &mut Criterion) {
    let events = postmark::Workload::postmark(1, 1000, 2000);
    let stream = || -> Box<dyn Assembly> {
        Box::new(StreamAssembly::new(Groups::default(), DataMode::None))
    };
    let key = || Key::new([3; 32]);
    let zstd = || OutputFilter::Zstd(3);
    let all = || {
        vec![
            zstd(),
            OutputFilter::Encrypt(key()),
            OutputFilter::Authenticate(key()),
        ]
    };
    let mut group = criterion.benchmark_group("pipeline");
    group.throughput(Throughput::Elements(events.len() as u64));
    group.sample_size(20);
    let mut bench = |name: &str,
                     options: &dyn Fn() -> PipelineOptions,
                     assembly: &dyn Fn() -> Box<dyn Assembly>| {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| {
                (0..rounds)
                    .map(|_| run(&pipeline(options(), assembly()), &events))
                    .sum()
            });
        });
    };
    let with = |filters: Vec<OutputFilter>| PipelineOptions {
        filters,
        ..PipelineOptions::default()
    };
    bench("elided", &|| with(vec![]), &stream);
    bench(
        "raw",
        &|| {
            let mut options = with(vec![]);
            options.writer = WriterOptions {
                elide: false,
                ..WriterOptions::default()
            };
            options
        },
        &stream,
    );
    bench("elided, zstd", &|| with(vec![zstd()]), &stream);
    bench("elided, zstd, aes, hmac", &|| with(all()), &stream);
    bench(
        "filter, elided, zstd, aes, hmac",
        &|| {
            let mut options = with(all());
            options.select =
                Filter::parse("uid == 1000 && op in {open, create, close, read, write, unlink}")
                    .ok();
            options
        },
        &stream,
    );
    bench("aggregate", &|| with(vec![]), &|| {
        Box::new(Aggregate::new(None))
    });
    group.finish();
}

criterion_group!(benches, pipelines);
criterion_main!(benches);
