//! Faults of the core, planted from outside: other settings, and inputs and outputs that are changed on their way.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use transcript_client::jetstream::Frame;
use transcript_core::{
    ConsumerSettings, Delivery, Effect, EffectKind, Exhausted, Input, Output, Payload, Processor, Report, Settings,
    Stored, TranscriptVersion,
    contract::{DEAD_LETTER_SUBJECT, DeadLetter, REASON_HEADER, STREAM_SEQUENCE_HEADER},
    event::SessionEnded,
    ids::{JobId, Key, Session},
    summary::Summary,
};

use crate::bug::Bug;

/// Longer than any run.
const EVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// What a fault keeps in mind.
#[derive(Debug, Default)]
pub(super) struct Planted {
    bug: Option<Bug>,
    /// The first count of each job.
    counts: BTreeMap<JobId, u64>,
    /// Which version of its segments each job wanted to announce.
    announces: BTreeMap<JobId, TranscriptVersion>,
    /// What the core is told besides, first the first.
    pub(super) also: Vec<Input>,
}

/// The settings of a core that has this fault.
pub(super) fn settings(bug: Option<Bug>, settings: Settings) -> Settings {
    match bug {
        Some(Bug::NoSettling) => Settings { settle_rounds: 1, quiet_period: Duration::ZERO, ..settings },
        Some(Bug::ReportsAwaitedForEver | Bug::HeartbeatsAfterFailure) => {
            Settings { request_timeout: EVER, ..settings }
        }
        Some(Bug::BareNak) => Settings { retry_timeout: Duration::ZERO, nak_delay: Duration::ZERO, ..settings },
        Some(Bug::DrainBurnsAttempts) => Settings { max_deliver: u64::MAX, ..settings },
        Some(Bug::MarkNotReadAgain) => Settings { duplicate_window: EVER, ..settings },
        Some(_) | None => settings,
    }
}

impl Planted {
    pub(super) fn new(bug: Option<Bug>) -> Self {
        Self { bug, ..Self::default() }
    }

    /// What the core is told instead of an input.
    pub(super) fn input(&mut self, core: &Processor, input: Input) -> Option<Input> {
        let Some(bug) = self.bug else { return Some(input) };
        match (bug, input) {
            (Bug::HeartbeatsAfterFailure, Input::Reported { report: Report::Failed(_), .. })
            | (Bug::ExhaustedIgnored | Bug::AdvisoryBelieved, Input::Exhausted(_))
            | (Bug::ConsumerChangeIgnored, Input::Consumer(_)) => None,
            (Bug::DrainBurnsAttempts, Input::Consumer(consumer)) => {
                Some(Input::Consumer(ConsumerSettings { max_deliver: u64::MAX, ..consumer }))
            }
            (Bug::DrainBurnsAttempts, Input::Delivered(delivery)) => {
                Some(Input::Delivered(Delivery { attempt: 1, ..delivery }))
            }
            (Bug::AskedAgainIgnored, Input::Delivered(delivery)) => {
                let payload = not_asked_again(&delivery.payload).unwrap_or_else(|| delivery.payload.clone());
                Some(Input::Delivered(Delivery { payload, ..delivery }))
            }
            (Bug::MarkIgnored, Input::Reported { effect, report: Report::Checked(Some(stored)) }) => {
                let report = Report::Checked(Some(Stored { notified: None, ..stored }));
                Some(Input::Reported { effect, report })
            }
            (Bug::MarkIgnored, Input::Reported { effect, report: Report::Saved(stored) }) => {
                let report = Report::Saved(Stored { notified: None, ..stored });
                Some(Input::Reported { effect, report })
            }
            (
                Bug::DifferenceNotAnnounced,
                Input::Reported { effect, report: Report::Published { stream_sequence, segments, edits } },
            ) => {
                let told = TranscriptVersion { segments, edits };
                let TranscriptVersion { segments, edits } = self.announces.get(&effect.job).copied().unwrap_or(told);
                Some(Input::Reported { effect, report: Report::Published { stream_sequence, segments, edits } })
            }
            (Bug::RefusedDeadLetterCounts, Input::Reported { effect, report: Report::Failed(_) })
                if core.kind_of(effect.job) == Some(EffectKind::DeadLetter) =>
            {
                Some(Input::Reported { effect, report: Report::DeadLettered { stream_sequence: 0 } })
            }
            (Bug::CompleteByFirstCount, Input::Reported { effect, report: Report::Counted { segments } }) => {
                self.counts.entry(effect.job).or_insert(segments);
                Some(Input::Reported { effect, report: Report::Counted { segments } })
            }
            (_, input) => Some(input),
        }
    }

