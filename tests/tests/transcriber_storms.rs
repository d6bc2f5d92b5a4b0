//! Many calls through sockets, while two transcribers are killed and restarted and NATS goes away: one end counts what is stored,
//! what was acknowledged is stored, and every call has one summary and one notification.
//!
//! It is small where nothing else is asked for. `TRANSCRIPT_TESTS_SESSIONS=500` and `TRANSCRIPT_TESTS_KILLS=10` make it large;
//! `TRANSCRIPT_TESTS_SEED` repeats the instants of a run.

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fastrand::Rng;
use futures::TryStreamExt;
use mongodb::bson::{Document, doc};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use transcript_core::contract::{SESSION_ENDED_SUBJECT, TRANSCRIPTION_STREAM};
use transcript_tests::{
    transcriber::{Client, RunningTranscriber},
    wait::wait_until,
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn Error>>;

const LONG: Duration = Duration::from_secs(60);
/// Sockets of a session.
const SOCKETS: usize = 4;
/// Segments of a socket.
const SEGMENTS: usize = 8;
/// How long a call lasts at most.
const CALL: Duration = Duration::from_secs(3);
/// How long NATS is away.
const AWAY: Duration = Duration::from_millis(1500);
/// How long after the last call everything may take, for each session.
const SETTLES: Duration = Duration::from_millis(500);

fn number(variable: &str, default: usize) -> usize {
    env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Where the transcribers are now.
#[derive(Debug, Clone, Default)]
struct Addresses(Arc<Mutex<Vec<SocketAddr>>>);

impl Addresses {
    fn any(&self, rng: &mut Rng) -> SocketAddr {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all[rng.usize(..all.len())]
    }

    fn set(&self, place: usize, address: SocketAddr) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if place < all.len() { all[place] = address } else { all.push(address) }
    }
}

/// One participant: says everything, wherever that is possible, until all of it is acknowledged. Gives the ids that were.
async fn participant(addresses: Addresses, session: String, name: String, mut rng: Rng) -> Vec<String> {
    let mut left: Vec<String> = (0..SEGMENTS).map(|number| number.to_string()).collect();
    let mut acknowledged = Vec::new();
    loop {
        let query = format!("?client={name}&epoch=1&speaker={name}");
        let address = addresses.any(&mut rng);
        let Ok(mut client) = Client::connect(address, "storm", &session, &query, &[]).await else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        for id in left.clone() {
            sleep(CALL.mul_f64(rng.f64() / SEGMENTS as f64 * 2.0)).await;
            if client.say(&id, &format!("{name} says {id}.")).await.is_err() {
                break;
            }
        }
        let asked = client.send(&json!({ "type": "Finalize" })).await;
        while asked.is_ok() {
            match client.next().await {
                Ok(frame) if frame["type"] == "ack" => {
                    let id = frame["id"].as_str().unwrap_or_default().to_owned();
                    left.retain(|waiting| *waiting != id);
                    acknowledged.push(format!("{name}:1:{id}"));
                }
                Ok(frame) if frame["type"] == "saved" => break,
                Ok(_) => {}
                Err(_) => break,
            }
        }
        if left.is_empty() {
            // Some close, some break off.
            if rng.bool() {
                client.close().await.ok()
            } else {
                client.break_off().ok()
            };
            return acknowledged;
        }
    }
}

/// The last end of each session, and how many there are.
async fn ends(world: &TestWorld) -> Result<BTreeMap<String, Vec<u64>>, Box<dyn Error>> {
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let mut ends: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for sequence in 1..=stream.cached_info().state.last_sequence {
        let Ok(message) = stream.get_raw_message(sequence).await else { continue };
        if message.subject.as_str() == SESSION_ENDED_SUBJECT {
            let end: Value = serde_json::from_slice(&message.payload)?;
            let session = end["sessionId"].as_str().unwrap_or_default().to_owned();
            ends.entry(session).or_default().push(end["publishedSegments"].as_u64().unwrap_or_default());
        }
    }
    Ok(ends)
}

async fn stored(world: &TestWorld) -> Result<BTreeMap<String, Vec<String>>, Box<dyn Error>> {
    let mut sources: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut segments = world.segments().find(doc! {}).await?;
    while let Some(segment) = segments.try_next().await? {
        let (session, source) = (segment.get_str("sessionId")?.to_owned(), segment.get_str("source")?.to_owned());
        sources.entry(session).or_default().push(source);
    }
    Ok(sources)
}

#[tokio::test(flavor = "multi_thread")]
async fn transcribers_are_killed_and_nats_goes_away() -> Outcome {
    let (sessions, kills) = (number("TRANSCRIPT_TESTS_SESSIONS", 12), number("TRANSCRIPT_TESTS_KILLS", 2));
    let seed = u64::try_from(number("TRANSCRIPT_TESTS_SEED", usize::try_from(fastrand::u32(..))?))?;
    println!("TRANSCRIPT_TESTS_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let mut world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    let revising = ["--quiet-period", "100ms", "--revise", "--revise-every", "200ms"];
    let processor = world.processor("run").arguments(revising).start().await?;
    let command = || {
        world.processor("transcriber").arguments([
            "--lease",
            "1s",
            "--end-after-break",
            "2s",
            "--end-after-close",
            "500ms",
        ])
    };
    let command = command();
    let addresses = Addresses::default();
    let mut transcribers = Vec::new();
    for place in 0..2 {
        let started = RunningTranscriber::start(command.clone()).await?;
        addresses.set(place, started.address);
        transcribers.push(started);
    }
    let mut participants = JoinSet::new();
    for session in 0..sessions {
        for socket in 0..SOCKETS {
            let session = format!("session-{session}");
            let task = participant(addresses.clone(), session.clone(), format!("p{socket}"), rng.fork());
            participants.spawn(async move { (session, task.await) });
        }
    }
    let begun = Instant::now();
    let pause = CALL / u32::try_from(kills + 1)?;
    for kill in 0..kills {
        sleep(pause.mul_f64(0.5 + rng.f64())).await;
        let place = kill % transcribers.len();
        transcribers[place].process.kill().await?;
        if kill == kills / 2 {
            world.nats.process().kill().await?;
            sleep(AWAY).await;
            world.nats.start_again().await?;
        }
        transcribers[place] = RunningTranscriber::start(command.clone()).await?;
        addresses.set(place, transcribers[place].address);
    }
    let mut acknowledged: BTreeMap<String, Vec<String>> = BTreeMap::new();
    while let Some(participant) = participants.join_next().await {
        let (session, ids) = participant?;
        acknowledged.entry(session).or_default().extend(ids);
    }
    println!("{sessions} sessions were delivered in {:?}", begun.elapsed());
    let within = LONG + SETTLES * u32::try_from(sessions)?;
    let all_ended = wait_until("every session has ended", within, || async {
        let open = world.database().collection::<Document>("transcriptsessions");
        let open = open.count_documents(doc! { "state": { "$ne": "ended" } }).await.map_err(|e| e.to_string())?;
        let ended = ends(&world).await.map_err(|e| e.to_string())?.len();
        if open == 0 && ended == sessions { Ok(()) } else { Err(format!("{open} are open, {ended} have ended")) }
    });
    if let Err(error) = all_ended.await {
        let logs: Vec<String> = transcribers.iter().map(|transcriber| transcriber.process.logs()).collect();
        return Err(format!("{error}\n{}", logs.join("\n---\n")).into());
    }
    let (stored, ends) = (stored(&world).await?, ends(&world).await?);
    for (session, ids) in &acknowledged {
        let sources = stored.get(session).map(Vec::as_slice).unwrap_or_default();
        for id in ids {
            assert!(sources.contains(id), "{session}: {id} was acknowledged, and is not stored");
        }
        assert_eq!(sources.len(), SOCKETS * SEGMENTS, "{session}: each segment once");
        let counts = ends.get(session).map(Vec::as_slice).unwrap_or_default();
        let count = u64::try_from(sources.len())?;
        assert!(counts.contains(&count), "{session}: {count} are stored, its ends say {counts:?}");
    }
    let audited = wait_until("stream and store are one to one", within, || async {
        match world.processor("audit").run(LONG).await {
            Ok(audit) => Ok(audit),
            Err(error) => Err(error.to_string()),
        }
    });
    println!("{}\nends: {:?}", audited.await?, ends.values().map(Vec::len).max());
    assert_eq!(world.notifications().await?.len(), sessions);
    assert_eq!(world.summaries().await?.len(), sessions);
    processor.terminate().await?;
    Ok(())
}
