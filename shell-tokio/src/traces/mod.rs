//! The commands that read traces. None of them connects to a server.

mod calls;
mod list;

use std::{
    error::Error,
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;
use serde_json::json;
use thiserror::Error;
use transcript_core::{Input, Processor, event::SessionEnded, ids::Session};
use transcript_timeline::{Selection, Timeline};
use transcript_trace::{
    FilesError, Line, ReadError, Said, TraceFiles,
    cut::{CutError, Wanted, cut},
    is_read_in_directory,
    replay::{self, Problem, Replayed},
    stats::Stats,
};

use crate::{
    cli::{Drawing, ReplayArgs, TimelineArgs, TraceArgs, TracePaths},
    private_files::{FileId, NewFile},
    terminal::{HarmlessJson, harmless},
    transcripts::show,
};

/// What a command has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What is printed.
    pub text: String,
    /// Whether all is well.
    pub is_good: bool,
}

/// Why a trace cannot be read.
#[derive(Debug, Error)]
pub enum Unreadable {
    /// The files.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The settings in it are none that a core can have.
    #[error("{place}: the settings cannot work")]
    Settings {
        /// The file and the line.
        place: String,
        /// What is wrong with them.
        source: transcript_core::SettingsError,
    },
    /// The settings in it are none that a transcriber can have.
    #[error("{place}: the settings cannot work")]
    TranscriberSettings {
        /// The file and the line.
        place: String,
        /// What is wrong with them.
        source: transcript_transcriber::SettingsError,
    },
}

type Done = Result<Answer, Box<dyn Error>>;

/// Replays traces. What is no trace any more, but might have been one, goes to `warn`.
///
/// # Errors
///
/// [`Unreadable`].
pub fn replay(args: &ReplayArgs, warn: &dyn Fn(&str)) -> Done {
    let mut lines = TraceFiles::open(&args.traces.paths, warn).map_err(Unreadable::from)?;
    match replay::replay(&mut lines, |header| Processor::new(header.settings.clone())) {
        // Where a file is cut off, there was a warning.
        Ok(replayed) if args.json => good(show::json(&json!({ "replays": true, "replayed": replayed }))?),
        Ok(replayed) => good(Replayed { cut_off: None, ..replayed }.to_string()),
        Err(Problem::Read(source)) => Err(unreadable(&lines, source).into()),
        Err(Problem::Settings { line, source }) => {
            Err(Unreadable::Settings { place: lines.place(line), source }.into())
        }
        Err(Problem::TranscriberSettings { line, source }) => {
            Err(Unreadable::TranscriberSettings { place: lines.place(line), source }.into())
        }
        Err(Problem::Difference(difference)) if args.json => {
            let place = lines.place(difference.line);
            let answer = json!({ "replays": false, "place": place, "difference": difference });
            Ok(Answer { text: show::json(&answer)?, is_good: false })
        }
        Err(Problem::Difference(difference)) => {
            let told = difference.told(&|line| lines.place(line));
            Ok(Answer { text: format!("differs from what the core says, at {told}"), is_good: false })
        }
    }
}

/// Lists traces, cuts a session out, or counts.
///
/// # Errors
///
/// [`Unreadable`], and writing.
pub fn trace(args: &TraceArgs, warn: &dyn Fn(&str)) -> Done {
    let mut lines = TraceFiles::open(&args.traces.paths, warn).map_err(Unreadable::from)?;
    if let Some(wanted) = args.call.wanted()? {
        return cut_out(lines, &wanted, args, warn);
    }
    if args.stats {
        let stats = Stats::read(&mut lines).map_err(|source| unreadable(&lines, source))?;
        return good(if args.json { show::json(&stats)? } else { stats.to_string() });
    }
    if args.calls {
        let calls = calls::calls(&mut lines).map_err(|source| unreadable(&lines, source))?;
        return good(if args.json { json_lines(&calls)? } else { calls::table(&calls) });
    }
    let parts = list::list(&mut lines).map_err(|source| unreadable(&lines, source))?;
    good(if args.json { show::json(&parts)? } else { list::table(&parts) })
}

