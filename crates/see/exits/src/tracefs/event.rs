//! KVM's events that tell of exits.

use super::format::{Field, Format};
use super::page::Record;
use crate::reason::{Isa, Reason};

/// What happened to a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It exited.
    Exit(Reason),
    /// It is about to run.
    Entry,
    /// It ran a guest of its own when it exited.
    FromNested,
    /// Its own hypervisor is to handle the exit of its guest.
    HandedOn,
    /// It is to run a guest of its own.
    ToNested,
}

/// An event of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds.
    pub time: u64,
    /// The thread that is the vCPU.
    pub thread: u32,
    /// What.
    pub what: What,
}

/// A tracepoint's name, and what its events say, given their reason.
type Tracepoint = (&'static str, fn(Reason) -> What);

/// The tracepoints that matter, of which kernels have those they know: `kvm_nested_vmenter` is
/// `kvm_nested_vmrun` before Linux 6.4.
pub(super) const TRACEPOINTS: [Tracepoint; 6] = [
    ("kvm_exit", What::Exit),
    ("kvm_entry", |_| What::Entry),
    ("kvm_nested_vmexit", |_| What::FromNested),
    ("kvm_nested_vmexit_inject", |_| What::HandedOn),
    ("kvm_nested_vmenter", |_| What::ToNested),
    ("kvm_nested_vmrun", |_| What::ToNested),
];

/// Makes events of records.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    known: Vec<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    id: u16,
    thread: Field,
    reason: Option<(Field, Field)>,
    makes: fn(Reason) -> What,
}

impl Decoder {
    /// Adds a tracepoint of this name; whether it is one that matters and has what is needed.
    pub fn add(&mut self, name: &str, format: &Format) -> bool {
        let Some((_, makes)) = TRACEPOINTS.iter().find(|(other, _)| *other == name) else {
            return false;
        };
        let Some(thread) = format.field("common_pid") else { return false };
        let reason = format.field("exit_reason").zip(format.field("isa"));
        if name == "kvm_exit" && reason.is_none() {
            return false;
        }
        self.known.push(Known { id: format.id, thread, reason, makes: *makes });
        true
    }

    /// The event of a record; `None` for others, and for those too short.
    pub fn decode(&self, record: Record<'_>) -> Option<Event> {
        let id = u16::from_le_bytes(record.event.get(..2)?.try_into().ok()?);
        let known = self.known.iter().find(|known| known.id == id)?;
        let thread = known.thread.of(record.event)? as u32;
        let reason = match known.reason {
            None => Reason { isa: Isa::Vmx, code: 0 },
            Some((code, isa)) => {
                let isa = match isa.of(record.event)? {
                    2 => Isa::Svm,
                    _ => Isa::Vmx,
                };
                Reason { isa, code: code.of(record.event)? }
            }
        };
        Some(Event { time: record.time, thread, what: (known.makes)(reason) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXIT: &str = "ID: 103\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\
        \tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:u32 isa;\toffset:12;\tsize:4;\tsigned:0;\n";
    const ENTRY: &str = "ID: 104\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n";

    fn event(words: [u32; 4]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn records_become_events() {
        let mut decoder = Decoder::default();
        assert!(decoder.add("kvm_exit", &Format::parse(EXIT).unwrap()));
        assert!(decoder.add("kvm_entry", &Format::parse(ENTRY).unwrap()));
        assert!(!decoder.add("kvm_cpuid", &Format::parse(ENTRY).unwrap()));
        assert!(!decoder.add("kvm_exit", &Format::parse(ENTRY).unwrap()), "it has no reason");
        let decode = |words| decoder.decode(Record { time: 5, event: &event(words) });
        let npf = What::Exit(Reason { isa: Isa::Svm, code: 0x400 });
        assert_eq!(decode([103, 4711, 0x400, 2]), Some(Event { time: 5, thread: 4711, what: npf }));
        assert_eq!(decode([104, 1, 0, 0]).unwrap().what, What::Entry);
        assert_eq!(decode([105, 1, 0, 0]), None);
        assert_eq!(decoder.decode(Record { time: 5, event: &event([103, 1, 2, 2])[..12] }), None);
    }
}
