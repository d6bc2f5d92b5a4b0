//! Waiting for a condition.

use std::{fmt::Display, time::Duration};

use thiserror::Error;
use tokio::time::{Instant, sleep, timeout_at};

/// How often a condition is looked at. Short beside anything a server does, long beside a look.
const INTERVAL: Duration = Duration::from_millis(10);

/// Looks at `condition` again and again until it gives `Ok`, and returns what it gave.
///
/// `Err` is the state in which the condition does not hold yet: the last one is named where time runs out. A look that
/// hangs (a request to a frozen server) is given up at the same deadline.
///
/// # Errors
///
/// The condition did not hold `within` that time.
pub async fn wait_until<T, S: Display, Look: Future<Output = Result<T, S>>>(
    what: impl Into<String>,
    within: Duration,
    mut condition: impl FnMut() -> Look,
) -> Result<T, NotReached> {
    let deadline = Instant::now() + within;
    let mut last = String::from("no look was finished");
    loop {
        match timeout_at(deadline, condition()).await {
            Ok(Ok(reached)) => return Ok(reached),
            Ok(Err(state)) => last = state.to_string(),
            Err(_) => last.push_str(" (and the look after that hung)"),
        }
        if Instant::now() >= deadline {
            return Err(NotReached { what: what.into(), within, last });
        }
        sleep(INTERVAL).await;
    }
}

/// What was awaited did not come.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("waited {within:?} until {what}; the last state was: {last}")]
pub struct NotReached {
    /// What was awaited.
    pub what: String,
    /// How long.
    pub within: Duration,
    /// The state at the last look.
    pub last: String,
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn a_condition_is_looked_at_until_it_holds() {
        let looks = Cell::new(0);
        let reached = wait_until("three looks", Duration::from_secs(5), || async {
            looks.set(looks.get() + 1);
            if looks.get() < 3 { Err(format!("{} looks", looks.get())) } else { Ok(looks.get()) }
        });
        assert_eq!(reached.await, Ok(3));
    }

    #[tokio::test]
    async fn what_was_awaited_and_the_last_state_are_named() {
        let within = Duration::from_millis(40);
        let error = wait_until("the moon is full", within, || async { Err::<(), _>("it is a crescent") }).await;
        assert_eq!(
            error.expect_err("it never is").to_string(),
            "waited 40ms until the moon is full; the last state was: it is a crescent"
        );
    }

    #[tokio::test]
    async fn a_look_that_hangs_ends_at_the_deadline() {
        let hang = wait_until("an answer", Duration::from_millis(40), || async {
            std::future::pending::<Result<(), String>>().await
        });
        let error = hang.await.expect_err("there is no answer");
        assert!(error.last.contains("hung"), "{error}");
    }
}
