//! Which frames of VMs are used: the kernel's idle page tracking
//! (`Documentation/admin-guide/mm/idle_page_tracking.rst`), or what its flags say.
//!
//! The file `page_idle/bitmap` has a bit for each frame. Writing 1 marks the frame idle, for which the
//! kernel clears the accessed bits of all that maps it, a VM's second stage included. A frame that is still
//! idle later has not been used. A processor that has the translation in its TLB sets no accessed bit:
//! what is used all the time without ever leaving the TLB may look idle over a short time.
//!
//! Only memory on the kernel's LRU lists is tracked, which leaves out hugetlb pages. A compound page has
//! one bit, at its head, so a huge page is used as a whole or not at all.

use crate::scan::backing;
use crate::scan::frame_set::{FrameSet, PIECE, Piece, WORDS, frames_of};
use crate::scan::hypervisor;
use crate::scan::pagemap::{AddressSpace, FrameFlags, read_words};
use crate::scan::tree::Tree;
use crate::snapshot::entry::flags;
use crate::snapshot::hot::{By, HotRegion, Watched};
use crate::snapshot::model::Blind;
use crate::snapshot::region::Region;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Where the kernel tracks idle frames.
const BITMAP: &str = "sys/kernel/mm/page_idle/bitmap";

/// A step of waiting, so that Ctrl-C is heard.
const STEP: Duration = Duration::from_millis(50);

/// How to see which memory is hot.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a> {
    /// How long frames have time to be used.
    pub time: Duration,
    /// Ends the waiting early once it is set.
    pub stop: &'a AtomicBool,
}

/// What came of watching.
#[derive(Debug, Default)]
pub struct Found {
    /// Frames and how they were watched; `None` where nothing could be.
    pub used: Option<Used>,
    /// What could not be seen.
    pub blind: Vec<Blind>,
}

/// Watches the memory of all VMs of a layer. Without a VM nobody waits.
pub fn watch(tree: &Tree, pids: &[u32], watch: Watch<'_>) -> Found {
    let mut found = Found::default();
    let flags = FrameFlags::open(tree);
    let mut frames = FrameSet::default();
    let (vms, _) = hypervisor::find(tree, pids);
    // Whoever ended or may not be read is told of by the scan itself.
    for vm in vms.iter().filter_map(|&(pid, fd)| hypervisor::describe(tree, pid, fd).ok()) {
        let Ok(Some(space)) = AddressSpace::open(tree, vm.pid) else { continue };
        let _ = backing::each_frame(&vm, &space, &flags, |frame| frames.set(frame));
    }
    if vms.is_empty() {
        return found;
    }
    let begun = match Watching::begin(tree, &flags, frames) {
        Ok(begun) => begun,
        Err(error) => {
            found.blind.push(nothing(&error));
            return found;
        }
    };
    let by = begun.by();
    if by == By::KernelFlags {
        found.blind.push(Blind {
            what: format!(
                "use within seconds (/{BITMAP} is not there: it needs a kernel with \
                 CONFIG_IDLE_PAGE_TRACKING)"
            ),
            cost:
                "hot is what the kernel's flags call referenced or active, however long ago, and \
                   nothing was waited for"
                    .to_owned(),
        });
    }
    let started = Instant::now();
    if by == By::PageIdle {
        wait(watch);
    }
    match begun.end(&flags, started) {
        Ok(used) => {
            if used.untracked > 0 {
                found.blind.push(Blind {
                    what: format!(
                        "the use of {} pages of VMs (hugetlb, or on no LRU list)",
                        used.untracked
                    ),
                    cost: "they count neither as hot nor as watched".to_owned(),
                });
            }
            found.used = Some(used);
        }
        Err(error) => found.blind.push(nothing(&error)),
    }
    found
}

fn nothing(error: &io::Error) -> Blind {
    Blind {
        what: format!("which memory is hot ({error})"),
        cost: "colours of all memory only; run as root, with CONFIG_IDLE_PAGE_TRACKING and \
               CONFIG_PROC_PAGE_MONITOR in the kernel"
            .to_owned(),
    }
}

fn wait(watch: Watch<'_>) {
    let started = Instant::now();
    while !watch.stop.load(Relaxed) {
        let Some(left) = watch.time.checked_sub(started.elapsed()) else { return };
        sleep(left.min(STEP));
    }
}

/// Frames that are being watched.
#[derive(Debug)]
pub struct Watching {
    /// Those asked for.
    frames: FrameSet,
    /// Those marked idle, heads of compound pages for all of these; `None` where the flags have to do.
    idle: Option<(File, FrameSet)>,
}

