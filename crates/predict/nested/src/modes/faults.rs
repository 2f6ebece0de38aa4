//! What hardware finds at an access, and what hypervisors do about what it does not find.

use super::guest::Guest;
use super::hypervisor::Kept;
use super::machine::{Below, Entry, FAULTS, Fault, Machine, Next};
use super::setup::Level;
use super::shadow::{Shadow, Written};
use super::table::{LEAF_TABLE, LEVELS, region};
use crate::reason::ExitReason;
use crate::script::Work;
use crate::second_stage_writes::SecondStageWrites;
use crate::tower::{Cause, Route};
use crate::vmx::Event;
use crate::vmx::exits::PAGE_FAULT;

/// Bits of a page fault's error code: present, write, reserved bit set (SDM volume 3A, section 4.7).
const PRESENT: u32 = 1;
const WRITE: u32 = 2;
const RESERVED: u32 = 8;

/// Table pages that a walk reads of a kernel's direct map, which consists of huge pages.
const DIRECT_WALK: u64 = 3;

/// References of a walk through a table of `guest` levels whose pages lie behind a second stage of `host`
/// levels.
const fn references(guest: u64, host: u64) -> u64 {
    (guest + 1) * (host + 1) - 1
}

const fn page_fault(work: Work, error_code: u32) -> Cause {
    Cause { reason: ExitReason::PageFault, work, error_code }
}

impl Machine {
    /// Tries an access as hardware does; gives the references of the walk.
    pub(super) fn hardware(&mut self, page: u64, write: bool) -> Result<u64, Fault> {
        match self.setup.levels[..] {
            [] => {
                let (_, depth) = self.guest_walks(page, write)?;
                Ok(depth)
            }
            [Level::Shadow] | [Level::Shadow, _] => {
                let absent = self.absent(page, write);
                let shadow = match &mut self.below {
                    Some(below) => below.shadow.as_mut().expect("L0 shadows L1's table"),
                    None => self.shadow(),
                };
                match shadow.table.get(page) {
                    Some((_, allowed)) if allowed || !write => shadow.used(page),
                    Some(_) => return Err(Fault::Page(page, PRESENT | WRITE)),
                    None => return Err(absent),
                }
                // What hardware used L1's entry was used for, too.
                self.shadow().used(page);
                Ok(LEVELS.into())
            }
            [Level::Nested] => {
                let (frames, depth) = self.guest_walks(page, write)?;
                let table = self.memory.as_ref().expect("there is a hypervisor").table();
                let lacking = frames.into_iter().find(|frame| table.get(*frame).is_none());
                lacking.map_or(Ok(references(depth, LEVELS.into())), |frame| {
                    Err(Fault::Violation(frame))
                })
            }
            [Level::Nested, Level::Shadow] => {
                let absent = self.absent(page, write);
                let shadow = self.shadow();
                let frame = match shadow.table.get(page) {
                    Some((frame, allowed)) if allowed || !write => frame,
                    Some(_) => return Err(Fault::Page(page, PRESENT | WRITE)),
                    None => return Err(absent),
                };
                shadow.used(page);
                let frames: Vec<u64> = shadow.table.walk(page).into_iter().chain([frame]).collect();
                let l1 = self.below.as_ref().expect("L1 is in a VM").l1.table();
                let lacking = frames.into_iter().find(|frame| l1.get(*frame).is_none());
                lacking.map_or(Ok(references(LEVELS.into(), LEVELS.into())), |frame| {
                    Err(Fault::Violation(frame))
                })
            }
            [Level::Nested, _] => {
                let (frames, depth) = self.guest_walks(page, write)?;
                let shadow = self.forwarded();
                if let Some(frame) = frames.iter().find(|frame| shadow.table.get(**frame).is_none())
                {
                    return Err(Fault::Violation(*frame));
                }
                frames.into_iter().for_each(|frame| shadow.used(frame));
                Ok(references(depth, LEVELS.into()))
            }
            [..] => unreachable!("checked"),
        }
    }

