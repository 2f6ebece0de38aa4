//! What a processor with VMX can do.

use crate::memory::PAGE;

/// What a processor can do (SDM volume 3D, appendix A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// VMCS revision identifier, 31 bits.
    pub revision: u32,
    /// Width of physical addresses in bits.
    pub physical_bits: u32,
    /// VMWRITE may write exit information (IA32_VMX_MISC, bit 29).
    pub writes_exit_information: bool,
    /// There are shadow VMCSs.
    pub shadowing: bool,
}

impl Default for Capabilities {
    /// Of a server since Haswell.
    fn default() -> Self {
        Self { revision: 0x12, physical_bits: 46, writes_exit_information: true, shadowing: true }
    }
}

impl Capabilities {
    /// Whether a region can be at a physical address.
    pub(super) fn is_region(&self, address: u64) -> bool {
        address.is_multiple_of(PAGE) && self.is_physical(address)
    }

    /// Whether a physical address is no wider than the processor's.
    pub(super) fn is_physical(&self, address: u64) -> bool {
        address >> self.physical_bits == 0
    }
}
