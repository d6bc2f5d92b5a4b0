//! What the service manager is told (`sd_notify(3)`): that the service is ready, that its loop turns, and that it stops. Where
//! there is none (`NOTIFY_SOCKET` is not set), nothing is said.

pub use sd_notify::NotifyState as State;

/// Tells it.
pub fn tell(state: State<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "the service manager does not listen");
    }
}

/// Whether it restarts a service that says nothing for a while (`WatchdogSec=`).
#[must_use]
pub fn watches() -> bool {
    sd_notify::watchdog_enabled().is_some()
}
