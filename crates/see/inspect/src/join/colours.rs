//! Cache colours: how a VM's memory lies over the sets of the host's caches, and whether the guest's own
//! colours survive on the way there.
//!
//! A guest that places pages by colour knows its own addresses only. What it keeps apart stays apart in
//! the cache if one table leads from each colour of a guest's page to the real one (c.h' = t.c' in
//! xPlace, section 5.1, and CoPlace); each layer below that hands out frames as they come spoils that.

use super::compose::descend;
use crate::snapshot::hot::{HotRegion, Pages};
use crate::snapshot::model::{CpuCache, Vm};
use crate::snapshot::region::Run;
use crate::snapshot::{BackedVm, Snapshot};
use serde::Serialize;
use strata_addr::Frame;
use strata_addr::space::{GuestPhysical, HostPhysical, Space};
use strata_colours::{CacheIndex, Colours, SliceHash};

/// Sets in a slice of a last-level cache. No instruction tells how many slices there are; those of Intel's
/// servers since Sandy Bridge, of its clients, and of AMD's Zen have this many.
const SETS_OF_A_SLICE: u64 = 2048;
/// The level from which on caches are made of slices.
const SLICED_LEVEL: u8 = 3;
/// A guest's colours survive if at least this share of its pages keeps them.
const SURVIVES: f64 = 0.95;

/// How a VM's memory lies over the colours of one of the layer's caches.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ColourUse {
    /// The cache, such as `L2`.
    pub cache: String,
    /// Colours it has.
    pub colours: u32,
    /// Slices it is taken to have; 1 for a cache that is not made of slices.
    pub slices_assumed: u64,
    /// Base pages of the VM whose frames are known.
    pub pages: u64,
    /// Colours that have some of them.
    pub used: u32,
    /// Pages of the fullest colour over those of the mean: 1 if all have as many.
    pub fullest: f64,
    /// Whether a function of all address bits is said to choose its sets; `None` where nobody says.
    pub complex_index: Option<bool>,
    /// The same of the pages that were used while the VM was watched; `None` if it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hot: Option<HotUse>,
    /// Other VMs whose memory lies in the same colours and the same ways, the most first.
    pub shared_with: Vec<Shared>,
}

/// How a VM's hot memory lies over the colours of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HotUse {
    /// Base pages that were used and whose frames are known.
    pub pages: u64,
    /// Colours that have some of them.
    pub used: u32,
    /// Pages of the fullest colour over those of the mean: 1 if all have as many.
    pub fullest: f64,
}

/// A VM in the same colours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shared {
    /// The VM.
    pub vm: String,
    /// How alike the two spread over the colours: the sum over all colours of the smaller of their shares.
    /// 0 if they have no colour in common, 1 if they spread alike.
    pub share: f64,
}

/// Whether the guest's colours of one cache survive the layers below.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Colouring {
    /// The cache, such as `L2`.
    pub cache: String,
    /// Colours that the guest sees.
    pub guest_colours: u32,
    /// Colours that the lowest layer's has.
    pub colours: u32,
    /// Slices that the lowest layer's is taken to have.
    pub slices_assumed: u64,
    /// Whether a function of all address bits is said to choose its sets; `None` where nobody says.
    pub complex_index: Option<bool>,
    /// Base pages of the guest that are backed all the way down.
    pub pages: u64,
    /// Share of them with the real colour that most pages of their colour in the guest have. To a guest
    /// that is told of fewer colours, each of which is several real ones, these are one.
    pub kept: f64,
    /// That share if frames were handed out without regard to colour, for many pages.
    pub by_chance: f64,
    /// Colours of the guest that end, by most of their pages, in a real one that another has as well.
    pub colliding: u32,
    /// What the guest keeps apart is apart in the cache.
    pub survives: bool,
}

/// A cache with colours.
struct Coloured {
    name: String,
    level: u8,
    colours: Colours,
    slices: u64,
    complex_index: Option<bool>,
}

