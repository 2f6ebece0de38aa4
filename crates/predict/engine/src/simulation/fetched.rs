//! Instructions are fetched: pages of code fault like pages of data. TLBs and caches of instructions are left out.

use super::cores::GuestId;
use super::{FAULT_LIMIT, Simulation};
use strata_addr::{Frame, Gva, PageSize, Range, space::Virtual};
use strata_hardware::Fault;
use strata_stack::{NodeId, SpaceId};
use strata_stream::{Access, Pid};

/// Pages of one event that are looked at: one of the emulator's is of a block's, and a damaged recording may say anything.
const MOST: u64 = 1 << 12;

impl Simulation {
    /// A process is about to execute instructions in pages that it has not executed before.
    pub(super) fn fetched(&mut self, guest: GuestId, pid: Pid, range: Range<Virtual>) {
        let node = self.guests[guest].node;
        let end = range.end.min(Gva::new(self.stack.user_end()));
        let pages = end.get().saturating_sub(range.start.get()) >> PageSize::BASE_SHIFT;
        let Some(space) = self.stack.process_space(node, pid) else { return };
        let Some(tid) = self.a_thread_of(guest, pid, space) else { return };
        let cpu = self.cpu_of(guest, tid);
        self.cores.enter(cpu, guest, &mut self.machine);
        self.guests[guest].clock.resume(cpu, &mut self.cores, &self.machine);
        let first = range.start.page();
        for page in (0..pages.min(MOST)).map(|page| first + page) {
            let gva = self.modelled(guest, space, page.addr());
            let mut faults = 0;
            while let Some(fault) = self.fault_of_fetch(node, space, gva)
                && faults < FAULT_LIMIT
            {
                faults += 1;
                let handled = self.handle(guest, cpu, space, fault);
                self.tell_hardware(guest, cpu);
                if let Err(short) = handled {
                    self.out_of_memory(guest, short, Some(space));
                    return self.pass_time(guest, cpu);
                }
            }
        }
        self.pass_time(guest, cpu);
    }

    /// Where the model has an address of the program.
    fn modelled(&mut self, guest: GuestId, space: SpaceId, traced: Gva) -> Gva {
        let Self { stack, guests, .. } = self;
        let state = &mut guests[guest];
        if !stack.moves_areas(state.node, space) {
            return traced;
        }
        let run = [Access::load(traced, 1)];
        state.relocation.modelled_run(stack, state.node, space, &run)[0].addr()
    }

    /// Why instructions at an address cannot be fetched, if they cannot.
    fn fault_of_fetch(&mut self, node: NodeId, space: SpaceId, gva: Gva) -> Option<Fault> {
        let (table, second) = self.stack.hardware_tables(node, space)?;
        let Some(mapping) = table.mapping(gva) else {
            return Some(Fault::Guest { gva, store: false, present: false });
        };
        let page: Frame<_> = mapping.frame + gva.page().index_in(mapping.size);
        let gpa = page.addr();
        let is_backed = second.is_none_or(|second| second.mapping(gpa).is_some());
        (!is_backed).then_some(Fault::SecondStage { gpa, store: false, during_walk: false })
    }
}
