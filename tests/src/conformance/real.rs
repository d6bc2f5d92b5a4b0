//! A script against a nats-server, in real time.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_nats::{Client, ConnectErrorKind, HeaderMap, Message, Subscriber};
use futures::StreamExt;
use jetstream_model::AckSubject;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::{
    sync::oneshot,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep_until},
};

use super::{Action, BrokerEvent, ConsumerPlan, Record, STEP_MS, Script, Step, Stop, model, model::lane_of_step};
use crate::{
    process_guard::ProcessGuardError,
    servers::{NatsServer, ServerError},
};

/// How often the connection is watched.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// Where a script runs.
#[derive(Debug)]
pub enum Host<'h> {
    /// On a server that others use too.
    Shared(&'h NatsServer),
    /// On a server that it may end.
    Own(&'h mut NatsServer),
}

impl Host<'_> {
    fn server(&self) -> &NatsServer {
        match self {
            Self::Shared(server) => server,
            Self::Own(server) => server,
        }
    }
}

/// Why a script could not be run.
#[derive(Debug, Error)]
pub enum RunError {
    /// The machine stood still for longer than the scripts allow for: what was seen says nothing.
    #[error("the machine stood still for {0:?}")]
    Stalled(Duration),
    /// A script that ends the server has none of its own.
    #[error("the script ends the server, which others use")]
    NotItsOwn,
    /// The server could not be started.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The server could not be ended.
    #[error(transparent)]
    Guard(#[from] ProcessGuardError),
    /// No connection.
    #[error("no connection: {0}")]
    Connect(async_nats::error::Error<ConnectErrorKind>),
    /// The connection was lost.
    #[error("the connection was lost: {0}")]
    Lost(#[source] io::Error),
    /// The stream or the consumer could not be made.
    #[error("not set up: {0}")]
    Setup(Value),
}

impl From<async_nats::ConnectError> for RunError {
    fn from(error: async_nats::ConnectError) -> Self {
        Self::Connect(error)
    }
}

fn lost(error: impl std::error::Error + Send + Sync + 'static) -> RunError {
    RunError::Lost(io::Error::other(error))
}

/// Runs the script with a stream of that name, from the next whole second of the wall clock on.
///
/// # Errors
///
/// The server is not there, or the machine stood still.
pub async fn run(script: &Script, stream: &str, mut host: Host<'_>) -> Result<Record, RunError> {
    let seen = Arc::new(Mutex::new(Shared::default()));
    let mut bench = Bench::connect(script, stream, host.server(), &seen).await?;
    bench.set_up().await?;
    let start = next_second().await;
    seen.lock().unwrap_or_else(PoisonError::into_inner).start = Some(start);
    let (steps, end) = script.schedule();
    let mut late = Duration::ZERO;
    for (number, (at, step)) in steps.into_iter().enumerate() {
        let due = start + Duration::from_millis(at);
        sleep_until(due).await;
        late = late.max(due.elapsed());
        if let Step::Restart { stop, down_ms } = step {
            let Host::Own(server) = &mut host else {
                return Err(RunError::NotItsOwn);
            };
            match stop {
                Stop::Terminate => server.process().terminate().await?,
                Stop::Kill => server.process().kill().await?,
            };
            late = late.max(bench.stop_watching().await);
            sleep_until(due + Duration::from_millis(*down_ms)).await;
            server.start_again().await?;
            bench = Bench::connect(script, stream, server, &seen).await?;
        } else {
            bench.step(number, step).await?;
        }
    }
    sleep_until(start + Duration::from_millis(end)).await;
    late = late.max(bench.stop_watching().await);
    if late > Duration::from_millis(model::MARGIN_MS) {
        return Err(RunError::Stalled(late));
    }
    drop(bench);
    let shared = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    let slowest = slowest_answer(script, &shared.record);
    if slowest > Duration::from_millis(STEP_MS) { Err(RunError::Stalled(slowest)) } else { Ok(shared.record) }
}

/// The longest time that a step waited for its answer.
fn slowest_answer(script: &Script, record: &Record) -> Duration {
    let steps = script.schedule().0.into_iter().enumerate();
    let waits = steps.filter_map(|(number, (at, _))| {
        let answered = record.first_at_ms(&lane_of_step(script, number))?;
        Some(Duration::from_millis(answered.saturating_sub(at)))
    });
    waits.max().unwrap_or_default()
}

/// The start of a second of the wall clock that is at least some steps away: pending deliveries are stored in whole seconds.
async fn next_second() -> Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "the server cuts times by the wall clock, so the script starts by it"
    )]
    let wall = std::time::SystemTime::now();
    let into = wall.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    let start = Instant::now() + Duration::from_secs(1) - Duration::from_nanos(u64::from(into));
    sleep_until(start).await;
    start
}

