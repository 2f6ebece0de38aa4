//! Exits of nested VMs, and the machines they come from.

mod happening;
mod machines;
mod modes;
mod modes_flush;
mod modes_svm;
mod svm;
mod svm_tower;
mod svm_units;
mod tower;
mod vmx;
mod vmx_exits;
