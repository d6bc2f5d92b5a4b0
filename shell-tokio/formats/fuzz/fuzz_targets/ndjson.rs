//! Reads any bytes as `Format::Ndjson`.

#![no_main]

#[path = "../../tests/rules/mod.rs"]
mod rules;

use libfuzzer_sys::fuzz_target;
use transcript_formats::Format;

fuzz_target!(|bytes: &[u8]| rules::check(Some(Format::Ndjson), bytes));