#[derive(Debug, Default)]
struct Shared {
    /// What comes before is not recorded.
    start: Option<Instant>,
    deliveries: BTreeMap<u64, Vec<String>>,
    record: Record,
}

impl Shared {
    fn see(&mut self, lane: String, seen: BrokerEvent) {
        if let Some(start) = self.start {
            let at_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.record.see(lane, at_ms, seen);
        }
    }
}

/// The connections of a script, until the server ends.
struct Bench<'s> {
    script: &'s Script,
    stream: &'s str,
    control: Client,
    clients: Vec<Client>,
    inbox: String,
    seen: Arc<Mutex<Shared>>,
    watch: Option<(oneshot::Sender<()>, JoinHandle<Duration>)>,
    unsubscribe: BTreeMap<u64, oneshot::Sender<()>>,
    /// They end with the bench.
    _readers: JoinSet<()>,
}

impl<'s> Bench<'s> {
    async fn connect(
        script: &'s Script,
        stream: &'s str,
        server: &NatsServer,
        seen: &Arc<Mutex<Shared>>,
    ) -> Result<Self, RunError> {
        let control = server.client().await?;
        let inbox = control.new_inbox();
        let mut readers = JoinSet::new();
        let answers = control.subscribe(format!("{inbox}.step.*")).await.map_err(lost)?;
        let (lane_script, shared) = (script.clone(), seen.clone());
        readers.spawn(read(answers, shared, move |message| {
            let number = message.subject.rsplit('.').next().and_then(|token| token.parse().ok()).unwrap_or(usize::MAX);
            lane_of_step(&lane_script, number)
        }));
        for kind in ["MAX_DELIVERIES", "MSG_NAKED", "MSG_TERMINATED"] {
            let told =
                control.subscribe(format!("$JS.EVENT.ADVISORY.CONSUMER.{kind}.{stream}.c")).await.map_err(lost)?;
            readers.spawn(read(told, seen.clone(), move |_| format!("advisories {kind}")));
        }
        let (mut clients, mut unsubscribe) = (vec![], BTreeMap::new());
        for number in [1, 2] {
            let client = server.client().await?;
            let subscriber = client.subscribe(format!("{inbox}.client.{number}")).await.map_err(lost)?;
            client.flush().await.map_err(lost)?;
            let (stop, stopped) = oneshot::channel();
            unsubscribe.insert(number, stop);
            let reading = read(subscriber, seen.clone(), move |_| format!("client {number}"));
            readers.spawn(async move {
                tokio::select! { () = reading => {}, Ok(()) = stopped => {} }
            });
            clients.push(client);
        }
        control.flush().await.map_err(lost)?;
        let (stop_watch, stopped) = oneshot::channel();
        let watch = Some((stop_watch, tokio::spawn(watch(control.clone(), stopped))));
        let seen = seen.clone();
        Ok(Self { script, stream, control, clients, inbox, seen, watch, unsubscribe, _readers: readers })
    }

    async fn set_up(&self) -> Result<(), RunError> {
        let made = [
            (format!("STREAM.CREATE.{}", self.stream), self.stream_config(self.script.window_ms)),
            (format!("CONSUMER.CREATE.{}.c", self.stream), self.consumer(&self.script.consumer, Action::Create)),
        ];
        for (call, body) in made {
            let answer =
                self.control.request(format!("$JS.API.{call}"), body.to_string().into()).await.map_err(lost)?;
            let answer: Value = serde_json::from_slice(&answer.payload).unwrap_or_default();
            if answer.get("error").is_some() {
                return Err(RunError::Setup(answer));
            }
        }
        Ok(())
    }

    fn stream_config(&self, window_ms: u64) -> Value {
        json!({
            "name": self.stream, "subjects": [format!("{}.>", self.stream)], "retention": "limits", "storage": "file",
            "num_replicas": 1, "duplicate_window": nanos(window_ms), "discard": "old", "max_consumers": -1,
            "max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msg_size": -1, "max_msgs_per_subject": -1,
        })
    }

