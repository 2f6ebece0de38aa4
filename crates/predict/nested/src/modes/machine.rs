//! The machine: whoever touches a page, what faults, and who mends it.

use super::guest::Guest;
use super::hypervisor::Memory;
use super::setup::{Level, Refused, Setup};
use super::shadow::Shadow;
use super::table::{LEAF_TABLE, Table, region};
use super::tower::Tower;
use crate::costs::ExitCosts;
use crate::reason::ExitReason;
use crate::script::Work;
use crate::tower::{Cause, Route};
use crate::vmx::Event;

/// Faults that one access can lead to, all levels together; more are a loop.
pub(super) const FAULTS: usize = 64;

/// Why hardware stops at an access of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A page fault at a page, with its error code.
    Page(u64, u32),
    /// The second stage does not map this frame of what runs above it.
    Violation(u64),
}

/// A store to an entry of the guest's table: of this page, at this level.
pub(super) type Entry = (u64, u8);

/// What an exit came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The guest tries again.
    Retry,
    /// What it tried is done.
    Done,
}

/// What happened besides exits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Page faults that the guest's kernel handled.
    pub guest_faults: u64,
    /// Frames that hypervisors gave to their VMs, L0's first: each a page fault of its kernel.
    pub backed: [u64; 2],
    /// Page faults of the guest that exited and were mended by L0 alone.
    pub mended_by_host: u64,
    /// Those that L1 mended.
    pub mended_by_l1: u64,
    /// Those that its hypervisor gave back to the guest.
    pub injected: u64,
    /// References of hardware's walks to pages that were touched with success.
    pub references: u64,
    /// Such walks.
    pub walks: u64,
}

/// What L0 keeps besides for a nested VM.
pub(super) struct Below {
    /// L1's own memory.
    pub(super) l1: Memory,
    /// The shadow of the table that L1 keeps for L2.
    pub(super) shadow: Option<Shadow>,
}

/// A guest, and hypervisors below it.
pub struct Machine {
    pub(super) setup: Setup,
    pub(super) guest: Guest,
    /// The memory that the guest's hypervisor has for it: L0's in a VM, L1's in a nested VM.
    pub(super) memory: Option<Memory>,
    pub(super) below: Option<Below>,
    pub(super) tower: Option<Tower>,
    pub(super) counts: Counts,
    /// What L1 has to take itself while it handles the present exit.
    pub(super) own: Vec<Cause>,
    /// Whether it took something out of its table meanwhile.
    pub(super) taken_away: bool,
}

impl Machine {
    /// A machine on which nothing was touched.
    ///
    /// # Errors
    /// When there can be no such machine.
    pub fn new(setup: Setup) -> Result<Self, Refused> {
        setup.check()?;
        let of = |level: &Level| match level {
            Level::Shadow => Memory::shadow(),
            Level::Nested => Memory::nested(),
        };
        let below = (setup.levels.len() == 2).then(|| {
            let mut l1 = Memory::nested();
            // L0 forwards L1's table where hardware cannot walk both it and its own.
            let table = match setup.levels[..] {
                [Level::Nested, Level::Shadow] => None,
                [.., Level::Shadow] => Some(Table::of_pages(&mut l1.pool)),
                _ => Some(Table::second_stage(&mut l1.pool)),
            };
            Below { l1, shadow: table.map(Shadow::new) }
        });
        let tower = (!setup.levels.is_empty()).then(|| Tower::new(&setup));
        Ok(Self {
            guest: Guest::new(),
            memory: setup.levels.last().map(of),
            below,
            tower,
            counts: Counts::default(),
            own: Vec::new(),
            taken_away: false,
            setup,
        })
    }

    /// What happened besides exits since counting began.
    pub fn counts(&self) -> Counts {
        let l0 = self.below.as_ref().map(|below| below.l1.backed);
        let top = self.memory.as_ref().map_or(0, |memory| memory.backed);
        let backed = l0.map_or([top, 0], |l0| [l0, top]);
        Counts { backed, ..self.counts }
    }

