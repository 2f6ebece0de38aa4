//! Pages with equal contents share a frame until one of them is stored to.
//!
//! Source: Linux 6.12, `mm/ksm.c`, `try_to_merge_one_page`.

use crate::fault::frame_of;
use crate::kernel::{Kernel, OutOfMemory};
use crate::owner::{Owner, SpaceId};
use strata_addr::{Frame, space::Lower, space::Upper};
use strata_paging::Rights;

impl Kernel {
    /// A page gives up its frame for `kept`, which has equal contents and is another page's or shared
    /// already. None of them may be written from then on. Huge pages are split first. Returns whether they
    /// share it now.
    ///
    /// # Errors
    /// [`OutOfMemory`] when a huge page had to be split and there was no frame for the table.
    pub(crate) fn merge(
        &mut self,
        space: SpaceId,
        page: Frame<Upper>,
        kept: Frame<Lower>,
    ) -> Result<bool, OutOfMemory> {
        let mapping = self.space(space).and_then(|s| s.table.mapping(page.addr()));
        let Some(mapping) = mapping else { return Ok(false) };
        let given_up = frame_of(&mapping, page);
        if given_up == kept || !matches!(self.owner(given_up), Owner::Page(..)) {
            return Ok(false);
        }
        let mappings = match self.owner(kept) {
            Owner::Page(of, at) => {
                self.protect_page(of, at)?;
                1
            }
            Owner::Shared { mappings } => mappings,
            _ => return Ok(false),
        };
        self.set_owner(kept, Owner::Shared { mappings });
        // Both may have been of one huge page.
        if self.is_huge(space, page) {
            self.split(space, page)?;
        }
        let table = &mut self.alive_mut(space).table;
        table.update(page.addr(), |m| (kept, Rights { write: false, ..m.rights }));
        self.changed(space, page, 1);
        self.set_owner(kept, Owner::Shared { mappings: mappings + 1 });
        self.drop_reference(given_up);
        self.frames.counters.merged_pages += 1;
        Ok(true)
    }

    /// A base page, or one split off a huge page, may not be written any more.
    fn protect_page(&mut self, space: SpaceId, page: Frame<Upper>) -> Result<(), OutOfMemory> {
        if self.is_huge(space, page) {
            self.split(space, page)?;
        }
        let table = &mut self.alive_mut(space).table;
        let done = table.update(page.addr(), |m| (m.frame, Rights { write: false, ..m.rights }));
        debug_assert!(done, "the owner of a frame maps it");
        self.changed(space, page, 1);
        Ok(())
    }
}
