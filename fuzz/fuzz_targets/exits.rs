#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| strata_exits::fuzz::trace(bytes));
