//! The caches against valgrind's cachegrind, an independent simulator, on the same program: lackey writes
//! its trace, and both count misses on it.

use super::{Llc, LlcDesign, LlcOptions, Owner, WayMask};
use crate::cache::Cache;
use crate::geometry::CacheGeometry;
use crate::limits::LINE_SHIFT;
use crate::read::{NO_HITS, Read, class};
use std::path::Path;
use std::process::Command;

/// Reads and writes 768 KiB in order, backwards and at random, also across the ends of lines. Without a
/// library nothing depends on what is on the stack, which differs between valgrind's tools.
const PROGRAM: &str = r#"
static unsigned char bytes[768 << 10] = {1};
void _start(void) {
    unsigned long state = 1, sum = 0;
    for (unsigned long i = 0; i + 8 <= sizeof bytes; i += 24)
        sum += *(unsigned long *)(bytes + i);
    for (unsigned long i = 0; i < 40000; i++) {
        state = state * 6364136223846793005ul + 1442695040888963407ul;
        *(volatile unsigned *)(bytes + (state >> 33) % (sizeof bytes - 8)) += 1;
        sum += *(volatile unsigned *)(bytes + (state >> 40) % (96 << 10));
    }
    for (unsigned long i = sizeof bytes; i > 192; i -= 192)
        bytes[i - 1] = sum;
    __asm__ volatile("syscall" : : "a"(60), "D"(0) : "rcx", "r11", "memory");
}
"#;

const L1: CacheGeometry = CacheGeometry { bytes: 32 << 10, ways: 8, cycles: 0 };
const LL: CacheGeometry = CacheGeometry { bytes: 256 << 10, ways: 8, cycles: 0 };

/// Misses of instructions and of data, in the first level and in the last.
#[derive(Debug, Default, PartialEq, Eq)]
struct Misses {
    instructions: [u64; 2],
    data: [u64; 2],
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{}: {error}; install gcc and valgrind", command.get_program().display())
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn build(directory: &Path) -> std::path::PathBuf {
    let (source, program) = (directory.join("program.c"), directory.join("program"));
    std::fs::write(&source, PROGRAM).unwrap();
    let options = ["-O1", "-nostdlib", "-static", "-no-pie", "-fno-pie", "-fno-stack-protector"];
    run(Command::new("cc").args(options).arg("-o").arg(&program).arg(&source));
    program
}

/// What cachegrind counts.
fn cachegrind(program: &Path, directory: &Path) -> Misses {
    let size = |cache: CacheGeometry| format!("{},{},64", cache.bytes, cache.ways);
    let out = directory.join("cachegrind.out");
    run(Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=yes"])
        .args([format!("--I1={}", size(L1)), format!("--D1={}", size(L1))])
        .args([format!("--LL={}", size(LL)), format!("--cachegrind-out-file={}", out.display())])
        .arg(program));
    let text = std::fs::read_to_string(out).unwrap();
    let line = |start: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(start)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let (names, counts) = (line("events:"), line("summary:"));
    let count = |name: &str| -> u64 {
        counts[names.iter().position(|other| other == name).unwrap()].parse().unwrap()
    };
    Misses {
        instructions: [count("I1mr"), count("ILmr")],
        data: [count("D1mr") + count("D1mw"), count("DLmr") + count("DLmw")],
    }
}

/// A level of cache, asked line by line.
trait Level {
    fn misses(&mut self, line: u64) -> bool;
}

impl Level for Cache {
    fn misses(&mut self, line: u64) -> bool {
        self.read(&mut [Read::new(line, class::DATA)], false, &mut { NO_HITS }) == 1
    }
}

impl Level for Llc {
    fn misses(&mut self, line: u64) -> bool {
        self.read(Owner(0), &mut [Read::new(line, class::DATA)], &mut { NO_HITS }) == 1
    }
}

/// The same as cachegrind does it: instructions and data have caches of their own above the last level;
/// an access to two lines that misses one of them asks the next level for both, and is one miss.
fn ours(trace: &str, last: &mut impl Level) -> Misses {
    let (mut i1, mut d1) = (Cache::new(&L1), Cache::new(&L1));
    let mut misses = Misses::default();
    for line in trace.lines() {
        let (is_instruction, rest) = match line.split_at_checked(3) {
            Some(("I  ", rest)) => (true, rest),
            Some((" L " | " S " | " M ", rest)) => (false, rest),
            _ => continue,
        };
        let (address, bytes) = rest.split_once(',').unwrap();
        let address = u64::from_str_radix(address, 16).unwrap();
        let bytes: u64 = bytes.parse().unwrap();
        let lines = address >> LINE_SHIFT..=(address + bytes - 1) >> LINE_SHIFT;
        let count_missed = |level: &mut dyn Level| -> bool {
            lines.clone().fold(false, |missed, line| level.misses(line) | missed)
        };
        let (l1, counts) = match is_instruction {
            true => (&mut i1, &mut misses.instructions),
            false => (&mut d1, &mut misses.data),
        };
        if count_missed(l1) {
            counts[0] += 1;
            counts[1] += u64::from(count_missed(last));
        }
    }
    misses
}

#[test]
fn misses_are_those_that_cachegrind_counts() {
    let directory = tempfile::tempdir().unwrap();
    let program = build(directory.path());
    let expected = cachegrind(&program, directory.path());
    let log = directory.path().join("trace");
    run(Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes"])
        .arg(format!("--log-file={}", log.display()))
        .arg(&program));
    let trace = std::fs::read_to_string(log).unwrap();
    assert!(expected.data[0] > 50_000 && expected.data[1] > 20_000, "{expected:?}");

    let detailed = |geometry: CacheGeometry, options: &LlcOptions| {
        ours(&trace, &mut Llc::new(&geometry, options))
    };
    assert_eq!(ours(&trace, &mut Cache::new(&LL)), expected);
    let plain = LlcOptions::default();
    assert_eq!(detailed(LL, &plain), expected);
    assert_eq!(detailed(LL, &LlcOptions { classify: true, ..plain.clone() }), expected);
    // Twice the ways, of which the cache may fill those it has elsewhere.
    let wide = CacheGeometry { bytes: 2 * LL.bytes, ways: 2 * LL.ways, ..LL };
    let mask = Some(WayMask::new(0xff << 3).unwrap());
    assert_eq!(detailed(wide, &LlcOptions { masks: vec![mask], ..plain.clone() }), expected);
    // A hash puts lines elsewhere, so that the simulators do not coincide.
    let design = LlcDesign { slices: 2, hash: crate::SliceHash::Intel, ..LlcDesign::default() };
    assert_ne!(detailed(LL, &LlcOptions { design, ..plain }), expected);
}