    /// Exits of a VM, 1 for L1.
    pub fn exits(&self, vm: usize, reason: ExitReason) -> u64 {
        let tower = self.tower.as_ref().filter(|_| vm <= self.setup.levels.len());
        tower.map_or(0, |tower| tower.exits(vm, reason))
    }

    /// Fields that were copied between VMCSs in shared memory and the copies of them.
    pub fn copied_fields(&self) -> u64 {
        self.tower.as_ref().map_or(0, Tower::copied_fields)
    }

    /// Cycles of exits and of what hypervisors do for them.
    pub fn exit_cycles(&self, costs: &ExitCosts) -> u64 {
        self.tower.as_ref().map_or(0, |tower| tower.cycles(costs))
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.counts = Counts::default();
        self.memory.iter_mut().for_each(|memory| memory.backed = 0);
        self.below.iter_mut().for_each(|below| below.l1.backed = 0);
        self.tower.iter_mut().for_each(Tower::reset);
    }

    /// The guest's program touches a page; its kernel gives it one if there is none.
    pub fn touch(&mut self, page: u64, write: bool) {
        let done = self.attempt(page, write, None);
        debug_assert_eq!(done, Next::Retry, "nobody emulates what a program does");
    }

    /// The guest's program gives pages back, from a first one on, as munmap does: entries are cleared,
    /// translations flushed, few of them one by one, and tables that are empty freed.
    pub fn unmap(&mut self, first: u64, pages: u64) {
        let mut freed = Vec::new();
        // What is to be flushed, as Linux has it (`struct mmu_gather`): all from the first page to the last, a table
        // that is freed from its own first page on.
        let (mut start, mut end) = (u64::MAX, 0);
        for page in first..first + pages {
            let Some((frame, _)) = self.guest.table.get(page) else { continue };
            for entry in self.guest.table.clear(page, &mut self.guest.pool) {
                self.store(entry.page, Some((page, entry.level)));
                start = start.min(region(page, entry.level).0);
            }
            end = page + 1;
            freed.push(frame);
        }
        if freed.is_empty() {
            return;
        }
        if end - start > self.setup.hypervisor.flushed_one_by_one() {
            self.flush();
        } else {
            (start..end).for_each(|page| self.invalidate(page));
        }
        // As page allocators do: what was freed last is given first.
        freed.into_iter().rev().for_each(|frame| self.guest.pool.give(frame));
    }

    /// The guest loads a page table, its own or another's.
    pub fn flush(&mut self) {
        let Some(tower) = &self.tower else { return };
        let root = self.guest.table.walk(0)[0];
        if let Route::Handler(handler) = tower.route(Event::WriteCr3(root << 12), |_| false) {
            self.resynchronise();
            self.exit(handler, Cause::of(ExitReason::ControlRegister));
        }
    }

    /// The guest invalidates what is cached of a page (INVLPG).
    pub fn invalidate(&mut self, page: u64) {
        let Some(tower) = &self.tower else { return };
        if let Route::Handler(handler) = tower.route(Event::Invlpg, |_| false) {
            self.resynchronise_page(page);
            let reason = ExitReason::Invalidation;
            self.exit(handler, Cause { reason, work: Work::Forget, error_code: 0 });
        }
    }

    /// Something happens that is no memory's; gives whether it exited. A hypervisor in a VM that handles it
    /// takes exits of its own for these reasons meanwhile: for the timer it sets in turn, or the device.
    /// Events are named as VMX has them, whatever the CPU.
    ///
    /// # Panics
    /// On SVM, for what there is on VMX only: accesses to fields, windows, the preemption timer.
    pub fn happens(&mut self, event: Event, reason: ExitReason, own: &[ExitReason]) -> bool {
        let direct = self.setup.switches.direct_timers
            && matches!(reason, ExitReason::Apic | ExitReason::ExternalInterrupt);
        let Some(tower) = &self.tower else { return false };
        match tower.route(event, |level| level == 0 && direct) {
            Route::NoExit => false,
            Route::Handler(handler) => {
                if handler > 0 {
                    self.own.extend(own.iter().copied().map(Cause::of));
                }
                self.exit(handler, Cause::of(reason));
                true
            }
        }
    }

