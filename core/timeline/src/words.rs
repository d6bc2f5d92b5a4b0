//! What is written beside an arrow.

use transcript_core::{
    Acknowledgement, Delivery, Effect, Exhausted, Report, Server, StaleSummary, contract::Announcement,
    event::SessionEnded,
};

use transcript_transcriber::{Departure, Effect as SessionEffect, Report as SessionReport};

use super::{
    model::{Lane, Moment, Step, StepKind, grouped, span},
    xml::visible,
};

/// JetStream, in a sentence.
pub(super) const NATS: &str = "NATS";
/// The store, in a sentence.
pub(super) const MONGODB: &str = "MongoDB";

/// The longest label, in halves of a wide character: what fits beside any lane of a drawing 344 pixels wide.
pub(super) const LABEL: usize = 22;

/// Who carries out an effect.
pub(super) fn server(effect: &Effect) -> Lane {
    lane(effect.kind().server())
}

fn lane(server: Server) -> Lane {
    match server {
        Server::Mongodb => Lane::Store,
        Server::Nats => Lane::Stream,
    }
}

pub(super) fn asked(effect: &Effect) -> String {
    match effect {
        Effect::Load { after: Some(_), .. } => "load more".to_owned(),
        Effect::Save { summary } => format!("save {}", segments(summary.segments)),
        Effect::Publish { announcement: Announcement::Revised { revision }, .. } => {
            format!("publish revision {revision}")
        }
        Effect::Publish { announcement: Announcement::Processed | Announcement::ProcessedOnce, .. } => {
            effect.kind().to_string()
        }
        Effect::Count { .. }
        | Effect::Load { after: None, .. }
        | Effect::Check { .. }
        | Effect::Mark { .. }
        | Effect::DeadLetter { .. } => effect.kind().to_string(),
        Effect::Republish { .. } => "publish again".to_owned(),
        Effect::Acknowledge { acknowledgement, .. } => match acknowledgement {
            Acknowledgement::Ack => "ack".to_owned(),
            Acknowledgement::Nak { delay, .. } if delay.is_zero() => "nak".to_owned(),
            Acknowledgement::Nak { delay, .. } => format!("nak, {}", span(*delay)),
            Acknowledgement::Term { .. } => "term".to_owned(),
        },
    }
}

/// What subscribers hear once this is published, in short and in full.
pub(super) fn announced(effect: &Effect) -> Option<(String, String)> {
    let Effect::Publish { key, announcement, notification, .. } = effect else { return None };
    let label = match announcement {
        Announcement::Processed | Announcement::ProcessedOnce => "processed".to_owned(),
        Announcement::Revised { revision } => format!("revision {revision}"),
    };
    let complete = if notification.complete { "complete" } else { "not complete" };
    Some((label, format!("{} with {}, {complete}", announcement.subject(key), segments(notification.segments))))
}

/// Who can have said this.
pub(super) fn server_of_report(report: &Report) -> Lane {
    report.kind().map_or(Lane::Stream, |kind| lane(kind.server()))
}

/// The effect in full, with the reason that its own words leave out.
pub(super) fn asked_in_full(effect: &Effect) -> String {
    if let Effect::Acknowledge { acknowledgement: Acknowledgement::Nak { reason, .. }, .. } = effect {
        format!("{effect}: {reason}")
    } else {
        effect.to_string()
    }
}

pub(super) fn answered(report: &Report) -> String {
    match report {
        Report::Counted { segments } => format!("counted {segments}"),
        Report::Loaded(page) if page.next.is_some() => format!("loaded {}, not all", page.segments.len()),
        Report::Loaded(page) => format!("loaded {}", page.segments.len()),
        Report::Saved(stored) => format!("stored {}", stored.segments),
        Report::Checked(Some(stored)) if stored.notified.is_some() => "announced before".to_owned(),
        Report::Checked(Some(_)) => "not announced".to_owned(),
        Report::Checked(None) => "not stored".to_owned(),
        Report::Published { stream_sequence, .. } => format!("published at {stream_sequence}"),
        Report::Marked => "marked".to_owned(),
        Report::DeadLettered { stream_sequence } => format!("kept at {stream_sequence}"),
        Report::Republished { stream_sequence } => format!("again at {stream_sequence}"),
        Report::Acknowledged => "confirmed".to_owned(),
        Report::Failed(failure) => failure.kind.to_string(),
    }
}

