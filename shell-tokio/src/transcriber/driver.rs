//! The loop: inputs to the state machine, outputs from it. It decides nothing.

use std::collections::BTreeMap;

use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::{sleep_until, timeout},
};
use transcript_core::{Failure, FailureKind, Server, Time};
use transcript_trace::is_recorded;
use transcript_transcriber::{
    ConnectionId, Counters, Effect, EffectId, Input, Notice, Output, Report, Settings, StreamState, Transcriber,
};

use super::{
    hub::{Answer, Event},
    store::Store,
    stream::Stream,
};
use crate::{
    monitor::transcriber::TranscriberSnapshot,
    service::{
        clock::Clock,
        driver::{Questions, Signal},
        record::{Copied, Tape},
    },
};

/// How many effects of sessions are performed at the same time: fewer than the MongoDB driver has connections by default
/// (10), so that the lease is renewed however many sessions wait.
const AT_ONCE: usize = 8;
/// How many publications are performed at the same time.
const PUBLICATIONS_AT_ONCE: usize = 64;

/// The state machine, and what it needs.
#[derive(Debug)]
pub struct Driver {
    machine: Transcriber,
    clock: Clock,
    connections: BTreeMap<ConnectionId, mpsc::Sender<Answer>>,
    performer: Performer,
    reports: mpsc::UnboundedReceiver<(EffectId, Report)>,
    stream: watch::Receiver<StreamState>,
    questions: Questions<TranscriberSnapshot>,
    trace: Option<Trace>,
}

/// What goes into the trace of the state machine.
#[derive(Debug)]
struct Trace {
    tape: Tape<Transcriber>,
    /// The last input; `None` where the recorder had no room for it.
    told: Option<(Time, Copied<Transcriber>)>,
    /// What was said to it.
    said: Vec<Output>,
}

impl Trace {
    /// Begins with what the state machine says before it is told anything.
    fn new(mut tape: Tape<Transcriber>) -> Self {
        let told = tape.copy(&None).map(|copied| (Time::ZERO, copied));
        Self { tape, told, said: Vec::new() }
    }

    /// The state machine is about to be told this.
    fn told(&mut self, at: Time, input: &Input) {
        self.told = self.tape.copy(&Some(input.clone())).map(|copied| (at, copied));
    }

    fn said(&mut self, output: &Output) {
        if self.told.is_some() && is_recorded(output) {
            self.said.push(output.clone());
        }
    }

    /// Everything was said.
    fn put(&mut self) {
        let said = std::mem::take(&mut self.said);
        if let Some((at, copied)) = self.told.take() {
            self.tape.put(at, said, copied);
        }
    }
}

/// Performs effects, each in a task of its own.
#[derive(Debug)]
struct Performer {
    store: Store,
    stream: Stream,
    sessions: std::sync::Arc<Semaphore>,
    publications: std::sync::Arc<Semaphore>,
    /// How long an effect may wait before it is begun.
    begun_within: std::time::Duration,
    reports: mpsc::UnboundedSender<(EffectId, Report)>,
}

impl Driver {
    /// A driver of this machine, which was made with these settings. What happens is recorded on `tape`.
    #[must_use]
    pub fn new(
        machine: Transcriber,
        settings: &Settings,
        clock: Clock,
        store: Store,
        stream: Stream,
        questions: Questions<TranscriberSnapshot>,
        tape: Option<Tape<Transcriber>>,
    ) -> Self {
        let (sender, reports) = mpsc::unbounded_channel();
        // The state may have changed since the machine was told it.
        let mut state = stream.state();
        state.mark_changed();
        let performer = Performer {
            store,
            stream,
            sessions: std::sync::Arc::new(Semaphore::new(AT_ONCE)),
            publications: std::sync::Arc::new(Semaphore::new(PUBLICATIONS_AT_ONCE)),
            begun_within: settings.answer_timeout() / 2,
            reports: sender,
        };
        let trace = tape.map(Trace::new);
        Self { machine, clock, connections: BTreeMap::new(), performer, reports, stream: state, questions, trace }
    }

