//! Whether the indexes that are set up are enough: what the service really sends is taken from MongoDB's profiler, and nothing
//! of it may look at more than it needs.

use std::time::Duration;

use futures::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use transcript_core::{
    contract::{PROCESSED_SUBJECT, REVISED_SUBJECT, SEGMENTS_COLLECTION, SUMMARIES_COLLECTION, TRANSCRIPTION_STREAM},
    ids::Session,
};
use transcript_tests::{calls::Call, wait::wait_until, world::TestWorld};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// Segments of a page.
const PAGE: u32 = 100;
/// Calls that are small, and of one page.
const SMALL: usize = 40;
/// Segments of the call that is read page by page.
const LARGE: u32 = 1000;
/// Segments of one call that share an index: more than a page holds.
const SHARED: usize = 250;

/// One entry of the profiler.
#[derive(Debug)]
struct ProfiledCommand {
    collection: String,
    plan: String,
    keys: i64,
    documents: i64,
    returned: i64,
    /// The command, or for a `getMore` the one that began it.
    command: Document,
}

impl ProfiledCommand {
    fn of(entry: &Document) -> Self {
        let number = |field| entry.get(field).and_then(|n| n.as_i64().or(n.as_i32().map(i64::from))).unwrap_or(0);
        let command = entry.get_document("originatingCommand").or_else(|_| entry.get_document("command"));
        Self {
            collection: entry.get_str("ns").unwrap_or_default().split_once('.').unwrap_or_default().1.to_owned(),
            plan: entry.get_str("planSummary").unwrap_or_default().to_owned(),
            keys: number("keysExamined"),
            documents: number("docsExamined"),
            returned: number("nreturned").max(number("nMatched")),
            command: command.cloned().unwrap_or_default(),
        }
    }

    /// What it is, told by its form; `None` for what the service is not known to ask.
    fn kind(&self) -> Option<CommandKind> {
        let filter = self.filter();
        let has = |field: &str| filter.contains_key(field);
        let branches = filter.get_array("$or").map(Vec::as_slice).unwrap_or_default();
        let of_one_session =
            |filter: &Document| filter.get_document("sessionId").is_ok_and(|session| session.contains_key("$eq"));
        let each_of_one_session =
            !branches.is_empty() && branches.iter().all(|branch| branch.as_document().is_some_and(of_one_session));
        let of_one_session = of_one_session(&filter);
        let is_pipeline = self.command.contains_key("pipeline");
        match self.collection.as_str() {
            SEGMENTS_COLLECTION if is_pipeline && self.groups() && has("edits") => Some(CommandKind::Edits),
            SEGMENTS_COLLECTION if is_pipeline && self.groups() && filter.get_str("sessionId").is_ok() => {
                Some(CommandKind::Tally)
            }
            SEGMENTS_COLLECTION if is_pipeline && self.groups() => Some(CommandKind::Count),
            SEGMENTS_COLLECTION
                if of_one_session && filter.get_document("startMs").is_ok_and(|start| start.get_f64("$lt").is_ok()) =>
            {
                Some(CommandKind::PageByStart)
            }
            SEGMENTS_COLLECTION if of_one_session && has("startMs") => Some(CommandKind::PageOfOneStart),
            SEGMENTS_COLLECTION if of_one_session && has("$nor") => Some(CommandKind::PageOfOthers),
            SEGMENTS_COLLECTION if each_of_one_session && is_pipeline => Some(CommandKind::PageWithoutIndexes),
            SEGMENTS_COLLECTION
                if of_one_session && filter.get_document("index").is_ok_and(|i| i.contains_key("$not")) =>
            {
                Some(CommandKind::PageAmongOthers)
            }
            // Of all numbers from one on, the upper bound is beyond every whole number.
            SEGMENTS_COLLECTION
                if of_one_session && filter.get_document("index").is_ok_and(|i| i.get_f64("$lt").is_ok()) =>
            {
                Some(CommandKind::Page)
            }
            SEGMENTS_COLLECTION if of_one_session && is_pipeline => Some(CommandKind::PageOfOneIndex),
            SEGMENTS_COLLECTION if has("sessionId") => Some(CommandKind::Together),
            SUMMARIES_COLLECTION if has("updatedAt") => Some(CommandKind::Watch),
            SUMMARIES_COLLECTION if has("_id") && self.command.contains_key("find") => Some(CommandKind::ReadBack),
            SUMMARIES_COLLECTION if has("_id") && self.sets("notified") => Some(CommandKind::Mark),
            SUMMARIES_COLLECTION if has("_id") && self.sets("revised") => Some(CommandKind::MarkOfRevision),
            SUMMARIES_COLLECTION if has("_id") => Some(CommandKind::Upsert),
            _ => None,
        }
    }

