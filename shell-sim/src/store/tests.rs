use transcript_core::{WallTime, ids::Session};

use super::*;

fn segment(id: &str, index: Option<i64>, start_ms: Option<i64>) -> Arc<Segment> {
    let (text, speaker, end_ms) = ("hello".to_owned(), None, None);
    Arc::new(Segment { id: id.to_owned(), index, speaker, text, start_ms, end_ms, ..Segment::default() })
}

fn summary(segments: u64) -> Arc<Summary> {
    let session = Session::new("c", "s").expect("ids");
    Arc::new(Summary {
        key: session.key(),
        session,
        segments,
        published_segments: 5,
        reprocess: 0,
        complete: segments >= 5,
        edits: 0,
        words: 0,
        damaged: 0,
        speakers: vec![],
        longest_turns: vec![],
        questions: vec![],
        cut: None,
        updated_at: WallTime::from_millis(0),
    })
}

fn at(millis: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(millis))
}

fn write(segments: &[Arc<Segment>], existing: Existing, durability: Durability) -> Command {
    Command::WriteSegments { session_id: "s".into(), segments: segments.to_vec(), existing, durability }
}

fn save(segments: u64, durability: Durability) -> Command {
    Command::Save { summary: summary(segments), durability }
}

fn stored(segments: u64, notified: Option<Notified>) -> Result<Answer, StoreError> {
    Ok(Answer::Stored(Some(Stored {
        segments,
        edits: 0,
        complete: segments >= 5,
        notified,
        revision: 1,
        revised: None,
        reprocess: 0,
    })))
}

fn revised(segments: u64, revision: u64, revised: Option<u64>) -> Result<Answer, StoreError> {
    Ok(Answer::Stored(Some(Stored {
        segments,
        edits: 0,
        complete: segments >= 5,
        notified: Some(MARK),
        revision,
        revised,
        reprocess: 0,
    })))
}

const MARK: Notified = Notified { stream_sequence: 7, at: WallTime::from_millis(1) };

fn mark(notified: Notified) -> Command {
    let announcement = Announcement::Processed;
    let (announced, durability) = (TranscriptVersion { segments: 9, edits: 0 }, Durability::Journal);
    Command::Mark { key: summary(0).key.clone(), announcement, announced, notified, durability }
}

/// Of the session that is written to, and of one that is not.
fn versions(segments: u64) -> Result<Answer, StoreError> {
    Ok(Answer::Versions(vec![TranscriptVersion { segments, edits: 0 }, TranscriptVersion::default()]))
}

fn count(store: &mut Store) -> Result<Answer, StoreError> {
    store.perform(at(0), Command::Count { sessions: vec!["s".into(), "other".into()] }, Fate::Done)
}

#[test]
fn segments_are_inserted_once_or_replaced() {
    let mut store = Store::new();
    let (old, new) = (segment("a", Some(1), None), segment("a", None, Some(3)));
    let insert = |segments: &[Arc<Segment>]| write(segments, Existing::Kept, Durability::Memory);
    assert_eq!(
        store.perform(at(0), insert(&[old, segment("b", Some(0), None)]), Fate::Done),
        Ok(Answer::Written { written: 2, refused: 0 })
    );
    assert_eq!(
        store.perform(at(0), insert(std::slice::from_ref(&new)), Fate::Done),
        Ok(Answer::Written { written: 0, refused: 1 })
    );
    assert_eq!(count(&mut store), versions(2));
    let replace = write(&[new], Existing::Replaced, Durability::Memory);
    assert_eq!(store.perform(at(0), replace, Fate::Done), Ok(Answer::Written { written: 1, refused: 0 }));
    assert_eq!(count(&mut store), versions(2));
    assert_eq!(store.version_of("s").segments, 2);
}

#[test]
fn a_summary_never_goes_back_and_keeps_its_mark() {
    let mut store = Store::new();
    assert_eq!(store.perform(at(0), mark(MARK), Fate::Done), Ok(Answer::Marked), "nothing there to mark");
    assert_eq!(store.perform(at(0), save(3, Durability::Journal), Fate::Done), stored(3, None));
    assert_eq!(store.perform(at(0), mark(MARK), Fate::Done), Ok(Answer::Marked));
    let later = Notified { stream_sequence: 9, ..MARK };
    assert_eq!(store.perform(at(0), mark(later), Fate::Done), Ok(Answer::Marked));
    assert_eq!(store.perform(at(0), save(2, Durability::Journal), Fate::Done), stored(3, Some(MARK)));
    assert_eq!(store.perform(at(0), save(3, Durability::Journal), Fate::Done), stored(3, Some(MARK)));
    assert_eq!(store.perform(at(0), save(6, Durability::Journal), Fate::Done), revised(6, 2, None));
    let key = summary(0).key.clone();
    assert_eq!(store.perform(at(0), Command::Read { key: key.clone() }, Fate::Done), revised(6, 2, None));
    let announcement = Announcement::Revised { revision: 2 };
    let (announced, durability) = (TranscriptVersion { segments: 9, edits: 0 }, Durability::Journal);
    let told = Command::Mark { key: key.clone(), announcement, announced, notified: MARK, durability };
    assert_eq!(store.perform(at(0), told, Fate::Done), Ok(Answer::Marked));
    assert_eq!(store.perform(at(0), save(6, Durability::Journal), Fate::Done), revised(6, 2, Some(2)));
    assert_eq!(store.summary(&key).map(|document| document.summary.segments), Some(6));
    assert_eq!(store.summaries().count(), 1);
}