    fn consumer(&self, plan: &ConsumerPlan, action: Action) -> Value {
        let unlimited = |limit: Option<u64>| limit.map_or(json!(-1), |limit| json!(limit));
        let mut config = json!({
            "name": "c", "durable_name": "c", "deliver_policy": "all", "ack_policy": "explicit",
            "replay_policy": "instant", "ack_wait": nanos(plan.ack_wait_ms),
            "max_deliver": unlimited(plan.max_deliver), "max_ack_pending": unlimited(plan.max_ack_pending),
            "max_waiting": plan.max_waiting, "num_replicas": 0,
        });
        if !plan.backoff_ms.is_empty() {
            config["backoff"] = plan.backoff_ms.iter().map(|ms| nanos(*ms)).collect();
        }
        if let Some(batch) = plan.max_batch {
            config["max_batch"] = json!(batch);
        }
        if let Some(filter) = &plan.filter {
            config["filter_subjects"] = json!([format!("{}.{filter}", self.stream)]);
        }
        let action = match action {
            Action::Create => "create",
            Action::Update => "update",
            Action::Either => "",
        };
        json!({ "stream_name": self.stream, "config": config, "action": action })
    }

    async fn step(&mut self, number: usize, step: &Step) -> Result<(), RunError> {
        let stream = self.stream;
        let (subject, body) = match step {
            Step::Wait { .. } | Step::Restart { .. } => return Ok(()),
            Step::Publish { .. } => return self.publish(number, step).await,
            Step::Pull { .. } => return self.pull(step).await,
            Step::Ack { sequence, delivery, body } => {
                let Some(subject) = self.reply_subject(*sequence, *delivery) else {
                    return Ok(());
                };
                (subject, body.clone())
            }
            Step::DeleteMessage { sequence } => {
                (format!("$JS.API.STREAM.MSG.DELETE.{stream}"), json!({ "seq": sequence }).to_string())
            }
            Step::Purge { subject } => {
                let body = subject.as_ref().map_or(json!({}), |rest| json!({ "filter": format!("{stream}.{rest}") }));
                (format!("$JS.API.STREAM.PURGE.{stream}"), body.to_string())
            }
            Step::SetWindow { ms } => (format!("$JS.API.STREAM.UPDATE.{stream}"), self.stream_config(*ms).to_string()),
            Step::Consumer { action, plan } => {
                (format!("$JS.API.CONSUMER.CREATE.{stream}.c"), self.consumer(plan, *action).to_string())
            }
            Step::DeleteConsumer => (format!("$JS.API.CONSUMER.DELETE.{stream}.c"), String::new()),
            Step::Reset { sequence } => {
                (format!("$JS.API.CONSUMER.RESET.{stream}.c"), json!({ "seq": sequence }).to_string())
            }
            Step::Info => (format!("$JS.API.CONSUMER.INFO.{stream}.c"), String::new()),
            Step::Unsubscribe { client } => {
                if let Some(stop) = self.unsubscribe.remove(client) {
                    stop.send(()).ok();
                }
                return Ok(());
            }
        };
        let reply = format!("{}.step.{number}", self.inbox);
        self.control.publish_with_reply(subject, reply, body.into()).await.map_err(lost)
    }

    async fn publish(&self, number: usize, step: &Step) -> Result<(), RunError> {
        let Step::Publish { subject, id, expected } = step else {
            return Ok(());
        };
        let mut headers = HeaderMap::new();
        if let Some(id) = id {
            headers.insert("Nats-Msg-Id", id.as_str());
        }
        if let Some(expected) = expected {
            headers.insert("Nats-Expected-Last-Subject-Sequence", expected.to_string());
        }
        let (subject, reply) = (format!("{}.{subject}", self.stream), format!("{}.step.{number}", self.inbox));
        if headers.is_empty() {
            self.control.publish_with_reply(subject, reply, "{}".into()).await.map_err(lost)
        } else {
            self.control.publish_with_reply_and_headers(subject, reply, headers, "{}".into()).await.map_err(lost)
        }
    }

    async fn pull(&self, step: &Step) -> Result<(), RunError> {
        let Step::Pull { client, batch, expires_ms, no_wait, heartbeat_ms, max_bytes } = step else {
            return Ok(());
        };
        let mut body = json!({ "batch": batch });
        for (name, value) in [("expires", nanos(*expires_ms)), ("idle_heartbeat", nanos(*heartbeat_ms))] {
            if value != 0 {
                body[name] = value;
            }
        }
        if *no_wait {
            body["no_wait"] = json!(true);
        }
        if *max_bytes > 0 {
            body["max_bytes"] = json!(max_bytes);
        }
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.c", self.stream);
        let reply = format!("{}.client.{client}", self.inbox);
        let nth = usize::try_from(client.saturating_sub(1)).unwrap_or(0);
        let client = self.clients.get(nth).unwrap_or(&self.control);
        client.publish_with_reply(subject, reply, body.to_string().into()).await.map_err(lost)
    }

    fn reply_subject(&self, sequence: u64, delivery: usize) -> Option<String> {
        let shared = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        shared.deliveries.get(&sequence)?.get(delivery.checked_sub(1)?).cloned()
    }

