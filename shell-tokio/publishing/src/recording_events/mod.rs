//! The events of recordings, logged and published by an application that does not wait for NATS.

mod buffer;
mod payload;
mod publish;

use std::{
    env,
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_nats::{ConnectOptions, ServerAddr, jetstream::Context};
use serde::Serialize;
use tokio::{runtime::Handle, sync::Notify};
use transcript_contract::WallTime;

pub use self::buffer::{DropReason, RecordingCounts};
use self::{
    buffer::{Bounds, Buffer, Event},
    publish::{End, Target},
};
use crate::recording_subject;

/// What may wait while NATS is away.
const BOUNDS: Bounds = Bounds { events: 4096, bytes: 4 << 20 };
/// The target of the log lines, for filters.
const LOG: &str = "recording";

/// Logs the events of recordings, and publishes them to `recording.<event>`.
///
/// ```no_run
/// use serde_json::json;
/// use transcript_publishing::RecordingEvents;
///
/// # async fn record() {
/// let events = RecordingEvents::from_env();
/// events.log("recording-confirmed", json!({ "recording": "monday", "room": "room-7" }));
/// events.log("stored", json!({ "recording": "monday", "bytes": 48_211_900 }));
/// // A recording that was requested and never started:
/// events.log("deleted", json!({ "recording": "tuesday", "reason": "never-started" }));
/// events.close(std::time::Duration::from_secs(5)).await;
/// # }
/// ```
///
/// [`log`](Self::log) cannot fail and does not wait, whatever happens to NATS:
///
/// - It writes one line to the log: `RECORDING_EVENT {json}`, an `info` of the target `recording`, with the name in the
///   field `event`. The object is `{ts, …data}`, on one line, with control characters escaped. Logs are `tracing`'s.
/// - The same bytes are published to `recording.<event>` by a task, one after the other: the stream has the events in the
///   order of the log. An event that was sent and not acknowledged is sent again with the same `Nats-Msg-Id`, so that the
///   stream, within its duplicate window, stores it once.
/// - While NATS is away, 4096 events and 4 MiB of them wait; what comes then is dropped. Dropped events are warned of with
///   their number and names, at once and then every ten seconds while there are more. Memory stays bounded.
/// - An event whose name cannot be part of a subject is logged and not published; an event whose data cannot be written as a
///   JSON object (also where its serializer panics and panics unwind) is not, and a warning names it. Both are counted.
///
/// What became of all events is in [`counts`](Self::counts). A value can be cloned; all clones are one queue. A layer of
/// `tracing` must not call `log` itself.
#[derive(Debug, Clone)]
pub struct RecordingEvents {
    shared: Arc<Shared>,
    /// Dropped with the last clone.
    _open: Arc<Open>,
}

impl RecordingEvents {
    /// Publishes to the servers of `NATS_URL`, several of which are separated by commas, and connects to them in the
    /// background for as long as it takes. Without `NATS_URL` nothing is published, which is said once in the log.
    ///
    /// It is for a Tokio runtime: called outside of one, or with a `NATS_URL` that is none, it logs an error, and events are
    /// only logged.
    #[must_use]
    pub fn from_env() -> Self {
        Self::from_variable(env::var("NATS_URL"))
    }

    fn from_variable(url: Result<String, env::VarError>) -> Self {
        static SAID: Once = Once::new();
        match url {
            Ok(url) if !url.trim().is_empty() => Self::connect(&url, publish::default_options()),
            Ok(_) | Err(env::VarError::NotPresent) => {
                SAID.call_once(|| tracing::warn!(target: LOG, "NATS_URL is not set: recording events are only logged"));
                Self::only_logged()
            }
            Err(env::VarError::NotUnicode(_)) => {
                tracing::error!(target: LOG, "NATS_URL is not UTF-8: recording events are only logged");
                Self::only_logged()
            }
        }
    }

    /// The same with the servers of `url`, and with credentials, TLS and times as `options` say.
    #[must_use]
    pub fn connect(url: &str, options: ConnectOptions) -> Self {
        let servers: Result<Vec<ServerAddr>, _> = url.split(',').map(|server| server.trim().parse()).collect();
        match servers {
            Ok(servers) => Self::start(Target::Servers { servers, options: Box::new(options) }),
            // The URL may hold a password.
            Err(_) => {
                tracing::error!(target: LOG, "the URL of NATS is none: recording events are only logged");
                Self::only_logged()
            }
        }
    }

    /// Publishes with the application's own connection.
    #[must_use]
    pub fn new(js: Context) -> Self {
        Self::start(Target::Context(js))
    }

    /// Publishes nothing.
    #[must_use]
    pub fn only_logged() -> Self {
        Self::of(Shared::new(BOUNDS, Publishing::Never))
    }

    fn start(target: Target) -> Self {
        let Ok(runtime) = Handle::try_current() else {
            tracing::error!(target: LOG, "there is no Tokio runtime here: recording events are only logged");
            return Self::only_logged();
        };
        let events = Self::of(Shared::new(BOUNDS, Publishing::Always));
        runtime.spawn(publish::publish(End(Arc::clone(&events.shared)), target));
        events
    }

    fn of(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        Self { _open: Arc::new(Open(Arc::clone(&shared))), shared }
    }

    /// Logs an event that happens now, and has it published. `data` gives a JSON object, or nothing: a struct, a map, a
    /// `serde_json::Value`, `()`. A `ts` in it takes the place of the time.
    pub fn log(&self, event: &str, data: impl Serialize) {
        self.log_at(event, now(), data);
    }

    /// Logs an event that happened at `at`.
    pub fn log_at(&self, event: &str, at: WallTime, data: impl Serialize) {
        match payload::of(at, data) {
            Ok(json) => self.shared.log(event, json),
            Err(error) => {
                self.shared.buffer().reject(DropReason::Data);
                tracing::warn!(target: LOG, event, error, "a recording event is not published: its data is no JSON object");
            }
        }
    }

    /// What became of the events so far.
    #[must_use]
    pub fn counts(&self) -> RecordingCounts {
        self.shared.buffer().counts()
    }

    /// Waits until all events are published or dropped, but not longer than `within`. Returns how many still wait.
    pub async fn flush(&self, within: Duration) -> u64 {
        // Where time runs out the count says so.
        tokio::time::timeout(within, self.shared.emptied()).await.ok();
        self.counts().waiting
    }

    /// Waits as [`flush`](Self::flush) does, and then drops what still waits, with a warning that names it. Events that
    /// another clone logs afterwards are dropped too.
    pub async fn close(self, within: Duration) -> RecordingCounts {
        self.flush(within).await;
        self.shared.end();
        self.counts()
    }
}

/// Closes the queue with the last [`RecordingEvents`]: what waits is still published.
#[derive(Debug)]
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.changed.notify_one();
    }
}

