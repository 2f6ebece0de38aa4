//! Traces of other programs.

use crate::common::{Part, read, read_all, units};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use strata_addr::{Gva, PageSize};
use strata_stream::{Access, Batch, Event, Fill, Tid};
use strata_stream::{Source, SourceError};
use strata_workloads::Format;

fn open(path: &Path, format: Option<Format>) -> Result<Box<dyn Source>, SourceError> {
    strata_workloads::open(path, format, &Arc::default())
}

/// One instruction, as either structure of ChampSim holds it.
#[derive(Clone, Copy, Default)]
struct Instruction {
    ip: u64,
    branch: bool,
    stores: [u64; 2],
    loads: [u64; 4],
}

impl Instruction {
    fn bytes(&self, format: Format) -> Vec<u8> {
        let mut bytes = self.ip.to_le_bytes().to_vec();
        bytes.extend([u8::from(self.branch); 2]);
        // Registers, with numbers that would not pass as flags.
        let (registers, operands) = if format == Format::ChampSim { (6, 2) } else { (8, 4) };
        bytes.extend(vec![26; registers]);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let mut stores = self.stores.to_vec();
        stores.resize(operands, 0);
        for operand in stores.iter().chain(&self.loads) {
            bytes.extend(operand.to_le_bytes());
        }
        if format == Format::CloudSuite {
            bytes.extend([255, 255, 0, 0, 0, 0, 0, 0]);
        }
        bytes
    }
}

fn instructions(count: u64) -> Vec<Instruction> {
    let stack = 0x7fff_1234_5678;
    let instruction = |i: u64| Instruction {
        ip: 0x40_1000 + i * 4,
        branch: i.is_multiple_of(6),
        stores: if i.is_multiple_of(3) { [stack - 8 * (i % 50), 0] } else { [0, 0] },
        loads: if i.is_multiple_of(2) { [0, 0x7f00_0000_0000 + i * 64, 0, stack] } else { [0; 4] },
    };
    (0..count).map(instruction).collect()
}

fn bytes(instructions: &[Instruction], format: Format) -> Vec<u8> {
    instructions.iter().flat_map(|instruction| instruction.bytes(format)).collect()
}

fn expected(instructions: &[Instruction]) -> Vec<Access> {
    let mut accesses = Vec::new();
    for Instruction { loads, stores, .. } in instructions {
        let present = |operands: &[u64]| {
            operands.iter().copied().filter(|&o| o != 0).map(Gva::new).collect::<Vec<_>>()
        };
        accesses.extend(present(loads).into_iter().map(|addr| Access::load(addr, 8)));
        accesses.extend(present(stores).into_iter().map(|addr| Access::store(addr, 8)));
    }
    accesses
}

fn accesses(parts: &[Part]) -> Vec<Access> {
    units(parts).into_iter().filter_map(|unit| unit.ok().map(|(_, access)| access)).collect()
}

