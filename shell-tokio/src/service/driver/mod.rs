//! The loop that carries out what the core decides, and decides nothing.

mod snapshot;

use std::time::Duration;

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use transcript_client::jetstream::{self, Frame, JetStream, Note};
use transcript_client::mongodb::Request;
use transcript_core::{
    Acknowledgement, Done, Effect, EffectKind, FailureKind, Input, Notice, Output, Processor, Report, Server, Time,
    ids::{EffectId, Key},
};

pub use self::snapshot::{Asker, Failing, Questions, Snapshot, questions};
use crate::monitor::otlp::SpanRecorder;

use super::{clock::Clock, mongodb::Store, nats::Socket, record::Tape, watchdog::Turns};

/// The most inputs that are taken at once.
const INPUTS: usize = 256;
/// How often the loop turns where nothing happens, so that one that stands still is told from one that waits.
const TURN: Duration = Duration::from_secs(1);

/// Who carries out effects; what became of them comes back as inputs of the driver.
pub trait Servers {
    /// Begins an effect of the store.
    fn perform(&mut self, id: EffectId, effect: Effect);
    /// Writes a frame to NATS.
    fn send(&mut self, frame: Frame);
    /// Sets the stream and the consumer up, which are missing or not as they must be.
    fn set_up(&mut self, problem: String);
}

/// The real servers.
#[derive(Debug)]
pub struct RealServers {
    /// MongoDB.
    pub store: Store,
    /// NATS.
    pub nats: Socket,
    /// Takes what is wrong with the stream or the consumer.
    pub repair: mpsc::Sender<String>,
}

/// The loop's parts.
#[derive(Debug)]
pub struct Driver<S> {
    /// Who decides about calls.
    pub processor: Processor,
    /// Who knows how to ask JetStream.
    pub client: JetStream,
    /// Who carries out.
    pub servers: S,
    /// The time.
    pub clock: Clock,
    /// Reports of the store, and what others find for the core.
    pub inputs: mpsc::UnboundedReceiver<Input>,
    /// What comes from NATS.
    pub nats: mpsc::UnboundedReceiver<jetstream::Input>,
    /// Where what the core is told is recorded.
    pub tape: Option<Tape>,
    /// Who makes spans of what jobs do; then the core keeps a journal.
    pub spans: Option<SpanRecorder>,
    /// Where it is counted that the loop turns.
    pub turns: Turns,
    /// Who wants to know how it stands.
    pub questions: Questions,
    /// Pull requests that JetStream ended for a reason of its own, or of whose end it said nothing.
    pub pulls_restarted: u64,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every job was finished or given back.
    Drained {
        /// Jobs that the grace time left to redelivery.
        abandoned: u64,
    },
    /// It was stopped at once; jobs under way are left to redelivery.
    Stopped,
}

/// What an operator asks of a running processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Come to an end.
    Drain,
    /// End now.
    Stop,
}

