//! The gate before pages: what many small calls wait for is asked first, and the pages of a few large calls wait. They have a
//! share all the same.

use tokio::sync::{Mutex, watch};

/// So many commands for small calls are carried out between two pages, as long as small calls wait for some.
const COMMANDS_A_PAGE: u64 = 16;

/// Counts what small calls wait for.
#[derive(Debug, Default)]
pub(super) struct PageGate {
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

impl PageGate {
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
        let _one_at_a_time = self.pages.lock().await;
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
        let gate = PageGate::default();
        assert!(gate.page().now_or_never().is_some());
        gate.waits();
        gate.done(1, 1);
        assert!(gate.page().now_or_never().is_some());
    }

    #[tokio::test]
    async fn pages_have_a_share_of_the_commands_while_small_calls_wait() {
        let gate = PageGate::default();
        (0..100).for_each(|_| gate.waits());
        let two = join(gate.page(), gate.page());
        tokio::pin!(two);
        assert!(two.as_mut().now_or_never().is_none());
        for _ in 0..2 * COMMANDS_A_PAGE - 1 {
            gate.done(1, 1);
            assert!(two.as_mut().now_or_never().is_none(), "not yet both");
        }
        gate.done(1, 1);
        assert!(two.as_mut().now_or_never().is_some(), "each after so many commands");
    }

    #[tokio::test]
    async fn a_page_waits_no_longer_than_small_calls_do() {
        let gate = PageGate::default();
        (0..3).for_each(|_| gate.waits());
        let page = gate.page();
        tokio::pin!(page);
        gate.done(2, 1);
        assert!(page.as_mut().now_or_never().is_none());
        gate.done(1, 0);
        assert!(page.as_mut().now_or_never().is_some());
    }
}
