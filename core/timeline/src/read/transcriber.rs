//! What transcribers tell: a call from its first connection to its end.
//!
//! Of a transcriber that is drawn what a reader asks for: who connects and goes, how many segments are stored, what the end says,
//! and what goes wrong. Reserving indexes and publishing segments is drawn only where it fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use transcript_core::{FailureKind, Server, ids::Session};
use transcript_trace::{Begin, LeftOut, Note, ProcessHeader, Said, TranscriberEntry, TranscriberHeader};
use transcript_transcriber::{
    CloseCode, Closure, ConnectionId, Departure, Effect, EffectId, EffectKind, Input, Notice, Opening, Output, Report,
    SavedSegment, ServerFrame, StreamState, document::Transport,
};

use super::{Reading, Saying};
use crate::{
    bands::{Band, BandCause, Source, server_name},
    calls::Mark,
    model::{CallName, Lane, Moment, Step, StepKind, Work, grouped},
    words,
};

/// One run of a transcriber, while its trace is read.
#[derive(Debug)]
pub(crate) struct DrawnTranscriber {
    pub(crate) name: Arc<str>,
    /// See [`ProcessHeader`].
    process: usize,
    /// Which run of this transcriber it is, from 1.
    run: usize,
    pub(crate) started: Moment,
    pub(crate) now: Moment,
    /// Whether nothing more comes of it.
    pub(crate) is_over: bool,
    connections: BTreeMap<ConnectionId, CallName>,
    effects: BTreeMap<EffectId, Asked>,
    /// The calls that it serves.
    serves: BTreeSet<CallName>,
    /// What fails, of which call.
    fails: BTreeSet<(Option<CallName>, EffectKind)>,
    /// Servers that do not answer, since when, and what was said first.
    away: BTreeMap<Lane, (Moment, String)>,
    is_stopped: bool,
    killed: Option<Moment>,
}

/// An effect that was asked for and not reported yet.
#[derive(Debug)]
struct Asked {
    name: Option<CallName>,
    kind: EffectKind,
}

impl DrawnTranscriber {
    /// The name of its lane.
    pub(crate) fn title(&self) -> String {
        if self.run > 1 { format!("{} ({})", self.name, self.run) } else { self.name.to_string() }
    }
}

