//! Which memory is hot: on a tree in which a thread does what the kernel does, and on the running kernel.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};
use strata_inspect::scan::frame_set::FrameSet;
use strata_inspect::scan::hot::{Watch, Watching};
use strata_inspect::scan::pagemap::{AddressSpace, FrameFlags};
use strata_inspect::snapshot::entry::{PagemapEntry, flags};
use strata_inspect::snapshot::hot::{By, Pages};
use strata_inspect::{Snapshot, Tree, read, scan, scan_to_file, vm_accounts};

const HVA: u64 = 1 << 28;
const HUGE: u64 = 1024;
const HUGETLB: u64 = 2048;
const BITMAP: &str = "sys/kernel/mm/page_idle/bitmap";

/// The frame of a page of the VM below: a huge page, pages here and there, a hugetlb page, nothing.
fn frame(page: u64) -> Option<u64> {
    match page / 512 {
        0 => Some(HUGE + page),
        1 => Some(5000 + 2 * (page - 512)),
        2 => Some(HUGETLB + page - 1024),
        _ => None,
    }
}

fn put(root: &Path, path: &str, bytes: &[u8]) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn words(all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A VM of 8 MiB on a host, and what its kernel says of frames.
fn host(flags_too: bool, idle_too: bool) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let at = root.path();
    put(at, "proc/7/cmdline", b"vmm\0");
    put(at, "proc/7/comm", b"vmm\n");
    put(at, "proc/7/status", b"Name:\tvmm\n");
    let smaps = format!("{HVA:x}-{:x} rw-p 00000000 00:00 0 \nVmFlags: rd wr\n", HVA + (8 << 20));
    put(at, "proc/7/smaps", smaps.as_bytes());
    put(at, "proc/7/maps", smaps.lines().next().unwrap().as_bytes());
    fs::create_dir_all(at.join("proc/7/fd")).unwrap();
    symlink("anon_inode:kvm-vm", at.join("proc/7/fd/9")).unwrap();
    let pagemap = File::create(at.join("proc/7/pagemap")).unwrap();
    let entry = |page| frame(page).map_or(PagemapEntry::default(), PagemapEntry::present_at).0;
    let entries: Vec<u64> = (0..2048).map(entry).collect();
    pagemap.write_all_at(&words(&entries), HVA / 4096 * 8).unwrap();
    if flags_too {
        let mut bits = vec![0; 8192];
        for page in 0..512 {
            let place = if page == 0 { flags::HEAD } else { flags::TAIL };
            // Tails have only some of the flags of their heads.
            let lists = if page == 0 { flags::LRU | flags::ACTIVE } else { 0 };
            bits[HUGE as usize + page] = flags::THP | place | lists;
            bits[HUGETLB as usize + page] = flags::HUGETLB | place;
            let referenced = if page % 4 == 0 { flags::REFERENCED } else { 0 };
            bits[5000 + 2 * page] = flags::LRU | flags::ANON | referenced;
        }
        put(at, "proc/kpageflags", &words(&bits));
    }
    if idle_too {
        put(at, BITMAP, &[0; 1024]);
    }
    root
}

/// Waits until all frames that can be are marked, and uses some of them: the huge page, and every fourth
/// page of those here and there. Then ends the waiting.
fn imitate_the_kernel(root: &Path, stop: &AtomicBool) {
    let file = File::options().read(true).write(true).open(root.join(BITMAP)).unwrap();
    let frames = (0..512).map(|page| 5000 + 2 * page);
    let word = |frame: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, frame / 64 * 8).unwrap();
        u64::from_ne_bytes(bytes)
    };
    let is_idle = |frame: u64| word(frame) >> (frame % 64) & 1 == 1;
    let begun = Instant::now();
    while !frames.clone().chain([HUGE]).all(is_idle) {
        assert!(begun.elapsed() < Duration::from_secs(60), "frames are not marked");
        sleep(Duration::from_millis(5));
    }
    assert!((1..512).all(|page| !is_idle(HUGE + page)), "tails have no bit");
    assert!((0..512).all(|page| !is_idle(HUGETLB + page)), "what is on no list is not tracked");
    for frame in frames.step_by(4).chain([HUGE]) {
        let word = word(frame) & !(1 << (frame % 64));
        file.write_all_at(&word.to_ne_bytes(), frame / 64 * 8).unwrap();
    }
    stop.store(true, Relaxed);
}

/// What is expected whichever way it was seen.
fn check(snapshot: &Snapshot, by: By) {
    let vm = &snapshot.vms[0];
    assert_eq!(vm.vm.watched.unwrap().by, by);
    let mut fourths = Pages::default();
    (0..512).step_by(4).for_each(|page| fourths.set(page));
    let found: Vec<_> = vm.hot.iter().map(|hot| (hot.index, hot.watched, hot.used)).collect();
    assert_eq!(found, [(0, Pages::ALL, Pages::ALL), (1, Pages::ALL, fourths)]);
    let hot = vm_accounts(snapshot)[0].hot.unwrap();
    assert_eq!((hot.by, hot.watched, hot.pages), (by, 1024, 512 + 128));
    let blind: Vec<_> = snapshot.tail.blind.iter().map(|blind| blind.what.as_str()).collect();
    let untracked = "the use of 512 pages of VMs (hugetlb";
    assert!(blind.iter().any(|what| what.starts_with(untracked)), "{blind:?}");
    let is_told = blind.iter().any(|what| what.contains("CONFIG_IDLE_PAGE_TRACKING"));
    assert_eq!(is_told, by == By::KernelFlags, "{blind:?}");
}

