//! The simulated store does what mongod does: the same commands against both, and what only a real server can show of races,
//! elections and kills, held against what the model allows.

use std::{sync::Arc, time::Duration};

use futures::TryStreamExt;
use mongodb::{
    Client, Collection, Database,
    bson::{Bson, Document, RawDocumentBuf, doc, rawdoc, serialize_to_document},
    error::{Error, ErrorKind},
    options::{ClientOptions, WriteConcern},
};
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use transcript_client::mongodb::Mark;
use transcript_core::{
    Notified, Stored, Time, TranscriptVersion, WallTime,
    contract::{Announcement, SEGMENTS_COLLECTION, SUMMARIES_COLLECTION},
    ids::{Key, Session},
    summary::{Segment, Summary},
};
use transcript_processor::service::mongodb::statement;
use transcript_sim::store::{Answer, Command, Durability, Existing, Fate, Store, StoreError};
use transcript_tests::{
    servers::{Mongod, TestDatabase},
    wait::wait_until,
};

/// How many histories are drawn.
const HISTORIES: usize = 40;

fn summary(session: u8, segments: u64) -> Arc<Summary> {
    edited(session, segments, 0)
}

fn edited(session: u8, segments: u64, edits: u64) -> Arc<Summary> {
    let session = Session::new("c", &format!("s{session}")).expect("ids");
    Arc::new(Summary {
        key: session.key(),
        session,
        segments,
        published_segments: 5,
        reprocess: 0,
        complete: segments >= 5,
        edits,
        words: 0,
        damaged: 0,
        speakers: vec![],
        longest_turns: vec![],
        questions: vec![],
        cut: None,
        updated_at: WallTime::from_millis(0),
    })
}

fn save(session: u8, segments: u64) -> Command {
    asked(session, segments, 0, 0)
}

/// The save of a summary that an operator has asked for so many times.
fn asked(session: u8, segments: u64, edits: u64, reprocess: u64) -> Command {
    let summary = Arc::new(Summary { reprocess, ..Summary::clone(&edited(session, segments, edits)) });
    Command::Save { summary, durability: Durability::Journal }
}

/// mongod, told what the model is told.
struct Real {
    segments: Collection<Document>,
    summaries: Collection<Document>,
    database: Database,
}

impl Real {
    fn new(database: &Database) -> Self {
        let (segments, summaries) =
            (database.collection(SEGMENTS_COLLECTION), database.collection(SUMMARIES_COLLECTION));
        Self { segments, summaries, database: database.clone() }
    }

    async fn perform(&self, command: &Command) -> Result<Answer, StoreError> {
        match command {
            Command::WriteSegments { session_id, segments, existing, .. } => {
                self.write_segments(session_id, segments, *existing).await
            }
            Command::Count { sessions } => {
                let mut versions = vec![];
                for session in sessions {
                    let found =
                        async { self.segments.find(doc! { "sessionId": &**session }).await?.try_collect().await };
                    let found: Vec<Document> = found.await.map_err(|error| kind(&error))?;
                    let edits = found.iter().filter_map(|segment| u64::try_from(segment.get_i64("edits").ok()?).ok());
                    versions.push(TranscriptVersion { segments: found.len() as u64, edits: edits.sum() });
                }
                Ok(Answer::Versions(versions))
            }
            Command::Save { summary, durability } => self.save(summary, *durability).await,
            Command::Mark { key, announcement, announced, notified, durability } => {
                let (key, announced) = (key.clone(), *announced);
                let mark = Mark { key, announcement: *announcement, announced, notified: *notified };
                self.update(statement::mark(&mark), *durability).await?;
                Ok(Answer::Marked)
            }
            Command::Read { key } => self.read(key).await,
            Command::Client(_) => panic!("the client has tests of its own"),
        }
    }

