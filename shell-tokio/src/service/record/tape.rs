//! The bounded way from the driver to the recorder.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
    mpsc::{Receiver, Sender, channel},
};

use transcript_core::{Processor, Time};

use super::machine::Machine;

/// How much the tape holds at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) inputs: usize,
    /// An input of more is taken where the tape is empty.
    pub(super) bytes: usize,
}

/// The driver's end: takes inputs as long as there is room, and never waits.
#[derive(Debug)]
pub struct Tape<M: Machine = Processor> {
    to: Sender<TapedInput<M>>,
    on_it: Arc<OnIt>,
    bounds: Bounds,
    /// Once it was full nothing is taken until it is half empty: a gap ends the account of what is under way, so one long
    /// gap is better than many short ones.
    full: bool,
}

/// The recorder's end.
#[derive(Debug)]
pub(super) struct TapeReader<M: Machine = Processor> {
    from: Receiver<TapedInput<M>>,
    on_it: Arc<OnIt>,
}

/// What the state machine was told.
#[derive(Debug)]
pub(super) struct TapedInput<M: Machine = Processor> {
    pub(super) at: Time,
    pub(super) answer: M::Answer,
    pub(super) input: M::Input,
    /// How many inputs before it were left out.
    pub(super) lost_before: u64,
    weight: usize,
}

/// What is on the tape.
#[derive(Debug, Default)]
struct OnIt {
    inputs: AtomicUsize,
    bytes: AtomicUsize,
    /// Inputs left out of which the recorder does not know yet.
    lost: AtomicU64,
}

/// A tape of these bounds.
pub(super) fn tape<M: Machine>(bounds: Bounds) -> (Tape<M>, TapeReader<M>) {
    let (to, from) = channel();
    let on_it = Arc::new(OnIt::default());
    (Tape { to, on_it: Arc::clone(&on_it), bounds, full: false }, TapeReader { from, on_it })
}

impl<M: Machine> Tape<M> {
    /// A copy of an input that the state machine is about to be told; `None` where there is no room for it, which is counted.
    pub(crate) fn copy(&mut self, input: &M::Input) -> Option<Copied<M>> {
        let weight = M::weight(input);
        let (inputs, bytes) = (self.on_it.inputs.load(Ordering::Relaxed), self.on_it.bytes.load(Ordering::Relaxed));
        let Bounds { inputs: most, bytes: most_bytes } = self.bounds;
        let fits = inputs < most && (bytes == 0 || bytes.saturating_add(weight) <= most_bytes);
        let is_low = inputs <= most / 2 && bytes <= most_bytes / 2;
        if !fits || (self.full && !is_low) {
            if !std::mem::replace(&mut self.full, true) {
                tracing::warn!("the recorder cannot keep up: inputs are left out of the trace until it can");
            }
            self.on_it.lost.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.full = false;
        Some(Copied { input: input.clone(), weight })
    }

    /// Hands it on, with what the state machine made of it.
    pub(crate) fn put(&mut self, at: Time, answer: M::Answer, copied: Copied<M>) {
        let Copied { input, weight } = copied;
        let lost_before = self.on_it.lost.swap(0, Ordering::Relaxed);
        self.on_it.inputs.fetch_add(1, Ordering::Relaxed);
        self.on_it.bytes.fetch_add(weight, Ordering::Relaxed);
        if self.to.send(TapedInput { at, answer, input, lost_before, weight }).is_err() {
            // The recorder is gone. What is on the tape stays there, and the tape fills up.
            self.on_it.lost.fetch_add(lost_before + 1, Ordering::Relaxed);
        }
    }
}

/// An input for which there is room.
#[derive(Debug)]
pub(crate) struct Copied<M: Machine = Processor> {
    input: M::Input,
    weight: usize,
}

impl<M: Machine> TapeReader<M> {
    /// The next input, if there is one.
    pub(super) fn at_once(&self) -> Option<TapedInput<M>> {
        self.from.try_recv().ok().inspect(|told| self.take(told))
    }

    /// The next input, however long it takes; `None` once the tape is gone.
    pub(super) fn next(&self) -> Option<TapedInput<M>> {
        self.from.recv().ok().inspect(|told| self.take(told))
    }

    /// The inputs that were left out behind the last one.
    pub(super) fn lost(&self) -> u64 {
        self.on_it.lost.swap(0, Ordering::Relaxed)
    }

    fn take(&self, told: &TapedInput<M>) {
        self.on_it.inputs.fetch_sub(1, Ordering::Relaxed);
        self.on_it.bytes.fetch_sub(told.weight, Ordering::Relaxed);
    }
}
