//! `cargo fuzz run pack_index`; what it holds is said at `dray::content::fuzz::pack_index`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dray::content::fuzz::pack_index(data));