/// The caches in which frames have colours, one of each level.
fn coloured(caches: &[CpuCache]) -> Vec<Coloured> {
    let mut found: Vec<Coloured> = Vec::new();
    for cache in caches.iter().filter(|cache| cache.kind == "Unified") {
        if found.iter().any(|known| known.level == cache.level) {
            continue;
        }
        // Whoever says how sets are chosen need not be guessed.
        let hashed = cache.complex_index.unwrap_or(cache.level >= SLICED_LEVEL);
        let sliced = hashed && cache.sets.is_multiple_of(SETS_OF_A_SLICE);
        if !sliced && cache.complex_index == Some(true) {
            // Which function it is nobody says, and this is none that is known.
            continue;
        }
        let slices = if sliced { cache.sets / SETS_OF_A_SLICE } else { 1 };
        let index = CacheIndex {
            line_bytes: cache.line_bytes,
            sets: cache.sets / slices,
            slices: u32::try_from(slices).unwrap_or(u32::MAX),
            hash: if sliced { SliceHash::Even } else { SliceHash::None },
        };
        let Ok(colours) = Colours::new(&index) else { continue };
        if colours.count() > 1 {
            let (name, level) = (format!("L{}", cache.level), cache.level);
            let complex_index = cache.complex_index;
            found.push(Coloured { name, level, colours, slices, complex_index });
        }
    }
    found
}

/// Pages by colour of their frames.
struct Counts {
    all: Vec<u64>,
    /// Those of them that were used; `None` if nobody watched.
    hot: Option<Vec<u64>>,
}

/// Pages by colour, by one kind of colours.
struct ByColour {
    /// One for each colour.
    pages: Vec<u64>,
    /// What every colour has besides.
    each: u64,
    colours: Colours,
}

impl ByColour {
    fn new(colours: Colours) -> Self {
        Self { pages: vec![0; colours.count() as usize], each: 0, colours }
    }

    /// Adds neighbouring frames, which go through the colours in turn.
    fn add(&mut self, frame: u64, pages: u64) {
        let mut rest = pages;
        if rest >= self.pages.len() as u64 {
            self.each += rest / self.pages.len() as u64;
            rest %= self.pages.len() as u64;
        }
        let mut at = colour::<HostPhysical>(self.colours, frame);
        for _ in 0..rest {
            self.pages[at] += 1;
            at = if at + 1 == self.pages.len() { 0 } else { at + 1 };
        }
    }

    fn counts(mut self) -> Vec<u64> {
        self.pages.iter_mut().for_each(|pages| *pages += self.each);
        self.pages
    }
}

impl Counts {
    fn of(vm: &BackedVm, colours: Colours) -> Self {
        let mut all = ByColour::new(colours);
        for run in vm.regions.iter().flat_map(|region| &region.runs) {
            all.add(run.frame(), run.pages().into());
        }
        let hot = vm.vm.watched.map(|_| {
            let mut found = ByColour::new(colours);
            for hot in &vm.hot {
                for run in vm.region(hot.index).iter().flat_map(|region| &region.runs) {
                    add_used(&mut found, hot, *run);
                }
            }
            found.counts()
        });
        Self { all: all.counts(), hot }
    }
}

/// Adds those frames of a run that were used.
fn add_used(found: &mut ByColour, hot: &HotRegion, run: Run) {
    if hot.used == Pages::ALL {
        return found.add(run.frame(), run.pages().into());
    }
    for at in (0..run.pages()).filter(|at| hot.used.has(run.first() + at)) {
        found.add(run.frame() + u64::from(at), 1);
    }
}

fn colour<S: Space>(colours: Colours, frame: u64) -> usize {
    colours.of(Frame::<S>::new(frame)).index() as usize
}

