//! `cargo fuzz run merged`; what it holds is said at `dray::content::fuzz_trees::merged`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dray::content::fuzz_trees::merged(data));
