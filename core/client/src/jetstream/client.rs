//! The state machine.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use transcript_core::{
    Acknowledgement, ConsumerSettings, Delivery, Effect, Exhausted, Failure, FailureKind, Payload, Report, Time,
    WallTime,
    contract::SESSION_ENDED_SUBJECT,
    ids::{EffectId, JobId},
};

use serde::Deserialize;

use super::{
    Input, Note, Output, Settings, Timer, WakeUp,
    consumer::{self, Answer, Consumer},
    delivery::{AckSubject, lacks_payload},
    frame::{Address, Frame, Message, Status, header},
    publication::{Content, Envelope, Progress, Publication, Published, Request},
    pull::{Hint, Pulls},
    raw::{self, RawMessage, ReadError, Which},
    search::{Found, Search},
};

/// nats-server's status where nobody listens to a subject.
const NO_RESPONDERS: u16 = 503;
/// The pause before a request that no effect of the core asks for is repeated: well below any ack wait, because a message
/// that cannot be delivered is kept back by heartbeats meanwhile.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(500);
/// How many messages that used up their deliveries may wait to be read. What comes beyond that is found by the audit.
const MOST_ADVISORIES: usize = 16_384;
/// How soon a consumer is looked at again that is missing or cannot be looked at.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// The client of one process; see the module's first page.
#[derive(Debug)]
pub struct JetStream {
    settings: Settings,
    now: Time,
    /// The largest message that the server takes; `None` while there is no connection.
    connection: Option<usize>,
    /// The connection was lost while messages were asked for, and nobody has looked why.
    suspect: bool,
    /// Frames that were given to be written and are not.
    unwritten: u64,
    last_token: u64,
    tasks: BTreeMap<TaskId, Task>,
    /// The tasks whose next request is to be sent, each once.
    queue: VecDeque<TaskId>,
    /// The requests that wait for an answer. Tokens are given in the order of the deadlines.
    open: BTreeMap<u64, (TaskId, Time)>,
    /// The tasks that wait before their next request.
    paused: BTreeSet<(Time, TaskId)>,
    heartbeats: VecDeque<Arc<str>>,
    pulls: Pulls,
    search: Search,
    /// Advisories whose message is being read.
    advisories: usize,
    consumer: Option<ConsumerSettings>,
    look_at: Time,
    outputs: VecDeque<Output>,
}

/// Something that needs one request after another.
#[derive(Debug)]
struct Task {
    work: Work,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TaskId {
    Job(JobId),
    /// Looks at the consumer.
    Look,
    /// Reads a part of what may be under way.
    Search(usize),
    /// Keeps and terminates a message that cannot be delivered.
    Undeliverable(u64),
    /// Reads a message that used up its deliveries.
    Advisory(u64),
    /// Reads the payload of a message that came without it.
    Payload(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Queued,
    Open(u64),
    Paused,
}

#[derive(Debug)]
enum Work {
    /// Until then a request of it may be sent.
    Publish {
        effect: EffectId,
        publication: Publication,
        until: Time,
    },
    Acknowledge {
        effect: EffectId,
        reply: Arc<str>,
        body: String,
        until: Time,
    },
    Look,
    Search {
        part: usize,
    },
    Keep {
        publication: Publication,
    },
    Terminate,
    Advisory {
        attempts: u64,
        received_at: WallTime,
    },
    Payload {
        message: Box<Message>,
        subject: AckSubject,
    },
}

/// The part of `io.nats.jetstream.advisory.v1.max_deliver` that is needed.
#[derive(Deserialize)]
struct MaxDeliver {
    stream_seq: u64,
    deliveries: u64,
}

impl JetStream {
    /// A client that is not connected yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            pulls: Pulls::new(&settings),
            settings,
            now: Time::ZERO,
            connection: None,
            suspect: false,
            unwritten: 0,
            last_token: 0,
            tasks: BTreeMap::new(),
            queue: VecDeque::new(),
            open: BTreeMap::new(),
            paused: BTreeSet::new(),
            heartbeats: VecDeque::new(),
            search: Search::default(),
            advisories: 0,
            consumer: None,
            look_at: Time::ZERO,
            outputs: VecDeque::new(),
        }
    }