/// Whether two VMs may fill a way of the L3 in common: a bit of each domain's mask, or all where that is
/// not known.
fn share_ways(snapshot: &Snapshot, one: &Vm, other: &Vm) -> bool {
    let classes = &snapshot.head.settings.cache_classes;
    let masks = |vm: &Vm| vm.cache_class.as_ref().and_then(|class| classes.get(class));
    let (Some(one), Some(other)) = (masks(one), masks(other)) else { return true };
    let (one, other) = (ways(one), ways(other));
    let in_common = |(domain, mask): &(&str, u64)| {
        other.iter().any(|(theirs, other)| theirs == domain && mask & other != 0)
    };
    one.is_empty() || other.is_empty() || one.iter().any(in_common)
}

/// The ways of each domain in `L3:0=7ff;1=600`.
fn ways(l3: &str) -> Vec<(&str, u64)> {
    let domains = l3.strip_prefix("L3:").unwrap_or_default().split(';');
    domains
        .filter_map(|domain| {
            let (domain, mask) = domain.split_once('=')?;
            Some((domain.trim(), u64::from_str_radix(mask.trim(), 16).ok()?))
        })
        .collect()
}

/// How the VMs of a snapshot lie over the colours of its layer's caches: counted once, to be compared with
/// each other.
pub struct Spread<'a> {
    snapshot: &'a Snapshot,
    /// The caches with colours, each with what it makes of every VM: an index into `counts`.
    caches: Vec<(Coloured, usize)>,
    /// For each number of colours that a cache has, the counts of all VMs.
    counts: Vec<(Colours, Vec<Counts>)>,
}

impl<'a> Spread<'a> {
    /// Counts the pages of all VMs by colour.
    pub fn of(snapshot: &'a Snapshot) -> Self {
        let mut counts: Vec<(Colours, Vec<Counts>)> = Vec::new();
        let mut caches = Vec::new();
        for cache in coloured(&snapshot.head.settings.caches) {
            let at = counts.iter().position(|(known, _)| *known == cache.colours);
            let at = at.unwrap_or_else(|| {
                let of_all = snapshot.vms.iter().map(|vm| Counts::of(vm, cache.colours));
                counts.push((cache.colours, of_all.collect()));
                counts.len() - 1
            });
            caches.push((cache, at));
        }
        Self { snapshot, caches, counts }
    }

    /// How the VM of this index lies. Empty where caches or frames are not known.
    pub fn uses(&self, index: usize) -> Vec<ColourUse> {
        let each = self.caches.iter().map(|(cache, at)| self.in_cache(cache, *at, index));
        each.filter(|used| used.pages > 0).collect()
    }

    fn in_cache(&self, cache: &Coloured, at: usize, index: usize) -> ColourUse {
        let (vm, counts) = (&self.snapshot.vms[index], &self.counts[at].1);
        let own = &counts[index];
        let others = self.snapshot.vms.iter().zip(counts);
        let others = others.filter(|(other, _)| {
            other.vm.pid != vm.vm.pid
                && (cache.level < SLICED_LEVEL || share_ways(self.snapshot, &vm.vm, &other.vm))
        });
        let mut shared_with: Vec<Shared> = others
            .filter_map(|(other, counts)| {
                let share = alike(&own.all, &counts.all);
                (share > 0.0).then(|| Shared { vm: other.vm.label(), share })
            })
            .collect();
        shared_with.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| a.vm.cmp(&b.vm)));
        let HotUse { pages, used, fullest } = spread(&own.all);
        ColourUse {
            cache: cache.name.clone(),
            colours: cache.colours.count(),
            slices_assumed: cache.slices,
            complex_index: cache.complex_index,
            pages,
            used,
            fullest,
            hot: own.hot.as_deref().map(spread),
            shared_with,
        }
    }
}

/// How pages by colour are spread.
fn spread(pages: &[u64]) -> HotUse {
    let sum: u64 = pages.iter().sum();
    let most = pages.iter().copied().max().unwrap_or(0);
    HotUse {
        pages: sum,
        used: pages.iter().filter(|pages| **pages > 0).count() as u32,
        fullest: most as f64 * pages.len() as f64 / sum.max(1) as f64,
    }
}

