//! The misaligned huge page scanner (Gemini section 4, MHPS): compares the huge pages of two
//! neighbouring layers by the address space they share.

use rustc_hash::FxHashSet;
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_stack::{Kernel, NodeId, Owner, SpaceId, Stack};

/// The huge pages of a layer and of the hypervisor below it, by region of the layer's memory.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Regions the upper layer maps with huge pages.
    pub upper_huge: FxHashSet<u64>,
    /// Regions the lower layer backs with huge pages.
    pub lower_huge: FxHashSet<u64>,
    /// Table entries read, for the cost.
    pub entries: u64,
}

impl Scan {
    /// Scans the page tables of the kernel `upper`, and of its VM's process in the kernel below.
    pub fn of(stack: &Stack, upper: NodeId, lower: NodeId) -> Self {
        let mut scan = Self::of_upper(stack, upper);
        let vm = stack.kernel(lower).space(stack.vm_process(upper));
        let vm = vm.expect("lives as long as the VM");
        scan.entries += vm.table().table_pages() as u64;
        let slot = stack.hva(upper, Frame::new(0)).get();
        vm.table().for_each_huge(|page, _| {
            // In a slot that is not aligned no huge page lies under a whole region.
            let region = page.get().checked_sub(slot).map(Frame::<Upper>::new);
            if let Some(region) = region.filter(|region| region.is_aligned(PageSize::Huge)) {
                scan.lower_huge.insert(region.get());
            }
        });
        scan
    }

    /// Scans a guest's page tables and the table that hardware walks below them: what the guest and
    /// the host see of each other across a guest hypervisor (xGemini IV.D).
    pub fn of_shadow(stack: &Stack, guest: NodeId) -> Self {
        let mut scan = Self::of_upper(stack, guest);
        if let Some(shadow) = stack.hardware_second_stage(guest) {
            scan.entries += shadow.table_pages() as u64;
            shadow.for_each_huge(|page, _| {
                scan.lower_huge.insert(page.get());
            });
        }
        scan
    }

    fn of_upper(stack: &Stack, upper: NodeId) -> Self {
        let mut scan = Self::default();
        for (_, space) in stack.kernel(upper).spaces() {
            let table = space.table();
            scan.entries += table.table_pages() as u64;
            table.for_each_huge(|_, mapping| {
                scan.upper_huge.insert(mapping.frame.get());
            });
        }
        scan
    }

    /// Regions that only the lower layer has huge, by address.
    pub fn lower_only(&self) -> Vec<u64> {
        sorted(self.lower_huge.difference(&self.upper_huge))
    }

    /// Regions that only the upper layer has huge, by address.
    pub fn upper_only(&self) -> Vec<u64> {
        sorted(self.upper_huge.difference(&self.lower_huge))
    }
}

fn sorted<'a>(regions: impl Iterator<Item = &'a u64>) -> Vec<u64> {
    let mut regions: Vec<u64> = regions.copied().collect();
    regions.sort_unstable();
    regions
}

/// The space and upper region with most base pages in a region of a layer's memory.
pub fn main_user(kernel: &Kernel, region: Frame<Lower>) -> Option<(SpaceId, Frame<Upper>)> {
    let mut counts: Vec<((SpaceId, u64), u32)> = Vec::new();
    for frame in kernel.memory().allocated_in_region(region) {
        if let Owner::Page(space, page) = kernel.owner(frame) {
            let key = (space, page.floor(PageSize::Huge).get());
            match counts.iter_mut().find(|(k, _)| *k == key) {
                Some((_, count)) => *count += 1,
                None => counts.push((key, 1)),
            }
        }
    }
    let ((space, page), _) =
        counts.into_iter().max_by_key(|(key, count)| (*count, std::cmp::Reverse(*key)))?;
    Some((space, Frame::new(page)))
}
