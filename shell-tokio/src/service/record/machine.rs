//! The state machines that can be recorded.

use std::io;

use transcript_core::{Input, Processor, Report, Time, ids::JobId};
use transcript_trace::{Recorder, TranscriberRecorder};
use transcript_transcriber::{ClientFrame, Departure, Transcriber, document::StoredSegment};

/// What an input takes on the tape, whatever is in it, in bytes.
const INPUT: usize = 256;
/// What a segment takes beside its texts, in bytes.
const SEGMENT: usize = 128;

/// A state machine that can be recorded.
pub trait Machine: 'static {
    /// What it is told.
    type Input: Clone + Send + 'static;
    /// What is written down of its answer.
    type Answer: Send + 'static;
    /// Who writes both down, in memory.
    type Recorder: Send + 'static;

    /// About how many bytes a copy of the input takes.
    fn weight(input: &Self::Input) -> usize;

    /// Writes down what it was told.
    ///
    /// # Errors
    ///
    /// Something cannot be written as JSON.
    fn record(recorder: &mut Self::Recorder, at: Time, answer: Self::Answer, input: Self::Input) -> io::Result<()>;

    /// Writes down that inputs are missing.
    ///
    /// # Errors
    ///
    /// The same.
    fn lost(recorder: &mut Self::Recorder, at: Time, inputs: u64, why: &str) -> io::Result<()>;

    /// Begins another file behind `before`.
    ///
    /// # Errors
    ///
    /// The same.
    fn go_on(recorder: &mut Self::Recorder, before: &str) -> io::Result<()>;

    /// The lines that were written.
    fn lines(recorder: &mut Self::Recorder) -> &mut Vec<u8>;
}

impl Machine for Processor {
    type Input = Input;
    type Answer = Option<JobId>;
    type Recorder = Recorder<Vec<u8>>;

    fn weight(input: &Input) -> usize {
        let more = match input {
            Input::Delivered(delivery) => delivery.payload.0.len(),
            Input::Reported { report: Report::Loaded(page), .. } => page
                .segments
                .iter()
                .map(|segment| {
                    SEGMENT + segment.id.len() + segment.text.len() + segment.speaker.as_ref().map_or(0, String::len)
                })
                .sum(),
            Input::Reported { report: Report::Failed(failure), .. } => failure.detail.len(),
            Input::Exhausted(exhausted) => exhausted.payload.as_ref().map_or(0, |payload| payload.0.len()),
            Input::Reported { .. }
            | Input::Stale(_)
            | Input::Consumer(_)
            | Input::Woken
            | Input::Quiet
            | Input::Resume
            | Input::Drain
            | Input::DeliveriesStopped => 0,
        };
        INPUT + more
    }

    fn record(recorder: &mut Self::Recorder, at: Time, job: Option<JobId>, input: Input) -> io::Result<()> {
        recorder.record(at, job, input)
    }

    fn lost(recorder: &mut Self::Recorder, at: Time, inputs: u64, why: &str) -> io::Result<()> {
        recorder.lost(at, inputs, why)
    }

    fn go_on(recorder: &mut Self::Recorder, before: &str) -> io::Result<()> {
        recorder.go_on(vec![], before).map(drop)
    }

    fn lines(recorder: &mut Self::Recorder) -> &mut Vec<u8> {
        recorder.get_mut()
    }
}

impl Machine for Transcriber {
    /// `None` before the first one: it says something at its start.
    type Input = Option<transcript_transcriber::Input>;
    type Answer = Vec<transcript_transcriber::Output>;
    type Recorder = TranscriberRecorder<Vec<u8>>;

    /// The outputs share their texts with the inputs that brought them.
    fn weight(input: &Self::Input) -> usize {
        use transcript_transcriber::{Input, Report};
        let more = match input {
            Some(Input::Frame { frame: ClientFrame::Segment(segment), .. }) => {
                SEGMENT + segment.text.len() + segment.speaker.as_ref().map_or(0, |speaker| speaker.len())
            }
            Some(Input::Reported { report: Report::TakenOver(taken), .. }) => batch(&taken.pending),
            Some(Input::Reported { report: Report::Left(Departure::Ending { pending, .. }), .. }) => batch(pending),
            Some(Input::Reported { report: Report::Saved(segments), .. }) => SEGMENT * segments.len(),
            Some(Input::Reported { report: Report::Orphans(orphans), .. }) => INPUT * orphans.len(),
            Some(
                Input::Opened(_)
                | Input::Frame { .. }
                | Input::Closed { .. }
                | Input::Reported { .. }
                | Input::Stream(_)
                | Input::Woken
                | Input::Shutdown,
            )
            | None => 0,
        };
        INPUT + more
    }

    fn record(recorder: &mut Self::Recorder, at: Time, outputs: Self::Answer, input: Self::Input) -> io::Result<()> {
        recorder.record(at, input, outputs)
    }

    fn lost(recorder: &mut Self::Recorder, at: Time, inputs: u64, why: &str) -> io::Result<()> {
        recorder.lost(at, inputs, why)
    }

    fn go_on(recorder: &mut Self::Recorder, before: &str) -> io::Result<()> {
        recorder.go_on(vec![], before).map(drop)
    }

    fn lines(recorder: &mut Self::Recorder) -> &mut Vec<u8> {
        recorder.get_mut()
    }
}

fn batch(segments: &[StoredSegment]) -> usize {
    segments
        .iter()
        .map(|segment| {
            SEGMENT
                + segment.source.as_str().len()
                + segment.text.len()
                + segment.speaker.as_ref().map_or(0, |speaker| speaker.len())
        })
        .sum()
}
