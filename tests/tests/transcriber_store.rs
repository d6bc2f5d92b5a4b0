//! What the transcriber's statements do on a real mongod: each effect is what the state machine says it is.

use std::{error::Error, sync::Arc, time::Duration};

use futures::TryStreamExt;
use mongodb::{
    Database,
    bson::{Document, doc},
};
use serde_json::json;
use transcript_core::ids::Session;
use transcript_processor::{operate::setup, transcriber::store::Store};
use transcript_tests::servers::{Mongod, TestDatabase};
use transcript_transcriber::{
    Departure, Effect, EpochId, EpochOpened, Fence, IdleOthers, InstanceId, Joined, Report, SavedSegment, Silence,
    Source,
    document::{SESSIONS_COLLECTION, SessionState, StoredSegment, Transport},
};

type Outcome = Result<(), Box<dyn Error>>;

/// A store, and an instance that writes to it.
struct Fixture {
    database: TestDatabase,
    store: Store,
}

impl Fixture {
    async fn start() -> Result<Self, Box<dyn Error>> {
        let database = TestDatabase::on(Mongod::shared().await?).await?;
        let mut report = setup::Report::default();
        setup::ensure_transcriber(database.handle(), &mut report).await?;
        assert_eq!(report.changes.len(), 2, "{report:?}");
        setup::ensure_transcriber(database.handle(), &mut report).await?;
        assert_eq!(report.changes.len(), 2, "a second time changes nothing: {report:?}");
        let store = Store::new(database.handle(), Duration::from_secs(30));
        Ok(Self { database, store })
    }

    fn handle(&self) -> &Database {
        self.database.handle()
    }

    async fn perform(&self, effect: Effect) -> Report {
        self.store.perform(&effect).await.expect("it is an effect of the store")
    }

    async fn join(&self, fence: Fence, transport: Transport, epochs: Vec<EpochOpened>) -> Joined {
        match self.perform(Effect::Join { session: session(), fence, transport, epochs }).await {
            Report::Joined(joined) => joined,
            other => panic!("{other:?}"),
        }
    }

    async fn reserve(&self, fence: Fence, sources: &[&str], from: u64) -> Report {
        let segments = sources.iter().zip(0..).map(|(source, index)| segment(source, index, 0)).collect();
        self.perform(Effect::Reserve { session: session(), fence, segments: Arc::new(segments), from }).await
    }

    async fn save(&self, segments: Vec<StoredSegment>) -> Vec<SavedSegment> {
        match self.perform(Effect::Save { session: session(), segments: Arc::new(segments) }).await {
            Report::Saved(saved) => saved,
            other => panic!("{other:?}"),
        }
    }

    async fn leave(&self, fence: Fence, silence: Silence, idle_others: IdleOthers) -> Report {
        self.perform(Effect::Leave { session: session(), fence, silence, idle_others }).await
    }

    async fn document(&self) -> Result<Document, Box<dyn Error>> {
        let sessions = self.handle().collection::<Document>(SESSIONS_COLLECTION);
        let key = session().key();
        Ok(sessions.find_one(doc! { "_id": key.as_str() }).await?.ok_or("no session")?)
    }

    async fn segments(&self) -> Result<Vec<Document>, Box<dyn Error>> {
        let segments = self.handle().collection::<Document>("transcriptsegments");
        Ok(segments.find(doc! {}).sort(doc! { "index": 1 }).await?.try_collect().await?)
    }
}

/// Ids that would like to be expressions.
fn session() -> Session {
    Session::new("$conversation.id", "$$ROOT").expect("ids are valid")
}

fn fence(instance: &str, step: u64) -> Fence {
    Fence { instance: InstanceId::new(instance, "f00", 1), step }
}

fn source(text: &str) -> Source {
    serde_json::from_value(json!(text)).expect("a source is a text")
}

fn segment(text: &str, index: u64, write: u64) -> StoredSegment {
    StoredSegment {
        index,
        source: source(text),
        write,
        speaker: Some("$speaker".into()),
        text: format!("$text of {text}").into(),
        start_ms: Some(1000),
        end_ms: None,
        on_session_clock: true,
    }
}

