//! Captured tables, as they are kept.

use crate::observed::{Check, Observed};
use crate::ram::{Page, Pages};
use crate::search::Roots;
use crate::walk::{Hit, leaves, tables, walk};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use strata_addr::{Frame, Vpn, space::HostPhysical};
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

/// The pages of one table, bit for bit, by the frame they are in: in the space the table maps to,
/// so a guest's table has guest physical frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// What it is for.
    pub role: Role,
    /// The frame of its root.
    pub root: u64,
    /// The pages.
    pub pages: BTreeMap<u64, Arc<Page>>,
}

impl Pages for Table {
    fn page(&self, frame: u64) -> Option<Arc<Page>> {
        self.pages.get(&frame).cloned()
    }
}

impl Table {
    fn take(role: Role, memory: &dyn Pages, root: u64) -> Self {
        let mut pages = BTreeMap::new();
        let mut keep = |_, frame, page: &Arc<Page>| {
            pages.insert(frame, page.clone());
        };
        tables(memory, root, role.indices(), &mut keep, &mut |_, _| {});
        Self { role, root, pages }
    }

    /// Where a base page is mapped to.
    pub fn walk(&self, page: u64) -> Option<Hit> {
        walk(self, self.root, page)
    }

    /// Shows every leaf: its first page, and what it maps to.
    pub fn leaves(&self, visit: &mut dyn FnMut(u64, Hit)) {
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
    /// The tables, the guest's first.
    pub tables: Vec<Table>,
    /// The check of every access recorded.
    pub check: Check,
    /// Shadow against composition, where all tables of three layers were found.
    pub composition: Option<ShadowCheck>,
}

impl Capture {
    /// Takes the tables with these roots. `ram` must stand still meanwhile; `layers` is what the
    /// caller knows of the stack.
    pub fn take(ram: &dyn Pages, roots: Roots, layers: u8) -> Self {
        let mut taken = Vec::new();
        match roots.second {
            None => taken.push(Table::take(Role::Guest, ram, roots.guest.get())),
            Some(second) => {
                let memory = crate::walk::Behind { below: ram, root: second.get() };
                taken.push(Table::take(Role::Guest, &memory, roots.guest.get()));
                taken.push(Table::take(Role::Second, ram, second.get()));
            }
        }
        if let Some((l1, l0)) = roots.lower {
            let memory = crate::walk::Behind { below: ram, root: l0.get() };
            taken.push(Table::take(Role::L1, &memory, l1.get()));
            taken.push(Table::take(Role::L0, ram, l0.get()));
        }
        Self { id: 0, layers, tables: taken, check: Check::default(), composition: None }
    }

    /// Checks every access, and the shadow table where that can be: fills in [`Capture::check`]
    /// and [`Capture::composition`].
    pub fn prove(&mut self, seen: &Observed) {
        self.check = seen.check(|page| self.translate(page));
        self.composition = self.compose();
    }

    /// The table of this role.
    pub fn table(&self, role: Role) -> Option<&Table> {
        self.tables.iter().find(|table| table.role == role)
    }

    /// The frame of real memory behind a page of the program.
    pub fn translate(&self, page: Vpn) -> Option<Frame<HostPhysical>> {
        let gpa = self.table(Role::Guest)?.walk(page.get())?.frame;
        let frame = match self.table(Role::Second) {
            Some(second) => second.walk(gpa)?.frame,
            None => gpa,
        };
        Some(Frame::new(frame))
    }

    fn compose(&self) -> Option<ShadowCheck> {
        let (l1, l0) = (self.table(Role::L1)?, self.table(Role::L0)?);
        let mut found = ShadowCheck::default();
        self.table(Role::Second)?.leaves(&mut |first, hit| {
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
