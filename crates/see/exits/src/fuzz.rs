//! Body of the fuzz target, which the ordinary tests run too.

use crate::account::Account;
use crate::tracefs::{Decoder, Event, Format, Page};

/// Any bytes as a tracepoint's format, and after a zero as pages of a trace buffer: nothing panics, events
/// are inside of their page, and no exit is counted that was not there.
pub fn trace(bytes: &[u8]) {
    let middle = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (text, pages) = bytes.split_at(middle);
    let mut decoder = Decoder::default();
    if let Some(format) = std::str::from_utf8(text).ok().and_then(Format::parse) {
        decoder.add("kvm_exit", &format);
        decoder.add("kvm_entry", &format);
    }
    let (mut account, mut events) = (Account::default(), Vec::<Event>::new());
    let mut records = 0;
    for page in pages.chunks(512).filter_map(Page::parse) {
        for record in page {
            assert!(record.event.len() <= 512);
            records += 1;
            events.extend(decoder.decode(record));
        }
    }
    account.note(&mut events, u64::MAX);
    let vcpus = account.take(u64::MAX);
    let exits: u64 = vcpus.values().flat_map(|vcpu| vcpu.counted.values()).map(|c| c.exits).sum();
    assert!(exits <= records);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            trace(&bytes);
        }

        #[test]
        fn any_pages_of_a_known_format(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let format = "ID:0\n field:int common_pid; offset:4; size:4;\n\
                field:int exit_reason; offset:8; size:4;\nfield:int isa; offset:0; size:2;\n";
            trace(&[format.as_bytes(), &[0], &bytes].concat());
        }
    }
}
