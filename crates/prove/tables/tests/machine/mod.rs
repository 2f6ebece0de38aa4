//! Machines of one to three layers, made of tables that the paging crate builds, in an image of
//! RAM that holds nothing else.

use proptest::prelude::*;
use std::collections::BTreeMap;
use strata_addr::space::{GuestHypervisorPhysical, GuestPhysical, HostPhysical, Space, Virtual};
use strata_addr::{Frame, PageSize, Vpn};
use strata_paging::{Entry, Ept, Format, FrameSource, Radix, Rights, X86};
use strata_tables::Entries;
use strata_tables::ram::{Image, Page};
use strata_tables::vmcb::Vmcb;
use strata_tables::vmcs::{Vmcs, VmcsLayout};

/// A machine that stands still.
#[derive(Debug)]
pub struct Machine {
    pub ram: Image,
    pub layers: u8,
    /// Pages of the program and the frames they are in; one for each huge page.
    pub program: BTreeMap<Vpn, Frame<HostPhysical>>,
    huge: Vec<Vpn>,
    second: Option<Radix<X86, GuestPhysical, HostPhysical>>,
    /// The processor's second stages.
    pub entries: Entries,
    controls: Vec<Control>,
}

/// A control block: where, whose layout it has on an Intel machine, and what is in it.
#[derive(Debug)]
struct Control {
    frame: Frame<HostPhysical>,
    layout: VmcsLayout,
    second: u64,
    guest: Frame<GuestPhysical>,
}

impl Control {
    fn write(&self, entries: Entries, guest: Frame<GuestPhysical>, ram: &mut Image) {
        let page = ram.page_mut(self.frame);
        let guest_root = guest.cross();
        match entries {
            Entries::X86 => {
                let nested_root = Some(Frame::new(self.second));
                Vmcb { frame: self.frame, asid: 1, nested_root, guest_root }.write(page);
            }
            Entries::Ept => {
                let ept_root = Frame::new(self.second);
                Vmcs { layout: self.layout, ept_root, guest_root }.write(page);
            }
        }
    }
}

/// A page of a second stage as the processor has it.
fn second_stage(entries: Entries, page: &Page, level: u8) -> Page {
    match entries {
        Entries::X86 => *page,
        Entries::Ept => page.map(|bits| match X86::decode(bits, level) {
            Entry::Absent => 0,
            Entry::Table(frame) => Ept::table(frame),
            // Write-back.
            Entry::Leaf(leaf) => Ept::leaf(leaf.frame, leaf.size, leaf.rights) | 6 << 3,
        }),
    }
}

/// Frames of one memory, given out in a scattered order.
struct Frames {
    next: u64,
    step: u64,
}

impl<L> FrameSource<L> for Frames {
    fn table_frame(&mut self) -> Option<Frame<L>> {
        self.next += self.step;
        Some(Frame::new(self.next))
    }
    fn free_table_frame(&mut self, _: Frame<L>) {}
}

impl Frames {
    fn page<L>(&mut self, size: PageSize) -> Frame<L> {
        let first = (self.next + self.step).next_multiple_of(size.base_pages());
        self.next = first + size.base_pages();
        Frame::new(first)
    }
}

/// Maps pages of `upper` in a new table, each to fresh frames.
fn map_all<U: Space, L: Space>(
    pages: &[(Frame<U>, PageSize)],
    frames: &mut Frames,
) -> Radix<X86, U, L> {
    let root = FrameSource::<L>::table_frame(frames).unwrap();
    let mut table = Radix::new(4, root);
    for (page, size) in pages {
        let frame = frames.page(*size);
        table.map(*page, *size, frame, Rights::ALL, frames).unwrap();
    }
    table
}

/// The first page of every block that a table and its leaves use in its lower space, and how many there are.
fn used<U: Space, L: Space>(table: &Radix<X86, U, L>) -> Vec<(Frame<L>, u64)> {
    let mut all = Vec::new();
    table.for_each_table(|_, frame, _| all.push((frame, 1)));
    let mapped = table.mapped(table.everything());
    all.extend(mapped.map(|(_, mapping)| (mapping.frame, mapping.size.base_pages())));
    all
}

/// Pages of a layer's memory in a size that the layer below chooses, huge now and then.
fn backing<L: Space>(used: Vec<(Frame<L>, u64)>, choose: &mut u64) -> Vec<(Frame<L>, PageSize)> {
    let mut regions: BTreeMap<Frame<L>, Vec<Frame<L>>> = BTreeMap::new();
    for (first, count) in used {
        for page in (0..count).map(|page| first + page) {
            regions.entry(page.floor(PageSize::Huge)).or_default().push(page);
        }
    }
    let mut pages = Vec::new();
    for (region, used) in regions {
        *choose = choose.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        if *choose >> 63 == 0 {
            pages.push((region, PageSize::Huge));
        } else {
            pages.extend(used.into_iter().map(|page| (page, PageSize::Base)));
        }
    }
    pages
}

fn write<U: Space, L: Space>(
    ram: &mut Image,
    table: &Radix<X86, U, L>,
    entries: Entries,
    place: impl Fn(Frame<L>) -> Frame<HostPhysical>,
) {
    table.for_each_table(|level, frame, page| {
        *ram.page_mut(place(frame)) = second_stage(entries, page, level);
    });
}

fn find<U: Space, L: Space>(table: &Radix<X86, U, L>, page: Frame<U>) -> Frame<L> {
    table.translate(page.addr()).expect("mapped").page()
}

