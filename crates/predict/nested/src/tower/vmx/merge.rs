//! A hypervisor's VMCS and the copies of it that the level below has.

use super::Tower;
use super::level::{current, leave};
use super::request::Request;
use super::vmcs::{COPY, MERGED, OWN, SHADOW};
use crate::access::Access;
use crate::script::shadowed;
use crate::vmx::field::Area;
use crate::vmx::region::Region;
use crate::vmx::{Field, control, exits};

/// Fields that say which exceptions exit.
const EXCEPTIONS: [Field; 3] =
    [Field::EXCEPTION_BITMAP, Field::PAGE_FAULT_MASK, Field::PAGE_FAULT_MATCH];

impl Tower {
    /// What hardware would have written to the VMCS of the hypervisor in the VM.
    pub(super) fn take_over(&mut self, level: usize, request: Request) {
        let [below, above] = &mut self.levels[level..level + 2] else {
            unreachable!("there is a hypervisor in the VM")
        };
        leave(above, request);
        let taker = current(above);
        for field in crate::script::HAND_ON_READ {
            let value = Region(MERGED).get(&below.memory, field);
            taker.set(&mut above.memory, field, value);
        }
        self.synchronise(level, Field::all().count());
    }

    /// The copy of the VMCS of the hypervisor in the VM becomes what that has.
    pub(super) fn synchronise(&mut self, level: usize, fields: usize) {
        let [below, above] = &mut self.levels[level..level + 2] else {
            unreachable!("there is a hypervisor in the VM")
        };
        for field in Field::all() {
            let value = current(above).get(&above.memory, field);
            Region(COPY).set(&mut below.memory, field, value);
        }
        self.account.copied_fields += match self.access {
            Access::Instructions => 0,
            Access::Paravirtual => fields as u64,
            Access::Enlightened => fields.min(below.changed.len().max(1)) as u64,
        };
    }
    /// The hypervisor in the VM goes to another VMCS: the present one takes what was written to its
    /// shadow. (KVM uses instructions for that; they are not counted.)
    pub(super) fn leave_shadow(&mut self, level: usize) {
        let [below, above] = &mut self.levels[level..level + 2] else {
            unreachable!("there is a hypervisor in the VM")
        };
        if !self.cpu.vmcs_shadowing || above.processor.current().is_none() {
            return;
        }
        for (field, _) in shadowed().filter(|(_, writable)| *writable) {
            let value = Region(SHADOW).get(&below.memory, field);
            current(above).set(&mut above.memory, field, value);
        }
    }

    /// Its shadow has what the VMCS has to which the hypervisor in the VM went.
    pub(super) fn fill_shadow(&mut self, level: usize) {
        let [below, above] = &mut self.levels[level..level + 2] else {
            unreachable!("there is a hypervisor in the VM")
        };
        for (field, _) in shadowed() {
            let value = current(above).get(&above.memory, field);
            Region(SHADOW).set(&mut below.memory, field, value);
        }
    }

    /// Makes the VMCS for the guest of the hypervisor in the VM: its state and its wishes, and this
    /// hypervisor's own. What changed is written; the script has what always is.
    pub(super) fn merge(&mut self, level: usize) {
        self.synchronise(level, Field::all().count());
        let [below, above] = &mut self.levels[level..level + 2] else {
            unreachable!("there is a hypervisor in the VM")
        };
        below.changed.clear();
        let exceptions = exits::merged_exceptions(
            EXCEPTIONS.map(|field| Region(OWN).get(&below.memory, field)),
            EXCEPTIONS.map(|field| current(above).get(&above.memory, field)),
        );
        for field in Field::all() {
            let own = Region(OWN).get(&below.memory, field);
            let above = current(above).get(&above.memory, field);
            let value = match (field.area(), field) {
                (Area::ExitInformation, _) => continue,
                (Area::Host, _) => own,
                // Exits of both; the VM's memory is this hypervisor's affair.
                (_, Field::PIN_CONTROLS | Field::PROCESSOR_CONTROLS) => own | above,
                (_, Field::EXCEPTION_BITMAP) => exceptions[0],
                (_, Field::PAGE_FAULT_MASK) => exceptions[1],
                (_, Field::PAGE_FAULT_MATCH) => exceptions[2],
                (_, Field::SECONDARY_CONTROLS) => {
                    own & !u64::from(control::secondary::VMCS_SHADOWING)
                }
                (_, Field::LINK_POINTER) => u64::MAX,
                (_, Field::EXIT_CONTROLS | Field::EPT_POINTER | Field::VPID) => own,
                (Area::Control | Area::Guest, _) => above,
            };
            Region(MERGED).set(&mut below.memory, field, value);
        }
        below.runs_nested = true;
        if level > 0 && self.cpu.vmcs_shadowing {
            // What a hypervisor in a VM writes itself is in its shadow VMCS, too.
            self.fill_shadow(level - 1);
        }
    }
}
