//! Tasks under a virtual clock: everything that can run runs, then the clock jumps to the next timer.
//!
//! The tasks are those of smol's `LocalExecutor`, one executor for each process, so that a process is killed by dropping
//! its executor and frozen by not running it. Nothing here depends on a thread, a real clock or an order of hashes: ready
//! tasks run in the order in which they were woken, timers fire in the order of their time and then of their making.

use std::{
    cell::{Cell, RefCell},
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use transcript_core::Time;

/// The executors of the world that a thread plays, by their numbers: which of them runs, and which have a task that was woken.
///
/// An executor tells whether it has something to run only by being asked for it. Most of them have nothing most of the time,
/// and there are several questions for each task that runs.
struct Executors {
    running: Cell<usize>,
    /// One bit for each; those with high numbers share the last one.
    woken: Cell<u64>,
}

thread_local! {
    static EXECUTORS: Executors = const { Executors { running: Cell::new(0), woken: Cell::new(0) } };
}

fn bit(executor: usize) -> u64 {
    1 << executor.min(63)
}

/// From now on the tasks of this executor run.
pub(crate) fn runs(executor: usize) {
    EXECUTORS.with(|all| all.running.set(executor));
}

/// A task of this executor was woken, or is a new one.
pub(crate) fn has_woken(executor: usize) {
    EXECUTORS.with(|all| all.woken.set(all.woken.get() | bit(executor)));
}

/// None of this executor's tasks is awake.
pub(crate) fn is_asleep(executor: usize) {
    // Others share the last bit.
    if executor < 63 {
        EXECUTORS.with(|all| all.woken.set(all.woken.get() & !bit(executor)));
    }
}

/// Whether this executor may have a task that was woken.
pub(crate) fn may_run(executor: usize) -> bool {
    EXECUTORS.with(|all| all.woken.get() & bit(executor) != 0)
}

/// A task that waits. Nobody wakes one but through this.
#[derive(Debug)]
pub(crate) struct Sleeper {
    waker: Waker,
    executor: usize,
}

impl Sleeper {
    /// The task that is being polled.
    pub(crate) fn of(context: &Context<'_>) -> Self {
        Self { waker: context.waker().clone(), executor: EXECUTORS.with(|all| all.running.get()) }
    }

    /// It is the task that is being polled now.
    fn becomes(&mut self, context: &Context<'_>) {
        self.waker.clone_from(context.waker());
        self.executor = EXECUTORS.with(|all| all.running.get());
    }

    pub(crate) fn wake(self) {
        has_woken(self.executor);
        self.waker.wake();
    }
}

/// The world's clock and its timers.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    now: Cell<Time>,
    timers: RefCell<Timers>,
}

impl Clock {
    pub(crate) fn now(&self) -> Time {
        self.now.get()
    }

    pub(crate) fn sleep_until(self: &Rc<Self>, at: Time) -> Sleep {
        Sleep { clock: Rc::clone(self), at, place: None }
    }

    pub(crate) fn sleep(self: &Rc<Self>, span: Duration) -> Sleep {
        self.sleep_until(self.now().after(span))
    }

    /// When the next timer fires.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.timers.borrow_mut().next()
    }

    /// Jumps to `at` and fires what is due.
    pub(crate) fn jump(&self, at: Time) {
        self.now.set(self.now().max(at));
        loop {
            let due = {
                let mut timers = self.timers.borrow_mut();
                match timers.next() {
                    Some(next) if next <= at => timers.fire(),
                    Some(_) | None => return,
                }
            };
            due.into_iter().for_each(Sleeper::wake);
        }
    }
}

/// Timers in the order of their time and then of their making. One that is dropped stays in the queue until its time comes:
/// most are dropped, as answers come before their time-outs, and taking one out of the middle costs more.
#[derive(Debug, Default)]
struct Timers {
    queue: BinaryHeap<Reverse<(Time, u64, usize)>>,
    /// Which timer waits at each place, and whom it wakes.
    places: Vec<Option<(u64, Sleeper)>>,
    free: Vec<usize>,
    made: u64,
}

impl Timers {
    fn make(&mut self, at: Time, sleeper: Sleeper) -> usize {
        self.made += 1;
        let waiting = Some((self.made, sleeper));
        let place = self.free.pop().unwrap_or(self.places.len());
        match self.places.get_mut(place) {
            Some(free) => *free = waiting,
            None => self.places.push(waiting),
        }
        self.queue.push(Reverse((at, self.made, place)));
        place
    }

    fn next(&mut self) -> Option<Time> {
        while let Some(Reverse((at, made, place))) = self.queue.peek() {
            let waits = self.places.get(*place).and_then(Option::as_ref).is_some_and(|(waiting, _)| waiting == made);
            if waits {
                return Some(*at);
            }
            self.queue.pop();
        }
        None
    }

