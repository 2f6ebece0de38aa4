//! The bodies of the fuzz targets on random bytes and on damaged real ones, so that they run
//! without a fuzzer.

use proptest::prelude::*;
use std::io::Write;
use strata_stream::{Batch, Source};
use strata_workloads::{Generator, fuzz, record};

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..600),
        // Bytes that mean something to the parsers.
        prop::collection::vec(
            prop::sample::select(b"ILSM 0123456789abcdef,\n=-:\0\x01\x02\x07\x0b\xff".to_vec()),
            0..600
        ),
    ]
}

/// A small recording with events and accesses.
fn recording() -> Vec<u8> {
    let mut encoder = record::Encoder::new(Vec::new()).unwrap();
    let mut batch = Batch::new();
    Generator::parse("heap:size=64KiB,step=8KiB,accesses=300").unwrap().fill(&mut batch).unwrap();
    encoder.push(&batch).unwrap();
    encoder.finish(record::Outcome::default()).unwrap().0
}

fn packed(bytes: &[u8]) -> [Vec<u8>; 2] {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(bytes).unwrap();
    [gz.finish().unwrap(), liblzma::encode_all(bytes, 0).unwrap()]
}

proptest! {
    #[test]
    fn any_bytes(bytes in bytes()) {
        fuzz::recording(&bytes);
        fuzz::recording_content(&bytes);
        fuzz::round_trip(&bytes);
        fuzz::champsim(&bytes);
        fuzz::lackey(&bytes);
        fuzz::texts(&bytes);
        for packed in packed(&bytes) {
            fuzz::champsim(&packed);
            fuzz::lackey(&packed);
        }
    }

    #[test]
    fn damaged_recordings(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut file = recording();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        fuzz::recording(&file);
    }

    #[test]
    fn damaged_compression(bytes in bytes(), at: prop::sample::Index, byte: u8) {
        for mut packed in packed(&bytes) {
            let at = at.index(packed.len());
            packed[at] = byte;
            fuzz::champsim(&packed);
            fuzz::lackey(&packed);
        }
    }

    #[test]
    fn generator_texts(
        kind in "(sequential|strided|random|zipf|chase|gups|heap|churn)",
        keys in prop::collection::vec(
            ("(size|accesses|stride|theta|node|step|min|max|passes|threads|bytes|grain)", "[0-9]{1,14}(KiB|GB|T|)"),
            0..4,
        ),
    ) {
        let keys: Vec<_> = keys.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        fuzz::texts(format!("{kind}:{}", keys.join(",")).as_bytes());
    }
}

/// The fuzz targets are a workspace of their own, which nothing else here builds.
#[test]
fn every_fuzz_target_is_in_its_manifest() {
    let fuzz = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let targets = manifest["bin"].as_array().unwrap();
    let mut named: Vec<_> = targets.iter().map(|bin| bin["path"].as_str().unwrap()).collect();
    named.sort_unstable();
    let mut there: Vec<_> = std::fs::read_dir(fuzz.join("fuzz_targets"))
        .unwrap()
        .map(|entry| format!("fuzz_targets/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    there.sort_unstable();
    assert_eq!(named, there);
}
