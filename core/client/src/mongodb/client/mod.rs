//! The machine: which command is run next.

mod replies;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use transcript_core::{
    Cursor, Effect, Notified, Page, Report, Time, TranscriptVersion,
    contract::Announcement,
    ids::{EffectId, Key},
    summary::{Order, Summary},
};

use super::{
    batch::{Lane, gather},
    command::{Command, CommandId, Missing, Reply},
    gate::PageGate,
    notice::{Notice, Notices},
    pages::Start,
    queue::{Asked, Deadline, Put, Queue},
    small,
};

/// The most effects of one command. Larger ones gain little and make each effect wait longer.
pub const MOST_MEMBERS: usize = 500;
/// The most segments, as counted, that one command reads of small calls.
const MOST_COUNTED: u64 = 20_000;
/// The most bytes of summaries in one command, by estimate; a server takes messages of up to 48 MB.
const MOST_SAVED_BYTES: u64 = 16 << 20;
/// The most pages that are read at the same time.
const MOST_PAGES: usize = 8;
/// For how many request timeouts a request waits at most: see [`Settings::answer_timeout`](transcript_core::Settings).
const WAITS_FOR: u32 = 6;

/// What a client is told.
#[derive(Debug, Clone)]
pub enum Input {
    /// The core asks for an effect.
    Asked {
        /// The effect.
        id: EffectId,
        /// What it is.
        request: Request,
    },
    /// A command was answered.
    Answered {
        /// The command.
        id: CommandId,
        /// The answer.
        reply: Reply,
    },
}

/// What a client says.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Run this command, and answer it.
    Run {
        /// Names the command in its answer.
        id: CommandId,
        /// What to run.
        command: Command,
    },
    /// Tell the core what became of an effect.
    Report {
        /// The effect.
        effect: EffectId,
        /// What became of it.
        report: Report,
    },
    /// Tell the operators.
    Notice(Notice),
}

/// The effects that MongoDB carries out.
#[derive(Debug, Clone)]
pub enum Request {
    /// [`Effect::Count`](transcript_core::Effect::Count).
    Count {
        /// The session.
        session_id: Arc<str>,
    },
    /// [`Effect::Load`](transcript_core::Effect::Load).
    Load(Load),
    /// [`Effect::Save`](transcript_core::Effect::Save).
    Save {
        /// The summary.
        summary: Arc<Summary>,
    },
    /// [`Effect::Check`](transcript_core::Effect::Check).
    Check {
        /// The summary's `_id`.
        key: Key,
    },
    /// [`Effect::Mark`](transcript_core::Effect::Mark).
    Mark(Mark),
}

impl Request {
    /// The request that an effect makes.
    ///
    /// # Errors
    ///
    /// The effect, where it is none of MongoDB's.
    pub fn of(effect: Effect) -> Result<Self, Effect> {
        Ok(match effect {
            Effect::Count { session_id } => Self::Count { session_id },
            Effect::Load { session_id, order, after, limit, max_bytes, counted } => {
                Self::Load(Load { session_id, order, after, limit, max_bytes, counted })
            }
            Effect::Save { summary } => Self::Save { summary },
            Effect::Check { key } => Self::Check { key },
            Effect::Mark { key, announcement, segments, edits, notified } => {
                let announced = TranscriptVersion { segments, edits };
                Self::Mark(Mark { key, announcement, announced, notified })
            }
            Effect::Publish { .. }
            | Effect::DeadLetter { .. }
            | Effect::Republish { .. }
            | Effect::Acknowledge { .. } => return Err(effect),
        })
    }
}

/// A page to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// The session.
    pub session_id: Arc<str>,
    /// In which order, where that is known. A call that is read as a whole has its own order all the same.
    pub order: Option<Order>,
    /// Where to go on.
    pub after: Option<Cursor>,
    /// The most segments.
    pub limit: u32,
    /// The most bytes of documents.
    pub max_bytes: u64,
    /// How many segments the last count found.
    pub counted: u64,
}

/// A mark to put on a summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The summary's `_id`.
    pub key: Key,
    /// What was announced.
    pub announcement: Announcement,
    /// Which version of the segments was announced.
    pub announced: TranscriptVersion,
    /// Where, and when.
    pub notified: Notified,
}

/// Asks MongoDB for what the core decides; see the [module](super).
#[derive(Debug)]
pub struct Client {
    now: Time,
    request_timeout: Duration,
    counts: Lane<Arc<str>>,
    loads: Lane<Load>,
    pages: Queue<Load>,
    saves: Lane<Arc<Summary>, Saving>,
    checks: Lane<Key>,
    marks: Lane<Mark>,
    gate: PageGate,
    under_way: BTreeMap<CommandId, UnderWay>,
    pages_under_way: usize,
    last: u64,
    notices: Notices,
    outputs: VecDeque<Output>,
}