fn good(text: String) -> Done {
    Ok(Answer { text, is_good: true })
}

/// One JSON object a line.
fn json_lines<T: Serialize>(values: &[T]) -> Result<String, serde_json::Error> {
    let lines = values.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    Ok(crate::terminal::harmless_json(&lines.join("\n")))
}

/// Draws traces.
///
/// # Errors
///
/// [`Unreadable`], and writing.
pub fn timeline(args: &TimelineArgs, warn: &dyn Fn(&str)) -> Done {
    args.output.as_deref().map_or(Ok(()), |path| refuse_to_overwrite(path, &args.traces))?;
    let timeline = read_timeline(&args.traces.paths, args.call.wanted()?.as_ref(), warn)?;
    let drawn = match args.drawing()? {
        Drawing::Html => timeline.html(),
        Drawing::Svg => timeline.svg(),
        Drawing::Mermaid => timeline.mermaid(),
        Drawing::Text => timeline.text(),
    };
    match &args.output {
        Some(path) => {
            let written = NewFile::begin(path).and_then(|mut file| {
                file.write_all(drawn.as_bytes())?;
                file.keep()
            });
            written.map_err(|error| cannot_write(path, &error))?;
            good(path.display().to_string())
        }
        None => good(drawn),
    }
}

/// The page of one call, drawn from the traces in a directory, whose last lines may be about to be written.
///
/// # Errors
///
/// [`Unreadable`], and a call of which there is no trace.
pub fn page(directory: &Path, conversation: &str, session: &str) -> Result<String, Box<dyn Error>> {
    let wanted = Wanted { session_id: session.to_owned(), conversation_id: Some(conversation.to_owned()) };
    Ok(read_timeline(&[directory.to_owned()], Some(&wanted), &|_| {})?.html())
}

fn read_timeline(paths: &[PathBuf], wanted: Option<&Wanted>, warn: &dyn Fn(&str)) -> Result<Timeline, Box<dyn Error>> {
    let mut lines = TraceFiles::open(paths, warn).map_err(Unreadable::from)?;
    let mut is_there = wanted.is_none();
    let seen = lines.by_ref().inspect(|line| {
        if let (false, Some(wanted), Ok(line)) = (is_there, wanted, line) {
            is_there = match line {
                Line::Entry(entry) => is_about(&entry.said, wanted),
                Line::TranscriberEntry(entry) => opens(&entry.said, wanted),
                Line::Header(_) | Line::TranscriberHeader(_) => false,
            };
        }
    });
    let selection = Selection {
        session_id: wanted.map(|wanted| wanted.session_id.clone()),
        conversation_id: wanted.and_then(|wanted| wanted.conversation_id.clone()),
        ..Selection::default()
    };
    let timeline = match Timeline::read(seen, &selection) {
        Ok(timeline) => timeline,
        Err(source) => return Err(unreadable(&lines, source).into()),
    };
    match wanted {
        Some(wanted) if !is_there => Err(not_there(wanted)),
        Some(_) | None => Ok(timeline),
    }
}

fn unreadable(lines: &TraceFiles<'_>, source: ReadError) -> Unreadable {
    lines.unreadable(source).into()
}

fn is(wanted: &Wanted, session: &Session) -> bool {
    *session.session_id == *wanted.session_id
        && wanted.conversation_id.as_ref().is_none_or(|id| *session.conversation_id == **id)
}

/// Whether a transcriber does something about the session.
fn opens(said: &Said<transcript_transcriber::Input, transcript_transcriber::Output>, wanted: &Wanted) -> bool {
    match said {
        Said::In(transcript_transcriber::Input::Opened(opening)) => is(wanted, &opening.session),
        Said::Out(transcript_transcriber::Output::Perform { effect, .. }) => {
            effect.session().is_some_and(|session| is(wanted, session))
        }
        Said::In(_) | Said::Out(_) | Said::LeftOut(_) | Said::Note(_) => false,
    }
}