    /// An interrupt arrives that is L0's own affair.
    pub fn interrupt_of_host(&mut self) {
        if self.tower.is_some() {
            self.exit(0, Cause::of(ExitReason::ExternalInterrupt));
        }
    }

    pub(super) fn exit(&mut self, handler: usize, cause: Cause) {
        let mut own = std::mem::take(&mut self.own);
        let taken_away = std::mem::take(&mut self.taken_away);
        let invalidates = handler > 0 && taken_away && self.setup.invalidates_by_vpid();
        // For a page that the guest invalidates L1 does so anyway.
        if invalidates && cause.work != Work::Forget {
            own.push(Cause::of(ExitReason::Invalidation));
        }
        let tower = self.tower.as_mut().expect("only VMs exit");
        tower.guest_exits_for(handler, cause, own);
        let shadows_twice = self.setup.levels == [Level::Shadow, Level::Shadow];
        if handler > 0 && (self.setup.is_synchronised_at_entry() || invalidates && shadows_twice) {
            self.forward_all();
        }
    }

    /// The guest accesses a page until it can, or somebody does it for the guest.
    fn attempt(&mut self, page: u64, write: bool, entry: Option<Entry>) -> Next {
        for _ in 0..FAULTS {
            match self.hardware(page, write) {
                Ok(references) => {
                    self.counts.references += references;
                    self.counts.walks += 1;
                    return Next::Retry;
                }
                Err(fault) => {
                    if self.resolve(fault, entry) == Next::Done {
                        return Next::Done;
                    }
                }
            }
        }
        let last = self.hardware(page, write);
        panic!("{:?}: no end of faults at page {page:#x}: {last:?}", self.setup)
    }

    /// The guest's kernel writes to a frame of its own.
    fn store(&mut self, frame: u64, entry: Option<Entry>) -> Next {
        self.attempt(Guest::direct(frame), true, entry)
    }

    /// The guest's kernel fills a frame with zeroes: as soon as a word of it may be written, the others may.
    fn zero(&mut self, frame: u64) {
        for _ in 0..LEAF_TABLE {
            if self.store(frame, None) == Next::Retry {
                return;
            }
        }
    }

    /// The guest's kernel handles a page fault.
    pub(super) fn fault(&mut self, page: u64) {
        self.counts.guest_faults += 1;
        let frame = self.guest.pool.take();
        self.zero(frame);
        let Guest { table, pool } = &mut self.guest;
        let entries = table.set(page, frame, true, pool);
        // Tables are made and zeroed from above; the leaf is written last.
        for entry in entries {
            if entry.is_new {
                self.zero(entry.page);
            }
            self.store(entry.page, Some((page, entry.level)));
        }
    }
}

/// What tests ask.
impl Machine {
    /// The frame of L0 that hardware gets to at a page, with what it walks at the moment.
    pub fn translation(&self, page: u64) -> Option<u64> {
        let top = self.memory.as_ref().map(Memory::table);
        let of = |table: &Table, page| table.get(page).map(|(frame, _)| frame);
        let guest = || self.guest.get(page).map(|(frame, _)| frame);
        let shadow = self.below.as_ref().and_then(|below| below.shadow.as_ref());
        match (&self.setup.levels[..], top, &self.below, shadow) {
            ([], ..) => guest(),
            ([Level::Shadow], Some(top), ..) => of(top, page),
            ([Level::Nested], Some(top), ..) => of(top, guest()?),
            ([Level::Shadow, ..], .., Some(shadow)) => of(&shadow.table, page),
            ([_, Level::Nested], .., Some(shadow)) => of(&shadow.table, guest()?),
            (_, Some(top), Some(below), None) => of(below.l1.table(), of(top, page)?),
            _ => unreachable!("a hypervisor has memory for its VM"),
        }
    }

    /// The frame of L0 that it should get to: what each kernel gave to the one above, one after the other.
    pub fn composition(&self, page: u64) -> Option<u64> {
        let (frame, _) = self.guest.get(page)?;
        let frame = self.memory.as_ref().map_or(Some(frame), |memory| memory.behind(frame))?;
        self.below.as_ref().map_or(Some(frame), |below| below.l1.behind(frame))
    }
}
