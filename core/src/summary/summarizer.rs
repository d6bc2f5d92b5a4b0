//! The fold.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Cut, Limits, Question, Segment, Speaker, Summary, Turn,
    question::questions,
    text::{Bounded, cut, trim},
    words::WordCounter,
};
use crate::{ids::Session, time::WallTime};

/// How many of the longest turns a summary lists.
const LONGEST_TURNS: usize = 3;

/// Folds a call's segments, given in the [order](super::order()) of the call, into its [`Summary`].
///
/// What it holds is bounded by its [`Limits`], whatever the call, and how the segments were cut into pages makes no
/// difference.
#[derive(Debug, Clone)]
pub struct Summarizer {
    limits: Limits,
    counter: WordCounter,
    segments: u64,
    words: u64,
    shortened_labels: u64,
    speakers: Speakers,
    open_turn: Option<OpenTurn>,
    longest_turns: LongestTurns,
    questions: Questions,
}

impl Summarizer {
    /// A fold over no segment yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            counter: WordCounter::new(),
            segments: 0,
            words: 0,
            shortened_labels: 0,
            speakers: Speakers::default(),
            open_turn: None,
            longest_turns: LongestTurns::default(),
            questions: Questions::default(),
        }
    }

    /// Takes the next segment of the call.
    pub fn push(&mut self, segment: &Segment) {
        self.segments += 1;
        let text = trim(&segment.text);
        if text.is_empty() {
            return;
        }
        let words = self.counter.count(text);
        self.words += words;
        let label = self.label_of(segment);
        let mut asked = 0;
        for line in questions(text) {
            asked += 1;
            self.questions.push(line, label, segment, &self.limits);
        }
        let seat = self.extend_turn(text, words, label, segment);
        self.speakers.add(seat, words, asked);
    }

    /// How many segments were taken, blank ones included.
    #[must_use]
    pub fn segments(&self) -> u64 {
        self.segments
    }

    /// The summary of the segments taken.
    #[must_use]
    pub fn finish(mut self, session: &Session, published_segments: u64, updated_at: WallTime) -> Summary {
        if let Some(turn) = self.open_turn.take() {
            self.longest_turns.offer(turn);
        }
        let cut = Cut {
            labels: self.shortened_labels,
            speakers: self.speakers.unlisted_segments,
            turns: self.longest_turns.shortened(),
            question_texts: self.questions.shortened,
            questions: self.questions.unlisted,
        };
        Summary {
            key: session.key(),
            session: session.clone(),
            segments: self.segments,
            published_segments,
            complete: self.segments >= published_segments,
            words: self.words,
            speakers: self.speakers.into_list(),
            longest_turns: self.longest_turns.into_list(),
            questions: self.questions.list,
            cut: (cut != Cut::default()).then_some(cut),
            updated_at,
        }
    }

    fn label_of<'a>(&mut self, segment: &'a Segment) -> Option<&'a str> {
        let given = segment.speaker.as_deref()?;
        let label = cut(given, self.limits.label_bytes);
        self.shortened_labels += u64::from(label.len() < given.len());
        Some(label)
    }

    /// Adds a segment to the turn it continues, or to a new one, and says where its speaker is listed.
    fn extend_turn(&mut self, text: &str, words: u64, label: Option<&str>, segment: &Segment) -> Seat {
        let bytes = self.limits.turn_bytes;
        if let Some(turn) = self.open_turn.as_mut().filter(|turn| turn.goes_on_with(label)) {
            turn.text.push(" ", bytes);
            turn.take(text, words, segment, bytes);
            return turn.seat;
        }
        let (label, seat) = self.speakers.begin_turn(label, &self.limits);
        let mut turn = OpenTurn {
            label,
            seat,
            words: 0,
            text: Bounded::default(),
            index: segment.index,
            start_ms: segment.start_ms,
            end_ms: None,
        };
        turn.take(text, words, segment, bytes);
        if let Some(ended) = self.open_turn.replace(turn) {
            self.longest_turns.offer(ended);
        }
        seat
    }
}