#[tokio::test]
async fn a_join_opens_lists_and_keeps_what_is_there() -> Outcome {
    let fixture = Fixture::start().await?;
    let epoch =
        |name: &str, ago| EpochOpened { epoch: EpochId::named("$client", name), ago: Duration::from_millis(ago) };
    let joined = fixture.join(fence("a", 1), Transport::Post, vec![epoch("1", 250)]).await;
    assert_eq!((joined.next_index, joined.epochs), (0, vec![Some(-250)]));
    // Another instance, later, and the first one again with a batch in its entry.
    assert_eq!(fixture.reserve(fence("a", 2), &["one", "two"], 0).await, Report::Reserved { first_index: 0, write: 1 });
    let joined = fixture.join(fence("b", 3), Transport::Socket, vec![epoch("1", 0), epoch("2", 0)]).await;
    assert_eq!((joined.next_index, joined.epochs.first()), (2, Some(&Some(-250))));
    assert!(matches!(joined.epochs.get(1), Some(Some(0..))), "{joined:?}");
    fixture.join(fence("a", 4), Transport::Socket, vec![]).await;
    let document = fixture.document().await?;
    assert_eq!(document.get_str("conversationId")?, "$conversation.id");
    let entries = document.get_array("instances")?;
    assert_eq!(entries.len(), 2, "{entries:?}");
    let first = entries.first().and_then(|entry| entry.as_document()).ok_or("no entry")?;
    assert_eq!((first.get_str("transport")?, first.get_i64("step")?), ("socket", 4));
    assert_eq!(first.get_array("pending")?.len(), 2, "the batch is kept");
    // A join that comes late changes neither step nor transport.
    fixture.join(fence("a", 1), Transport::Post, vec![]).await;
    let document = fixture.document().await?;
    let entries = document.get_array("instances")?;
    let first = entries.first().and_then(|entry| entry.as_document()).ok_or("no entry")?;
    assert_eq!((first.get_str("transport")?, first.get_i64("step")?), ("socket", 4));
    Ok(())
}

#[tokio::test]
async fn indexes_come_from_the_document_and_only_to_those_who_are_listed() -> Outcome {
    let fixture = Fixture::start().await?;
    fixture.join(fence("a", 1), Transport::Socket, vec![]).await;
    fixture.join(fence("b", 2), Transport::Socket, vec![]).await;
    let reserved = |first_index, write| Report::Reserved { first_index, write };
    assert_eq!(fixture.reserve(fence("a", 3), &["a1", "a2"], 0).await, reserved(0, 1));
    assert_eq!(fixture.reserve(fence("b", 4), &["b1"], 0).await, reserved(2, 2));
    assert_eq!(fixture.reserve(fence("a", 5), &["a3"], 10).await, reserved(10, 3));
    // The same effect again, an earlier one, and somebody who is not listed.
    assert_eq!(fixture.reserve(fence("a", 5), &["a3"], 0).await, Report::Gone);
    assert_eq!(fixture.reserve(fence("a", 4), &["a3"], 0).await, Report::Gone);
    assert_eq!(fixture.reserve(fence("c", 9), &["c1"], 0).await, Report::Gone);
    assert_eq!(fixture.document().await?.get_i64("nextIndex")?, 11);
    Ok(())
}

#[tokio::test]
async fn a_segment_is_stored_once_and_a_later_write_replaces_its_text() -> Outcome {
    let fixture = Fixture::start().await?;
    let stored = |index| SavedSegment::Stored { index };
    let saved = fixture.save(vec![segment("one", 0, 1), segment("two", 1, 1)]).await;
    assert_eq!(saved, [stored(0), stored(1)]);
    assert_eq!(fixture.save(vec![segment("one", 0, 1)]).await, [stored(0)], "again");
    let edited = StoredSegment { text: "Better.".into(), speaker: None, ..segment("one", 7, 2) };
    assert_eq!(fixture.save(vec![edited.clone(), segment("three", 8, 2)]).await, [stored(0), stored(8)]);
    // An earlier write that arrives late, and one that says the same, are no edits.
    fixture.save(vec![segment("one", 0, 1)]).await;
    fixture.save(vec![StoredSegment { write: 3, ..edited }]).await;
    let segments = fixture.segments().await?;
    let first = segments.first().ok_or("no segment")?;
    let expected = doc! {
        "_id": "$$ROOT:0", "conversationId": "$conversation.id", "sessionId": "$$ROOT", "index": 0_i64,
        "text": "Better.", "startMs": 1000_i64, "onSessionClock": true, "source": "one", "write": 3_i64, "edits": 1_i64,
    };
    assert_eq!(*first, expected);
    assert_eq!(segments.len(), 3);
    let counted = fixture.perform(Effect::Count { session: session() }).await;
    assert_eq!(counted, Report::Counted { segments: 3, edits: 1 });
    Ok(())
}

