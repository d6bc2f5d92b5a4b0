//! Times in which somebody was dead, stood still, or was away.

use super::{
    model::{Lane, Moment, span},
    words,
};

/// The most bands that are kept while a trace is read.
const MOST_KEPT: usize = 10_000;

/// A time in which something is wrong with a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Band {
    pub(super) lane: Lane,
    pub(super) from: Moment,
    /// `None` where it does not end.
    pub(super) to: Option<Moment>,
    /// Its place among all that was read.
    pub(super) order: u64,
    pub(super) what: BandCause,
    pub(super) source: Source,
    /// Without its length.
    pub(super) label: String,
    /// Without its length.
    pub(super) text: String,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BandCause {
    /// The process is no more.
    Killed,
    /// The process stands still.
    Frozen,
    /// The server does not answer.
    Away,
    /// The trace does not tell.
    Missing,
}

/// How a band is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Somebody who saw it noted it.
    Noted,
    /// It follows from what the core was told, and when.
    Derived,
}

impl Band {
    /// A few words, its length among them.
    pub(super) fn short(&self) -> String {
        match self.to.map(|to| to.since(self.from)) {
            Some(length) if self.what == BandCause::Killed => format!("dead for {}", span(length)),
            Some(length) if !length.is_zero() => format!("{}, {}", self.label, span(length)),
            Some(_) | None => self.label.clone(),
        }
    }

    /// All of it.
    pub(super) fn full(&self) -> String {
        match self.to.map(|to| to.since(self.from)) {
            Some(length) if self.what == BandCause::Killed => {
                format!("{}; its next run starts {} later", self.text, span(length))
            }
            Some(length) if !length.is_zero() => format!("{}, for {}", self.text, span(length)),
            Some(_) => self.text.clone(),
            None if self.what == BandCause::Killed => format!("{}; no later run of it is in the trace", self.text),
            None => format!("{}, until the end of the trace", self.text),
        }
    }

    /// Whether it touches the time between two moments.
    pub(super) fn touches(&self, from: Moment, to: Moment) -> bool {
        self.from <= to && self.to.is_none_or(|end| end >= from)
    }

    fn overlaps(&self, other: &Self) -> bool {
        let same = self.lane == other.lane && self.what == other.what;
        same && self.touches(other.from, other.to.unwrap_or(Moment(i64::MAX)))
    }
}

/// The bands of a trace.
#[derive(Debug, Default)]
pub(super) struct Bands {
    bands: Vec<Band>,
    /// How many were not kept.
    pub(super) forgotten: u64,
}

impl Bands {
    pub(super) fn add(&mut self, band: Band) {
        if self.bands.len() < MOST_KEPT {
            self.bands.push(band);
        } else {
            self.forgotten += 1;
        }
    }

    /// The bands in the order of their beginnings. What was noted stands for what was derived from the same; what several
    /// processors saw of the same outage is one.
    pub(super) fn finish(mut self) -> Vec<Band> {
        self.bands.sort_by_key(|band| (band.from, band.order));
        let (noted, derived): (Vec<Band>, Vec<Band>) =
            self.bands.into_iter().partition(|band| band.source == Source::Noted);
        let mut bands = noted;
        let noted = bands.len();
        for band in derived {
            if bands[..noted].iter().any(|known| known.overlaps(&band)) {
                continue;
            }
            let same = bands[noted..].iter_mut().rev().find(|known| known.lane == band.lane && known.what == band.what);
            match same {
                Some(before) if band.what == BandCause::Away && before.overlaps(&band) => {
                    before.to = before.to.zip(band.to).map(|(one, other)| one.max(other));
                }
                Some(_) | None => bands.push(band),
            }
        }
        bands.sort_by_key(|band| (band.from, band.order));
        bands
    }
}

/// The name of a server, as it stands in a sentence.
pub(super) fn server_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Stream => words::NATS,
        Lane::Store => words::MONGODB,
        Lane::Clients | Lane::Transcriber | Lane::RunOfTranscriber(_) | Lane::Processor(_) | Lane::Subscribers => {
            "somebody"
        }
    }
}