#[test]
fn a_summary_that_was_asked_for_replaces_an_announced_one_of_as_many_segments_once() {
    let mut store = Store::new();
    let asked = |segments, reprocess| Command::Save {
        summary: Arc::new(Summary { reprocess, ..Summary::clone(&summary(segments)) }),
        durability: Durability::Journal,
    };
    let stored = |revision, reprocess| {
        let complete = false;
        let stored =
            Stored { segments: 3, edits: 0, complete, notified: Some(MARK), revision, revised: None, reprocess };
        Ok(Answer::Stored(Some(stored)))
    };
    store.perform(at(0), save(3, Durability::Journal), Fate::Done).expect("done");
    store.perform(at(0), mark(MARK), Fate::Done).expect("done");
    assert_eq!(store.perform(at(0), asked(2, 1), Fate::Done), stored(1, 0), "it never goes back");
    assert_eq!(store.perform(at(0), asked(3, 1), Fate::Done), stored(2, 1));
    assert_eq!(store.perform(at(0), asked(3, 1), Fate::Done), stored(2, 1), "it comes again");
    assert_eq!(store.perform(at(0), save(3, Durability::Journal), Fate::Done), stored(2, 1));
    assert_eq!(store.perform(at(0), asked(3, 2), Fate::Done), stored(3, 2));
    store.perform(at(0), save(4, Durability::Journal), Fate::Done).expect("done");
    let key = summary(0).key.clone();
    assert_eq!(store.summary(&key).map(|document| (document.revision, document.summary.reprocess)), Some((4, 2)));
}

#[test]
fn a_command_fails_before_or_after_it_is_done() {
    let mut store = Store::new();
    let before = Fate::FailsBefore(StoreError::Unreachable);
    assert_eq!(store.perform(at(0), save(3, Durability::Journal), before), Err(StoreError::Unreachable));
    assert_eq!(store.summaries().count(), 0);
    let after = Fate::FailsAfter(StoreError::TimedOut);
    assert_eq!(store.perform(at(0), save(3, Durability::Journal), after), Err(StoreError::TimedOut));
    assert_eq!(store.summaries().count(), 1);
}

#[test]
fn only_a_document_that_is_there_makes_a_duplicate_key() {
    let mut store = Store::new();
    assert_eq!(store.perform(at(0), save(3, Durability::Journal), Fate::Races), stored(3, None));
    assert_eq!(store.perform(at(0), save(4, Durability::Journal), Fate::Races), Err(StoreError::DuplicateKey));
    assert_eq!(store.perform(at(0), save(4, Durability::Journal), Fate::Done), stored(4, None));
}

#[test]
fn a_kill_loses_what_no_journal_has() {
    let mut store = Store::new();
    store
        .perform(at(0), write(&[segment("old", None, None)], Existing::Kept, Durability::Memory), Fate::Done)
        .expect("done");
    store.perform(at(50), save(3, Durability::Journal), Fate::Done).expect("done");
    store.perform(at(60), save(4, Durability::Memory), Fate::Done).expect("done");
    store
        .perform(at(70), write(&[segment("new", None, None)], Existing::Kept, Durability::Memory), Fate::Done)
        .expect("done");
    let moved = segment("old", Some(1), None);
    store.perform(at(80), write(&[moved], Existing::Replaced, Durability::Memory), Fate::Done).expect("done");
    let restarted = |lag: u64| {
        let mut killed = store.clone();
        killed.kill(at(90), Duration::from_millis(lag));
        assert_eq!(count(&mut killed), Err(StoreError::Unreachable));
        killed.start();
        assert_eq!(count(&mut killed), Err(StoreError::NotPrimary));
        killed.elect();
        let ids: Vec<String> = killed.segments.of("s").map(|segment| segment.id.clone()).collect();
        (killed.summaries().map(|(_, document)| document.summary.segments).collect::<Vec<_>>(), ids.join(" "))
    };
    assert_eq!(restarted(0), (vec![4], "old new".to_owned()));
    assert_eq!(restarted(11), (vec![4], "new old".to_owned()), "the replaced one is back");
    assert_eq!(restarted(25), (vec![4], "old".to_owned()));
    assert_eq!(restarted(1_000), (vec![3], "old".to_owned()), "the journaled save took the older insert along");
    let mut later = store.clone();
    later.kill(at(170), Duration::from_secs(9));
    assert_eq!(later.version_of("s").segments, 2, "flushed after 100 ms");
    store.terminate();
    store.start();
    store.elect();
    assert_eq!(count(&mut store), versions(2));
}

#[test]
fn without_a_primary_nothing_is_read_or_written() {
    let mut store = Store::new();
    store.step_down();
    assert_eq!(count(&mut store), Err(StoreError::NotPrimary));
    assert_eq!(store.perform(at(0), save(3, Durability::Journal), Fate::Done), Err(StoreError::NotPrimary));
    store.elect();
    assert_eq!(count(&mut store), versions(0));
}