    /// What is carried out instead of an output.
    pub(super) fn output(&mut self, output: Output) -> Option<Output> {
        let Some(bug) = self.bug else { return Some(output) };
        match (bug, output) {
            (Bug::NoHeartbeat, Output::InProgress { .. }) => None,
            (Bug::GivesBackTooSoon, Output::StopDeliveries) => {
                self.also.push(Input::DeliveriesStopped);
                Some(Output::StopDeliveries)
            }
            (Bug::NoDeadLetter, Output::Perform { id, effect: Effect::DeadLetter { .. } }) => {
                let report = Report::DeadLettered { stream_sequence: 0 };
                self.also.push(Input::Reported { effect: id, report });
                None
            }
            (Bug::CompleteByFirstCount, Output::Perform { id, effect: Effect::Save { summary } }) => {
                let first = self.counts.get(&id.job).copied().unwrap_or(summary.segments);
                let complete = first >= summary.published_segments;
                let summary = Arc::new(Summary { complete, ..Summary::clone(&summary) });
                Some(Output::Perform { id, effect: Effect::Save { summary } })
            }
            (Bug::DifferenceNotAnnounced, Output::Perform { id, effect }) => {
                if let Effect::Publish { notification, .. } = &effect {
                    let (segments, edits) = (notification.segments, notification.edits);
                    self.announces.insert(id.job, TranscriptVersion { segments, edits });
                }
                Some(Output::Perform { id, effect })
            }
            (Bug::UnescapedKey, Output::Perform { id, effect }) => {
                Some(Output::Perform { id, effect: unescaped_effect(effect) })
            }
            (_, output) => Some(output),
        }
    }
}

/// The same end, which asks for nothing.
fn not_asked_again(payload: &Payload) -> Option<Payload> {
    let ended = SessionEnded { reprocess: 0, ..SessionEnded::parse(&payload.0).ok()? };
    serde_json::to_vec(&ended).ok().map(Payload)
}

/// The dead letter of whoever believes an advisory.
pub(super) fn believed(exhausted: &Exhausted) -> Frame {
    let dead_letter = DeadLetter {
        stream_sequence: exhausted.stream_sequence,
        attempts: exhausted.attempts,
        reason: "its deliveries are used up".to_owned(),
        at: exhausted.received_at,
        ended: None,
    };
    let headers = vec![
        ("Nats-Msg-Id".into(), dead_letter.message_id()),
        (STREAM_SEQUENCE_HEADER.into(), dead_letter.stream_sequence.to_string()),
        (REASON_HEADER.into(), dead_letter.reason),
    ];
    let payload = exhausted.payload.as_ref().map(|payload| payload.0.clone()).unwrap_or_default();
    Frame { subject: DEAD_LETTER_SUBJECT.into(), reply: None, headers, payload }
}

fn unescaped_effect(effect: Effect) -> Effect {
    match effect {
        Effect::Save { summary } => {
            let key = unescaped(&summary.session);
            Effect::Save { summary: Arc::new(Summary { key, ..Summary::clone(&summary) }) }
        }
        Effect::Publish { announcement, notification, trace_context, .. } => {
            Effect::Publish { key: unescaped(&notification.session), announcement, notification, trace_context }
        }
        Effect::Mark { key, announcement, segments, edits, notified } => {
            Effect::Mark { key: unescaped_key(&key), announcement, segments, edits, notified }
        }
        Effect::Check { key } => Effect::Check { key: unescaped_key(&key) },
        Effect::Count { .. }
        | Effect::Load { .. }
        | Effect::DeadLetter { .. }
        | Effect::Republish { .. }
        | Effect::Acknowledge { .. } => effect,
    }
}

fn unescaped(session: &Session) -> Key {
    verbatim(format!("{}:{}", session.conversation_id, session.session_id))
}

fn unescaped_key(key: &Key) -> Key {
    verbatim(key.as_str().replace("%3A", ":").replace("%25", "%"))
}

fn verbatim(text: String) -> Key {
    serde_json::from_value(serde_json::Value::String(text)).expect("a key is a text")
}