    async fn write_segments(
        &self,
        session_id: &str,
        segments: &[Arc<Segment>],
        existing: Existing,
    ) -> Result<Answer, StoreError> {
        let documents = segments.iter().map(|segment| {
            let mut document = serialize_to_document(&**segment).expect("a document");
            document.insert("sessionId", session_id);
            document
        });
        let (mut written, mut refused) = (0, 0);
        for document in documents {
            let done = match existing {
                Existing::Kept => self.segments.insert_one(document).await.map(|_| ()),
                Existing::Replaced => {
                    let filter = doc! { "_id": document.get_str("_id").expect("an id") };
                    self.segments.replace_one(filter, document).upsert(true).await.map(|_| ())
                }
            };
            match done.map_err(|error| kind(&error)) {
                Ok(()) => written += 1,
                Err(StoreError::DuplicateKey) => refused += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(Answer::Written { written, refused })
    }

    async fn save(&self, summary: &Summary, durability: Durability) -> Result<Answer, StoreError> {
        self.update(statement::save(summary).expect("a document"), durability).await?;
        self.read(&summary.key).await
    }

    /// A statement of the processor, in a command of its own.
    async fn update(&self, statement: RawDocumentBuf, durability: Durability) -> Result<(), StoreError> {
        let concern = match durability {
            Durability::Journal => rawdoc! { "w": "majority", "j": true },
            Durability::Memory => rawdoc! { "w": 1, "j": false },
        };
        let command = rawdoc! { "update": SUMMARIES_COLLECTION, "updates": [statement], "writeConcern": concern };
        let reply = self.database.run_raw_command(command).await.map_err(|error| kind(&error))?;
        match reply.get_array("writeErrors") {
            Ok(errors) => {
                let code = errors.first().and_then(Bson::as_document).and_then(|error| error.get_i32("code").ok());
                Err(of_code(code.unwrap_or(0)))
            }
            Err(_) => Ok(()),
        }
    }

    async fn read(&self, key: &Key) -> Result<Answer, StoreError> {
        let found = self.summaries.find_one(doc! { "_id": key.as_str() }).await.map_err(|error| kind(&error))?;
        let number = |document: &Document, field: &str| match document.get(field) {
            Some(Bson::Int32(number)) => Some(u64::try_from(*number).expect("not negative")),
            Some(Bson::Int64(number)) => Some(u64::try_from(*number).expect("not negative")),
            None => None,
            other => panic!("{field} is {other:?}"),
        };
        Ok(Answer::Stored(found.map(|document| Stored {
            segments: number(&document, "segments").expect("a number"),
            edits: number(&document, "edits").unwrap_or(0),
            complete: document.get_bool("complete").expect("a flag"),
            notified: document.get_document("notified").ok().map(|mark| Notified {
                stream_sequence: number(mark, "streamSequence").expect("a number"),
                at: WallTime::from_millis(mark.get_datetime("at").expect("a date").timestamp_millis()),
            }),
            revision: number(&document, "revision").unwrap_or(1),
            reprocess: number(&document, "reprocess").unwrap_or(0),
            revised: document.get_document("revised").ok().and_then(|mark| number(mark, "revision")),
        })))
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the driver's error kinds are open-ended")]
fn kind(error: &Error) -> StoreError {
    match error.kind.as_ref() {
        ErrorKind::Command(error) => of_code(error.code),
        ErrorKind::Write(mongodb::error::WriteFailure::WriteError(error)) => of_code(error.code),
        _ => StoreError::Unreachable,
    }
}

fn of_code(code: i32) -> StoreError {
    match code {
        11_000 => StoreError::DuplicateKey,
        10_107 | 13_435 | 189 | 11_602 => StoreError::NotPrimary,
        112 => StoreError::WriteConflict,
        13 => StoreError::Unauthorized,
        other => panic!("a code that the model does not know: {other}"),
    }
}

fn segments() -> impl Strategy<Value = Vec<Arc<Segment>>> {
    let segment = (0..6_u8, prop::option::of(0..3_i64), 0..3_u64).prop_map(|(id, index, edits)| {
        let (text, speaker, start_ms, end_ms) = ("hello".to_owned(), None, None, None);
        Arc::new(Segment { id: format!("id{id}"), index, speaker, text, start_ms, end_ms, edits, ..Segment::default() })
    });
    prop::collection::vec(segment, 1..4)
}

fn command() -> impl Strategy<Value = Command> {
    let existing = prop_oneof![Just(Existing::Kept), Just(Existing::Replaced)];
    let session = || (0..2_u8).prop_map(|number| -> Arc<str> { format!("s{number}").into() });
    prop_oneof![
        3 => (0..2_u8, 0..7_u64, 0..3_u64, 0..5_u64).prop_map(|(session, segments, edits, drawn)| {
            asked(session, segments, edits, drawn.saturating_sub(2))
        }),
        2 => (0..2_u8, 1..9_u64, 0..7_u64, 0..3_u64).prop_map(|(session, stream_sequence, segments, edits)| Command::Mark {
            key: summary(session, 0).key.clone(),
            announcement: match stream_sequence {
                1..5 => Announcement::Processed,
                revision => Announcement::Revised { revision: revision - 3 },
            },
            announced: TranscriptVersion { segments, edits },
            notified: Notified { stream_sequence, at: WallTime::from_millis(1) },
            durability: Durability::Journal,
        }),
        1 => (0..2_u8).prop_map(|session| Command::Read { key: summary(session, 0).key.clone() }),
        2 => (session(), segments(), existing).prop_map(|(session_id, segments, existing)| Command::WriteSegments {
            session_id,
            segments,
            existing,
            durability: Durability::Memory,
        }),
        1 => Just(Command::Count { sessions: vec!["s0".into(), "s1".into(), "none".into()] }),
    ]
}

#[tokio::test]
async fn drawn_histories_agree() {
    let mongod = Mongod::shared().await.expect("mongod");
    let config = Config { failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
    let histories = prop::collection::vec(command(), 1..15);
    for _ in 0..HISTORIES {
        let history = histories.new_tree(&mut runner).expect("a history").current();
        let database = TestDatabase::on(mongod).await.expect("a database");
        let (real, mut model) = (Real::new(database.handle()), Store::new());
        for (place, command) in history.iter().enumerate() {
            let expected = model.perform(Time::ZERO, command.clone(), Fate::Done);
            assert_eq!(real.perform(command).await, expected, "command {place} of {history:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn saves_that_race_end_with_the_most_segments() {
    let mongod = Mongod::shared().await.expect("mongod");
    let database = TestDatabase::on(mongod).await.expect("a database");
    let mut beaten = 0;
    for round in 0..40_u8 {
        let racing = (1..=8_u64).map(|segments| {
            let real = Real::new(database.handle());
            tokio::spawn(async move { (segments, real.perform(&save(round, segments)).await) })
        });
        let mut model = Store::new();
        for outcome in futures::future::join_all(racing).await {
            match outcome.expect("no panic") {
                // Whoever was answered sees at least its own segments: a later save can only have added some.
                (segments, Ok(Answer::Stored(Some(stored)))) => {
                    assert!(stored.segments >= segments, "{segments} saved, {stored:?} stored");
                    model.perform(Time::ZERO, save(round, segments), Fate::Done).expect("done");
                }
                (_, Err(StoreError::DuplicateKey)) => beaten += 1,
                (segments, other) => panic!("{segments}: {other:?}"),
            }
        }
        let read = Command::Read { key: summary(round, 0).key.clone() };
        let expected = model.perform(Time::ZERO, read.clone(), Fate::Done);
        assert_eq!(Real::new(database.handle()).perform(&read).await, expected, "the model allows any order");
    }
    report(&format!("{beaten} of 320 racing saves met a duplicate key"));
}

#[expect(clippy::print_stdout, reason = "how often a race is lost is a fact of the server, not a promise")]
fn report(what: &str) {
    println!("{what}");
}

#[tokio::test]
async fn without_a_primary_both_refuse_to_write() {
    let mongod = Mongod::replica_set().await.expect("mongod");
    let mut options = ClientOptions::parse(mongod.uri()).await.expect("an address");
    options.direct_connection = Some(true);
    options.repl_set_name = None;
    options.retry_writes = Some(false);
    options.retry_reads = Some(false);
    let client = Client::with_options(options).expect("a client");
    let (real, mut model) = (Real::new(&client.database("conformance")), Store::new());
    let first = save(0, 3);
    assert_eq!(real.perform(&first).await, model.perform(Time::ZERO, first, Fate::Done));
    let step_down = doc! { "replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 0, "force": true };
    client.database("admin").run_command(step_down).await.expect("a step down");
    model.step_down();
    // Reads are not compared: on a direct connection the driver lets a secondary answer them.
    let refused = model.perform(Time::ZERO, save(0, 4), Fate::Done);
    assert_eq!(refused, Err(StoreError::NotPrimary));
    assert_eq!(real.perform(&save(0, 4)).await, refused);
    model.elect();
    let again = save(0, 4);
    let expected = model.perform(Time::ZERO, again.clone(), Fate::Done);
    let answered = wait_until("it is primary again", Duration::from_secs(60), || async {
        match real.perform(&again).await {
            Err(StoreError::NotPrimary | StoreError::Unreachable) => Err("not primary"),
            other => Ok(other),
        }
    });
    assert_eq!(answered.await.expect("in time"), expected);
}

#[tokio::test]
async fn a_kill_keeps_what_is_journaled_and_loses_a_tail_of_the_rest() {
    let mut mongod = Mongod::replica_set().await.expect("mongod");
    let real = Real::new(&mongod.client().await.expect("a client").database("conformance"));
    let mut model = Store::new();
    for session in 0..30_u8 {
        let durability = if session % 10 == 0 { Durability::Journal } else { Durability::Memory };
        let command = Command::Save { summary: summary(session, 3), durability };
        assert_eq!(real.perform(&command).await, model.perform(Time::ZERO, command, Fate::Done));
    }
    mongod.process().kill().await.expect("killed");
    mongod.start_again().await.expect("started again");
    let client = mongod.client().await.expect("a client");
    let concern = WriteConcern::majority();
    let options = mongodb::options::DatabaseOptions::builder().write_concern(concern).build();
    let real = Real::new(&client.database_with_options("conformance", options));
    let mut kept = vec![];
    for session in 0..30_u8 {
        let read = Command::Read { key: summary(session, 0).key.clone() };
        kept.push(!matches!(real.perform(&read).await, Ok(Answer::Stored(None))));
    }
    model.kill(Time::ZERO, Duration::from_secs(1));
    model.start();
    model.elect();
    let surely = model.summaries().count();
    let until = kept.iter().position(|kept| !kept).unwrap_or(kept.len());
    assert!(until >= surely, "{until} kept, {surely} were journaled: {kept:?}");
    assert!(kept[until..].iter().all(|kept| !kept), "a hole in what is kept: {kept:?}");
    report(&format!("{until} of 30 saves kept, {surely} were sure"));
}
