//! Cache colours: how a VM's memory lies over the sets of the host's caches, and whether the guest's own
//! colours survive on the way there.
//!
//! A guest that places pages by colour knows its own addresses only. What it keeps apart stays apart in
//! the cache if one table leads from each colour of a guest's page to the real one (c.h' = t.c' in
//! xPlace, section 5.1, and CoPlace); each layer below that hands out frames as they come spoils that.

use super::compose::descend;
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
    /// Other VMs whose memory lies in the same colours and the same ways, the most first.
    pub shared_with: Vec<Shared>,
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
}

/// The caches in which frames have colours, one of each level.
fn coloured(caches: &[CpuCache]) -> Vec<Coloured> {
    let mut found: Vec<Coloured> = Vec::new();
    for cache in caches.iter().filter(|cache| cache.kind == "Unified") {
        if found.iter().any(|known| known.level == cache.level) {
            continue;
        }
        let sliced = cache.level >= SLICED_LEVEL && cache.sets.is_multiple_of(SETS_OF_A_SLICE);
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
            found.push(Coloured { name, level, colours, slices });
        }
    }
    found
}

/// Pages by colour of their frames.
fn pages_by_colour(vm: &BackedVm, colours: Colours) -> Vec<u64> {
    let mut pages = vec![0; colours.count() as usize];
    let every = |run: &Run| u64::from(run.pages()) / u64::from(colours.count());
    let mut all = 0;
    for run in vm.regions.iter().flat_map(|region| &region.runs) {
        // Neighbouring frames go through the colours in turn.
        all += every(run);
        let rest = u64::from(run.pages()) % u64::from(colours.count());
        for frame in run.frame()..run.frame() + rest {
            pages[colour::<HostPhysical>(colours, frame)] += 1;
        }
    }
    pages.iter_mut().for_each(|pages| *pages += all);
    pages
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

/// How one VM of a snapshot lies over the colours of its layer's caches. Empty where caches or frames are
/// not known.
pub fn uses(snapshot: &Snapshot, vm: &BackedVm) -> Vec<ColourUse> {
    let caches = coloured(&snapshot.head.settings.caches);
    let each = caches.into_iter().map(|cache| {
        let own = pages_by_colour(vm, cache.colours);
        let pages: u64 = own.iter().sum();
        let others = snapshot.vms.iter().filter(|other| other.vm.pid != vm.vm.pid);
        let others = others
            .filter(|other| cache.level < SLICED_LEVEL || share_ways(snapshot, &vm.vm, &other.vm));
        let mut shared_with: Vec<Shared> = others
            .filter_map(|other| {
                let share = alike(&own, &pages_by_colour(other, cache.colours));
                (share > 0.0).then(|| Shared { vm: other.vm.label(), share })
            })
            .collect();
        shared_with.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| a.vm.cmp(&b.vm)));
        let most = own.iter().copied().max().unwrap_or(0);
        ColourUse {
            cache: cache.name,
            colours: cache.colours.count(),
            slices_assumed: cache.slices,
            pages,
            used: own.iter().filter(|pages| **pages > 0).count() as u32,
            fullest: most as f64 * own.len() as f64 / pages.max(1) as f64,
            shared_with,
        }
    });
    each.filter(|used| used.pages > 0).collect()
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
    let each = coloured(&lowest.head.settings.caches).into_iter().map(|cache| {
        // A guest that is told of no cache would go by the real one's.
        let seen = own.iter().find(|own| own.level == cache.level);
        let seen = seen.map_or(cache.colours, |own| own.colours);
        let (from, real) = (seen.count() as usize, cache.colours.count() as usize);
        // A guest that is told of fewer sets keeps apart no more than it knows of: every so many real
        // colours are one to it.
        let to = if real.is_multiple_of(from) { from } else { real };
        let mut pages = vec![0u64; from * to];
        for region in &nearest.regions {
            let first = region.index << 9;
            for run in descend(vms, first) {
                for at in 0..u64::from(run.pages()) {
                    let page = first + u64::from(run.first()) + at;
                    let real = colour::<HostPhysical>(cache.colours, run.frame() + at);
                    pages[colour::<GuestPhysical>(seen, page) * to + real % to] += 1;
                }
            }
        }
        follow(&pages, to, &cache)
    });
    each.filter(|colouring| colouring.pages > 0).collect()
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
        pages: all,
        kept,
        by_chance: 1.0 / to as f64,
        colliding,
        survives: rows > 0 && kept >= SURVIVES && colliding == 0,
    }
}