    fn filter(&self) -> Document {
        let of_update = || self.command.get_document("q");
        let filter = self.command.get_document("filter").or_else(|_| of_update()).ok().cloned();
        let of_pipeline = || self.stages().first()?.get_document("$match").ok().cloned();
        filter.or_else(of_pipeline).unwrap_or_default()
    }

    /// Whether it is an update that sets this field.
    fn sets(&self, field: &str) -> bool {
        let stages = self.command.get_array("u").map(Vec::as_slice).unwrap_or_default();
        let set = |stage: &Document| stage.get_document("$set").is_ok_and(|set| set.contains_key(field));
        stages.iter().filter_map(Bson::as_document).any(set)
    }

    fn groups(&self) -> bool {
        self.stages().iter().any(|stage| stage.contains_key("$group"))
    }

    fn stages(&self) -> Vec<&Document> {
        let pipeline = self.command.get_array("pipeline").map(Vec::as_slice).unwrap_or_default();
        pipeline.iter().filter_map(Bson::as_document).collect()
    }
}

/// What the service asks of MongoDB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommandKind {
    Count,
    Edits,
    Tally,
    Together,
    Page,
    PageByStart,
    PageOfOneIndex,
    PageOfOneStart,
    PageWithoutIndexes,
    PageAmongOthers,
    PageOfOthers,
    Upsert,
    ReadBack,
    Mark,
    MarkOfRevision,
    Watch,
}