pub(super) fn delivered(delivery: &Delivery) -> (String, String) {
    let Delivery { stream_sequence, attempt, .. } = delivery;
    let label = if *attempt > 1 { format!("delivery, attempt {attempt}") } else { "delivery".to_owned() };
    let age = span(delivery.received_at.since(delivery.stored_at));
    let what = match SessionEnded::parse(&delivery.payload.0) {
        Ok(ended) if ended.reprocess > 0 => format!("{} is to be processed again", ended.session.key()),
        Ok(ended) => format!("{} ended with {}", ended.session.key(), segments(ended.published_segments)),
        Err(rejection) => format!("a payload that can never be processed, {rejection}"),
    };
    let made_from = delivery.redrive_of.map_or(String::new(), |from| format!(", made from message {from}"));
    let text = format!(
        "delivery of message {stream_sequence}{made_from}, attempt {attempt}, {age} after it was stored: {what}"
    );
    (label, text)
}

pub(super) fn ended(delivery: &Delivery) -> (String, String) {
    let sequence = delivery.stream_sequence;
    match SessionEnded::parse(&delivery.payload.0) {
        Ok(ended) if ended.reprocess > 0 => (
            "asked for again".to_owned(),
            format!("message {sequence} is stored: {} is to be processed again", ended.session.key()),
        ),
        Ok(ended) => (
            format!("ended, {}", segments(ended.published_segments)),
            format!(
                "message {sequence} is stored: {} ended with {}",
                ended.session.key(),
                segments(ended.published_segments)
            ),
        ),
        Err(rejection) => ("unreadable end".to_owned(), format!("message {sequence} is stored: {rejection}")),
    }
}

pub(super) fn exhausted(exhausted: &Exhausted) -> (String, String) {
    let Exhausted { stream_sequence, attempts, .. } = exhausted;
    (
        format!("{attempts} deliveries used"),
        format!("message {stream_sequence} was handed over {attempts} times and will not be again"),
    )
}

pub(super) fn stale(stale: &StaleSummary) -> (String, String) {
    let StaleSummary { session, published_segments, .. } = stale;
    let text = format!(
        "the stored summary of {} is behind; its end announced {}",
        session.key(),
        segments(*published_segments)
    );
    ("summary stale".to_owned(), text)
}

/// What a transcriber asks about a session, in short and in full; `None` where that is not drawn.
pub(super) fn asks_of_session(effect: &SessionEffect) -> Option<(String, String)> {
    match effect {
        SessionEffect::PublishEnd { ended, .. } => {
            let (key, segments) = (ended.session.key(), segments(ended.published_segments));
            Some((format!("ended, {segments}"), format!("session ended: {key} with {segments}")))
        }
        SessionEffect::Join { .. }
        | SessionEffect::Leave { .. }
        | SessionEffect::Count { .. }
        | SessionEffect::Finish { .. }
        | SessionEffect::TakeOver { .. } => Some((effect.kind().to_string(), effect.to_string())),
        SessionEffect::OpenLease { .. }
        | SessionEffect::RenewLease { .. }
        | SessionEffect::ReleaseLease { .. }
        | SessionEffect::FindOrphans { .. }
        | SessionEffect::Reserve { .. }
        | SessionEffect::Save { .. }
        | SessionEffect::PublishSegments { .. } => None,
    }
}

/// What a transcriber is told of a session, in short; `None` where that is not drawn.
pub(super) fn answers_to_session(report: &SessionReport) -> Option<String> {
    match report {
        SessionReport::Joined(_) => Some("joined".to_owned()),
        SessionReport::Left(Departure::Others) => Some("left to others".to_owned()),
        SessionReport::Left(Departure::Silent) => Some("nobody spoke".to_owned()),
        SessionReport::Left(Departure::Ending { .. }) => Some("last one left".to_owned()),
        SessionReport::Counted { segments, .. } => Some(format!("counted {segments}")),
        SessionReport::EndPublished { stream_sequence } => Some(format!("published at {stream_sequence}")),
        SessionReport::Finished => Some("recorded".to_owned()),
        SessionReport::Reopened => Some("opened again".to_owned()),
        SessionReport::TakenOver(_) => Some("taken over".to_owned()),
        SessionReport::Gone => Some("another one has it".to_owned()),
        SessionReport::LeaseHeld
        | SessionReport::LeaseLost
        | SessionReport::LeaseReleased
        | SessionReport::Orphans(_)
        | SessionReport::Reserved { .. }
        | SessionReport::Saved(_)
        | SessionReport::SegmentsPublished
        | SessionReport::Failed(_) => None,
    }
}

