//! Waiting for a condition.

use std::{fmt::Display, time::Duration};

use thiserror::Error;
use tokio::time::{Instant, sleep, timeout_at};

/// How often a condition is looked at. Short beside anything a server does, long beside a look.
const INTERVAL: Duration = Duration::from_millis(10);
/// How long one look may take: what was asked of a server that was killed meanwhile may never be answered, and must not keep
/// the next look from asking the server that came after it.
const LOOK: Duration = Duration::from_secs(10);

/// Looks at `condition` again and again until it gives `Ok`, and returns what it gave.
///
/// `Err` is the state in which the condition does not hold yet: the last one is named where time runs out. A look that
/// hangs (a request to a frozen server) is given up after ten seconds and at the deadline, and another is taken.
///
/// # Errors
///
/// The condition did not hold `within` that time.
pub async fn wait_until<T, S: Display, Look: Future<Output = Result<T, S>>>(
    what: impl Into<String>,
    within: Duration,
    condition: impl FnMut() -> Look,
) -> Result<T, NotReached> {
    look_until(what.into(), within, LOOK, condition).await
}

async fn look_until<T, S: Display, Look: Future<Output = Result<T, S>>>(
    what: String,
    within: Duration,
    look: Duration,
    mut condition: impl FnMut() -> Look,
) -> Result<T, NotReached> {
    let deadline = Instant::now() + within;
    let mut last = String::from("no look was finished");
    loop {
        let begun = Instant::now();
        let unfinished = match timeout_at(deadline.min(begun + look), condition()).await {
            Ok(Ok(reached)) => return Ok(reached),
            Ok(Err(state)) => {
                last = state.to_string();
                None
            }
            Err(_) => Some(begun.elapsed()).filter(|unfinished| *unfinished > INTERVAL),
        };
        if Instant::now() >= deadline {
            if let Some(unfinished) = unfinished {
                last.push_str(&format!(" (and the look after that was not finished after {unfinished:?})"));
            }
            return Err(NotReached { what, within, last });
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
        assert!(error.last.contains("not finished"), "{error}");
    }

    #[tokio::test]
    async fn a_look_that_hangs_does_not_keep_the_next_from_being_taken() {
        let looks = Cell::new(0);
        let second = || async {
            looks.set(looks.get() + 1);
            if looks.get() == 1 { std::future::pending().await } else { Ok::<_, String>(looks.get()) }
        };
        let reached = look_until("a look".to_owned(), Duration::from_secs(60), Duration::from_millis(20), second);
        assert_eq!(reached.await, Ok(2));
    }
}
