//! Requests that are carried out side by side.

use futures::stream::{FuturesUnordered, StreamExt};

/// Runs `perform` on everything that `next` gives, each for itself and at most `most` at the same time, until it gives no more.
/// Nothing may be lost when a future of `next` is dropped.
pub(crate) async fn pipelined<T, P: Future<Output = ()>>(
    mut next: impl AsyncFnMut() -> Option<T>,
    most: usize,
    perform: impl Fn(T) -> P,
) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            next = next(), if under_way.len() < most => match next {
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

    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn no_more_run_at_the_same_time_than_may() {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        for n in 0..20 {
            sender.send(n).expect("the receiver is there");
        }
        drop(sender);
        let (running, most, done) = (Cell::new(0), Cell::new(0), Cell::new(0));
        pipelined(
            async || receiver.recv().await,
            3,
            async |_| {
                running.set(running.get() + 1);
                most.set(most.get().max(running.get()));
                tokio::task::yield_now().await;
                running.set(running.get() - 1);
                done.set(done.get() + 1);
            },
        )
        .await;
        assert_eq!((most.get(), running.get()), (3, 0));
        assert_eq!(done.get(), 20);
    }
}
