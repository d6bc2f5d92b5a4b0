//! Makes steps and bands of the lines of a trace.

mod transcriber;
mod troubles;

use std::{sync::Arc, time::Duration};

use transcript_core::{
    Delivery, Effect, Input, Output, Processor, Report, Time,
    event::SessionEnded,
    ids::{EffectId, JobId, Session},
};

pub(super) use self::transcriber::DrawnTranscriber;
use super::{
    Selection, Timeline,
    bands::{Band, BandCause, Bands, Source},
    calls::{Calls, Mark},
    density::Density,
    finish,
    model::{CallName, JobOf, Lane, Moment, Step, StepKind, Totals, span},
    part::{DrawnPart, Job, Open},
    words,
};
use transcript_trace::{Begin, Entry, ProcessHeader, ProcessLine, Said};

/// How many tries of an effect are drawn before those that fail alike are drawn as one.
const TRIES: u64 = 2;

/// The most steps of no single call that are kept.
const MOST_GENERAL: usize = 256;

/// The most that is said of what the trace shows.
const MOST_ABOUTS: usize = 3;

/// A trace that is being read.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    pub(super) selection: &'a Selection,
    pub(super) parts: Vec<DrawnPart>,
    current: usize,
    pub(super) transcribers: Vec<DrawnTranscriber>,
    current_transcriber: usize,
    pub(super) calls: Calls,
    /// Steps of no single call.
    pub(super) general: Vec<Step>,
    /// How many of those were not kept.
    pub(super) forgotten_general: u64,
    pub(super) bands: Bands,
    pub(super) density: Density,
    pub(super) totals: Totals,
    pub(super) remarks: Vec<String>,
    /// What the trace says that it shows.
    pub(super) abouts: Vec<String>,
    order: u64,
}

/// Who says what to whom.
struct Saying {
    from: Lane,
    to: Lane,
    kind: StepKind,
    label: String,
    text: String,
}

impl<'a> Reading<'a> {
    pub(super) fn new(selection: &'a Selection) -> Self {
        Self {
            selection,
            parts: vec![],
            current: 0,
            transcribers: vec![],
            current_transcriber: 0,
            calls: Calls::new(selection.max_calls, selection.max_steps),
            general: vec![],
            forgotten_general: 0,
            bands: Bands::default(),
            density: Density::default(),
            totals: Totals::default(),
            remarks: vec![],
            abouts: vec![],
            order: 0,
        }
    }

    pub(super) fn line(&mut self, line: ProcessLine) {
        self.totals.lines += 1;
        match line {
            ProcessLine::Header(begun) => self.header(begun),
            ProcessLine::Entry(entry) => self.entry(*entry),
            ProcessLine::TranscriberHeader(begun) => self.transcriber_header(begun),
            ProcessLine::TranscriberEntry(entry) => self.transcriber_entry(*entry),
        }
    }

    /// Something that must be known about the drawing.
    pub(super) fn remark(&mut self, remark: String) {
        self.remarks.push(remark);
    }

    pub(super) fn finish(mut self) -> Timeline {
        (0..self.parts.len()).for_each(|part| self.close(part));
        (0..self.transcribers.len()).for_each(|part| self.close_transcriber(part));
        self.totals.calls = self.calls.seen();
        self.totals.forgotten_notes = self.calls.forgotten_notes;
        finish::timeline(self)
    }

    fn header(&mut self, ProcessHeader { header, process, begin }: ProcessHeader) {
        self.totals.parts += 1;
        self.about(header.about.as_ref());
        let of_process = |part: &DrawnPart| part.process == process && !part.closed;
        if let (Begin::GoesOn, Some(known)) = (begin, self.parts.iter().rposition(of_process)) {
            self.current = known;
            return;
        }
        if let Some(before) = self.parts.iter().rposition(|part| part.name.is_some() && part.name == header.processor) {
            self.close(before);
        }
        if let Some(before) = &header.continues {
            self.remarks.push(format!(
                "a part of {} begins in the middle: what is in {} is not here",
                header.processor.as_deref().unwrap_or("an observer"),
                before.file
            ));
        }
        let run = 1 + self.parts.iter().filter(|part| part.name.is_some() && part.name == header.processor).count();
        let core = Processor::new(header.settings.clone()).ok();
        self.current = self.parts.len();
        self.parts.push(DrawnPart::new(*header, process, run, core));
        if self.parts[self.current].name.is_some() {
            let at = self.parts[self.current].started;
            let text = self.parts[self.current].about_start();
            self.say_in_general(at, StepKind::Remark, "starts".to_owned(), text);
        }
    }

    /// What a part says that it shows.
    fn about(&mut self, about: Option<&String>) {
        if let Some(about) = about
            && self.abouts.len() < MOST_ABOUTS
            && !self.abouts.contains(about)
        {
            self.abouts.push(about.clone());
        }
    }

