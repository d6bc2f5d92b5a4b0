//! What is in traces, file by file.

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use transcript_core::{Input, Time, WallTime, ids::JobId};
use transcript_trace::{Content, Header, Line, ReadError, Said, TraceFiles};

/// What is in one part of a file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListedPart {
    file: String,
    header: Header,
    entries: u64,
    jobs: u64,
    #[serde(skip)]
    newest: Option<JobId>,
    /// Microseconds since its processor started.
    from: Option<Time>,
    /// The same.
    to: Time,
    left_out: u64,
}

/// The parts of all files, in their order.
pub(super) fn list(lines: &mut TraceFiles<'_>) -> Result<Vec<ListedPart>, ReadError> {
    let mut parts = vec![];
    let mut part: Option<ListedPart> = None;
    while let Some(line) = lines.next() {
        match line {
            Err(ReadError::CutOff { .. }) => {}
            Err(error) => return Err(error),
            Ok(Line::Header(header)) => {
                parts.extend(part.take());
                part = Some(ListedPart::new(lines.file().to_owned(), *header));
            }
            Ok(Line::Entry(entry)) => {
                let Some(part) = &mut part else { continue };
                part.entries += 1;
                part.from = part.from.or(entry.at);
                part.to = entry.at.unwrap_or(part.to);
                match entry.said {
                    Said::In(Input::Delivered(_) | Input::Exhausted(_) | Input::Stale(_))
                        if entry.job > part.newest =>
                    {
                        part.newest = entry.job;
                        part.jobs += 1;
                    }
                    Said::LeftOut(left_out) => part.left_out += left_out.inputs,
                    Said::In(_) | Said::Out(_) | Said::Note(_) => {}
                }
            }
        }
    }
    parts.extend(part);
    Ok(parts)
}

/// Three lines for each part.
pub(super) fn table(parts: &[ListedPart]) -> String {
    parts.iter().map(ListedPart::shown).collect()
}

impl ListedPart {
    fn new(file: String, header: Header) -> Self {
        let newest = header.continues.as_ref().and_then(|before| before.last_job);
        Self { file, header, entries: 0, jobs: 0, newest, from: None, to: Time::ZERO, left_out: 0 }
    }

    fn shown(&self) -> String {
        let Self { file, header, entries, jobs, .. } = self;
        let many = |n: u64| if n == 1 { "" } else { "s" };
        let processor = header.processor.as_deref().unwrap_or("an observer");
        let started = moment(header.started_at);
        let mut text = format!("{file}\n  {processor}, started {started}");
        if let Some(from) = self.from {
            let at = |time: Time| moment(header.started_at.after(time.since(Time::ZERO)));
            text += &format!(", from {} to {}", at(from), at(self.to));
        }
        text += &format!("\n  {entries} entries, {jobs} new job{}", many(*jobs));
        if self.left_out > 0 {
            text += &format!(", {} input{} left out", self.left_out, many(self.left_out));
        }
        if let Some(session) = &header.session {
            text += &format!(", cut to {}", session.key());
        }
        if let Some(before) = &header.continues {
            text += &format!(", goes on from {}", before.file);
        }
        text += match header.content {
            Content::Redacted => "",
            Content::Kept => ", WITH THE WORDS OF THE CALLS",
        };
        text + "\n"
    }
}

/// To the second, in UTC.
pub(super) fn moment(at: WallTime) -> String {
    let millis = u64::try_from(at.as_millis()).unwrap_or(0);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(millis)).to_string()
}
