//! Table t of CoPlace and xPlace (xPlace 4.2, 5.2): which real colour the host gives to a virtual one.

use rustc_hash::FxHashMap;
use strata_addr::{Frame, space::Lower, space::Upper};
use strata_colours::{Colour, Colours, VirtualCache};
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
    tables: FxHashMap<NodeId, Table>,
    /// The caches of VMs that are not like the host's.
    told: FxHashMap<NodeId, VirtualCache>,
    counts: FxHashMap<NodeId, PlacementCounts>,
}

impl ColourTables {
    pub fn new(parameters: ColourTableParameters) -> Self {
        Self { parameters, ..Self::default() }
    }

    /// A VM is told of a cache unlike the host's.
    pub fn tell(&mut self, vm: NodeId, cache: VirtualCache) {
        self.told.insert(vm, cache);
    }

    /// The table of a VM, of so many real colours.
    fn table(&mut self, vm: NodeId, colours: Colours) -> &Table {
        let (seed, told) = (self.parameters.seed, &self.told);
        self.tables.entry(vm).or_insert_with(|| Table::new(colours, told.get(&vm), seed, vm))
    }

    /// The real colour for a page of a VM's memory: t\[c'(page)\].
    pub fn wanted(&mut self, vm: NodeId, colours: Colours, page: Frame<Upper>) -> Colour<Lower> {
        self.table(vm, colours).wanted(page)
    }

    /// The virtual colours of a guest, those first whose real ones the host has fewest free frames of.
    pub fn by_shortage(&mut self, stack: &Stack, guest: NodeId) -> Vec<Colour<Lower>> {
        let memory = stack.kernel(NodeId::HOST).memory();
        let Some(colours) = memory.colours() else { return Vec::new() };
        let Table { own, real } = self.table(guest, colours);
        let mut order: Vec<Colour<Lower>> = own.all().collect();
        order.sort_by_key(|colour| memory.free_of(Colour::new(real[colour.index() as usize])));
        order
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
        self.told.retain(|vm, _| !kernels.contains(vm));
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
                let told = self.told.get(&guest);
                fresh = Table::new(colours, told, self.parameters.seed, guest);
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
                counts.backed += 1;
                let is_other = colours.of(composed.frame) != table.wanted(page);
                counts.violations += u64::from(is_other);
            }
        }
        Some(counts)
    }
}

/// The table of one VM.
#[derive(Debug)]
struct Table {
    /// The colours of the cache that the VM is told of.
    own: Colours,
    /// Real colours by virtual one; injective, unless the VM is told of more colours than there are.
    real: Vec<u32>,
}

impl Table {
    fn new(colours: Colours, told: Option<&VirtualCache>, seed: u64, vm: NodeId) -> Self {
        let cache = told.copied().unwrap_or(VirtualCache::like(colours));
        let in_order = cache.given(colours);
        if seed == 0 {
            return Self { own: cache.colours, real: in_order.collect() };
        }
        let drawn = shuffled(u64::from(colours.count()), seed.wrapping_add(vm.index() as u64));
        let real = in_order.map(|colour| drawn[colour as usize] as u32).collect();
        Self { own: cache.colours, real }
    }

    /// The real colour for a page of the VM's memory.
    fn wanted(&self, page: Frame<Upper>) -> Colour<Lower> {
        Colour::new(self.real[self.own.of(page).index() as usize])
    }
}
