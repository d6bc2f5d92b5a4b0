//! A summary laid out for a terminal.

use std::fmt::Write;

use mongodb::bson::{Bson, DateTime, Document, deserialize_from_document};
use serde::Deserialize;
use textwrap::core::display_width;
use transcript_core::{
    contract::TRANSCRIPTION_STREAM,
    summary::{Cut, Question, Speaker, Turn},
};

use super::ShowError;
use crate::terminal::{harmless, padded, shortened};

/// A speaker's column is at most this wide; longer labels are cut.
const WIDEST_SPEAKER: usize = 24;
/// Narrower, nothing can be laid out.
const NARROWEST: usize = 40;
/// What the names of the first rows take.
const NAMES: usize = 14;
/// So much of a line is left for a text beside what stands before it; otherwise the text goes below.
const LEAST_TEXT: usize = 16;
/// No call is that long: such a time counts from the Unix epoch. A hundred days, in milliseconds.
const SINCE_EPOCH: u64 = 100 * 24 * 3600 * 1000;

/// The summary with lines of at most `width` columns, where words allow it.
///
/// # Errors
///
/// The document is no summary.
pub fn render(document: &Document, width: usize) -> Result<String, ShowError> {
    let view: View = deserialize_from_document(document.clone())?;
    let width = width.max(NARROWEST);
    let mut page = String::new();
    view.head(&mut page, width);
    view.speakers(&mut page, width);
    view.longest_turns(&mut page, width);
    view.questions(&mut page, width);
    Ok(page)
}

/// What a summary's document must have to be shown; times are read in whichever form they were stored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct View {
    conversation_id: String,
    session_id: String,
    segments: u64,
    published_segments: u64,
    complete: bool,
    words: u64,
    speakers: Vec<Speaker>,
    longest_turns: Vec<Turn>,
    questions: Vec<Question>,
    cut: Option<Cut>,
    /// Segments whose text or label is not valid UTF-8, or no text at all.
    damaged: Option<u64>,
    updated_at: Option<Bson>,
    notified: Option<Notified>,
    /// Which of the call's announced summaries this is; absent for the first.
    revision: Option<i64>,
    revised: Option<Revised>,
}

/// The mark that the summary was announced.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Notified {
    at: Option<Bson>,
    stream_sequence: Option<i64>,
}

/// The mark that a revision was announced.
#[derive(Deserialize)]
struct Revised {
    revision: Option<i64>,
    #[serde(flatten)]
    notified: Notified,
}

impl View {
    fn head(&self, page: &mut String, width: usize) {
        let completeness = if self.complete { "complete" } else { "INCOMPLETE" };
        let rows = [
            ("Conversation", harmless(&self.conversation_id)),
            ("Session", harmless(&self.session_id)),
            ("Segments", format!("{} of {}, {completeness}", self.segments, self.published_segments)),
            ("Words", self.words.to_string()),
            ("Updated", moment(self.updated_at.as_ref())),
            ("Notified", self.notified.as_ref().map_or_else(|| "not yet".to_owned(), |mark| self.first_notified(mark))),
        ];
        let more = [
            self.revision.map(|revision| ("Revision", revision.to_string())),
            self.revision.map(|revision| ("Revised", self.revised_notified(revision))),
            self.cut.as_ref().map(|cut| ("Left out", left_out(cut))),
            self.damaged.filter(|damaged| *damaged > 0).map(|damaged| ("Damaged", damaged_segments(damaged))),
        ];
        for (name, value) in rows.into_iter().chain(more.into_iter().flatten()) {
            wrapped(page, &value, &format!("{name:<NAMES$}"), &" ".repeat(NAMES), width);
        }
    }

    /// The first notification told of the first summary, which is another one where there is a revision.
    fn first_notified(&self, mark: &Notified) -> String {
        let of = if self.revision.is_some() { ", of the first summary" } else { "" };
        format!("{}{of}", mark.told())
    }

    fn revised_notified(&self, revision: i64) -> String {
        match &self.revised {
            Some(mark) if mark.revision == Some(revision) => mark.notified.told(),
            Some(Revised { revision: Some(before), notified }) => {
                format!("not yet; revision {before} was: {}", notified.told())
            }
            Some(_) | None => "not yet: a processor with --revise announces it".to_owned(),
        }
    }

    fn speakers(&self, page: &mut String, width: usize) {
        if self.speakers.is_empty() {
            return;
        }
        line(page, "");
        let column = self.speaker_column(width).max(display_width("Speakers"));
        line(page, &format!("{}  {:>7}  {:>5}  {:>9}", padded("Speakers", column + 2), "words", "turns", "questions"));
        for Speaker { speaker, words, turns, questions } in &self.speakers {
            let name = padded(&label(speaker.as_deref(), column), column);
            line(page, &format!("  {name}  {words:>7}  {turns:>5}  {questions:>9}"));
        }
    }