/// The turn that the next segment may still continue.
#[derive(Debug, Clone)]
struct OpenTurn {
    label: Option<Arc<str>>,
    seat: Seat,
    words: u64,
    text: Bounded,
    index: Option<i64>,
    start_ms: Option<i64>,
    end_ms: Option<i64>,
}

impl OpenTurn {
    fn goes_on_with(&self, label: Option<&str>) -> bool {
        label.is_some() && self.label.as_deref() == label
    }

    fn take(&mut self, text: &str, words: u64, segment: &Segment, bytes: usize) {
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
struct LongestTurns(Vec<OpenTurn>);

impl LongestTurns {
    fn offer(&mut self, turn: OpenTurn) {
        let place = self.0.partition_point(|listed| listed.words >= turn.words);
        if turn.words > 0 && place < LONGEST_TURNS {
            self.0.truncate(LONGEST_TURNS - 1);
            self.0.insert(place, turn);
        }
    }

    fn shortened(&self) -> u64 {
        self.0.iter().map(|turn| u64::from(turn.text.is_cut())).sum()
    }

    fn into_list(self) -> Vec<Turn> {
        self.0.into_iter().map(Turn::from).collect()
    }
}

/// Where a speaker is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seat {
    Listed(usize),
    BeyondTheList,
}

/// The speakers that appeared first, in the order of their appearance.
#[derive(Debug, Clone, Default)]
struct Speakers {
    tallies: Vec<Tally>,
    named: BTreeMap<Arc<str>, usize>,
    unnamed: Option<usize>,
    bytes: usize,
    /// Set by the first speaker that does not fit: those listed are the first, not the first that happen to be short.
    is_full: bool,
    unlisted_segments: u64,
}

#[derive(Debug, Clone)]
struct Tally {
    label: Option<Arc<str>>,
    words: u64,
    turns: u64,
    questions: u64,
}

impl Speakers {
    fn begin_turn(&mut self, label: Option<&str>, limits: &Limits) -> (Option<Arc<str>>, Seat) {
        let place = label.map_or(self.unnamed, |label| self.named.get(label).copied());
        let Some(place) = place.or_else(|| self.list(label, limits)) else {
            return (label.map(Arc::from), Seat::BeyondTheList);
        };
        let tally = &mut self.tallies[place];
        tally.turns += 1;
        (tally.label.clone(), Seat::Listed(place))
    }

    fn add(&mut self, seat: Seat, words: u64, questions: u64) {
        match seat {
            Seat::Listed(place) => {
                let tally = &mut self.tallies[place];
                tally.words += words;
                tally.questions += questions;
            }
            Seat::BeyondTheList => self.unlisted_segments += 1,
        }
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

    fn into_list(self) -> Vec<Speaker> {
        let mut tallies = self.tallies;
        tallies.sort_by_key(|tally| std::cmp::Reverse(tally.words));
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
}

/// The questions that were asked first, in order.
#[derive(Debug, Clone, Default)]
struct Questions {
    list: Vec<Question>,
    bytes: usize,
    shortened: u64,
    unlisted: u64,
}

impl Questions {
    fn push(&mut self, line: &str, label: Option<&str>, segment: &Segment, limits: &Limits) {
        let text = cut(line, limits.question_bytes);
        let bytes = self.bytes + text.len() + label.map_or(0, str::len);
        // Once one did not fit none is listed any more: those listed are the first, not the first that happen to be short.
        if self.unlisted > 0 || self.list.len() >= limits.questions || bytes > limits.questions_bytes {
            self.unlisted += 1;
            return;
        }
        self.bytes = bytes;
        self.shortened += u64::from(text.len() < line.len());
        self.list.push(Question {
            speaker: label.map(str::to_owned),
            text: text.to_owned(),
            index: segment.index,
            start_ms: segment.start_ms,
        });
    }
}