/// The sum over all colours of the smaller share.
fn alike(one: &[u64], other: &[u64]) -> f64 {
    let sum = |pages: &[u64]| pages.iter().sum::<u64>().max(1) as f64;
    let (all, others) = (sum(one), sum(other));
    one.iter().zip(other).map(|(&a, &b)| (a as f64 / all).min(b as f64 / others)).sum()
}

/// Whether the guest's colours survive the layers below, by cache of the lowest layer. `vms` are the VMs
/// that it runs in, the nearest first.
pub fn colouring(guest: &Snapshot, lowest: &Snapshot, vms: &[&BackedVm]) -> Vec<Colouring> {
    let Some(nearest) = vms.first() else { return Vec::new() };
    let own = coloured(&guest.head.settings.caches);
    let mut tables: Vec<Table> = coloured(&lowest.head.settings.caches)
        .into_iter()
        .map(|cache| {
            // A guest that is told of no cache would go by the real one's.
            let seen = own.iter().find(|own| own.level == cache.level);
            Table::new(seen.map_or(cache.colours, |own| own.colours), cache)
        })
        .collect();
    if tables.is_empty() {
        return Vec::new();
    }
    for region in &nearest.regions {
        let first = region.index << 9;
        for run in descend(vms, first) {
            let page = first + u64::from(run.first());
            for table in &mut tables {
                table.add(page, run.frame(), run.pages().into());
            }
        }
    }
    let each = tables.iter().map(|table| follow(&table.pages, table.to, &table.cache));
    each.filter(|colouring| colouring.pages > 0).collect()
}

/// Pages by their colour in the guest and their real one, of one cache.
struct Table {
    cache: Coloured,
    seen: Colours,
    /// Real colours that the guest can tell apart. To a guest that is told of fewer sets every so many real
    /// colours are one.
    to: usize,
    pages: Vec<u64>,
}

impl Table {
    fn new(seen: Colours, cache: Coloured) -> Self {
        let (from, real) = (seen.count() as usize, cache.colours.count() as usize);
        let to = if real.is_multiple_of(from) { from } else { real };
        Self { cache, seen, to, pages: vec![0; from * to] }
    }

    /// Adds neighbouring pages in neighbouring frames.
    fn add(&mut self, page: u64, frame: u64, pages: u64) {
        for at in 0..pages {
            let from = colour::<GuestPhysical>(self.seen, page + at);
            let real = colour::<HostPhysical>(self.cache.colours, frame + at);
            self.pages[from * self.to + real % self.to] += 1;
        }
    }
}

/// What becomes of each colour of the guest: a row of pages by real colour.
fn follow(pages: &[u64], to: usize, cache: &Coloured) -> Colouring {
    let (mut kept, mut rows) = (0, 0);
    let mut ends = vec![0u32; to];
    for row in pages.chunks_exact(to).filter(|row| row.iter().any(|pages| *pages > 0)) {
        let (end, most) =
            (0..).zip(row).fold(
                (0, 0),
                |best: (usize, u64), (at, &pages)| {
                    if pages > best.1 { (at, pages) } else { best }
                },
            );
        kept += most;
        rows += 1;
        ends[end] += 1;
    }
    let all: u64 = pages.iter().sum();
    let colliding: u32 = ends.iter().filter(|count| **count > 1).sum();
    let kept = kept as f64 / all.max(1) as f64;
    Colouring {
        cache: cache.name.clone(),
        guest_colours: (pages.len() / to) as u32,
        colours: cache.colours.count(),
        slices_assumed: cache.slices,
        complex_index: cache.complex_index,
        pages: all,
        kept,
        by_chance: 1.0 / to as f64,
        colliding,
        survives: rows > 0 && kept >= SURVIVES && colliding == 0,
    }
}