#[tokio::test]
async fn a_taken_index_is_told_and_stops_no_other_segment() -> Outcome {
    let fixture = Fixture::start().await?;
    let foreign = doc! { "_id": "$$ROOT:1", "sessionId": "$$ROOT", "conversationId": "$conversation.id", "index": 9_i64, "text": "x" };
    fixture.handle().collection("transcriptsegments").insert_one(foreign).await?;
    let saved = fixture.save(vec![segment("one", 0, 1), segment("two", 1, 1), segment("three", 2, 1)]).await;
    let expected =
        [SavedSegment::Stored { index: 0 }, SavedSegment::IndexTaken { highest: 9 }, SavedSegment::Stored { index: 2 }];
    assert_eq!(saved, expected);
    Ok(())
}

#[tokio::test]
async fn a_segment_of_another_conversation_is_not_replaced() -> Outcome {
    let fixture = Fixture::start().await?;
    fixture.save(vec![segment("one", 0, 1)]).await;
    let other = Session::new("another", "$$ROOT")?;
    let segments = Arc::new(vec![StoredSegment { text: "Forged.".into(), ..segment("one", 5, 9) }]);
    let report = fixture.perform(Effect::Save { session: other, segments }).await;
    assert!(
        matches!(&report, Report::Saved(saved) if matches!(&saved[..], [SavedSegment::Refused { .. }])),
        "{report:?}"
    );
    let segments = fixture.segments().await?;
    assert_eq!(segments.len(), 1);
    assert_eq!(segments.first().ok_or("no segment")?.get_str("text")?, "$text of one");
    Ok(())
}

#[tokio::test]
async fn upserts_of_one_source_at_the_same_time_make_one_segment() -> Outcome {
    let fixture = Fixture::start().await?;
    for round in 0..20 {
        let name = format!("source {round}");
        let saves = (0..4).map(|writer| fixture.save(vec![segment(&name, round * 10 + writer, writer + 1)]));
        let saved = futures::future::join_all(saves).await;
        let indexes: Vec<&SavedSegment> = saved.iter().flatten().collect();
        assert!(indexes.windows(2).all(|pair| pair.first() == pair.last()), "{saved:?}");
    }
    assert_eq!(fixture.segments().await?.len(), 20);
    Ok(())
}

#[tokio::test]
async fn a_session_ends_when_the_last_instance_leaves() -> Outcome {
    let fixture = Fixture::start().await?;
    fixture.join(fence("a", 1), Transport::Socket, vec![]).await;
    fixture.join(fence("b", 2), Transport::Socket, vec![]).await;
    let (waits, stay) = (Silence::Waits, IdleOthers::Stay);
    assert_eq!(fixture.leave(fence("a", 3), waits, stay).await, Report::Left(Departure::Others));
    assert_eq!(fixture.leave(fence("a", 4), waits, stay).await, Report::Gone);
    assert_eq!(fixture.leave(fence("b", 4), waits, stay).await, Report::Left(Departure::Silent));
    fixture.reserve(fence("b", 5), &["one"], 0).await;
    let ending = |generation| Report::Left(Departure::Ending { generation, pending: vec![] });
    assert_eq!(fixture.leave(fence("b", 6), waits, stay).await, ending(1));
    assert_eq!(fixture.leave(fence("b", 7), waits, stay).await, ending(1), "the same end");
    let finish = |fence, generation| {
        fixture.perform(Effect::Finish { session: session(), fence, generation, saved: 1, edits: 0, published: None })
    };
    assert_eq!(finish(fence("b", 8), 2).await, Report::Reopened, "another end");
    assert_eq!(finish(fence("b", 8), 1).await, Report::Finished);
    assert_eq!(finish(fence("b", 8), 1).await, Report::Finished, "again");
    let document = fixture.document().await?;
    assert_eq!(document.get_str("state")?, "ended");
    assert_eq!(document.get_i64("saved")?, 1);
    assert!(document.get_array("instances")?.is_empty() && document.get_datetime("endedAt").is_ok());
    // It is opened again, and ends again, as another end.
    fixture.join(fence("c", 9), Transport::Socket, vec![]).await;
    assert_eq!(finish(fence("b", 10), 1).await, Report::Gone);
    assert_eq!(finish(fence("c", 10), 1).await, Report::Reopened);
    assert_eq!(fixture.leave(fence("c", 11), Silence::Waits, IdleOthers::Stay).await, ending(2));
    Ok(())
}

