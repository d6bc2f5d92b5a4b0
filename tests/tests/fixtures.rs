//! The fixtures are what `fixtures/README.md` says they are.

use std::{collections::BTreeSet, error::Error, fs, path::PathBuf};

use transcript_core::event::SessionEnded;
use transcript_processor::{
    cli::{Cli, Command, Offline},
    transcripts::source,
};
use transcript_tests::calls::{Call, fixture};

type TestResult = Result<(), Box<dyn Error>>;

#[test]
fn every_refused_message_is_refused() -> TestResult {
    for file in files("messages/refused")? {
        let read = SessionEnded::parse(&fs::read(&file)?);
        assert!(read.is_err(), "{} gives {read:?}", file.display());
    }
    Ok(())
}

#[test]
fn every_accepted_message_is_accepted_and_none_is_taken_for_another() -> TestResult {
    let files = files("messages/accepted")?;
    let mut keys = BTreeSet::new();
    for file in &files {
        let read = SessionEnded::parse(&fs::read(file)?);
        keys.insert(read.map_err(|error| format!("{}: {error}", file.display()))?.session.key());
    }
    assert_eq!(keys.len(), files.len(), "{keys:?}");
    Ok(())
}

#[test]
fn every_transcript_is_a_call_to_the_tests_and_to_the_processor() -> TestResult {
    for file in files("transcripts")? {
        let call = Call::read(&file)?;
        let Command::Offline(Offline::Convert(convert)) =
            Cli::read(["transcript-processor".into(), "convert".into(), (&file).into()])?.command
        else {
            return Err("not convert".into());
        };
        source::read_all(&convert.source, convert.cues.into(), &|warning| panic!("{warning}"))?;
        let indexes: Vec<_> = call.segments.iter().map(|segment| segment.index).collect();
        assert_eq!(indexes, (0..u64::try_from(indexes.len())?).collect::<Vec<_>>());
        assert!(call.segments.is_sorted_by_key(|segment| (segment.start_ms, segment.end_ms)));
        if indexes.is_empty() {
            continue;
        }
        assert!((25..=60).contains(&indexes.len()), "{}", file.display());
        let holds = |wanted: &dyn Fn(&str) -> bool| call.segments.iter().any(|segment| wanted(&segment.text));
        assert!(holds(&|text| text.trim().is_empty()), "a blank segment");
        assert!(holds(&|text| text.contains('\n')), "a segment of two lines");
        let labels: BTreeSet<_> = call.segments.iter().filter_map(|segment| segment.speaker.as_deref()).collect();
        assert!(["'", "."].iter().all(|mark| labels.iter().any(|label| label.contains(mark))), "{labels:?}");
    }
    Ok(())
}

fn files(directory: &str) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let entries = fs::read_dir(fixture(directory))?;
    let files = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?;
    assert!(files.len() > 2, "{directory} has only {files:?}");
    Ok(files)
}
