//! Dead letters laid out for a terminal.

use std::fmt::{self, Write};

use mongodb::bson::DateTime;
use serde::Serialize;
use textwrap::core::display_width;
use transcript_core::WallTime;

use super::{Done, Outcome, State, StoredDeadLetter};
use crate::terminal::{harmless, padded, shortened};

/// The least that a column keeps of its texts.
const NARROWEST: usize = 8;
const HEADS: [&str; 8] = ["SEQ", "WHEN (UTC)", "TRIES", "STATE", "CONVERSATION", "SESSION", "REASON", "PROCESSOR"];
/// Where in [`HEADS`] those columns begin that are cut where a line gets too long.
const FIRST_CUT: usize = 4;
const GAP: &str = "  ";

/// One line a dead letter under a line of heads, with texts cut so that lines have at most `width` columns, where the terminal
/// has 80 or more. [`render`] shows them whole.
#[must_use]
pub fn table(dead_letters: &[StoredDeadLetter], width: usize) -> String {
    let rows: Vec<[String; 8]> = dead_letters.iter().map(cells).collect();
    let mut widths = HEADS.map(display_width);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = display_width(cell).max(*width);
        }
    }
    fit(&mut widths, width);
    let heads = HEADS.map(str::to_owned);
    let mut table = String::new();
    for row in std::iter::once(&heads).chain(&rows) {
        let cells = row.iter().zip(widths).map(|(cell, width)| padded(&shortened(cell, width), width));
        let line = cells.collect::<Vec<_>>().join(GAP);
        writeln!(table, "{}", line.trim_end()).expect("a String takes everything");
    }
    table
}

/// Everything about a dead letter, line by line, and its payload.
#[must_use]
pub fn render(dead_letter: &StoredDeadLetter, payload: &[u8]) -> String {
    let unknown = || "-".to_owned();
    let number = |number: Option<u64>| number.map_or_else(unknown, |number| number.to_string());
    let text = |text: Option<&str>| text.map_or_else(unknown, harmless);
    let session = dead_letter.session.as_ref();
    let rows = [
        ("Dead letter", dead_letter.sequence.to_string()),
        ("About message", number(dead_letter.stream_sequence)),
        ("Conversation", text(session.map(|session| &*session.conversation_id))),
        ("Session", text(session.map(|session| &*session.session_id))),
        ("When", moment(dead_letter.at)),
        ("Attempts", number(dead_letter.attempts)),
        ("Reason", text(dead_letter.reason.as_deref())),
        ("Processor", text(dead_letter.processor.as_deref())),
        ("State", dead_letter.state.to_string()),
    ];
    let mut page = String::new();
    for (name, value) in rows {
        writeln!(page, "{name:<15}{value}").expect("a String takes everything");
    }
    writeln!(page, "\n{}", readable(payload)).expect("a String takes everything");
    page
}

/// A dead letter and its payload, for [`json`](crate::transcripts::show::json).
#[derive(Debug, Serialize)]
pub struct Whole<'a> {
    #[serde(flatten)]
    dead_letter: &'a StoredDeadLetter,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    #[serde(rename = "payloadEscaped", skip_serializing_if = "Option::is_none")]
    escaped: Option<String>,
}

