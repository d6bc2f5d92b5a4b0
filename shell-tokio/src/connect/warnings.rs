//! Which faults were warned of: each one at once, and again at a low rate while it lasts.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::Fault;

/// How often a fault that lasts is warned of again.
const REPEAT: Duration = Duration::from_secs(60);

/// What was warned of, and when.
#[derive(Debug, Default)]
pub(super) struct Warnings(Mutex<BTreeMap<(String, Fault), Instant>>);

impl Warnings {
    /// Whether a fault of this server is to be warned of now.
    pub(super) fn is_due(&self, server: &str, fault: Fault) -> bool {
        let now = Instant::now();
        let mut warned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (server.to_owned(), fault);
        let is_due = warned.get(&key).is_none_or(|warned| now.duration_since(*warned) >= REPEAT);
        if is_due {
            warned.insert(key, now);
        }
        is_due
    }

    /// The server can be used: what happens next is new.
    pub(super) fn forget(&self, server: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _), _| of != server);
    }

    /// Any server can be used.
    pub(super) fn forget_all(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_fault_that_lasts_is_warned_of_once_a_minute() {
        let warnings = Warnings::default();
        assert!(warnings.is_due("a:1", Fault::Closed) && !warnings.is_due("a:1", Fault::Closed));
        assert!(warnings.is_due("a:1", Fault::Login) && warnings.is_due("b:1", Fault::Closed));
        tokio::time::advance(REPEAT).await;
        assert!(warnings.is_due("a:1", Fault::Closed));
        warnings.forget("a:1");
        assert!(warnings.is_due("a:1", Fault::Closed));
    }
}
