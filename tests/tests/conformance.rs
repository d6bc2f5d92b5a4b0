//! The simulated broker does what nats-server does: written cases for every trap, each run against both and compared.

use transcript_tests::conformance::{
    Action, ConsumerPlan, Script, Step, Stop,
    compare::assert_all,
    steps::{ack, info, publish, publish_id, pull, restart, wait},
};

fn case(name: &str, consumer: ConsumerPlan, steps: Vec<Step>) -> Script {
    Script { name: name.to_owned(), window_ms: 0, consumer, steps, watch_ms: 300 }
}

fn windowed(name: &str, window_ms: u64, steps: Vec<Step>) -> Script {
    Script { window_ms, ..case(name, ConsumerPlan::default(), steps) }
}

fn plan() -> ConsumerPlan {
    ConsumerPlan::default()
}

fn update(plan: ConsumerPlan) -> Step {
    Step::Consumer { action: Action::Update, plan }
}

fn no_wait(client: u64, batch: u64, expires_ms: u64) -> Step {
    Step::Pull { client, batch, expires_ms, no_wait: true, heartbeat_ms: 0, max_bytes: 0 }
}

fn beating(client: u64, batch: u64, expires_ms: u64, heartbeat_ms: u64) -> Step {
    Step::Pull { client, batch, expires_ms, no_wait: false, heartbeat_ms, max_bytes: 0 }
}

fn bytes(client: u64, batch: u64, max_bytes: u64) -> Step {
    Step::Pull { client, batch, expires_ms: 20_000, no_wait: false, heartbeat_ms: 0, max_bytes }
}