impl<'a> Whole<'a> {
    /// The payload is a text where it is UTF-8, and else one with escapes.
    #[must_use]
    pub fn new(dead_letter: &'a StoredDeadLetter, payload: &'a [u8]) -> Self {
        let text = std::str::from_utf8(payload).ok();
        Self { dead_letter, payload: text, escaped: text.is_none().then(|| payload.escape_ascii().to_string()) }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open"),
            Self::Redriven { redriven_as, came_back_as: None } => write!(f, "redriven as message {redriven_as}"),
            Self::Redriven { redriven_as, came_back_as: Some(dead_letter) } => {
                write!(f, "redriven as message {redriven_as}, and came back as dead letter {dead_letter}")
            }
            Self::Settled => f.write_str("settled: the call is summarised and announced"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sequence = self.sequence;
        match &self.done {
            Done::Redriven { redriven_as } => write!(f, "{sequence} redriven as message {redriven_as}"),
            Done::RedrivenBefore { redriven_as } => write!(f, "{sequence} redriven before, as message {redriven_as}"),
            Done::Settled => write!(f, "{sequence} settled: the call is summarised and announced"),
            Done::Discarded => write!(f, "{sequence} discarded"),
            Done::CameBack { came_back_as } => {
                write!(f, "{sequence} was redriven and came back as dead letter {came_back_as}: redrive that one")
            }
            Done::Absent => write!(f, "{sequence} is not there: `dead-letters list` names those that are"),
            Done::NotADeadLetter { subject } => {
                write!(f, "{sequence} is no dead letter but a {}: left as it is", harmless(subject))
            }
            Done::Failed { error } => write!(f, "{sequence} failed: {}", harmless(error)),
        }
    }
}

fn cells(dead_letter: &StoredDeadLetter) -> [String; 8] {
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let text = |text: Option<&str>| text.map_or_else(|| "-".to_owned(), harmless);
    let session = dead_letter.session.as_ref();
    let state = match dead_letter.state {
        State::Open => "open".to_owned(),
        State::Redriven { came_back_as: None, .. } => "redriven".to_owned(),
        State::Redriven { came_back_as: Some(dead_letter), .. } => format!("now {dead_letter}"),
        State::Settled => "settled".to_owned(),
    };
    let to_the_minute = moment(dead_letter.at).replace('T', " ").chars().take(16).collect();
    [
        dead_letter.sequence.to_string(),
        to_the_minute,
        number(dead_letter.attempts),
        state,
        text(session.map(|session| &*session.conversation_id)),
        text(session.map(|session| &*session.session_id)),
        text(dead_letter.reason.as_deref()),
        text(dead_letter.processor.as_deref()),
    ]
}

/// Takes from the texts' columns what a line has too much: the ids get a fifth each, the reason what is left.
fn fit(widths: &mut [usize; 8], width: usize) {
    let gaps = GAP.len() * (HEADS.len() - 1);
    let fixed: usize = widths[..FIRST_CUT].iter().sum();
    let spare = width.saturating_sub(fixed + gaps);
    let [.., conversation, session, reason, processor] = widths;
    if *conversation + *session + *reason + *processor <= spare {
        return;
    }
    let most = (spare / 5).max(NARROWEST);
    for id in [&mut *conversation, &mut *session, &mut *processor] {
        *id = most.min(*id);
    }
    *reason = spare.saturating_sub(*conversation + *session + *processor).clamp(NARROWEST, (*reason).max(NARROWEST));
}

/// The payload as its text, or with escapes where it is none.
fn readable(payload: &[u8]) -> String {
    match std::str::from_utf8(payload) {
        Ok(text) => text.lines().map(harmless).collect::<Vec<_>>().join("\n"),
        Err(_) => payload.escape_ascii().to_string(),
    }
}

fn moment(at: WallTime) -> String {
    let at = DateTime::from_millis(at.as_millis());
    at.try_to_rfc3339_string().unwrap_or_else(|_| at.timestamp_millis().to_string())
}

#[cfg(test)]
mod tests {
    use transcript_core::ids::Session;

    use super::*;

    fn dead_letter(conversation: &str, session: &str, reason: &str) -> StoredDeadLetter {
        StoredDeadLetter {
            sequence: 4711,
            at: WallTime::from_millis(1_795_980_423_000),
            session: Session::new(conversation, session).ok(),
            attempts: Some(5),
            reason: Some(reason.into()),
            processor: Some("calls-7f9c/1".into()),
            stream_sequence: Some(4001),
            state: State::Open,
        }
    }

    #[test]
    fn short_dead_letters_are_aligned_and_whole() {
        let mut back = dead_letter("room-7", "s", "handed over\u{1b}[31m");
        back.state = State::Redriven { redriven_as: 5000, came_back_as: Some(5001) };
        let foreign = StoredDeadLetter {
            session: None,
            attempts: None,
            reason: None,
            processor: None,
            ..dead_letter("c", "s", "")
        };
        assert_eq!(
            table(&[back, foreign], 120),
            "\
SEQ   WHEN (UTC)        TRIES  STATE     CONVERSATION  SESSION  REASON            PROCESSOR
4711  2026-11-29 19:27  5      now 5001  room-7        s        handed over\u{fffd}[31m  calls-7f9c/1
4711  2026-11-29 19:27  -      open      -             -        -                 -
"
        );
    }

    #[test]
    fn long_dead_letters_keep_to_the_width() {
        let long = dead_letter(&"c".repeat(256), &"日".repeat(80), &"why ".repeat(250));
        for width in [80, 100, 200] {
            for line in table(std::slice::from_ref(&long), width).lines() {
                assert!(display_width(line) <= width, "{width}: {line}");
            }
        }
        let whole = table(std::slice::from_ref(&long), usize::MAX);
        assert!(whole.contains(&"c".repeat(256)) && whole.contains(&"why ".repeat(249)), "{whole}");
    }

    #[test]
    fn a_payload_is_shown_and_moves_no_terminal() {
        let page = render(&dead_letter("c", "s", "r"), b"{\n\"a\": \"\xc2\x9b\"}");
        assert!(page.ends_with("State          open\n\n{\n\"a\": \"\u{fffd}\"}\n"), "{page}");
        assert!(render(&dead_letter("c", "s", "r"), b"\xff\n").ends_with("\n\n\\xff\\n\n"));
        let json =
            |payload| serde_json::to_value(Whole::new(&dead_letter("c", "s", "r"), payload)).expect("it is JSON");
        assert_eq!(json(b"\xff")["payloadEscaped"], "\\xff");
        assert_eq!((&json(b"x")["payload"], &json(b"x")["state"]), (&"x".into(), &"open".into()));
    }
}
