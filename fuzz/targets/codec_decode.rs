//! `cargo fuzz run codec_decode`; what it holds is said at `dray::content::fuzz::codec_decode`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dray::content::fuzz::codec_decode(data));
