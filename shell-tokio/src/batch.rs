//! Batching of what is waiting: while one command is under way the next batch gathers, so nothing waits for a timer.

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;

/// Runs `perform` on everything that waits, at most `most` at a time, until the senders are gone.
pub(crate) async fn batches<T>(
    mut waiting: mpsc::UnboundedReceiver<T>,
    most: usize,
    mut perform: impl AsyncFnMut(Vec<T>),
) {
    loop {
        let mut batch = Vec::new();
        if waiting.recv_many(&mut batch, most).await == 0 {
            return;
        }
        perform(batch).await;
    }
}

/// Runs `perform` on everything that waits, each for itself and at most `most` at the same time, until the senders are gone.
pub(crate) async fn pipelined<T, P: Future<Output = ()>>(
    mut waiting: mpsc::UnboundedReceiver<T>,
    most: usize,
    perform: impl Fn(T) -> P,
) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            next = waiting.recv(), if under_way.len() < most => match next {
                Some(next) => under_way.push(perform(next)),
                None => break,
            },
            Some(()) = under_way.next() => {}
        }
    }
    while under_way.next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn what_gathers_during_a_command_is_the_next_batch() {
        let (sender, receiver) = mpsc::unbounded_channel();
        sender.send(1).expect("the receiver is there");
        let mut seen = vec![];
        let more = sender.clone();
        drop(sender);
        let mut more = Some(more);
        batches(receiver, 3, async |batch| {
            if let Some(sender) = more.take() {
                for n in 2..=6 {
                    sender.send(n).expect("the receiver is there");
                }
            }
            seen.push(batch);
        })
        .await;
        assert_eq!(seen, [vec![1], vec![2, 3, 4], vec![5, 6]]);
    }

    #[tokio::test]
    async fn no_more_run_at_the_same_time_than_may() {
        let (sender, receiver) = mpsc::unbounded_channel();
        for n in 0..20 {
            sender.send(n).expect("the receiver is there");
        }
        drop(sender);
        let (running, most, done) = (Cell::new(0), Cell::new(0), Cell::new(0));
        pipelined(receiver, 3, async |_| {
            running.set(running.get() + 1);
            most.set(most.get().max(running.get()));
            tokio::task::yield_now().await;
            running.set(running.get() - 1);
            done.set(done.get() + 1);
        })
        .await;
        assert_eq!((most.get(), running.get()), (3, 0));
        assert_eq!(done.get(), 20);
    }
}