    /// A walk of the guest's own table: frames that it reads and the one it ends at, and how many levels.
    fn guest_walks(&self, page: u64, write: bool) -> Result<(Vec<u64>, u64), Fault> {
        let fault = Fault::Page(page, if write { WRITE } else { 0 });
        let (frame, _) = self.guest.get(page).ok_or(fault)?;
        let mut frames = self.guest.walk(page);
        let depth = if frames.is_empty() { DIRECT_WALK } else { frames.len() as u64 };
        frames.push(frame);
        Ok((frames, depth))
    }

    /// The fault at a page that a shadow does not map. With bypass, absent entries are marked by a
    /// reserved bit, so that they count as present, unless every original is known to lack the page.
    fn absent(&self, page: u64, write: bool) -> Fault {
        let code = if write { WRITE } else { 0 };
        let mark = self.setup.switches.bypass && !self.is_known_absent(page);
        Fault::Page(page, code | if mark { PRESENT | RESERVED } else { 0 })
    }

    fn is_known_absent(&self, page: u64) -> bool {
        let Some(memory) = &self.memory else { return true };
        let Kept::Shadow(shadow) = &memory.kept else { return true };
        let by_own =
            self.guest.get(page).is_none() && shadow.knows_absent(page, &self.guest.walk(page));
        let below = self.below.as_ref().and_then(|below| below.shadow.as_ref());
        let by_host = below.is_none_or(|below| {
            shadow.table.get(page).is_none() && below.knows_absent(page, &shadow.table.walk(page))
        });
        by_own && by_host
    }

    /// What follows from a fault of the guest, which stores to an entry of its table maybe.
    pub(super) fn resolve(&mut self, fault: Fault, entry: Option<Entry>) -> Next {
        let Some(tower) = &self.tower else {
            let Fault::Page(page, _) = fault else { unreachable!("there is no second stage") };
            self.fault(page);
            return Next::Retry;
        };
        let event = match fault {
            Fault::Page(_, error_code) => Event::Exception { vector: PAGE_FAULT, error_code },
            Fault::Violation(_) => Event::SecondStageViolation,
        };
        match tower.route(event, |level| level == 0 && self.is_of_host(fault)) {
            Route::NoExit => {
                let Fault::Page(page, _) = fault else { unreachable!("violations exit") };
                self.fault(page);
                Next::Retry
            }
            Route::Handler(0) if self.below.is_some() => {
                self.mend_below(fault);
                Next::Retry
            }
            Route::Handler(handler) => self.handle(handler, fault, entry),
        }
    }

    /// Whether L0 can mend a nested guest's fault without L1: L1's tables are as they should be.
    fn is_of_host(&self, fault: Fault) -> bool {
        let (Some(memory), Some(below)) = (&self.memory, &self.below) else { return false };
        match (fault, &below.shadow) {
            (Fault::Page(..), None) => false,
            (Fault::Violation(_), None) => true,
            (Fault::Page(page, code), Some(_)) => {
                let entry = memory.table().get(page);
                entry.is_some_and(|(_, allowed)| allowed || code & WRITE == 0)
            }
            (Fault::Violation(frame), Some(_)) => memory.table().get(frame).is_some(),
        }
    }

    /// L0 mends a nested guest's fault.
    fn mend_below(&mut self, fault: Fault) {
        match fault {
            Fault::Page(page, code) => {
                self.forward(page);
                self.counts.mended_by_host += 1;
                self.exit(0, page_fault(Work::Shadow, code));
            }
            Fault::Violation(frame) => {
                if self.below.as_ref().is_some_and(|below| below.shadow.is_some()) {
                    self.forward(frame);
                } else {
                    self.give_l1(frame);
                }
                self.exit(0, Cause::of(ExitReason::SecondStageViolation));
            }
        }
    }

