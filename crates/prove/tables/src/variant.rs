//! Captured tables for the hardware model: as they are, and what else they could have been.

use crate::LEVELS;
use crate::capture::{Capture, Table};
use crate::entries::Entries;
use crate::ram::Page;
use std::collections::BTreeMap;
use std::sync::Arc;
use strata_addr::space::{GuestPhysical, HostPhysical, Space, Virtual};
use strata_addr::{Frame, Hpa, PageSize};
use strata_paging::{Entry, Format, FrameSource, LoadError, Radix, Region, Rights, X86};

/// Which tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableVariant {
    /// As captured, bit for bit; entries of an EPT as the same entries of the model's format.
    Captured,
    /// Every 2 MiB mapping of either dimension split into base pages over the same frames: what it
    /// would cost without huge pages.
    Base,
    /// Every huge page of the guest backed by one huge page: what it would cost if all were well
    /// aligned. The regions that were not lie elsewhere in memory then.
    Ideal,
}

impl TableVariant {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Captured, Self::Base, Self::Ideal];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Captured => "captured",
            Self::Base => "base",
            Self::Ideal => "aligned",
        }
    }
}

/// The program's page table.
pub type GuestTable = Radix<X86, Virtual, GuestPhysical>;
/// The second stage.
pub type SecondTable = Radix<X86, GuestPhysical, HostPhysical>;

/// What the hardware walks.
#[derive(Debug)]
pub struct HardwareTables {
    /// The program's page table.
    pub guest: GuestTable,
    /// The second stage, if there is one.
    pub second: Option<SecondTable>,
    /// What a reader of results must know.
    pub notes: Vec<String>,
}

/// Captured tables that cannot be used. One line: cause and remedy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariantError {
    /// Pages that are no table.
    #[error("{0}; capture the tables again")]
    Load(#[from] LoadError),
    /// Addresses that the model does not take.
    #[error("the tables lead beyond {0:?}, the memory of modelled machines; capture them again")]
    TooHigh(Hpa),
}

/// Gives out frames that nothing uses yet, upwards.
struct Fresh(u64);

impl Fresh {
    fn huge(&mut self) -> u64 {
        let pages = PageSize::Huge.base_pages();
        let first = self.0.next_multiple_of(pages);
        self.0 = first + pages;
        first
    }
}

impl<L> FrameSource<L> for Fresh {
    fn table_frame(&mut self) -> Option<Frame<L>> {
        self.0 += 1;
        Some(Frame::new(self.0 - 1))
    }

    fn free_table_frame(&mut self, _: Frame<L>) {}
}

fn load<U: Space, L: Space>(
    table: &Table<U, L>,
    end: Hpa,
    notes: &mut Vec<String>,
) -> Result<Radix<X86, U, L>, LoadError> {
    // Linux shares no table pages between entries; KVM may, now and then.
    let limit = 2 * table.pages.len() + 512;
    let converted = for_model(table);
    let pages = converted.as_ref().unwrap_or(&table.pages);
    let page = |frame: Frame<L>| pages.get(&frame).map(|page| &**page);
    let (radix, left) = Radix::from_pages(LEVELS, table.root, end.page().cross(), limit, page)?;
    if left.malformed > 0 {
        let name = format!("{:?}", table.role).to_lowercase();
        notes.push(format!("{} malformed entries of the {name} table ignored", left.malformed));
    }
    Ok(radix)
}

/// The pages of a table whose entries are not the model's, with the model's.
fn for_model<U: Space, L: Space>(table: &Table<U, L>) -> Option<BTreeMap<Frame<L>, Arc<Page>>> {
    if table.entries == Entries::X86 {
        return None;
    }
    let mut pages = BTreeMap::new();
    let mut waiting = vec![(LEVELS, table.root)];
    while let Some((level, frame)) = waiting.pop() {
        let Some(page) = table.pages.get(&frame).filter(|_| !pages.contains_key(&frame)) else {
            continue;
        };
        let page = table.entries.for_model(page, level);
        let below = page.iter().filter_map(|&bits| match X86::decode(bits, level) {
            Entry::Table(frame) if level > 1 => Some((level - 1, Frame::new(frame))),
            _ => None,
        });
        waiting.extend(below);
        pages.insert(frame, Arc::new(page));
    }
    Some(pages)
}