    /// Takes what has happened, at a time that is not before that of the last call.
    pub fn handle(&mut self, now: Time, input: Input) {
        self.now = self.now.max(now);
        match input {
            Input::Connected { max_payload, failed_attempts } => self.connected(max_payload, failed_attempts),
            Input::Disconnected => self.disconnected(),
            Input::Written { frames } => self.unwritten = self.unwritten.saturating_sub(frames),
            Input::Received(message) => self.received(message),
            Input::Perform { id, effect } => self.perform(id, effect),
            // What cannot be sent now would be late, and the next one is never far.
            Input::InProgress { reply } if self.connection.is_some() => self.heartbeats.push_back(reply),
            Input::InProgress { .. } | Input::Woken => {}
            Input::Allow { deliveries } => self.pulls.allow(deliveries),
            Input::StopDeliveries => {
                self.pulls.stop();
                self.end_search();
            }
        }
        self.serve_timers();
        let payloads = self.tasks.range(TaskId::Payload(0)..).next().is_some();
        if !payloads && self.pulls.has_stopped(self.now) {
            self.tell(transcript_core::Input::DeliveriesStopped);
        }
    }

    /// The next thing to do, until it is [`Output::Wait`].
    pub fn poll_output(&mut self) -> Output {
        if let Some(output) = self.outputs.pop_front() {
            return output;
        }
        if let Some(frame) = self.next_frame() {
            return Output::Send(frame);
        }
        // A request that cannot be made is reported.
        self.outputs.pop_front().unwrap_or_else(|| Output::Wait(self.wake_up()))
    }