    /// The guest's hypervisor handles a fault.
    fn handle(&mut self, handler: usize, fault: Fault, entry: Option<Entry>) -> Next {
        let (page, code) = match fault {
            Fault::Page(page, code) => (page, code),
            Fault::Violation(frame) => {
                let own = self.back(frame);
                self.keep(frame, own, true);
                self.exit(handler, Cause::of(ExitReason::SecondStageViolation));
                return Next::Retry;
            }
        };
        // It looks the page up in the guest's table.
        for frame in self.guest.walk(page) {
            let own = self.back(frame);
            self.l1_reads(own);
        }
        let Some((frame, _)) = self.guest.get(page) else {
            self.counts.injected += 1;
            self.exit(handler, page_fault(Work::Inject, code));
            self.fault(page);
            return Next::Retry;
        };
        *match handler {
            0 => &mut self.counts.mended_by_host,
            _ => &mut self.counts.mended_by_l1,
        } += 1;
        if code & WRITE == 0 || !self.shadow().is_protected(frame) {
            self.fill(page, frame);
            self.exit(handler, page_fault(Work::Shadow, code));
            return Next::Retry;
        }
        let may_unsync = self.may_unsync();
        match self.shadow().write(frame, may_unsync) {
            Written::Unsync => {
                let own = self.back(frame);
                self.keep(page, own, true);
                self.exit(handler, page_fault(Work::Shadow, code));
                return Next::Retry;
            }
            Written::Emulated => {
                if let Some((page, level)) = entry {
                    self.mend(page, level);
                    self.shadow().mended(page);
                }
            }
            Written::Flooded(first, end) => {
                let table = self.memory.as_ref().expect("it shadows").table();
                table.mapped(first, end).into_iter().for_each(|page| self.unkeep(page));
            }
        }
        self.exit(handler, page_fault(Work::Emulate, code));
        Next::Done
    }

    fn may_unsync(&self) -> bool {
        self.setup.switches.writes == SecondStageWrites::Unsync
    }

    /// The shadow that the guest's hypervisor keeps.
    fn shadow(&mut self) -> &mut Shadow {
        match self.memory.as_mut().map(|memory| &mut memory.kept) {
            Some(Kept::Shadow(shadow)) => shadow,
            _ => unreachable!("only page faults of shadow paging come here"),
        }
    }

    /// The frame of the guest's hypervisor that is behind one of the guest's.
    fn back(&mut self, frame: u64) -> u64 {
        self.memory.as_mut().expect("there is a hypervisor").back(frame)
    }

    /// Maps a page in the shadow as the guest's table has it.
    fn fill(&mut self, page: u64, frame: u64) {
        let walk = self.guest.walk(page);
        for table in self.shadow().protect(page, &walk) {
            let direct = Guest::direct(table);
            if let Some((own, true)) = self.shadow().table.get(direct) {
                self.keep(direct, own, false);
            }
        }
        let write = !self.shadow().is_protected(frame);
        let own = self.back(frame);
        self.keep(page, own, write);
    }

    /// The guest wrote an entry of its table: the shadow is to have the same.
    fn mend(&mut self, page: u64, level: u8) {
        if level == 1 {
            match self.guest.get(page) {
                Some((frame, _)) => self.fill(page, frame),
                None => self.unkeep(page),
            }
            return;
        }
        // A table that is no part of the guest's any more.
        if self.guest.walk(page).len() <= usize::from(LEVELS - level) + 1 {
            let (first, end) = region(page, level);
            let table = self.memory.as_ref().expect("it shadows").table();
            table.mapped(first, end).into_iter().for_each(|page| self.unkeep(page));
        }
    }

    /// The guest's hypervisor writes an entry of its table, which in a VM is a store to memory.
    fn keep(&mut self, page: u64, frame: u64, write: bool) {
        let memory = self.memory.as_mut().expect("there is a hypervisor");
        let (table, pool) = match &mut memory.kept {
            Kept::Shadow(shadow) => (&mut shadow.table, &mut memory.pool),
            Kept::Nested(table) => (table, &mut memory.pool),
        };
        let before = table.get(page);
        if before == Some((frame, write)) {
            return;
        }
        self.taken_away |= before.is_some_and(|(old, allowed)| old != frame || allowed);
        for entry in table.set(page, frame, write, pool) {
            if entry.is_new {
                self.l1_zeroes(entry.page);
            }
            self.l1_writes(entry.page, Some((page, entry.level)));
        }
    }

