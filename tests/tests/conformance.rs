//! The broker model does what nats-server does: the cases in `fixtures/conformance`, each run against both and compared.

use transcript_tests::conformance::{Script, compare::assert_all, fixtures};

async fn assert_topic(topic: &str) {
    assert_all(&fixtures::read::<Script>(topic)).await;
}

/// Acknowledgements of every kind, and what becomes of messages that are not acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgements_are_taken_alike() {
    assert_topic("acknowledgements").await;
}

/// Message ids: for how long they are remembered, and what is checked beside them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_are_remembered_and_forgotten_alike() {
    assert_topic("ids").await;
}

/// Pull requests: which one is served when, and with which status it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pulls_are_served_alike() {
    assert_topic("pulls").await;
}

/// Restarts of the server, by SIGTERM and by SIGKILL: what is kept and what is forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_lose_and_keep_alike() {
    assert_topic("restarts").await;
}