impl Reading<'_> {
    pub(super) fn transcriber_header(&mut self, begun: ProcessHeader<TranscriberHeader>) {
        let ProcessHeader { header, process, begin } = begun;
        self.totals.parts += 1;
        self.about(header.about.as_ref());
        let of_process = |part: &DrawnTranscriber| part.process == process && !part.is_over;
        if let (Begin::GoesOn, Some(known)) = (begin, self.transcribers.iter().rposition(of_process)) {
            self.current_transcriber = known;
            return;
        }
        let same = |part: &DrawnTranscriber| part.name == header.transcriber;
        if let Some(before) = self.transcribers.iter().rposition(same) {
            self.close_transcriber(before);
        }
        if let Some(before) = &header.continues {
            let (name, file) = (&header.transcriber, &before.file);
            self.remark(format!("a part of {name} begins in the middle: what is in {file} is not here"));
        }
        let run = 1 + self.transcribers.iter().filter(|part| same(part)).count();
        let started = Moment::of_wall(header.started_at);
        self.current_transcriber = self.transcribers.len();
        self.transcribers.push(DrawnTranscriber {
            name: header.transcriber,
            process,
            run,
            started,
            now: started,
            is_over: false,
            connections: BTreeMap::new(),
            effects: BTreeMap::new(),
            serves: BTreeSet::new(),
            fails: BTreeSet::new(),
            away: BTreeMap::new(),
            is_stopped: false,
            killed: None,
        });
        self.say_of_transcriber("starts", format!("the process starts: {}", header.program));
    }

    pub(super) fn transcriber_entry(&mut self, entry: TranscriberEntry) {
        let Some(part) = self.transcribers.get_mut(self.current_transcriber) else { return };
        if let Some(at) = entry.at {
            part.now = part.started.after(at);
        }
        match entry.said {
            Said::In(input) => self.told(input),
            Said::Out(output) => self.says(output),
            Said::LeftOut(left_out) => self.left_out_of_transcriber(&left_out),
            Said::Note(Note::Killed) => {
                let now = self.transcriber().now;
                self.transcriber().killed = Some(now);
            }
            Said::Note(Note::Remark(remark)) => self.say_of_transcriber(&remark, remark.clone()),
            Said::Note(Note::Stored { .. } | Note::Frozen { .. } | Note::Away { .. }) => {}
        }
    }

    /// Nothing more comes of it: what it served when its trace ended died with it.
    pub(super) fn close_transcriber(&mut self, part: usize) {
        self.current_transcriber = part;
        let part = self.transcriber();
        if std::mem::replace(&mut part.is_over, true) {
            return;
        }
        let (serves, now, killed, is_stopped) =
            (std::mem::take(&mut part.serves), part.now, part.killed, part.is_stopped);
        let away = std::mem::take(&mut part.away);
        if killed.is_some() || (!is_stopped && !serves.is_empty()) {
            let sessions = words::sessions(serves.len() as u64);
            let (source, label, text) = if killed.is_some() {
                (Source::Noted, "killed", format!("the process is killed, while it serves {sessions}"))
            } else {
                let text = format!("the trace ends while it serves {sessions}: the process was killed, or still ran");
                (Source::Derived, "ends", text)
            };
            let (order, lane, from) = (self.next(), self.transcriber_lane(), killed.unwrap_or(now));
            let what = BandCause::Killed;
            self.bands.add(Band { lane, from, to: None, order, what, source, label: label.to_owned(), text });
        }
        for name in serves {
            if !is_stopped && let Some(kept) = self.calls.get(&name) {
                kept.marks.insert(Mark::TranscriberKilled);
            }
            self.calls.end(&name, Work::Session(self.current_transcriber));
        }
        for (server, (from, why)) in away {
            self.is_away(server, from, Some(now), &why);
        }
    }

    fn told(&mut self, input: Input) {
        match input {
            Input::Opened(opening) => self.opened(&opening),
            Input::Closed { connection, closure } => {
                // What the transcriber closed is told already.
                let Some(name) = self.transcriber().connections.remove(&connection) else { return };
                let (kind, label, how) = match closure {
                    Closure::Clean => (StepKind::Message, "closes", "closes"),
                    Closure::Broken => (StepKind::Failed, "breaks", "breaks off"),
                };
                self.hear(&name, kind, label.to_owned(), format!("connection {connection} {how}"));
            }
            Input::Reported { effect, report } => self.effect_reported(effect, &report),
            Input::Stream(StreamState::Away) => {
                let now = self.transcriber().now;
                self.transcriber().away.entry(Lane::Stream).or_insert((now, "the connection is lost".to_owned()));
            }
            Input::Stream(StreamState::Available | StreamState::Absent) => self.is_back(Lane::Stream),
            Input::Shutdown => {
                let text =
                    "is told to come to an end: it takes no more clients, and hands its sessions over".to_owned();
                self.say_of_transcriber("shuts down", text);
            }
            Input::Frame { .. } | Input::Woken => {}
        }
    }

    fn opened(&mut self, opening: &Opening) {
        let Opening { connection, session, client, transport, .. } = opening;
        let name = self.serve(session);
        self.transcriber().connections.insert(*connection, name.clone());
        let (label, what) = match transport {
            Transport::Socket => ("socket opens", "a WebSocket opens"),
            Transport::Post => ("request", "a request begins"),
        };
        let of = client.as_ref().map(|client| format!(", of client {client}")).unwrap_or_default();
        self.hear(&name, StepKind::Message, label.to_owned(), format!("{what}: connection {connection}{of}"));
    }

    fn says(&mut self, output: Output) {
        match output {
            Output::Perform { id, effect } => self.asks(id, &effect),
            Output::Send { connection, frame: ServerFrame::Error { reason, .. } } => {
                let name = self.transcriber().connections.get(&connection).cloned();
                if let Some(name) = name {
                    let text = format!("connection {connection} is told: {reason}");
                    self.tell(&name, StepKind::Failed, "refused".to_owned(), text);
                }
            }
            Output::Close { connection, code, reason } => {
                let Some(name) = self.transcriber().connections.remove(&connection) else { return };
                let kind = if code == CloseCode::Normal { StepKind::Message } else { StepKind::Failed };
                let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
                let text = format!("connection {connection} closes with {}{why}", code.number());
                self.tell(&name, kind, format!("closes, {}", code.number()), text);
            }
            Output::Notice(notice) => self.notices(&notice),
            Output::Stopped => {
                self.transcriber().is_stopped = true;
                self.say_of_transcriber("stopped", "has come to an end".to_owned());
            }
            Output::Send {
                frame: ServerFrame::Ready | ServerFrame::Ack { .. } | ServerFrame::Saved { .. }, ..
            }
            | Output::Read { .. }
            | Output::Wait(_) => {}
        }
    }

    fn notices(&mut self, notice: &Notice) {
        match notice {
            Notice::LeaseLost { instance } => {
                let text = format!("was thought dead, and goes on as {instance}");
                self.say_of_transcriber("lease lost", text);
            }
            Notice::TookOver { key, from } => {
                let Ok(session) = Session::of_key(key.as_str()) else { return };
                let (name, lane) = (CallName::Session(session), self.transcriber_lane());
                let text = format!("the session is taken over from {from}, which is dead");
                let label = "taken over".to_owned();
                self.draw(&name, Saying { from: lane, to: lane, kind: StepKind::Remark, label, text });
            }
            Notice::NothingIsPublished
            | Notice::Ended { .. }
            | Notice::Failing { .. }
            | Notice::Works { .. }
            | Notice::Limited { .. } => {}
        }
    }

    fn asks(&mut self, id: EffectId, effect: &Effect) {
        let kind = effect.kind();
        let name = match (kind, effect.session()) {
            (EffectKind::Join | EffectKind::TakeOver, Some(session)) => Some(self.serve(session)),
            (_, Some(session)) => Some(CallName::Session(session.clone())),
            (_, None) => None,
        };
        if let (Some(name), Some((label, text))) = (&name, words::asks_of_session(effect)) {
            let (from, to) = (self.transcriber_lane(), server(kind));
            self.draw(name, Saying { from, to, kind: StepKind::Asked, label, text: format!("{id}: {text}") });
        }
        self.transcriber().effects.insert(id, Asked { name, kind });
    }

    fn effect_reported(&mut self, id: EffectId, report: &Report) {
        let Some(Asked { name, kind }) = self.transcriber().effects.remove(&id) else { return };
        let fails = (name.clone(), kind);
        let from = server(kind);
        if let Report::Failed(failure) = report {
            if matches!(failure.kind, FailureKind::Unreachable | FailureKind::TimedOut) {
                let (now, why) = (self.transcriber().now, failure.to_string());
                self.transcriber().away.entry(from).or_insert((now, why));
            }
            // Tries that fail alike are drawn once.
            if let (Some(name), true) = (name, self.transcriber().fails.insert(fails)) {
                if let Some(kept) = self.calls.get(&name) {
                    kept.marks.insert(Mark::Failed);
                }
                let (to, label) = (self.transcriber_lane(), failure.kind.to_string());
                self.draw(&name, Saying { from, to, kind: StepKind::Failed, label, text: format!("{id}: {report}") });
            }
            return;
        }
        self.transcriber().fails.remove(&fails);
        self.is_back(from);
        let Some(name) = name else { return };
        match report {
            Report::Saved(segments) => self.stored(&name, segments),
            Report::EndPublished { stream_sequence } => self.calls.ended_by_transcriber(&name, *stream_sequence),
            Report::LeaseHeld
            | Report::LeaseLost
            | Report::LeaseReleased
            | Report::Orphans(_)
            | Report::Joined(_)
            | Report::Reserved { .. }
            | Report::Left(_)
            | Report::Counted { .. }
            | Report::SegmentsPublished
            | Report::Finished
            | Report::Reopened
            | Report::TakenOver(_)
            | Report::Gone
            | Report::Failed(_) => {}
        }
        if let Some(label) = words::answers_to_session(report) {
            let to = self.transcriber_lane();
            self.draw(&name, Saying { from, to, kind: StepKind::Answered, label, text: format!("{id}: {report}") });
        }
        if is_last(report) {
            self.leave(&name);
        }
    }

    /// Segments of the call were stored.
    fn stored(&mut self, name: &CallName, segments: &[SavedSegment]) {
        let is_stored = |saved: &&SavedSegment| matches!(saved, SavedSegment::Stored { .. });
        let count = segments.iter().filter(is_stored).count() as u64;
        if count == 0 {
            return;
        }
        let (from, to) = (self.transcriber_lane(), Lane::Store);
        let (kind, label, text) = (StepKind::Stored, String::new(), String::new());
        let step = self.transcriber_step(Saying { from, to, kind, label, text });
        self.keep(name, Step { count, ..step });
    }

    /// The call of a session, which this transcriber serves from now on.
    fn serve(&mut self, session: &Session) -> CallName {
        let name = CallName::Session(session.clone());
        if self.is_wanted(&name) && self.transcriber().serves.insert(name.clone()) {
            let (now, order) = (self.transcriber().now, self.next());
            self.calls.begin(&name, Work::Session(self.current_transcriber), now, order);
        }
        name
    }

    fn leave(&mut self, name: &CallName) {
        let part = self.transcriber();
        if !part.connections.values().any(|other| other == name) && part.serves.remove(name) {
            self.calls.end(name, Work::Session(self.current_transcriber));
        }
    }

    fn left_out_of_transcriber(&mut self, left_out: &LeftOut) {
        self.totals.missing += left_out.inputs;
        let part = self.transcriber();
        let (now, serves) = (part.now, std::mem::take(&mut part.serves));
        part.connections.clear();
        part.effects.clear();
        for name in serves {
            if let Some(kept) = self.calls.get(&name) {
                kept.marks.insert(Mark::Missing);
            }
            self.calls.end(&name, Work::Session(self.current_transcriber));
        }
        let (order, lane) = (self.next(), self.transcriber_lane());
        let label = format!("{} inputs missing", grouped(left_out.inputs));
        let text = format!("{label}: {}", left_out.why);
        let (what, source) = (BandCause::Missing, Source::Noted);
        self.bands.add(Band { lane, from: now, to: Some(now), order, what, source, label, text });
    }

    fn is_back(&mut self, server: Lane) {
        let now = self.transcriber().now;
        if let Some((from, why)) = self.transcriber().away.remove(&server) {
            self.is_away(server, from, Some(now), &why);
        }
    }

    fn is_away(&mut self, lane: Lane, from: Moment, to: Option<Moment>, why: &str) {
        let (order, text) = (self.next(), format!("{} does not answer: {why}", server_name(lane)));
        let (what, source, label) = (BandCause::Away, Source::Derived, "away".to_owned());
        self.bands.add(Band { lane, from, to, order, what, source, label, text });
    }

    /// A client says something.
    fn hear(&mut self, name: &CallName, kind: StepKind, label: String, text: String) {
        let to = self.transcriber_lane();
        self.draw(name, Saying { from: Lane::Clients, to, kind, label, text });
    }

    /// A client is told something.
    fn tell(&mut self, name: &CallName, kind: StepKind, label: String, text: String) {
        let from = self.transcriber_lane();
        self.draw(name, Saying { from, to: Lane::Clients, kind, label, text });
    }

    fn draw(&mut self, name: &CallName, saying: Saying) {
        let step = self.transcriber_step(saying);
        self.keep(name, step);
    }

    fn keep(&mut self, name: &CallName, step: Step) {
        if let Some(kept) = self.calls.get(name) {
            self.totals.steps += 1;
            kept.steps.push(step);
        }
    }

    fn transcriber_step(&mut self, Saying { from, to, kind, label, text }: Saying) -> Step {
        let (at, order) = (self.transcriber().now, self.next());
        Step { at, until: at, count: 1, order, call: None, job: None, from, to, kind, label, text }
    }

    fn say_of_transcriber(&mut self, label: &str, text: String) {
        let (lane, now) = (self.transcriber_lane(), self.transcriber().now);
        self.say_of(lane, now, StepKind::Remark, label.to_owned(), text);
    }

    fn transcriber(&mut self) -> &mut DrawnTranscriber {
        &mut self.transcribers[self.current_transcriber]
    }

    fn transcriber_lane(&self) -> Lane {
        Lane::RunOfTranscriber(self.current_transcriber)
    }
}

fn server(kind: EffectKind) -> Lane {
    match kind.server() {
        Server::Mongodb => Lane::Store,
        Server::Nats => Lane::Stream,
    }
}

/// Whether the transcriber has nothing more to do with the session.
fn is_last(report: &Report) -> bool {
    match report {
        Report::Finished | Report::Gone | Report::Left(Departure::Others) => true,
        Report::LeaseHeld
        | Report::LeaseLost
        | Report::LeaseReleased
        | Report::Orphans(_)
        | Report::Joined(_)
        | Report::Reserved { .. }
        | Report::Saved(_)
        | Report::Left(Departure::Silent | Departure::Ending { .. })
        | Report::Counted { .. }
        | Report::SegmentsPublished
        | Report::EndPublished { .. }
        | Report::Reopened
        | Report::TakenOver(_)
        | Report::Failed(_) => false,
    }
}