    /// How many requests are under way or wait to be sent: what memory it holds grows with that.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.tasks.len()
    }

    fn connected(&mut self, max_payload: usize, failed_attempts: u32) {
        self.connection = Some(max_payload);
        self.look_at = self.now;
        // A server that had to be tried several times was away: that is why the connection was lost.
        let was_away = failed_attempts > 0 && !self.search.is_on();
        if std::mem::take(&mut self.suspect) && !was_away && !self.pulls.is_stopping() {
            self.search.want();
            self.note(Note::SearchBegun);
        }
    }

    /// What was sent may be lost: each task sends its request again, once, after the next connect.
    fn disconnected(&mut self) {
        if self.connection.take().is_none() {
            return;
        }
        self.suspect |= self.pulls.any_open() || self.search.is_on();
        self.pulls.forget();
        self.heartbeats.clear();
        let open = std::mem::take(&mut self.open);
        let mut queue: VecDeque<TaskId> = open.into_values().map(|(task, _)| task).collect();
        queue.append(&mut self.queue);
        self.queue = queue;
        let (tasks, pulls) = (&mut self.tasks, &mut self.pulls);
        tasks.retain(|id, _| match id {
            TaskId::Job(_) | TaskId::Undeliverable(_) | TaskId::Advisory(_) => true,
            TaskId::Look | TaskId::Search(_) => false,
            // It comes again after the ack wait.
            TaskId::Payload(_) => {
                pulls.given_up();
                false
            }
        });
        for task in self.tasks.values_mut().filter(|task| matches!(task.state, State::Open(_))) {
            task.state = State::Queued;
        }
        self.queue.retain(|id| self.tasks.contains_key(id));
    }

    fn perform(&mut self, id: EffectId, effect: Effect) {
        let until = self.now.after(self.settings.sends_within);
        let publish = |content| Work::Publish { effect: id, publication: Publication::new(content), until };
        let work = match effect {
            Effect::Publish { key, announcement, notification } => {
                publish(Content::Announcement { key, announcement, notification })
            }
            Effect::DeadLetter { dead_letter } => publish(Content::DeadLetter(dead_letter)),
            Effect::Republish { stream_sequence, ended } => publish(Content::Redriven { of: stream_sequence, ended }),
            Effect::Acknowledge { reply, acknowledgement, .. } => {
                Work::Acknowledge { effect: id, reply, body: body(&acknowledgement), until }
            }
            Effect::Count { .. }
            | Effect::Load { .. }
            | Effect::Save { .. }
            | Effect::Check { .. }
            | Effect::Mark { .. } => return,
        };
        self.begin(TaskId::Job(id.job), work);
    }

    /// Begins a task. One of the same id is replaced, at its place where it has not been sent.
    fn begin(&mut self, id: TaskId, work: Work) {
        match self.tasks.insert(id, Task { work, state: State::Queued }) {
            Some(Task { state: State::Queued, .. }) => {}
            Some(Task { state: State::Open(token), .. }) => {
                self.open.remove(&token);
                self.queue.push_back(id);
            }
            Some(Task { state: State::Paused, .. }) | None => self.queue.push_back(id),
        }
    }

    /// Makes the next request of a task due.
    fn goes_on(&mut self, id: TaskId, work: Work) {
        self.tasks.insert(id, Task { work, state: State::Queued });
        self.queue.push_back(id);
    }

    fn next_frame(&mut self) -> Option<Frame> {
        let max_payload = self.connection?;
        if self.unwritten >= self.settings.max_unwritten {
            return None;
        }
        let frame = self.next_heartbeat().or_else(|| self.next_request(max_payload)).or_else(|| self.next_pull())?;
        self.unwritten += 1;
        Some(frame)
    }

    fn next_heartbeat(&mut self) -> Option<Frame> {
        let reply = self.heartbeats.pop_front()?;
        Some(heartbeat(reply))
    }

    fn next_request(&mut self, max_payload: usize) -> Option<Frame> {
        while let Some(id) = self.queue.pop_front() {
            let envelope = Envelope { stream: &self.settings.stream, name: &self.settings.name, max_payload };
            if self.tasks.get(&id).is_some_and(|task| task.work.is_late(self.now)) {
                let detail = format!("NATS: not sent within {:?}", self.settings.sends_within);
                self.failed(id, Failure { kind: FailureKind::TimedOut, detail });
                continue;
            }
            let Some(task) = self.tasks.get_mut(&id) else { continue };
            let api = &self.settings.api_prefix;
            let read = |which: &Which| frame(raw::subject(api, envelope.stream), which.body().into_bytes());
            let made = match &task.work {
                Work::Publish { publication, .. } | Work::Keep { publication } => {
                    publication.request(envelope).map(|request| match request {
                        Request::Read(which) => read(&which),
                        Request::Publish { subject, headers, payload } => Frame { headers, ..frame(subject, payload) },
                    })
                }
                Work::Acknowledge { reply, body, .. } => Ok(frame(Arc::clone(reply), body.clone().into_bytes())),
                Work::Look => Ok(frame(consumer::subject(api, &self.settings.stream, &self.settings.consumer), vec![])),
                Work::Search { part } => match self.search.next(*part) {
                    Some(next) => Ok(read(&Which::NextOf(next, SESSION_ENDED_SUBJECT.to_owned()))),
                    None => {
                        self.tasks.remove(&id);
                        continue;
                    }
                },
                Work::Terminate => {
                    let TaskId::Undeliverable(sequence) = id else { continue };
                    let reply = AckSubject::composed(&self.settings.stream, &self.settings.consumer, sequence);
                    Ok(frame(reply, b"+TERM its header block cannot be parsed".to_vec()))
                }
                Work::Advisory { .. } => {
                    let TaskId::Advisory(sequence) = id else { continue };
                    Ok(read(&Which::Sequence(sequence)))
                }
                Work::Payload { subject, .. } => Ok(read(&Which::Sequence(subject.stream_sequence))),
            };
            match made {
                Ok(frame) => {
                    self.last_token += 1;
                    task.state = State::Open(self.last_token);
                    self.open.insert(self.last_token, (id, self.now.after(self.settings.request_timeout)));
                    return Some(Frame { reply: Some(self.last_token), ..frame });
                }
                Err(failure) => self.failed(id, failure),
            }
        }
        None
    }

    fn next_pull(&mut self) -> Option<Frame> {
        if self.holds_pulls() {
            return None;
        }
        let request = self.pulls.wanted(self.now)?;
        self.last_token += 1;
        self.pulls.asked(self.now, self.last_token, request, self.settings.pull_margin);
        let Settings { stream, consumer, api_prefix, .. } = &self.settings;
        let subject = format!("{api_prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        Some(Frame { reply: Some(self.last_token), ..frame(subject, request.body().into_bytes()) })
    }

    /// Whether a message that breaks the connection may be under way.
    fn holds_pulls(&self) -> bool {
        let undeliverable = TaskId::Undeliverable(0)..=TaskId::Undeliverable(u64::MAX);
        self.search.is_on() || self.tasks.range(undeliverable).next().is_some()
    }

    fn received(&mut self, message: Message) {
        self.pulls.heard(self.now, self.settings.pull_margin);
        if message.to == Address::Advisories {
            return self.advised(&message);
        }
        // Whoever has to be told that a message is done has been given a message, whatever its status line says: anybody can
        // publish `NATS/1.0 503`.
        if let Some(subject) = message.reply.as_deref().and_then(AckSubject::parse) {
            self.pulls.received();
            return self.delivered(subject, message);
        }
        let token = match message.to {
            Address::Advisories | Address::Published => return,
            Address::Inbox(token) => token,
        };
        if let Some((id, _)) = self.open.remove(&token) {
            self.answered(id, &message);
        } else if let Some(status) = &message.status {
            let pending = header(&message.headers, "Nats-Pending-Messages").and_then(|value| value.parse().ok());
            match self.pulls.ended(self.now, token, status, pending) {
                Hint::None => {}
                Hint::Look(status) => {
                    self.note(Note::PullRefused { status });
                    self.look_at = self.now;
                }
            }
        }
    }

    fn advised(&mut self, message: &Message) {
        if self.pulls.is_stopping() {
            return;
        }
        match serde_json::from_slice(&message.payload) {
            Ok(MaxDeliver { stream_seq, deliveries }) if self.advisories < MOST_ADVISORIES => {
                let id = TaskId::Advisory(stream_seq);
                let work = Work::Advisory { attempts: deliveries, received_at: message.received_at };
                self.advisories += usize::from(!self.tasks.contains_key(&id));
                self.begin(id, work);
            }
            Ok(MaxDeliver { .. }) => self.note(Note::AdvisoryDropped),
            Err(_) => self.note(Note::UnreadableAdvisory),
        }
    }

    fn delivered(&mut self, subject: AckSubject, message: Message) {
        if lacks_payload(&message) {
            self.look_at = self.now;
            let work = Work::Payload { message: Box::new(message), subject };
            if self.tasks.contains_key(&TaskId::Payload(subject.stream_sequence)) {
                self.pulls.given_up();
            }
            self.begin(TaskId::Payload(subject.stream_sequence), work);
        } else {
            self.tell(transcript_core::Input::Delivered(subject.delivery(message)));
        }
    }

    /// Takes the answer to a task's request.
    fn answered(&mut self, id: TaskId, message: &Message) {
        if matches!(message.status, Some(Status { code: NO_RESPONDERS, .. })) {
            let failure = Failure { kind: FailureKind::Unreachable, detail: "NATS: nobody answers there".to_owned() };
            return self.failed(id, failure);
        }
        let max_payload = self.connection.unwrap_or(usize::MAX);
        let settings = &self.settings;
        let Some(Task { work, .. }) = self.tasks.remove(&id) else { return };
        match work {
            // Any answer is a yes.
            Work::Acknowledge { effect, .. } => self.report(effect, Report::Acknowledged),
            Work::Publish { effect, mut publication, until } => {
                let envelope = Envelope { stream: &settings.stream, name: &settings.name, max_payload };
                match publication.answered(&message.payload, envelope) {
                    Progress::GoesOn => self.goes_on(id, Work::Publish { effect, publication, until }),
                    Progress::Done(published) => self.report(effect, done(publication.content(), published)),
                    Progress::Failed(failure) => self.report(effect, Report::Failed(failure)),
                }
            }
            Work::Keep { mut publication } => {
                let envelope = Envelope { stream: &settings.stream, name: &settings.name, max_payload };
                match publication.answered(&message.payload, envelope) {
                    Progress::GoesOn => self.goes_on(id, Work::Keep { publication }),
                    Progress::Done(_) => self.goes_on(id, Work::Terminate),
                    Progress::Failed(failure) => {
                        self.tasks.insert(id, Task { work: Work::Keep { publication }, state: State::Queued });
                        self.failed(id, failure);
                    }
                }
            }
            Work::Terminate => {
                if let TaskId::Undeliverable(stream_sequence) = id {
                    self.note(Note::UndeliverableKept { stream_sequence });
                }
            }
            Work::Look => self.looked(Answer::read(&message.payload)),
            Work::Search { part } => {
                self.searched(part, RawMessage::read(&message.payload), message.received_at);
            }
            Work::Advisory { attempts, received_at } => {
                self.exhausted(id, attempts, received_at, RawMessage::read(&message.payload));
            }
            Work::Payload { message: delivery, subject } => match RawMessage::read(&message.payload) {
                Ok(RawMessage { payload, .. }) => {
                    let delivery = Delivery { payload: Payload(payload), ..subject.delivery(*delivery) };
                    self.tell(transcript_core::Input::Delivered(delivery));
                }
                Err(_) => self.payload_missing(subject.stream_sequence),
            },
        }
    }

    /// A task's request failed, or nobody answered it.
    fn failed(&mut self, id: TaskId, failure: Failure) {
        let Some(Task { work, .. }) = self.tasks.remove(&id) else { return };
        match work {
            Work::Publish { effect, .. } | Work::Acknowledge { effect, .. } => {
                self.report(effect, Report::Failed(failure));
            }
            Work::Look if failure.kind == FailureKind::TimedOut => self.looked(Answer::Failed(failure.to_string())),
            // JetStream is not there: what a request for messages would meet, too.
            Work::Look => self.looked(Answer::Failed(failure.to_string())),
            Work::Search { part } => self.searched(part, Err(ReadError::Unreadable), WallTime::from_millis(0)),
            Work::Payload { subject, .. } => self.payload_missing(subject.stream_sequence),
            Work::Keep { .. } | Work::Terminate => {
                if let TaskId::Undeliverable(stream_sequence) = id {
                    self.note(Note::UndeliverableFailed { stream_sequence, why: failure.to_string() });
                    // It must not be delivered to anybody meanwhile.
                    let Settings { stream, consumer, .. } = &self.settings;
                    self.heartbeats.push_back(AckSubject::composed(stream, consumer, stream_sequence));
                }
                self.pause(id, work);
            }
            Work::Advisory { attempts, received_at } => {
                self.exhausted(id, attempts, received_at, Err(ReadError::Unreadable));
            }
        }
    }

    /// Tries a task again after a while.
    fn pause(&mut self, id: TaskId, work: Work) {
        self.tasks.insert(id, Task { work, state: State::Paused });
        self.paused.insert((self.now.after(PAUSE), id));
    }

    /// A message that used up its deliveries was read, or is no longer there.
    fn exhausted(&mut self, id: TaskId, attempts: u64, received_at: WallTime, read: Result<RawMessage, ReadError>) {
        let TaskId::Advisory(stream_sequence) = id else { return };
        let payload = match read {
            Ok(message) => Some(Payload(message.payload)),
            Err(ReadError::NotFound) => None,
            Err(ReadError::Refused(_) | ReadError::Unreadable) => {
                return self.pause(id, Work::Advisory { attempts, received_at });
            }
        };
        self.advisories -= 1;
        let exhausted = Exhausted { stream_sequence, attempts, received_at, payload };
        self.tell(transcript_core::Input::Exhausted(exhausted));
    }

    fn payload_missing(&mut self, stream_sequence: u64) {
        self.pulls.given_up();
        self.note(Note::PayloadMissing { stream_sequence });
    }

    fn looked(&mut self, answer: Answer) {
        self.look_at = self.now.after(self.settings.consumer_every);
        match answer {
            Answer::Consumer(consumer) => {
                if self.search.is_wanted() {
                    self.begin_search(&consumer);
                }
                let Consumer { max_batch, max_bytes, max_expires, .. } = *consumer;
                self.pulls.bound(&self.settings, max_batch, max_bytes, max_expires);
                if !consumer.differences.is_empty() {
                    let problem = format!("the consumer is not as it must be: {}", consumer.differences.join("; "));
                    self.outputs.push_back(Output::SetUp { problem });
                }
                let settings = ConsumerSettings {
                    ack_wait: consumer.ack_wait,
                    max_deliver: consumer.max_deliver.unwrap_or(u64::MAX),
                };
                if self.consumer.replace(settings) != Some(settings) {
                    self.tell(transcript_core::Input::Consumer(settings));
                }
            }
            Answer::Missing => {
                self.look_at = self.now.after(LOOK_AGAIN);
                let problem = "the consumer or its stream is missing".to_owned();
                self.outputs.push_back(Output::SetUp { problem });
                self.end_search();
            }
            Answer::Failed(why) => {
                self.look_at = self.now.after(LOOK_AGAIN);
                self.note(Note::ConsumerUnknown { why });
                if self.search.is_wanted() && !self.search.goes_on_without_consumer() {
                    self.note(Note::SearchGivenUp);
                }
            }
        }
    }

    fn begin_search(&mut self, consumer: &Consumer) {
        let parts = self.search.begin(consumer.ack_floor, consumer.delivered);
        if parts == 0 {
            self.note(Note::SearchEnded);
        }
        for part in 0..parts {
            self.begin(TaskId::Search(part), Work::Search { part });
        }
    }

    fn searched(&mut self, part: usize, answer: Result<RawMessage, ReadError>, at: WallTime) {
        let was_on = self.search.is_on();
        match self.search.answered(part, answer) {
            Found::More | Found::Again => self.goes_on(TaskId::Search(part), Work::Search { part }),
            Found::Undeliverable(message) => {
                let stream_sequence = message.sequence;
                self.note(Note::Undeliverable { stream_sequence });
                let publication = Publication::new(Content::Undeliverable { message, at });
                self.begin(TaskId::Undeliverable(stream_sequence), Work::Keep { publication });
                self.goes_on(TaskId::Search(part), Work::Search { part });
            }
            Found::End => {}
            Found::GivenUp => return self.note(Note::SearchGivenUp),
        }
        if was_on && !self.search.is_on() {
            self.note(Note::SearchEnded);
        }
    }

    fn end_search(&mut self) {
        if self.search.is_on() {
            self.search.stop();
            self.note(Note::SearchEnded);
        }
    }

    fn serve_timers(&mut self) {
        if self.connection.is_none() {
            return;
        }
        while let Some(entry) = self.open.first_entry().filter(|entry| entry.get().1 <= self.now) {
            let (id, _) = entry.remove();
            let detail = format!("NATS: no answer within {:?}", self.settings.request_timeout);
            self.failed(id, Failure { kind: FailureKind::TimedOut, detail });
        }
        if self.pulls.forget_silent(self.now) {
            self.note(Note::PullSilent);
            self.look_at = self.now;
        }
        while let Some((at, id)) = self.paused.first().copied().filter(|(at, _)| *at <= self.now) {
            self.paused.remove(&(at, id));
            if let Some(task) = self.tasks.get_mut(&id)
                && task.state == State::Paused
            {
                task.state = State::Queued;
                self.queue.push_back(id);
            }
        }
        if self.look_at <= self.now && !self.tasks.contains_key(&TaskId::Look) {
            self.begin(TaskId::Look, Work::Look);
        }
    }

    fn wake_up(&self) -> Option<WakeUp> {
        let lingers = self.pulls.lingers_until().filter(|at| *at > self.now);
        let lingers = lingers.map(|at| (at, Timer::PullSilent));
        if self.connection.is_none() {
            return lingers.map(|(at, timer)| WakeUp { at, timer });
        }
        let answer = self.open.first_key_value().map(|(_, (_, at))| (*at, Timer::Answer));
        let silent = self.pulls.next_forgotten().map(|at| (at, Timer::PullSilent));
        let pause = self.pulls.pause_ends(self.now).filter(|_| !self.holds_pulls());
        let pause = pause.map(|at| (at, Timer::PullPause));
        let look = (!self.tasks.contains_key(&TaskId::Look)).then_some((self.look_at, Timer::Consumer));
        let again = self.paused.first().map(|(at, _)| (*at, Timer::Again));
        let timers = answer.into_iter().chain(silent).chain(lingers).chain(pause).chain(look).chain(again);
        timers.min().map(|(at, timer)| WakeUp { at, timer })
    }

    fn report(&mut self, effect: EffectId, report: Report) {
        self.tell(transcript_core::Input::Reported { effect, report });
    }

    fn tell(&mut self, input: transcript_core::Input) {
        self.outputs.push_back(Output::Tell(input));
    }

    fn note(&mut self, note: Note) {
        self.outputs.push_back(Output::Note(note));
    }
}

