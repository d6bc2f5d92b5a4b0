//! The fold.

use super::{
    Cut, Limits, Question, Segment, Summary,
    question::questions,
    speakers::{Seat, Speakers},
    text::{cut, trim},
    turns::{LongestTurns, OpenTurn},
    words::WordCounter,
};
use crate::{WallTime, ids::Session};

/// Folds a call's segments, given in the [order](super::Order) of the call, into its [`Summary`].
///
/// What it holds is bounded by its [`Limits`], whatever the call, and how the segments were cut into pages makes no
/// difference.
#[derive(Debug, Clone)]
pub struct Summarizer {
    limits: Limits,
    counter: WordCounter,
    segments: u64,
    edits: u64,
    words: u64,
    damaged: u64,
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
            edits: 0,
            words: 0,
            damaged: 0,
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
        self.edits = self.edits.saturating_add(segment.edits);
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

    /// Takes note of segments, among those taken, whose text or label is damaged.
    pub fn note_damaged(&mut self, segments: u64) {
        self.damaged += segments;
    }

    /// How many segments were taken, blank ones included.
    #[must_use]
    pub fn segments(&self) -> u64 {
        self.segments
    }

    /// How many bytes of text it holds.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let open = self.open_turn.as_ref().map_or(0, OpenTurn::bytes);
        open + self.longest_turns.bytes() + self.questions.bytes + self.speakers.bytes()
    }

    /// The summary of the segments taken.
    #[must_use]
    pub fn finish(mut self, session: &Session, published_segments: u64, updated_at: WallTime) -> Summary {
        if let Some(turn) = self.open_turn.take() {
            self.longest_turns.offer(turn);
        }
        let cut = Cut {
            labels: self.shortened_labels,
            speakers: self.speakers.unlisted_segments(),
            turns: self.longest_turns.shortened(),
            question_texts: self.questions.shortened,
            questions: self.questions.unlisted,
        };
        Summary {
            key: session.key(),
            session: session.clone(),
            segments: self.segments,
            published_segments,
            reprocess: 0,
            complete: self.segments >= published_segments,
            edits: self.edits,
            words: self.words,
            damaged: self.damaged,
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
            turn.take(text, words, segment, bytes);
            return turn.seat();
        }
        let (label, seat) = self.speakers.begin_turn(label, &self.limits);
        let mut turn = OpenTurn::new(label, seat, segment);
        turn.take(text, words, segment, bytes);
        if let Some(ended) = self.open_turn.replace(turn) {
            self.longest_turns.offer(ended);
        }
        seat
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{Speaker, Turn};

    fn said(index: i64, speaker: impl Into<Option<&'static str>>, text: &str) -> Segment {
        Segment {
            id: format!("s:{index}"),
            index: Some(index),
            speaker: speaker.into().map(str::to_owned),
            text: text.into(),
            start_ms: Some(index * 1_000),
            end_ms: Some(index * 1_000 + 900),
            ..Segment::default()
        }
    }

    fn summary_of(segments: &[Segment]) -> Summary {
        summary_within(Limits::default(), segments)
    }

    fn summary_within(limits: Limits, segments: &[Segment]) -> Summary {
        let mut summarizer = Summarizer::new(limits);
        segments.iter().for_each(|segment| summarizer.push(segment));
        let session = Session::new("c", "s").unwrap();
        summarizer.finish(&session, 2, WallTime::from_millis(5))
    }

    fn speaker(label: impl Into<Option<&'static str>>, words: u64, turns: u64, questions: u64) -> Speaker {
        Speaker { speaker: label.into().map(str::to_owned), words, turns, questions }
    }

    fn texts(turns: &[Turn]) -> Vec<&str> {
        turns.iter().map(|turn| turn.text.as_str()).collect()
    }

    #[test]
    fn a_call_is_summed_up() {
        let call = [
            said(0, "Ann", "Good morning, \n"),
            said(1, "Ann", " can you hear me? "),
            said(2, "Bob", "Yes."),
            said(3, None, "(somebody joins)"),
            said(4, "Ann", "Who is it?\nCarla?"),
        ];
        let summary = summary_of(&call);
        let expected = serde_json::json!({
            "_id": "c:s", "conversationId": "c", "sessionId": "s",
            "segments": 5, "publishedSegments": 2, "complete": true, "words": 13,
            "speakers": [
                { "speaker": "Ann", "words": 10, "turns": 2, "questions": 3 },
                { "speaker": null, "words": 2, "turns": 1, "questions": 0 },
                { "speaker": "Bob", "words": 1, "turns": 1, "questions": 0 },
            ],
            "longestTurns": [
                { "speaker": "Ann", "words": 6, "text": "Good morning, can you hear me?", "index": 0, "startMs": 0, "endMs": 1_900 },
                { "speaker": "Ann", "words": 4, "text": "Who is it?\nCarla?", "index": 4, "startMs": 4_000, "endMs": 4_900 },
                { "speaker": null, "words": 2, "text": "(somebody joins)", "index": 3, "startMs": 3_000, "endMs": 3_900 },
            ],
            "questions": [
                { "speaker": "Ann", "text": "can you hear me?", "index": 1, "startMs": 1_000 },
                { "speaker": "Ann", "text": "Who is it?", "index": 4, "startMs": 4_000 },
                { "speaker": "Ann", "text": "Carla?", "index": 4, "startMs": 4_000 },
            ],
            "updatedAt": 5,
        });
        assert_eq!(serde_json::to_value(&summary).unwrap(), expected);
        assert_eq!(serde_json::from_value::<Summary>(expected).unwrap(), summary);
    }

    #[test]
    fn a_call_is_complete_once_all_published_segments_were_taken() {
        let call = [said(0, "a", ""), said(1, "a", "x"), said(2, "a", "y")];
        let complete: Vec<bool> = (0..=3).map(|taken| summary_of(&call[..taken]).complete).collect();
        assert_eq!(complete, [false, false, true, true]);
    }

    #[test]
    fn an_empty_call_has_an_empty_summary() {
        let summary = summary_of(&[]);
        assert_eq!((summary.segments, summary.words, summary.cut), (0, 0, None));
        assert!(summary.speakers.is_empty() && summary.longest_turns.is_empty() && summary.questions.is_empty());
    }

    #[test]
    fn labels_are_compared_exactly_as_given() {
        let labels = ["", " ", "$set", "a.b", "a", "A", "a ", "\0", "e\u{301}", "\u{e9}"];
        let call: Vec<Segment> = (0..).zip(labels).map(|(index, label)| said(index, label, "one")).collect();
        assert_eq!(summary_of(&call).speakers, labels.map(|label| speaker(label, 1, 1, 0)));
    }

    #[test]
    fn the_empty_label_names_somebody() {
        let summary = summary_of(&[said(0, "", "a"), said(1, "", "b"), said(2, None, "c"), said(3, None, "d")]);
        assert_eq!(summary.speakers, [speaker("", 2, 1, 0), speaker(None, 2, 2, 0)]);
        assert_eq!(texts(&summary.longest_turns), ["a b", "c", "d"]);
    }

    #[test]
    fn blank_segments_belong_to_no_turn_and_break_none() {
        let blank_end = Segment { end_ms: Some(9), ..said(4, "Ann", " \u{200B}") };
        let call = [
            said(0, "Ghost", "\u{3164}"),
            said(1, "Ann", "one"),
            said(2, None, "\u{FEFF}\n"),
            said(3, "Ann", "two"),
            blank_end,
        ];
        let summary = summary_of(&call);
        assert_eq!((summary.segments, summary.words), (5, 2));
        assert_eq!(summary.speakers, [speaker("Ann", 2, 1, 0)]);
        assert_eq!(texts(&summary.longest_turns), ["one two"]);
        assert_eq!((summary.longest_turns[0].index, summary.longest_turns[0].end_ms), (Some(1), Some(3_900)));
    }

    #[test]
    fn a_turn_without_words_is_a_turn_but_not_a_long_one() {
        let summary = summary_of(&[said(0, "Ann", "..."), said(1, "Bob", "Hm?"), said(2, "Ann", "?!")]);
        assert_eq!(summary.speakers, [speaker("Bob", 1, 1, 1), speaker("Ann", 0, 2, 0)]);
        assert_eq!(texts(&summary.longest_turns), ["Hm?"]);
    }

    #[test]
    fn a_turn_ends_when_its_last_segment_ends_even_where_that_is_unknown() {
        let unknown = Segment { index: None, start_ms: None, end_ms: None, ..said(1, "Ann", "two") };
        let turn = &summary_of(&[said(0, "Ann", "one"), unknown]).longest_turns[0];
        assert_eq!((turn.index, turn.start_ms, turn.end_ms), (Some(0), Some(0), None));
    }

    #[test]
    fn ties_go_to_the_earlier_turn_and_the_earlier_speaker() {
        let call = [
            said(0, "a", "a1"),
            said(1, "b", "b1 b2"),
            said(2, "c", "c1 c2 c3"),
            said(3, "d", "d1 d2"),
            said(4, "e", "e1 e2"),
        ];
        let summary = summary_of(&call);
        assert_eq!(texts(&summary.longest_turns), ["c1 c2 c3", "b1 b2", "d1 d2"]);
        let labels: Vec<_> = summary.speakers.iter().filter_map(|speaker| speaker.speaker.as_deref()).collect();
        assert_eq!(labels, ["c", "b", "d", "e", "a"]);
    }

    const TIGHT: Limits = Limits {
        label_bytes: 4,
        speakers: 2,
        speakers_bytes: 6,
        turn_bytes: 7,
        question_bytes: 5,
        questions: 2,
        questions_bytes: 100,
    };

    #[test]
    fn what_fits_exactly_is_not_cut() {
        let summary = summary_within(TIGHT, &[said(0, "Anna", "abc def"), said(1, "Ed", "what?"), said(2, "Ed", "?")]);
        assert_eq!(summary.cut, None);
        assert_eq!(texts(&summary.longest_turns), ["abc def", "what? ?"]);
    }

    #[test]
    fn labels_are_cut_and_told_apart_by_what_is_left() {
        let call = [said(0, "Annä1", "a"), said(1, "Annä2", "b"), said(2, "Annä2", " "), said(3, "Anna", "c")];
        let summary = summary_within(TIGHT, &call);
        assert_eq!(summary.speakers, [speaker("Ann", 2, 1, 0)]);
        assert_eq!(texts(&summary.longest_turns), ["a b", "c"]);
        assert_eq!(summary.cut, Some(Cut { labels: 2, speakers: 1, ..Cut::default() }));
    }

    #[test]
    fn speakers_beyond_the_list_count_in_the_total_only() {
        let call = [
            said(0, "a", "one"),
            said(1, None, "two"),
            said(2, "c", "three, four?"),
            said(3, "c", "5?"),
            said(4, "a", "six"),
        ];
        let summary = summary_within(TIGHT, &call);
        assert_eq!(summary.words, 6);
        assert_eq!(summary.speakers, [speaker("a", 2, 2, 0), speaker(None, 1, 1, 0)]);
        assert_eq!(summary.longest_turns[0].speaker.as_deref(), Some("c"));
        assert_eq!(summary.questions.len(), 2);
        let cut = Cut { speakers: 2, turns: 1, question_texts: 1, ..Cut::default() };
        assert_eq!(summary.cut, Some(cut));
    }

    #[test]
    fn no_speaker_is_listed_after_one_that_did_not_fit() {
        let limits = Limits { speakers: 9, speakers_bytes: 5, ..TIGHT };
        let summary = summary_within(limits, &[said(0, "abc", "a"), said(1, "def", "b"), said(2, "g", "c")]);
        assert_eq!(summary.speakers, [speaker("abc", 1, 1, 0)]);
        assert_eq!(summary.cut.map(|cut| cut.speakers), Some(2));
    }

    #[test]
    fn turns_are_cut_within_their_joined_text_and_keep_all_their_words() {
        let summary = summary_within(TIGHT, &[said(0, "a", "äöü"), said(1, "a", "ä b"), said(2, "a", "c")]);
        let turn = &summary.longest_turns[0];
        assert_eq!((turn.text.as_str(), turn.words), ("äöü ", 4));
        assert_eq!(summary.cut, Some(Cut { turns: 1, ..Cut::default() }));
    }

    #[test]
    fn only_cut_turns_that_are_listed_are_told() {
        let call = ["a b c d e", "f g h i j", "k l m n o", "abcdefghi"].map(|text| said(0, None, text));
        let cut = summary_within(TIGHT, &call).cut;
        assert_eq!(cut, Some(Cut { turns: 3, ..Cut::default() }));
    }

    #[test]
    fn questions_are_cut_in_length_and_in_number_and_all_counted() {
        let call = [said(0, "a", "abcdef?\nb?"), said(1, "b", "c?\nd?")];
        let summary = summary_within(Limits { turn_bytes: 99, ..TIGHT }, &call);
        let listed: Vec<_> = summary.questions.iter().map(|question| question.text.as_str()).collect();
        assert_eq!(listed, ["abcde", "b?"]);
        assert_eq!(summary.speakers, [speaker("a", 2, 1, 2), speaker("b", 2, 1, 2)]);
        assert_eq!(summary.cut, Some(Cut { question_texts: 1, questions: 2, ..Cut::default() }));
    }

    #[test]
    fn no_question_is_listed_after_one_that_did_not_fit() {
        let limits = Limits { turn_bytes: 99, questions: 9, questions_bytes: 6, ..TIGHT };
        let summary = summary_within(limits, &[said(0, "a", "b?"), said(1, "a", "cde?"), said(2, "a", "f?")]);
        assert_eq!(summary.questions.len(), 1);
        assert_eq!(summary.cut, Some(Cut { questions: 2, ..Cut::default() }));
    }
}
