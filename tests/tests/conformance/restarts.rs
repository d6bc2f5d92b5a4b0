//! Restarts of the server, in order and by `SIGKILL`: what is kept and what is forgotten.

use transcript_tests::conformance::{
    ConsumerPlan, Script, Step, Stop,
    compare::assert_all,
    steps::{ack, info, publish, publish_id, pull, restart, wait},
};

use crate::{case, plan, update, windowed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_lose_and_keep_alike() {
    let slow = || ConsumerPlan { ack_wait_ms: 3_000, ..plan() };
    assert_all(&[
        case(
            "a graceful stop tells waiting requests and keeps the state",
            slow(),
            vec![
                publish("a"),
                publish("a"),
                publish("a"),
                pull(1, 2, 20_000),
                ack(1, 1, "+ACK"),
                pull(2, 7, 20_000),
                ack(3, 1, "+ACK"),
                restart(Stop::Terminate, 100),
                info(),
            ],
        ),
        case(
            "a restart dates what is out in whole seconds",
            slow(),
            vec![
                wait(1_675),
                publish("a"),
                pull(1, 1, 20_000),
                wait(100),
                restart(Stop::Terminate, 100),
                pull(1, 9, 20_000),
                wait(2_300),
                info(),
            ],
        ),
        case(
            "a kill dates what is out in whole seconds",
            slow(),
            vec![
                wait(1_675),
                publish("a"),
                pull(1, 1, 20_000),
                wait(300),
                restart(Stop::Kill, 100),
                pull(1, 9, 20_000),
                wait(2_300),
                info(),
            ],
        ),
        case(
            "a restart dates a delivery by its message",
            slow(),
            vec![
                publish("a"),
                publish("a"),
                wait(3_500),
                pull(1, 2, 20_000),
                wait(150),
                ack(2, 1, "+WPI"),
                wait(150),
                restart(Stop::Terminate, 100),
                pull(1, 9, 20_000),
                info(),
                wait(2_800),
                info(),
            ],
        ),
        case(
            "a restart forgets the queue of redeliveries",
            slow(),
            vec![
                publish("a"),
                pull(1, 1, 20_000),
                ack(1, 1, "-NAK"),
                wait(200),
                restart(Stop::Terminate, 100),
                pull(1, 9, 20_000),
                wait(2_500),
                info(),
            ],
        ),
        case(
            "a delayed nak survives a kill",
            plan(),
            vec![
                publish("a"),
                pull(1, 1, 20_000),
                ack(1, 1, "-NAK 3s"),
                wait(300),
                restart(Stop::Kill, 100),
                pull(1, 9, 20_000),
                wait(2_600),
                info(),
            ],
        ),
        case(
            "what was due while the server was down comes with the first pull",
            plan(),
            vec![
                publish("a"),
                pull(1, 1, 20_000),
                wait(200),
                restart(Stop::Terminate, 1_200),
                pull(1, 9, 20_000),
                info(),
                wait(400),
            ],
        ),
        case(
            "what was given up stays so",
            ConsumerPlan { max_deliver: Some(1), ..plan() },
            vec![
                publish("a"),
                pull(1, 1, 20_000),
                wait(1_400),
                restart(Stop::Kill, 100),
                pull(1, 9, 20_000),
                update(ConsumerPlan { max_deliver: Some(5), ..plan() }),
                wait(1_400),
                info(),
            ],
        ),
        windowed(
            "a kill loses all ids where the last message was deleted",
            10_000,
            vec![
                publish_id("a", "stored"),
                publish_id("a", "deleted"),
                Step::DeleteMessage { sequence: 2 },
                publish_id("a", "deleted"),
                wait(200),
                restart(Stop::Kill, 100),
                publish_id("a", "stored"),
                publish_id("a", "deleted"),
            ],
        ),
        windowed(
            "ids come back where another message than the last was deleted",
            10_000,
            vec![
                publish_id("a", "deleted"),
                publish_id("a", "stored"),
                Step::DeleteMessage { sequence: 1 },
                wait(200),
                restart(Stop::Kill, 100),
                publish_id("a", "stored"),
                publish_id("a", "deleted"),
            ],
        ),
        windowed(
            "ids come back after a graceful stop where the last message was deleted",
            10_000,
            vec![
                publish_id("a", "stored"),
                publish_id("a", "deleted"),
                Step::DeleteMessage { sequence: 2 },
                wait(200),
                restart(Stop::Terminate, 100),
                publish_id("a", "stored"),
                publish_id("a", "deleted"),
            ],
        ),
        windowed(
            "after a restart an id outlives its window",
            1_500,
            vec![
                publish_id("a", "x"),
                wait(875),
                restart(Stop::Terminate, 100),
                wait(300),
                publish_id("a", "x"),
                wait(1_200),
                publish_id("a", "x"),
            ],
        ),
        windowed(
            "a longer window brings ids back at a restart",
            400,
            vec![
                publish_id("a", "x"),
                wait(700),
                Step::SetWindow { ms: 20_000 },
                wait(200),
                restart(Stop::Terminate, 100),
                publish_id("a", "x"),
            ],
        ),
        case(
            "a kill long after the last ack loses nothing",
            slow(),
            vec![
                publish("a"),
                publish("a"),
                pull(1, 1, 20_000),
                ack(1, 1, "+ACK"),
                wait(400),
                restart(Stop::Kill, 100),
                info(),
                pull(1, 9, 20_000),
                info(),
            ],
        ),
        kill_amid_acks(),
        case(
            "a kill amid deliveries brings them again as the first",
            ConsumerPlan { ack_wait_ms: 20_000, ..plan() },
            vec![
                publish("a"),
                publish("a"),
                pull(1, 1, 20_000),
                wait(400),
                pull(1, 1, 20_000),
                restart(Stop::Kill, 100),
                ack(2, 1, "+ACK"),
                pull(2, 9, 20_000),
                info(),
            ],
        ),
    ])
    .await;
}

/// Double acks, one each 25 ms, and a kill right after the last: as many are lost as the model may lose.
fn kill_amid_acks() -> Script {
    let mut steps: Vec<Step> = (0..12).map(|_| publish("a")).collect();
    steps.extend([pull(1, 12, 20_000), wait(300)]);
    steps.extend((1..=12).map(|sequence| ack(sequence, 1, "+ACK")));
    steps.extend([restart(Stop::Kill, 100), info()]);
    case(
        "a kill amid acks loses the last ones, confirmed or not",
        ConsumerPlan { ack_wait_ms: 20_000, ..plan() },
        steps,
    )
}