impl Machine {
    /// A machine whose innermost layer maps these pages; `seed` chooses what the layers below do.
    pub fn new(layers: u8, entries: Entries, pages: &[(Vpn, PageSize)], seed: u64) -> Self {
        let mut choose = seed;
        let mut frames = [3, 5, 7].map(|step| Frames { next: 0x100 * step, step });
        let guest: Radix<X86, Virtual, GuestPhysical> = map_all(pages, &mut frames[0]);
        let root = guest.root_frame();
        let mut ram = Image::default();
        let mut controls = Vec::new();
        let mut control = |frame, layout, second, guest| {
            controls.push(Control { frame, layout, second, guest });
        };
        let mut second = None;
        match layers {
            1 => write(&mut ram, &guest, Entries::X86, Frame::cross),
            2 => {
                let nested: Radix<X86, GuestPhysical, HostPhysical> =
                    map_all(&backing(used(&guest), &mut choose), &mut frames[1]);
                write(&mut ram, &nested, entries, |frame| frame);
                write(&mut ram, &guest, Entries::X86, |frame| find(&nested, frame));
                let at = frames[1].page(PageSize::Base);
                control(at, VmcsLayout::Bochs, nested.root_frame().get(), root);
                second = Some(nested);
            }
            _ => {
                let l1: Radix<X86, GuestPhysical, GuestHypervisorPhysical> =
                    map_all(&backing(used(&guest), &mut choose), &mut frames[1]);
                let l1_control = frames[1].page(PageSize::Base);
                let mut of_l1 = used(&l1);
                of_l1.push((l1_control, 1));
                let l0: Radix<X86, GuestHypervisorPhysical, HostPhysical> =
                    map_all(&backing(of_l1, &mut choose), &mut frames[2]);
                let shadow = compose(&l1, &l0, &mut frames[2]);
                write(&mut ram, &l0, entries, |frame| frame);
                write(&mut ram, &shadow, entries, |frame| frame);
                write(&mut ram, &l1, entries, |frame| find(&l0, frame));
                write(&mut ram, &guest, Entries::X86, |frame| find(&shadow, frame));
                control(find(&l0, l1_control), VmcsLayout::Kvm, l1.root_frame().get(), root);
                let own = [(); 2].map(|()| frames[2].page(PageSize::Base));
                control(own[0], VmcsLayout::Bochs, l0.root_frame().get(), Frame::new(0x77));
                control(own[1], VmcsLayout::Bochs, shadow.root_frame().get(), root);
                second = Some(shadow);
            }
        }
        for control in &controls {
            control.write(entries, control.guest, &mut ram);
        }
        let frame = |page: Vpn| {
            let gpa = find(&guest, page);
            second.as_ref().map_or(gpa.cross(), |second| find(second, gpa))
        };
        let program = pages.iter().map(|(page, _)| (*page, frame(*page))).collect();
        let mut huge: Vec<Vpn> =
            pages.iter().filter(|(_, size)| *size == PageSize::Huge).map(|(p, _)| *p).collect();
        huge.sort_unstable();
        Self { ram, layers, program, huge, second, entries, controls }
    }

    /// The program's huge pages, in order.
    pub fn huge_pages(&self) -> Vec<Vpn> {
        self.huge.clone()
    }

    /// Size of the hardware's mapping of a page of the guest.
    pub fn second_size(&self, page: Frame<GuestPhysical>) -> Option<PageSize> {
        Some(self.second.as_ref()?.mapping(page.addr())?.size)
    }

    /// Another process ran when the guest last exited.
    pub fn forget_guest_root(&mut self) {
        for control in &self.controls {
            control.write(self.entries, Frame::new(0x66), &mut self.ram);
        }
    }
}

/// What L0 makes of L1's table and its own: huge where both are.
fn compose(
    l1: &Radix<X86, GuestPhysical, GuestHypervisorPhysical>,
    l0: &Radix<X86, GuestHypervisorPhysical, HostPhysical>,
    frames: &mut Frames,
) -> Radix<X86, GuestPhysical, HostPhysical> {
    let root = FrameSource::<HostPhysical>::table_frame(frames).unwrap();
    let mut shadow = Radix::new(4, root);
    for (page, mapping) in l1.mapped(l1.everything()) {
        let below = l0.mapping(mapping.frame.addr()).expect("all of L1 is backed");
        let size = mapping.size.min(below.size);
        for piece in (0..mapping.size.base_pages()).step_by(size.base_pages() as usize) {
            let frame = l0.translate((mapping.frame + piece).addr());
            if let Some(frame) = frame.map(|hpa| hpa.page()) {
                let page = page + piece;
                shadow.map(page, size, frame, Rights::ALL, frames).unwrap();
            }
        }
    }
    shadow
}

/// Machines whose programs map a few base and huge pages.
pub fn any() -> impl Strategy<Value = Machine> {
    let pages = prop::collection::btree_map(0u64..40, prop::bool::ANY, 1..12);
    let entries = prop::sample::select(Entries::ALL.to_vec());
    (1u8..=3, entries, pages, any_seed()).prop_map(|(layers, entries, regions, seed)| {
        let mut pages = Vec::new();
        for (region, huge) in regions {
            let start = Vpn::new(0x6_0000_0000 + region * 512);
            if huge {
                pages.push((start, PageSize::Huge));
            } else {
                pages.extend((0..3).map(|n| (start + 11 * n, PageSize::Base)));
            }
        }
        Machine::new(layers, entries, &pages, seed)
    })
}

fn any_seed() -> impl Strategy<Value = u64> {
    proptest::num::u64::ANY
}
