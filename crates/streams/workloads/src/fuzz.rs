//! Bodies of the fuzz targets, which the ordinary tests run too.
//!
//! Each takes any bytes and panics when a reader breaks a promise: it must not panic, must end,
//! must use memory in proportion to its input, and what it gives must be well-formed.

use crate::{Format, Generator, Input, champsim, lackey, record};
use std::io::Cursor;
use std::path::Path;
use strata_stream::{Access, Batch, Fill, Source, Step};

/// Batches read before a stream counts as long enough: a few kilobytes of compressed zeros are
/// gigabytes of trace.
const BATCHES: usize = 64;

/// Reads a source to its end, checking what it gives; returns accesses read.
fn drain(source: &mut dyn Source) -> u64 {
    let mut batch = Batch::new();
    let mut accesses = 0;
    for _ in 0..BATCHES {
        let fill = source.fill(&mut batch);
        accesses += batch.len() as u64;
        let in_runs = batch.steps().map(|step| match step {
            Step::Run { accesses, .. } => accesses.len(),
            Step::Event(_) => 0,
        });
        assert_eq!(in_runs.sum::<usize>(), batch.len(), "runs hold all accesses");
        match fill {
            Ok(Fill::More) => {}
            Ok(Fill::End) => break,
            Err(error) => {
                let message = error.to_string();
                assert!(!message.contains('\n'), "one line: {message}");
                assert!(matches!(source.fill(&mut batch), Ok(Fill::End)), "an error is the end");
                break;
            }
        }
    }
    assert!(!source.info().kind.is_empty());
    accesses
}

/// A recording made of any bytes.
pub fn recording(bytes: &[u8]) {
    if let Ok(mut reader) = record::Reader::new(Cursor::new(bytes.to_vec()), "fuzz".into()) {
        let accesses = drain(&mut reader);
        reader.seek(accesses / 2);
        drain(&mut reader);
    }
}

/// Any bytes as the content of a recording whose checksums are right, so that the parsers behind
/// the checksums are reached.
pub fn recording_content(bytes: &[u8]) {
    recording(&record::with_content(bytes));
}

/// A recording of any accesses gives them back.
pub fn round_trip(bytes: &[u8]) {
    let mut batch = Batch::new();
    for chunk in bytes.chunks_exact(9) {
        let bits = u64::from_le_bytes(chunk[..8].try_into().expect("eight bytes"));
        let tid = strata_stream::Tid(u32::from(chunk[8] & 3));
        batch.access(tid, Access::from_bits(bits), u64::from(chunk[8] >> 2));
    }
    let mut encoder = record::Encoder::new(Vec::new()).expect("memory does not fail");
    encoder.push(&batch).expect("memory does not fail");
    let (file, _) = encoder.finish(record::Outcome::default()).expect("memory does not fail");
    let mut reader = record::Reader::new(Cursor::new(file), "fuzz".into()).expect("just made");
    let mut back = Batch::new();
    let mut accesses = Vec::new();
    while let Fill::More = reader.fill(&mut back).expect("just made") {
        accesses.extend_from_slice(back.accesses());
    }
    accesses.extend_from_slice(back.accesses());
    assert_eq!(accesses, batch.accesses());
}

/// A ChampSim or CloudSuite trace made of any bytes, compressed or not.
pub fn champsim(bytes: &[u8]) {
    for layout in [champsim::Layout::ChampSim, champsim::Layout::CloudSuite] {
        if let Ok(input) = Input::new(Cursor::new(bytes.to_vec()), "fuzz".into()) {
            drain(&mut champsim::Reader::new(input, layout));
        }
    }
}

/// Lackey's text made of any bytes, compressed or not.
pub fn lackey(bytes: &[u8]) {
    if let Ok(input) = Input::new(Cursor::new(bytes.to_vec()), "fuzz".into()) {
        drain(&mut lackey::Reader::new(input));
    }
}

/// Format detection, and the texts users write.
pub fn texts(bytes: &[u8]) {
    let _ = Format::detect(bytes, Path::new("x.champsim"));
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = strata_text::parse_size(text);
    let _ = strata_text::parse_count(text);
    let _ = text.parse::<Format>();
    if let Ok(mut generator) = Generator::parse(text) {
        let mut batch = Batch::new();
        let _ = generator.fill(&mut batch);
        assert!(generator.info().accesses.is_some());
    }
}
