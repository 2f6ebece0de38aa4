//! One walk, reference by reference, for people to look at.

use crate::access::{Asid, CpuId, Request, Tables, VmTag};
use crate::machine::{Machine, Misaligned};
use crate::walker::Observer;
use crate::{CpuModel, WalkPosition};
use std::collections::BTreeSet;
use std::fmt::Write;
use strata_addr::space::{GuestPhysical, HostPhysical, Space, Virtual};
use strata_addr::{Frame, Gpa, Gva, Hpa, PageSize};
use strata_paging::{Ept, FrameSource, Radix, Rights, X86};

/// A memory reference of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Its place: which row and which column of the walk.
    pub position: WalkPosition,
    /// Where the entry lies.
    pub hpa: Hpa,
}

impl Reference {
    /// Whether the entry belongs to the guest's table; otherwise to the second stage.
    pub fn is_guest(&self) -> bool {
        self.position.nested == 0
    }

    /// Level of the entry in its table; 1 is the leaf level.
    pub fn level(&self) -> u8 {
        if self.is_guest() { self.position.guest } else { self.position.nested }
    }
}

/// The references of one walk without any cache, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkTrace {
    /// Levels of the guest's table.
    pub guest_levels: u8,
    /// Size of the guest's mapping.
    pub guest_page: PageSize,
    /// Levels of the second stage and size of its mappings; `None` on a native machine.
    pub second: Option<(u8, PageSize)>,
    /// The references.
    pub references: Vec<Reference>,
}

impl Observer for Vec<Reference> {
    fn reference(&mut self, position: WalkPosition, hpa: u64) {
        self.push(Reference { position, hpa: Hpa::new(hpa) });
    }
}

/// Hands out frames upwards.
struct Upwards(u64);

impl<L> FrameSource<L> for Upwards {
    fn table_frame(&mut self) -> Option<Frame<L>> {
        self.0 += 1;
        Some(Frame::new(self.0 - 1))
    }
    fn free_table_frame(&mut self, _: Frame<L>) {}
}

/// Where the walked address, its data and the tables are: apart from each other by more than a
/// 1 GiB page, so that no mapping of the second stage serves two purposes.
const WALKED: u64 = 0x7f12_3456_7000;
const GUEST_DATA: u64 = 8 << 30;
const GUEST_TABLES: u64 = 4 << 30;
const HOST_OFFSET: u64 = 16 << 30;
const HOST_TABLES: u64 = 2 << 30;

/// Walks tables built for the purpose, on a machine without caches: `guest_levels` over
/// `host_levels` levels (4 or 5), with mappings of these sizes.
///
/// # Panics
/// When a number of levels is not 3, 4 or 5.
pub fn walk_diagram(
    guest_levels: u8,
    host_levels: u8,
    guest_page: PageSize,
    host_page: PageSize,
) -> WalkTrace {
    record(guest_levels, guest_page, Some((host_levels, host_page)))
}

/// The same on a native machine.
///
/// # Panics
/// When `levels` is not 3, 4 or 5.
pub fn native_walk_diagram(levels: u8, page: PageSize) -> WalkTrace {
    record(levels, page, None)
}

fn record(guest_levels: u8, guest_page: PageSize, second: Option<(u8, PageSize)>) -> WalkTrace {
    let model = CpuModel::preset(CpuModel::DEFAULT).expect("the default preset is valid");
    let mut machine = Machine::new(&model.without_caches(), Misaligned::Splinter);
    let cpu = machine.add_cpu();
    let mut guest = guest_table(guest_levels, guest_page);
    let mut host = second.map(|(levels, page)| host_table(levels, page));
    let mut tables = Tables { vm: VmTag(0), guest: &mut guest, second: host.as_mut() };
    let references = walked_references(&mut machine, cpu, &mut tables);
    WalkTrace { guest_levels, guest_page, second, references }
}

fn walked_references<U: Space>(
    machine: &mut Machine,
    cpu: CpuId,
    tables: &mut Tables<'_, Ept, U, HostPhysical>,
) -> Vec<Reference> {
    let mut references = Vec::new();
    let request = Request::load(Asid(0), Gva::new(WALKED), 1);
    machine
        .walk_and_fill(cpu, request, tables, &mut references)
        .expect("the tables map the address");
    machine.make_reads(cpu);
    references
}

fn guest_table(levels: u8, size: PageSize) -> Radix<X86, Virtual, GuestPhysical> {
    let mut frames = Upwards(GUEST_TABLES >> PageSize::BASE_SHIFT);
    let root = FrameSource::<GuestPhysical>::table_frame(&mut frames).expect("never full");
    let mut table = Radix::new(levels, root);
    let page = Gva::new(WALKED).floor(size).page();
    let data = Gpa::new(GUEST_DATA).page();
    table.map(page, size, data, Rights::READ_WRITE, &mut frames).expect("never full");
    table
}

