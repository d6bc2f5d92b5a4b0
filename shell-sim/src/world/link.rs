//! One direction of one connection: in order, late, sometimes frozen, and over when it is cut.

use std::{cell::RefCell, collections::VecDeque, rc::Rc, task::Poll, time::Duration};

use smol::future;
use transcript_core::Time;

use crate::runtime::{Clock, Sleeper};

/// What is under way in one direction. Nothing overtakes within a connection; between connections everything may.
#[derive(Debug)]
pub(super) struct Link<T> {
    state: RefCell<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    under_way: VecDeque<(Time, T)>,
    latest: Time,
    frozen: bool,
    closed: bool,
    waiting: Option<Sleeper>,
}

impl<T> Link<T> {
    pub(super) fn new() -> Rc<Self> {
        let under_way = VecDeque::new();
        let state = State { under_way, latest: Time::ZERO, frozen: false, closed: false, waiting: None };
        Rc::new(Self { state: RefCell::new(state) })
    }

    /// Sends something that arrives after `delay`, and after everything sent before it.
    pub(super) fn send(&self, now: Time, delay: Duration, item: T) {
        let mut state = self.state.borrow_mut();
        if state.closed {
            return;
        }
        let at = now.after(delay).max(state.latest);
        state.latest = at;
        state.under_way.push_back((at, item));
        let first = state.under_way.len() == 1;
        let waiting = if first { state.waiting.take() } else { None };
        drop(state);
        wake(waiting);
    }

    /// Nothing arrives any more until the thaw; then everything does.
    pub(super) fn freeze(&self) {
        self.state.borrow_mut().frozen = true;
    }

    pub(super) fn thaw(&self) {
        let mut state = self.state.borrow_mut();
        state.frozen = false;
        let waiting = state.waiting.take();
        drop(state);
        wake(waiting);
    }

    /// The direction is over: what is under way is lost.
    pub(super) fn cut(&self) {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        let lost = std::mem::take(&mut state.under_way);
        let waiting = state.waiting.take();
        drop(state);
        drop(lost);
        wake(waiting);
    }

    pub(super) fn is_over(&self) -> bool {
        self.state.borrow().closed
    }

    /// The next thing to arrive, when it arrives; `None` once the direction is over.
    pub(super) async fn arrival(&self, clock: &Rc<Clock>) -> Option<T> {
        loop {
            let due = match self.look() {
                Look::Over => return None,
                Look::At(at) if at <= clock.now() => {
                    return self.state.borrow_mut().under_way.pop_front().map(|it| it.1);
                }
                Look::At(at) => Some(at),
                Look::Nothing => None,
            };
            match due {
                Some(at) => future::or(clock.sleep_until(at), self.changed()).await,
                None => self.changed().await,
            }
        }
    }

    fn look(&self) -> Look {
        let state = self.state.borrow();
        match state.under_way.front() {
            _ if state.closed => Look::Over,
            _ if state.frozen => Look::Nothing,
            Some((at, _)) => Look::At(*at),
            None => Look::Nothing,
        }
    }

    async fn changed(&self) {
        let mut waited = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            self.state.borrow_mut().waiting = Some(Sleeper::of(context));
            Poll::Pending
        })
        .await;
    }
}

enum Look {
    Over,
    Nothing,
    At(Time),
}

fn wake(waiting: Option<Sleeper>) {
    if let Some(waiting) = waiting {
        waiting.wake();
    }
}