/// Whether there is a task that publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Publishing {
    Always,
    Never,
}

/// What the application and the task share.
#[derive(Debug)]
struct Shared {
    buffer: Mutex<Buffer>,
    publishing: Publishing,
    /// Begins the ids of this queue's messages.
    id: String,
    number: AtomicU64,
    /// No more events will come.
    is_closed: AtomicBool,
    /// Nobody publishes any more.
    is_ended: AtomicBool,
    /// To the task: there is an event, or there will be no more.
    changed: Notify,
    /// To the task: an event was dropped.
    dropped: Notify,
    /// To the task: nothing is to be published any more.
    ended: Notify,
    /// To those who wait: nothing waits any more.
    empty: Notify,
}

impl Shared {
    fn new(bounds: Bounds, publishing: Publishing) -> Self {
        Self {
            buffer: Mutex::new(Buffer::new(bounds)),
            publishing,
            id: nuid::next().to_string(),
            number: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
            changed: Notify::new(),
            dropped: Notify::new(),
            ended: Notify::new(),
            empty: Notify::new(),
        }
    }

    fn buffer(&self) -> MutexGuard<'_, Buffer> {
        // Nothing panics halfway through a change of it.
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, name: &str, json: String) {
        let subject = recording_subject(name);
        // The line is written under the lock: the queue has the events in the order of the log.
        let mut buffer = self.buffer();
        tracing::info!(target: LOG, event = name, "RECORDING_EVENT {json}");
        if self.publishing == Publishing::Never {
            buffer.only_logged();
            return;
        }
        let Ok(subject) = subject else {
            buffer.reject(DropReason::Name);
            drop(buffer);
            tracing::warn!(target: LOG, event = name, "a recording event is not published: its name is none for a subject");
            return;
        };
        if self.is_ended.load(Ordering::Acquire) {
            buffer.reject(DropReason::Ended);
            drop(buffer);
            tracing::warn!(target: LOG, event = name, "a recording event is not published: publishing has ended");
            return;
        }
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let id = format!("recording-{}-{number}", self.id);
        let pushed = buffer.push(Event { subject, id, payload: json.into() });
        drop(buffer);
        match pushed {
            Ok(()) => self.changed.notify_one(),
            Err(DropReason::TooLarge) => {
                tracing::warn!(target: LOG, event = name, "a recording event is not published: it is too large");
            }
            Err(_) => self.dropped.notify_one(),
        }
    }

    /// The oldest event, once there is one; `None` once there will be none any more.
    async fn next(&self) -> Option<Event> {
        loop {
            if let Some(event) = self.buffer().oldest() {
                return Some(event.clone());
            }
            self.empty.notify_waiters();
            if self.is_closed.load(Ordering::Acquire) {
                return None;
            }
            self.changed.notified().await;
        }
    }

    async fn emptied(&self) {
        loop {
            let empty = self.empty.notified();
            tokio::pin!(empty);
            // From here on it is told, also before it waits.
            empty.as_mut().enable();
            if self.buffer().is_empty() {
                return;
            }
            empty.await;
        }
    }

    /// Nobody will publish what waits.
    fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        self.buffer().give_up_all();
        self.report();
        self.empty.notify_waiters();
        self.ended.notify_one();
    }

    /// Warns of events that were dropped since the last report.
    fn report(&self) {
        let reports = self.buffer().report();
        for (reason, report) in reports {
            let why = if reason == DropReason::Ended {
                "the application ended first"
            } else {
                "as many as the buffer holds were waiting"
            };
            let (dropped, names) = (report.events, report.names());
            tracing::warn!(target: LOG, dropped, names, "recording events were dropped: {why}");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place of this package that reads the calendar")]
fn now() -> WallTime {
    WallTime::from_millis(0).after(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests;
