//! The commands that read traces. None of them connects to a server.

mod calls;
mod list;

use std::{
    error::Error,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

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
    private_files,
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
        Ok(replayed) => Ok(Answer { text: Replayed { cut_off: None, ..replayed }.to_string(), is_good: true }),
        Err(Problem::Read(source)) => Err(unreadable(&lines, source).into()),
        Err(Problem::Settings { line, source }) => {
            Err(Unreadable::Settings { place: lines.place(line), source }.into())
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
    let good = |text: String| Ok(Answer { text, is_good: true });
    match &args.session {
        Some(session) => {
            let wanted = Wanted { session_id: session.clone(), conversation_id: args.conversation.clone() };
            cut_out(lines, &wanted, args, warn)
        }
        None if args.stats => match Stats::read(&mut lines) {
            Ok(stats) => good(stats.to_string()),
            Err(source) => Err(unreadable(&lines, source).into()),
        },
        None if args.calls => match calls::calls(&mut lines) {
            Ok(calls) => good(calls),
            Err(source) => Err(unreadable(&lines, source).into()),
        },
        None => match list::list(&mut lines) {
            Ok(list) => good(list),
            Err(source) => Err(unreadable(&lines, source).into()),
        },
    }
}

/// Draws traces.
///
/// # Errors
///
/// [`Unreadable`], and writing.
pub fn timeline(args: &TimelineArgs, warn: &dyn Fn(&str)) -> Done {
    let mut lines = TraceFiles::open(&args.traces.paths, warn).map_err(Unreadable::from)?;
    let wanted = args
        .session
        .as_ref()
        .map(|session| Wanted { session_id: session.clone(), conversation_id: args.conversation.clone() });
    let mut is_there = wanted.is_none();
    let seen = lines.by_ref().inspect(|line| {
        if let (false, Some(wanted), Ok(Line::Entry(entry))) = (is_there, &wanted, line) {
            is_there = is_about(&entry.said, wanted);
        }
    });
    let selection = Selection {
        session_id: args.session.clone(),
        conversation_id: args.conversation.clone(),
        ..Selection::default()
    };
    let timeline = match Timeline::read(seen, &selection) {
        Ok(timeline) => timeline,
        Err(source) => return Err(unreadable(&lines, source).into()),
    };
    if let (false, Some(wanted)) = (is_there, &wanted) {
        return Err(not_there(wanted));
    }
    let drawn = match args.drawing()? {
        Drawing::Html => timeline.html(),
        Drawing::Svg => timeline.svg(),
        Drawing::Mermaid => timeline.mermaid(),
        Drawing::Text => timeline.text(),
    };
    match &args.output {
        Some(path) => {
            refuse_to_overwrite(path, &args.traces)?;
            let written = private_files::create(path).and_then(|mut file| file.write_all(drawn.as_bytes()));
            written.map_err(|source| format!("cannot write {}: {source}", path.display()))?;
            Ok(Answer { text: path.display().to_string(), is_good: true })
        }
        None => Ok(Answer { text: drawn, is_good: true }),
    }
}

fn unreadable(lines: &TraceFiles<'_>, source: ReadError) -> Unreadable {
    lines.unreadable(source).into()
}

/// Whether it begins a job of the session.
fn is_about(said: &Said, wanted: &Wanted) -> bool {
    let is = |session: &Session| {
        *session.session_id == *wanted.session_id
            && wanted.conversation_id.as_ref().is_none_or(|id| *session.conversation_id == **id)
    };
    match said {
        Said::In(Input::Delivered(delivery)) => {
            SessionEnded::parse(&delivery.payload.0).is_ok_and(|ended| is(&ended.session))
        }
        Said::In(Input::Stale(stale)) => is(&stale.session),
        Said::In(
            Input::Reported { .. }
            | Input::Exhausted(_)
            | Input::Consumer(_)
            | Input::Woken
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
    let result = match &args.output {
        Some(path) => {
            refuse_to_overwrite(path, &args.traces)?;
            cut(&mut lines, wanted, Late { path, file: None })
        }
        None => cut(&mut lines, wanted, BufWriter::new(io::stdout().lock())),
    };
    let cut = match result {
        Ok(cut) => cut,
        Err(CutError::Read(source)) => return Err(unreadable(&lines, source).into()),
        Err(CutError::Write(source)) if args.output.is_none() => return Err(source.into()),
        Err(error @ (CutError::Write(_) | CutError::Settings(_))) => return Err(error.into()),
    };
    if cut.jobs == 0 {
        return Err(not_there(wanted));
    }
    if cut.mismatches > 0 {
        warn("the session's jobs depended on other calls: the cut ends their account where they did, and says so");
    }
    let many = |n: u64| if n == 1 { "" } else { "s" };
    let text = args.output.as_ref().map(|path| {
        format!("{}: {} job{}, {} part{}", path.display(), cut.jobs, many(cut.jobs), cut.parts, many(cut.parts))
    });
    Ok(Answer { text: text.unwrap_or_default(), is_good: true })
}

/// A file that is made once there is something to write, so that a session that is not there leaves none.
struct Late<'a> {
    path: &'a Path,
    file: Option<BufWriter<File>>,
}

impl Write for Late<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(BufWriter::new(private_files::create(self.path)?)),
        };
        file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

/// A trace that is being read must not be written to.
fn refuse_to_overwrite(path: &Path, traces: &TracePaths) -> Result<(), Box<dyn Error>> {
    let Ok(output) = fs::canonicalize(path) else { return Ok(()) };
    let is_read = |trace: &PathBuf| {
        fs::canonicalize(trace)
            .is_ok_and(|trace| output == trace || (output.parent() == Some(&*trace) && is_read_in_directory(&output)))
    };
    if traces.paths.iter().any(is_read) {
        return Err(format!("{} is one of the traces that are read (-o)", path.display()).into());
    }
    Ok(())
}
