//! Reads any bytes as what they look like.

#![no_main]

#[path = "../../tests/rules/mod.rs"]
mod rules;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| rules::check(None, bytes));