/// Whether it begins a job of the session.
fn is_about(said: &Said, wanted: &Wanted) -> bool {
    match said {
        Said::In(Input::Delivered(delivery)) => {
            SessionEnded::parse(&delivery.payload.0).is_ok_and(|ended| is(wanted, &ended.session))
        }
        Said::In(Input::Stale(stale)) => is(wanted, &stale.session),
        Said::In(
            Input::Reported { .. }
            | Input::Exhausted(_)
            | Input::Consumer(_)
            | Input::Woken
            | Input::Quiet
            | Input::Resume
            | Input::Drain
            | Input::DeliveriesStopped,
        )
        | Said::Out(_)
        | Said::LeftOut(_)
        | Said::Note(_) => false,
    }
}

fn not_there(wanted: &Wanted) -> Box<dyn Error> {
    let of = wanted.conversation_id.as_ref().map(|id| format!(" of conversation {id:?}")).unwrap_or_default();
    format!("no job of session {:?}{of} is in the trace", wanted.session_id).into()
}

fn cut_out(mut lines: TraceFiles<'_>, wanted: &Wanted, args: &TraceArgs, warn: &dyn Fn(&str)) -> Done {
    let mut file = None;
    let result = match &args.output {
        Some(path) => {
            refuse_to_overwrite(path, &args.traces)?;
            let file = file.insert(NewFile::begin(path).map_err(|error| cannot_write(path, &error))?);
            cut(&mut lines, wanted, file)
        }
        None => cut(&mut lines, wanted, BufWriter::new(HarmlessJson::new(io::stdout().lock()))),
    };
    let cut = match (result, &args.output) {
        (Ok(cut), _) => cut,
        (Err(CutError::Read(source)), _) => return Err(unreadable(&lines, source).into()),
        (Err(CutError::Write(source)), None) => return Err(source.into()),
        (Err(CutError::Write(source)), Some(path)) => return Err(cannot_write(path, &source).into()),
        (Err(error @ CutError::Settings(_)), _) => return Err(error.into()),
    };
    if cut.jobs == 0 {
        return Err(not_there(wanted));
    }
    if cut.mismatches > 0 {
        warn("the session's jobs depended on other calls: the cut ends their account where they did, and says so");
    }
    let (Some(path), Some(file)) = (&args.output, file) else { return good(String::new()) };
    file.keep().map_err(|error| cannot_write(path, &error))?;
    let many = |n: u64| if n == 1 { "" } else { "s" };
    good(format!("{}: {} job{}, {} part{}", path.display(), cut.jobs, many(cut.jobs), cut.parts, many(cut.parts)))
}

fn cannot_write(path: &Path, error: &io::Error) -> String {
    format!("cannot write {} (-o): {error}", harmless(&path.display().to_string()))
}

/// A trace that is being read must not be written to, whatever it is called there.
fn refuse_to_overwrite(path: &Path, traces: &TracePaths) -> Result<(), Box<dyn Error>> {
    let Some(output) = FileId::of(path) else { return Ok(()) };
    let is_read = |trace: &Path| {
        if trace.as_os_str() == "-" {
            return FileId::of_stdin() == Some(output);
        }
        let is_it = |file: &Path| FileId::of(file) == Some(output);
        let files = fs::read_dir(trace).into_iter().flatten().flatten().map(|entry| entry.path());
        is_it(trace) || files.filter(|file| is_read_in_directory(file)).any(|file| is_it(&file))
    };
    if traces.paths.iter().any(|trace| is_read(trace)) {
        let path = harmless(&path.display().to_string());
        return Err(format!("{path} is one of the traces that are read: give another file with -o").into());
    }
    Ok(())
}