    /// Runs until the state machine has come to its end after a signal. Gives what has happened since the start.
    pub async fn run(
        mut self,
        events: &mut mpsc::UnboundedReceiver<Event>,
        signals: &mut mpsc::UnboundedReceiver<Signal>,
    ) -> Counters {
        loop {
            let said = self.say();
            if let Some(trace) = &mut self.trace {
                trace.put();
            }
            let Some(wake_up) = said else { return self.machine.counters() };
            let sleep = async {
                match wake_up {
                    Some(at) => sleep_until(self.clock.at(at).into()).await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                biased;
                Some(Signal::Drain | Signal::Stop) = signals.recv() => Some(Input::Shutdown),
                Some((effect, report)) = self.reports.recv() => Some(Input::Reported { effect, report }),
                Ok(()) = self.stream.changed() => Some(Input::Stream(*self.stream.borrow_and_update())),
                // Before what clients say, or a flood of it would leave it without an answer.
                Some(answer) = self.questions.next() => {
                    // Whoever asked may have waited long enough.
                    drop(answer.send(TranscriberSnapshot::of(&self.machine, self.clock.now())));
                    None
                }
                Some(event) = events.recv() => self.input(event),
                () = sleep => Some(Input::Woken),
            };
            if let Some(input) = input {
                let now = self.clock.now();
                if let Some(trace) = &mut self.trace {
                    trace.told(now, &input);
                }
                self.machine.handle(now, input);
            }
        }
    }

    /// What a connection says, as an input.
    fn input(&mut self, event: Event) -> Option<Input> {
        match event {
            Event::Opened { opening, answers } => {
                self.connections.insert(opening.connection, answers);
                Some(Input::Opened(opening))
            }
            Event::Frame { connection, frame, place } => {
                drop(place);
                Some(Input::Frame { connection, frame })
            }
            Event::Closed { connection, closure } => {
                self.connections.remove(&connection);
                Some(Input::Closed { connection, closure })
            }
        }
    }

    /// Does what the machine says, and gives the time of its wake-up; `None` when it has come to its end.
    fn say(&mut self) -> Option<Option<Time>> {
        loop {
            let output = self.machine.poll_output();
            if let Some(trace) = &mut self.trace {
                trace.said(&output);
            }
            match output {
                Output::Perform { id, effect } => self.performer.perform(id, effect),
                Output::Send { connection, frame } => self.answer(connection, Answer::Send(frame)),
                Output::Read { connection, reading } => self.answer(connection, Answer::Read(reading)),
                Output::Close { connection, code, reason } => {
                    self.answer(connection, Answer::Close(code, reason));
                    self.connections.remove(&connection);
                }
                Output::Notice(notice) => log(&notice),
                Output::Wait(wake_up) => return Some(wake_up.map(|wake_up| wake_up.at)),
                Output::Stopped => return None,
            }
        }
    }

    /// Hands an answer to a connection. One whose client does not read them is given up.
    fn answer(&mut self, connection: ConnectionId, answer: Answer) {
        if self.connections.get(&connection).is_some_and(|answers| answers.try_send(answer).is_err()) {
            self.connections.remove(&connection);
        }
    }
}

impl Performer {
    fn perform(&self, id: EffectId, effect: Effect) {
        let (store, stream, reports) = (self.store.clone(), self.stream.clone(), self.reports.clone());
        let places = match (effect.kind().server(), effect.session()) {
            (Server::Nats, _) => Some(std::sync::Arc::clone(&self.publications)),
            (Server::Mongodb, Some(_)) => Some(std::sync::Arc::clone(&self.sessions)),
            (Server::Mongodb, None) => None,
        };
        let begun_within = self.begun_within;
        tokio::spawn(async move {
            let place = match places {
                Some(places) => timeout(begun_within, places.acquire_owned()).await.map(Result::ok),
                None => Ok(None),
            };
            let report = match place {
                Ok(_place) => match store.perform(&effect).await {
                    Some(report) => report,
                    None => stream.perform(&effect).await,
                },
                Err(_) => Report::Failed(Failure {
                    kind: FailureKind::Busy,
                    detail: format!("{}: too many others were before it", effect.kind()),
                }),
            };
            // The driver is gone once the machine has come to its end.
            reports.send((id, report)).ok();
        });
    }
}

fn log(notice: &Notice) {
    match notice {
        Notice::NothingIsPublished => {
            tracing::warn!(
                "no NATS server is named (--nats-url, NATS_URL): segments are stored and acknowledged, and nothing is published"
            );
        }
        Notice::Ended { key, generation, segments, stream_sequence } => {
            tracing::info!(%key, generation, segments, stream_sequence, "session ended");
        }
        Notice::LeaseLost { instance } => {
            tracing::warn!(
                %instance,
                "MongoDB was not told in time that this transcriber lives (--lease): other transcribers end the sessions that it \
                 had, and it goes on as another instance. See whether MongoDB was away, or this machine was suspended"
            );
        }
        Notice::TookOver { key, from } => tracing::info!(%key, %from, "took a session over from a dead transcriber"),
        Notice::Failing { kind, failure } => tracing::warn!(
            effect = %kind,
            server = %kind.server(),
            "fails: {failure}; it is tried again, and what is not stored meanwhile is not acknowledged"
        ),
        Notice::Works { kind } => tracing::info!(effect = %kind, server = %kind.server(), "works again"),
        Notice::Limited { key, reason } => {
            tracing::warn!(%key, "a connection is refused: {reason} (--max-connections, --max-sessions, --max-session-connections)");
        }
    }
}
