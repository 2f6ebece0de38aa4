//! The machine's TLBs against an independent simulation of the same geometry: equal after every
//! access, hit for hit.

use crate::common::{ASID, World, models};
use proptest::prelude::*;
use strata_addr::{PageSize, Range, Vpn};
use strata_hardware::{Asid, CpuModel, Misaligned, TlbLevel, VmTag};
use strata_paging::Rights;

/// Page size, page number in that size, address space.
type Key = (usize, u64, u16);

/// One TLB level: per array the sizes it holds, and per set the keys, most recent first.
struct NaiveLevel {
    arrays: Vec<(Vec<usize>, usize, Vec<Vec<Key>>)>,
}

impl NaiveLevel {
    fn new(level: &TlbLevel) -> Self {
        let size = |name: &str| ["4k", "2m", "1g"].iter().position(|known| *known == name).unwrap();
        let arrays = level.0.iter().map(|(key, array)| {
            let sets = (array.entries / array.ways) as usize;
            (key.split('-').map(size).collect(), array.ways as usize, vec![Vec::new(); sets])
        });
        Self { arrays: arrays.collect() }
    }

    fn set(&mut self, key: Key) -> Option<(usize, &mut Vec<Key>)> {
        let (_, ways, sets) = self.arrays.iter_mut().find(|(sizes, ..)| sizes.contains(&key.0))?;
        let count = sets.len() as u64;
        Some((*ways, &mut sets[(key.1 % count) as usize]))
    }

    fn hit(&mut self, vpn: u64, asid: u16) -> Option<Key> {
        (0..3).map(|size| (size, vpn >> (9 * size), asid)).find(|key| {
            self.set(*key).is_some_and(|(_, set)| match set.iter().position(|other| other == key) {
                None => false,
                Some(at) => {
                    let key = set.remove(at);
                    set.insert(0, key);
                    true
                }
            })
        })
    }

    fn fill(&mut self, key: Key) {
        if let Some((ways, set)) = self.set(key) {
            set.insert(0, key);
            set.truncate(ways);
        }
    }

    fn drop_where(&mut self, drop: impl Fn(Key) -> bool) {
        for (.., sets) in &mut self.arrays {
            sets.iter_mut().for_each(|set| set.retain(|key| !drop(*key)));
        }
    }
}

struct Naive {
    l1: NaiveLevel,
    l2: NaiveLevel,
    l1_misses: u64,
    l2_hits: u64,
}

impl Naive {
    fn access(&mut self, vpn: u64, asid: u16, size: usize) {
        if self.l1.hit(vpn, asid).is_some() {
            return;
        }
        self.l1_misses += 1;
        if let Some(key) = self.l2.hit(vpn, asid) {
            self.l2_hits += 1;
            self.l1.fill(key);
        } else {
            let key = (size, vpn >> (9 * size), asid);
            self.l1.fill(key);
            self.l2.fill(key);
        }
    }

    fn drop_where(&mut self, drop: impl Fn(Key) -> bool) {
        self.l1.drop_where(&drop);
        self.l2.drop_where(&drop);
    }
}

/// Regions 0 to 511: base pages in the guest, or in the second stage, or huge in both.
fn entry_size(region: u64) -> usize {
    usize::from(region % 4 == 3)
}

/// First and last base page that the guest maps together with an entry: an invalidation of any of
/// them drops the entry, even if it is a piece.
fn guest_pages(key: Key) -> (u64, u64) {
    let first = key.1 << (9 * key.0);
    if first / 512 % 4 >= 2 { (first & !511, first | 511) } else { (first, first) }
}

fn world(model: &CpuModel) -> World {
    let mut world = World::new(model, Misaligned::Splinter, true);
    for region in 0..48u64 {
        let first = region * 512;
        // The pages used, where they are mapped small: those of the stream below.
        let small = (0..24).chain(500..512).map(|page| first + page);
        let guest_huge = region % 4 >= 2;
        let host_huge = region % 2 == 1;
        if guest_huge {
            world.map_guest(first, PageSize::Huge, first, Rights::READ_WRITE);
        } else {
            small.clone().for_each(|p| world.map_guest(p, PageSize::Base, p, Rights::READ_WRITE));
        }
        if host_huge {
            world.map_second(first, PageSize::Huge, first, Rights::READ_WRITE);
        } else {
            small.for_each(|p| world.map_second(p, PageSize::Base, p, Rights::READ_WRITE));
        }
    }
    world
}

/// Pages that share sets, and pages that do not.
fn vpn() -> impl Strategy<Value = u64> {
    let page = prop_oneof![0u64..24, Just(500), Just(511)];
    (0u64..48, page).prop_map(|(region, page)| region * 512 + page)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_tlbs_equal_an_independent_simulation(
        stream in prop::collection::vec((vpn(), 0u8..60, any::<bool>(), 1u16..3), 1..3000),
        model in 0usize..8,
    ) {
        // Smaller arrays fill up in streams of this length.
        let mut model = models()[model].clone();
        let arrays = model.tlb.l1.0.values_mut().chain(model.tlb.l2.0.values_mut());
        arrays.filter(|array| array.entries > 64).for_each(|array| array.entries = 8 * array.ways);
        let mut world = world(&model);
        let mut naive = Naive {
            l1: NaiveLevel::new(&model.tlb.l1),
            l2: NaiveLevel::new(&model.tlb.l2),
            l1_misses: 0,
            l2_hits: 0,
        };
        for (vpn, action, store, asid) in stream {
            match action {
                0 => {
                    world.machine.invalidate_page(Asid(asid), Vpn::new(vpn));
                    naive.drop_where(|key| {
                        let (first, last) = guest_pages(key);
                        key.2 == asid && (first..=last).contains(&vpn)
                    });
                }
                1 => {
                    let pages = 1 + vpn % 13;
                    let range = Range::sized(Vpn::new(vpn).addr(), pages * 4096);
                    world.machine.invalidate_range(Asid(asid), range);
                    naive.drop_where(|key| {
                        let (first, last) = guest_pages(key);
                        key.2 == asid && first < vpn + pages && vpn <= last
                    });
                }
                2 if vpn % 8 == 0 => {
                    world.machine.flush_asid(ASID);
                    naive.drop_where(|key| key.2 == ASID.0);
                }
                3 if vpn % 32 == 0 => {
                    // The address spaces are of two VMs.
                    world.machine.flush_second_stage(VmTag(asid));
                    naive.drop_where(|key| key.2 == asid);
                }
                _ => {
                    world.vm = VmTag(asid);
                    world.access_on(world.cpu, Asid(asid), vpn * 4096, 8, store).unwrap();
                    naive.access(vpn, asid, entry_size(vpn / 512));
                    let counters = world.machine.counters(world.cpu);
                    prop_assert_eq!(counters.l1_misses, naive.l1_misses);
                    prop_assert_eq!(counters.l2_hits, naive.l2_hits);
                }
            }
        }
    }
}
