//! The state machine.

mod answers;
mod known;
mod looks;
mod requests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use transcript_core::{
    ConsumerSettings, Effect, Failure, FailureKind, Report, Time, WallTime,
    ids::{EffectId, JobId},
};

use self::{
    known::KnownDeliveries,
    requests::{Subjects, body},
};
use super::{
    Input, Note, Output, Settings, Timer, WakeUp,
    delivery::AckSubject,
    frame::Message,
    publication::{Content, Publication},
    pull::{self, Pulls},
    search::Search,
};

/// The pause before a request that no effect of the core asks for is repeated: well below any ack wait, because a message
/// that cannot be delivered is kept back by heartbeats meanwhile.
const PAUSE: Duration = Duration::from_millis(500);

/// The client of one process; see the module's first page.
#[derive(Debug)]
pub struct JetStream {
    settings: Settings,
    subjects: Subjects,
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
    known: KnownDeliveries,
    pulls: Pulls,
    /// The last pull request and its payload: most of them are alike.
    last_pull: Option<(pull::Request, Vec<u8>)>,
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
    state: TaskState,
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
enum TaskState {
    Queued,
    Open(u64),
    Paused,
    /// The server may not know the delivery that it acknowledges.
    Held,
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
        /// The place of its message in the stream; 0 where the subject does not say it.
        stream_sequence: u64,
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

impl JetStream {
    /// A client that is not connected yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            pulls: Pulls::new(&settings),
            subjects: Subjects::new(&settings),
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
            known: KnownDeliveries::default(),
            last_pull: None,
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
        // A shell says it after everything that happens.
        if matches!(input, Input::Allow { deliveries } if self.pulls.allows(deliveries)) {
            return;
        }
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
        if self.pulls.is_stopping() && !self.reads_payloads() && self.pulls.has_stopped(self.now) {
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

    /// Whether the payload of a delivery is being read, which the core is told of afterwards.
    fn reads_payloads(&self) -> bool {
        self.tasks.last_key_value().is_some_and(|(id, _)| matches!(id, TaskId::Payload(_)))
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
        self.known.forget();
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
        for task in self.tasks.values_mut().filter(|task| matches!(task.state, TaskState::Open(_))) {
            task.state = TaskState::Queued;
        }
        self.queue.retain(|id| self.tasks.contains_key(id));
    }

    fn perform(&mut self, id: EffectId, effect: Effect) {
        let until = self.now.after(self.settings.sends_within);
        let publish = |content| Work::Publish { effect: id, publication: Publication::new(content), until };
        let work = match effect {
            Effect::Publish { key, announcement, notification, trace_context } => {
                let of_end = trace_context.as_deref();
                let trace_context = match self.settings.spans {
                    Some(spans) => Some(spans.of_announcement(id.job, announcement, of_end)),
                    None => of_end.cloned(),
                };
                publish(Content::Announcement { key, announcement, notification, trace_context })
            }
            Effect::DeadLetter { dead_letter } => publish(Content::DeadLetter(dead_letter)),
            Effect::Republish { stream_sequence, ended } => publish(Content::Redriven { of: stream_sequence, ended }),
            Effect::Acknowledge { reply, acknowledgement, .. } => {
                let stream_sequence = AckSubject::parse(&reply).map_or(0, |subject| subject.stream_sequence);
                Work::Acknowledge { effect: id, reply, stream_sequence, body: body(&acknowledgement), until }
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
        match self.tasks.insert(id, Task { work, state: TaskState::Queued }) {
            Some(Task { state: TaskState::Queued, .. }) => {}
            Some(Task { state: TaskState::Open(token), .. }) => {
                self.open.remove(&token);
                self.queue.push_back(id);
            }
            Some(Task { state: TaskState::Paused | TaskState::Held, .. }) | None => self.queue.push_back(id),
        }
    }

    /// Makes the next request of a task due.
    fn goes_on(&mut self, id: TaskId, work: Work) {
        self.tasks.insert(id, Task { work, state: TaskState::Queued });
        self.queue.push_back(id);
    }

    /// Tries a task again after a while.
    fn pause(&mut self, id: TaskId, work: Work) {
        self.tasks.insert(id, Task { work, state: TaskState::Paused });
        self.paused.insert((self.now.after(PAUSE), id));
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
                && task.state == TaskState::Paused
            {
                task.state = TaskState::Queued;
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