    fn entry(&mut self, entry: Entry) {
        let Some(part) = self.parts.get_mut(self.current) else { return };
        part.last_entry = entry.n;
        if let Some(at) = entry.at {
            part.now = part.started.after(at);
        }
        match entry.said {
            Said::In(input) => self.input(entry.at.unwrap_or_default(), entry.job, input),
            Said::Out(output) => self.output(output),
            Said::LeftOut(left_out) => self.left_out(&left_out),
            Said::Note(note) => self.note(note),
        }
    }

    fn input(&mut self, at: Time, job: Option<JobId>, input: Input) {
        self.compare(None);
        self.end_jobs();
        self.look_for_a_freeze(at);
        match (&input, job) {
            (Input::Delivered(delivery), Some(job)) => self.delivered(job, delivery),
            (Input::Exhausted(exhausted), Some(job)) => {
                let sequence = exhausted.stream_sequence;
                let name = self.calls.of_message(sequence).cloned().unwrap_or(CallName::Message(sequence));
                let (label, text) = words::exhausted(exhausted);
                self.begin(job, name, None);
                self.mark(job, Mark::DeadLetter);
                self.say(job, Saying { from: Lane::Stream, to: self.lane(), kind: StepKind::Message, label, text });
            }
            (Input::Stale(stale), Some(job)) => {
                let (label, text) = words::stale(stale);
                self.begin(job, CallName::Session(stale.session.clone()), None);
                self.say(job, Saying { from: Lane::Store, to: self.lane(), kind: StepKind::Message, label, text });
            }
            (Input::Reported { effect, report }, _) => self.reported(*effect, report),
            (Input::Quiet, _) => {
                let now = self.now();
                let text = "is told to be quiet: it takes no more deliveries until it is told to go on".to_owned();
                self.say_in_general(now, StepKind::Remark, "quiet".to_owned(), text);
            }
            (Input::Resume, _) => {
                let now = self.now();
                let text = "is told to go on: it takes deliveries again".to_owned();
                self.say_in_general(now, StepKind::Remark, "goes on".to_owned(), text);
            }
            (Input::Drain, _) => {
                let now = self.now();
                let text = "is told to come to an end: it takes no more work".to_owned();
                self.say_in_general(now, StepKind::Remark, "drains".to_owned(), text);
            }
            (Input::DeliveriesStopped, _) => {
                let now = self.now();
                let text = "is handed nothing more".to_owned();
                self.say_in_general(now, StepKind::Remark, "deliveries ended".to_owned(), text);
            }
            (Input::Consumer(consumer), _) => {
                let now = self.now();
                let text = format!(
                    "learns that the consumer's ack wait is {} and that it delivers {} times at the most",
                    span(consumer.ack_wait),
                    consumer.max_deliver
                );
                self.say_in_general(now, StepKind::Remark, "consumer's settings".to_owned(), text);
            }
            // A delivery that nobody took is delivered again; waking up is no step.
            (Input::Delivered(_) | Input::Exhausted(_) | Input::Stale(_), None) | (Input::Woken, _) => {}
        }
        self.part().follow(at, job, input);
    }

    /// Looks whether this program's core says the same.
    fn compare(&mut self, output: Option<&Output>) {
        let part = self.part();
        if part.differs(output) {
            let remark = format!(
                "the core that wrote the trace of {} decides otherwise than this program's: times in which it stood still are \
                 not looked for from entry {} on",
                part.title(),
                part.last_entry
            );
            self.remark(remark);
        }
    }

    fn delivered(&mut self, job: JobId, delivery: &Delivery) {
        let now = self.now();
        let name = match SessionEnded::parse(&delivery.payload.0) {
            Ok(ended) => CallName::Session(ended.session),
            Err(_) => CallName::Message(delivery.stream_sequence),
        };
        let counts = self.density.at(now);
        counts.delivered += 1;
        counts.troubles += u64::from(delivery.attempt > 1);
        self.begin(job, name.clone(), Some(Arc::clone(&delivery.reply)));
        if delivery.attempt > 1 {
            self.mark(job, Mark::Redelivered);
        }
        if self.call(job).is_none() {
            return;
        }
        if delivery.redrive_of.is_none() {
            let (label, text) = words::ended(delivery);
            // A server's clock may be ahead of ours; nothing is delivered before it is there.
            let at = Moment::of_wall(delivery.stored_at).min(now);
            let saying = Saying { from: Lane::Transcriber, to: Lane::Stream, kind: StepKind::Message, label, text };
            let step = self.step(job, at, saying);
            self.totals.steps += u64::from(self.calls.ended(&name, delivery.stream_sequence, step));
        }
        let (label, text) = words::delivered(delivery);
        self.say(job, Saying { from: Lane::Stream, to: self.lane(), kind: StepKind::Message, label, text });
    }

