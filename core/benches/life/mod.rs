//! A job's life, driven by answers that come at once.

use std::sync::Arc;

use divan::{Bencher, counter::ItemsCount};
use transcript_core::{
    Delivery, Effect, Input, Output, Page, Payload, Processor, Report, Settings, Stored, Time, WallTime,
    summary::Segment,
};

/// Jobs that are under way at the same time: few, and as many as a processor has in hand in a burst.
pub(crate) const JOBS: [u64; 3] = [64, 4096, 16_384];

/// The life of `count` jobs of calls of `segments` segments, from their delivery to their confirmed acknowledgements.
pub(crate) fn jobs(bencher: Bencher<'_, '_>, count: u64, segments: i64) {
    let segments = call(segments);
    let segments = &segments[..];
    let deliveries: Vec<Delivery> = (1..=count).map(delivery).collect();
    bencher
        .with_inputs(|| {
            (
                Processor::new(Settings::default()).expect("settings can work"),
                deliveries.clone(),
                pages(count, segments),
            )
        })
        .input_counter(move |_| ItemsCount::new(count))
        .bench_local_values(|(mut processor, deliveries, mut pages)| {
            let mut now = Time::ZERO;
            let mut asked = Vec::with_capacity(deliveries.len());
            for delivery in deliveries {
                processor.handle(now, Input::Delivered(delivery));
            }
            while processor.in_flight() > 0 {
                while let output @ (Output::Perform { .. }
                | Output::InProgress { .. }
                | Output::StopDeliveries
                | Output::Notice(_)
                | Output::Wait(Some(_))) = processor.poll_output()
                {
                    match output {
                        Output::Perform { id, effect } => asked.push((id, effect)),
                        Output::InProgress { .. } | Output::StopDeliveries | Output::Notice(_) => {}
                        Output::Wait(wake_up) => {
                            if asked.is_empty() {
                                now = wake_up.map_or(now, |wake_up| wake_up.at);
                                processor.handle(now, Input::Woken);
                            } else {
                                break;
                            }
                        }
                        Output::Drained => return,
                    }
                }
                for (effect, what) in asked.drain(..) {
                    let report = report(&what, segments, &mut pages);
                    processor.handle(now, Input::Reported { effect, report });
                }
            }
        });
}

fn delivery(sequence: u64) -> Delivery {
    let payload =
        format!(r#"{{"conversationId":"conversation-{sequence}","sessionId":"{sequence}","publishedSegments":0}}"#);
    Delivery {
        stream_sequence: sequence,
        attempt: 1,
        stored_at: WallTime::from_millis(0),
        received_at: WallTime::from_millis(10_000),
        reply: Arc::from(format!(
            "$JS.ACK.TRANSCRIPTION.transcript-processor.1.{sequence}.{sequence}.1700000000000000000.0"
        )),
        redrive_of: None,
        trace_context: None,
        payload: Payload(payload.into_bytes()),
    }
}

/// A page for every job, made before the clock starts.
fn pages(count: u64, segments: &[Segment]) -> Vec<Page> {
    (0..count).map(|_| Page { segments: segments.to_vec(), ..Page::default() }).collect()
}

fn report(effect: &Effect, segments: &[Segment], pages: &mut Vec<Page>) -> Report {
    let counted = u64::try_from(segments.len()).unwrap_or(u64::MAX);
    match effect {
        Effect::Count { .. } => Report::Counted { segments: counted },
        Effect::Load { .. } => Report::Loaded(pages.pop().expect("there is one for every job")),
        Effect::Save { .. } => Report::Saved(Stored {
            segments: counted,
            complete: true,
            notified: None,
            revision: 1,
            revised: None,
            edits: 0,
            reprocess: 0,
        }),
        Effect::Check { .. } => Report::Checked(None),
        Effect::Publish { notification, .. } => {
            Report::Published { stream_sequence: 1, segments: notification.segments, edits: 0 }
        }
        Effect::Mark { .. } => Report::Marked,
        Effect::DeadLetter { .. } => Report::DeadLettered { stream_sequence: 1 },
        Effect::Republish { .. } => Report::Republished { stream_sequence: 1 },
        Effect::Acknowledge { .. } => Report::Acknowledged,
    }
}

fn call(segments: i64) -> Vec<Segment> {
    (0..segments).map(|index| segment(index, "so the plan is to ship the summary page first, is it not?")).collect()
}

pub(crate) fn segment(index: i64, text: &str) -> Segment {
    Segment {
        id: format!("s:{index}"),
        index: Some(index),
        speaker: Some(format!("Speaker {}", index % 3)),
        text: text.to_owned(),
        start_ms: Some(index * 4000),
        end_ms: Some(index * 4000 + 3500),
        ..Segment::default()
    }
}
