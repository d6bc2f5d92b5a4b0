//! What a reply means to each member of its command.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use transcript_core::{
    Failure, FailureKind, Page, Report, Stored,
    ids::{EffectId, Key},
    summary::{Order, Summary},
};

use super::{
    super::{
        batch::halves,
        command::{Command, CommandKind, IndexedNumbers, Missing, PageRead, Reply, SmallEnd, SmallRead, WriteErrors},
        error_codes::{self, DUPLICATE_KEY},
        failure::{self, CommandError},
        pages::Start,
        queue::Asked,
        small,
    },
    Client, Load, Mark, Saved, Saving, UnderWay,
};

/// The index of every collection, by which summaries are told apart.
const ID_INDEX: &str = "_id_";

impl Client {
    pub(super) fn answered(&mut self, under_way: UnderWay, reply: Reply) {
        match under_way {
            UnderWay::Count(batch) => {
                self.counts.end();
                self.gate.done(0, 1);
                let Reply::Counted(counts) = reply else { return self.counts_failed(batch, error_of(&reply)) };
                self.counted(batch, &counts);
            }
            UnderWay::Small(batch) => {
                self.loads.end();
                self.gate.done(0, 1);
                let Reply::Small { sessions, end } = reply else { return self.loads_failed(batch, error_of(&reply)) };
                self.loaded_small(batch, sessions, end);
            }
            UnderWay::Page(asked, start) => {
                let Reply::Page(read) = reply else { return self.page_failed(asked.id, error_of(&reply)) };
                self.loaded_page(asked, start, read);
            }
            UnderWay::FirstTally(asked) => {
                let Reply::Tallied(tally) = reply else { return self.page_failed(asked.id, error_of(&reply)) };
                self.works(CommandKind::Tally);
                self.run_page(asked, Start::first(tally));
            }
            UnderWay::LastTally(asked, page) => {
                let Reply::Tallied(tally) = reply else { return self.page_failed(asked.id, error_of(&reply)) };
                self.works(CommandKind::Tally);
                self.pages_under_way -= 1;
                self.report(asked.id, Report::Loaded(Page { tally: Some(tally), ..page }));
            }
            UnderWay::Save(batch, missing) => {
                self.saves.end();
                self.gate.done(0, 1);
                match write_errors(reply, batch.len()) {
                    Ok(errors) => self.written(batch, missing, errors),
                    Err(error) => self.saves_failed(batch, missing, error),
                }
            }
            UnderWay::ReadBack(saved) => {
                self.saves.end();
                let Reply::ReadBack(stored) = reply else { return self.read_back_failed(saved, error_of(&reply)) };
                self.read_back(saved, &stored);
            }
            UnderWay::Check(batch) => {
                self.checks.end();
                self.gate.done(0, 1);
                let Reply::ReadBack(stored) = reply else { return self.checks_failed(batch, error_of(&reply)) };
                self.works(CommandKind::ReadBack);
                for asked in batch {
                    self.finish(asked.id, Report::Checked(stored.get(asked.what.as_str()).copied()));
                }
            }
            UnderWay::Mark(batch) => {
                self.marks.end();
                self.gate.done(0, 1);
                match write_errors(reply, batch.len()) {
                    Ok(errors) => self.marked(batch, errors),
                    Err(error) => self.marks_failed(batch, error),
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
            self.pages.put(asked);
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
        if read.others && start.by == Order::Index && start.numbers == IndexedNumbers::Numbers {
            // The same once more, without them.
            return self.run_page(asked, Start { numbers: IndexedNumbers::Others, ..start });
        }
        let (by, before) = (start.by, start.before);
        let page = start.page(read, asked.what.limit);
        let notice = self.notices.damaged(self.now, &asked.what.session_id, page.damaged);
        self.notice(notice);
        if by == Order::Start && page.next.is_none() && page.needs.is_none() {
            let session_id = Arc::clone(&asked.what.session_id);
            let page = Page { tally_before: before, ..page };
            return self.run(Command::Tally { session_id }, UnderWay::LastTally(asked, page));
        }
        self.pages_under_way -= 1;
        self.report(asked.id, Report::Loaded(page));
    }

    fn page_failed(&mut self, effect: EffectId, error: CommandError) {
        self.pages_under_way -= 1;
        let failure = self.failed(CommandKind::Page, error);
        self.report(effect, Report::Failed(failure));
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

    fn read_back(&mut self, saved: Vec<Saved>, stored: &BTreeMap<String, Stored>) {
        self.works(CommandKind::ReadBack);
        for Saved { asked, raced } in saved {
            let report = match stored.get(asked.what.key.as_str()) {
                // An earlier version than was written is no proof that anything was, nor is an earlier request.
                Some(stored)
                    if (stored.version(), stored.reprocess) >= (asked.what.version(), asked.what.reprocess) =>
                {
                    Report::Saved(*stored)
                }
                Some(_) | None => Report::Failed(self.is_gone(raced)),
            };
            self.finish(asked.id, report);
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

/// What a reply says of the single writes of a command of so many members.
fn write_errors(reply: Reply, members: usize) -> Result<WriteErrors, CommandError> {
    let Reply::Written(errors) = reply else { return Err(error_of(&reply)) };
    if errors.members.iter().all(|error| error.place < members) { Ok(errors) } else { Err(CommandError::Undecodable) }
}

/// Why a command failed; a reply of another kind than asked for cannot be read.
fn error_of(reply: &Reply) -> CommandError {
    match reply {
        Reply::Failed(error) => *error,
        Reply::Counted(_)
        | Reply::Small { .. }
        | Reply::Tallied(_)
        | Reply::Page(_)
        | Reply::Written(_)
        | Reply::ReadBack(_) => CommandError::Undecodable,
    }
}