impl CommandKind {
    const ALL: [Self; 16] = [
        Self::Count,
        Self::Edits,
        Self::Tally,
        Self::Together,
        Self::Page,
        Self::PageByStart,
        Self::PageOfOneIndex,
        Self::PageOfOneStart,
        Self::PageWithoutIndexes,
        Self::PageAmongOthers,
        Self::PageOfOthers,
        Self::Upsert,
        Self::ReadBack,
        Self::Mark,
        Self::MarkOfRevision,
        Self::Watch,
    ];
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_the_service_asks_of_mongodb_scans() -> Outcome {
    let world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    // Calls that nobody asks about, and nobody may look at.
    for number in 0..20 {
        world.insert_segments(&Call::of("other", &format!("other {number}"), 200)?.segments).await?;
    }
    let mut calls = calls()?;
    let late = calls.last_mut().and_then(|call| call.segments.pop()).ok_or("the last call has segments")?;
    for call in &calls {
        world.insert_segments(&call.segments).await?;
        world.publish_session_end(&call.session, call.segments.len() as u64).await?;
    }
    for session in odd_calls(&world).await? {
        world.publish_session_end(&session, SHARED as u64).await?;
    }
    on_the_session_clock(&world).await?;
    // The service asks from its start on, and nobody else does: what is awaited is read from the stream.
    profile(&world).await?;
    let page = format!("--page-size={PAGE}");
    let settings = ["--quiet-period=0s", "--revise", "--revise-every=100ms", &page];
    let processor = world.processor("run").arguments(settings).start().await?;
    stored(&world, PROCESSED_SUBJECT, calls.len() + 5).await?;
    world.insert_segments(&[late]).await?;
    stored(&world, REVISED_SUBJECT, 1).await?;
    let change = doc! { "$set": { "text": "So it was." }, "$inc": { "edits": 1 } };
    world.segments().update_one(doc! { "_id": "starts/1" }, change).await?;
    stored(&world, REVISED_SUBJECT, 2).await?;
    processor.terminate().await?;

    let seen = seen(&world).await?;
    for wanted in CommandKind::ALL {
        assert!(seen.iter().any(|seen| seen.kind() == Some(wanted)), "no {wanted:?} was seen: nothing is proved of it");
    }
    // The end of a cursor reads nothing, and the service changes no segment: that was this test.
    let is_change = |seen: &&ProfiledCommand| seen.collection == SEGMENTS_COLLECTION && seen.command.contains_key("q");
    let asked = seen.iter().filter(|seen| !seen.command.contains_key("killCursors") && !is_change(seen));
    let wrong: Vec<String> = asked.filter_map(|seen| judge(seen).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_would_be_seen() -> Outcome {
    let world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    let call = Call::of("c", "s", 12)?;
    world.insert_segments(&call.segments).await?;
    profile(&world).await?;
    let processor = world.processor("run").argument("--quiet-period=0s").start().await?;
    wait_until("the processor is ready", LONG, || async {
        if processor.logs().contains(" ready ") { Ok(()) } else { Err(processor.logs()) }
    })
    .await?;
    for keys in [doc! { "sessionId": 1, "index": 1 }, doc! { "sessionId": 1, "onSessionClock": 1, "startMs": 1 }] {
        let hidden = doc! { "keyPattern": keys, "hidden": true };
        world.database().run_command(doc! { "collMod": SEGMENTS_COLLECTION, "index": hidden }).await?;
    }
    world.publish_session_end(&call.session, 12).await?;
    stored(&world, PROCESSED_SUBJECT, 1).await?;
    let seen = seen(&world).await?;
    for scanning in [CommandKind::Count, CommandKind::Together] {
        let judged: Vec<_> = seen.iter().filter(|seen| seen.kind() == Some(scanning)).map(judge).collect();
        assert!(!judged.is_empty() && judged.iter().all(Result::is_err), "{scanning:?}: {judged:?}");
    }
    Ok(())
}

/// What is looked at is what is asked for.
fn judge(seen: &ProfiledCommand) -> Result<(), String> {
    let Some(kind) = seen.kind() else { return Err(format!("of this nothing is known here: {seen:?}")) };
    let (documents, keys) = match kind {
        // From the index alone.
        CommandKind::Count | CommandKind::Tally => (0, i64::MAX),
        // From the index of those that were changed, of which there is one; between two sessions the index is entered anew.
        CommandKind::Edits => (0, 2 * (SMALL as i64 + 8)),
        // The index gives a key more for each session that ends.
        CommandKind::Together => (seen.returned, seen.returned + 1 + i64::try_from(SMALL).unwrap_or(0)),
        CommandKind::Page | CommandKind::PageByStart => (seen.returned, seen.returned + 1),
        // Between two of the keys that are asked for the index is entered anew, behind a key that nobody asked for.
        CommandKind::ReadBack => (seen.returned, 2 * seen.returned),
        // Those of the index are sorted for each page.
        CommandKind::PageOfOneIndex | CommandKind::PageOfOneStart => (SHARED as i64, SHARED as i64),
        // Those without an index are sorted for each page; each of the two ranges gives a key more.
        CommandKind::PageWithoutIndexes if seen.returned == 0 => (0, 4),
        CommandKind::PageWithoutIndexes => (SHARED as i64, SHARED as i64 + 4),
        // What stands among numbers and is none is told only by looking at each segment of the session, and of no other.
        CommandKind::PageAmongOthers | CommandKind::PageOfOthers => (SHARED as i64, SHARED as i64 + 1),
        CommandKind::Upsert | CommandKind::Mark | CommandKind::MarkOfRevision => (1, 1),
        // All summaries of the last while.
        CommandKind::Watch => (SMALL as i64 + 8, SMALL as i64 + 8),
    };
    let planned = !seen.plan.is_empty() && !seen.plan.contains("COLLSCAN");
    if planned && seen.documents <= documents && seen.keys <= keys {
        Ok(())
    } else {
        Err(format!("{kind:?} looks at more than {documents} documents or {keys} keys, or scans: {seen:?}"))
    }
}

/// Small calls, one without a segment, a large one, and one that will be stale.
fn calls() -> Result<Vec<Call>, Box<dyn std::error::Error>> {
    let mut calls: Vec<Call> =
        (0..SMALL).map(|n| Call::of("c", &format!("small {n}"), 12)).collect::<Result<_, _>>()?;
    calls.push(Call { session: Session::new("c", "silent")?, segments: vec![] });
    calls.push(Call::of("c", "large", LARGE)?);
    calls.push(Call::of("c", "stale", 30)?);
    Ok(calls)
}

/// Stores a call whose segments share an index, one whose segments have none, and one whose indexes are decimals.
async fn odd_calls(world: &TestWorld) -> Result<[Session; 3], Box<dyn std::error::Error>> {
    let sessions = [Session::new("c", "shared")?, Session::new("c", "unnumbered")?, Session::new("c", "decimals")?];
    let decimal = Bson::Decimal128("7".parse()?);
    for (session, index) in sessions.iter().zip([Bson::Int64(7), Bson::Null, decimal]) {
        let segment = |n: usize| {
            let id = &*session.session_id;
            doc! { "_id": format!("{id}/{n}"), "conversationId": "c", "sessionId": id, "index": index.clone(), "text": "So it is." }
        };
        world.segments().insert_many((0..SHARED).map(segment)).await?;
    }
    Ok(sessions)
}

/// Stores a call whose segments all have starts on the session's clock, and one whose segments all start together, and ends
/// both.
async fn on_the_session_clock(world: &TestWorld) -> Outcome {
    for (session, step) in [("starts", 1_000), ("one start", 0)] {
        let segment = |n: usize| {
            let (start, index) = (i64::try_from(n).unwrap_or(0) * step, SHARED as i64 - i64::try_from(n).unwrap_or(0));
            doc! {
                "_id": format!("{session}/{n}"), "conversationId": "c", "sessionId": session, "index": index,
                "text": "So it is.", "startMs": start, "onSessionClock": true,
            }
        };
        world.segments().insert_many((0..SHARED).map(segment)).await?;
        world.publish_session_end(&Session::new("c", session)?, SHARED as u64).await?;
    }
    Ok(())
}

async fn profile(world: &TestWorld) -> Outcome {
    let database = world.database();
    // The collection that the server makes itself holds 1 MB.
    database.create_collection("system.profile").capped(true).size(64 << 20).await?;
    database.run_command(doc! { "profile": 2 }).await?;
    Ok(())
}

async fn stored(world: &TestWorld, subject: &'static str, messages: usize) -> Outcome {
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    wait_until(format!("{messages} messages of {subject}"), LONG, || async {
        let subjects = stream.info_with_subjects(subject).await.map_err(|error| error.to_string())?;
        let counts: Vec<(String, usize)> = subjects.try_collect().await.map_err(|error| error.to_string())?;
        let stored = counts.iter().map(|(_, count)| count).sum::<usize>();
        if stored == messages { Ok(()) } else { Err(format!("{stored} are stored")) }
    })
    .await?;
    Ok(())
}

/// What the profiler has seen of the service's queries and updates.
async fn seen(world: &TestWorld) -> Result<Vec<ProfiledCommand>, mongodb::error::Error> {
    world.database().run_command(doc! { "profile": 0 }).await?;
    // Segments are inserted by the test, and what sets up the indexes asks for no document.
    let namespaces =
        [SEGMENTS_COLLECTION, SUMMARIES_COLLECTION].map(|name| format!("{}.{name}", world.database().name()));
    let asked = doc! {
        "op": { "$ne": "insert" },
        "ns": { "$in": &namespaces[..] },
        "command.listIndexes": { "$exists": false },
        "command.createIndexes": { "$exists": false },
        "command.collMod": { "$exists": false },
    };
    let entries = world.database().collection::<Document>("system.profile").find(asked).await?;
    let entries: Vec<Document> = entries.try_collect().await?;
    Ok(entries.iter().map(ProfiledCommand::of).collect())
}
