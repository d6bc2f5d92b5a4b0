//! How far a command is: a line that changes on a terminal, nothing elsewhere.

use std::{
    io::{IsTerminal, Write},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::{TimeVal, TimeValLike},
};

/// Real time and the time of processors, for rates. No world sees them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch {
    started: Instant,
    used: Duration,
}

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "the one place where this program reads a clock")]
    pub(super) fn start() -> Self {
        Self { started: Instant::now(), used: used() }
    }

    pub(super) fn seconds(self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// What all threads together had of the processors: the same on a machine that does other things as well.
    pub(super) fn core_seconds(self) -> f64 {
        used().saturating_sub(self.used).as_secs_f64()
    }
}

fn used() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Duration::ZERO };
    let part = |time: TimeVal| Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or(0));
    part(usage.user_time()) + part(usage.system_time())
}

/// A count with its rate.
#[derive(Debug)]
pub(super) struct Progress {
    name: &'static str,
    watch: Stopwatch,
    count: AtomicU64,
    /// Tenths of a second that were shown.
    shown: AtomicU64,
    on_terminal: bool,
}

impl Progress {
    pub(super) fn start(name: &'static str, quiet: bool) -> Self {
        let on_terminal = !quiet && std::io::stderr().is_terminal();
        let (count, shown) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { name, watch: Stopwatch::start(), count, shown, on_terminal }
    }

    pub(super) fn add(&self, more: u64) {
        let count = self.count.fetch_add(more, Ordering::Relaxed) + more;
        if !self.on_terminal {
            return;
        }
        let seconds = self.watch.seconds();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds are few and positive")]
        let tenth = (seconds * 5.0) as u64;
        if self.shown.fetch_max(tenth, Ordering::Relaxed) < tenth {
            #[expect(clippy::cast_precision_loss, reason = "for people")]
            let rate = count as f64 / seconds;
            let text = format!("\r\x1b[2K{}: {count} worlds, {rate:.0} a second", self.name);
            drop(std::io::stderr().write_all(text.as_bytes()));
        }
    }

    pub(super) fn end(&self) {
        if self.on_terminal {
            drop(std::io::stderr().write_all(b"\r\x1b[2K"));
        }
    }
}
