//! Who spoke, and how much.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use super::{Limits, Speaker};

/// The speakers that appeared first, in the order of their appearance.
#[derive(Debug, Clone, Default)]
pub(super) struct Speakers {
    tallies: Vec<Tally>,
    named: BTreeMap<Arc<str>, usize>,
    unnamed: Option<usize>,
    bytes: usize,
    /// Set by the first speaker that does not fit: those listed are the first, not the first that happen to be short.
    is_full: bool,
    unlisted_segments: u64,
}

impl Speakers {
    /// Counts a turn that begins, and lists its speaker where there is room.
    pub(super) fn begin_turn(&mut self, label: Option<&str>, limits: &Limits) -> (Option<Arc<str>>, Seat) {
        let place = label.map_or(self.unnamed, |label| self.named.get(label).copied());
        let Some(place) = place.or_else(|| self.list(label, limits)) else {
            return (label.map(Arc::from), Seat::BeyondTheList);
        };
        let tally = &mut self.tallies[place];
        tally.turns += 1;
        (tally.label.clone(), Seat::Listed(place))
    }

    /// Counts a segment's words and questions.
    pub(super) fn add(&mut self, seat: Seat, words: u64, questions: u64) {
        match seat {
            Seat::Listed(place) => {
                let tally = &mut self.tallies[place];
                tally.words += words;
                tally.questions += questions;
            }
            Seat::BeyondTheList => self.unlisted_segments += 1,
        }
    }

    /// How many bytes their labels have.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many segments were added whose speaker is not listed.
    pub(super) fn unlisted_segments(&self) -> u64 {
        self.unlisted_segments
    }

    /// The speakers, most words first, then by first appearance.
    pub(super) fn into_list(self) -> Vec<Speaker> {
        let mut tallies = self.tallies;
        tallies.sort_by_key(|tally| Reverse(tally.words));
        tallies
            .into_iter()
            .map(|tally| Speaker {
                speaker: tally.label.map(|label| label.to_string()),
                words: tally.words,
                turns: tally.turns,
                questions: tally.questions,
            })
            .collect()
    }

    fn list(&mut self, label: Option<&str>, limits: &Limits) -> Option<usize> {
        let place = self.tallies.len();
        let bytes = self.bytes + label.map_or(0, str::len);
        self.is_full |= place >= limits.speakers || bytes > limits.speakers_bytes;
        if self.is_full {
            return None;
        }
        self.bytes = bytes;
        let label: Option<Arc<str>> = label.map(Arc::from);
        match &label {
            Some(label) => {
                self.named.insert(Arc::clone(label), place);
            }
            None => self.unnamed = Some(place),
        }
        self.tallies.push(Tally { label, words: 0, turns: 0, questions: 0 });
        Some(place)
    }
}

/// Where a speaker is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seat {
    /// At this place, in the order of appearance.
    Listed(usize),
    /// Nowhere: the list was full when the speaker appeared.
    BeyondTheList,
}

#[derive(Debug, Clone)]
struct Tally {
    label: Option<Arc<str>>,
    words: u64,
    turns: u64,
    questions: u64,
}