/// So many sessions.
pub(super) fn sessions(count: u64) -> String {
    if count == 1 { "one session".to_owned() } else { format!("{} sessions", grouped(count)) }
}

fn segments(count: u64) -> String {
    if count == 1 { "1 segment".to_owned() } else { format!("{} segments", grouped(count)) }
}

/// Gives a step that stands for several its words.
pub(super) fn fold(step: &mut Step) {
    let (count, length) = (step.count, span(step.until.since(step.at)));
    let counted = grouped(count);
    match step.kind {
        StepKind::Heartbeat if count > 1 => {
            step.label = format!("{counted} heartbeats");
            step.text = if step.at == step.until {
                format!("{counted} heartbeats: still at work")
            } else {
                format!("{counted} heartbeats within {length}: still at work")
            };
        }
        StepKind::Stored => {
            step.label = format!("+{}", segments(count));
            step.text = if step.at == step.until {
                format!("stored: {} more", segments(count))
            } else {
                format!("stored: {} more within {length}", segments(count))
            };
        }
        StepKind::Heartbeat
        | StepKind::Message
        | StepKind::Asked
        | StepKind::Answered
        | StepKind::Failed
        | StepKind::Lost
        | StepKind::Remark => {}
    }
}

/// Tries after the second that failed alike.
pub(super) fn more_tries(count: u64, what: &str, last: &str, from: Moment, until: Moment) -> (String, String) {
    let (counted, length) = (grouped(count), span(until.since(from)));
    if count == 1 {
        return ("failed again".to_owned(), format!("one more try to {what}: {last}"));
    }
    (format!("failed {counted}× more"), format!("{counted} more tries to {what} within {length}, the last one: {last}"))
}

/// The text, cut to a label's length.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let text = visible(text);
    if units(&text) <= most {
        return text;
    }
    let mut cut = String::new();
    let mut room = most.saturating_sub(1);
    for c in text.chars() {
        match room.checked_sub(width(c)) {
            Some(rest) => room = rest,
            None => break,
        }
        cut.push(c);
    }
    cut.truncate(cut.trim_end().len());
    cut.push('…');
    cut
}

/// The text in lines of at most `most`, divided at spaces where there are some.
pub(super) fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![];
    let mut line = String::new();
    for word in visible(text).split(' ') {
        if !line.is_empty() && units(&line) + 1 + units(word) > most {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        for c in word.chars() {
            if units(&line) + width(c) > most {
                lines.push(std::mem::take(&mut line));
            }
            line.push(c);
        }
    }
    lines.push(line);
    lines
}

/// A name, cut to a length in its middle: names of a kind differ in their ends.
pub(super) fn brief(name: &str, most: usize) -> String {
    let name = visible(name);
    if units(&name) <= most {
        return name;
    }
    let half = most.saturating_sub(1) / 2;
    let start = shortened(&name, most - half);
    let mut rest = half;
    let end: Vec<char> = name
        .chars()
        .rev()
        .map_while(|c| {
            rest = rest.checked_sub(width(c))?;
            Some(c)
        })
        .collect();
    start + &end.into_iter().rev().collect::<String>()
}

/// How wide a text is at most, in halves of a wide character.
pub(super) fn units(text: &str) -> usize {
    text.chars().map(width).sum()
}

fn width(c: char) -> usize {
    if c.is_ascii() || matches!(c, '…' | '×' | 'µ' | 'À'..='ɏ') { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_wrapped_and_loses_nothing() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefghij kl", 4), ["abcd", "efgh", "ij", "kl"]);
        assert_eq!(wrapped("", 4), [""]);
    }

    #[test]
    fn labels_are_cut_by_their_width() {
        assert_eq!(shortened("0123456789", 10), "0123456789");
        assert_eq!(shortened("0123456789a", 10), "012345678…");
        assert_eq!(shortened("会議の要約です", 10), "会議の要…");
        assert_eq!(shortened("a\nb", 22), "a\\u{a}b");
        assert_eq!(units(&shortened(&"💥".repeat(99), LABEL)), 21);
        assert_eq!(brief("processor-7d9f6c5b8-x2k4q (2)", 14), "process…4q (2)");
        assert_eq!(brief("processor-12", 14), "processor-12");
    }
}