    fn longest_turns(&self, page: &mut String, width: usize) {
        if self.longest_turns.is_empty() {
            return;
        }
        line(page, "");
        line(page, "Longest turns");
        for turn in &self.longest_turns {
            let times = match (turn.start_ms, turn.end_ms) {
                (Some(start), Some(end)) => format!(", {} to {}", clock(start), clock(end)),
                (Some(start), None) => format!(", from {}", clock(start)),
                (None, Some(end)) => format!(", until {}", clock(end)),
                (None, None) => String::new(),
            };
            let who = label(turn.speaker.as_deref(), WIDEST_SPEAKER);
            wrapped(page, &format!("{who}, {} words{times}", turn.words), "  ", "    ", width);
            wrapped(page, &turn.text, "    ", "    ", width);
        }
    }

    fn questions(&self, page: &mut String, width: usize) {
        if self.questions.is_empty() {
            return;
        }
        line(page, "");
        line(page, "Questions");
        let column = self.speaker_column(width);
        let times: Vec<_> = self.questions.iter().map(|question| question.start_ms.map(clock)).collect();
        let time_column = times.iter().flatten().map(|time| display_width(time).max(8)).max().unwrap_or(0);
        for (Question { speaker, text, .. }, time) in self.questions.iter().zip(times) {
            let time = time.unwrap_or_default();
            let time = if time_column > 0 { format!("{time:>time_column$}  ") } else { String::new() };
            let first = format!("  {time}{}  ", padded(&label(speaker.as_deref(), column), column));
            let before = display_width(&first);
            if before + LEAST_TEXT > width {
                wrapped(page, &first, "", "    ", width);
                wrapped(page, text, "    ", "    ", width);
            } else {
                wrapped(page, text, &first, &" ".repeat(before), width);
            }
        }
    }

    fn speaker_column(&self, width: usize) -> usize {
        let widest = WIDEST_SPEAKER.min(width / 4);
        let labels = self.speakers.iter().map(|s| s.speaker.as_deref());
        let labels = labels.chain(self.questions.iter().map(|q| q.speaker.as_deref()));
        labels.map(|speaker| display_width(&label(speaker, widest))).max().unwrap_or(0)
    }
}

impl Notified {
    fn told(&self) -> String {
        let sequence =
            self.stream_sequence.map(|n| format!(", message {n} of {TRANSCRIPTION_STREAM}")).unwrap_or_default();
        format!("{}{sequence}", moment(self.at.as_ref()))
    }
}

fn line(page: &mut String, text: &str) {
    writeln!(page, "{}", text.trim_end()).expect("a String takes everything");
}

fn wrapped(page: &mut String, text: &str, first: &str, next: &str, width: usize) {
    let options = textwrap::Options::new(width).initial_indent(first).subsequent_indent(next);
    for piece in textwrap::wrap(&harmless(text), options) {
        line(page, &piece);
    }
}

/// The label as it fits into its column; a dash where there is none.
fn label(speaker: Option<&str>, column: usize) -> String {
    speaker.map_or_else(|| "-".to_owned(), |speaker| shortened(&harmless(speaker), column))
}

