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

/// The summary with lines of at most `width` columns, where words allow it.
///
/// # Errors
///
/// The document is no summary.
pub fn render(document: &Document, width: usize) -> Result<String, ShowError> {
    let view: View = deserialize_from_document(document.clone())?;
    let width = width.max(NARROWEST);
    let mut page = String::new();
    view.head(&mut page);
    view.speakers(&mut page);
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
    updated_at: Option<Bson>,
    notified: Option<Notified>,
}

/// The mark that the summary was announced.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Notified {
    at: Option<Bson>,
    stream_sequence: Option<i64>,
}

impl View {
    fn head(&self, page: &mut String) {
        let completeness = if self.complete { "complete" } else { "INCOMPLETE" };
        let rows = [
            ("Conversation", harmless(&self.conversation_id)),
            ("Session", harmless(&self.session_id)),
            ("Segments", format!("{} of {}, {completeness}", self.segments, self.published_segments)),
            ("Words", self.words.to_string()),
            ("Updated", moment(self.updated_at.as_ref())),
            ("Notified", self.notified.as_ref().map_or_else(|| "not yet".to_owned(), Notified::told)),
        ];
        for (name, value) in rows {
            line(page, &format!("{name:<14}{value}"));
        }
        if let Some(cut) = &self.cut {
            line(page, &format!("{:<14}{}", "Left out", left_out(cut)));
        }
    }

    fn speakers(&self, page: &mut String) {
        if self.speakers.is_empty() {
            return;
        }
        line(page, "");
        let column = self.speaker_column().max(display_width("Speakers"));
        line(page, &format!("{}  {:>9}  {:>7}  {:>9}", padded("Speakers", column + 2), "words", "turns", "questions"));
        for Speaker { speaker, words, turns, questions } in &self.speakers {
            let name = padded(&label(speaker.as_deref()), column);
            line(page, &format!("  {name}  {words:>9}  {turns:>7}  {questions:>9}"));
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
            line(page, &format!("  {}, {} words{times}", label(turn.speaker.as_deref()), turn.words));
            wrapped(page, &turn.text, "    ", "    ", width);
        }
    }

    fn questions(&self, page: &mut String, width: usize) {
        if self.questions.is_empty() {
            return;
        }
        line(page, "");
        line(page, "Questions");
        let column = self.speaker_column();
        let has_times = self.questions.iter().any(|question| question.start_ms.is_some());
        for Question { speaker, text, start_ms, .. } in &self.questions {
            let time =
                if has_times { format!("{:>8}  ", start_ms.map(clock).unwrap_or_default()) } else { String::new() };
            let first = format!("  {time}{}  ", padded(&label(speaker.as_deref()), column));
            let next = " ".repeat(display_width(&first));
            wrapped(page, text, &first, &next, width);
        }
    }

    fn speaker_column(&self) -> usize {
        let labels = self.speakers.iter().map(|s| s.speaker.as_deref());
        let labels = labels.chain(self.questions.iter().map(|q| q.speaker.as_deref()));
        labels.map(|speaker| display_width(&label(speaker))).max().unwrap_or(0)
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
fn label(speaker: Option<&str>) -> String {
    speaker.map_or_else(|| "-".to_owned(), |speaker| shortened(&harmless(speaker), WIDEST_SPEAKER))
}

/// `h:mm:ss` since the call's start.
fn clock(ms: i64) -> String {
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
Notified      1970-01-01T00:00:01.5Z, message 12 of TRANSCRIPTION

Speakers        words    turns  questions
  Ann               9        2          1
  山田              3        1          0
  -                 0        1          0

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
        let page = render(&document, 80).unwrap();
        assert!(
            page.contains(
                "Left out      2 segments of speakers that are not listed, 7 questions that are not listed\n"
            ),
            "{page}"
        );
    }

    #[test]
    fn a_long_label_is_cut_to_its_column() {
        let short = label(Some(&"山".repeat(100)));
        assert_eq!(short, format!("{}…", "山".repeat(11)));
        assert_eq!(label(Some(&"x".repeat(24))), "x".repeat(24));
    }

    #[test]
    fn what_is_no_summary_is_refused() {
        assert!(matches!(render(&doc! { "_id": "x" }, 80), Err(ShowError::NoSummary(_))));
    }
}