    /// Takes the first timer out; its place stays taken for as long as whoever sleeps there.
    fn fire(&mut self) -> Option<Sleeper> {
        let Reverse((_, _, place)) = self.queue.pop()?;
        self.places.get_mut(place).and_then(Option::take).map(|(_, sleeper)| sleeper)
    }

    /// Whoever sleeps there is polled by another task now.
    fn wakes(&mut self, place: usize, context: &Context<'_>) {
        if let Some((_, known)) = self.places.get_mut(place).and_then(Option::as_mut) {
            known.becomes(context);
        }
    }

    fn forget(&mut self, place: usize) -> Option<Sleeper> {
        self.free.push(place);
        self.places.get_mut(place).and_then(Option::take).map(|(_, sleeper)| sleeper)
    }
}

/// Waits until the clock shows a time.
#[derive(Debug)]
pub(crate) struct Sleep {
    clock: Rc<Clock>,
    at: Time,
    place: Option<usize>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.clock.now() >= self.at {
            return Poll::Ready(());
        }
        match self.place {
            Some(place) => self.clock.timers.borrow_mut().wakes(place, context),
            None => {
                let place = self.clock.timers.borrow_mut().make(self.at, Sleeper::of(context));
                self.place = Some(place);
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let forgotten = self.clock.timers.borrow_mut().forget(place);
            drop(forgotten);
        }
    }
}

/// What one task puts and another takes, in order.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    items: RefCell<VecDeque<T>>,
    waiting: RefCell<Option<Sleeper>>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { items: RefCell::default(), waiting: RefCell::default() }
    }
}

impl<T> Queue<T> {
    pub(crate) fn push(&self, item: T) {
        self.items.borrow_mut().push_back(item);
        self.wake();
    }

    pub(crate) fn pop(&self) -> Option<T> {
        self.items.borrow_mut().pop_front()
    }

    pub(crate) async fn take(&self) -> T {
        std::future::poll_fn(|context| match self.pop() {
            Some(item) => Poll::Ready(item),
            None => {
                self.waiting.replace(Some(Sleeper::of(context)));
                Poll::Pending
            }
        })
        .await
    }

    fn wake(&self) {
        let waiting = self.waiting.borrow_mut().take();
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }
}

/// Something that one task is told, however often it was said.
pub(crate) type Bell = Slot<()>;

/// The last thing that was put, for one task to take.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    item: RefCell<Option<T>>,
    waiting: RefCell<Option<Sleeper>>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { item: RefCell::default(), waiting: RefCell::default() }
    }
}

impl<T> Slot<T> {
    pub(crate) fn put(&self, item: T) {
        self.item.replace(Some(item));
        let waiting = self.waiting.borrow_mut().take();
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    pub(crate) async fn take(&self) -> T {
        std::future::poll_fn(|context| match self.item.borrow_mut().take() {
            Some(item) => Poll::Ready(item),
            None => {
                self.waiting.replace(Some(Sleeper::of(context)));
                Poll::Pending
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use smol::LocalExecutor;

    use super::*;

    #[test]
    fn the_clock_jumps_from_timer_to_timer_in_order() {
        let clock = Rc::new(Clock::default());
        let woken = Rc::new(RefCell::new(vec![]));
        let executor = LocalExecutor::new();
        for (name, seconds) in [("b", 2), ("a", 1), ("c", 2)] {
            let (clock, woken) = (Rc::clone(&clock), Rc::clone(&woken));
            let task = executor.spawn(async move {
                clock.sleep(Duration::from_secs(seconds)).await;
                woken.borrow_mut().push((name, clock.now().as_micros()));
            });
            task.detach();
        }
        while executor.try_tick() {}
        while let Some(at) = clock.next_timer() {
            clock.jump(at);
            while executor.try_tick() {}
        }
        assert_eq!(*woken.borrow(), [("a", 1_000_000), ("b", 2_000_000), ("c", 2_000_000)]);
    }

    #[test]
    fn a_dropped_executor_takes_its_tasks_and_their_timers_along() {
        let clock = Rc::new(Clock::default());
        let executor = LocalExecutor::new();
        let (held, sleeping) = (Rc::new(()), Rc::clone(&clock));
        let holds = Rc::clone(&held);
        let task = executor.spawn(async move {
            sleeping.sleep(Duration::from_secs(1)).await;
            drop(holds);
        });
        task.detach();
        while executor.try_tick() {}
        assert_eq!((Rc::strong_count(&held), clock.next_timer().is_some()), (2, true));
        drop(executor);
        assert_eq!((Rc::strong_count(&held), clock.next_timer()), (1, None));
    }
}
