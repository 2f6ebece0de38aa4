//! What a CPU has for virtual machines, as far as it matters for hypervisors in VMs.

use serde::{Deserialize, Serialize};

/// The instructions of a hypervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Instructions {
    /// Intel's: VMREAD, VMWRITE, VMRESUME and others (SDM volume 3C).
    #[default]
    Vmx,
    /// AMD's: VMRUN, VMLOAD, VMSAVE, STGI, CLGI (APM volume 2, chapter 15).
    Svm,
}

/// What a CPU has for virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Virtualization {
    /// The instructions of a hypervisor.
    pub instructions: Instructions,
    /// VMREAD and VMWRITE of a hypervisor in a VM access a shadow VMCS without an exit, where the host
    /// allows it (SDM volume 3C, section 25.10).
    #[serde(default)]
    pub vmcs_shadowing: bool,
    /// VMLOAD and VMSAVE of a hypervisor in a VM need no exit (APM volume 2, section 15.33.1).
    #[serde(default)]
    pub vls: bool,
    /// STGI and CLGI of a hypervisor in a VM need no exit (APM volume 2, section 15.33.2).
    #[serde(default)]
    pub vgif: bool,
}

impl Default for Virtualization {
    /// Of an Intel CPU since Haswell.
    fn default() -> Self {
        Self { instructions: Instructions::Vmx, vmcs_shadowing: true, vls: false, vgif: false }
    }
}

impl Virtualization {
    /// A feature it claims to have that does not exist with its instructions.
    pub fn misplaced(&self) -> Option<&'static str> {
        let Self { instructions, vmcs_shadowing, vls, vgif } = *self;
        match instructions {
            Instructions::Vmx if vls => Some("vls"),
            Instructions::Vmx if vgif => Some("vgif"),
            Instructions::Svm if vmcs_shadowing => Some("vmcs_shadowing"),
            _ => None,
        }
    }
}