    fn reported(&mut self, effect: EffectId, report: &Report) {
        let now = self.now();
        let failed = matches!(report, Report::Failed(_));
        let counts = self.density.at(now);
        counts.acknowledged += u64::from(matches!(report, Report::Acknowledged));
        counts.troubles += u64::from(failed);
        let open = self.part().take_open(effect);
        self.look_for_an_outage(open.as_ref().map(|open| open.step.to), report);
        if self.call(effect.job).is_none() {
            return;
        }
        let text = format!("{effect}: {report}");
        let Some(open) = open else {
            if !failed {
                let (label, text) = ("too late".to_owned(), format!("{text}, for which nobody waited any more"));
                let from = words::server_of_report(report);
                self.say(effect.job, Saying { from, to: self.lane(), kind: StepKind::Answered, label, text });
            }
            return;
        };
        if failed {
            self.mark(effect.job, Mark::Failed);
            if self.part().fails_alike(effect.job, &open.what) > TRIES {
                self.fold_try(effect.job, &open, report);
                return;
            }
        } else {
            self.end_tries(effect.job);
        }
        let kind = if failed { StepKind::Failed } else { StepKind::Answered };
        let server = open.step.to;
        self.push(effect.job, open.step);
        let label = words::answered(report);
        self.say(effect.job, Saying { from: server, to: self.lane(), kind, label, text });
        if let (Report::Published { stream_sequence, .. }, Some((label, what))) = (report, open.announces) {
            let name = self.call(effect.job);
            let news =
                name.and_then(|name| self.calls.get(&name)).is_some_and(|kept| kept.is_announced(*stream_sequence));
            if news {
                let text = format!("message {stream_sequence}: {what}");
                let (from, to) = (Lane::Stream, Lane::Subscribers);
                self.say(effect.job, Saying { from, to, kind: StepKind::Message, label, text });
            }
        }
        if matches!(report, Report::Acknowledged) {
            self.part().acknowledged(effect.job);
        }
    }

    /// One more try that failed as those before it.
    fn fold_try(&mut self, job: JobId, open: &Open, report: &Report) {
        let (now, lane) = (self.now(), self.lane());
        let Some(entry) = self.part().jobs.get_mut(&job) else { return };
        let folded = entry.folded.get_or_insert_with(|| Step {
            from: open.step.to,
            to: lane,
            kind: StepKind::Failed,
            count: 0,
            ..open.step.clone()
        });
        folded.count += 1;
        folded.until = now;
        (folded.label, folded.text) =
            words::more_tries(folded.count, &open.what, &report.to_string(), folded.at, folded.until);
    }

    fn end_tries(&mut self, job: JobId) {
        let folded = self.part().jobs.get_mut(&job).and_then(|entry| {
            entry.tries = None;
            entry.folded.take()
        });
        if let Some(folded) = folded {
            self.push(job, folded);
        }
    }

    fn output(&mut self, output: Output) {
        self.compare(Some(&output));
        match output {
            Output::Perform { id, effect } => self.asked(id, &effect),
            Output::InProgress { reply } => {
                if let Some(job) = self.part().replies.get(&reply).copied() {
                    let (label, text) = ("heartbeat".to_owned(), "heartbeat: still at work".to_owned());
                    let saying = Saying { from: self.lane(), to: Lane::Stream, kind: StepKind::Heartbeat, label, text };
                    self.say(job, saying);
                }
            }
            Output::Drained => {
                let now = self.now();
                self.part().drained = true;
                let text = "has come to an end: no job is under way".to_owned();
                self.say_in_general(now, StepKind::Remark, "drained".to_owned(), text);
            }
            Output::StopDeliveries => {
                let now = self.now();
                let text = "asks for the end of the deliveries".to_owned();
                self.say_in_general(now, StepKind::Remark, "no more deliveries".to_owned(), text);
            }
            Output::Notice(_) | Output::Wait(_) => {}
        }
    }

    fn asked(&mut self, id: EffectId, effect: &Effect) {
        let (order, lane, now) = (self.next(), self.lane(), self.now());
        let job = JobOf { part: self.current, job: id.job };
        let Some(entry) = self.part().jobs.get_mut(&id.job) else { return };
        let what = if entry.call.is_some() { words::asked_in_full(effect) } else { String::new() };
        let step = Step {
            at: now,
            until: now,
            count: 1,
            order,
            call: None,
            job: Some(job),
            from: lane,
            to: words::server(effect),
            kind: StepKind::Asked,
            label: words::asked(effect),
            text: format!("{id}: {what}"),
        };
        let announces = words::announced(effect);
        let lost = entry.open.replace(Open { number: id.number, step, what, announces });
        if let Some(mark) = Mark::of(effect) {
            self.mark(id.job, mark);
        }
        self.lose(id.job, lost, "no report came, and it is asked for again");
    }