/// `h:mm:ss` since the call's start; a moment where the time counts from the Unix epoch.
fn clock(ms: i64) -> String {
    if ms.unsigned_abs() >= SINCE_EPOCH {
        let second = DateTime::from_millis(ms - ms.rem_euclid(1000));
        return second.try_to_rfc3339_string().unwrap_or_else(|_| ms.to_string());
    }
    let sign = if ms < 0 { "-" } else { "" };
    let seconds = ms.unsigned_abs() / 1000;
    format!("{sign}{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn moment(value: Option<&Bson>) -> String {
    let rfc3339 = |time: DateTime| time.try_to_rfc3339_string().unwrap_or_else(|_| time.timestamp_millis().to_string());
    match value {
        None => "at an unknown time".to_owned(),
        Some(Bson::DateTime(time)) => rfc3339(*time),
        Some(Bson::Int64(ms)) => rfc3339(DateTime::from_millis(*ms)),
        Some(other) => harmless(&other.to_string()),
    }
}

fn damaged_segments(damaged: u64) -> String {
    let segments = if damaged == 1 { "segment has" } else { "segments have" };
    format!("{damaged} {segments} a text or a label that is not valid UTF-8, or no text")
}

fn left_out(cut: &Cut) -> String {
    let Cut { labels, speakers, turns, question_texts, questions } = cut;
    let parts = [
        (labels, "labels shortened"),
        (speakers, "segments of speakers that are not listed"),
        (turns, "turns shortened"),
        (question_texts, "questions shortened"),
        (questions, "questions that are not listed"),
    ];
    let told: Vec<String> = parts.iter().filter(|(n, _)| **n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    told.join(", ")
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    fn summary() -> Document {
        doc! {
            "_id": "room-7:s-1", "conversationId": "room-7", "sessionId": "s-1",
            "segments": 3_i64, "publishedSegments": 4, "complete": false, "words": 12_i64,
            "speakers": [
                { "speaker": "Ann", "words": 9_i64, "turns": 2, "questions": 1 },
                { "speaker": "山田", "words": 3, "turns": 1, "questions": 0 },
                { "speaker": null, "words": 0, "turns": 1, "questions": 0 },
            ],
            "longestTurns": [{
                "speaker": "Ann", "words": 9, "text": "one two three four five six seven eight nine", "index": 0,
                "startMs": 0, "endMs": 3_723_999_i64,
            }],
            "questions": [
                { "speaker": "Ann", "text": "Is it\u{1b}[31m red?", "index": 0, "startMs": 61_000 },
                { "speaker": "山田", "text": "Why?", "index": 1 },
            ],
            "updatedAt": DateTime::from_millis(0),
            "notified": { "streamSequence": 12_i64, "at": DateTime::from_millis(1_500) }, "unheardOf": 1,
        }
    }

    #[test]
    fn a_summary_is_laid_out_in_columns() {
        let page = render(&summary(), 40).unwrap();
        assert_eq!(
            page,
            "\
Conversation  room-7
Session       s-1
Segments      3 of 4, INCOMPLETE
Words         12
Updated       1970-01-01T00:00:00Z
Notified      1970-01-01T00:00:01.5Z,
              message 12 of
              TRANSCRIPTION

Speakers      words  turns  questions
  Ann             9      2          1
  山田            3      1          0
  -               0      1          0

Longest turns
  Ann, 9 words, 0:00:00 to 1:02:03
    one two three four five six seven
    eight nine

Questions
   0:01:01  Ann   Is it\u{fffd}[31m red?
            山田  Why?
"
        );
    }

    #[test]
    fn an_empty_call_is_short() {
        let document = doc! {
            "conversationId": "c", "sessionId": "s", "segments": 0, "publishedSegments": 0, "complete": true, "words": 0,
            "speakers": [], "longestTurns": [], "questions": [], "updatedAt": 1_000_i64,
        };
        let page = render(&document, 80).unwrap();
        assert_eq!(page.lines().count(), 6, "{page}");
        assert!(page.contains("Updated       1970-01-01T00:00:01Z\nNotified      not yet\n"), "{page}");
    }

    #[test]
    fn what_was_cut_is_said() {
        let mut document = summary();
        document.insert("cut", doc! { "labels": 0, "speakers": 2, "turns": 0, "questionTexts": 0, "questions": 7 });
        let page = render(&document, 100).unwrap();
        assert!(
            page.contains(
                "Left out      2 segments of speakers that are not listed, 7 questions that are not listed\n"
            ),
            "{page}"
        );
    }

    #[test]
    fn a_narrow_terminal_is_kept_to() {
        let mut document = summary();
        let long = "A very long label of one who speaks";
        document.insert("conversationId", "c".repeat(100));
        document.insert("damaged", 2_i64);
        document.insert("revision", 3_i64);
        document.insert("cut", doc! { "labels": 9, "speakers": 2, "turns": 3, "questionTexts": 0, "questions": 7 });
        document.insert(
            "speakers",
            vec![doc! { "speaker": long, "words": 1_234_567, "turns": 12_345, "questions": 1_234 }],
        );
        let epoch_ms = 1_795_939_200_500_i64;
        document.insert("questions", vec![doc! { "speaker": long, "text": "Is it?", "index": 0, "startMs": epoch_ms }]);
        for width in [40, 60, 100] {
            let page = render(&document, width).unwrap();
            let wide: Vec<_> = page.lines().filter(|line| display_width(line) > width).collect();
            assert_eq!(wide, [] as [&str; 0], "{width}: {page}");
            assert!(page.contains("2026-11-29T08:00:00Z") && page.contains("Is it?"), "{page}");
        }
        let page = render(&document, 100).unwrap();
        assert!(
            page.contains("Damaged       2 segments have a text or a label that is not valid UTF-8, or no text\n"),
            "{page}"
        );
    }

    #[test]
    fn a_revision_is_told_apart_from_the_first_summary() {
        let mut document = summary();
        document.insert("revision", 2);
        let page = render(&document, 100).unwrap();
        assert!(page.contains("message 12 of TRANSCRIPTION, of the first summary\nRevision      2\n"), "{page}");
        assert!(page.contains("Revised       not yet: a processor with --revise announces it\n"), "{page}");
        let mark = doc! { "revision": 2, "streamSequence": 40_i64, "at": DateTime::from_millis(0) };
        document.insert("revised", mark);
        let page = render(&document, 100).unwrap();
        assert!(page.contains("Revised       1970-01-01T00:00:00Z, message 40 of TRANSCRIPTION\n"), "{page}");
        document.insert("revision", 3);
        let page = render(&document, 100).unwrap();
        assert!(page.contains("Revised       not yet; revision 2 was: 1970-01-01T00:00:00Z, message 40"), "{page}");
    }

    #[test]
    fn a_long_label_is_cut_to_its_column() {
        let short = label(Some(&"山".repeat(100)), WIDEST_SPEAKER);
        assert_eq!(short, format!("{}…", "山".repeat(11)));
        assert_eq!(label(Some(&"x".repeat(24)), WIDEST_SPEAKER), "x".repeat(24));
    }

    #[test]
    fn what_is_no_summary_is_refused() {
        assert!(matches!(render(&doc! { "_id": "x" }, 80), Err(ShowError::NoSummary(_))));
    }
}
