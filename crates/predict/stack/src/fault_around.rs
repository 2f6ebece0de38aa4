//! What a kernel maps besides the page of a fault: more of a file that a program reads, and more of what a VM has.

use crate::fault::PageFault;
use crate::policy::Policy;
use crate::stack::{KernelOutOfMemory, Stack};
use crate::tree::NodeId;
use crate::vma::Vma;
use std::ops::Range;
use strata_addr::{Frame, PageSize, space::Upper};
use strata_paging::Mapping;
use strata_stream::Backing;

/// Pages that are mapped at once (Linux, `fault_around_bytes` at its default of 64 KiB).
const PAGES: u64 = 16;

/// The pages that Linux looks at for a fault on a page of an area (`do_fault_around`): 16 from a multiple of 16
/// on, or from where the area begins, within one page table.
fn around(page: Frame<Upper>, vma: &Vma) -> Range<u64> {
    let table = page.floor(PageSize::Huge).get();
    let (first, end) = (vma.range.start.page().get(), vma.range.end.page().get());
    let from = (page.get() / PAGES * PAGES).max(first);
    from..(from + PAGES).min(table + PageSize::Huge.base_pages()).min(end)
}

impl Stack {
    /// Maps what a kernel maps around a page of a file that was read, for reading only. All of the file is
    /// taken to be in the page cache. Nobody has used these pages yet, so nothing is backed below for them.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`] of what the policy does about it. Where there is no frame left, fewer are mapped.
    pub(crate) fn map_around(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        fault: &PageFault,
    ) -> Result<(), KernelOutOfMemory> {
        if fault.store || fault.vma.backing != Backing::File {
            return Ok(());
        }
        for page in around(fault.page, &fault.vma) {
            let kernel = &mut self.nodes[node].kernel;
            let Some(fault) = kernel.describe_fault(fault.space, Frame::new(page), false) else {
                continue;
            };
            let placement = policy.place(node, kernel, &fault);
            if kernel.map_base(&fault, placement).is_err() {
                break;
            }
            policy.mapped(self, node, &fault, PageSize::Base)?;
        }
        Ok(())
    }

    /// Maps in the second stage of a VM of the host what the host has mapped and may write around a page that it has
    /// just mapped there, if that is a base page: as many as the policy says, from a multiple of that on.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`] of the host, for page tables.
    pub(crate) fn map_second_stage_around(
        &mut self,
        policy: &mut dyn Policy,
        vm: NodeId,
        page: Frame<Upper>,
    ) -> Result<(), KernelOutOfMemory> {
        if self.nodes[vm].vm().below != NodeId::HOST {
            return Ok(());
        }
        let pages = policy.mapped_at_once(vm);
        let is_base = |stack: &Self| {
            let mapping = stack.second_stage(vm).mapping(page.addr());
            mapping.is_some_and(|mapping| mapping.size == PageSize::Base)
        };
        if pages < 2 || !is_base(self) {
            return Ok(());
        }
        let first = page.get() / pages * pages;
        for page in (first..first + pages).map(Frame::new) {
            let host = self.vm_table(vm).mapping(self.hva(vm, page).addr());
            let is_there =
                |mapping: &Mapping<_>| mapping.size == PageSize::Base && mapping.rights.write;
            if host.as_ref().is_some_and(is_there)
                && self.second_stage(vm).mapping(page.addr()).is_none()
            {
                self.map_second_stage(policy, vm, page)?;
            }
        }
        Ok(())
    }
}
