//! What the TLBs and walk caches of all CPUs forget.

use super::Machine;
use crate::access::{Asid, VmTag};
use crate::cpu::Last;
use strata_addr::space::Virtual;
use strata_addr::{Range, Vpn};

impl Machine {
    /// Drops one page of one address space on every CPU, and, as INVLPG does, everything that the
    /// walk caches know of that address space (SDM volume 3A, section 4.10.4.1).
    pub fn invalidate_page(&mut self, asid: Asid, page: Vpn) {
        for cpu in &mut self.cpus {
            cpu.invalidate_page(page, asid);
            cpu.walk_caches.pwc.flush_asids(|other| other == asid);
        }
    }

    /// Drops every page of one address space that has a byte in `range`, on every CPU; the walk
    /// caches as [`Machine::invalidate_page`].
    pub fn invalidate_range(&mut self, asid: Asid, range: Range<Virtual>) {
        for cpu in &mut self.cpus {
            cpu.last.key = Last::NONE;
            cpu.tlb_l1.invalidate_range(range, asid);
            cpu.tlb_l2.invalidate_range(range, asid);
            cpu.walk_caches.pwc.flush_asids(|other| other == asid);
        }
    }

    /// Drops everything of one address space on every CPU: a write of CR3, or INVPCID.
    pub fn flush_asid(&mut self, asid: Asid) {
        for cpu in &mut self.cpus {
            cpu.last.key = Last::NONE;
            cpu.tlb_l1.flush_asids(|other| other == asid);
            cpu.tlb_l2.flush_asids(|other| other == asid);
            cpu.walk_caches.pwc.flush_asids(|other| other == asid);
        }
    }

    /// Drops everything derived from the second stage of a VM on every CPU, as INVEPT of that context
    /// or a flush of the VM's ASID does: TLB entries, which combine both stages, all walk caches, the
    /// nested TLB (SDM volume 3C, section 29.4.3.1; APM volume 2, section 15.16.1).
    pub fn flush_second_stage(&mut self, vm: VmTag) {
        let vms = &self.vms;
        // The only one there was; of one that comes as the second, the first's must stay.
        if !self.several_vms && vms.contains(&vm) {
            return self.flush_all();
        }
        let is_of = |asid: Asid| vms.get(usize::from(asid.0)) == Some(&vm);
        for cpu in &mut self.cpus {
            cpu.last.key = Last::NONE;
            cpu.tlb_l1.flush_asids(is_of);
            cpu.tlb_l2.flush_asids(is_of);
            cpu.walk_caches.flush_vm(vm, is_of);
        }
    }

    /// Drops every translation on every CPU. Data caches keep their contents: they are tagged by
    /// host physical address.
    pub fn flush_all(&mut self) {
        for cpu in &mut self.cpus {
            cpu.last.key = Last::NONE;
            cpu.tlb_l1.flush();
            cpu.tlb_l2.flush();
            cpu.walk_caches.flush();
        }
    }
}
