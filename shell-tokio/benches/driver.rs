//! What the driver and the core cost where the servers answer at once: a job's life without a network.
//! `cargo bench -p transcript-processor`.
//!
//! The allocations are counted by divan's allocator, so that the times are a little longer than they are without it. They
//! are those of a batch of jobs: divide by the number of items.

use std::sync::Arc;

use divan::{AllocProfiler, Bencher, counter::ItemsCount};
use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
};
use transcript_client::jetstream::{self, Address, Frame, JetStream, Message, Status};
use transcript_core::{
    Delivery, Effect, Input, Page, Payload, Processor, Report, Settings, Stored, WallTime, ids::EffectId,
    summary::Segment,
};
use transcript_processor::{
    service::clock::Clock,
    service::driver::{Driver, Ended, Servers, Signal, questions},
    service::watchdog::Turns,
};

#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// Jobs that are under way at the same time: as many as a processor takes in hand.
const JOBS: usize = 4096;

/// Calls of no segments: everything but the summary's words.
#[divan::bench]
fn job(bencher: Bencher<'_, '_>) {
    jobs(bencher, &[]);
}

/// Calls of twelve segments.
#[divan::bench]
fn job_of_twelve_segments(bencher: Bencher<'_, '_>) {
    let segments: Vec<Segment> = (0..12).map(segment).collect();
    jobs(bencher, &segments);
}

fn jobs(bencher: Bencher<'_, '_>, segments: &[Segment]) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime needs little");
    let deliveries: Vec<Input> = (1..=JOBS).map(|sequence| Input::Delivered(delivery(sequence))).collect();
    bencher
        .with_inputs(|| Bench::new(&deliveries, segments))
        .input_counter(|_| ItemsCount::new(JOBS))
        .bench_local_values(|bench| bench.run(&runtime));
}

/// A driver before its first job, with everything that is delivered.
struct Bench {
    driver: Driver<InstantServers>,
    signals: mpsc::UnboundedReceiver<Signal>,
}

impl Bench {
    fn new(deliveries: &[Input], segments: &[Segment]) -> Self {
        let (reports, inputs) = mpsc::unbounded_channel();
        let (received, nats) = mpsc::unbounded_channel();
        let (finished, signals) = mpsc::unbounded_channel();
        let connected = jetstream::Input::Connected { max_payload: 1 << 20, failed_attempts: 0 };
        received.send(connected).expect("the receiver is here");
        for delivery in deliveries {
            reports.send(delivery.clone()).expect("the receiver is here");
        }
        let servers = InstantServers {
            pages: deliveries.iter().map(|_| Page { segments: segments.to_vec(), ..Page::default() }).collect(),
            segments: u64::try_from(segments.len()).expect("there are few"),
            left: deliveries.len(),
            reports,
            received,
            finished,
            pulls: vec![],
        };
        let settings = Settings { quiet_period: std::time::Duration::ZERO, ..Settings::default() };
        let processor = Processor::new(settings).expect("settings can work");
        let client = JetStream::new(jetstream::Settings::default());
        let (clock, turns) = (Clock::start(), Turns::default());
        let questions = questions().1;
        let (tape, pulls_restarted) = (None, 0);
        let driver = Driver {
            processor,
            client,
            servers,
            clock,
            inputs,
            nats,
            tape,
            spans: None,
            turns,
            questions,
            pulls_restarted,
        };
        Self { driver, signals }
    }

    fn run(mut self, runtime: &Runtime) {
        let ended = runtime.block_on(self.driver.run(&mut self.signals));
        assert_eq!(ended, Ended::Drained { abandoned: 0 });
    }
}

/// Servers that have done everything before it was asked.
struct InstantServers {
    /// One for every job, made before the clock starts.
    pages: Vec<Page>,
    /// Of every call.
    segments: u64,
    /// Jobs that are not acknowledged.
    left: usize,
    reports: mpsc::UnboundedSender<Input>,
    received: mpsc::UnboundedSender<jetstream::Input>,
    finished: mpsc::UnboundedSender<Signal>,
    /// Pull requests that wait.
    pulls: Vec<u64>,
}

impl Servers for InstantServers {
    fn perform(&mut self, effect: EffectId, what: Effect) {
        let report = match what {
            Effect::Count { .. } => Report::Counted { segments: self.segments },
            Effect::Load { .. } => Report::Loaded(self.pages.pop().expect("there is one for every job")),
            Effect::Save { .. } => Report::Saved(Stored {
                segments: self.segments,
                complete: true,
                notified: None,
                revision: 1,
                revised: None,
                edits: 0,
                reprocess: 0,
            }),
            Effect::Check { .. } => Report::Checked(None),
            Effect::Mark { .. } => Report::Marked,
            Effect::Publish { .. }
            | Effect::DeadLetter { .. }
            | Effect::Republish { .. }
            | Effect::Acknowledge { .. } => panic!("the client asks NATS for it"),
        };
        self.reports.send(Input::Reported { effect, report }).expect("the driver listens");
    }

    /// A publish is acknowledged, and any answer confirms an acknowledgement; a pull request waits until all is done.
    fn send(&mut self, frame: Frame) {
        let Some(token) = frame.reply else { return };
        if frame.subject.contains(".CONSUMER.MSG.NEXT.") {
            self.pulls.push(token);
        } else if !frame.subject.starts_with("$JS.API") {
            self.answer(token, None);
        }
        if frame.subject.starts_with("$JS.ACK") {
            self.left -= 1;
            if self.left == 0 {
                self.finished.send(Signal::Drain).expect("the driver listens");
            }
        }
        if self.left == 0 {
            for pull in std::mem::take(&mut self.pulls) {
                self.answer(pull, Some(Status { code: 408, description: "Request Timeout".into() }));
            }
        }
    }

    fn set_up(&mut self, problem: String) {
        panic!("{problem}");
    }
}

impl InstantServers {
    fn answer(&self, token: u64, status: Option<Status>) {
        let message = Message {
            to: Address::Inbox(token),
            reply: None,
            status,
            headers: vec![],
            payload: br#"{"stream":"TRANSCRIPTION","seq":1}"#.to_vec(),
            received_at: WallTime::from_millis(0),
        };
        self.received.send(jetstream::Input::Received(message)).expect("the driver listens");
    }
}

fn delivery(sequence: usize) -> Delivery {
    let sequence = u64::try_from(sequence).expect("it is small");
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

fn segment(index: i64) -> Segment {
    Segment {
        id: format!("s:{index}"),
        index: Some(index),
        speaker: Some(format!("Speaker {}", index % 3)),
        text: "so the plan is to ship the summary page first, is it not?".to_owned(),
        start_ms: Some(index * 4000),
        end_ms: Some(index * 4000 + 3500),
        ..Segment::default()
    }
}
