//! The loop that carries out what the core decides, and decides nothing.

use std::{future, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinHandle, JoinSet},
    time::sleep_until,
};
use transcript_client::mongodb::{Load, Mark, Request};
use transcript_core::{
    Acknowledgement, Done, Effect, EffectKind, FailureKind, Input, Notice, Output, Processor, Report, WakeUp,
    ids::{EffectId, Key},
};

use crate::{
    broker::{Broker, Puller},
    service::clock::Clock,
    service::mongodb::Store,
    service::record::Tape,
};

/// The most inputs that are taken at once.
const INPUTS: usize = 256;
/// How long telling the server may take that no more messages are wanted: nothing, unless the connection is stuck.
const STOP: Duration = Duration::from_millis(500);

/// Who carries out effects; what became of them comes back as inputs of the driver.
pub trait Servers {
    /// Begins the effect.
    fn perform(&mut self, id: EffectId, effect: Effect);
    /// Says that a delivery is still worked on.
    fn in_progress(&mut self, reply: Arc<str>);
    /// Begins to end the deliveries. [`Input::DeliveriesStopped`] comes behind the last of them.
    fn stop_deliveries(&mut self);
}

/// The real servers.
#[derive(Debug)]
pub struct RealServers {
    /// MongoDB.
    pub store: Store,
    /// NATS.
    pub broker: Broker,
    /// The deliveries.
    pub deliveries: Option<Deliveries>,
    /// Where what becomes of them is told.
    pub inputs: mpsc::UnboundedSender<Input>,
}

/// Everything that brings new jobs, at work.
#[derive(Debug)]
pub struct Deliveries {
    stop: oneshot::Sender<()>,
    stopped: JoinHandle<()>,
    /// What finds jobs elsewhere than in the pull requests; it is ended at once.
    others: JoinSet<()>,
}

impl Deliveries {
    /// Starts the puller, beside `others` that are at work already.
    #[must_use]
    pub fn start(puller: Puller, others: JoinSet<()>) -> Self {
        let (stop, told) = oneshot::channel();
        Self { stop, stopped: tokio::spawn(puller.run(told)), others }
    }

    async fn stop(mut self) {
        self.others.shutdown().await;
        // A puller that cannot be told is gone already.
        let told = self.stop.send(()).is_ok();
        if told && tokio::time::timeout(STOP, self.stopped).await.is_err() {
            tracing::warn!("NATS could not be told within {STOP:?} that no more messages are wanted");
        }
    }
}

/// The loop's parts.
#[derive(Debug)]
pub struct Driver<S> {
    /// Who decides.
    pub processor: Processor,
    /// Who carries out.
    pub servers: S,
    /// The time.
    pub clock: Clock,
    /// Deliveries and reports.
    pub inputs: mpsc::UnboundedReceiver<Input>,
    /// How many deliveries the core has taken and wants, all together since the start.
    pub allowance: watch::Sender<u64>,
    /// Where what the core is told is recorded.
    pub tape: Option<Tape>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every job was finished or given back.
    Drained {
        /// Jobs that the grace time left to redelivery.
        abandoned: u64,
    },
}

/// What an operator asks of a running processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Come to an end.
    Drain,
}

impl<S: Servers> Driver<S> {
    /// Drives the core until it has drained.
    pub async fn run(mut self, signals: &mut mpsc::UnboundedReceiver<Signal>) -> Ended {
        let mut inputs = Vec::with_capacity(INPUTS);
        loop {
            let Some(wake_up) = self.carry_out() else {
                return Ended::Drained { abandoned: self.processor.counters().abandoned };
            };
            self.allow();
            tokio::select! {
                Some(signal) = signals.recv() => match signal {
                    Signal::Drain => self.handle(Input::Drain),
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
                () = until(self.clock, wake_up) => self.handle(Input::Woken),
            }
        }
    }

    fn handle(&mut self, input: Input) {
        self.log_input(&input);
        let now = self.clock.now();
        let Some(tape) = &mut self.tape else {
            self.processor.handle(now, input);
            return;
        };
        let copied = tape.copy(&input);
        let job = self.processor.handle(now, input);
        if let Some(copied) = copied {
            tape.put(now, job, copied);
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
            Input::Drain => tracing::info!("draining: no more messages are taken"),
            Input::DeliveriesStopped => tracing::debug!("the deliveries have ended"),
        }
    }

    /// Carries out everything that the core has to say, and gives its wake-up; `None` once it has drained.
    fn carry_out(&mut self) -> Option<Option<WakeUp>> {
        loop {
            match self.processor.poll_output() {
                Output::Perform { id, effect } => {
                    log_effect(id, &effect);
                    self.servers.perform(id, effect);
                }
                Output::InProgress { reply } => self.servers.in_progress(reply),
                Output::StopDeliveries => self.servers.stop_deliveries(),
                Output::Notice(notice) => log_notice(&notice),
                Output::Wait(wake_up) => return Some(wake_up),
                Output::Drained => return None,
            }
        }
    }

    fn allow(&self) {
        let allowance = self.processor.allowance();
        self.allowance.send_if_modified(|value| std::mem::replace(value, allowance) != allowance);
    }
}

impl Servers for RealServers {
    fn perform(&mut self, id: EffectId, effect: Effect) {
        match effect {
            Effect::Count { session_id } => self.store.ask(id, Request::Count { session_id }),
            Effect::Load { session_id, after, limit, max_bytes, counted } => {
                let load = Load { session_id, after, limit, max_bytes, counted };
                self.store.ask(id, Request::Load(load));
            }
            Effect::Save { summary } => self.store.ask(id, Request::Save { summary }),
            Effect::Publish { key, announcement, notification } => {
                self.broker.publish(id, key, announcement, notification);
            }
            Effect::Check { key } => self.store.ask(id, Request::Check { key }),
            Effect::Mark { key, announcement, segments, notified } => {
                self.store.ask(id, Request::Mark(Mark { key, announcement, segments, notified }));
            }
            Effect::DeadLetter { dead_letter } => self.broker.dead_letter(id, dead_letter),
            Effect::Republish { stream_sequence, ended } => self.broker.republish(id, stream_sequence, ended),
            Effect::Acknowledge { reply, acknowledgement, .. } => self.broker.acknowledge(id, reply, acknowledgement),
        }
    }

    fn in_progress(&mut self, reply: Arc<str>) {
        self.broker.in_progress(reply);
    }

    fn stop_deliveries(&mut self) {
        let (deliveries, inputs) = (self.deliveries.take(), self.inputs.clone());
        tokio::spawn(async move {
            if let Some(deliveries) = deliveries {
                deliveries.stop().await;
            }
            // A driver that has ended has nothing to be told.
            drop(inputs.send(Input::DeliveriesStopped));
        });
    }
}

async fn until(clock: Clock, wake_up: Option<WakeUp>) {
    match wake_up {
        Some(wake_up) => sleep_until(clock.at(wake_up.at).into()).await,
        None => future::pending().await,
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