    /// It clears one.
    fn unkeep(&mut self, page: u64) {
        let memory = self.memory.as_mut().expect("there is a hypervisor");
        let (table, pool) = match &mut memory.kept {
            Kept::Shadow(shadow) => (&mut shadow.table, &mut memory.pool),
            Kept::Nested(table) => (table, &mut memory.pool),
        };
        self.taken_away |= table.get(page).is_some();
        for entry in table.clear(page, pool) {
            self.l1_writes(entry.page, Some((page, entry.level)));
        }
    }

    /// The guest loads a page table: leaf tables that went unsync are read anew.
    pub(super) fn resynchronise(&mut self) {
        let Some(Kept::Shadow(shadow)) = self.memory.as_ref().map(|memory| &memory.kept) else {
            return;
        };
        for (frame, first) in shadow.unsync() {
            let table = self.memory.as_ref().expect("it shadows").table();
            for page in table.mapped(first, first + LEAF_TABLE) {
                self.mend(page, 1);
            }
            self.shadow().synchronised(frame);
            let direct = Guest::direct(frame);
            if let Some((own, true)) = self.shadow().table.get(direct) {
                self.keep(direct, own, false);
            }
        }
    }

    /// The guest invalidates a page: its entry is read anew if its leaf table went unsync, and that it stays
    /// (`kvm_mmu_invalidate_addr`).
    pub(super) fn resynchronise_page(&mut self, page: u64) {
        let walk = self.guest.walk(page);
        let shadow = self.shadow();
        let is_unsync = walk.last().is_some_and(|table| shadow.is_unsync(*table));
        if is_unsync && shadow.table.get(page).is_some() {
            self.mend(page, 1);
        }
    }

    // L0, for a nested guest.

    /// L0 gives L1 a frame of its own.
    fn give_l1(&mut self, frame: u64) {
        let Some(below) = &mut self.below else { return };
        let protected = below.shadow.as_ref().is_some_and(|shadow| shadow.is_protected(frame));
        let own = below.l1.back(frame);
        let Kept::Nested(table) = &mut below.l1.kept else { unreachable!("made so") };
        table.set(frame, own, !protected, &mut below.l1.pool);
    }

    /// The cause of an exit that L1 takes where L0 does not map what it touches, or not for writes.
    fn cause_of_l1(&self, is_write_to_table: bool) -> Cause {
        match (self.setup.levels[0], is_write_to_table) {
            (Level::Shadow, false) => page_fault(Work::Shadow, WRITE),
            (Level::Shadow, true) => page_fault(Work::Emulate, PRESENT | WRITE),
            (Level::Nested, false) => Cause::of(ExitReason::SecondStageViolation),
            (Level::Nested, true) => Cause::of(ExitReason::SecondStageWrite),
        }
    }

    /// L1 reads a frame of its memory.
    fn l1_reads(&mut self, frame: u64) {
        let Some(below) = &self.below else { return };
        if below.l1.table().get(frame).is_none() {
            self.own.push(self.cause_of_l1(false));
            self.give_l1(frame);
        }
    }

    /// L1 writes to a frame of its memory: an entry of its table for a nested guest's page, maybe. Gives
    /// whether it could by itself.
    fn l1_writes(&mut self, frame: u64, entry: Option<Entry>) -> bool {
        for _ in 0..FAULTS {
            let may_unsync = self.may_unsync();
            let Some(below) = &mut self.below else { return true };
            match below.l1.table().get(frame) {
                Some((_, true)) => return true,
                None => {
                    self.own.push(self.cause_of_l1(false));
                    self.give_l1(frame);
                    continue;
                }
                Some((_, false)) => {}
            }
            let shadow = below.shadow.as_mut().expect("only its tables are protected");
            if !shadow.is_protected(frame) {
                // Protected once: it is not any more.
                self.own.push(self.cause_of_l1(false));
                self.give_l1(frame);
                continue;
            }
            let written = shadow.write(frame, may_unsync);
            self.own.push(self.cause_of_l1(true));
            match written {
                Written::Unsync => {
                    self.give_l1(frame);
                    continue;
                }
                Written::Emulated => {
                    if let Some((page, level)) = entry {
                        self.mend_forwarded(page, level);
                    }
                }
                Written::Flooded(first, end) => self.drop_forwarded(first, end),
            }
            return false;
        }
        panic!("{:?}: no end of faults of L1 at frame {frame:#x}", self.setup)
    }

