#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| strata_tables::fuzz::tables(bytes));
