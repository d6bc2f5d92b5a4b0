//! Reports a driver's loop that stands still, from a thread of its own.
//!
//! The loop stands still where something blocks it: a stuck disk, a debugger, a machine without memory. Nothing is pulled and
//! no heartbeat goes out meanwhile, so the calls in hand go to other processors after the ack wait.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(1);
/// How many looks in a row find the same turn before the loop is said to stand still. It turns at least once a second.
const LOOKS: u32 = 4;

/// Counts the turns of a loop.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<AtomicU64>);

/// Whether a loop stands still, as the watchdog saw it last.
#[derive(Debug, Clone, Default)]
pub struct LoopHealth(Arc<AtomicBool>);

impl LoopHealth {
    /// Whether it does.
    #[must_use]
    pub fn stands_still(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes what was seen.
    pub fn saw(&self, seen: Loop) {
        self.0.store(matches!(seen, Loop::StandsStill { .. }), Ordering::Relaxed);
    }
}

/// A thread that looks; it ends when this is dropped.
#[derive(Debug)]
pub struct Watchdog {
    _ends_with: Sender<()>,
}

impl Turns {
    /// Says that the loop turns.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Watchdog {
    /// Looks at these turns every second from now on, and calls `report` with what it sees: once where the loop stands still,
    /// each time where it turns.
    ///
    /// # Errors
    ///
    /// The system has no thread left.
    pub fn start(turns: Turns, mut report: impl FnMut(Loop) + Send + 'static) -> std::io::Result<Self> {
        let (sender, ended) = channel();
        thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
            let (mut last, mut same) = (0, 0);
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let now = turns.0.load(Ordering::Relaxed);
                if now != last {
                    report(if same >= LOOKS { Loop::TurnsAgain { after: LOOK * same } } else { Loop::Turns });
                }
                same = if now == last { same + 1 } else { 0 };
                last = now;
                if same == LOOKS {
                    report(Loop::StandsStill { since: LOOK * same });
                }
            }
        })?;
        Ok(Self { _ends_with: sender })
    }
}

/// What was seen of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loop {
    /// It turns.
    Turns,
    /// It has not turned for about this long.
    StandsStill {
        /// How long.
        since: Duration,
    },
    /// It has turned again.
    TurnsAgain {
        /// How long it had not.
        after: Duration,
    },
}

/// Logs what was seen.
pub fn log(seen: Loop) {
    match seen {
        Loop::Turns => {}
        Loop::StandsStill { since } => tracing::error!(
            "the processor has stood still for {since:?}: nothing is pulled and no heartbeat goes out; the calls in hand go to \
             other processors"
        ),
        Loop::TurnsAgain { after } => tracing::warn!("the processor goes on after it had stood still for {after:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_stands_still_is_reported_once_and_when_it_goes_on() {
        let (seen, reports) = channel();
        let turns = Turns::default();
        turns.count();
        let watchdog = Watchdog::start(turns.clone(), move |it| seen.send(it).expect("the test listens"))
            .expect("there is a thread");
        let next = || reports.recv_timeout(LOOK * 60).expect("a report");
        assert_eq!([next(), next()], [Loop::Turns, Loop::StandsStill { since: LOOK * LOOKS }]);
        turns.count();
        let goes_on = next();
        assert!(matches!(goes_on, Loop::TurnsAgain { .. }), "{goes_on:?}");
        drop(watchdog);
    }
}