/// A command under way, with its members.
#[derive(Debug)]
enum UnderWay {
    Count(Vec<Asked<Arc<str>>>),
    Small(Vec<Asked<Load>>),
    /// Before the first page of a load whose order is not known.
    FirstTally(Asked<Load>),
    /// After the last page of a load by start.
    LastTally(Asked<Load>, Page),
    Page(Asked<Load>, Start),
    Save(Vec<Asked<Arc<Summary>>>, Missing),
    ReadBack(Vec<Saved>),
    Check(Vec<Asked<Key>>),
    Mark(Vec<Asked<Mark>>),
}

/// What saves go through, one command after another.
#[derive(Debug)]
enum Saving {
    /// They are to be written.
    Write(Vec<Asked<Arc<Summary>>>, Missing),
    /// They are written, and what is stored now is to be read.
    ReadBack(Vec<Saved>),
}

/// A summary that was written, or is as good as that.
#[derive(Debug)]
struct Saved {
    asked: Asked<Arc<Summary>>,
    /// Another write of the same key was faster.
    raced: bool,
}

impl Client {
    /// A client without anything to do. `request_timeout` is that of the core's settings.
    #[must_use]
    pub fn new(request_timeout: Duration) -> Self {
        Self {
            now: Time::ZERO,
            request_timeout,
            counts: Lane::default(),
            loads: Lane::default(),
            pages: Queue::default(),
            saves: Lane::default(),
            checks: Lane::default(),
            marks: Lane::default(),
            gate: PageGate::default(),
            under_way: BTreeMap::new(),
            pages_under_way: 0,
            last: 0,
            notices: Notices::default(),
            outputs: VecDeque::new(),
        }
    }

    /// Takes what happened. A reply to a command that is not under way is ignored.
    pub fn handle(&mut self, now: Time, input: Input) {
        self.now = now;
        match input {
            Input::Asked { id, request } => self.ask(id, request),
            Input::Answered { id, reply } => {
                if let Some(under_way) = self.under_way.remove(&id) {
                    self.answered(under_way, reply);
                }
            }
        }
    }

    /// What to do next; `None` until something happens. Commands begin here: what is asked for before it is called can become
    /// one command.
    pub fn poll_output(&mut self) -> Option<Output> {
        if self.outputs.is_empty() {
            self.begin();
        }
        self.outputs.pop_front()
    }

    fn ask(&mut self, id: EffectId, request: Request) {
        let at = self.now;
        let put = match request {
            Request::Count { session_id } => self.counts.put(Asked { id, at, what: session_id }),
            Request::Load(load) => self.loads.put(Asked { id, at, what: load }),
            Request::Save { summary } => self.saves.put(Asked { id, at, what: summary }),
            Request::Check { key } => self.checks.put(Asked { id, at, what: key }),
            Request::Mark(mark) => self.marks.put(Asked { id, at, what: mark }),
        };
        if put == Put::Behind {
            self.gate.asked();
        }
    }

    /// Begins every command that can begin.
    fn begin(&mut self) {
        let deadline = self.deadline();
        if let Some(batch) = self.counts.begin(|queue| gather(queue, deadline, MOST_MEMBERS, u64::MAX, |_| 0)) {
            let sessions: BTreeSet<_> = batch.iter().map(|asked| Arc::clone(&asked.what)).collect();
            self.run(Command::Count { sessions: sessions.into_iter().collect() }, UnderWay::Count(batch));
        }
        self.begin_loads();
        let weight = |summary: &Arc<Summary>| summary_bytes(summary);
        let saving = self.saves.begin(|queue| {
            gather(queue, deadline, MOST_MEMBERS, MOST_SAVED_BYTES, weight)
                .map(|batch| Saving::Write(batch, Missing::Insert))
        });
        match saving {
            Some(Saving::Write(batch, missing)) => {
                let summaries = batch.iter().map(|asked| Arc::clone(&asked.what)).collect();
                self.run(Command::Save { summaries, missing }, UnderWay::Save(batch, missing));
            }
            Some(Saving::ReadBack(saved)) => {
                let keys: BTreeSet<_> = saved.iter().map(|saved| saved.asked.what.key.clone()).collect();
                self.run(Command::ReadBack { keys: keys.into_iter().collect() }, UnderWay::ReadBack(saved));
            }
            None => {}
        }
        if let Some(batch) = self.checks.begin(|queue| gather(queue, deadline, MOST_MEMBERS, u64::MAX, |_| 0)) {
            let keys: BTreeSet<_> = batch.iter().map(|asked| asked.what.clone()).collect();
            self.run(Command::ReadBack { keys: keys.into_iter().collect() }, UnderWay::Check(batch));
        }
        if let Some(batch) = self.marks.begin(|queue| gather(queue, deadline, MOST_MEMBERS, u64::MAX, |_| 0)) {
            let marks = batch.iter().map(|asked| asked.what.clone()).collect();
            self.run(Command::Mark { marks }, UnderWay::Mark(batch));
        }
        let dropped = self.counts.dropped() + self.loads.dropped() + self.saves.dropped();
        self.gate.done(dropped + self.checks.dropped() + self.marks.dropped(), 0);
        self.begin_pages();
    }

