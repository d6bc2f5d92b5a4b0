//! What succeeds at the servers, and since when.
//!
//! The retry timeout is for failures of one job. While no effect of the same kind succeeds for anybody, the failure is the
//! server's: to give jobs up then would only use up their attempts. A success is evidence for its own kind alone. A primary
//! without a majority serves reads and takes no write; one subject can be refused and another one not.

use std::time::Duration;

use crate::{
    bug::{Bug, Planted},
    failure::{Failure, Remedy, classify},
    kind::EffectKind,
    output::Notice,
    time::Time,
};

/// How often people are told that effects of a kind fail.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// What succeeds, by kind of effect.
#[derive(Debug, Default)]
pub(crate) struct Served {
    kinds: [Kind; EffectKind::ALL.len()],
}

#[derive(Debug, Default)]
struct Kind {
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
    /// Keeps in mind that an effect of this kind succeeded.
    pub(crate) fn succeeded(&mut self, now: Time, kind: EffectKind, pause: Duration) -> Option<Notice> {
        let it = self.kind(kind)?;
        let since = it.serving.filter(|serving| now.since(serving.last) <= pause).map_or(now, |serving| serving.since);
        it.serving = Some(Serving { since, last: now });
        it.failing = None;
        std::mem::take(&mut it.fails).then_some(Notice::Works { kind })
    }

    /// Keeps in mind that one failed; tells what is to be said of it.
    pub(crate) fn failed(&mut self, now: Time, kind: EffectKind, failure: &Failure) -> Option<Notice> {
        let it = self.kind(kind)?;
        if it.failing.is_none() && classify(failure.kind) == Remedy::TryAgain {
            it.failing = Some((now, failure.clone()));
        }
        if it.said.is_some_and(|said| now.since(said) < SAID_EVERY) {
            return None;
        }
        (it.said, it.fails) = (Some(now), true);
        Some(Notice::Failing { kind, failure: failure.clone() })
    }

    /// Since when effects of this kind have succeeded without a longer pause than `pause`; `None` where they do not.
    pub(crate) fn since(&self, kind: EffectKind, now: Time, pause: Duration, planted: Planted) -> Option<Time> {
        if planted.has_bug(Bug::GivesUpInOutages) {
            return Some(Time::ZERO);
        }
        let is_evidence = |of: &EffectKind| {
            *of == kind || (planted.has_bug(Bug::AnySuccessIsEvidence) && of.server() == kind.server())
        };
        let rows = EffectKind::ALL.into_iter().filter(is_evidence).filter_map(|of| self.kinds.get(place(of))?.serving);
        rows.filter(|serving| now.since(serving.last) <= pause).map(|serving| serving.since).min()
    }

    /// The kinds that fail, since when and how.
    pub(crate) fn failing(&self) -> impl Iterator<Item = (EffectKind, Time, &Failure)> {
        let kinds = EffectKind::ALL.into_iter().zip(&self.kinds);
        kinds.filter_map(|(kind, it)| it.failing.as_ref().map(|(since, failure)| (kind, *since, failure)))
    }

    fn kind(&mut self, kind: EffectKind) -> Option<&mut Kind> {
        self.kinds.get_mut(place(kind))
    }
}

fn place(kind: EffectKind) -> usize {
    kind as usize
}
