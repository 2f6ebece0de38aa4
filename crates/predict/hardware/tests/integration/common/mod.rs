//! A guest and a second stage to walk.

use strata_addr::space::{GuestPhysical, HostPhysical, Virtual};
use strata_addr::{Frame, Gva, Hpa, PageSize, Vpn};
use strata_hardware::{
    Asid, ByLevel, CpuId, CpuModel, Fault, Machine, Misaligned, Request, Tables, VmTag,
};
use strata_paging::{Ept, FrameSource, Radix, Rights, X86};

pub type Guest = Radix<X86, Virtual, GuestPhysical>;
pub type Second = Radix<Ept, GuestPhysical, HostPhysical>;

pub const ASID: Asid = Asid(1);

/// Guest frames of page tables start here, in base frames.
pub const GUEST_TABLES: u64 = 1 << 20;
/// Host frames of page tables start here.
pub const HOST_TABLES: u64 = 1 << 24;
/// The second stage maps the guest's table frames to the same number plus this.
pub const OFFSET: u64 = 1 << 22;

/// Hands out frames upwards and takes them back for use again.
pub struct Frames {
    next: u64,
    free: Vec<u64>,
}

impl Frames {
    pub fn from(first: u64) -> Self {
        Self { next: first, free: Vec::new() }
    }
}

impl<L> FrameSource<L> for Frames {
    fn table_frame(&mut self) -> Option<Frame<L>> {
        let number = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        Some(Frame::new(number))
    }
    fn free_table_frame(&mut self, frame: Frame<L>) {
        self.free.push(frame.get());
    }
}

pub struct World {
    /// Whose second stage the tables are taken for.
    pub vm: VmTag,
    pub machine: Machine,
    pub cpu: CpuId,
    pub guest: Guest,
    pub guest_frames: Frames,
    pub second: Option<Second>,
    pub host_frames: Frames,
}

impl World {
    pub fn new(model: &CpuModel, misaligned: Misaligned, nested: bool) -> Self {
        Self::with_levels(model, misaligned, 4, nested.then_some(4))
    }

    pub fn with_levels(
        model: &CpuModel,
        misaligned: Misaligned,
        guest_levels: u8,
        host_levels: Option<u8>,
    ) -> Self {
        let mut machine = Machine::new(model, misaligned);
        let cpu = machine.add_cpu();
        let mut guest_frames = Frames::from(GUEST_TABLES);
        let mut host_frames = Frames::from(HOST_TABLES);
        let guest = Guest::new(guest_levels, guest_frames.table_frame().unwrap());
        let second = host_levels.map(|levels| {
            let mut second = Second::new(levels, host_frames.table_frame().unwrap());
            // Room for 64 table pages of the guest.
            for page in GUEST_TABLES..GUEST_TABLES + 64 {
                let frame = Frame::new(page + OFFSET);
                let (page, rights) = (Frame::new(page), Rights::READ_WRITE);
                second.map(page, PageSize::Base, frame, rights, &mut host_frames).unwrap();
            }
            second
        });
        Self { vm: VmTag(0), machine, cpu, guest, guest_frames, second, host_frames }
    }

    pub fn map_guest(&mut self, vpn: u64, size: PageSize, gfn: u64, rights: Rights) {
        let frames = &mut self.guest_frames;
        self.guest.map(Vpn::new(vpn), size, Frame::new(gfn), rights, frames).unwrap();
    }

    pub fn map_second(&mut self, gfn: u64, size: PageSize, hfn: u64, rights: Rights) {
        let second = self.second.as_mut().unwrap();
        second.map(Frame::new(gfn), size, Frame::new(hfn), rights, &mut self.host_frames).unwrap();
    }

    pub fn access(&mut self, gva: u64, bytes: u32, store: bool) -> Result<Hpa, Fault> {
        self.access_on(self.cpu, ASID, gva, bytes, store)
    }

    pub fn access_on(
        &mut self,
        cpu: CpuId,
        asid: Asid,
        gva: u64,
        bytes: u32,
        store: bool,
    ) -> Result<Hpa, Fault> {
        let mut tables =
            Tables { vm: self.vm, guest: &mut self.guest, second: self.second.as_mut() };
        let request = Request { asid, gva: Gva::new(gva), bytes, store };
        self.machine.access_to(cpu, request, &mut tables)
    }

    /// What the tables say now.
    pub fn expected(&self, gva: u64) -> Option<Hpa> {
        let gpa = self.guest.translate(Gva::new(gva))?;
        match &self.second {
            None => Some(gpa.cross()),
            Some(second) => second.translate(gpa),
        }
    }
}

/// Models that differ in every habit the walker has.
pub fn models() -> Vec<CpuModel> {
    let mut models: Vec<_> =
        CpuModel::presets().iter().map(|preset| CpuModel::preset(preset.name).unwrap()).collect();
    models.push(models[0].without_caches());
    models
}

/// What must hold between the counters of a machine, whatever it did.
pub fn check_sums(machine: &Machine) {
    let sums = machine.totals();
    assert_eq!(sums.accesses, sums.loads + sums.stores);
    assert_eq!(sums.l1_misses, sums.l2_hits + sums.l2_misses);
    assert_eq!(sums.walks, sums.l2_misses + sums.dirty_walks);
    assert_eq!(sums.walks, sums.fills.iter().sum::<u64>() + sums.unfilled_walks + sums.dirty_walks);
    let references = sums.walk_refs + sums.faulted_walk_refs;
    assert_eq!(references, sums.walk_positions.iter().map(ByLevel::total).sum::<u64>());
    let loads = sums.page_walker_loads_dtlb.total() + sums.page_walker_loads_ept_dtlb.total();
    assert_eq!(references, loads);
    let cycles = sums.dtlb_load_misses_walk_duration + sums.dtlb_store_misses_walk_duration;
    assert_eq!(sums.walk_cycles + sums.faulted_walk_cycles, cycles);
    assert!(sums.ept_walk_cycles <= cycles);
    assert_eq!(sums.pwc.hits + sums.pwc.misses, sums.walks + sums.faulted_walks);
    assert_eq!(sums.npwc.hits + sums.npwc.misses, sums.ntlb.misses);
}