impl<S: Servers> Driver<S> {
    /// Drives the core until it has drained.
    pub async fn run(mut self, signals: &mut mpsc::UnboundedReceiver<Signal>) -> Ended {
        let (mut inputs, mut received) = (Vec::with_capacity(INPUTS), Vec::with_capacity(INPUTS));
        loop {
            let Some(wake_ups) = self.carry_out() else {
                return Ended::Drained { abandoned: self.processor.counters().abandoned };
            };
            self.turns.count();
            tokio::select! {
                Some(signal) = signals.recv() => match signal {
                    Signal::Drain => self.handle(Input::Drain),
                    Signal::Stop => return Ended::Stopped,
                },
                taken = self.inputs.recv_many(&mut inputs, INPUTS) => {
                    debug_assert!(taken > 0, "the servers hold a sender");
                    for input in inputs.drain(..) {
                        self.handle(input);
                        // Reading a page can take a while: heartbeats that are due must not wait for the pages behind it.
                        if self.carry_out().is_none() {
                            break;
                        }
                    }
                }
                taken = self.nats.recv_many(&mut received, INPUTS) => {
                    debug_assert!(taken > 0, "the socket holds a sender");
                    for input in received.drain(..) {
                        self.client.handle(self.clock.now(), input);
                        if self.carry_out().is_none() {
                            break;
                        }
                    }
                }
                Some(answer) = self.questions.next() => {
                    // Whoever asked may have waited long enough.
                    drop(answer.send(self.snapshot()));
                }
                () = until(self.clock, wake_ups) => {
                    let now = self.clock.now();
                    if wake_ups.core.is_some_and(|at| at <= now) {
                        self.handle(Input::Woken);
                    }
                    self.client.handle(now, jetstream::Input::Woken);
                }
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.processor, self.clock.now(), self.pulls_restarted)
    }

    fn handle(&mut self, input: Input) {
        self.log_input(&input);
        let now = self.clock.now();
        let copied = self.tape.as_mut().and_then(|tape| tape.copy(&input));
        let job = self.processor.handle(now, input);
        if let (Some(tape), Some(copied)) = (&mut self.tape, copied) {
            tape.put(now, job, copied);
        }
        if let Some(spans) = &mut self.spans {
            spans.take(self.processor.take_journal());
        }
    }

    /// Carries out everything that the core and the client have to say, and gives their wake-ups; `None` once the core has
    /// drained.
    fn carry_out(&mut self) -> Option<WakeUps> {
        loop {
            let core = self.carry_out_core()?;
            let deliveries = self.processor.allowance();
            self.client.handle(self.clock.now(), jetstream::Input::Allow { deliveries });
            if let ClientTold::Nothing { client } = self.carry_out_client() {
                return Some(WakeUps { core, client });
            }
        }
    }

    fn log_input(&self, input: &Input) {
        match input {
            Input::Delivered(delivery) => tracing::debug!(
                stream_sequence = delivery.stream_sequence,
                attempt = delivery.attempt,
                reply = &*delivery.reply,
                "delivered"
            ),
            Input::Reported { effect, report: Report::Failed(failure) } => {
                let kind = self.processor.kind_of(effect.job).map(EffectKind::name);
                if failure.kind == FailureKind::Rejected {
                    tracing::warn!(%effect, kind, "{failure}");
                } else {
                    tracing::debug!(%effect, kind, "{failure}");
                }
            }
            Input::Reported { effect, report: report @ Report::DeadLettered { .. } } => {
                tracing::warn!(%effect, "{report}");
            }
            Input::Reported { effect, report } => tracing::debug!(%effect, "{report}"),
            Input::Exhausted(exhausted) => tracing::warn!(
                stream_sequence = exhausted.stream_sequence,
                attempts = exhausted.attempts,
                "a message used up its deliveries"
            ),
            Input::Stale(stale) => {
                tracing::info!(
                    key = stale.session.key().as_str(),
                    "the stored summary is stale, or not announced: the call is looked at again"
                );
            }
            Input::Consumer(consumer) => tracing::info!(
                ack_wait = ?consumer.ack_wait,
                max_deliver = consumer.max_deliver,
                "the consumer's settings, which count from now on"
            ),
            Input::Woken => {}
            Input::Quiet => tracing::info!("quiet: no more messages are taken until it is told to go on"),
            Input::Resume => tracing::info!("goes on: messages are taken again"),
            Input::Drain => tracing::info!("draining: no more messages are taken"),
            Input::DeliveriesStopped => tracing::debug!("the deliveries have ended"),
        }
    }

    fn carry_out_core(&mut self) -> Option<Option<Time>> {
        loop {
            match self.processor.poll_output() {
                Output::Perform { id, effect } => {
                    log_effect(id, &effect);
                    match effect.kind().server() {
                        Server::Mongodb => self.servers.perform(id, effect),
                        Server::Nats => {
                            self.client.handle(self.clock.now(), jetstream::Input::Perform { id, effect });
                        }
                    }
                }
                Output::InProgress { reply } => {
                    self.client.handle(self.clock.now(), jetstream::Input::InProgress { reply });
                }
                Output::StopDeliveries => {
                    self.client.handle(self.clock.now(), jetstream::Input::StopDeliveries);
                }
                Output::Notice(notice) => log_notice(&notice),
                Output::Wait(wake_up) => return Some(wake_up.map(|wake_up| wake_up.at)),
                Output::Drained => return None,
            }
        }
    }

    /// Carries out what the client has to say.
    fn carry_out_client(&mut self) -> ClientTold {
        let mut told = false;
        loop {
            match self.client.poll_output() {
                jetstream::Output::Send(frame) => self.servers.send(frame),
                jetstream::Output::Tell(input) => {
                    self.handle(input);
                    told = true;
                }
                jetstream::Output::SetUp { problem } => self.servers.set_up(problem),
                jetstream::Output::Note(note) => {
                    let restarted = matches!(note, Note::PullRefused { .. } | Note::PullSilent);
                    self.pulls_restarted += u64::from(restarted);
                    log_note(&note);
                }
                jetstream::Output::Wait(_) if told => return ClientTold::Something,
                jetstream::Output::Wait(wake_up) => {
                    return ClientTold::Nothing { client: wake_up.map(|wake_up| wake_up.at) };
                }
            }
        }
    }
}

/// Whether the client has told the core something.
enum ClientTold {
    Something,
    Nothing {
        /// When the client wants to be woken.
        client: Option<Time>,
    },
}

/// When the core and the client want to be woken.
#[derive(Debug, Clone, Copy)]
struct WakeUps {
    core: Option<Time>,
    client: Option<Time>,
}

impl Servers for RealServers {
    fn perform(&mut self, id: EffectId, effect: Effect) {
        // The client of NATS takes the others.
        if let Ok(request) = Request::of(effect) {
            self.store.ask(id, request);
        }
    }

    fn send(&mut self, frame: Frame) {
        self.nats.send(frame);
    }

