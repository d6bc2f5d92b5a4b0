//! Message ids: for how long they are remembered, and what is checked beside them.

use transcript_tests::conformance::{
    Step,
    compare::assert_all,
    steps::{info, publish_id, wait},
};

use crate::{expecting, windowed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_are_remembered_and_forgotten_alike() {
    assert_all(&[
        windowed(
            "an id is remembered for the window, for all subjects, and not refreshed",
            800,
            vec![
                publish_id("a", "x"),
                wait(375),
                publish_id("b", "x"),
                wait(175),
                publish_id("a", "x"),
                wait(450),
                publish_id("a", "x"),
                info(),
            ],
        ),
        windowed(
            "a later id is forgotten by a purge of its own",
            800,
            vec![
                publish_id("a", "x"),
                wait(375),
                publish_id("a", "y"),
                wait(575),
                publish_id("a", "x"),
                publish_id("a", "y"),
                wait(450),
                publish_id("a", "y"),
            ],
        ),
        windowed(
            "an id of a deleted or purged message is remembered",
            5_000,
            vec![
                publish_id("a", "x"),
                publish_id("b", "y"),
                Step::DeleteMessage { sequence: 1 },
                publish_id("a", "x"),
                Step::Purge { subject: None },
                publish_id("a", "x"),
                publish_id("b", "y"),
                publish_id("b", "z"),
            ],
        ),
        windowed(
            "a shorter window forgets at once, a longer one brings nothing back",
            10_000,
            vec![
                publish_id("a", "x"),
                wait(500),
                publish_id("a", "y"),
                Step::SetWindow { ms: 300 },
                publish_id("a", "y"),
                publish_id("a", "x"),
                wait(600),
                Step::SetWindow { ms: 10_000 },
                publish_id("a", "y"),
                publish_id("a", "y"),
            ],
        ),
        windowed(
            "a longer window counts for what is remembered",
            600,
            vec![
                publish_id("a", "x"),
                wait(200),
                Step::SetWindow { ms: 1_500 },
                wait(600),
                publish_id("a", "x"),
                wait(900),
                publish_id("a", "x"),
            ],
        ),
        windowed(
            "a window that is too short is refused",
            1_000,
            vec![Step::SetWindow { ms: 99 }, publish_id("a", "x")],
        ),
        windowed(
            "expected sequences are checked before the id, and a refusal is not remembered",
            5_000,
            vec![
                expecting("a", "x", 7),
                expecting("a", "x", 0),
                expecting("a", "x", 0),
                publish_id("a", "x"),
                expecting("a", "y", 1),
                expecting("b", "z", 0),
            ],
        ),
    ])
    .await;
}