impl Watching {
    /// Begins to watch frames.
    ///
    /// # Errors
    /// When neither idle frames nor flags can be read.
    pub fn begin(tree: &Tree, flags: &FrameFlags, frames: FrameSet) -> io::Result<Self> {
        if !flags.readable() {
            return Err(io::Error::other("/proc/kpageflags cannot be read"));
        }
        let Ok(file) = tree.open_both(BITMAP) else { return Ok(Self { frames, idle: None }) };
        let mut marked = FrameSet::default();
        let (mut words, mut places) = (Vec::new(), Vec::new());
        for (first, piece) in frames.pieces() {
            flags.read(first, &mut words, PIECE as usize)?;
            heads(&words, &mut places);
            for frame in frames_of(first, piece) {
                if let Some(head) = head_of(&places, first, frame) {
                    marked.set(first + head);
                }
            }
        }
        for (first, piece) in marked.pieces() {
            mark(&file, first, piece)?;
        }
        Ok(Self { frames, idle: Some((file, marked)) })
    }

    /// How use is noticed.
    pub fn by(&self) -> By {
        if self.idle.is_some() { By::PageIdle } else { By::KernelFlags }
    }

    /// Looks which frames were used. `started` is when they were all marked.
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn end(self, flags: &FrameFlags, started: Instant) -> io::Result<Used> {
        let by = self.by();
        let milliseconds = match by {
            By::PageIdle => u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            By::KernelFlags => 0,
        };
        let mut found = Used { how: Watched { by, milliseconds }, ..Used::default() };
        let (mut words, mut places, mut idle) = (Vec::new(), Vec::new(), Vec::new());
        for (first, piece) in self.frames.pieces() {
            if let Some((file, _)) = &self.idle {
                idle.clear();
                read_words(file, first / 64, WORDS, |word| idle.push(word))?;
            }
            flags.read(first, &mut words, PIECE as usize)?;
            heads(&words, &mut places);
            for frame in frames_of(first, piece) {
                let Some(head) = head_of(&places, first, frame) else {
                    found.untracked += 1;
                    continue;
                };
                let used = match &self.idle {
                    // A page that was made or moved meanwhile was not watched.
                    Some((_, marked)) if !marked.has(first + head) => continue,
                    Some(_) => match idle.get((head / 64) as usize) {
                        Some(word) => word >> (head % 64) & 1 == 0,
                        None => continue,
                    },
                    None => words[head as usize] & (flags::REFERENCED | flags::ACTIVE) != 0,
                };
                found.watched.set(frame);
                if used {
                    found.used.set(frame);
                }
            }
        }
        Ok(found)
    }
}

/// For each frame of a piece the place in it of the one whose bits stand for it, if that is tracked. Compound
/// pages lie on multiples of their size, which is far less than a piece's for what is on the lists.
fn heads(words: &[u64], found: &mut Vec<Option<u16>>) {
    found.clear();
    let mut head = None;
    found.extend((0..).zip(words).map(|(at, bits)| {
        if bits & flags::TAIL == 0 {
            let on_lists = bits & flags::LRU != 0 && bits & flags::HUGETLB == 0;
            head = on_lists.then_some(at);
        }
        head
    }));
}

/// The place of the frame whose bits stand for this one.
fn head_of(heads: &[Option<u16>], first: u64, frame: u64) -> Option<u64> {
    heads.get((frame - first) as usize)?.map(u64::from)
}

/// Marks the frames of a piece idle. Words of no frames at its ends are left out: behind the last frame
/// of memory the kernel takes none.
fn mark(file: &File, first: u64, piece: &Piece) -> io::Result<()> {
    let Some(from) = piece.iter().position(|word| *word != 0) else { return Ok(()) };
    let to = piece.iter().rposition(|word| *word != 0).map_or(from, |last| last + 1);
    let bytes: Vec<u8> = piece[from..to].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let start = (first / 64 + from as u64) * 8;
    let mut done = 0;
    while done < bytes.len() {
        // Of sysfs a page at a time; of the last word in memory none, if memory ends within it.
        match file.write_at(&bytes[done..], start + done as u64)? {
            0 => break,
            taken => done += taken,
        }
    }
    Ok(())
}

/// Frames and whether they were used.
#[derive(Debug, Default)]
pub struct Used {
    /// How they were watched.
    pub how: Watched,
    /// Those watched.
    pub watched: FrameSet,
    /// Those used.
    pub used: FrameSet,
    /// How many could not be watched.
    pub untracked: u64,
}

impl Used {
    /// What was used of a region; `None` if nothing of it was watched.
    pub fn of(&self, region: &Region) -> Option<HotRegion> {
        let mut hot = HotRegion { index: region.index, ..HotRegion::default() };
        for run in &region.runs {
            for at in 0..run.pages() {
                let (page, frame) = (run.first() + at, run.frame() + u64::from(at));
                if self.watched.has(frame) {
                    hot.watched.set(page);
                    if self.used.has(frame) {
                        hot.used.set(page);
                    }
                }
            }
        }
        (hot.watched.count() > 0).then_some(hot)
    }
}
