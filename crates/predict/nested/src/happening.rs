//! Exits that are no memory's: what a guest's timers, devices and waiting lead to, level by level.
//!
//! ```text
//! L2 sets its timer:  L2 exits for its interrupt controller, L1 handles it
//!                     L1 sets a timer of its own for L2's: L1 exits, L0 handles it
//! ```
//!
//! A hypervisor plays devices and timers of its VM with its own: whatever a guest asks of a device is asked
//! again at each level below, down to L0, which has the real ones. The order and number of exits are those of
//! the sequences that NestCloud's figures are compared with (`strata paper nestcloud`), at any depth.

use crate::reason::ExitReason;
use ExitReason::{Apic, ExternalInterrupt, Halt, Io};

/// Something that happens to a guest, or that it does, besides using memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Happening {
    /// The timer of every kernel ticks once: the host's, those of hypervisors in VMs, the guest's.
    Tick = 0,
    /// A request to a device that software plays, of the kind of virtio: the device is told, works, and
    /// interrupts what the CPU does by then when it has done.
    Request = 1,
    /// The same, and the CPU has nothing else to do meanwhile.
    AwaitedRequest = 2,
    /// A CPU has nothing to do until an interrupt wakes it that nobody asked a device for.
    Halt = 3,
    /// A CPU interrupts another, which has nothing to do.
    Ipi = 4,
}

impl Happening {
    /// Every one, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Tick, Self::Request, Self::AwaitedRequest, Self::Halt, Self::Ipi];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tick => "ticks",
            Self::Request => "device_requests",
            Self::AwaitedRequest => "awaited_device_requests",
            Self::Halt => "halts",
            Self::Ipi => "ipis",
        }
    }

    /// The exits that it comes to for a guest `vm` levels above the host (1 for a VM of the host's). What
    /// each of them leads to in turn is for [`crate::Nesting`] to say.
    ///
    /// `accesses` is how often a device is told of one request: once for virtio's, more where registers are
    /// many, as those of an IDE disk. With `direct_timers` the timers of guests and of hypervisors in VMs are
    /// L0's affair, whoever is below them (DVH, ASPLOS'20, section 3).
    pub fn exits(self, vm: u8, accesses: u64, direct_timers: bool) -> Vec<Exit> {
        let mut exits = Exits::default();
        match self {
            Self::Tick => exits.tick(vm, direct_timers),
            Self::Request => {
                exits.ask(vm, accesses);
                exits.interrupt(vm);
            }
            Self::AwaitedRequest => {
                exits.ask(vm, accesses);
                exits.halt(vm);
            }
            Self::Halt => exits.halt(vm),
            Self::Ipi => exits.send(vm),
        }
        exits.0
    }
}

/// An exit, alike in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Level of the VM that exits, from 1.
    pub vm: u8,
    /// Level of the hypervisor that handles it, from 0.
    pub handler: u8,
    /// Why.
    pub reason: ExitReason,
    /// How often.
    pub times: u64,
}

/// Exits, as they come.
#[derive(Default)]
struct Exits(Vec<Exit>);

impl Exits {
    fn add(&mut self, vm: u8, handler: u8, reason: ExitReason, times: u64) {
        self.0.push(Exit { vm, handler, reason, times });
    }

    /// A VM ends an interrupt.
    fn end_interrupt(&mut self, vm: u8) {
        self.add(vm, vm - 1, Apic, 1);
    }

    /// A VM has its interrupt controller do something that each hypervisor below has to have its own do.
    fn send(&mut self, vm: u8) {
        (1..=vm).rev().for_each(|vm| self.add(vm, vm - 1, Apic, 1));
    }

    /// While the guest runs, an interrupt arrives that is for it: hypervisors below have one for it first.
    fn interrupt(&mut self, guest: u8) {
        self.add(guest, guest - 1, ExternalInterrupt, 1);
        (1..=guest).for_each(|vm| self.end_interrupt(vm));
    }

    /// The timer of each kernel: it interrupts the guest, is ended, and set anew.
    fn tick(&mut self, guest: u8, direct: bool) {
        self.add(guest, 0, ExternalInterrupt, 1);
        for vm in 1..guest {
            self.add(guest, vm, ExternalInterrupt, 1);
            if direct {
                self.add(vm, 0, Apic, 2);
            } else {
                (1..=vm).rev().for_each(|below| self.end_interrupt(below));
                self.send(vm);
            }
        }
        if direct {
            self.add(guest, 0, ExternalInterrupt, 1);
            self.add(guest, 0, Apic, 2);
        } else {
            self.interrupt(guest);
            self.send(guest);
        }
    }

    /// A device is told what to do, and with the last access does it, by a request of its hypervisor's own.
    fn ask(&mut self, guest: u8, accesses: u64) {
        (1..=guest).rev().for_each(|vm| self.add(vm, vm - 1, Io, accesses));
    }

    fn halt(&mut self, guest: u8) {
        // Its hypervisors have nothing to do either, and the interrupt that wakes them all has to be ended.
        for vm in (1..=guest).rev() {
            self.add(vm, vm - 1, Halt, 1);
        }
        (1..=guest).for_each(|vm| self.end_interrupt(vm));
    }
}