fn expecting(subject: &str, id: &str, expected: u64) -> Step {
    Step::Publish { subject: subject.to_owned(), id: Some(id.to_owned()), expected: Some(expected) }
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgements_are_taken_alike() {
    let limited = |most| ConsumerPlan { max_deliver: Some(most), ..plan() };
    assert_all(&[
        case(
            "the ack wait runs from hand-over, each message on its own",
            plan(),
            vec![
                publish("a"),
                publish("a"),
                wait(300),
                pull(1, 1, 20_000),
                wait(400),
                pull(1, 9, 20_000),
                wait(1_500),
                info(),
            ],
        ),
        case(
            "what has expired waits for a pull and goes before anything new",
            plan(),
            vec![publish("a"), pull(1, 1, 20_000), publish("a"), wait(1_400), info(), pull(1, 9, 20_000), info()],
        ),
        case(
            "progress starts the wait again, whichever delivery it names, without end",
            plan(),
            vec![
                publish("a"),
                pull(1, 9, 20_000),
                wait(1_400),
                ack(1, 1, "+WPI"),
                wait(700),
                ack(1, 1, "+WPI"),
                wait(700),
                ack(1, 2, "+WPI"),
                wait(700),
                info(),
                wait(600),
            ],
        ),
        case(
            "progress takes nothing out of the queue, an ack does",
            plan(),
            vec![
                publish("a"),
                publish("a"),
                pull(1, 2, 20_000),
                wait(1_400),
                ack(1, 1, "+WPI"),
                ack(2, 1, "+ACK"),
                info(),
                pull(1, 9, 20_000),
                info(),
            ],
        ),
        case(
            "an ack of a superseded delivery settles, and everything after it is confirmed",
            plan(),
            vec![
                publish("a"),
                pull(1, 9, 20_000),
                wait(1_400),
                ack(1, 1, "+ACK"),
                ack(1, 2, "+ACK"),
                ack(1, 2, "-NAK"),
                ack(1, 2, "+WPI"),
                ack(1, 2, "garbage"),
                ack(1, 1, "+TERM late"),
                info(),
                wait(1_200),
            ],
        ),
        case(
            "a term tells its reason and redelivers nothing",
            plan(),
            vec![publish("a"), pull(1, 9, 20_000), ack(1, 1, "+TERM no such call"), wait(1_300), info()],
        ),
        case(
            "naks come in their order, before anything new, whatever the limit",
            ConsumerPlan { max_ack_pending: Some(3), ..plan() },
            vec![
                publish("a"),
                publish("a"),
                publish("a"),
                publish("a"),
                pull(1, 3, 20_000),
                ack(3, 1, "-NAK"),
                ack(1, 1, "-NAK"),
                ack(1, 1, "-NAK"),
                pull(1, 9, 20_000),
                info(),
                ack(2, 1, "+ACK"),
                info(),
            ],
        ),
        case(
            "a stale nak redelivers again",
            plan(),
            vec![publish("a"), pull(1, 9, 20_000), wait(1_300), ack(1, 1, "-NAK"), info()],
        ),
        case(
            "a nak with a delay keeps its place",
            ConsumerPlan { max_ack_pending: Some(1), ..plan() },
            vec![publish("a"), publish("a"), pull(1, 9, 20_000), ack(1, 1, "-NAK 600ms"), info(), wait(800), info()],
        ),
        case(
            "the delay of a nak may be longer than the ack wait",
            plan(),
            vec![
                publish("a"),
                pull(1, 9, 20_000),
                ack(1, 1, "-NAK {\"delay\": 1700000000}"),
                wait(1_300),
                info(),
                wait(600),
            ],
        ),
        case(
            "a nak with a delay of nothing, and one that cannot be read",
            plan(),
            vec![
                publish("a"),
                publish("a"),
                pull(1, 9, 20_000),
                ack(1, 1, "-NAK {\"delay\": 0}"),
                wait(200),
                ack(2, 1, "-NAK soon"),
                wait(300),
                info(),
            ],
        ),
        case(
            "progress overrides the delay of a nak",
            plan(),
            vec![
                publish("a"),
                pull(1, 9, 20_000),
                ack(1, 1, "-NAK 600ms"),
                wait(250),
                ack(1, 1, "+WPI"),
                wait(1_300),
                info(),
            ],
        ),
        case(
            "several deliveries are given up only by a pull",
            limited(2),
            vec![
                publish("a"),
                pull(1, 2, 20_000),
                wait(2_400),
                info(),
                pull(1, 1, 20_000),
                info(),
                publish("a"),
                ack(2, 1, "+ACK"),
                info(),
                ack(1, 1, "+ACK"),
                info(),
            ],
        ),
        case(
            "several deliveries are given up at their time where a pull waits",
            limited(2),
            vec![publish("a"), pull(1, 9, 20_000), wait(2_400), info(), ack(1, 2, "-NAK"), wait(200), info()],
        ),
        case(
            "a single delivery is given up by the timer",
            limited(1),
            vec![publish("a"), pull(1, 1, 20_000), wait(1_300), info(), ack(1, 1, "+ACK"), info()],
        ),
        case(
            "a nak of the last delivery gives up at once, with a delay after it",
            limited(1),
            vec![
                publish("a"),
                publish("a"),
                pull(1, 9, 20_000),
                ack(1, 1, "-NAK"),
                ack(2, 1, "-NAK 300ms"),
                wait(600),
                info(),
            ],
        ),
        case(
            "a raised limit revives nothing",
            limited(1),
            vec![
                publish("a"),
                pull(1, 9, 20_000),
                wait(1_300),
                update(limited(5)),
                wait(1_300),
                info(),
                publish("a"),
                ack(2, 1, "+ACK"),
                info(),
            ],
        ),
        case(
            "a limit lowered below the count tells at a nak",
            limited(9),
            vec![
                publish("a"),
                pull(1, 9, 20_000),
                ack(1, 1, "-NAK"),
                ack(1, 2, "-NAK"),
                ack(1, 3, "-NAK"),
                update(limited(2)),
                ack(1, 4, "-NAK"),
                info(),
                wait(1_300),
                info(),
            ],
        ),
        case(
            "a limit lowered below the count tells at the ack wait",
            limited(9),
            vec![
                publish("a"),
                pull(1, 9, 20_000),
                ack(1, 1, "-NAK"),
                ack(1, 2, "-NAK"),
                ack(1, 3, "-NAK"),
                update(limited(2)),
                wait(1_300),
                info(),
            ],
        ),
        case(
            "a limit lowered to the count",
            limited(9),
            vec![
                publish("a"),
                pull(1, 9, 20_000),
                ack(1, 1, "-NAK"),
                ack(1, 2, "-NAK"),
                update(limited(2)),
                wait(1_300),
                info(),
            ],
        ),
        case(
            "the reported floor stays until the next ack",
            limited(1),
            vec![
                publish("a"),
                publish("a"),
                pull(1, 2, 20_000),
                ack(1, 1, "+ACK"),
                info(),
                wait(1_300),
                info(),
                publish("a"),
                pull(1, 1, 20_000),
                ack(3, 1, "+ACK"),
                info(),
            ],
        ),
        case(
            "a backoff replaces the ack wait",
            ConsumerPlan { backoff_ms: vec![400, 900, 1_500], max_deliver: None, ..plan() },
            vec![publish("a"), pull(1, 9, 20_000), wait(4_800), info()],
        ),
        case(
            "a backoff bends the delay of a nak, and progress repeats its step",
            ConsumerPlan { backoff_ms: vec![400, 900, 1_500], max_deliver: None, ..plan() },
            vec![
                publish("a"),
                pull(1, 9, 20_000),
                wait(700),
                ack(1, 2, "-NAK 300ms"),
                wait(1_150),
                ack(1, 3, "+WPI"),
                wait(1_900),
                info(),
            ],
        ),
        case(
            "a changed ack wait counts for what is out",
            ConsumerPlan { ack_wait_ms: 20_000, ..plan() },
            vec![publish("a"), pull(1, 9, 20_000), wait(300), update(plan()), wait(1_200), info()],
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pulls_are_served_alike() {
    assert_all(&[
        case(
            "requests take turns",
            plan(),
            vec![
                pull(1, 3, 20_000),
                pull(2, 3, 20_000),
                publish("a"),
                publish("a"),
                publish("a"),
                publish("a"),
                publish("a"),
                publish("a"),
                publish("a"),
                info(),
            ],
        ),
        case(
            "what a request that does not wait gets",
            plan(),
            vec![
                no_wait(1, 2, 0),
                wait(100),
                publish("a"),
                publish("a"),
                no_wait(1, 5, 0),
                publish("a"),
                no_wait(2, 5, 500),
                no_wait(1, 5, 400),
                wait(800),
                info(),
            ],
        ),
        case(
            "a request that does not wait is refused where others ask for more",
            ConsumerPlan { max_ack_pending: Some(1), ..plan() },
            vec![
                publish("a"),
                publish("a"),
                pull(1, 5, 20_000),
                no_wait(2, 1, 500),
                no_wait(2, 1, 0),
                wait(800),
                info(),
            ],
        ),
        case(
            "a request times out with what it had left",
            plan(),
            vec![publish("a"), pull(1, 3, 400), wait(700), info()],
        ),
        case(
            "heartbeats come while nothing is delivered",
            ConsumerPlan { ack_wait_ms: 20_000, ..plan() },
            vec![beating(1, 5, 2_300, 450), wait(600), publish("a"), wait(1_800), info()],
        ),
        case("a heartbeat that is too long is refused", plan(), vec![beating(1, 5, 500, 300), info()]),
        case(
            "a batch that is too large is refused",
            ConsumerPlan { max_batch: Some(3), ..plan() },
            vec![pull(1, 4, 500), pull(1, 3, 400), wait(700)],
        ),
        case(
            "a full queue answers, and tells nothing where there is a heartbeat",
            ConsumerPlan { max_waiting: 2, ..plan() },
            vec![
                pull(1, 1, 20_000),
                pull(1, 1, 20_000),
                pull(2, 1, 20_000),
                beating(2, 1, 20_000, 9_000),
                wait(300),
                info(),
                wait(1_200),
                Step::Unsubscribe { client: 1 },
                pull(2, 1, 20_000),
                info(),
                publish("a"),
                info(),
            ],
        ),
        case(
            "bytes limit a request",
            plan(),
            vec![
                publish("a"),
                publish("a"),
                publish("a"),
                bytes(1, 1, 1_000),
                bytes(1, 1, 10),
                bytes(2, 9, 120),
                info(),
                wait(300),
            ],
        ),
        case(
            "a request without interest is dropped",
            plan(),
            vec![pull(1, 5, 20_000), Step::Unsubscribe { client: 1 }, publish("a"), info(), pull(2, 5, 20_000), info()],
        ),
        case(
            "the limit holds back new messages only",
            ConsumerPlan { max_ack_pending: Some(2), ..plan() },
            vec![
                publish("a"),
                publish("a"),
                publish("a"),
                pull(1, 20, 20_000),
                wait(1_300),
                info(),
                ack(1, 1, "+ACK"),
                info(),
            ],
        ),
        case(
            "a filter skips and counts",
            ConsumerPlan { filter: Some("wanted.*".to_owned()), ..plan() },
            vec![
                publish("other"),
                publish("wanted.x"),
                publish("other"),
                publish("wanted.y"),
                publish("other"),
                info(),
                pull(1, 1, 20_000),
                info(),
                pull(1, 5, 20_000),
                info(),
                ack(2, 1, "+ACK"),
                ack(4, 1, "+ACK"),
                info(),
            ],
        ),
        case(
            "a removed message is terminated where it is out",
            plan(),
            vec![
                publish("a"),
                publish("a"),
                publish("a"),
                pull(1, 2, 20_000),
                Step::DeleteMessage { sequence: 1 },
                Step::DeleteMessage { sequence: 3 },
                wait(100),
                info(),
                ack(1, 1, "+ACK"),
                wait(1_000),
                info(),
            ],
        ),
        case(
            "a purge settles what is out",
            plan(),
            vec![
                publish("a"),
                publish("b"),
                publish("a"),
                pull(1, 2, 20_000),
                Step::Purge { subject: None },
                wait(100),
                info(),
                publish("a"),
                info(),
                pull(1, 2, 20_000),
                info(),
                wait(1_300),
            ],
        ),
        case(
            "a purge of one subject leaves the others",
            plan(),
            vec![
                publish("a"),
                publish("b"),
                publish("a"),
                publish("b"),
                pull(1, 2, 20_000),
                Step::Purge { subject: Some("a".to_owned()) },
                wait(100),
                info(),
                pull(1, 9, 20_000),
                wait(1_200),
                info(),
            ],
        ),
        case(
            "a purge of the filter's subject",
            ConsumerPlan { filter: Some("a".to_owned()), ..plan() },
            vec![
                publish("a"),
                publish("b"),
                publish("a"),
                publish("b"),
                pull(1, 1, 20_000),
                Step::Purge { subject: Some("a".to_owned()) },
                wait(100),
                info(),
                publish("a"),
                pull(1, 9, 20_000),
                wait(1_200),
                info(),
            ],
        ),
        case(
            "a deleted consumer tells its requests, and the next one starts anew",
            plan(),
            vec![
                publish("a"),
                pull(1, 2, 20_000),
                Step::DeleteConsumer,
                ack(1, 1, "+ACK"),
                pull(2, 1, 500),
                info(),
                Step::Consumer { action: Action::Create, plan: plan() },
                ack(1, 1, "+ACK"),
                wait(100),
                pull(1, 1, 20_000),
                ack(1, 1, "+ACK"),
                info(),
            ],
        ),
        case(
            "a consumer is created, updated and refused",
            plan(),
            vec![
                Step::Consumer { action: Action::Create, plan: plan() },
                Step::Consumer { action: Action::Create, plan: ConsumerPlan { ack_wait_ms: 9_000, ..plan() } },
                update(ConsumerPlan { max_waiting: 7, ..plan() }),
                update(ConsumerPlan { backoff_ms: vec![100, 200, 300, 400], ..plan() }),
                Step::Consumer { action: Action::Either, plan: ConsumerPlan { max_deliver: Some(8), ..plan() } },
                info(),
                Step::DeleteConsumer,
                update(plan()),
                Step::DeleteConsumer,
                info(),
            ],
        ),
        case(
            "a reset starts the whole consumer again",
            plan(),
            vec![
                publish("a"),
                publish("a"),
                publish("a"),
                pull(1, 3, 20_000),
                ack(1, 1, "+ACK"),
                ack(2, 1, "+ACK"),
                Step::Reset { sequence: 2 },
                info(),
                pull(1, 9, 20_000),
                info(),
                ack(3, 2, "+ACK"),
                info(),
            ],
        ),
    ])
    .await;
}

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
