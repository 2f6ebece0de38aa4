//! Table t of CoPlace and xPlace (xPlace 4.2, 5.2): which real colour the host gives to a virtual one.

use rustc_hash::FxHashMap;
use strata_addr::{Frame, space::Lower, space::Upper};
use strata_colours::{Colour, Colours};
use strata_frames::shuffled;
use strata_stack::{NodeId, PlacementCounts, Stack};

strata_params::parameters! {
    /// Table t.
    pub struct ColourTableParameters {
        /// Seed from which a VM's table of virtual and real colours is drawn; 0 gives every virtual
        /// colour the real one with its number. xPlace 5.2 says "a unique real color to each".
        seed: u64 = 0, "colours.table_seed", "";
    }
}

/// The tables of VMs, made when they are first asked for, and what was counted of each VM.
#[derive(Debug, Default)]
pub(crate) struct ColourTables {
    parameters: ColourTableParameters,
    /// Real colours by virtual one; injective, since both caches have the same colours.
    tables: FxHashMap<NodeId, Vec<u32>>,
    counts: FxHashMap<NodeId, PlacementCounts>,
}

impl ColourTables {
    pub fn new(parameters: ColourTableParameters) -> Self {
        Self { parameters, ..Self::default() }
    }

    /// The real colour for a page of a VM's memory: t\[c'(page)\].
    pub fn wanted(&mut self, vm: NodeId, colours: Colours, page: Frame<Upper>) -> Colour<Lower> {
        let seed = self.parameters.seed;
        let table = self.tables.entry(vm).or_insert_with(|| table(colours, seed, vm));
        Colour::new(table[colours.of(page).index() as usize])
    }

    /// The virtual colours of a guest, those first whose real ones the host has fewest free frames of.
    pub fn by_shortage(&mut self, stack: &Stack, guest: NodeId) -> Vec<Colour<Lower>> {
        let memory = stack.kernel(NodeId::HOST).memory();
        let Some(colours) = memory.colours() else { return Vec::new() };
        let seed = self.parameters.seed;
        let table = self.tables.entry(guest).or_insert_with(|| table(colours, seed, guest));
        let mut order: Vec<u32> = (0..colours.count()).collect();
        order.sort_by_key(|colour| memory.free_of(Colour::new(table[*colour as usize])));
        order.into_iter().map(Colour::new).collect()
    }

    /// Whether a frame of the host has the colour that a page of a VM's memory is to have.
    pub fn suits(
        &mut self,
        stack: &Stack,
        vm: NodeId,
        page: Frame<Upper>,
        at: Frame<Lower>,
    ) -> bool {
        let colours = stack.kernel(NodeId::HOST).memory().colours();
        colours.is_none_or(|colours| self.wanted(vm, colours, page) == colours.of(at))
    }

    pub fn counts(&mut self, vm: NodeId) -> &mut PlacementCounts {
        self.counts.entry(vm).or_default()
    }

    pub fn forget(&mut self, kernels: &[NodeId]) {
        self.tables.retain(|vm, _| !kernels.contains(vm));
        self.counts.retain(|vm, _| !kernels.contains(vm));
    }

    /// What was counted of a guest, and how its memory lies now, page by page of what the hypervisor
    /// below it backs.
    pub fn report(&self, stack: &Stack, guest: NodeId) -> Option<PlacementCounts> {
        let colours = stack.kernel(NodeId::HOST).memory().colours()?;
        stack.below(guest)?;
        let fresh;
        let table = match self.tables.get(&guest) {
            Some(table) => table,
            None => {
                fresh = table(colours, self.parameters.seed, guest);
                &fresh
            }
        };
        let mut counts = PlacementCounts::default();
        // What the host did for the VM of its own that the guest is in concerns the guest.
        stack.path_down(guest).filter_map(|vm| self.counts.get(&vm)).for_each(|own| counts += own);
        let second = stack.second_stage(guest);
        for (first, mapping) in second.mapped(second.everything()) {
            for page in (0..mapping.size.base_pages()).map(|i| first + i) {
                let Some(composed) = stack.compose(guest, page) else { continue };
                let wanted = table[colours.of(page).index() as usize];
                counts.backed += 1;
                counts.violations += u64::from(colours.of(composed.frame).index() != wanted);
            }
        }
        Some(counts)
    }
}

fn table(colours: Colours, seed: u64, vm: NodeId) -> Vec<u32> {
    let count = colours.count();
    if seed == 0 {
        return (0..count).collect();
    }
    let drawn = shuffled(u64::from(count), seed.wrapping_add(vm.index() as u64));
    drawn.into_iter().map(|colour| colour as u32).collect()
}