fn host_table(levels: u8, size: PageSize) -> Radix<Ept, GuestPhysical, HostPhysical> {
    let mut frames = Upwards(HOST_TABLES >> PageSize::BASE_SHIFT);
    let root = FrameSource::<HostPhysical>::table_frame(&mut frames).expect("never full");
    let mut table = Radix::new(levels, root);
    // At most 5 table pages, and the data wherever in its page the address falls.
    let offset = Gva::new(WALKED).offset(PageSize::Giant);
    let tables = (0..5).map(|page| GUEST_TABLES + page * PageSize::Base.bytes());
    let data = PageSize::ALL.map(|size| GUEST_DATA + (offset & (size.bytes() - 1)));
    let pages: BTreeSet<u64> =
        tables.chain(data).map(|gpa| Gpa::new(gpa).floor(size).get()).collect();
    for gpa in pages {
        let frame = Hpa::new(gpa + HOST_OFFSET).page();
        let page = Gpa::new(gpa).page();
        table.map(page, size, frame, Rights::READ_WRITE, &mut frames).expect("never full");
    }
    table
}

/// The walk as a grid: one row for each entry of the guest's table and for the data, one column
/// for each level of the second stage and for the guest's entry (`G`). Every reference has its
/// number in the order of the walk and its name.
pub fn draw(trace: &WalkTrace) -> String {
    let nested_levels = trace.second.map_or(0, |(levels, _)| levels);
    let mut text = String::from("      ");
    for level in (1..=nested_levels).rev() {
        let _ = write!(text, "{:<10}", format!("nL{level}"));
    }
    text.push_str("G\n");
    for guest in (0..=trace.guest_levels).rev() {
        let name = if guest == 0 { "data".to_owned() } else { format!("gL{guest}") };
        let mut row = format!("{name:<6}");
        for nested in (0..=nested_levels).rev() {
            let position = WalkPosition { guest, nested };
            let at = trace.references.iter().position(|other| other.position == position);
            let cell = match at {
                Some(at) => format!("{:>2} {position}", at + 1),
                None if guest == 0 && nested == 0 => String::new(),
                None => " -".to_owned(),
            };
            let _ = write!(row, "{cell:<10}");
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    let count = trace.references.len();
    match trace.second {
        None => {
            let _ = writeln!(text, "{count} references: one for each level walked");
        }
        Some((levels, page)) => {
            let n = trace.guest_levels + 1 - trace.guest_page.level();
            let m = levels + 1 - page.level();
            let _ = writeln!(
                text,
                "{count} references: {n} guest levels over {m} host levels, \
                 ({n} + 1) x ({m} + 1) - 1"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_takes_as_many_references_as_its_levels_demand() {
        for (guest_levels, host_levels) in [(4, 4), (4, 5), (5, 4), (5, 5)] {
            for guest_page in PageSize::ALL {
                for host_page in PageSize::ALL {
                    let trace = walk_diagram(guest_levels, host_levels, guest_page, host_page);
                    let n = usize::from(guest_levels + 1 - guest_page.level());
                    let m = usize::from(host_levels + 1 - host_page.level());
                    assert_eq!(trace.references.len(), (n + 1) * (m + 1) - 1, "{trace:?}");
                    let distinct: BTreeSet<_> =
                        trace.references.iter().map(|reference| reference.position).collect();
                    assert_eq!(distinct.len(), trace.references.len(), "no place read twice");
                }
            }
        }
        for levels in [4, 5] {
            for page in PageSize::ALL {
                let trace = native_walk_diagram(levels, page);
                assert_eq!(trace.references.len(), usize::from(levels + 1 - page.level()));
            }
        }
    }

    #[test]
    fn the_drawing_shows_what_huge_pages_remove() {
        let trace = walk_diagram(4, 4, PageSize::Huge, PageSize::Base);
        let want = "      \
nL4       nL3       nL2       nL1       G
gL4    1 g4n4    2 g4n3    3 g4n2    4 g4n1    5 g4
gL3    6 g3n4    7 g3n3    8 g3n2    9 g3n1   10 g3
gL2   11 g2n4   12 g2n3   13 g2n2   14 g2n1   15 g2
gL1    -         -         -         -         -
data  16 dn4    17 dn3    18 dn2    19 dn1
19 references: 3 guest levels over 4 host levels, (3 + 1) x (4 + 1) - 1
";
        assert_eq!(draw(&trace), want);
    }
}