#[tokio::test]
async fn a_service_that_asks_for_the_end_removes_what_only_requests_are_delivered_to() -> Outcome {
    let fixture = Fixture::start().await?;
    fixture.join(fence("a", 1), Transport::Post, vec![]).await;
    fixture.join(fence("b", 2), Transport::Post, vec![]).await;
    fixture.reserve(fence("b", 3), &["one"], 0).await;
    let left = fixture.leave(fence("a", 4), Silence::Ends, IdleOthers::Removed).await;
    let Report::Left(Departure::Ending { generation: 1, pending }) = &left else { panic!("{left:?}") };
    assert_eq!(pending, &[segment("one", 0, 1)], "the batch of the removed entry");
    fixture.join(fence("c", 5), Transport::Socket, vec![]).await;
    let left = fixture.leave(fence("a", 6), Silence::Ends, IdleOthers::Removed).await;
    assert_eq!(left, Report::Left(Departure::Others), "a socket keeps it open");
    Ok(())
}

#[tokio::test]
async fn a_dead_instance_is_found_and_succeeded_and_can_write_nothing_more() -> Outcome {
    let fixture = Fixture::start().await?;
    let instance = |name| fence(name, 0).instance;
    let open = |name, seconds| {
        fixture.perform(Effect::OpenLease { instance: instance(name), duration: Duration::from_secs(seconds) })
    };
    let orphans = |own| fixture.perform(Effect::FindOrphans { limit: 10, own });
    for name in ["a", "b"] {
        assert_eq!(open(name, 3600).await, Report::LeaseHeld);
    }
    fixture.join(fence("a", 1), Transport::Post, vec![]).await;
    fixture.reserve(fence("a", 2), &["one"], 0).await;
    assert_eq!(orphans(None).await, Report::Orphans(vec![]));
    let own = orphans(Some(instance("a"))).await;
    assert!(matches!(&own, Report::Orphans(own) if own.len() == 1), "{own:?}");
    assert_eq!(fixture.perform(Effect::ReleaseLease { instance: instance("a") }).await, Report::LeaseReleased);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let found = orphans(None).await;
    let Report::Orphans(found) = &found else { panic!("{found:?}") };
    assert_eq!(found.iter().map(|orphan| orphan.instance.clone()).collect::<Vec<_>>(), [instance("a")]);
    assert_eq!(found.first().map(|orphan| orphan.session.clone()), Some(session()));
    let renewed = Effect::RenewLease { instance: instance("a"), duration: Duration::from_secs(3600) };
    assert_eq!(fixture.perform(renewed).await, Report::LeaseLost);
    let take = |fence, from| fixture.perform(Effect::TakeOver { session: session(), fence, from });
    let taken = take(fence("b", 3), instance("a")).await;
    let Report::TakenOver(taken) = &taken else { panic!("{taken:?}") };
    assert_eq!(taken.pending, [segment("one", 0, 1)]);
    assert_eq!((taken.transport, taken.state, taken.generation), (Transport::Post, SessionState::Open, 0));
    assert_eq!(taken.joined.next_index, 1);
    assert_eq!(take(fence("b", 4), instance("a")).await, Report::Gone);
    assert_eq!(fixture.reserve(fence("a", 9), &["two"], 0).await, Report::Gone, "the dead instance wakes");
    // One that is listed already keeps its own batch, and gets the other one's.
    fixture.join(fence("c", 5), Transport::Socket, vec![]).await;
    fixture.reserve(fence("c", 6), &["two"], 0).await;
    let Report::TakenOver(_) = take(fence("b", 7), instance("c")).await else { panic!("b did not take over") };
    let document = fixture.document().await?;
    let [entry] = &document.get_array("instances")?[..] else { panic!("{document}") };
    let entry = entry.as_document().ok_or("no entry")?;
    assert_eq!(entry.get_str("id")?, instance("b").as_str());
    assert_eq!(entry.get_array("pending")?.len(), 2);
    Ok(())
}
