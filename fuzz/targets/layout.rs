//! `cargo fuzz run layout`; what it holds is said at `dray::content::fuzz_trees::layout`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dray::content::fuzz_trees::layout(data));
