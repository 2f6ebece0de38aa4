//! A hypervisor: its memory, and the processor that it sees.

use super::request::Request;
use crate::memory::Memory;
use crate::reason::ExitReason;
use crate::tower::cause::Cause;
use crate::vmx::exits;
use crate::vmx::region::Region;
use crate::vmx::{Field, Processor};
use std::collections::BTreeMap;

/// A hypervisor.
pub(super) struct Level {
    pub(super) memory: Memory,
    pub(super) processor: Processor,
    /// A guest of a hypervisor in its VM is what it runs at the moment.
    pub(super) runs_nested: bool,
    /// Fields of the VMCS of the hypervisor in its VM that have changed since it made its own from it.
    pub(super) changed: BTreeMap<Field, u64>,
}
/// The VMCS that a hypervisor works on.
pub(super) fn current(level: &Level) -> Region {
    Region(level.processor.current().expect("a VMCS is current"))
}

/// A VM exits, and the VMCS on which it ran takes why.
pub(super) fn leave(level: &mut Level, request: Request) {
    let Level { memory, processor, .. } = level;
    match request {
        Request::Guest(Cause { reason: ExitReason::PageFault, error_code, .. }) => {
            processor.exit_by_exception(memory, exits::PAGE_FAULT, Some(error_code), 0);
        }
        _ => processor.exit(memory, request.code(), 0),
    }
}