    fn set_up(&mut self, problem: String) {
        // One that is being repaired is told of already.
        drop(self.repair.try_send(problem));
    }
}

/// Waits for a wake-up, and no longer than a turn.
async fn until(clock: Clock, WakeUps { core, client }: WakeUps) {
    let turn = Instant::now() + TURN;
    let wake_up = core.into_iter().chain(client).min();
    sleep_until(wake_up.map_or(turn, |at| turn.min(clock.at(at).into()))).await;
}

fn log_note(note: &Note) {
    match note {
        Note::PullRefused { status } => tracing::warn!(status, "JetStream ended a pull request"),
        Note::PullSilent => tracing::debug!("a pull request must be forgotten: asking anew"),
        Note::AdvisoryDropped => {
            tracing::error!("too many messages used up their deliveries at once: the audit finds the others");
        }
        Note::UnreadableAdvisory => tracing::warn!("an advisory of JetStream cannot be read"),
        Note::ConsumerUnknown { why } => tracing::debug!(why, "the consumer cannot be looked at"),
        Note::SearchBegun => tracing::info!(
            "the connection was lost while messages were asked for: those under way are read first, and no more are asked \
             for meanwhile"
        ),
        Note::SearchEnded => tracing::info!("the messages under way were read"),
        Note::SearchGivenUp => tracing::warn!(
            "the stream cannot be read: if a message that no client can parse is in it, it will end the connection again"
        ),
        Note::Undeliverable { stream_sequence } => tracing::error!(
            stream_sequence,
            "a message cannot be delivered, because its header block cannot be parsed: it becomes a dead letter"
        ),
        Note::UndeliverableKept { stream_sequence } => {
            tracing::warn!(
                stream_sequence,
                "a message that cannot be delivered is kept as a dead letter and terminated"
            );
        }
        Note::UndeliverableFailed { stream_sequence, why } => {
            tracing::warn!(stream_sequence, why, "a message that cannot be delivered could not be kept yet");
        }
        Note::PayloadMissing { stream_sequence } => {
            tracing::warn!(
                stream_sequence,
                "a message came without its payload, which could not be read: it comes again"
            );
        }
    }
}

fn log_notice(notice: &Notice) {
    match notice {
        Notice::Done(Done { job, key, stream_sequence, segments, published_segments, complete, attempts, took }) => {
            let (seconds, key) = (took.as_secs_f64(), key.as_str());
            tracing::info!(%job, key, stream_sequence, segments, published_segments, complete, attempts, seconds, "done");
        }
        Notice::Failing { kind, failure } => tracing::warn!(
            kind = kind.name(),
            server = %kind.server(),
            "fails: {failure}; it is tried again, and no call is given up while none of its kind succeeds"
        ),
        Notice::Works { kind } => tracing::info!(kind = kind.name(), server = %kind.server(), "works again"),
    }
}

fn log_effect(id: EffectId, effect: &Effect) {
    match effect {
        Effect::Acknowledge { acknowledgement: Acknowledgement::Term { .. }, key: Some(_), .. } => {
            tracing::debug!(effect = %id, "{effect}");
        }
        Effect::Acknowledge { acknowledgement: Acknowledgement::Term { reason }, reply, .. } => {
            tracing::warn!(effect = %id, reason, reply = &**reply, "a message will not be processed: terminated");
        }
        Effect::Acknowledge { acknowledgement: Acknowledgement::Nak { delay, reason }, key, .. } => {
            let key = key.as_ref().map(Key::as_str);
            if delay.is_zero() {
                tracing::debug!(effect = %id, key, reason, "given back");
            } else {
                tracing::warn!(effect = %id, key, reason, "given up: to be delivered again after {delay:?}");
            }
        }
        Effect::Acknowledge { acknowledgement: Acknowledgement::Ack, key, .. } => {
            tracing::debug!(effect = %id, key = key.as_ref().map(Key::as_str), "acknowledged");
        }
        Effect::DeadLetter { dead_letter } => tracing::error!(
            effect = %id,
            key = dead_letter.ended.as_ref().map(|ended| ended.session.key().to_string()),
            stream_sequence = dead_letter.stream_sequence,
            attempts = dead_letter.attempts,
            reason = dead_letter.reason,
            "a call cannot be processed: it becomes a dead letter"
        ),
        Effect::Republish { stream_sequence, .. } => {
            tracing::info!(effect = %id, stream_sequence, "given back by publishing it again: a nak would cost an attempt");
        }
        Effect::Count { .. }
        | Effect::Load { .. }
        | Effect::Save { .. }
        | Effect::Check { .. }
        | Effect::Publish { .. } => {
            tracing::debug!(effect = %id, "{effect}");
        }
        Effect::Mark { key, announcement, .. } => {
            tracing::info!(effect = %id, key = key.as_str(), ?announcement, "summarised and announced");
        }
    }
}

#[cfg(test)]
mod tests;
