//! Batching of what is waiting: while one command is under way the next batch gathers, so nothing waits for a timer.

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

#[cfg(test)]
mod tests {
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
}
