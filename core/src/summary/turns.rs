//! The turns of a call, of which the longest are kept.

use std::sync::Arc;

use super::{Segment, Turn, speakers::Seat, text::Bounded};

/// How many of the longest turns a summary lists.
const LONGEST_TURNS: usize = 3;

/// The turn that the next segment may still continue.
#[derive(Debug, Clone)]
pub(super) struct OpenTurn {
    label: Option<Arc<str>>,
    seat: Seat,
    words: u64,
    text: Bounded,
    index: Option<i64>,
    start_ms: Option<i64>,
    end_ms: Option<i64>,
}

impl OpenTurn {
    /// A turn of no segment yet; `first` will be its first.
    pub(super) fn new(label: Option<Arc<str>>, seat: Seat, first: &Segment) -> Self {
        Self {
            label,
            seat,
            words: 0,
            text: Bounded::default(),
            index: first.index,
            start_ms: first.start_ms,
            end_ms: None,
        }
    }

    /// How many bytes of text it holds.
    pub(super) fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Where the turn's speaker is listed.
    pub(super) fn seat(&self) -> Seat {
        self.seat
    }

    /// Whether a segment with this label belongs to the turn; one that names nobody belongs to no other's.
    pub(super) fn goes_on_with(&self, label: Option<&str>) -> bool {
        label.is_some() && self.label.as_deref() == label
    }

    /// Adds a segment's text, of which the whole turn keeps at most `bytes` bytes, its words, and its end.
    pub(super) fn take(&mut self, text: &str, words: u64, segment: &Segment, bytes: usize) {
        if !self.text.is_empty() {
            self.text.push(" ", bytes);
        }
        self.text.push(text, bytes);
        self.words += words;
        self.end_ms = segment.end_ms;
    }
}

impl From<OpenTurn> for Turn {
    fn from(turn: OpenTurn) -> Self {
        Self {
            speaker: turn.label.map(|label| label.to_string()),
            words: turn.words,
            text: turn.text.into_text(),
            index: turn.index,
            start_ms: turn.start_ms,
            end_ms: turn.end_ms,
        }
    }
}

/// The longest of the turns that ended, longest first, the earlier first where two are equal.
#[derive(Debug, Clone, Default)]
pub(super) struct LongestTurns(Vec<OpenTurn>);

impl LongestTurns {
    /// Lists a turn that ended, where it is among the longest.
    pub(super) fn offer(&mut self, turn: OpenTurn) {
        let place = self.0.partition_point(|listed| listed.words >= turn.words);
        if turn.words > 0 && place < LONGEST_TURNS {
            self.0.truncate(LONGEST_TURNS - 1);
            self.0.insert(place, turn);
        }
    }

    /// How many bytes of text they hold.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(OpenTurn::bytes).sum()
    }

    /// How many of the listed turns do not have their whole text.
    pub(super) fn shortened(&self) -> u64 {
        self.0.iter().map(|turn| u64::from(turn.text.is_cut())).sum()
    }

    /// The turns, longest first.
    pub(super) fn into_list(self) -> Vec<Turn> {
        self.0.into_iter().map(Turn::from).collect()
    }
}