    fn deadline(&self) -> Deadline {
        Deadline { now: self.now, within: self.request_timeout.saturating_mul(WAITS_FOR) }
    }

    /// Small calls go into one command; what has to be paged joins the pages.
    fn begin_loads(&mut self) {
        let deadline = self.deadline();
        let Self { loads, pages, gate, .. } = self;
        let batch = loads.begin(|queue| {
            let (mut batch, mut counted) = (vec![], 0_u64);
            while let Some(next) = queue.first(deadline) {
                let load = &next.what;
                let is_large = load.after.is_some() || load.counted > u64::from(load.limit);
                let more = counted.saturating_add(load.counted);
                if !is_large && !batch.is_empty() && (batch.len() >= MOST_MEMBERS || more > MOST_COUNTED) {
                    break;
                }
                let Some(taken) = queue.take() else { break };
                if is_large {
                    pages.put(taken);
                    gate.done(1, 0);
                } else {
                    counted = more;
                    batch.push(taken);
                }
            }
            (!batch.is_empty()).then_some(batch)
        });
        if let Some(batch) = batch {
            self.run(small::command(&batch), UnderWay::Small(batch));
        }
    }

    fn begin_pages(&mut self) {
        let deadline = self.deadline();
        while self.pages_under_way < MOST_PAGES && self.pages.first(deadline).is_some() && self.gate.open() {
            let Some(asked) = self.pages.take() else { return };
            match Start::of(&asked.what) {
                Ok(start) => {
                    self.pages_under_way += 1;
                    match start {
                        Some(start) => self.run_page(asked, start),
                        None => {
                            let session_id = Arc::clone(&asked.what.session_id);
                            self.run(Command::Tally { session_id }, UnderWay::FirstTally(asked));
                        }
                    }
                }
                Err(failure) => self.report(asked.id, Report::Failed(failure)),
            }
        }
    }

    fn run_page(&mut self, asked: Asked<Load>, start: Start) {
        let Load { session_id, limit, max_bytes, .. } = &asked.what;
        let command = Command::Page {
            session_id: Arc::clone(session_id),
            order: start.by,
            place: start.at.clone(),
            numbers: start.numbers,
            limit: start.segments_to_read(*limit),
            max_bytes: *max_bytes,
        };
        self.run(command, UnderWay::Page(asked, start));
    }

    fn run(&mut self, command: Command, under_way: UnderWay) {
        self.last += 1;
        let id = CommandId(self.last);
        self.under_way.insert(id, under_way);
        self.outputs.push_back(Output::Run { id, command });
    }

    fn report(&mut self, effect: EffectId, report: Report) {
        self.outputs.push_back(Output::Report { effect, report });
    }

    /// A request of a small call is over.
    fn finish(&mut self, effect: EffectId, report: Report) {
        self.gate.done(1, 0);
        self.report(effect, report);
    }

    fn notice(&mut self, notice: Option<Notice>) {
        self.outputs.extend(notice.map(Output::Notice));
    }
}

/// At least what a summary takes in a command, in bytes: its texts, and what an entry takes beside them.
fn summary_bytes(summary: &Summary) -> u64 {
    const DOCUMENT: usize = 2_048;
    const ENTRY: usize = 160;
    let label = |label: &Option<String>| label.as_ref().map_or(0, String::len) + ENTRY;
    let speakers: usize = summary.speakers.iter().map(|speaker| label(&speaker.speaker)).sum();
    let turns: usize = summary.longest_turns.iter().map(|turn| label(&turn.speaker) + turn.text.len()).sum();
    let questions: usize =
        summary.questions.iter().map(|question| label(&question.speaker) + question.text.len()).sum();
    let bytes = DOCUMENT + mem::size_of_val(summary) + speakers + turns + questions;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