fn executed(parts: &[Part]) -> u64 {
    let count = |part: &Part| match part {
        Part::Run { instructions, .. } => *instructions,
        Part::Event(_) => 0,
    };
    parts.iter().map(count).sum()
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    liblzma::encode_all(bytes, 1).unwrap()
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

fn message(path: &Path) -> String {
    open(path, None).err().unwrap().to_string()
}

#[test]
fn both_champsim_layouts_are_told_apart_raw_and_compressed() {
    let files = Files::new();
    let instructions = instructions(3000);
    for format in [Format::ChampSim, Format::CloudSuite] {
        let raw = bytes(&instructions, format);
        assert_eq!(raw.len() % if format == Format::ChampSim { 64 } else { 96 }, 0);
        let multiple = [gz(&raw[..9600]), gz(&raw[9600..])].concat();
        let zstd = zstd::encode_all(raw.as_slice(), 1).unwrap();
        for bytes in [raw.clone(), gz(&raw), xz(&raw), multiple, zstd] {
            // A name that says nothing, so that content decides.
            let path = files.write("trace", &bytes);
            let mut source = open(&path, None).unwrap();
            let parts = read_all(&mut *source);
            assert_eq!(source.info().kind, format.name());
            assert_eq!(accesses(&parts), expected(&instructions));
            assert_eq!(executed(&parts), 3000);
            assert_eq!(source.info().accesses, Some(accesses(&parts).len() as u64));
            assert!(source.info().notes[0].contains("no mappings"));
        }
    }
}

#[test]
fn a_format_can_be_forced() {
    let files = Files::new();
    let path = files.write("trace", &bytes(&instructions(300), Format::ChampSim));
    let mut source = open(&path, Some(Format::CloudSuite)).unwrap();
    read(&mut *source);
    assert_eq!(source.info().kind, "cloudsuite");
    assert!(open(&path, Some(Format::Recording)).is_err());
    for format in Format::ALL {
        assert_eq!(format.name().parse(), Ok(format));
    }
    let unknown = "champsin".parse::<Format>().unwrap_err();
    assert!(unknown.contains("did you mean 'champsim'"), "{unknown}");
}

#[test]
fn a_trace_too_short_to_judge_is_taken_by_its_name() {
    let files = Files::new();
    let odd = Instruction { ip: 1 << 60, ..Instruction::default() };
    let good = Instruction { ip: 0x40_1000, ..Instruction::default() };
    let raw = bytes(&[good, odd], Format::ChampSim);
    assert!(message(&files.write("trace", &raw)).contains("no trace of a known format"));
    let named = open(&files.write("x.champsimtrace", &raw), None).unwrap();
    assert_eq!(named.info().kind, "champsim");
}

#[test]
fn mappings_are_inferred_once_for_each_two_mebibytes() {
    let files = Files::new();
    let touch = |addr| Instruction { ip: 1 << 22, loads: [addr, 0, 0, 0], ..Default::default() };
    let huge = PageSize::Huge.bytes();
    // The third straddles into the unit that the fourth uses.
    let addrs = [1 << 40, (1 << 40) + 5, (1 << 40) + huge - 4, (1 << 40) + huge + 64];
    let raw = bytes(&addrs.map(touch), Format::ChampSim);
    let parts = read_all(&mut *open(&files.write("t.champsim", &raw), None).unwrap());
    let maps: Vec<_> = parts
        .iter()
        .filter_map(|part| match part {
            Part::Event(Event::Map { range, .. }) => Some((range.start.get(), range.bytes())),
            _ => None,
        })
        .collect();
    assert_eq!(maps, [(1 << 40, huge), ((1 << 40) + huge, huge)]);
}

#[test]
fn kernel_addresses_are_left_out_and_counted() {
    let files = Files::new();
    let loads = [0xffff_8880_0000_0000, 0x7000_0000_0000, 0, 0];
    let raw = bytes(&[Instruction { ip: 1, loads, ..Default::default() }], Format::ChampSim);
    let mut source = open(&files.write("t.champsim", &raw), None).unwrap();
    let parts = read_all(&mut *source);
    assert_eq!(accesses(&parts), [Access::load(Gva::new(0x7000_0000_0000), 8)]);
    assert!(source.info().notes.iter().any(|note| note.starts_with("1 accesses to kernel")));
}

#[test]
fn what_comes_before_the_end_of_a_cut_trace_is_used() {
    let files = Files::new();
    let instructions = instructions(6000);
    let whole = expected(&instructions);
    let raw = bytes(&instructions, Format::ChampSim);
    for packed in [raw.clone(), gz(&raw), xz(&raw)] {
        for part in 1..8 {
            let length = packed.len() * part / 8 - 3;
            let path = files.write("t.champsim", &packed[..length]);
            let mut source = open(&path, None).unwrap();
            let (parts, error) = read(&mut *source);
            let (accesses, error) = (accesses(&parts), error.expect("cut"));
            assert!(whole.starts_with(&accesses));
            assert!(error.contains(&format!("(access {})", accesses.len())), "{error}");
            assert!(error.contains("cut short") && error.contains("at byte"), "{error}");
            assert!(matches!(source.fill(&mut Batch::new()), Ok(Fill::End)));
        }
    }
}

#[test]
fn a_compressed_trace_with_flipped_bits_never_panics() {
    let files = Files::new();
    let instructions = instructions(2000);
    let whole = expected(&instructions);
    let packed = xz(&bytes(&instructions, Format::ChampSim));
    for at in (0..packed.len()).step_by(7) {
        let mut damaged = packed.clone();
        damaged[at] ^= 4;
        let path = files.write("t.champsim.xz", &damaged);
        if let Ok(mut source) = open(&path, None) {
            let (parts, error) = read(&mut *source);
            // A bit of padding or of a field that nothing reads may not be noticed.
            assert!(error.is_some() || accesses(&parts) == whole);
        }
    }
}

#[test]
fn a_bomb_is_streamed() {
    // 300 MiB of instructions without operand, in some kilobytes.
    let zeros = Instruction { ip: 0x40_0000, ..Default::default() }.bytes(Format::ChampSim);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let block = zeros.repeat(16 * 1024);
    for _ in 0..300 {
        encoder.write_all(&block).unwrap();
    }
    let files = Files::new();
    let path = files.write("bomb.champsim.gz", &encoder.finish().unwrap());
    let before = peak_memory();
    let parts = read_all(&mut *open(&path, None).unwrap());
    assert_eq!(executed(&parts), 300 * 16 * 1024);
    let grown = peak_memory() - before;
    assert!(grown < 64 << 10, "{grown} KiB");
}

#[test]
fn an_xz_file_that_asks_for_all_memory_is_refused() {
    let mut packed = xz(&bytes(&instructions(100), Format::ChampSim));
    // The block header follows 12 bytes of stream header: its length in words less one, flags,
    // then the filter LZMA2 with one byte of properties, which is the size of its dictionary.
    let end = 12 + (usize::from(packed[12]) + 1) * 4;
    let filter = packed[12..end].windows(2).position(|pair| pair == [0x21, 1]).unwrap();
    packed[12 + filter + 2] = 40;
    let mut crc = flate2::Crc::new();
    crc.update(&packed[12..end - 4]);
    packed[end - 4..end].copy_from_slice(&crc.sum().to_le_bytes());
    let message = message(&Files::new().write("t.champsim.xz", &packed));
    assert!(message.contains("needs more than 256 MiB"), "{message}");
}

/// Most memory this process has had, in KiB.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

const LACKEY: &str = "==7== Lackey, an example Valgrind tool\n\
    ==7== Command: true\n\
    I  0401ab70,3\n\
    I  0401ab73,5\n S 1fff000658,8\n\
    I  0401b770,1\n L 0425abe0,4\n M 0425abe8,2\n\
    hello from the program\n\
    I  0401b771,7\n\
    ==7== Exit code:       5\n";

#[test]
fn lackey_text_is_read_with_its_modifies_and_exit_code() {
    let files = Files::new();
    for bytes in [LACKEY.as_bytes().to_vec(), gz(LACKEY.as_bytes()), xz(LACKEY.as_bytes())] {
        let mut source = open(&files.write("trace", &bytes), None).unwrap();
        let parts = read_all(&mut *source);
        let at = Gva::new;
        assert_eq!(
            accesses(&parts),
            [
                Access::store(at(0x1f_ff00_0658), 8),
                Access::load(at(0x425_abe0), 4),
                Access::load(at(0x425_abe8), 2),
                Access::store(at(0x425_abe8), 2),
            ]
        );
        assert_eq!(executed(&parts), 4);
        let info = source.info();
        assert_eq!((info.kind, info.exit_status), ("lackey", Some(5)));
        let at = LACKEY.find("hello").unwrap();
        let note =
            format!("1 lines that are no trace records were passed over, the first at byte {at}");
        assert!(info.notes.contains(&note), "{:?}", info.notes);
    }
}

#[test]
fn lackey_text_cut_within_a_line_says_so() {
    let files = Files::new();
    let whole = read_all(&mut *open(&files.write("t", LACKEY.as_bytes()), None).unwrap());
    for length in 45..LACKEY.len() {
        let path = files.write("t", &LACKEY.as_bytes()[..length]);
        let (parts, error) = read(&mut *open(&path, Some(Format::Lackey)).unwrap());
        assert!(units(&whole).starts_with(&units(&parts)));
        let in_line = !LACKEY[..length].ends_with('\n');
        assert_eq!(error.is_some(), in_line, "{length}: {error:?}");
        if let Some(error) = error {
            assert!(error.contains("ends within a line at byte"), "{error}");
        }
    }
}

#[test]
fn a_line_without_end_does_not_fill_the_memory() {
    let files = Files::new();
    let mut text = LACKEY.as_bytes().to_vec();
    text.extend(std::iter::repeat_n(b'x', 1 << 20));
    text.extend(b"\n L 1000,8\n");
    let mut source = open(&files.write("t", &text), None).unwrap();
    assert_eq!(accesses(&read_all(&mut *source)).len(), 5);
}

/// The real thing, where valgrind is installed; what it prints is compared with its own summary.
#[test]
fn a_trace_that_valgrind_made_is_read() {
    let files = Files::new();
    let path = files.0.path().join("true.lackey");
    let valgrind = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=yes"])
        .arg(format!("--log-file={}", path.display()))
        .arg("/bin/true")
        .output();
    let Ok(output) = valgrind else {
        eprintln!("valgrind is not installed: nothing to compare with");
        return;
    };
    assert!(output.status.success());
    let mut source = open(&path, None).unwrap();
    let parts = read_all(&mut *source);
    let info = source.info();
    assert_eq!((info.kind, info.exit_status), ("lackey", Some(0)));
    assert_eq!(info.notes.len(), 1, "{:?}", info.notes);
    let text = fs::read_to_string(&path).unwrap();
    let summary = text.lines().find(|line| line.contains("guest instrs:")).unwrap();
    let digits: String = summary.rsplit(' ').next().unwrap().replace(',', "");
    assert_eq!(executed(&parts), digits.parse::<u64>().unwrap());
    let lines = |mark: &str| text.lines().filter(|line| line.starts_with(mark)).count();
    assert_eq!(accesses(&parts).len(), lines(" L ") + lines(" S ") + 2 * lines(" M "));
    assert!(units(&parts).iter().flatten().all(|(tid, _)| *tid == Tid(0)));
}

#[test]
fn what_is_no_trace_is_refused_in_one_line() {
    let files = Files::new();
    let directory = files.0.path();
    for (path, part) in [
        (files.write("empty", b""), "is empty"),
        (files.write("text", b"#!/bin/sh\necho hello\n"), "no trace of a known format"),
        (files.write("zeros", &[0; 4096]), "no trace of a known format"),
        (files.write("cut.gz", &gz(LACKEY.as_bytes())[..5]), "damaged or cut short"),
        (directory.join("missing"), "No such file"),
        (directory.to_path_buf(), "directory"),
    ] {
        let message = message(&path);
        assert!(message.contains(part), "{message}");
        assert!(message.contains(path.to_str().unwrap()) && !message.contains('\n'), "{message}");
    }
}

#[test]
fn a_compressed_recording_is_read() {
    let files = Files::new();
    let mut encoder = strata_workloads::record::Encoder::new(Vec::new()).unwrap();
    let mut batch = Batch::new();
    batch.run(Tid(0), 5, |out| out.push(Access::load(Gva::new(4096), 8)));
    encoder.push(&batch).unwrap();
    let (recording, _) = encoder.finish(Default::default()).unwrap();
    let path = files.write("r.strata.gz", &gz(&recording));
    let mut source = open(&path, None).unwrap();
    assert_eq!(source.info().kind, "recording");
    assert_eq!(accesses(&read_all(&mut *source)).len(), 1);
}
