//! What is logged, and how. Logs go to stderr, so that stdout belongs to a command's result.
//!
//! No level shows a word of a call: this crate logs ids, counts and times only, and the NATS client is never asked for more
//! than its warnings, because below it writes out whole messages, and the addresses it was given with their passwords. What
//! becomes of its connection is logged by this crate.

use std::io::{self, IsTerminal};

use tracing::{Metadata, level_filters::LevelFilter};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::filter_fn,
    layer::SubscriberExt,
    util::{SubscriberInitExt, TryInitError},
};

use crate::cli::{LogArgs, LogFormat};

/// Starts logging for the whole process.
///
/// # Errors
///
/// Logging was started before.
///
/// # Panics
///
/// If the filter is none: the command line lets no such filter through.
pub fn init(args: &LogArgs) -> Result<(), TryInitError> {
    let filter = EnvFilter::try_new(&args.filter).expect("the filter was checked when the command line was read");
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match args.format {
        LogFormat::Plain => {
            tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal()).boxed()
        }
        LogFormat::Json => tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(io::stderr).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter).with_filter(filter_fn(is_wordless))).try_init()
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

/// Whether what is logged there can hold no message: async-nats 0.51 prints requests, answers and server addresses at
/// `debug`, and at `info` says again what its events say.
fn is_wordless(metadata: &Metadata<'_>) -> bool {
    !metadata.target().starts_with("async_nats") || *metadata.level() <= LevelFilter::WARN
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_nats_client_never_logs_messages() {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let filtered = layer.with_filter(EnvFilter::new("trace")).with_filter(filter_fn(is_wordless));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(filtered), || {
            tracing::debug!(target: "async_nats::jetstream::context", "words of a call");
            tracing::trace!(target: "async_nats", "words of a call");
            tracing::warn!(target: "async_nats::connector", "lost");
            tracing::trace!(target: "transcript_processor", "ours");
        });
        let written = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(!written.contains("words of a call"), "{written}");
        assert!(written.contains("lost") && written.contains("ours"), "{written}");
    }
}
