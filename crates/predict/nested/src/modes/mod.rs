//! A guest's memory in a VM and in a nested VM, with shadow paging and with second stages: every page
//! fault as the sequence of faults and exits that it is (NestCloud, sections V and VI.C).
//!
//! ```text
//!                     L2's table     L1 keeps               L0 keeps              hardware walks
//! shadow on shadow    page -> GPA    page -> L1's (S12)     page -> HPA, of S12   L0's
//! shadow on EPT       page -> GPA    page -> L1's (S12)     L1's -> HPA           S12, L0's
//! EPT on EPT          page -> GPA    GPA -> L1's (EPT12)    GPA -> HPA, of EPT12  L2's, L0's
//!
//! On AMD's instructions EPT is NPT.
//! ```
//!
//! Tables are radix tables in frames of the kernel that writes them, a table page that somebody below
//! shadows is write-protected there, and whoever touches what is not mapped for him faults: who sees the
//! fault is what the VMCSs or VMCBs say ([`crate::tower`]), on which every instruction of L1 is executed. L1's own
//! accesses to its tables fault in the same way, into L0.
//!
//! Three things differ by the instructions. What L1 executes at an exit of L2 is for the tower to know. Page-fault
//! bypass, and a VMCS in shared memory, are VMX's alone. And where L1 has a second stage of which a leaf table went
//! unsync, L0 reads it anew and protects it again at L1's next VMRUN, so that each page that L1 maps costs it an exit
//! more; with EPT L0 waits for INVEPT, and only the first page of a table does.
//!
//! What is left out: kernels' code and data are mapped from the start, no translation is cached (so a
//! fault is seen where it is due), and upper table pages that lost their last entry are freed.

mod faults;
mod guest;
mod hypervisor;
mod machine;
mod setup;
mod shadow;
mod table;
mod tower;

pub use machine::{Counts, Machine};
pub use setup::{Level, Refused, Setup, Switches, accesses_fit};
