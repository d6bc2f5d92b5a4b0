//! What succeeds at the servers, and since when.
//!
//! The retry timeout is for failures of one job. While no effect of the same kind succeeds for anybody, the failure is the
//! server's: to give jobs up then would only use up their attempts. A success is evidence for its own kind alone, and only
//! where it came after the first failure of the job. A primary without a majority serves reads and takes no write; one subject
//! can be refused and another one not.

use std::time::Duration;

use crate::{
    bug::{Bug, Planted},
    contract::Announcement,
    failure::{Failure, Remedy, classify},
    kind::EffectKind,
    output::Notice,
    time::Time,
};

/// How often people are told that effects of a kind fail.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// What an effect needs of its server. Effects of one service succeed and fail together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Service {
    kind: EffectKind,
    /// Revisions have a subject of their own.
    is_revision: bool,
}

impl Service {
    /// What every effect of this kind needs; for a notification, the first one of a call.
    pub(crate) fn of(kind: EffectKind) -> Self {
        Self { kind, is_revision: false }
    }

    /// What it takes to publish this.
    pub(crate) fn of_publishing(announcement: Announcement) -> Self {
        let is_revision = matches!(announcement, Announcement::Revised { .. });
        Self { kind: EffectKind::Publish, is_revision }
    }

    fn place(self) -> usize {
        if self.is_revision { EffectKind::ALL.len() } else { self.kind as usize }
    }

    fn all() -> impl Iterator<Item = Self> {
        let revisions = Self { kind: EffectKind::Publish, is_revision: true };
        EffectKind::ALL.into_iter().map(Self::of).chain([revisions])
    }
}

/// What succeeds, by service.
#[derive(Debug, Default)]
pub(crate) struct Served {
    services: [Record; EffectKind::ALL.len() + 1],
}

#[derive(Debug, Default)]
struct Record {
    serving: Option<Serving>,
    /// When it was said last that it fails.
    said: Option<Time>,
    /// Whether it has not succeeded since then.
    fails: bool,
    /// The first failure since the last success, of those that are the server's.
    failing: Option<(Time, Failure)>,
}

/// A row of successes without a longer pause between two of them.
#[derive(Debug, Clone, Copy)]
struct Serving {
    since: Time,
    last: Time,
}

impl Served {
    /// Keeps in mind that an effect succeeded.
    pub(crate) fn succeeded(&mut self, now: Time, service: Service, pause: Duration) -> Option<Notice> {
        let record = self.services.get_mut(service.place())?;
        let since =
            record.serving.filter(|serving| now.since(serving.last) <= pause).map_or(now, |serving| serving.since);
        record.serving = Some(Serving { since, last: now });
        record.failing = None;
        std::mem::take(&mut record.fails).then_some(Notice::Works { kind: service.kind })
    }

    /// Keeps in mind that one failed; tells what is to be said of it.
    pub(crate) fn failed(&mut self, now: Time, service: Service, failure: &Failure) -> Option<Notice> {
        let record = self.services.get_mut(service.place())?;
        if record.failing.is_none() && classify(failure.kind) == Remedy::TryAgain {
            record.failing = Some((now, failure.clone()));
        }
        if record.said.is_some_and(|said| now.since(said) < SAID_EVERY) {
            return None;
        }
        (record.said, record.fails) = (Some(now), true);
        Some(Notice::Failing { kind: service.kind, failure: failure.clone() })
    }

    /// The kinds that fail, since when and how, each once.
    pub(crate) fn failing(&self) -> impl Iterator<Item = (EffectKind, Time, &Failure)> {
        let failing = |service: Service| self.services.get(service.place())?.failing.as_ref();
        let counts = move |service: &Service| !service.is_revision || failing(Service::of(service.kind)).is_none();
        let all = Service::all().filter(counts);
        all.filter_map(move |service| failing(service).map(|(since, failure)| (service.kind, *since, failure)))
    }

    /// For how long a job has failed since `first_failure` while effects of this service succeeded for others without a
    /// longer pause than `pause`; `None` where they do not succeed.
    pub(crate) fn failing_alone_for(
        &self,
        service: Service,
        first_failure: Time,
        now: Time,
        pause: Duration,
        planted: Planted,
    ) -> Option<Duration> {
        if planted.has_bug(Bug::GivesUpInOutages) {
            return Some(now.since(first_failure));
        }
        let is_evidence = |of: &Service| {
            *of == service || (planted.has_bug(Bug::AnySuccessIsEvidence) && of.kind.server() == service.kind.server())
        };
        let rows = Service::all().filter(is_evidence).filter_map(|of| self.services.get(of.place())?.serving);
        let rows = rows.filter(|serving| now.since(serving.last) <= pause && serving.last >= first_failure);
        rows.map(|serving| now.since(first_failure.max(serving.since))).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(5);
    const SAVE: EffectKind = EffectKind::Save;

    fn at(seconds: u64) -> Time {
        Time::ZERO.after(Duration::from_secs(seconds))
    }

    #[test]
    fn a_success_before_the_first_failure_is_no_evidence() {
        let mut served = Served::default();
        let alone = |served: &Served, now| {
            served.failing_alone_for(Service::of(SAVE), at(11), at(now), PAUSE, Planted::default())
        };
        served.succeeded(at(10), Service::of(SAVE), PAUSE);
        assert_eq!(alone(&served, 12), None, "the server may have gone away in between");
        served.succeeded(at(13), Service::of(SAVE), PAUSE);
        assert_eq!(alone(&served, 14), Some(Duration::from_secs(3)));
        assert_eq!(alone(&served, 19), None, "nobody has been served for longer than the pause");
    }

    #[test]
    fn one_service_is_no_evidence_for_another() {
        let revised = Service::of_publishing(Announcement::Revised { revision: 2 });
        let others = Service::all().filter(|of| *of != revised);
        let mut served = Served::default();
        others.for_each(|of| drop(served.succeeded(at(1), of, PAUSE)));
        assert_eq!(served.failing_alone_for(revised, at(0), at(2), PAUSE, Planted::default()), None);
        assert_eq!(Service::of_publishing(Announcement::ProcessedOnce), Service::of(EffectKind::Publish));
    }
}
