//! How far an audit is: a line that changes on a terminal, nothing elsewhere.

use std::fmt::Write;

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::terminal::is_dumb;

/// Shows what is done, how much of it, and how fast.
#[derive(Debug, Clone)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// On stderr, where that is a terminal which can draw a line anew.
    #[must_use]
    pub fn on_stderr() -> Self {
        if is_dumb() {
            return Self::hidden();
        }
        Self { bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()) }
    }

    /// Nowhere.
    #[must_use]
    pub fn hidden() -> Self {
        Self { bar: ProgressBar::hidden() }
    }

    /// Begins something new, of which there is so much as far as that is known.
    pub fn begin(&self, what: &'static str, length: Option<u64>) {
        let template = match length {
            Some(_) => "{msg} {human_pos} of {human_len} {wide_bar} {rate} {eta}",
            None => "{msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.with_key("rate", rate));
        }
        self.bar.set_message(what);
        self.bar.set_length(length.unwrap_or(0));
        self.bar.reset();
    }

    /// So many more are done.
    pub fn add(&self, more: usize) {
        self.bar.inc(u64::try_from(more).unwrap_or(u64::MAX));
    }

    /// Everything is done: the line goes.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Whole ones a second: the crate's own rate has four decimals.
fn rate(state: &ProgressState, line: &mut dyn Write) {
    write!(line, "{}/s", HumanCount(state.per_sec() as u64)).expect("a line of the bar takes every text");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_is_counted_anew_for_each_thing() {
        let progress = Progress::hidden();
        progress.begin("reading", Some(10));
        progress.add(7);
        assert_eq!((progress.bar.position(), progress.bar.length()), (7, Some(10)));
        progress.begin("looking", None);
        assert_eq!((progress.bar.position(), progress.bar.message().as_str()), (0, "looking"));
        progress.end();
        assert!(progress.bar.is_finished());
    }
}
