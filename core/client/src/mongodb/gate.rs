//! When the next page of a large call may be read. Commands that serve many small calls come first; the pages have a share
//! all the same.

/// So many commands for small calls are carried out between two pages, as long as small calls wait for some.
const COMMANDS_BETWEEN_PAGES: u64 = 16;

/// Counts what small calls wait for.
#[derive(Debug, Default)]
pub struct PageGate {
    /// Requests that wait, or are being carried out.
    waiting: usize,
    /// Commands that have been carried out.
    commands: u64,
    /// How many commands had been carried out when the page that is next began to wait.
    waits_since: Option<u64>,
}

impl PageGate {
    /// A request came that is no page.
    pub fn asked(&mut self) {
        self.waiting += 1;
    }

    /// So many requests wait no more, for which so many commands were carried out.
    pub fn done(&mut self, requests: usize, commands: u64) {
        self.waiting = self.waiting.saturating_sub(requests);
        self.commands += commands;
    }

    /// Whether a page that waits may be read now. Where it may, it counts as begun.
    pub fn open(&mut self) -> bool {
        let since = *self.waits_since.get_or_insert(self.commands);
        let open = self.waiting == 0 || self.commands >= since + COMMANDS_BETWEEN_PAGES;
        if open {
            self.waits_since = None;
        }
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_at_once_where_no_small_call_waits() {
        let mut gate = PageGate::default();
        assert!(gate.open());
        gate.asked();
        assert!(!gate.open());
        gate.done(1, 1);
        assert!(gate.open());
    }

    #[test]
    fn each_page_waits_for_so_many_commands_while_small_calls_wait() {
        let mut gate = PageGate::default();
        (0..100).for_each(|_| gate.asked());
        for page in 0..2 {
            assert!(!gate.open());
            for _ in 0..COMMANDS_BETWEEN_PAGES - 1 {
                gate.done(1, 1);
                assert!(!gate.open(), "page {page}");
            }
            gate.done(1, 1);
            assert!(gate.open(), "page {page}");
        }
    }
}