/// One past the highest frame that a table uses or maps.
fn end<U: Space, L: Space>(table: &Radix<X86, U, L>) -> u64 {
    let mut end = 0;
    table.for_each_table(|_, frame, _| end = end.max(frame.get() + 1));
    let mapped = table.mapped(table.everything());
    mapped.fold(end, |end, (_, mapping)| end.max(mapping.frame.get() + mapping.size.base_pages()))
}

/// The tables of a capture in a variant, for a model whose memory ends at `limit`.
///
/// # Errors
/// When they are none, or do not fit the model.
pub fn tables(
    capture: &Capture,
    variant: TableVariant,
    limit: Hpa,
) -> Result<HardwareTables, VariantError> {
    let mut notes = Vec::new();
    let mut guest: GuestTable = load(&capture.guest, limit, &mut notes)?;
    let second = capture.second.as_ref().map(|table| load(table, limit, &mut notes));
    let mut second: Option<SecondTable> = second.transpose()?;
    let mut gpas = Fresh(end(&guest));
    let mut hpas = match &second {
        Some(second) => Fresh(end(second)),
        None => Fresh(0),
    };
    match variant {
        TableVariant::Captured => {}
        TableVariant::Base => split(&mut guest, second.as_mut(), &mut gpas, &mut hpas, &mut notes),
        TableVariant::Ideal => align(&guest, second.as_mut(), &mut hpas),
    }
    let ends = if second.is_some() { [hpas.0, 0] } else { [hpas.0, gpas.0] };
    if ends.into_iter().any(|end| end > limit.page().get()) {
        return Err(VariantError::TooHigh(limit));
    }
    Ok(HardwareTables { guest, second, notes })
}

fn split(
    guest: &mut GuestTable,
    second: Option<&mut SecondTable>,
    gpas: &mut Fresh,
    hpas: &mut Fresh,
    notes: &mut Vec<String>,
) {
    fn all<U: Space, L: Space>(
        table: &mut Radix<X86, U, L>,
        frames: &mut Fresh,
    ) -> (Vec<Frame<L>>, u64) {
        let (mut huge, mut giant) = (Vec::new(), 0);
        table.for_each_huge(|page, mapping| match mapping.size {
            PageSize::Huge => huge.push(page),
            _ => giant += 1,
        });
        let first = frames.0;
        for page in huge {
            table.split(page, frames).expect("fresh frames do not run out");
        }
        ((first..frames.0).map(Frame::new).collect(), giant)
    }
    let (added, giant_guest) = all(guest, gpas);
    let mut giant = giant_guest;
    if let Some(second) = second {
        let (_, giant_second) = all(second, hpas);
        giant += giant_second;
        // The guest's new tables need memory too.
        for page in added {
            let frame = FrameSource::<HostPhysical>::table_frame(hpas).expect("never runs out");
            if second.mapping(page.addr()).is_none() {
                second
                    .map(page, PageSize::Base, frame, Rights::ALL, hpas)
                    .expect("fresh frames do not run out");
            }
        }
    }
    if giant > 0 {
        notes.push(format!("{giant} mappings of 1 GiB are left as they are"));
    }
}

fn align(guest: &GuestTable, second: Option<&mut SecondTable>, hpas: &mut Fresh) {
    let Some(second) = second else { return };
    let mut regions = Vec::new();
    guest.for_each_huge(|_, mapping| {
        let step = PageSize::Huge.base_pages() as usize;
        let pages = (0..mapping.size.base_pages()).step_by(step);
        regions.extend(pages.map(|page| mapping.frame + page));
    });
    for region in regions {
        if !matches!(second.region(region), Region::Huge(_)) {
            let frame = Frame::new(hpas.huge());
            second.collapse(region, frame, Rights::ALL, hpas).expect("fresh frames do not run out");
        }
    }
}
