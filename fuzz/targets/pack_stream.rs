//! `cargo fuzz run pack_stream`; what it holds is said at `dray::content::fuzz::pack_stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dray::content::fuzz::pack_stream(data));
