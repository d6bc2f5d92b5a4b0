//! Files of 100 MB and more take little memory. One test, in a process of its own, so that its memory is known.

#![cfg(target_os = "linux")]

use std::{fs, iter};

use transcript_formats::{Broken, MAX_DOCUMENT, Options, Reader, Record};

const LARGE: usize = 100_000_000;
/// A document that is held whole, its elements, and what the reader adds.
const MOST_MIB: usize = 384;

/// What was read: how many segments, and whether all was.
fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (u64, Result<(), Broken>) {
    let mut reader = Reader::new(Options::default());
    let mut segments = 0;
    let mut done = Ok(());
    for piece in pieces.map(Some).chain([None]) {
        done = match piece {
            Some(piece) => reader.push(piece),
            None => reader.finish(),
        };
        while let Some(record) = reader.next_record() {
            segments += u64::from(matches!(record, Record::Segment(_)));
        }
        if done.is_err() {
            break;
        }
    }
    (segments, done)
}

/// `begin`, then `again` until there are so many bytes, then `end`.
fn repeated(begin: &str, again: &str, end: &str, bytes: usize) -> (u64, Result<(), Broken>) {
    let many = again.repeat(64 * 1024 / again.len() + 1);
    let times = bytes / many.len() + 1;
    let pieces = iter::once(begin.as_bytes()).chain(iter::repeat_n(many.as_bytes(), times)).chain([end.as_bytes()]);
    read(pieces)
}

fn most_mib() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a process has a peak");
    let kib: usize = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("it is a number of KiB");
    kib / 1024
}

#[test]
fn large_files_take_little_memory() {
    let cue = "00:00:01,000 --> 00:00:02,000\nAnn: Is it you? It is, is it not?\n\n";
    let (segments, done) = repeated("", cue, "", LARGE);
    assert!(segments > 1_000_000 && done.is_ok(), "{segments} {done:?}");
    let own = "{\"conversationId\":\"c\",\"sessionId\":\"s\",\"index\":0,\"text\":\"Is it you? It is.\"}\n";
    let (segments, done) = repeated("", own, "", LARGE);
    assert!(segments > 1_000_000 && done.is_ok(), "{segments} {done:?}");
    // So far, nothing was held for longer than a line.
    assert!(most_mib() < 64, "{} MiB", most_mib());

    let element = "{\"start\":1,\"end\":2,\"text\":\"Is it you? It is, is it not? It must be somebody.\"},\n";
    let (segments, done) = repeated("{\"segments\":[", element, "{}]}", MAX_DOCUMENT * 9 / 10);
    assert!(segments > 500_000 && done.is_ok(), "{segments} {done:?}");
    for (begin, again, bytes) in [
        ("WEBVTT\n\n", "one line ", LARGE),
        ("WEBVTT\n\n00:01.000 --> 00:02.000\n", "one cue\n\n", LARGE),
        ("{\"sessionId\":\"s\"", " ", LARGE),
        ("{\"segments\":[", "{\"text\":\"too large\"},\n", LARGE),
        ("{\"segments\":[0", ",0", MAX_DOCUMENT * 9 / 10),
        ("", "[", MAX_DOCUMENT * 9 / 10),
        ("", "\0\u{1}\u{2}", LARGE),
        ("", " \n", LARGE),
    ] {
        let (segments, done) = repeated(begin, again, "", bytes);
        assert!(segments == 0 && done.is_err(), "{begin}{again}");
    }
    assert!(most_mib() < MOST_MIB, "{} MiB", most_mib());
}
