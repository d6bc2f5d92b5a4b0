//! What the table in the README says, one small file for each of its rows.
//!
//! A file's name says how it is read: `labels.one-cue.srt` with labels that hold for one cue, `….join.vtt` with joined cues.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use transcript_formats::{Broken, Cues, Faults, Labels, Options, Reader, Record};

fn fixtures() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats");
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .expect("the directory is there");
    files.retain(|path| path.is_file());
    files.sort();
    files
}

fn name(path: &Path) -> String {
    path.file_name().expect("a file has a name").to_string_lossy().into_owned()
}

fn options(name: &str) -> Options {
    let labels = match name {
        name if name.contains(".one-cue.") => Labels::OneCue,
        name if name.contains(".ignore.") => Labels::Ignore,
        _ => Labels::Hold,
    };
    let cues = if name.contains(".join.") { Cues::Join } else { Cues::Keep };
    Options { labels, cues, ..Options::default() }
}

fn read(bytes: &[u8], options: Options, piece: usize) -> (Vec<Record>, Result<(), Broken>) {
    let mut reader = Reader::new(options);
    let pushed = bytes.chunks(piece).try_for_each(|piece| reader.push(piece));
    let done = pushed.and_then(|()| reader.finish());
    (std::iter::from_fn(|| reader.next_record()).collect(), done)
}

fn told(record: &Record) -> String {
    let time = |time: Option<i64>| time.map_or("-".to_owned(), |ms| ms.to_string());
    match record {
        Record::Segment(said) => {
            let (start, end) = (time(said.start_ms), time(said.end_ms));
            let speaker = said.speaker.as_deref().unwrap_or("-");
            format!("line {}: {}. {start}..{end} {speaker}: {:?}", said.line, said.index, said.text)
        }
        Record::Announcement(end) => format!("line {}: {:?} ends: {}", end.line, end.call.session_id, end.segments),
        Record::LeftOut(broken) => format!("left out: {broken}"),
    }
}

fn page(bytes: &[u8], options: Options) -> String {
    let (records, done) = read(bytes, options, usize::MAX);
    let Err(broken) = done else { return records.iter().map(told).collect::<Vec<_>>().join("\n") };
    let (records, done) = read(bytes, Options { faults: Faults::LeaveOut, ..options }, usize::MAX);
    let rest = match done {
        Ok(()) => records.iter().map(told).collect::<Vec<_>>().join("\n"),
        Err(same) => format!("refused: {same}"),
    };
    format!("refused: {broken}\n\nand with faults left out:\n{rest}")
}

#[test]
fn every_file_reads_as_its_row_says() {
    for path in fixtures() {
        let page = page(&fs::read(&path).unwrap(), options(&name(&path)));
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(name(&path), page);
        });
    }
}

#[test]
fn a_file_reads_the_same_in_pieces_of_any_size() {
    for path in fixtures() {
        let bytes = fs::read(&path).unwrap();
        for faults in [Faults::Refuse, Faults::LeaveOut] {
            let options = Options { faults, ..options(&name(&path)) };
            let whole = read(&bytes, options, usize::MAX);
            for piece in [1, 2, 3, 7, 64] {
                assert_eq!(read(&bytes, options, piece), whole, "{} in pieces of {piece}", path.display());
            }
        }
    }
}

#[test]
fn the_table_names_every_file_and_no_other() {
    let readme = include_str!("../README.md");
    let rows = readme.lines().filter(|line| line.starts_with('|'));
    let named: BTreeSet<&str> =
        rows.flat_map(|row| row.split('`').skip(1).step_by(2)).filter(|name| is_file_name(name)).collect();
    let files: Vec<String> = fixtures().iter().map(|path| name(path)).collect();
    let there: BTreeSet<&str> = files.iter().map(String::as_str).collect();
    assert_eq!(named, there);
}

fn is_file_name(code: &str) -> bool {
    let is_plain = code.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'));
    is_plain
        && [".srt", ".vtt", ".json", ".ndjson", ".txt", ".bin"].iter().any(|end| code.ends_with(end) && code != *end)
}