    /// L1 fills a frame with zeroes.
    fn l1_zeroes(&mut self, frame: u64) {
        for _ in 0..LEAF_TABLE {
            if self.l1_writes(frame, None) {
                return;
            }
        }
    }

    /// L0's shadow of L1's table gets what that maps a page to.
    fn forward(&mut self, page: u64) {
        let (Some(memory), Some(below)) = (&self.memory, &mut self.below) else { return };
        let Some((frame, write)) = memory.table().get(page) else { return };
        let walk = memory.table().walk(page);
        let own = below.l1.back(frame);
        let shadow = below.shadow.as_mut().expect("L0 shadows L1's table");
        let protected = shadow.protect(page, &walk);
        shadow.table.set(page, own, write, &mut below.l1.pool);
        for frame in protected {
            self.give_l1(frame);
        }
    }

    /// L1 wrote an entry of its table, and L0 did it for L1: its shadow is to have the same.
    fn mend_forwarded(&mut self, page: u64, level: u8) {
        let Some(memory) = &self.memory else { return };
        let walk = memory.table().walk(page).len();
        if level > 1 {
            if walk <= usize::from(LEVELS - level) + 1 {
                let (first, end) = region(page, level);
                self.drop_forwarded(first, end);
            }
        } else {
            self.take_entry_over(page);
        }
        self.forwarded().mended(page);
    }

    /// L0's shadow gets what L1's table maps a page to, or nothing if that does not map it.
    fn take_entry_over(&mut self, page: u64) {
        if self.memory.as_ref().is_some_and(|memory| memory.table().get(page).is_some()) {
            self.forward(page);
        } else {
            self.drop_forwarded(page, page + 1);
        }
    }

    /// Whether L0's shadow has what L1's table maps a page to.
    fn is_forwarded(&self, page: u64) -> bool {
        let (Some(memory), Some(Below { l1, shadow: Some(shadow) })) = (&self.memory, &self.below)
        else {
            return false;
        };
        let own = memory.table().get(page).map(|(frame, write)| (l1.behind(frame), write));
        shadow.table.get(page).map(|(frame, write)| (Some(frame), write)) == own
    }

    fn drop_forwarded(&mut self, first: u64, end: u64) {
        let Some(Below { l1, shadow: Some(shadow) }) = &mut self.below else { return };
        for page in shadow.table.mapped(first, end) {
            shadow.table.clear(page, &mut l1.pool);
        }
    }

    /// L0's shadow of L1's table.
    fn forwarded(&mut self) -> &mut Shadow {
        let shadow = self.below.as_mut().and_then(|below| below.shadow.as_mut());
        shadow.expect("L0 shadows L1's table")
    }

    /// L0 reads leaf tables of L1's that went unsync anew, and protects them again.
    pub(super) fn forward_all(&mut self) {
        for (frame, first) in self.forwarded().unsync() {
            let pages = self.forwarded().table.mapped(first, first + LEAF_TABLE);
            for page in &pages {
                if !self.is_forwarded(*page) {
                    self.take_entry_over(*page);
                }
            }
            // Of a page table the last of them counts as an entry mended after a write, as NestCloud's tables here have
            // it; nothing was written, so that a second stage has it not.
            if let ([.., Level::Shadow], Some(last)) = (&self.setup.levels[..], pages.last()) {
                self.forwarded().mended(*last);
            }
            self.forwarded().synchronised(frame);
            self.give_l1(frame);
        }
    }
}
