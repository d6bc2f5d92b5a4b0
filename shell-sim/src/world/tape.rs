//! Writes a run down as production writes one: a part for each process, and one of what no core saw.

use std::{cell::RefCell, fmt, rc::Rc, sync::Arc, time::Duration};

use transcript_core::{Input, Processor, Settings, Time, WallTime, ids::JobId};
use transcript_trace::{Content, FORMAT, Header, Note, Recorder, Server, Servers};

use super::{EPOCH_MS, operator::ELECTION};
use crate::{
    ledger::Ledger,
    observation::{Ending, Observation},
    plan::{self, Action, Plan, at_ms, millis},
};

/// Why writing cannot fail.
const IN_MEMORY: &str = "a vector takes everything";

/// Everything that is written down of a run.
pub(super) struct Tape {
    plan: Rc<Plan>,
    /// What each process was told and said, in the order of their starts.
    processes: Vec<ProcessTape>,
    /// Which of them is each processor's last one.
    current: Vec<Option<usize>>,
    observer: Recorder<Vec<u8>>,
}

/// What one process was told and said; shared with its driver.
#[derive(Clone)]
pub(super) struct ProcessTape {
    started: Time,
    recorder: Rc<RefCell<Recorder<Vec<u8>>>>,
}

impl Tape {
    pub(super) fn new(plan: &Rc<Plan>) -> Self {
        let settings = plan.options.core();
        let core = Processor::new(settings.clone()).expect("the plan's settings can work");
        let bug = plan.bug.map(|bug| format!(", with the planted bug {bug}")).unwrap_or_default();
        let about = Some(format!("a simulated run of seed {}{bug}", plan.seed));
        let header = Header { about, ..header(None, WallTime::from_millis(EPOCH_MS), settings, None) };
        Self {
            plan: Rc::clone(plan),
            processes: vec![],
            current: vec![None; plan.processors],
            observer: Recorder::new(vec![], header, core).expect(IN_MEMORY),
        }
    }

    /// A processor starts. `core` is as its core is.
    pub(super) fn begin(
        &mut self,
        processor: usize,
        started: (Time, WallTime),
        settings: Settings,
        core: Processor,
    ) -> ProcessTape {
        let pull_expires = Some(self.plan.options.pull_expires());
        let header = header(Some(format!("processor {processor}").into()), started.1, settings, pull_expires);
        let recorder = Recorder::new(vec![], header, core).expect(IN_MEMORY);
        let tape = ProcessTape { started: started.0, recorder: Rc::new(RefCell::new(recorder)) };
        if let Some(current) = self.current.get_mut(processor) {
            *current = Some(self.processes.len());
        }
        self.processes.push(tape.clone());
        tape
    }

    /// Takes note of what no core sees; `ledger` does not have it yet.
    pub(super) fn saw(&mut self, now: Time, seen: &Observation<'_>, ledger: &Ledger) {
        if let Observation::SegmentStored { session, segment } = seen {
            let known = ledger.segments.get(*session).is_some_and(|known| known.contains_key(&segment.id));
            if !known {
                let session_id = Arc::clone(session);
                self.note(now, Note::Stored { session_id, segments: 1 });
            }
        } else if let Observation::Ended { processor, how: Ending::Killed } = seen {
            self.note_of(*processor, now, |_| Note::Killed);
        } else if let Observation::Fault(fault) = seen {
            self.fault(now, fault);
        } else if matches!(
            seen,
            Observation::SegmentLost { .. }
                | Observation::Chore(_)
                | Observation::EndRestored { .. }
                | Observation::GivenUp { .. }
        ) {
            self.remark(now, seen);
        }
    }

    /// A processor's process stands still.
    pub(super) fn frozen(&mut self, processor: usize, now: Time, span: Duration) {
        self.note_of(processor, now, |now| Note::Frozen { until: now.after(span) });
    }

    /// Something in words.
    pub(super) fn remark(&mut self, now: Time, what: &dyn fmt::Display) {
        self.note(now, Note::Remark(what.to_string()));
    }

    /// Hands the whole out, part after part.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let mut whole = vec![];
        for process in &self.processes {
            whole.append(process.recorder.borrow_mut().get_mut());
        }
        whole.append(self.observer.get_mut());
        whole
    }

    /// What a fault makes of a server; what it makes of a process is noted where it happens.
    fn fault(&mut self, now: Time, fault: &plan::Fault) {
        match fault.what {
            Action::Kill { .. } | Action::Freeze { .. } | Action::Rollout { .. } => {}
            Action::KillServer { server: plan::Server::Broker, outage_ms, .. }
            | Action::StopServer { server: plan::Server::Broker, outage_ms } => {
                self.away(now, Server::Nats, outage_ms, Duration::ZERO);
            }
            Action::KillServer { server: plan::Server::Store, outage_ms, .. }
            | Action::StopServer { server: plan::Server::Store, outage_ms } => {
                self.away(now, Server::Mongodb, outage_ms, ELECTION);
            }
            Action::StepDown { span_ms } => self.away(now, Server::Mongodb, span_ms, Duration::ZERO),
            Action::Reset { .. }
            | Action::Sever { .. }
            | Action::FreezeLink { .. }
            | Action::LoseAnswer
            | Action::FailBefore(_)
            | Action::FailAfter(_)
            | Action::Race
            | Action::FailMember(_)
            | Action::FailConcern { .. }
            | Action::Garble
            | Action::FailWrites { .. }
            | Action::Slow { .. }
            | Action::LoseReport
            | Action::SetAckWait { .. }
            | Action::SetMaxDeliver { .. }
            | Action::SetMaxAckPending { .. }
            | Action::LengthenWindow { .. }
            | Action::SetProcessors { .. }
            | Action::Duplicate { .. } => self.remark(now, fault),
        }
    }

    fn away(&mut self, now: Time, server: Server, span_ms: u64, more: Duration) {
        let end = now.after(millis(span_ms));
        let end = self.plan.heals_at_ms.map_or(end, |heals| end.min(at_ms(heals)).max(now));
        self.note(now, Note::Away { server, until: Some(end.after(more)) });
    }

    fn note(&mut self, now: Time, note: Note) {
        self.observer.note(now, note).expect(IN_MEMORY);
    }

    /// Notes something about a process, by its own time.
    fn note_of(&self, processor: usize, now: Time, note: impl FnOnce(Time) -> Note) {
        let current = self.current.get(processor).copied().flatten();
        if let Some(process) = current.and_then(|current| self.processes.get(current)) {
            let now = process.time(now);
            process.recorder.borrow_mut().note(now, note(now)).expect(IN_MEMORY);
        }
    }
}

impl ProcessTape {
    /// What the core was told, and the job that took it.
    pub(super) fn record(&self, at: Time, job: Option<JobId>, input: Input) {
        self.recorder.borrow_mut().record(at, job, input).expect(IN_MEMORY);
    }

    fn time(&self, now: Time) -> Time {
        Time::ZERO.after(now.since(self.started))
    }
}

fn header(
    processor: Option<Arc<str>>,
    started_at: WallTime,
    settings: Settings,
    pull_expires: Option<Duration>,
) -> Header {
    Header {
        format: FORMAT,
        program: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned(),
        servers: Servers::default(),
        processor,
        started_at,
        // The texts of a simulated call are invented.
        content: Content::Kept,
        settings,
        pull_expires,
        continues: None,
        session: None,
        about: None,
    }
}
