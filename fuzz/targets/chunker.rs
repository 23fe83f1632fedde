//! `cargo fuzz run chunker`; what it holds is said at `dray::content::fuzz::chunker`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dray::content::fuzz::chunker(data));
