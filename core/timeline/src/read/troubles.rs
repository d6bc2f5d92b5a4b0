//! What went wrong around the calls: freezes, outages, kills, and what the trace does not tell.

use transcript_core::{FailureKind, Report, Server, Time, ids::JobId};

use super::Reading;
use crate::{
    bands::{Band, BandCause, Source, server_name},
    calls::Mark,
    model::{Lane, Moment, Step, StepKind, grouped, span},
    part::End,
};
use transcript_trace::{LeftOut, Note};

impl Reading<'_> {
    /// A wake-up that comes late by half the time between two heartbeats: longer than a busy machine's delays, and well
    /// short of the ack wait, so that no freeze is missed that can have cost a delivery.
    pub(super) fn look_for_a_freeze(&mut self, at: Time) {
        let part = self.part();
        let Some(due) = part.wake_up() else { return };
        let late = at.since(due.at);
        if late < part.tolerance {
            return;
        }
        let (from, to) = (part.started.after(due.at), part.now);
        let text = format!("a wake-up that was due ({:?}) came late: the process stood still", due.timer);
        self.band(BandCause::Frozen, Source::Derived, (from, Some(to)), "stood still", text);
    }

    /// An outage begins with the first failure of a server that does not answer, and ends with its next success.
    pub(super) fn look_for_an_outage(&mut self, server: Option<Lane>, report: &Report) {
        let (now, Some(server)) = (self.now(), server) else { return };
        if let Report::Failed(failure) = report {
            // Busy, denied and refused are answers.
            if matches!(failure.kind, FailureKind::Unreachable | FailureKind::TimedOut) {
                self.part().failing.entry(server).or_insert_with(|| (now, failure.to_string()));
            }
        } else if let Some((from, failure)) = self.part().failing.remove(&server) {
            self.outage(server, from, Some(now), &failure);
        }
    }

    fn outage(&mut self, server: Lane, from: Moment, to: Option<Moment>, failure: &str) {
        let order = self.next();
        let text = format!("{} does not answer: {failure}", server_name(server));
        let label = "away".to_owned();
        self.bands.add(Band {
            lane: server,
            from,
            to,
            order,
            what: BandCause::Away,
            source: Source::Derived,
            label,
            text,
        });
    }

    pub(super) fn left_out(&mut self, left_out: &LeftOut) {
        self.end_jobs();
        self.totals.missing += left_out.inputs;
        let wanted = left_out.jobs.iter().any(|job| self.call(*job).is_some());
        for job in &left_out.jobs {
            self.mark(*job, Mark::Missing);
            self.end_job(*job, "the trace does not tell what became of it");
        }
        self.part().leave_out(left_out);
        if wanted || left_out.inputs > 0 || self.selection.session_id.is_none() {
            let now = self.now();
            let missing = match left_out.inputs {
                0 => "not told further".to_owned(),
                inputs => format!("{} inputs missing", grouped(inputs)),
            };
            let jobs: Vec<String> = left_out.jobs.iter().take(20).map(ToString::to_string).collect();
            let more = if left_out.jobs.len() > jobs.len() { " and others" } else { "" };
            let jobs = if jobs.is_empty() { "none".to_owned() } else { jobs.join(", ") + more };
            let text = format!("{missing}: {}; jobs that are not told any further: {jobs}", left_out.why);
            self.band(BandCause::Missing, Source::Noted, (now, Some(now)), &missing, text);
        }
    }

    pub(super) fn note(&mut self, note: Note) {
        let (now, started) = (self.now(), self.part().started);
        match note {
            Note::Stored { session_id, segments } => {
                if self.selection.session_id.as_deref().is_none_or(|wanted| wanted == &*session_id) {
                    let order = self.next();
                    let step = Step {
                        at: now,
                        until: now,
                        count: segments,
                        order,
                        call: None,
                        job: None,
                        from: Lane::Transcriber,
                        to: Lane::Store,
                        kind: StepKind::Stored,
                        label: String::new(),
                        text: String::new(),
                    };
                    self.calls.note(&session_id, step);
                }
            }
            Note::Killed if self.part().name.is_some() => self.part().end = Some(End::Killed(now)),
            Note::Frozen { until } if self.part().name.is_some() => {
                let (to, text) = (started.after(until), "the process stands still".to_owned());
                self.band(BandCause::Frozen, Source::Noted, (now, Some(to)), "frozen", text);
            }
            Note::Away { server, until } => {
                let (order, lane) = (
                    self.next(),
                    match server {
                        Server::Nats => Lane::Stream,
                        Server::Mongodb => Lane::Store,
                    },
                );
                let (to, text) = (until.map(|until| started.after(until)), format!("{} is away", server_name(lane)));
                let (what, source, label) = (BandCause::Away, Source::Noted, "away".to_owned());
                self.bands.add(Band { lane, from: now, to, order, what, source, label, text });
            }
            Note::Killed => {
                let text = "a process is killed; the trace does not say which one".to_owned();
                self.say_in_general(now, StepKind::Remark, "a kill".to_owned(), text);
            }
            Note::Frozen { until } => {
                let length = span(started.after(until).since(now));
                let text = format!("a process stands still for {length}; the trace does not say which one");
                self.say_in_general(now, StepKind::Remark, "a freeze".to_owned(), text);
            }
            Note::Remark(remark) => self.say_in_general(now, StepKind::Remark, remark.clone(), remark),
        }
    }

    /// Nothing more comes of this part: what is under way in it died with it.
    pub(super) fn close(&mut self, part: usize) {
        if self.parts[part].closed {
            return;
        }
        self.current = part;
        self.end_jobs();
        let under_way: Vec<JobId> = self.part().jobs.keys().copied().collect();
        let (now, started) = (self.now(), self.part().started);
        let noted = self.part().killed_at();
        if noted.is_some() || (!under_way.is_empty() && !self.part().drained) {
            let jobs = match under_way.len() {
                1 => "one job".to_owned(),
                jobs => format!("{} jobs", grouped(jobs as u64)),
            };
            let (source, label, text) = if noted.is_some() {
                (Source::Noted, "killed", format!("the process is killed, with {jobs} under way"))
            } else {
                let text = format!("the trace ends with {jobs} under way: the process was killed, or still ran");
                (Source::Derived, "ends", text)
            };
            let at = noted.unwrap_or(now.max(started));
            self.part().end = Some(End::Killed(at));
            self.band(BandCause::Killed, source, (at, None), label, text);
        }
        for job in under_way {
            if !self.part().drained {
                self.mark(job, Mark::Killed);
            }
            self.end_job(job, "the process died before a report came");
        }
        for (server, (from, failure)) in std::mem::take(&mut self.part().failing) {
            self.outage(server, from, Some(now), &failure);
        }
        self.part().close();
    }
}
