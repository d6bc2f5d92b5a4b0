//! What is logged, and how. Logs go to stderr, so that stdout belongs to a command's result.
//!
//! No level shows a word of a call: this crate logs ids, counts and times only, and of other crates only warnings are shown,
//! because below that the NATS client writes out whole messages, and the addresses it was given with their passwords. Even
//! those are shown only where somebody asked for `debug`: what they mean is said by this crate.
//!
//! Logging never blocks: lines are put into a bounded queue ([`Lines`]), and a thread writes them. Where nobody reads stderr
//! the queue fills up, what does not fit is dropped, and the log says how many lines that were once it goes on.

mod lines;

use std::{
    io,
    sync::OnceLock,
    time::{Duration, UNIX_EPOCH},
};

use serde_json::json;
use tracing::{Level, Metadata, level_filters::LevelFilter};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::filter_fn,
    layer::SubscriberExt,
    util::{SubscriberInitExt, TryInitError},
};

use transcript_core::WallTime;

use self::lines::Bounds;
pub use self::lines::Lines;
use crate::{
    cli::{LogArgs, LogFormat},
    service::clock::Clock,
    terminal::{self, harmless_json, harmless_lines},
};

/// What waits to be written at most.
const BOUNDS: Bounds = Bounds { lines: 1 << 14, bytes: 4 << 20 };

/// How this process writes them.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();
/// The lines of this process.
static LINES: OnceLock<Lines> = OnceLock::new();

/// Starts logging for the whole process.
///
/// # Errors
///
/// Logging was started before.
///
/// # Panics
///
/// If the filter is none: the command line lets no such filter through. If the system gives no thread.
pub fn init(args: &LogArgs) -> Result<(), TryInitError> {
    let filter = EnvFilter::try_new(args.filter()).expect("the filter was checked when the command line was read");
    let lines = lines(args.format);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match args.format {
        LogFormat::Plain => {
            tracing_subscriber::fmt::layer().with_writer(lines).with_ansi(terminal::is_coloured()).boxed()
        }
        LogFormat::Json => tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(lines).boxed(),
    };
    let is_detailed = filter.max_level_hint().is_none_or(|level| level >= LevelFilter::DEBUG);
    let shown = filter_fn(move |metadata| is_shown(metadata, is_detailed));
    tracing_subscriber::registry().with(layer.with_filter(filter).with_filter(shown)).try_init()
}

/// Says on stderr, behind what was logged, why the command failed; waits until that is written, but not for a stderr that
/// nobody reads.
pub fn error(text: &str) {
    say(Level::ERROR, text, FORMAT.get().copied().unwrap_or_default());
}

/// The same for what need not stop anybody.
pub fn warning(text: &str) {
    say(Level::WARN, text, FORMAT.get().copied().unwrap_or_default());
}

/// The same for a command that did not come far enough to start logging.
pub fn error_before_the_start(text: &str, format: LogFormat) {
    say(Level::ERROR, text, format);
}

fn say(level: Level, text: &str, format: LogFormat) {
    let line = match (format, level) {
        (LogFormat::Json, level) => json_line(level, text, Clock::start().wall()),
        (LogFormat::Plain, Level::ERROR) => format!("error: {}\n", harmless_lines(text)),
        (LogFormat::Plain, _) => format!("warning: {}\n", harmless_lines(text)),
    };
    let lines = lines(format);
    lines.put(line.into_bytes());
    lines.flush();
}

/// In the form that `tracing-subscriber` gives to events.
fn json_line(level: Level, text: &str, now: WallTime) -> String {
    let since_epoch = Duration::from_millis(u64::try_from(now.as_millis()).unwrap_or(0));
    let timestamp = humantime::format_rfc3339_micros(UNIX_EPOCH + since_epoch).to_string();
    let target = env!("CARGO_CRATE_NAME");
    let line = json!({ "timestamp": timestamp, "level": level.as_str(), "message": text, "target": target });
    harmless_json(&line.to_string()) + "\n"
}

fn lines(format: LogFormat) -> Lines {
    let format = *FORMAT.get_or_init(|| format);
    LINES.get_or_init(|| Lines::start(io::stderr(), BOUNDS, format, log_dropped)).clone()
}

/// Waits until what was logged is written, but not for a stderr that nobody reads.
pub fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush();
    }
}

/// Logs panics as errors of one line that say where. What a panic says may hold words of a call, unless it is a text of the
/// program.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let text = panic.payload().downcast_ref::<&'static str>();
        tracing::error!(place, text, "panicked");
    }));
}

fn log_dropped(lines: u64) {
    tracing::error!(lines, "log lines were dropped: nobody read stderr");
}

/// Whether something is shown, wherever the filter says so: everything of this project, warnings of others.
fn is_shown(metadata: &Metadata<'_>, is_detailed: bool) -> bool {
    metadata.target().starts_with("transcript_") || (is_detailed && *metadata.level() <= Level::WARN)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(filter: &str, is_detailed: bool) -> String {
        let written = Written::default();
        let writer = written.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let shown = filter_fn(move |metadata| is_shown(metadata, is_detailed));
        let filtered = layer.with_filter(EnvFilter::new(filter)).with_filter(shown);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(filtered), || {
            tracing::debug!(target: "async_nats::jetstream::context", "words of a call");
            tracing::info!(target: "rustls::client", "words of a call");
            tracing::warn!(target: "async_nats::connector", "lost");
            tracing::trace!(target: "transcript_processor", "ours at trace");
            tracing::info!(target: "transcript_processor", "ours at info");
        });
        String::from_utf8(written.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn what_is_no_event_has_the_form_of_one() {
        let line = json_line(Level::ERROR, "no \u{9b}way\nout", WallTime::from_millis(0));
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        let expected = json!({
            "timestamp": "1970-01-01T00:00:00.000000Z", "level": "ERROR", "message": "no \u{9b}way\nout",
            "target": "transcript_processor",
        });
        assert_eq!(value, expected);
        assert!(!line.contains('\u{9b}'), "{line}");
    }

    #[test]
    fn of_other_crates_only_warnings_are_shown_and_only_with_details() {
        let detailed = written("trace", true);
        assert!(!detailed.contains("words of a call"), "{detailed}");
        assert!(detailed.contains("lost") && detailed.contains("ours at trace"), "{detailed}");
        let usual = written("info", false);
        assert!(!usual.contains("lost") && usual.contains("ours at info"), "{usual}");
    }
}
