//! `cargo fuzz run tree`; what it holds is said at `dray::content::fuzz_trees::tree`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dray::content::fuzz_trees::tree(data));
