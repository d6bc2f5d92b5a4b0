//! Whose turn it is at the server: what many small calls wait for comes before the pages of a few large ones, which have a
//! share all the same.

use tokio::sync::{Mutex, watch};

/// So many commands for small calls are carried out between two pages, as long as small calls wait for some.
const COMMANDS_A_PAGE: u64 = 16;

/// Counts what small calls wait for.
#[derive(Debug, Default)]
pub(super) struct Turns {
    small: watch::Sender<Small>,
    /// Pages come one by one, in the order in which they were asked for.
    pages: Mutex<()>,
}

#[derive(Debug, Default)]
struct Small {
    /// Requests that wait, or are being carried out.
    waiting: usize,
    /// Commands that have been carried out.
    commands: u64,
}

impl Turns {
    /// Something waits that is no page.
    pub(super) fn waits(&self) {
        self.small.send_modify(|small| small.waiting += 1);
    }

    /// So many requests wait no more, for which so many commands were carried out.
    pub(super) fn done(&self, requests: usize, commands: u64) {
        self.small.send_modify(|small| {
            small.waiting = small.waiting.saturating_sub(requests);
            small.commands += commands;
        });
    }

    /// Waits until a page may be loaded. That comes, because commands end, with an answer or without.
    pub(super) async fn page(&self) {
        let _turn = self.pages.lock().await;
        let mut small = self.small.subscribe();
        let until = small.borrow().commands + COMMANDS_A_PAGE;
        // The sender is here: it cannot be gone.
        drop(small.wait_for(|small| small.waiting == 0 || small.commands >= until).await);
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, future::join};

    use super::*;

    #[tokio::test]
    async fn a_page_is_loaded_at_once_where_no_small_call_waits() {
        let turns = Turns::default();
        assert!(turns.page().now_or_never().is_some());
        turns.waits();
        turns.done(1, 1);
        assert!(turns.page().now_or_never().is_some());
    }

    #[tokio::test]
    async fn pages_have_a_share_of_the_turns_while_small_calls_wait() {
        let turns = Turns::default();
        (0..100).for_each(|_| turns.waits());
        let two = join(turns.page(), turns.page());
        tokio::pin!(two);
        assert!(two.as_mut().now_or_never().is_none());
        for _ in 0..2 * COMMANDS_A_PAGE - 1 {
            turns.done(1, 1);
            assert!(two.as_mut().now_or_never().is_none(), "not yet both");
        }
        turns.done(1, 1);
        assert!(two.as_mut().now_or_never().is_some(), "each after so many commands");
    }

    #[tokio::test]
    async fn a_page_waits_no_longer_than_small_calls_do() {
        let turns = Turns::default();
        (0..3).for_each(|_| turns.waits());
        let page = turns.page();
        tokio::pin!(page);
        turns.done(2, 1);
        assert!(page.as_mut().now_or_never().is_none());
        turns.done(1, 0);
        assert!(page.as_mut().now_or_never().is_some());
    }
}
