//! Whatever the bytes are, a reader gives the right segments or a message. It does not panic, and gives the same in pieces.

mod rules;

use std::{
    fs,
    path::{Path, PathBuf},
};

use proptest::prelude::*;
use rules::{check, read};
use transcript_formats::{Faults, Format, Options, Record};

fn files(directory: &str) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .expect("the directory is there");
    paths.retain(|path| path.is_file());
    paths.sort();
    let name = |path: &Path| path.file_name().expect("a file has a name").to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), fs::read(path).expect("it is readable"))).collect()
}

fn fixtures() -> Vec<(String, Vec<u8>)> {
    files("../../fixtures/formats")
}

/// How a file is read: by its content, or as each of the formats.
fn any_format() -> impl Strategy<Value = Option<Format>> {
    prop_oneof![3 => Just(None), 1 => prop::sample::select(Format::ALL.to_vec()).prop_map(Some)]
}

/// Pieces of what the formats are made of, in any order.
fn any_words() -> impl Strategy<Value = Vec<u8>> {
    const WORDS: [&str; 44] = [
        "WEBVTT",
        "\n",
        "\n\n",
        "\r\n",
        "\r",
        "NOTE ",
        "STYLE\n",
        "1",
        "2\n",
        "00:00:01.000",
        "00:00:02,5",
        " --> ",
        "-->",
        "<v Ann>",
        "</v>",
        "<",
        ">",
        "&amp;",
        "&",
        "Ann: ",
        ":",
        "{",
        "}",
        "[",
        "]",
        ",",
        "\"",
        "\\",
        "\"segments\":",
        "\"words\":",
        "\"text\":",
        "\"start\":",
        "\"end\":",
        "\"results\":",
        "\"channels\":",
        "\"sessionId\":\"s\",",
        "\"conversationId\":\"c\",",
        "\"index\":0,",
        "1.5",
        "NaN",
        "null",
        "é",
        "？",
        " ",
    ];
    let word = prop_oneof![
        9 => prop::sample::select(WORDS.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(word, 0..60).prop_map(|words| words.concat())
}

/// A fixture with some bytes replaced, removed and put in.
fn any_damage() -> impl Strategy<Value = Vec<u8>> {
    let damage = (any::<prop::sample::Index>(), 0..8_usize, prop::collection::vec(any::<u8>(), 0..4));
    (prop::sample::select(fixtures()), prop::collection::vec(damage, 0..5)).prop_map(|((_, mut bytes), damages)| {
        for (at, removed, inserted) in damages {
            let at = at.index(bytes.len() + 1);
            let end = (at + removed).min(bytes.len());
            bytes.splice(at..end, inserted);
        }
        bytes
    })
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400), format in any_format()) {
        check(format, &bytes);
    }

    #[test]
    fn any_words_are_read_or_refused(bytes in any_words(), format in any_format()) {
        check(format, &bytes);
    }

    #[test]
    fn any_damage_is_read_or_refused(bytes in any_damage(), format in any_format()) {
        check(format, &bytes);
    }
}

/// Files in an encoding that is guessed: of a shorter file, another one is guessed.
const GUESSED: [&str; 2] = ["shift-jis.srt", "windows-1252.srt"];

#[test]
fn a_file_cut_at_any_byte_gives_the_right_segments_or_a_message() {
    for (name, bytes) in fixtures() {
        let (whole, done) = read(&bytes, Options::default(), usize::MAX);
        if done.is_err() || GUESSED.contains(&name.as_str()) {
            continue;
        }
        for length in 0..bytes.len() {
            let cut = bytes.get(..length).unwrap();
            check(None, cut);
            let (records, done) = read(cut, Options::default(), usize::MAX);
            if done.is_ok() {
                // The last segment may be cut; those before it are whole.
                let sure = records.len().saturating_sub(1);
                let is_ordered = !name.contains("channels");
                assert!(!is_ordered || whole.starts_with(&records[..sure]), "{name} cut at {length}: {records:?}");
                assert!(records.len() <= whole.len(), "{name} cut at {length}: {records:?}");
            }
        }
    }
}

/// What a search once found, and small beginnings for the next one.
#[test]
fn the_corpus_is_read_or_refused() {
    for (_, bytes) in files("fuzz/findings").into_iter().chain(fixtures()) {
        for format in Format::ALL.into_iter().map(Some).chain([None]) {
            check(format, &bytes);
        }
    }
}

#[test]
fn deep_nesting_takes_no_stack() {
    for (open, close) in
        [("[", "]"), ("{\"a\":", "}"), ("{\"segments\":[", "]}"), ("{\"sessionId\":\"s\",\"x\":[", "]}")]
    {
        let deep = 100_000;
        for text in [open.repeat(deep), format!("{}1{}", open.repeat(deep), close.repeat(deep))] {
            for faults in [Faults::Refuse, Faults::LeaveOut] {
                let (records, done) = read(text.as_bytes(), Options { faults, ..Options::default() }, usize::MAX);
                let said = records.iter().any(|record| matches!(record, Record::Segment(_)));
                assert!(!said && (done.is_err() || records.len() < 3), "{open}");
            }
        }
    }
}
