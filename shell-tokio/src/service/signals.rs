//! What SIGTERM, SIGINT and SIGHUP do: at any time, also as process 1 of a container, whose signals the kernel drops where no
//! handler is installed, and also where everything else is stuck.
//!
//! The first signal drains `run` and ends every other command; the next one ends the process at once. A SIGHUP that was
//! ignored when the process started, as under `nohup`, stays ignored.

use std::{fs, io, thread};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
    low_level,
};
use tokio::sync::mpsc;

use super::systemd;
use crate::{logging, service::driver::Signal};

/// The command did not end as it was asked to.
const STOPPED: i32 = 1;
/// What a shell adds to the number of a signal that ended a process.
const ENDED_BY_SIGNAL: i32 = 128;

/// What the first signal does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// It is handed on.
    Drains,
    /// It ends the process, with 128 and its number as exit code.
    Ends,
}

/// Listens to signals, on a thread of its own. The first one comes out of the receiver where it drains.
///
/// # Errors
///
/// The system lets no handler be installed, or gives no thread.
pub fn listen(first: First) -> io::Result<mpsc::UnboundedReceiver<Signal>> {
    let mut listened_to = vec![SIGTERM, SIGINT];
    if !is_ignored(SIGHUP) {
        listened_to.push(SIGHUP);
    }
    let mut signals = Signals::new(listened_to)?;
    let (sender, receiver) = mpsc::unbounded_channel();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut come = signals.forever();
        if first == First::Ends
            && let Some(signal) = come.next()
        {
            logging::flush();
            low_level::exit(ENDED_BY_SIGNAL + signal);
        }
        if let Some(signal) = come.next() {
            tracing::info!(signal = low_level::signal_name(signal), "told to stop");
            systemd::tell(systemd::State::Stopping);
            // Where nobody listens any more the process is about to end.
            sender.send(Signal::Drain).ok();
        }
        if come.next().is_some() {
            logging::error("stopped at once by a second signal: the jobs under way are left to redelivery");
            low_level::exit(STOPPED);
        }
    })?;
    Ok(receiver)
}

/// Whether the process was started with this signal ignored. It is Linux that tells; elsewhere it is taken not to be.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}
