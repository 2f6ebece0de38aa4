//! What software did reaches hardware: translations to drop, cycles to charge, background work.

use super::cores::GuestId;
use super::{Simulation, vm_tag};
use strata_addr::{Gva, Range};
use strata_hardware::{Charge, CpuId};
use strata_stack::{Change, Feedback, Flush, NodeId, SpaceId, Spending};

/// Pages beyond which Linux flushes an address space rather than single pages
/// (`arch/x86/mm/tlb.c`, `tlb_single_page_flush_ceiling`).
const FLUSH_CEILING: u64 = 33;

impl Simulation {
    /// Passes what software did for a guest on to hardware: translations to drop, cycles to charge.
    pub(super) fn tell_hardware(&mut self, guest: GuestId, cpu: CpuId) {
        self.tell_hardware_as(guest, cpu, false);
    }

    /// The same for background work, faults and exits it causes included, which is weighed.
    fn tell_hardware_of_background(&mut self, guest: GuestId, cpu: CpuId) {
        self.tell_hardware_as(guest, cpu, true);
    }

    fn charge(&mut self, guest: GuestId, cpu: CpuId, kind: Charge, cycles: u64, background: bool) {
        let clock = &mut self.guests[guest].clock;
        let cycles = if background { clock.weigh(kind, cycles) } else { cycles };
        self.machine.charge(cpu, kind, cycles);
    }

    fn tell_hardware_as(&mut self, guest: GuestId, cpu: CpuId, background: bool) {
        if self.stack.has_flushes() {
            self.flush(guest, cpu, background);
        }
        let spent = self.stack.take_spent();
        if !spent.is_zero() {
            for kind in Spending::ALL {
                let charge = match kind {
                    Spending::GuestFault | Spending::HypervisorFault => Charge::Fault,
                    Spending::Exit => Charge::Exit,
                    Spending::Background => Charge::Background,
                    Spending::Shootdown => Charge::Shootdown,
                };
                self.charge(guest, cpu, charge, spent.0[kind as usize], background);
            }
        }
    }

    fn flush(&mut self, guest: GuestId, cpu: CpuId, background: bool) {
        let shootdown = self.stack.costs().shootdown;
        let mut flushes = std::mem::take(&mut self.flushes);
        flushes.extend(self.stack.drain_flushes());
        // Whether a space has threads on other CPUs, remembered for the space asked for last.
        let mut shared = None;
        for flush in flushes.drain(..) {
            match flush {
                Flush::SecondStage(guest) => self.machine.flush_second_stage(vm_tag(guest)),
                Flush::Space(node, space) => self.flush_space(node, space),
                Flush::Pages(node, change) => {
                    self.flush_pages(node, change);
                    let place = (node, change.space);
                    let others = match shared {
                        Some((known, others)) if known == place => others,
                        _ => {
                            let of = self.guest_at(node).unwrap_or(guest);
                            self.running_in(of, change.space).nth(1).is_some()
                        }
                    };
                    shared = Some((place, others));
                    if others {
                        self.charge(guest, cpu, Charge::Shootdown, shootdown, background);
                    }
                }
            }
        }
        self.flushes = flushes;
    }

    fn flush_space(&mut self, node: NodeId, space: SpaceId) {
        let asid = self.guest_at(node).and_then(|guest| self.asids.known(guest, space));
        asid.into_iter().for_each(|asid| self.machine.flush_asid(asid));
    }

    fn flush_pages(&mut self, node: NodeId, change: Change) {
        if change.pages > FLUSH_CEILING {
            return self.flush_space(node, change.space);
        }
        let asid = self.guest_at(node).and_then(|guest| self.asids.known(guest, change.space));
        if let Some(asid) = asid {
            let start: Gva = change.page.addr().cross();
            self.machine.invalidate_range(asid, Range::sized(start, change.pages << 12));
        }
    }

    /// The guest that a kernel is of.
    fn guest_at(&self, node: NodeId) -> Option<GuestId> {
        self.guests.iter().position(|guest| guest.node == node)
    }

    /// Time has passed on a CPU: timers tick, and background work that is due is done, on that CPU's account.
    pub(super) fn pass_time(&mut self, guest: GuestId, cpu: CpuId) {
        self.happen_by_time(guest, cpu);
        let state = &mut self.guests[guest];
        state.clock.advance(cpu, &self.cores, &self.machine);
        let (vm, now) = (state.vm, state.clock.now());
        if self.stack.next_wake(&self.policies, vm) > now || state.dead.is_some() {
            return;
        }
        let feedback = self.feedback(vm);
        let done = self.stack.wake(&mut self.policies, vm, now, feedback);
        self.tell_hardware_of_background(guest, cpu);
        if let Err(short) = done {
            self.out_of_memory(guest, short, None);
        }
    }

    /// What hardware showed of the guests in a VM since this was last asked.
    fn feedback(&mut self, vm: NodeId) -> Feedback {
        let mut feedback = Feedback::default();
        for guest in 0..self.guests.len() {
            if self.guests[guest].vm != vm {
                continue;
            }
            let totals = self.totals(guest);
            let cycles = self.machine.explain(&totals);
            let now = Feedback {
                tlb_misses: totals.l2_misses,
                accesses: totals.accesses,
                walk_cycles: cycles.walk,
                memory_cycles: cycles.memory,
                frequency: 0.0,
            };
            let state = &mut self.guests[guest];
            let before = std::mem::replace(&mut state.last_feedback, now);
            feedback.tlb_misses += now.tlb_misses - before.tlb_misses;
            feedback.accesses += now.accesses - before.accesses;
            feedback.walk_cycles += now.walk_cycles - before.walk_cycles;
            feedback.memory_cycles += now.memory_cycles - before.memory_cycles;
            feedback.frequency = state.clock.frequency();
        }
        feedback
    }
}
