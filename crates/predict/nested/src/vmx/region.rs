//! A VMCS region in memory: where it has what.

use super::field::Field;
use crate::memory::Memory;

/// Where a region's revision identifier is (section 25.2).
const REVISION: u64 = 0;
/// In it: the region is a shadow VMCS.
pub(super) const SHADOW: u32 = 1 << 31;
/// Where a region has its launch state. The rest of a region is the processor's own affair.
const LAUNCHED: u64 = 8;
/// Where a region has its fields.
const FIELDS: u64 = 64;

/// A VMCS region in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region(pub(crate) u64);

impl Region {
    /// Makes memory a region of a revision.
    pub(crate) fn prepare(self, memory: &mut Memory, revision: u32, shadow: bool) {
        memory.write_u32(self.0 + REVISION, revision | if shadow { SHADOW } else { 0 });
    }

    pub(crate) fn revision(self, memory: &Memory) -> u32 {
        memory.read_u32(self.0 + REVISION)
    }

    pub(super) fn is_shadow(self, memory: &Memory) -> bool {
        self.revision(memory) & SHADOW != 0
    }

    pub(crate) fn is_launched(self, memory: &Memory) -> bool {
        memory.read(self.0 + LAUNCHED) != 0
    }

    pub(super) fn set_launched(self, memory: &mut Memory, launched: bool) {
        memory.write(self.0 + LAUNCHED, launched.into());
    }

    /// A field, whatever anybody may read.
    pub(crate) fn get(self, memory: &Memory, field: Field) -> u64 {
        let slot = field.slot().expect("the field exists");
        memory.read(self.0 + FIELDS + 8 * slot)
    }

    /// Changes a field, whatever anybody may write.
    pub(crate) fn set(self, memory: &mut Memory, field: Field, value: u64) {
        let slot = field.slot().expect("the field exists");
        memory.write(self.0 + FIELDS + 8 * slot, value & field.mask());
    }
}
