//! A transcriber that serves one session, recorded.

use std::{collections::VecDeque, time::Duration};

use transcript_core::{Time, WallTime, ids::Session};
use transcript_trace::{Content, FORMAT, Servers, TranscriberHeader, TranscriberRecorder};
use transcript_transcriber::{
    ClientFrame, ClientSegment, Closure, ConnectionId, Departure, Effect, Finality, Input, Joined, Opening, Output,
    Report, SavedSegment, Settings, StreamState, Transcriber, document::Transport,
};

use super::play::START;

/// How a recorded session goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Going {
    /// Two sockets, some segments, an end at this place of the stream.
    EndsAt(u64),
    /// The process dies while both are connected.
    Dies,
}

struct Run {
    machine: Transcriber,
    recorder: TranscriberRecorder<Vec<u8>>,
    now: Time,
    end: u64,
}

/// The trace of session `s` of conversation `c`.
pub(super) fn served(going: Going) -> Vec<u8> {
    let settings = Settings::new("t1", "f00", StreamState::Available);
    let header = TranscriberHeader {
        format: FORMAT,
        program: "transcript-processor 0.1.0".to_owned(),
        servers: Servers::default(),
        transcriber: "t1".into(),
        // Its session ends just before the processor's call does.
        started_at: WallTime::from_millis(START - 5_000),
        content: Content::Redacted,
        settings: settings.clone(),
        continues: None,
        about: None,
    };
    let end = if let Going::EndsAt(end) = going { end } else { 0 };
    let recorder = TranscriberRecorder::new(vec![], header, "a secret").expect("a vector takes all");
    let machine = Transcriber::new(settings).expect("the settings can work");
    let mut run = Run { machine, recorder, now: Time::ZERO, end };
    run.tell(Input::Woken);
    for number in 1..=2 {
        let session = Session::new("c", "s").expect("the ids are short");
        let (client, epoch) = ((number == 1).then(|| "client-1".into()), None);
        let connection = ConnectionId(number);
        run.tell(Input::Opened(Opening { connection, session, client, epoch, transport: Transport::Socket }));
    }
    for _ in 0..3 {
        run.pass(Duration::from_millis(500));
        let segment = ClientSegment {
            id: None,
            speaker: None,
            text: "Hello.".into(),
            start_ms: None,
            end_ms: None,
            finality: Finality::Final,
        };
        run.tell(Input::Frame { connection: ConnectionId(1), frame: ClientFrame::Segment(segment) });
    }
    if let Going::EndsAt(_) = going {
        run.tell(Input::Closed { connection: ConnectionId(1), closure: Closure::Broken });
        run.tell(Input::Frame { connection: ConnectionId(2), frame: ClientFrame::CloseStream });
        run.tell(Input::Closed { connection: ConnectionId(2), closure: Closure::Clean });
        run.pass(Duration::from_secs(20));
        run.tell(Input::Shutdown);
    }
    std::mem::take(run.recorder.get_mut())
}

impl Run {
    fn pass(&mut self, span: Duration) {
        self.now = self.now.after(span);
        self.tell(Input::Woken);
    }

    /// Servers answer everything within a millisecond.
    fn tell(&mut self, input: Input) {
        let mut due = VecDeque::from([input]);
        while let Some(input) = due.pop_front() {
            self.now = self.now.after(Duration::from_millis(1));
            self.machine.handle(self.now, input.clone());
            let mut said = vec![];
            loop {
                let output = self.machine.poll_output();
                if let Output::Perform { id, effect } = &output {
                    due.push_back(Input::Reported { effect: *id, report: self.perform(effect) });
                }
                let is_last = matches!(output, Output::Wait(_) | Output::Stopped);
                said.push(output);
                if is_last {
                    break;
                }
            }
            self.recorder.record(self.now, Some(input), said).expect("a vector takes all");
        }
    }

    fn perform(&self, effect: &Effect) -> Report {
        match effect {
            Effect::OpenLease { .. } | Effect::RenewLease { .. } => Report::LeaseHeld,
            Effect::ReleaseLease { .. } => Report::LeaseReleased,
            Effect::FindOrphans { .. } => Report::Orphans(vec![]),
            Effect::Join { .. } => Report::Joined(Joined { next_index: 0, age: Duration::ZERO, epochs: vec![] }),
            Effect::Reserve { .. } => Report::Reserved { first_index: 0, write: 1 },
            Effect::Save { segments, .. } => {
                Report::Saved(segments.iter().map(|one| SavedSegment::Stored { index: one.index }).collect())
            }
            Effect::Leave { .. } => Report::Left(Departure::Ending { generation: 1, pending: vec![] }),
            Effect::Count { .. } => Report::Counted { segments: 3, edits: 0 },
            Effect::Finish { .. } => Report::Finished,
            Effect::TakeOver { .. } => Report::Gone,
            Effect::PublishSegments { .. } => Report::SegmentsPublished,
            Effect::PublishEnd { .. } => Report::EndPublished { stream_sequence: self.end },
        }
    }
}
