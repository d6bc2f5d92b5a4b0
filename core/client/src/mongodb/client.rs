//! The machine: which command is run next, and what a reply means to each of its members.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use transcript_core::{
    Cursor, Failure, FailureKind, Notified, Report, Time,
    contract::Announcement,
    ids::{EffectId, Key},
    summary::Summary,
};

use super::{
    batch::{Lane, gather, halves},
    command::{
        Command, CommandId, CommandKind, IndexedNumbers, Missing, PageRead, Reply, SmallEnd, SmallRead, WriteErrors,
    },
    error_codes::{self, DUPLICATE_KEY},
    failure::{self, CommandError},
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
/// The index of every collection, by which summaries are told apart.
const ID_INDEX: &str = "_id_";

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

/// A page to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// The session.
    pub session_id: Arc<str>,
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
    /// How many segments were announced.
    pub segments: u64,
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
        let put = match request {
            Request::Count { session_id } => self.counts.put(self.now, Asked { id, what: session_id }),
            Request::Load(load) => self.loads.put(self.now, Asked { id, what: load }),
            Request::Save { summary } => self.saves.put(self.now, Asked { id, what: summary }),
            Request::Check { key } => self.checks.put(self.now, Asked { id, what: key }),
            Request::Mark(mark) => self.marks.put(self.now, Asked { id, what: mark }),
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
                    pages.put(deadline.now, taken);
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
            match Start::of(asked.what.after.as_ref()) {
                Ok(start) => {
                    self.pages_under_way += 1;
                    self.run_page(asked, start);
                }
                Err(failure) => self.report(asked.id, Report::Failed(failure)),
            }
        }
    }

    fn run_page(&mut self, asked: Asked<Load>, start: Start) {
        let Load { session_id, limit, max_bytes, .. } = &asked.what;
        let command = Command::Page {
            session_id: Arc::clone(session_id),
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

/// What replies mean.
impl Client {
    fn answered(&mut self, under_way: UnderWay, reply: Reply) {
        match under_way {
            UnderWay::Count(batch) => {
                self.counts.end();
                self.gate.done(0, 1);
                match reply {
                    Reply::Counted(counts) => self.counted(batch, &counts),
                    other => self.counts_failed(batch, error_of(other)),
                }
            }
            UnderWay::Small(batch) => {
                self.loads.end();
                self.gate.done(0, 1);
                match reply {
                    Reply::Small { sessions, end } => self.loaded_small(batch, sessions, end),
                    other => self.loads_failed(batch, error_of(other)),
                }
            }
            UnderWay::Page(asked, start) => match reply {
                Reply::Page(read) => self.loaded_page(asked, start, read),
                other => {
                    self.pages_under_way -= 1;
                    let failure = self.failed(CommandKind::Page, error_of(other));
                    self.report(asked.id, Report::Failed(failure));
                }
            },
            UnderWay::Save(batch, missing) => {
                self.saves.end();
                self.gate.done(0, 1);
                match reply {
                    Reply::Written(errors) if errors.are_of(batch.len()) => self.written(batch, missing, errors),
                    other => self.saves_failed(batch, missing, error_of(other)),
                }
            }
            UnderWay::ReadBack(saved) => {
                self.saves.end();
                match reply {
                    Reply::ReadBack(stored) => {
                        self.works(CommandKind::ReadBack);
                        for Saved { asked, raced } in saved {
                            let report = match stored.get(asked.what.key.as_str()) {
                                // Fewer segments than were written are no proof that anything was.
                                Some(stored) if stored.segments >= asked.what.segments => Report::Saved(*stored),
                                Some(_) | None => Report::Failed(self.is_gone(raced)),
                            };
                            self.finish(asked.id, report);
                        }
                    }
                    other => self.read_back_failed(saved, error_of(other)),
                }
            }
            UnderWay::Check(batch) => {
                self.checks.end();
                self.gate.done(0, 1);
                match reply {
                    Reply::ReadBack(stored) => {
                        self.works(CommandKind::ReadBack);
                        for asked in batch {
                            let report = Report::Checked(stored.get(asked.what.as_str()).copied());
                            self.finish(asked.id, report);
                        }
                    }
                    other => self.checks_failed(batch, error_of(other)),
                }
            }
            UnderWay::Mark(batch) => {
                self.marks.end();
                self.gate.done(0, 1);
                match reply {
                    Reply::Written(errors) if errors.are_of(batch.len()) => self.marked(batch, errors),
                    other => self.marks_failed(batch, error_of(other)),
                }
            }
        }
    }

    fn counted(&mut self, batch: Vec<Asked<Arc<str>>>, counts: &[u64]) {
        let sessions: BTreeSet<_> = batch.iter().map(|asked| Arc::clone(&asked.what)).collect();
        if sessions.len() != counts.len() {
            return self.counts_failed(batch, CommandError::Undecodable);
        }
        self.works(CommandKind::Count);
        let counts: BTreeMap<_, _> = sessions.into_iter().zip(counts.iter().copied()).collect();
        for asked in batch {
            let segments = counts.get(&asked.what).copied().unwrap_or(0);
            self.finish(asked.id, Report::Counted { segments });
        }
    }

    fn counts_failed(&mut self, batch: Vec<Asked<Arc<str>>>, error: CommandError) {
        if error.may_be_a_members() && batch.len() > 1 {
            let (first, second) = halves(batch);
            self.counts.first(second);
            self.counts.first(first);
        } else {
            self.fail_all(CommandKind::Count, error, batch.iter().map(|asked| asked.id).collect());
        }
    }

    fn loaded_small(&mut self, batch: Vec<Asked<Load>>, sessions: Vec<SmallRead>, end: SmallEnd) {
        self.works(CommandKind::LoadSmall);
        let outcome = small::outcome(batch, sessions, end);
        for (session, damaged) in outcome.damaged {
            let notice = self.notices.damaged(self.now, &session, damaged);
            self.notice(notice);
        }
        for (effect, report) in outcome.reports {
            self.finish(effect, report);
        }
        for asked in outcome.large {
            self.gate.done(1, 0);
            self.pages.put(self.now, asked);
        }
        if !outcome.left.is_empty() {
            self.loads.first(outcome.left);
        }
    }

    fn loads_failed(&mut self, batch: Vec<Asked<Load>>, error: CommandError) {
        if error.may_be_a_members() && batch.len() > 1 {
            let (first, second) = halves(batch);
            self.loads.first(second);
            self.loads.first(first);
        } else {
            self.fail_all(CommandKind::LoadSmall, error, batch.iter().map(|asked| asked.id).collect());
        }
    }

    fn loaded_page(&mut self, asked: Asked<Load>, start: Start, read: PageRead) {
        self.works(CommandKind::Page);
        if read.others && start.numbers == IndexedNumbers::Numbers {
            // The same once more, without them.
            return self.run_page(asked, Start { numbers: IndexedNumbers::Others, ..start });
        }
        self.pages_under_way -= 1;
        let page = start.page(read, asked.what.limit);
        let notice = self.notices.damaged(self.now, &asked.what.session_id, page.damaged);
        self.notice(notice);
        self.report(asked.id, Report::Loaded(page));
    }

    /// Summaries were written, but for those that `errors` names.
    fn written(&mut self, batch: Vec<Asked<Arc<Summary>>>, missing: Missing, errors: WriteErrors) {
        let concern = errors.concern.map(failure::of_concern);
        match &concern {
            Some(failure) => self.notify_failed(CommandKind::Save, failure),
            None => self.works(CommandKind::Save),
        }
        let mut members: BTreeMap<_, _> = errors.members.into_iter().map(|error| (error.place, error)).collect();
        let (mut saved, mut raced) = (vec![], vec![]);
        for (place, asked) in batch.into_iter().enumerate() {
            let error = members.remove(&place);
            let is_race =
                |code: i32, index: Option<&str>| code == DUPLICATE_KEY && index.is_none_or(|it| it == ID_INDEX);
            match (error, &concern) {
                (Some(error), None) if is_race(error.code, error.index.as_deref()) => match missing {
                    // Another write of the same key was faster; now there is a summary to compare with.
                    Missing::Insert => raced.push(asked),
                    Missing::Leave => saved.push(Saved { asked, raced: true }),
                },
                (Some(error), _) => self.member_failed(CommandKind::Save, asked.id, failure::of_member(&error)),
                (None, Some(failure)) => self.finish(asked.id, Report::Failed(failure.clone())),
                (None, None) => saved.push(Saved { asked, raced: missing == Missing::Leave }),
            }
        }
        if !saved.is_empty() {
            self.saves.first(Saving::ReadBack(saved));
        }
        if !raced.is_empty() {
            self.saves.first(Saving::Write(raced, Missing::Leave));
        }
    }

    fn saves_failed(&mut self, batch: Vec<Asked<Arc<Summary>>>, missing: Missing, error: CommandError) {
        if error.may_be_a_members() && batch.len() > 1 {
            let (first, second) = halves(batch);
            self.saves.first(Saving::Write(second, missing));
            self.saves.first(Saving::Write(first, missing));
        } else {
            self.fail_all(CommandKind::Save, error, batch.iter().map(|asked| asked.id).collect());
        }
    }

    fn read_back_failed(&mut self, saved: Vec<Saved>, error: CommandError) {
        if error.may_be_a_members() && saved.len() > 1 {
            let (first, second) = halves(saved);
            self.saves.first(Saving::ReadBack(second));
            self.saves.first(Saving::ReadBack(first));
        } else {
            self.fail_all(CommandKind::ReadBack, error, saved.iter().map(|saved| saved.asked.id).collect());
        }
    }

    fn checks_failed(&mut self, batch: Vec<Asked<Key>>, error: CommandError) {
        if error.may_be_a_members() && batch.len() > 1 {
            let (first, second) = halves(batch);
            self.checks.first(second);
            self.checks.first(first);
        } else {
            self.fail_all(CommandKind::ReadBack, error, batch.iter().map(|asked| asked.id).collect());
        }
    }

    /// Neither a summary that was written is stored, nor one that it gives way to.
    fn is_gone(&mut self, raced: bool) -> Failure {
        let detail = if raced {
            format!("MongoDB refused the summary: {}", error_codes::describe(DUPLICATE_KEY))
        } else {
            "the summary was written, and is gone".to_owned()
        };
        let failure = Failure { kind: FailureKind::Busy, detail };
        let notice = self.notices.member_failed(self.now, CommandKind::Save, &failure);
        self.notice(notice);
        failure
    }

    fn marked(&mut self, batch: Vec<Asked<Mark>>, errors: WriteErrors) {
        let concern = errors.concern.map(failure::of_concern);
        match &concern {
            Some(failure) => self.notify_failed(CommandKind::Mark, failure),
            None => self.works(CommandKind::Mark),
        }
        let mut members: BTreeMap<_, _> = errors.members.into_iter().map(|error| (error.place, error)).collect();
        for (place, asked) in batch.into_iter().enumerate() {
            match (members.remove(&place), &concern) {
                (Some(error), _) => self.member_failed(CommandKind::Mark, asked.id, failure::of_member(&error)),
                (None, Some(failure)) => self.finish(asked.id, Report::Failed(failure.clone())),
                (None, None) => self.finish(asked.id, Report::Marked),
            }
        }
    }

    fn marks_failed(&mut self, batch: Vec<Asked<Mark>>, error: CommandError) {
        if error.may_be_a_members() && batch.len() > 1 {
            let (first, second) = halves(batch);
            self.marks.first(second);
            self.marks.first(first);
        } else {
            self.fail_all(CommandKind::Mark, error, batch.iter().map(|asked| asked.id).collect());
        }
    }

    /// Every member of a command failed.
    fn fail_all(&mut self, what: CommandKind, error: CommandError, effects: Vec<EffectId>) {
        let failure = self.failed(what, error);
        for effect in effects {
            self.finish(effect, Report::Failed(failure.clone()));
        }
    }

    fn member_failed(&mut self, what: CommandKind, effect: EffectId, failure: Failure) {
        let notice = self.notices.member_failed(self.now, what, &failure);
        self.notice(notice);
        self.finish(effect, Report::Failed(failure));
    }

    fn failed(&mut self, what: CommandKind, error: CommandError) -> Failure {
        let failure = error.failure(what);
        self.notify_failed(what, &failure);
        failure
    }

    fn notify_failed(&mut self, what: CommandKind, failure: &Failure) {
        let notice = self.notices.failed(self.now, what, failure);
        self.notice(notice);
    }

    fn works(&mut self, what: CommandKind) {
        let notice = self.notices.worked(what);
        self.notice(notice);
    }
}

impl WriteErrors {
    /// Whether they can be of a command of so many members.
    fn are_of(&self, members: usize) -> bool {
        self.members.iter().all(|error| error.place < members)
    }
}

/// Why a command failed; a reply of another kind than asked for cannot be read.
fn error_of(reply: Reply) -> CommandError {
    match reply {
        Reply::Failed(error) => error,
        Reply::Counted(_) | Reply::Small { .. } | Reply::Page(_) | Reply::Written(_) | Reply::ReadBack(_) => {
            CommandError::Undecodable
        }
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
