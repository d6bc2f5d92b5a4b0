//! The bounded way from whoever logs to the thread that writes.
//!
//! It is like `tracing-appender`'s, which cannot be taken: where its queue is full at the end of the process, it prints to
//! stdout (0.2.5, `WorkerGuard::drop`), which waits for ever where stdout is the same pipe, and it bounds lines but not bytes.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tracing_subscriber::fmt::MakeWriter;

use crate::{
    cli::LogFormat,
    terminal::{harmless, harmless_json},
};

/// How long whoever ends the process waits for a line to be written. A stderr that takes none for so long is not read.
const STUCK: Duration = Duration::from_millis(500);
/// How often that is repeated while lines are written. Then what is left is lost: the process ends.
const STUCK_TIMES: u32 = 10;

/// How much waits to be written at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) lines: usize,
    pub(super) bytes: usize,
}

/// Takes lines, and never waits for them to be written.
#[derive(Debug, Clone)]
pub struct Lines {
    queue: Arc<Queue>,
    bounds: Bounds,
    format: LogFormat,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    put: Condvar,
    written: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines that found no room, of which nothing was said yet.
    dropped: u64,
    /// Whether the thread writes lines that it took.
    is_writing: bool,
    /// How often it has written.
    writes: u64,
}

impl Lines {
    /// Lines that a thread writes to `out`; `report` is told how many were dropped once lines are written again.
    pub(super) fn start(
        out: impl Write + Send + 'static,
        bounds: Bounds,
        format: LogFormat,
        report: impl Fn(u64) + Send + 'static,
    ) -> Self {
        let queue = Arc::new(Queue::default());
        let of_thread = Arc::clone(&queue);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || of_thread.write_to(out, report))
            .expect("the system gives a thread at the start");
        Self { queue, bounds, format }
    }

    /// Takes a line, or drops it where there is no room.
    pub(super) fn put(&self, line: Vec<u8>) {
        let mut waiting = self.queue.waiting();
        let fits =
            waiting.lines.len() < self.bounds.lines && waiting.bytes.saturating_add(line.len()) <= self.bounds.bytes;
        if fits {
            waiting.bytes += line.len();
            waiting.lines.push_back(line);
            self.queue.put.notify_one();
        } else {
            waiting.dropped = waiting.dropped.saturating_add(1);
        }
    }

    /// Waits until all lines are written, as long as lines are written at all, and for some seconds at most.
    pub(super) fn flush(&self) {
        let mut waiting = self.queue.waiting();
        for _ in 0..STUCK_TIMES {
            if waiting.lines.is_empty() && !waiting.is_writing {
                return;
            }
            let before = waiting.writes;
            let waited = self.queue.written.wait_timeout(waiting, STUCK);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            waiting = now;
            if timeout.timed_out() && waiting.writes == before {
                return;
            }
        }
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_to(&self, mut out: impl Write, report: impl Fn(u64)) {
        loop {
            for line in self.take() {
                // Where stderr is closed there is nobody to tell.
                drop(out.write_all(&line));
                let mut waiting = self.waiting();
                waiting.writes += 1;
                waiting.bytes -= line.len();
            }
            drop(out.flush());
            let dropped = {
                let mut waiting = self.waiting();
                waiting.is_writing = false;
                self.written.notify_all();
                std::mem::take(&mut waiting.dropped)
            };
            if dropped > 0 {
                report(dropped);
            }
        }
    }

    /// All lines that wait, as soon as there is one.
    fn take(&self) -> VecDeque<Vec<u8>> {
        let mut waiting = self.waiting();
        while waiting.lines.is_empty() {
            waiting = self.put.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        waiting.is_writing = true;
        std::mem::take(&mut waiting.lines)
    }
}

/// One line, which is handed over whole.
#[derive(Debug)]
pub struct Line<'a>(&'a Lines);

impl io::Write for Line<'_> {
    /// The layer writes each line in one piece (tracing-subscriber 0.3, `fmt_layer.rs`, `on_event`).
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(harmless_line(line, self.0.format).into_bytes());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

/// The line without what a terminal would obey, and in one piece, so that no text in it can look like a line of its own. The
/// escape sequences of colours stay: tracing-subscriber escapes those of the texts (0.3.20 and later, `EscapeGuard`).
fn harmless_line(line: &[u8], format: LogFormat) -> String {
    const ESCAPE: char = '\u{1b}';
    let text = String::from_utf8_lossy(line);
    match (format, text.strip_suffix('\n').unwrap_or(&text)) {
        (LogFormat::Json, text) => harmless_json(text) + "\n",
        (LogFormat::Plain, text) => {
            let is_colour = |c: char| c == ESCAPE;
            let pieces = text.split_inclusive(is_colour).map(|piece| match piece.strip_suffix(ESCAPE) {
                Some(piece) => harmless(piece) + "\u{1b}",
                None => harmless(piece),
            });
            pieces.collect::<String>() + "\n"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Takes a line whenever it is let.
    struct Gate {
        open: Receiver<()>,
        taken: Sender<String>,
    }

    impl Write for Gate {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.open.recv().map_err(io::Error::other)?;
            self.taken.send(String::from_utf8_lossy(line).into_owned()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_does_not_read_stops_nobody_and_is_told_what_it_missed() {
        let ((let_one, open), (taken, lines_out), (tell, told)) = (channel(), channel(), channel());
        let bounds = Bounds { lines: 4, bytes: 1 << 10 };
        let lines =
            Lines::start(Gate { open, taken }, bounds, LogFormat::Plain, move |dropped| tell.send(dropped).unwrap());
        lines.put(b"first".to_vec());
        // The thread has taken it and is stuck.
        while !lines.queue.waiting().is_writing {
            thread::yield_now();
        }
        for n in 0..10 {
            lines.put(format!("{n}").into_bytes());
        }
        lines.put(vec![b'x'; 1 << 10]);
        lines.flush();
        assert!(told.try_recv().is_err());
        for expected in ["first", "0", "1", "2", "3"] {
            let_one.send(()).unwrap();
            assert_eq!(lines_out.recv().unwrap(), expected);
        }
        assert_eq!(told.recv().unwrap(), 7);
    }

    #[test]
    fn bytes_are_bounded_too() {
        let ((_let_one, open), (taken, _lines_out)) = (channel(), channel());
        let lines = Lines::start(Gate { open, taken }, Bounds { lines: 100, bytes: 10 }, LogFormat::Plain, |_| {});
        for _ in 0..3 {
            lines.put(b"1234".to_vec());
        }
        let waiting = lines.queue.waiting();
        assert_eq!((waiting.bytes, waiting.dropped), (8, 1));
    }

    #[test]
    fn a_line_is_one_line_and_moves_no_terminal() {
        let plain = |line: &str| harmless_line(line.as_bytes(), LogFormat::Plain);
        assert_eq!(
            plain("\u{1b}[32mINFO\u{1b}[0m a\nb\u{202e}c\u{9b}\n"),
            "\u{1b}[32mINFO\u{1b}[0m a b\u{fffd}c\u{fffd}\n"
        );
        let json = harmless_line("{\"a\":\"\u{202e}\"}\n".as_bytes(), LogFormat::Json);
        assert_eq!(json, "{\"a\":\"\\u202e\"}\n");
    }
}
