use std::io;

use serde_json::{Value, json};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

use super::*;

/// Nobody listens there.
const NOWHERE: &str = "nats://127.0.0.1:1";

/// What this thread has logged.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt().without_time().with_ansi(false).with_writer(log.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    fn lines(&self, containing: &str) -> Vec<String> {
        self.text().lines().filter(|line| line.contains(containing)).map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn small(bounds: Bounds) -> RecordingEvents {
    RecordingEvents::of(Shared::new(bounds, Publishing::Always))
}

#[test]
fn without_a_url_events_are_only_logged_and_that_is_said_once() {
    let (log, _guard) = Log::start();
    for url in [Err(env::VarError::NotPresent), Ok(String::new()), Ok(" ".to_owned())] {
        let events = RecordingEvents::from_variable(url);
        events.log_at("stored", WallTime::from_millis(5), json!({ "file": "a.webm" }));
        let expected = RecordingCounts { logged: 1, only_logged: 1, ..RecordingCounts::default() };
        assert_eq!(events.counts(), expected);
    }
    let lines = log.lines("RECORDING_EVENT");
    assert_eq!(lines, [r#" INFO recording: RECORDING_EVENT {"file":"a.webm","ts":5} event="stored""#; 3]);
    assert_eq!(log.lines("NATS_URL is not set").len(), 1, "{}", log.text());
}

#[test]
fn a_url_that_is_none_and_a_missing_runtime_are_logged_without_the_url() {
    let (log, _guard) = Log::start();
    for url in ["nats://ann:sesame@[", NOWHERE] {
        let events = RecordingEvents::connect(url, ConnectOptions::new());
        events.log("stored", ());
        assert_eq!(events.counts().only_logged, 1);
    }
    assert_eq!(log.lines("ERROR recording").len(), 2, "{}", log.text());
    assert!(!log.text().contains("sesame"), "{}", log.text());
}

#[test]
fn what_cannot_be_published_is_logged_and_counted_and_the_caller_goes_on() {
    let (log, _guard) = Log::start();
    let events = small(Bounds { events: 2, bytes: 100 });
    events.log("a b", json!({ "n": 1 }));
    events.log("stored", json!("no object"));
    events.log("stored", json!({ "large": "x".repeat(100) }));
    events.log("stored", json!({ "n": 2 }));
    let counts = events.counts();
    let dropped = [(DropReason::Name, 1), (DropReason::Data, 1), (DropReason::TooLarge, 1)];
    assert_eq!((counts.logged, counts.waiting, counts.dropped), (4, 1, dropped.into()));
    // An event with a wrong name did happen, so its line is there; one without data has nothing to say.
    assert_eq!(log.lines("RECORDING_EVENT").len(), 3, "{}", log.text());
    for why in ["its name is none for a subject", "its data is no JSON object", "it is too large"] {
        assert_eq!(log.lines(why).len(), 1, "{}", log.text());
    }
}

#[tokio::test]
async fn without_nats_what_does_not_fit_is_dropped_and_named_and_the_rest_at_the_end() {
    let (log, _guard) = Log::start();
    let events = RecordingEvents::connect(NOWHERE, ConnectOptions::new());
    let waiting = u64::try_from(BOUNDS.events).unwrap();
    for _ in 0..BOUNDS.events {
        events.log("track.started", ());
    }
    for _ in 0..3 {
        events.log("stored", ());
    }
    events.log("deleted", json!({ "reason": "never-started" }));
    let counts = events.counts();
    assert_eq!((counts.logged, counts.waiting), (waiting + 4, waiting));
    assert_eq!(counts.dropped, [(DropReason::BufferFull, 4)].into());
    assert_eq!(events.flush(Duration::from_millis(1)).await, waiting);

    let counts = events.close(Duration::ZERO).await;
    assert_eq!(counts.dropped, [(DropReason::BufferFull, 4), (DropReason::Ended, waiting)].into());
    assert_eq!((counts.waiting, counts.published), (0, 0));
    let named = |names: &str| log.lines("recording events were dropped").iter().any(|line| line.contains(names));
    assert!(named(r#"dropped=4 names="deleted: 1, stored: 3""#), "{:?}", log.lines("dropped"));
    assert!(named(&format!(r#"dropped={waiting} names="track.started: {waiting}""#)), "{:?}", log.lines("dropped"));
    assert_eq!(log.lines("recording events wait to be published").len(), 1);
}

#[test]
fn a_runtime_that_ends_first_is_no_silent_loss() {
    let (log, _guard) = Log::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let events = runtime.block_on(async { RecordingEvents::connect(NOWHERE, ConnectOptions::new()) });
    events.log("stored", ());
    drop(runtime);
    events.log("deleted", ());
    let counts = events.counts();
    assert_eq!((counts.logged, counts.waiting, counts.dropped), (2, 0, [(DropReason::Ended, 2)].into()));
    assert_eq!(log.lines(r#"dropped=1 names="stored: 1""#).len(), 1, "{}", log.text());
    assert_eq!(log.lines("publishing has ended").len(), 1, "{}", log.text());
}

#[test]
fn the_queue_has_the_order_of_the_log_whichever_threads_log() {
    const EACH: usize = 500;
    let log = Log::default();
    let events = small(Bounds { events: 4 * EACH, bytes: 1 << 20 });
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (events, log) = (events.clone(), log.clone());
            scope.spawn(move || {
                let subscriber = tracing_subscriber::fmt().without_time().with_ansi(false).with_writer(log).finish();
                tracing::subscriber::with_default(subscriber, || {
                    (0..EACH).for_each(|number| events.log("stored", json!({ "thread": thread, "number": number })));
                });
            });
        }
    });
    let mut queued = Vec::new();
    let mut buffer = events.shared.buffer();
    while let Some(event) = buffer.oldest() {
        queued.push(serde_json::from_slice::<Value>(&event.payload).unwrap());
        buffer.published();
    }
    let logged: Vec<Value> = log
        .lines("RECORDING_EVENT")
        .iter()
        .map(|line| line.split_once("RECORDING_EVENT ").unwrap().1.rsplit_once(" event=").unwrap().0)
        .map(|json| serde_json::from_str(json).unwrap())
        .collect();
    assert_eq!(logged.len(), 4 * EACH);
    assert_eq!(queued, logged);
}
