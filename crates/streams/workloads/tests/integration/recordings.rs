//! Recordings give back what was recorded, whatever happens to the file.

use crate::common::{Part, append, batch, instructions, read, read_all, units};
use proptest::prelude::*;
use std::fs;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use strata_addr::{Gva, Range};
use strata_stream::{
    Access, Backing, Batch, Event, Fill, Item, Pid, Protection, Source, SourceError, Tid,
};
use strata_workloads::Generator;
use strata_workloads::record::{Encoder, Outcome, Reader, Summary, Writer};

fn record(batches: &[Batch]) -> (Vec<u8>, Summary) {
    let mut encoder = Encoder::new(Vec::new()).unwrap();
    for batch in batches {
        encoder.push(batch).unwrap();
    }
    encoder.finish(Outcome::default()).unwrap()
}

fn reader(file: &[u8]) -> Result<Reader<Cursor<Vec<u8>>>, SourceError> {
    Reader::new(Cursor::new(file.to_vec()), "x.strata".into())
}

/// A stream of two threads that fills several blocks, with events all over.
fn long_stream() -> Vec<Batch> {
    let pid = Pid(0);
    let mut batches = Vec::new();
    for i in 0..40u64 {
        let mut batch = Batch::new();
        if i == 0 {
            batch.event(Event::ProcessStart { pid });
            batch.event(Event::ThreadStart { pid, tid: Tid(0) });
            batch.event(Event::ThreadStart { pid, tid: Tid(1) });
        }
        if i % 7 == 0 {
            batch.event(Event::Map {
                pid,
                range: Range::sized(Gva::new(i << 24), 1 << 20),
                backing: Backing::Anonymous,
                protection: Protection::READ_WRITE,
                fixed: false,
            });
        }
        for turn in 0..10u64 {
            batch.run(Tid((turn % 2) as u32), 3000 + turn, |out| {
                out.extend((0..1000).map(|j| {
                    let addr = (turn << 32) + i * 64_000 + j * 64 + j % 3;
                    Access::new(
                        if j % 5 == 0 {
                            strata_stream::AccessKind::Store
                        } else {
                            strata_stream::AccessKind::Load
                        },
                        Gva::new(addr),
                        1 << (j % 7) as u32,
                    )
                }));
            });
        }
        batches.push(batch);
    }
    batches
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_batches_come_back(batches in prop::collection::vec(batch(), 0..8)) {
        let (file, summary) = record(&batches);
        let mut expected = Vec::new();
        for batch in &batches {
            append(&mut expected, batch);
        }
        let mut reader = reader(&file).unwrap();
        prop_assert_eq!(read_all(&mut reader), expected);
        // Not only the stream: small runs are cut as they were.
        let items: Vec<Item> = batches.iter().flat_map(|b| b.items().to_vec()).collect();
        let mut back = Batch::new();
        let mut again = self::reader(&file).unwrap();
        again.fill(&mut back).unwrap();
        prop_assert_eq!(back.items(), &items);
        prop_assert_eq!(summary.accesses, batches.iter().map(|b| b.len() as u64).sum::<u64>());
        prop_assert_eq!(summary.instructions, batches.iter().map(instructions).sum::<u64>());
        prop_assert_eq!(reader.info().accesses, Some(summary.accesses));
        prop_assert_eq!(reader.info().footprint_bytes, Some(summary.footprint_bytes));
    }

    #[test]
    fn a_file_cut_anywhere_gives_a_prefix(batches in prop::collection::vec(batch(), 1..3)) {
        let (file, _) = record(&batches);
        let mut whole = Vec::new();
        for batch in &batches {
            append(&mut whole, batch);
        }
        let whole = units(&whole);
        for length in 0..file.len() {
            match reader(&file[..length]) {
                Err(SourceError::Invalid(_)) => prop_assert!(length < 16),
                Err(other) => panic!("{other}"),
                Ok(mut reader) => {
                    let (parts, error) = read(&mut reader);
                    prop_assert!(whole.starts_with(&units(&parts)));
                    let error = error.expect("something is missing");
                    let place = format!("cut short at byte {length}");
                    prop_assert!(error.contains(&place), "{error}");
                    // When the footer itself is whole, no access is missing.
                    if error.contains("nothing was lost") {
                        prop_assert_eq!(units(&parts).len(), whole.len());
                    }
                }
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed_and_gives_a_prefix(
        batches in prop::collection::vec(batch(), 1..4),
        flips in prop::collection::vec(any::<prop::sample::Index>(), 60),
    ) {
        let (file, _) = record(&batches);
        let whole = read_all(&mut reader(&file).unwrap());
        for flip in flips {
            let bit = flip.index(file.len() * 8);
            let mut damaged = file.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            if let Ok(mut reader) = reader(&damaged) {
                let (parts, error) = read(&mut reader);
                if error.is_none() {
                    // Then the damage is where nothing depends on it.
                    prop_assert_eq!(&parts, &whole);
                } else {
                    prop_assert!(units(&whole).starts_with(&units(&parts)));
                    prop_assert_eq!(reader.info().notes.pop(), error);
                }
            }
        }
    }
}

#[test]
fn every_block_before_the_damage_is_used() {
    let batches = long_stream();
    let (file, summary) = record(&batches);
    assert_eq!(summary.accesses, 400_000);
    let whole = read_all(&mut reader(&file).unwrap());
    let mut longest = 0;
    for tenth in 1..10 {
        let mut damaged = file.clone();
        damaged[file.len() * tenth / 10] ^= 0x10;
        let mut reader = reader(&damaged).unwrap();
        let (parts, error) = read(&mut reader);
        let parts = units(&parts);
        assert!(units(&whole).starts_with(&parts));
        let accesses = parts.iter().filter(|unit| unit.is_ok()).count();
        let error = error.expect("a damaged block");
        assert!(error.contains(&format!("(access {accesses})")), "{error}");
        assert!(error.contains("damaged at byte"), "{error}");
        longest = longest.max(accesses);
    }
    assert!(longest > 200_000, "{longest}");
}

#[test]
fn a_long_run_is_cut_without_losing_an_instruction() {
    let mut batch = Batch::new();
    let load = |i: u64| Access::load(Gva::new(i * 8), 8);
    batch.run(Tid(3), 1_000_003, |out| out.extend((0..100_000).map(load)));
    let (file, _) = record(std::slice::from_ref(&batch));
    let mut expected = Vec::new();
    append(&mut expected, &batch);
    let mut reader = reader(&file).unwrap();
    let mut piece = Batch::new();
    assert_eq!(reader.fill(&mut piece).unwrap(), Fill::More);
    assert_eq!(piece.len(), Batch::TARGET);
    let (rest, _) = read(&mut reader);
    let mut parts = Vec::new();
    append(&mut parts, &piece);
    let Some(Part::Run { instructions, accesses, .. }) = parts.first_mut() else { panic!() };
    let [Part::Run { instructions: more, accesses: others, .. }] = rest.as_slice() else {
        panic!()
    };
    *instructions += more;
    accesses.extend_from_slice(others);
    assert_eq!(parts, expected);
}

#[test]
fn seeking_gives_the_events_before_and_the_stream_from_there() {
    let (file, summary) = record(&long_stream());
    let whole = units(&read_all(&mut reader(&file).unwrap()));
    let mut reader = reader(&file).unwrap();
    let total = summary.accesses;
    for target in [0, 1, 999, 131_071, 131_072, 140_001, 399_999, total, total + 5] {
        reader.seek(target);
        assert_eq!(reader.position(), target);
        let parts = units(&read_all(&mut reader));
        let mut skip = target;
        let expected: Vec<_> = whole
            .iter()
            .filter(|unit| {
                let skipped = unit.is_ok() && skip > 0;
                skip -= u64::from(skipped);
                !skipped
            })
            .copied()
            .collect();
        assert!(parts == expected, "seek to {target}");
    }
}

#[test]
fn totals_are_known_beforehand() {
    let directory = tempdir();
    let path = directory.path().join("a.strata");
    let mut writer = Writer::create(&path).unwrap();
    for batch in long_stream() {
        writer.push(&batch).unwrap();
    }
    assert_eq!(writer.accesses(), 400_000);
    let outcome = Outcome {
        tables: Some(7),
        command: vec!["sqlite3".into(), ":memory:".into()],
        exit_status: Some(3),
        partial: Some("interrupted by Ctrl-C".into()),
        notes: vec!["a note".into()],
    };
    let summary = writer.finish(outcome).unwrap();
    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.summary(), Some(&summary));
    assert_eq!((summary.processes, summary.threads, summary.events), (1, 2, 9));
    // Each of ten turns walks through 40 pieces of 64000 bytes, one after another.
    assert_eq!(summary.footprint_bytes, 10 * (40u64 * 64_000).next_multiple_of(4096));
    let info = strata_workloads::open(&path, None, &Arc::default()).unwrap().info();
    assert_eq!((info.kind, info.accesses), ("recording", Some(400_000)));
    assert_eq!((info.footprint_bytes, info.exit_status), (Some(summary.footprint_bytes), Some(3)));
    let notes = info.notes.join("\n");
    for part in ["sqlite3 :memory:", "partial: interrupted by Ctrl-C", "a note"] {
        assert!(notes.contains(part), "{notes}");
    }
}

#[test]
fn same_stream_same_bytes() {
    assert_eq!(record(&long_stream()).0, record(&long_stream()).0);
}

/// The files were made before the code that reads them, which must still know them.
#[test]
fn recordings_of_before_are_what_they_were_made_of() {
    for (name, spec) in
        [("churn", "churn:accesses=2000"), ("random", "random:size=1MiB,accesses=2000")]
    {
        let file = Path::new("tests/data").join(name).with_extension("strata");
        let mut generator = Generator::parse(spec).unwrap();
        let stream = read_all(&mut Reader::open(&file).unwrap());
        assert!(!stream.is_empty());
        assert_eq!(stream, read_all(&mut generator), "{name}");
        let header = b"\x89STRATA\n\x01\0\0\0";
        assert!(fs::read(file).unwrap().starts_with(header));
        assert!(record(&[]).0.starts_with(header));
    }
}

/// What a copy of a recording holds, and how reading it ended.
fn copy(file: &[u8]) -> (Vec<u8>, Option<String>) {
    let mut reader = reader(file).unwrap();
    let mut encoder = Encoder::new(Vec::new()).unwrap();
    let mut batch = Batch::new();
    let ended = loop {
        let filled = reader.fill(&mut batch);
        encoder.push(&batch).unwrap();
        match filled {
            Ok(Fill::More) => {}
            Ok(Fill::End) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    let outcome = reader.info().recorded.expect("a recording says what it is of");
    (encoder.finish(outcome).unwrap().0, ended)
}

/// A recording of which everything is known.
fn described() -> Vec<u8> {
    let outcome = Outcome {
        command: vec!["sh".into(), "-c".into(), "a  b".into()],
        exit_status: Some(3),
        partial: Some("interrupted by Ctrl-C".into()),
        notes: vec!["a note".into()],
        tables: Some(7),
    };
    let mut encoder = Encoder::new(Vec::new()).unwrap();
    long_stream().iter().for_each(|batch| encoder.push(batch).unwrap());
    encoder.finish(outcome).unwrap().0
}

#[test]
fn a_copy_is_the_same_bytes() {
    let file = described();
    assert!(copy(&file) == (file.clone(), None));
    let surplus = [&file[..], b"something else"].concat();
    assert!(copy(&surplus) == (file.clone(), None), "what is no part of it is left out");
    let plain = record(&long_stream()).0;
    assert!(copy(&plain) == (plain, None));
}

#[test]
fn a_copy_of_a_damaged_recording_says_what_is_lost() {
    let file = described();
    // Without its end nothing is known of the program.
    let (cut, told) = copy(&file[..file.len() / 2]);
    let outcome = reader(&cut).unwrap().info().recorded.unwrap();
    assert_eq!(outcome, Outcome { partial: told.clone(), ..Outcome::default() });
    assert!(told.unwrap().contains("cut short at byte"));
    assert!(copy(&cut) == (cut.clone(), None), "the copy is whole");
    // With a bad block all that is known stays, save that it is partial.
    let mut altered = file.clone();
    altered[file.len() / 2] ^= 1;
    let (part, told) = copy(&altered);
    let outcome = reader(&part).unwrap().info().recorded.unwrap();
    assert_eq!((outcome.exit_status, outcome.tables), (Some(3), Some(7)));
    assert_eq!((outcome.command.len(), &outcome.notes[..]), (3, &["a note".to_owned()][..]));
    assert_eq!(outcome.partial, told);
    assert!(told.unwrap().contains("damaged at byte"));
    // What is damaged after the last access is whole again.
    assert!(copy(&file[..file.len() - 1]).0 == file);
}

fn tempdir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn the_name_appears_when_the_recording_is_whole_and_not_before() {
    let directory = tempdir();
    let path = directory.path().join("a.strata");
    fs::write(&path, "what was there").unwrap();
    let mut writer = Writer::create(&path).unwrap();
    writer.push(&long_stream()[0]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"what was there");
    writer.abort();
    assert_eq!(names(directory.path()), ["a.strata"], "nothing is left of an aborted recording");
    assert_eq!(fs::read(&path).unwrap(), b"what was there");
    Writer::create(&path).unwrap().finish(Outcome::default()).unwrap();
    assert_eq!(names(directory.path()), ["a.strata"]);
    assert!(read_all(&mut Reader::open(&path).unwrap()).is_empty());
}

#[test]
fn a_link_to_a_recording_stays_a_link() {
    let directory = tempdir();
    let (real, link) = (directory.path().join("real"), directory.path().join("link"));
    fs::write(&real, "").unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    Writer::create(&link).unwrap().finish(Outcome::default()).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(Reader::open(&real).is_ok());
}

#[test]
fn a_full_disk_is_one_line_with_a_remedy() {
    let mut writer = Writer::create(Path::new("/dev/full")).unwrap();
    let result = (0..100).try_for_each(|_| writer.push(&long_stream()[0]));
    let error = result.and_then(|()| writer.finish(Outcome::default()).map(|_| ())).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("/dev/full") && message.contains("No space left"), "{message}");
    assert!(message.contains("free some space") && !message.contains('\n'), "{message}");
    assert!(fs::metadata("/dev/full").is_ok_and(|known| !known.is_file()), "still a device");
}

#[test]
fn a_directory_that_is_missing_is_named() {
    let error = Writer::create(Path::new("/no/such/place/a.strata")).err().unwrap().to_string();
    assert!(error.contains("/no/such/place/a.strata") && error.contains("create its directory"));
}

#[test]
fn strangers_and_newer_versions_are_refused() {
    let message = |file: &[u8]| reader(file).err().unwrap().to_string();
    assert!(message(b"hello, world, hello").contains("not a recording"));
    assert!(message(b"").contains("too short"));
    let (mut file, _) = record(&[]);
    file[8] = 9;
    let crc = crc32c::crc32c(&file[..12]);
    file[12..16].copy_from_slice(&crc.to_le_bytes());
    let newer = message(&file);
    assert!(newer.contains("version 9") && newer.contains("newer Strata"), "{newer}");
}

#[test]
fn damage_after_the_last_access_is_told_and_loses_nothing() {
    let batches = long_stream();
    let (file, summary) = record(&batches);
    let whole = read_all(&mut reader(&file).unwrap());
    for at in file.len() - 16..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 0x10;
        let (parts, error) = read(&mut reader(&damaged).unwrap());
        assert_eq!(parts, whole);
        let error = error.expect("damage is told");
        let place = format!("damaged at byte {}, after its last access", file.len() - 16);
        assert!(error.contains(&place), "{error}");
        assert!(error.contains(&format!("({})", summary.accesses)), "{error}");
    }
}

#[test]
fn bytes_after_the_end_are_told_and_change_nothing() {
    let (file, _) = record(&long_stream());
    let whole = read_all(&mut reader(&file).unwrap());
    for surplus in [&b"x"[..], &[0; 5000], &file[file.len() - 16..]] {
        let longer = [&file[..], surplus].concat();
        let mut reader = reader(&longer).unwrap();
        let note = format!("{} bytes after the end", surplus.len());
        assert!(reader.info().notes.iter().any(|told| told.starts_with(&note)), "{note}");
        assert_eq!(read_all(&mut reader), whole);
    }
}
