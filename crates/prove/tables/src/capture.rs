//! Captured tables, as they are kept.

use crate::entries::Entries;
use crate::observed::{Check, Observed};
use crate::ram::{Page, Pages};
use crate::search::Roots;
use crate::walk::{Behind, Hit, Native, leaves, tables, walk};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use strata_addr::space::{GuestHypervisorPhysical, GuestPhysical, HostPhysical, Space, Virtual};
use strata_addr::{Frame, Vpn};
use strata_paging::ENTRIES;

/// What a table is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The program's page table, GVA to GPA; the lower half alone, which is the program's.
    Guest,
    /// The second stage that hardware walks, GPA to HPA: L0's nested table in a VM, L0's shadow
    /// table in a nested VM.
    Second,
    /// L1's own nested table, GPA to GHPA.
    L1,
    /// L0's nested table for L1, GHPA to HPA.
    L0,
}

impl Role {
    /// All of them, in the order of the file's numbers for them.
    pub const ALL: [Self; 4] = [Self::Guest, Self::Second, Self::L1, Self::L0];

    /// The entries of the root that are of interest.
    pub(crate) const fn indices(self) -> std::ops::Range<usize> {
        match self {
            Self::Guest => 0..ENTRIES / 2,
            Self::Second | Self::L1 | Self::L0 => 0..ENTRIES,
        }
    }
}

const GUEST: (Role, Entries) = (Role::Guest, Entries::X86);

/// The pages of one table from `U` to `L`, bit for bit, by the frame they are in: in the space the table maps
/// to, so a guest's table has guest physical frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table<U: Space, L: Space> {
    /// What it is for.
    pub role: Role,
    /// The format of its entries.
    pub entries: Entries,
    /// The frame of its root.
    pub root: Frame<L>,
    /// The pages.
    pub pages: BTreeMap<Frame<L>, Arc<Page>>,
    from: PhantomData<U>,
}

impl<U: Space, L: Space> Pages<L> for Table<U, L> {
    fn page(&self, frame: Frame<L>) -> Option<Arc<Page>> {
        self.pages.get(&frame).cloned()
    }
}

impl<U: Space, L: Space> Table<U, L> {
    /// A table with its root in this frame, made of these pages.
    pub fn new(
        (role, entries): (Role, Entries),
        root: Frame<L>,
        pages: BTreeMap<Frame<L>, Arc<Page>>,
    ) -> Self {
        Self { role, entries, root, pages, from: PhantomData }
    }

    fn take(kind: (Role, Entries), memory: &dyn Pages<L>, root: Frame<L>) -> Self {
        let mut pages = BTreeMap::new();
        let mut keep = |frame, page: &Arc<Page>| {
            pages.insert(frame, page.clone());
        };
        tables::<U, L>(memory, root, kind.0.indices(), &mut keep, &mut |_, _| {});
        Self::new(kind, root, pages)
    }

    /// Where a base page is mapped to.
    pub fn walk(&self, page: Frame<U>) -> Option<Hit<L>> {
        walk(self, self.root, page)
    }

    /// Shows every leaf: its first page, and what it maps to.
    pub fn leaves(&self, visit: &mut dyn FnMut(Frame<U>, Hit<L>)) {
        leaves(self, self.root, self.role.indices(), visit);
    }
}

/// Whether the second stage is what it is made of: base pages of L0's shadow table against L1's
/// table and L0's one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowCheck {
    /// Both lead to the same frame.
    pub equal: u64,
    /// They lead to different frames.
    pub different: u64,
    /// The shadow table maps what the others do not.
    pub only_shadow: u64,
}

/// The tables of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The number that the recording made with these tables has, too; 0 where none was.
    pub id: u64,
    /// Layers whose tables these are: 1 natively, 2 in a VM, 3 in a nested VM.
    pub layers: u8,
    /// The program's page table.
    pub guest: Table<Virtual, GuestPhysical>,
    /// The second stage that hardware walks; natively there is none.
    pub second: Option<Table<GuestPhysical, HostPhysical>>,
    /// Where there are three layers, what L0's shadow table is made of, if it was found: L1's own nested table
    /// and L0's for L1.
    pub lower: Option<(
        Table<GuestPhysical, GuestHypervisorPhysical>,
        Table<GuestHypervisorPhysical, HostPhysical>,
    )>,
    /// The check of every access recorded.
    pub check: Check,
    /// Shadow against composition, where all tables of three layers were found.
    pub composition: Option<ShadowCheck>,
}

impl Capture {
    /// Takes the tables with these roots. `ram` must stand still meanwhile; `layers` is what the
    /// caller knows of the stack.
    pub fn take(ram: &dyn Pages<HostPhysical>, roots: Roots, layers: u8) -> Self {
        let guest = match roots.second {
            None => Table::take(GUEST, &Native(ram), roots.guest),
            Some(root) => Table::take(GUEST, &Behind { below: ram, root }, roots.guest),
        };
        let second = roots.second.map(|root| Table::take((Role::Second, roots.entries), ram, root));
        let lower = roots.lower.map(|(l1, root)| {
            let l1 = Table::take((Role::L1, roots.entries), &Behind { below: ram, root }, l1);
            (l1, Table::take((Role::L0, roots.entries), ram, root))
        });
        Self { second, lower, ..Self::of_guest(layers, guest) }
    }

    /// A program's page table alone, of which nothing is proven yet.
    pub fn of_guest(layers: u8, guest: Table<Virtual, GuestPhysical>) -> Self {
        let check = Check::default();
        Self { id: 0, layers, guest, second: None, lower: None, check, composition: None }
    }

    /// Checks every access, and the shadow table where that can be: fills in [`Capture::check`]
    /// and [`Capture::composition`].
    pub fn prove(&mut self, seen: &Observed) {
        self.check = seen.check(|page| self.translate(page));
        self.composition = self.compose();
    }

    /// The frame of real memory behind a page of the program.
    pub fn translate(&self, page: Vpn) -> Option<Frame<HostPhysical>> {
        let gpa = self.guest.walk(page)?.frame;
        match &self.second {
            Some(second) => Some(second.walk(gpa)?.frame),
            None => Some(gpa.cross()),
        }
    }

    fn compose(&self) -> Option<ShadowCheck> {
        let (l1, l0) = self.lower.as_ref()?;
        let mut found = ShadowCheck::default();
        self.second.as_ref()?.leaves(&mut |first, hit| {
            for page in 0..hit.size.base_pages() {
                let composed = l1.walk(first + page).and_then(|ghpa| l0.walk(ghpa.frame));
                *match composed {
                    None => &mut found.only_shadow,
                    Some(composed) if composed.frame == hit.frame + page => &mut found.equal,
                    Some(_) => &mut found.different,
                } += 1;
            }
        });
        Some(found)
    }
}
