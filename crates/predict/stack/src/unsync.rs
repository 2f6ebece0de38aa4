//! How the host learns what a hypervisor in a VM writes to its second stage.
//!
//! KVM write-protects the tables that it shadows. The papers' hypervisors exit at each write to them. Today's
//! KVM lets a leaf table that is written go *unsync*: the first write exits, the next ones do not, and the
//! table is read anew and protected again before it matters, on AMD's instructions when the VM is entered
//! next, on Intel's when its hypervisor invalidates what hardware caches of it (Linux 6.12,
//! `mmu_try_to_unsync_pages`, `kvm_mmu_sync_roots`; `nested_svm_transition_tlb_flush`,
//! `handle_invept`). Tables further up are never unsync, and of a table that is not linked yet nothing
//! is known.

use crate::stack::Stack;
use crate::tree::NodeId;
use strata_addr::{Frame, PageSize, space::Upper};
use strata_nested::{ExitReason, Instructions, SecondStageWrites};
use strata_paging::ENTRIES;

impl Stack {
    /// The hypervisor below a VM wrote so many entries of the VM's second stage to map a page of this size, or
    /// a table on the way for each entry but one.
    pub(crate) fn second_stage_mapped(
        &mut self,
        vm: NodeId,
        page: Frame<Upper>,
        size: PageSize,
        written: u64,
    ) {
        let leaf = size == PageSize::Base && self.lets_go_unsync();
        // A leaf table that is new is filled before it is linked.
        let upper = if leaf { written.saturating_sub(1) } else { written };
        let protected = leaf && written == 1 && self.goes_unsync(vm, page);
        self.write_exits(vm, upper + u64::from(protected));
    }

    /// The hypervisor below a VM took so many entries for these pages out of the VM's second stage, and
    /// tells hardware.
    pub(crate) fn second_stage_zapped(
        &mut self,
        vm: NodeId,
        first: Frame<Upper>,
        pages: u64,
        zapped: u64,
    ) {
        let mut exits = zapped;
        // As many entries as regions, or fewer: those of huge pages, in tables further up.
        let huge = zapped <= pages / PageSize::Huge.base_pages();
        if self.lets_go_unsync() && !huge {
            // At most one for each leaf table.
            let last = (first + (pages.max(1) - 1)).floor(PageSize::Huge);
            let mut region = first.floor(PageSize::Huge);
            exits = 0;
            while region <= last && exits < zapped {
                exits += u64::from(self.goes_unsync(vm, region));
                region = region + PageSize::Huge.base_pages();
            }
        }
        self.write_exits(vm, exits);
        let below = self.below(vm).expect("the host is in no VM");
        self.exit(below, ExitReason::Invalidation, 1);
        if self.virtualization().instructions == Instructions::Vmx {
            self.synchronise(vm);
        }
    }

    /// Whether the host lets leaf tables of hypervisors in VMs go unsync.
    pub fn lets_go_unsync(&self) -> bool {
        self.exit_costs().second_stage_writes == SecondStageWrites::Unsync
    }

    /// The leaf table of a page becomes unsync; returns whether it was not.
    fn goes_unsync(&mut self, vm: NodeId, page: Frame<Upper>) -> bool {
        let vm = self.nodes[vm].vm.as_mut().expect("the host is in no VM");
        vm.unsync.insert(page.floor(PageSize::Huge).get())
    }

    fn write_exits(&mut self, vm: NodeId, exits: u64) {
        let below = self.below(vm).expect("the host is in no VM");
        if exits > 0 {
            self.exit(below, ExitReason::SecondStageWrite, exits);
        }
    }

    /// A VM ran until now: on AMD's instructions all tables that it runs on were read anew when it was
    /// entered.
    pub(crate) fn ran(&mut self, vm: NodeId) {
        if self.virtualization().instructions == Instructions::Svm {
            let path: Vec<NodeId> = self.path_down(vm).collect();
            path.into_iter().for_each(|vm| self.synchronise(vm));
        }
    }

    /// The leaf table of a page is not protected when the VM is entered next, but read only, where its hypervisor goes
    /// on writing it. That is about AMD's instructions: on Intel's it is protected when something is invalidated.
    pub fn keep_unsync(&mut self, vm: NodeId, page: Frame<Upper>) {
        if let Some(vm) = self.nodes[vm].vm.as_mut() {
            vm.kept_unsync = Some(page.floor(PageSize::Huge).get());
        }
    }

    /// The host reads what is unsync of a VM's second stage anew, and protects it.
    fn synchronise(&mut self, vm: NodeId) {
        let svm = self.virtualization().instructions == Instructions::Svm;
        let Some(of_vm) = self.nodes[vm].vm.as_mut() else { return };
        let tables = std::mem::take(&mut of_vm.unsync);
        let kept = of_vm.kept_unsync.take().filter(|region| svm && tables.contains(region));
        of_vm.unsync.extend(kept);
        if !tables.is_empty() {
            let writer = self.below(vm).expect("the host is in no VM");
            let cycles = tables.len() as u64 * ENTRIES as u64 * self.costs.scan;
            self.read_second_stages_anew(writer, cycles);
        }
    }
}
