//! Scanning what changes: mappings that come, go and split meanwhile, processes that end.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use strata_inspect::scan::backing::{self, Merged};
use strata_inspect::scan::guest::{Looked, look};
use strata_inspect::scan::pagemap::{AddressSpace, FrameFlags};
use strata_inspect::snapshot::model::{Slot, Vm};
use strata_inspect::{Snapshot, Tree, scan};

const BLOCK: usize = 2 << 20;

/// Anonymous memory with advice, given back at the end.
struct Memory {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the value alone.
unsafe impl Send for Memory {}

impl Memory {
    fn new(bytes: usize) -> Self {
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        let memory = Self { start: start.cast(), bytes };
        memory.advise(0, bytes, libc::MADV_HUGEPAGE);
        memory
    }

    fn advise(&self, from: usize, bytes: usize, advice: i32) {
        assert!(from + bytes <= self.bytes);
        // SAFETY: the range is in the mapping, which nobody else refers to.
        unsafe { libc::madvise(self.start.add(from).cast(), bytes, advice) };
    }

    fn touch(&self) {
        for at in (0..self.bytes).step_by(4096) {
            // SAFETY: in the mapping, which nobody else refers to.
            unsafe { self.start.add(at).write_volatile(1) };
        }
    }

    fn address(&self) -> u64 {
        self.start as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, used by nobody any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// Scans to do: some, and on a busy machine more until one met a change.
struct Rounds {
    left: u32,
    begun: Instant,
}

impl Rounds {
    fn new(least: u32) -> Self {
        Self { left: least, begun: Instant::now() }
    }

    fn go_on(&mut self, met: bool) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0 || !met && self.begun.elapsed() < Duration::from_secs(60)
    }
}

fn frames_are_shown(memory: &Memory) -> bool {
    let mut word = [0; 8];
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    pagemap.read_exact_at(&mut word, memory.address() / 4096 * 8).unwrap();
    u64::from_ne_bytes(word) & ((1 << 55) - 1) != 0
}

/// Runs `check` while a thread splits, drops and remaps memory; the address handed to it is that
/// of 16 MiB under change.
fn under_churn(check: impl FnOnce(u64)) {
    let stop = AtomicBool::new(false);
    let stirred = Memory::new(8 * BLOCK);
    let address = stirred.address();
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            let mut round = 0;
            while !stop.load(Relaxed) {
                stirred.touch();
                stirred.advise(
                    (round % 7) * BLOCK,
                    BLOCK + 4096 * (round % 3),
                    libc::MADV_DONTNEED,
                );
                let other = Memory::new(4 * BLOCK);
                other.touch();
                round += 1;
            }
        });
        check(address);
        stop.store(true, Relaxed);
    });
}

#[test]
fn a_process_that_remaps_is_read_well_formed_and_what_stays_is_certain() {
    let steady = Memory::new(8 * BLOCK);
    steady.touch();
    if !frames_are_shown(&steady) {
        eprintln!("SKIPPED: frames are hidden: not root");
        return;
    }
    let (tree, frames) = (Tree::default(), FrameFlags::open(&Tree::default()));
    let mut reread = 0;
    under_churn(|_| {
        let mut rounds = Rounds::new(60);
        while rounds.go_on(reread > 0) {
            let Looked::Found(process, counts) = look(&tree, std::process::id(), &frames).unwrap()
            else {
                continue;
            };
            reread += counts.reread;
            let pages: Vec<_> = process.areas.iter().flat_map(|area| &area.huge).collect();
            assert!(pages.is_sorted_by(|a, b| a.region < b.region), "in order, each once");
            for area in &process.areas {
                let bounds = area.start >> 21..area.end.div_ceil(1 << 21);
                assert!(area.huge.iter().all(|page| bounds.contains(&page.region)));
            }
            for page in pages {
                assert!(page.uncertain || page.frame % 512 == 0 && page.frame != 0, "{page:?}");
                let at = page.region << 21;
                let ours = steady.address()..steady.address() + steady.bytes as u64;
                assert!(!page.uncertain || !ours.contains(&at), "what stays is certain");
            }
        }
    });
    assert!(reread > 0, "nothing changed under any scan: no churn");
}

#[test]
fn a_vm_whose_memory_changes_is_read_again_and_marked() {
    let (tree, frames) = (Tree::default(), FrameFlags::open(&Tree::default()));
    let space = AddressSpace::open(&tree, std::process::id()).unwrap().unwrap();
    let run = |hva: u64| {
        let hva = hva.next_multiple_of(BLOCK as u64);
        let slot = Slot { gpa: 0, hva, size: 6 * BLOCK as u64 };
        let vm = Vm { slots: vec![slot], ..Vm::default() };
        let mut regions = Vec::new();
        let counts = backing::scan(&vm, &space, &frames, &Merged::default(), |found| {
            regions.extend(found);
            Ok(())
        });
        (counts.unwrap(), regions)
    };
    let (mut reread, mut uncertain) = (0, 0);
    under_churn(|address| {
        let mut rounds = Rounds::new(200);
        while rounds.go_on(reread > 0) {
            let (counts, regions) = run(address);
            let marked = regions.iter().filter(|region| region.uncertain).count() as u64;
            assert_eq!((regions.len(), counts.uncertain), (6, marked));
            assert!(counts.uncertain <= 6 && counts.reread <= 6);
            reread += counts.reread;
            uncertain += counts.uncertain;
        }
    });
    assert!(reread > 0, "nothing changed under any scan: no churn");
    let still = Memory::new(8 * BLOCK);
    still.touch();
    let (counts, regions) = run(still.address());
    assert_eq!((counts.uncertain, regions.len()), (0, 6), "{uncertain} uncertain under churn");
    assert!(regions.iter().all(|region| region.present == 512));
}

#[test]
fn processes_that_end_during_a_scan_are_no_failure() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                Command::new("true").status().unwrap();
            }
        });
        for _ in 0..3 {
            let snapshot: Snapshot = scan(&Tree::default(), None).unwrap();
            assert!(!snapshot.head.machine.kernel.is_empty());
        }
        stop.store(true, Relaxed);
    });
}

#[test]
fn a_tree_without_proc_is_refused_and_an_empty_one_says_what_it_lacks() {
    let directory = tempfile::tempdir().unwrap();
    let tree = Tree::new(directory.path());
    let message = scan(&tree, None).unwrap_err().to_string();
    assert!(message.contains("mount /proc first"), "{message}");
    std::fs::create_dir(directory.path().join("proc")).unwrap();
    let snapshot = scan(&tree, None).unwrap();
    let blind: Vec<_> = snapshot.tail.blind.iter().map(|blind| blind.what.as_str()).collect();
    for expected in ["/proc/kpageflags", "the THP settings", "/proc/buddyinfo", "the boot id"] {
        assert!(blind.iter().any(|what| what.contains(expected)), "{expected}: {blind:?}");
    }
}
