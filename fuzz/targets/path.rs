//! `cargo fuzz run path`; what it holds is said at `dray::content::fuzz_trees::path`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dray::content::fuzz_trees::path(data));