impl Work {
    /// Whether an effect was asked for so long ago that the core asks anew.
    fn is_late(&self, now: Time) -> bool {
        match self {
            Self::Publish { until, .. } | Self::Acknowledge { until, .. } => *until < now,
            Self::Look
            | Self::Search { .. }
            | Self::Keep { .. }
            | Self::Terminate
            | Self::Advisory { .. }
            | Self::Payload { .. } => false,
        }
    }
}

fn frame(subject: impl Into<Arc<str>>, payload: Vec<u8>) -> Frame {
    Frame { subject: subject.into(), reply: None, headers: vec![], payload }
}

fn heartbeat(reply: Arc<str>) -> Frame {
    frame(reply, b"+WPI".to_vec())
}

fn done(content: &Content, Published { stream_sequence, segments }: Published) -> Report {
    match content {
        Content::Announcement { .. } => Report::Published { stream_sequence, segments },
        Content::DeadLetter(_) | Content::Undeliverable { .. } => Report::DeadLettered { stream_sequence },
        Content::Redriven { .. } => Report::Republished { stream_sequence },
    }
}

fn body(acknowledgement: &Acknowledgement) -> String {
    match acknowledgement {
        Acknowledgement::Ack => "+ACK".to_owned(),
        Acknowledgement::Nak { delay, .. } if delay.is_zero() => "-NAK".to_owned(),
        Acknowledgement::Nak { delay, .. } => format!(r#"-NAK {{"delay": {}}}"#, delay.as_nanos()),
        Acknowledgement::Term { reason } => format!("+TERM {reason}"),
    }
}
