//! What is in traces, file by file.

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use transcript_core::{Input, Time, WallTime, ids::JobId};
use transcript_trace::{Content, Continues, Header, Line, ReadError, Said, TraceFiles, TranscriberHeader};

/// What is in one part of a file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListedPart {
    file: String,
    header: AnyHeader,
    entries: u64,
    jobs: u64,
    #[serde(skip)]
    newest: Option<JobId>,
    /// Microseconds since its process started.
    from: Option<Time>,
    /// The same.
    to: Time,
    left_out: u64,
}

/// The header of a part.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum AnyHeader {
    Processor(Header),
    Transcriber(TranscriberHeader),
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
                part = Some(ListedPart::new(lines.file().to_owned(), AnyHeader::Processor(*header)));
            }
            Ok(Line::TranscriberHeader(header)) => {
                parts.extend(part.take());
                part = Some(ListedPart::new(lines.file().to_owned(), AnyHeader::Transcriber(*header)));
            }
            Ok(Line::TranscriberEntry(entry)) => {
                let Some(part) = &mut part else { continue };
                part.entry(entry.at);
                match entry.said {
                    Said::LeftOut(left_out) => part.left_out += left_out.inputs,
                    Said::In(_) | Said::Out(_) | Said::Note(_) => {}
                }
            }
            Ok(Line::Entry(entry)) => {
                let Some(part) = &mut part else { continue };
                part.entry(entry.at);
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
    fn new(file: String, header: AnyHeader) -> Self {
        let newest = header.continues().and_then(|before| before.last_job);
        Self { file, header, entries: 0, jobs: 0, newest, from: None, to: Time::ZERO, left_out: 0 }
    }

    fn entry(&mut self, at: Option<Time>) {
        self.entries += 1;
        self.from = self.from.or(at);
        self.to = at.unwrap_or(self.to);
    }

    fn shown(&self) -> String {
        let Self { file, header, entries, jobs, .. } = self;
        let many = |n: u64| if n == 1 { "" } else { "s" };
        let (who, started_at) = (header.who(), header.started_at());
        let mut text = format!("{file}\n  {who}, started {}", moment(started_at));
        if let Some(from) = self.from {
            let at = |time: Time| moment(started_at.after(time.since(Time::ZERO)));
            text += &format!(", from {} to {}", at(from), at(self.to));
        }
        text += &format!("\n  {entries} entries");
        if let AnyHeader::Processor(_) = header {
            text += &format!(", {jobs} new job{}", many(*jobs));
        }
        if self.left_out > 0 {
            text += &format!(", {} input{} left out", self.left_out, many(self.left_out));
        }
        if let AnyHeader::Processor(Header { session: Some(session), .. }) = header {
            text += &format!(", cut to {}", session.key());
        }
        if let Some(before) = header.continues() {
            text += &format!(", goes on from {}", before.file);
        }
        text += match header.content() {
            Content::Redacted => "",
            Content::Kept => ", WITH THE WORDS OF THE CALLS",
        };
        text + "\n"
    }
}

impl AnyHeader {
    fn who(&self) -> String {
        match self {
            Self::Processor(header) => header.processor.as_deref().unwrap_or("an observer").to_owned(),
            Self::Transcriber(header) => format!("transcriber {}", header.transcriber),
        }
    }

    fn started_at(&self) -> WallTime {
        match self {
            Self::Processor(header) => header.started_at,
            Self::Transcriber(header) => header.started_at,
        }
    }

    fn content(&self) -> Content {
        match self {
            Self::Processor(header) => header.content,
            Self::Transcriber(header) => header.content,
        }
    }

    fn continues(&self) -> Option<&Continues> {
        match self {
            Self::Processor(header) => header.continues.as_ref(),
            Self::Transcriber(header) => header.continues.as_ref(),
        }
    }
}

/// To the second, in UTC.
pub(super) fn moment(at: WallTime) -> String {
    let millis = u64::try_from(at.as_millis()).unwrap_or(0);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(millis)).to_string()
}
