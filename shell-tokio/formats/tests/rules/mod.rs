//! What holds for every file, whatever its bytes. The tests and the fuzz targets share it.

#![allow(unreachable_pub, reason = "the fuzz targets are of another package")]

use transcript_formats::{Broken, Cues, Faults, Format, Labels, Options, Reader, Record};

/// Reads a file in pieces.
pub fn read(bytes: &[u8], options: Options, piece: usize) -> (Vec<Record>, Result<(), Broken>) {
    let mut reader = Reader::new(options);
    let mut records = Vec::new();
    for piece in bytes.chunks(piece) {
        let pushed = reader.push(piece);
        records.extend(std::iter::from_fn(|| reader.next_record()));
        if pushed.is_err() {
            return (records, pushed);
        }
    }
    let done = reader.finish();
    records.extend(std::iter::from_fn(|| reader.next_record()));
    (records, done)
}

/// Reads a file in every way, and holds what was read against the rules.
///
/// # Panics
///
/// Where a rule is broken.
pub fn check(format: Option<Format>, bytes: &[u8]) {
    for faults in [Faults::Refuse, Faults::LeaveOut] {
        for cues in [Cues::Keep, Cues::Join] {
            for labels in [Labels::Hold, Labels::Ignore] {
                let options = Options { format, faults, cues, labels };
                let (records, done) = read(bytes, options, usize::MAX);
                assert_eq!(read(bytes, options, 5), (records.clone(), done.clone()), "in pieces, with {options:?}");
                records.iter().for_each(|record| check_record(record, options, bytes));
                if let Err(broken) = done {
                    check_broken(&broken, bytes);
                }
            }
        }
    }
}

fn check_record(record: &Record, options: Options, bytes: &[u8]) {
    match record {
        Record::Segment(said) => {
            let is_own = said.call.is_some();
            assert!(is_own || !said.text.trim().is_empty(), "a segment without a word: {said:?}");
            assert!(said.start_ms.is_none_or(|start| start >= 0), "{said:?}");
            assert!(said.start_ms.zip(said.end_ms).is_none_or(|(start, end)| start <= end), "{said:?}");
            assert!(said.line >= 1 && said.line <= bytes.len() as u64, "{said:?}");
        }
        Record::Announcement(end) => assert!(end.line >= 1),
        Record::LeftOut(broken) => {
            assert_eq!(options.faults, Faults::LeaveOut);
            check_broken(broken, bytes);
        }
    }
}

fn check_broken(broken: &Broken, bytes: &[u8]) {
    assert!(broken.line >= 1 && broken.line <= bytes.len() as u64 + 1, "{broken:?}");
    let told = broken.to_string();
    assert!(told.len() < 700 && !told.chars().any(char::is_control), "{told}");
}
