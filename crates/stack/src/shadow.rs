//! The shadow table: GPA to HPA in one table, composed by the lowest layer.

use crate::owner::Owner;
use crate::policy::{Layer, Policy};
use crate::stack::{Exhausted, Stack, VM, zap};
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_paging::{Region, Rights};

/// What all second stages together say of a guest page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Composition {
    /// The real frame.
    pub frame: Frame<Lower>,
    /// The smallest page size on the way.
    pub size: PageSize,
}

impl Stack {
    /// Composes the second stages of all hypervisors for a guest-physical page; `None` when one of
    /// them does not map it.
    pub fn compose(&self, page: Frame<Upper>) -> Option<Composition> {
        let mut at = page;
        let mut size = PageSize::Giant;
        for layer in &self.layers[1..] {
            let mapping = layer.second().table.mapping(at.addr())?;
            size = size.min(mapping.size);
            at = (mapping.frame + at.index_in(mapping.size)).cross();
        }
        Some(Composition { frame: at.cross(), size })
    }

    pub(crate) fn shadow_maps(&self, page: Frame<Upper>) -> bool {
        self.shadow.as_ref().is_some_and(|shadow| shadow.mapping(page.addr()).is_some())
    }

    /// Makes the shadow map a guest page, backing it in every layer first where need be. Nothing
    /// happens without a shadow table.
    ///
    /// # Errors
    /// [`Exhausted`], with the layer.
    pub fn fill_shadow(
        &mut self,
        policy: &mut dyn Policy,
        page: Frame<Upper>,
    ) -> Result<(), Exhausted> {
        if self.shadow.is_none() {
            return Ok(());
        }
        let mut at = page;
        for layer in 1..self.depth() {
            self.back(policy, layer, at)?;
            let table = &self.layers[layer].second().table;
            at = table.translate(at.addr()).expect("backed just now").page().cross();
        }
        if self.shadow_maps(page) {
            return Ok(());
        }
        let composition = self.compose(page).expect("every layer backs it");
        let size = composition.size;
        self.map_shadow(page.floor(size), composition.frame.floor(size), size)?;
        self.settle(policy, self.bottom(), crate::costs::Spending::HypervisorFault)
    }

    fn map_shadow(
        &mut self,
        page: Frame<Upper>,
        frame: Frame<Lower>,
        size: PageSize,
    ) -> Result<(), Exhausted> {
        let bottom = self.bottom();
        let kernel = &mut self.layers[bottom].kernel;
        let shadow = self.shadow.as_mut().expect("there is a shadow table");
        let replaced = match (size, shadow.region(page)) {
            (PageSize::Huge, Region::Base { .. }) => {
                shadow.collapse(page, frame, Rights::ALL, &mut kernel.frames).map(|_| true)
            }
            _ => shadow.map(page, size, frame, Rights::ALL, &mut kernel.frames).map(|_| false),
        };
        let replaced = replaced.map_err(|_| Exhausted { layer: bottom })?;
        if replaced {
            // Base entries may be cached; the huge one must replace them.
            self.flush_second_stage();
        }
        Ok(())
    }

    /// Makes the shadow map the HPAS region at `page` by one huge entry, if its 512 pages lie in
    /// one HPAS region of real memory, whatever the layers between look like: a pseudo huge page
    /// (xGemini IV.D). Returns whether it is huge now.
    ///
    /// # Errors
    /// [`Exhausted`] when a page table could not be allocated.
    pub fn promote_shadow(
        &mut self,
        policy: &mut dyn Policy,
        page: Frame<Upper>,
    ) -> Result<bool, Exhausted> {
        let page = page.floor(PageSize::Huge);
        match self.shadow.as_ref().map(|shadow| shadow.region(page)) {
            None => return Ok(false),
            Some(Region::Huge(_)) => return Ok(true),
            Some(_) => {}
        }
        let Some(first) = self.compose(page) else { return Ok(false) };
        if !first.frame.is_aligned(PageSize::Huge) {
            return Ok(false);
        }
        for i in 1..PageSize::Huge.base_pages() {
            if self.compose(page + i).is_none_or(|c| c.frame != first.frame + i) {
                return Ok(false);
            }
        }
        self.map_shadow(page, first.frame, PageSize::Huge)?;
        self.shadow_promotions += 1;
        self.settle(policy, self.bottom(), crate::costs::Spending::HypervisorFault)?;
        Ok(true)
    }

    /// Drops shadow entries that go through `pages` pages of the guest of `layer`.
    pub(crate) fn zap_shadow_through(&mut self, layer: Layer, start: Frame<Upper>, pages: u64) {
        if layer == 1 {
            return self.zap_shadow(start, pages);
        }
        for i in 0..pages {
            // The frame is memory of the layer above: its owner tells what it backs there.
            if let Owner::Page(VM, hva) = self.owner_above(layer, start + i)
                && let Some(above) = hva.get().checked_sub(self.layers[layer - 1].second().slot)
            {
                self.zap_shadow_through(layer - 1, Frame::new(above), 1);
            }
        }
    }

    fn zap_shadow(&mut self, start: Frame<Upper>, pages: u64) {
        let bottom = self.bottom();
        let kernel = &mut self.layers[bottom].kernel;
        let shadow = self.shadow.as_mut().expect("there is a shadow table");
        let pseudo = pages < PageSize::Huge.base_pages()
            && matches!(shadow.region(start.floor(PageSize::Huge)), Region::Huge(_));
        if zap(shadow, start, pages, &mut kernel.frames) > 0 {
            self.shadow_demotions += u64::from(pseudo);
            self.flush_second_stage();
        }
    }

    /// Checks that every entry of the table hardware walks equals the composition of the layers,
    /// and every entry of a second stage the VM process's mapping. For tests and debug builds:
    /// walks everything.
    ///
    /// # Panics
    /// When a table disagrees, naming the page.
    pub fn check_composition(&self) {
        for (layer, stack_layer) in self.layers.iter().enumerate().skip(1) {
            let second = stack_layer.second();
            second.table.for_each(second.table.everything(), |page, mapping| {
                for i in 0..mapping.size.base_pages() {
                    let hva = self.hva(layer, page + i);
                    let behind = stack_layer.kernel.frame_behind(VM, hva);
                    assert_eq!(behind, Some(mapping.frame + i), "layer {layer}, {:?}", page + i);
                }
            });
        }
        if let Some(shadow) = &self.shadow {
            shadow.for_each(shadow.everything(), |page, mapping| {
                for i in 0..mapping.size.base_pages() {
                    let composed = self.compose(page + i).map(|c| c.frame);
                    assert_eq!(composed, Some(mapping.frame + i), "shadow, {:?}", page + i);
                }
            });
        }
    }
}