    /// An effect that was asked for and never reported.
    fn lose(&mut self, job: JobId, open: Option<Open>, why: &str) {
        let Some(Open { step, .. }) = open else { return };
        self.mark(job, Mark::Unanswered);
        let text = format!("{}; {why}", step.text);
        self.push(job, Step { kind: StepKind::Lost, text, ..step });
    }

    /// Ends the jobs that the core ended at the last input.
    fn end_jobs(&mut self) {
        for job in self.part().ended() {
            self.end_job(job, "no report ever came");
        }
    }

    fn end_job(&mut self, job: JobId, why: &str) {
        self.end_tries(job);
        let open = self.part().jobs.get_mut(&job).and_then(|entry| entry.open.take());
        self.lose(job, open, why);
        let part = self.current;
        if let Some(Job { call: Some(name), .. }) = self.part().remove(job) {
            self.calls.end(&name, JobOf { part, job });
        }
    }

    fn begin(&mut self, job: JobId, name: CallName, reply: Option<Arc<str>>) {
        let (now, order, wanted) = (self.now(), self.next(), self.is_wanted(&name));
        let job_of = JobOf { part: self.current, job };
        let call = wanted.then_some(name);
        if let Some(name) = &call {
            self.calls.begin(name, job_of, now, order);
        }
        self.part().begin(job, call, reply);
    }

    fn is_wanted(&self, name: &CallName) -> bool {
        let Selection { session_id, conversation_id, .. } = self.selection;
        let is = |wanted: &Option<String>, id: &str| wanted.as_deref().is_none_or(|wanted| wanted == id);
        match name {
            CallName::Session(Session { conversation_id: conversation, session_id: session }) => {
                is(session_id, session) && is(conversation_id, conversation)
            }
            CallName::Message(_) => session_id.is_none() && conversation_id.is_none(),
        }
    }

    fn mark(&mut self, job: JobId, mark: Mark) {
        if let Some(name) = self.call(job)
            && let Some(kept) = self.calls.get(&name)
        {
            kept.marks.insert(mark);
        }
    }

    fn say(&mut self, job: JobId, saying: Saying) {
        let now = self.now();
        self.say_at(job, now, saying);
    }

    fn say_at(&mut self, job: JobId, at: Moment, saying: Saying) {
        let step = self.step(job, at, saying);
        self.push(job, step);
    }

    fn step(&mut self, job: JobId, at: Moment, saying: Saying) -> Step {
        let order = self.next();
        let job_of = JobOf { part: self.current, job };
        let Saying { from, to, kind, label, text } = saying;
        Step { at, until: at, count: 1, order, call: None, job: Some(job_of), from, to, kind, label, text }
    }

    fn push(&mut self, job: JobId, step: Step) {
        if let Some(name) = self.call(job)
            && let Some(kept) = self.calls.get(&name)
        {
            self.totals.steps += 1;
            kept.steps.push(step);
        }
    }

    fn say_in_general(&mut self, at: Moment, kind: StepKind, label: String, text: String) {
        let lane = self.lane();
        self.say_of(lane, at, kind, label, text);
    }

    fn say_of(&mut self, lane: Lane, at: Moment, kind: StepKind, label: String, text: String) {
        let order = self.next();
        if self.general.len() >= MOST_GENERAL {
            self.forgotten_general += 1;
        } else {
            self.general.push(Step {
                at,
                until: at,
                count: 1,
                order,
                call: None,
                job: None,
                from: lane,
                to: lane,
                kind,
                label,
                text,
            });
        }
    }

    fn band(
        &mut self,
        what: BandCause,
        source: Source,
        (from, to): (Moment, Option<Moment>),
        label: &str,
        text: String,
    ) {
        let (order, lane) = (self.next(), self.lane());
        self.bands.add(Band { lane, from, to, order, what, source, label: label.to_owned(), text });
    }

    /// The call of a job, where it may be drawn.
    fn call(&mut self, job: JobId) -> Option<CallName> {
        self.part().jobs.get(&job).and_then(|entry| entry.call.clone())
    }

    fn part(&mut self) -> &mut DrawnPart {
        &mut self.parts[self.current]
    }

    fn now(&self) -> Moment {
        self.parts[self.current].now
    }

    /// The lane of the part that is being read.
    fn lane(&self) -> Lane {
        // What an observer says stands where the world outside stands.
        if self.parts[self.current].name.is_some() { Lane::Processor(self.current) } else { Lane::Transcriber }
    }

    fn next(&mut self) -> u64 {
        self.order += 1;
        self.order
    }
}

/// How late a wake-up may come before the process counts as one that stood still.
pub(super) fn tolerance(heartbeat_interval: Duration) -> Duration {
    (heartbeat_interval / 2).max(Duration::from_millis(250))
}
