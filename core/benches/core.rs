//! What the core costs: a job's life, and the summary a word. `cargo bench -p transcript-core`.
//!
//! The allocations are counted by divan's allocator, so that the times are a little longer than they are without it.

use std::sync::Arc;

use divan::{AllocProfiler, Bencher, counter::ItemsCount};
use transcript_core::{
    Delivery, Effect, Input, Output, Page, Payload, Processor, Report, Settings, Stored, Time, WallTime,
    ids::Session,
    summary::{Limits, Segment, Summarizer},
};

#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// Jobs that are under way at the same time, as in a burst.
const JOBS: u64 = 4096;

/// The life of a job whose call has no segment, from its delivery to its confirmed acknowledgement, among as many others
/// as a processor has in hand. Divide by the number of items.
#[divan::bench]
fn job(bencher: Bencher<'_, '_>) {
    jobs(bencher, &[]);
}

/// The same with a call of twelve segments: the summary's words are in it.
#[divan::bench]
fn job_of_twelve_segments(bencher: Bencher<'_, '_>) {
    jobs(bencher, &call(12));
}

fn jobs(bencher: Bencher<'_, '_>, segments: &[Segment]) {
    let deliveries: Vec<Delivery> = (1..=JOBS).map(delivery).collect();
    bencher
        .with_inputs(|| {
            (Processor::new(Settings::default()).expect("settings can work"), deliveries.clone(), pages(segments))
        })
        .input_counter(|_| ItemsCount::new(JOBS))
        .bench_local_values(|(mut processor, deliveries, mut pages)| {
            let mut now = Time::ZERO;
            let mut asked = Vec::with_capacity(deliveries.len());
            for delivery in deliveries {
                processor.handle(now, Input::Delivered(delivery));
            }
            while processor.in_flight() > 0 {
                while let output @ (Output::Perform { .. } | Output::InProgress { .. } | Output::Wait(Some(_))) =
                    processor.poll_output()
                {
                    match output {
                        Output::Perform { id, effect } => asked.push((id, effect)),
                        Output::InProgress { .. } => {}
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
        payload: Payload(payload.into_bytes()),
    }
}

/// A page for every job, made before the clock starts.
fn pages(segments: &[Segment]) -> Vec<Page> {
    (0..JOBS).map(|_| Page { segments: segments.to_vec(), next: None }).collect()
}

fn report(effect: &Effect, segments: &[Segment], pages: &mut Vec<Page>) -> Report {
    let counted = u64::try_from(segments.len()).unwrap_or(u64::MAX);
    match effect {
        Effect::Count { .. } => Report::Counted { segments: counted },
        Effect::Load { .. } => Report::Loaded(pages.pop().expect("there is one for every job")),
        Effect::Save { .. } => {
            Report::Saved(Stored { segments: counted, complete: true, notified: None, revision: 1, revised: None })
        }
        Effect::Publish { .. } => Report::Published { stream_sequence: 1 },
        Effect::Mark { .. } => Report::Marked,
        Effect::Bury { .. } => Report::Buried { stream_sequence: 1 },
        Effect::Republish { .. } => Report::Republished { stream_sequence: 1 },
        Effect::Acknowledge { .. } => Report::Acknowledged,
    }
}

/// The summary, by words.
#[divan::bench(args = ["English", "Greek", "Japanese"])]
fn summary(bencher: Bencher<'_, '_>, language: &str) {
    let text = match language {
        "English" => {
            "so the plan for the quarter is to ship the summary page first, and then look at the search box again"
        }
        "Greek" => "το σχέδιο για το τρίμηνο είναι να στείλουμε πρώτα τη σελίδα και μετά να δούμε την αναζήτηση",
        _ => "四半期の計画はまず要約のページを出して、それから検索をもう一度見ることです",
    };
    let segments: Vec<Segment> = (0..2000).map(|index| segment(index, text)).collect();
    let session = Session::new("c", "s").expect("ids are valid");
    let summarise = || {
        let mut summarizer = Summarizer::new(Limits::default());
        segments.iter().for_each(|segment| summarizer.push(segment));
        summarizer.finish(&session, 2000, WallTime::from_millis(0))
    };
    bencher.counter(ItemsCount::new(summarise().words)).bench(summarise);
}

fn call(segments: i64) -> Vec<Segment> {
    (0..segments).map(|index| segment(index, "so the plan is to ship the summary page first, is it not?")).collect()
}

fn segment(index: i64, text: &str) -> Segment {
    Segment {
        id: format!("s:{index}"),
        index: Some(index),
        speaker: Some(format!("Speaker {}", index % 3)),
        text: text.to_owned(),
        start_ms: Some(index * 4000),
        end_ms: Some(index * 4000 + 3500),
    }
}