#[test]
fn what_is_not_idle_any_more_was_used() {
    let root = host(true, true);
    let stop = AtomicBool::new(false);
    let file = root.path().join("host.scan");
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| imitate_the_kernel(root.path(), &stop));
        // Nobody waits for so long: whoever stops it gets what there is.
        let watch = Watch { time: Duration::from_secs(600), stop: &stop };
        scan_to_file(&Tree::new(root.path()), Some(watch), &file).unwrap();
    });
    assert!(begun.elapsed() < Duration::from_secs(120));
    let snapshot = read(&file).unwrap();
    check(&snapshot, By::PageIdle);
    let waited = Duration::from_millis(snapshot.vms[0].vm.watched.unwrap().milliseconds);
    assert!(waited < begun.elapsed(), "what was waited, not what was asked for: {waited:?}");
}

#[test]
fn without_idle_tracking_the_flags_have_to_do() {
    let root = host(true, false);
    let begun = Instant::now();
    let watch = Watch { time: Duration::from_secs(600), stop: &AtomicBool::new(false) };
    let snapshot = scan(&Tree::new(root.path()), Some(watch)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(120), "waiting would show nothing");
    check(&snapshot, By::KernelFlags);
    assert_eq!(snapshot.vms[0].vm.watched.unwrap().milliseconds, 0);
}

#[test]
fn where_nothing_tells_that_is_said_with_a_remedy() {
    let root = host(false, false);
    let watch = Watch { time: Duration::from_secs(600), stop: &AtomicBool::new(false) };
    let snapshot = scan(&Tree::new(root.path()), Some(watch)).unwrap();
    assert_eq!((snapshot.vms.len(), snapshot.vms[0].vm.watched), (1, None));
    let blind = snapshot.tail.blind.iter().find(|blind| blind.what.contains("which memory is hot"));
    assert!(blind.unwrap().cost.contains("run as root, with CONFIG_IDLE_PAGE_TRACKING"));
    // Who does not ask is told nothing of it, and who has no VM does not wait.
    let snapshot = scan(&Tree::new(root.path()), None).unwrap();
    assert!(snapshot.tail.blind.iter().all(|blind| !blind.what.contains("hot")));
    fs::remove_dir_all(root.path().join("proc/7")).unwrap();
    let begun = Instant::now();
    scan(&Tree::new(root.path()), Some(watch)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(120));
}

/// Memory of this process, of which one half is used and the other is not.
#[test]
fn the_running_kernel_tells_used_pages_from_others() {
    const PAGES: usize = 4096;
    let tree = Tree::default();
    let flags = FrameFlags::open(&tree);
    if !flags.readable() {
        eprintln!("SKIPPED: /proc/kpageflags cannot be read: not root");
        return;
    }
    let mut memory = vec![1u8; (PAGES + 1) * 4096];
    let first = memory.as_ptr().align_offset(4096);
    let start = memory[first..].as_ptr() as u64;
    let space = AddressSpace::open(&tree, std::process::id()).unwrap().unwrap();
    let frames = || -> Vec<u64> {
        let word = |page: usize| space.word(start + page as u64 * 4096).unwrap();
        (0..PAGES).filter_map(|page| word(page).frame()).collect()
    };
    let before = frames();
    let mut set = FrameSet::default();
    before.iter().for_each(|frame| set.set(*frame));
    let watching = Watching::begin(&tree, &flags, set).unwrap();
    let (by, started) = (watching.by(), Instant::now());
    // More than a TLB holds, so that accessed bits are set again.
    for _ in 0..4 {
        for page in 0..PAGES / 2 {
            memory[first + page * 4096] += 1;
        }
    }
    let found = watching.end(&flags, started).unwrap();
    let (watched, used) = (found.watched.iter().count(), found.used.iter().count());
    assert!(watched as u64 + found.untracked <= PAGES as u64 && used <= watched);
    assert!(watched > 0, "{} untracked", found.untracked);
    if by != By::PageIdle {
        eprintln!("SKIPPED in part: this kernel has no /{BITMAP}; its flags were read");
        return;
    }
    if frames() != before {
        eprintln!("SKIPPED in part: the memory moved meanwhile");
        return;
    }
    let hot = |pages: &[u64]| pages.iter().filter(|frame| found.used.has(**frame)).count();
    let (ours, others) = before.split_at(before.len() / 2);
    assert!(hot(ours) > 2 * hot(others), "{} used, {} others", hot(ours), hot(others));
}