    /// How long the connection stood still at most.
    async fn stop_watching(&mut self) -> Duration {
        match self.watch.take() {
            Some((stop, watch)) => {
                stop.send(()).ok();
                watch.await.unwrap_or(Duration::MAX)
            }
            None => Duration::ZERO,
        }
    }
}

/// Asks the server something that nobody answers, again and again, and says how long that took at most.
async fn watch(control: Client, mut stop: oneshot::Receiver<()>) -> Duration {
    let mut longest = Duration::ZERO;
    loop {
        let before = Instant::now();
        let asked = async {
            sleep_until(before + WATCH_EVERY).await;
            drop(control.request("conformance.watch", "".into()).await);
        };
        tokio::select! {
            () = asked => longest = longest.max(before.elapsed().saturating_sub(WATCH_EVERY)),
            _ = &mut stop => return longest.max(before.elapsed().saturating_sub(WATCH_EVERY)),
        }
    }
}

fn nanos(ms: u64) -> Value {
    json!(ms * 1_000_000)
}

/// Records what comes until the connection ends.
async fn read(mut subscriber: Subscriber, shared: Arc<Mutex<Shared>>, lane: impl Fn(&Message) -> String + Send) {
    while let Some(message) = subscriber.next().await {
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((sequence, reply)) = delivery(&message) {
            shared.deliveries.entry(sequence).or_default().push(reply);
        }
        shared.see(lane(&message), seen(&message));
    }
}

/// The sequence and the reply subject of a delivery.
fn delivery(message: &Message) -> Option<(u64, String)> {
    let reply = message.reply.as_ref()?.as_str();
    Some((reply.parse::<AckSubject>().ok()?.stream_seq, reply.to_owned()))
}

fn seen(message: &Message) -> BrokerEvent {
    if let Some(status) = message.status {
        let code = status.as_u16();
        return if code == 503 { BrokerEvent::NoResponders } else { status_of(code, message) };
    }
    if let Some(Ok(reply)) = message.reply.as_ref().map(|reply| reply.as_str().parse::<AckSubject>()) {
        let AckSubject { stream_seq, deliveries, consumer_seq, pending, .. } = reply;
        return BrokerEvent::Delivered { sequence: stream_seq, attempt: deliveries, consumer_seq, pending };
    }
    if message.payload.is_empty() {
        return BrokerEvent::Confirmed;
    }
    let body: Value = serde_json::from_slice(&message.payload).unwrap_or_default();
    let number = |path: &str| body.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    if let Some(token) = message.subject.strip_prefix("$JS.EVENT.ADVISORY.CONSUMER.") {
        return BrokerEvent::Advisory {
            kind: token.split('.').next().unwrap_or_default().to_owned(),
            sequence: number("/stream_seq"),
            deliveries: number("/deliveries"),
            reason: body.pointer("/reason").and_then(Value::as_str).unwrap_or_default().to_owned(),
        };
    }
    let kind = body.pointer("/type").and_then(Value::as_str).unwrap_or_default();
    if body.get("error").is_some() {
        BrokerEvent::Refused(number("/error/err_code"))
    } else if kind.is_empty() {
        let duplicate = body.pointer("/duplicate").and_then(Value::as_bool).unwrap_or(false);
        BrokerEvent::PubAck { sequence: number("/seq"), duplicate }
    } else if body.get("num_ack_pending").is_some() {
        BrokerEvent::Info {
            delivered: (number("/delivered/consumer_seq"), number("/delivered/stream_seq")),
            floor: (number("/ack_floor/consumer_seq"), number("/ack_floor/stream_seq")),
            ack_pending: number("/num_ack_pending"),
            redelivered: number("/num_redelivered"),
            waiting: number("/num_waiting"),
            pending: number("/num_pending"),
        }
    } else if kind.ends_with("stream_purge_response") {
        BrokerEvent::Purged(number("/purged"))
    } else {
        BrokerEvent::Answered
    }
}

fn status_of(code: u16, message: &Message) -> BrokerEvent {
    let header = |name: &str| {
        let value = message.headers.as_ref().and_then(|headers| headers.get(name));
        value.map(async_nats::HeaderValue::as_str)
    };
    let headers = match (header("Nats-Pending-Messages"), header("Nats-Pending-Bytes")) {
        (Some(messages), Some(bytes)) => format!("pending {messages} messages {bytes} bytes"),
        (_, _) => match (header("Nats-Last-Consumer"), header("Nats-Last-Stream")) {
            (Some(consumer), Some(stream)) => format!("last {consumer} of consumer {stream} of stream"),
            (_, _) => String::new(),
        },
    };
    BrokerEvent::Status { code, text: message.description.clone().unwrap_or_default(), headers }
}
