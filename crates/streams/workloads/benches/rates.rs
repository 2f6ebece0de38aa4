//! Rates of recordings and generators, on one core.
//!
//! ```text
//! cargo bench -p strata-workloads                      generated streams
//! cargo bench -p strata-workloads -- TRACE...          and these traces, at most 50 M accesses
//! ```
//!
//! A real stream can be had with `valgrind --tool=lackey --trace-mem=yes --log-file=TRACE PROGRAM`.

use std::hint::black_box;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use strata_stream::{Batch, Fill, Source};
use strata_workloads::{Generator, generate, open, record};

/// Accesses of a trace that are measured.
const ACCESSES: u64 = 50_000_000;

/// The best of three.
fn best<T>(mut work: impl FnMut() -> T) -> (Duration, T) {
    let once = |work: &mut dyn FnMut() -> T| {
        let start = Instant::now();
        let result = work();
        (start.elapsed(), result)
    };
    let mut best = once(&mut work);
    for _ in 0..2 {
        let next = once(&mut work);
        if next.0 < best.0 {
            best = next;
        }
    }
    best
}

/// Reads a source to its end, or up to `limit` accesses; returns accesses.
fn drain(source: &mut dyn Source, limit: u64, mut each: impl FnMut(&Batch)) -> u64 {
    let (mut batch, mut accesses) = (Batch::new(), 0);
    while accesses < limit {
        let fill = source.fill(&mut batch);
        accesses += batch.len() as u64;
        each(&batch);
        match fill {
            Ok(Fill::More) => {}
            Ok(Fill::End) => break,
            // What came before is good.
            Err(error) => {
                println!("{error}");
                break;
            }
        }
    }
    accesses
}

fn rate(accesses: u64, time: Duration) -> f64 {
    accesses as f64 / time.as_secs_f64() / 1e6
}

/// Records a stream and reads it back.
fn recording(name: &str, source: &mut dyn Source) {
    let mut batches = Vec::new();
    let accesses = drain(source, ACCESSES, |batch| batches.push(batch.clone()));
    let (time, file) = best(|| {
        let mut encoder = record::Encoder::new(Vec::new()).expect("memory");
        for batch in &batches {
            encoder.push(batch).expect("memory");
        }
        encoder.finish(record::Outcome::default()).expect("memory").0
    });
    let (read, _) = best(|| {
        let file = Cursor::new(file.as_slice());
        let mut reader = record::Reader::new(file, name.to_owned()).expect("just made");
        drain(&mut reader, u64::MAX, |batch| {
            black_box(batch);
        })
    });
    println!(
        "{name:40} {:8.1} M written/s {:8.1} M read/s {:6.3} bytes/access",
        rate(accesses, time),
        rate(accesses, read),
        file.len() as f64 / accesses as f64
    );
}

fn main() {
    println!("generators");
    for kind in generate::list() {
        let spec = format!("{}:accesses=20M", kind.name);
        let (time, accesses) = best(|| {
            let mut generator = Generator::parse(&spec).expect("a good spec");
            drain(&mut generator, u64::MAX, |batch| {
                black_box(batch);
            })
        });
        println!("{spec:40} {:8.2} ns/access", time.as_nanos() as f64 / accesses as f64);
    }
    println!("recordings");
    for spec in [
        "sequential:accesses=20M",
        "sequential:accesses=20M,threads=16",
        "random:accesses=20M",
        "zipf:accesses=20M",
    ] {
        recording(spec, &mut Generator::parse(spec).expect("a good spec"));
    }
    for trace in std::env::args().skip(1).filter(|argument| !argument.starts_with("--")) {
        match open(Path::new(&trace), None, &Arc::default()) {
            Ok(mut source) => recording(&trace, &mut *source),
            Err(error) => println!("{error}"),
        }
    }
}
