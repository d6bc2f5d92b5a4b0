//! A burst that several processors share.

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt, TryStreamExt, stream};
use transcript_tests::{calls::Call, processor::Processor, wait::wait_until, world::TestWorld};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// Calls that end at once.
const CALLS: usize = 1000;
/// Calls that one processor has in hand at most: it takes some turns for all.
const ROOM: usize = 50;

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_that_is_added_in_the_middle_of_a_burst_takes_its_part() -> Outcome {
    let world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    let calls: Vec<Call> =
        (0..CALLS).map(|n| Call::of("conversation", &format!("call {n}"), 2)).collect::<Result<_, _>>()?;
    let app = world.app();
    let ended = stream::iter(&calls).map(|call| {
        let app = app.clone();
        async move {
            app.insert_segments(&call.segments).await?;
            app.publish_session_end(&call.session, 2).await
        }
    });
    ended.buffered(64).try_collect::<Vec<_>>().await?;
    let room = format!("--max-in-flight={ROOM}");
    // Each turn takes at least a quiet period.
    let command = world.processor("run").arguments(["--quiet-period=400ms", "--ack-wait=6s", &room]);
    let first = command.start().await?;
    wait_until("the first is in the middle of the burst", LONG, || async {
        let done = done(&first).len();
        if done >= CALLS / 5 { Ok(()) } else { Err(format!("{done} are done")) }
    })
    .await?;
    let second = command.start().await?;
    wait_until("the second is there", LONG, || async {
        if second.logs().contains(": ready ") { Ok(()) } else { Err(second.logs()) }
    })
    .await?;
    let alone = done(&first).len();
    wait_until("all are acknowledged", LONG, || async {
        let consumer = world.consumer().await.map_err(|error| error.to_string())?;
        let open = (consumer.num_pending, consumer.num_ack_pending);
        if open == (0, 0) { Ok(()) } else { Err(format!("{open:?}")) }
    })
    .await?;
    first.terminate().await?;
    second.terminate().await?;
    let (of_first, of_second) = (done(&first), done(&second));
    assert!(of_first.is_disjoint(&of_second), "{:?}", of_first.intersection(&of_second));
    assert_eq!(of_first.len() + of_second.len(), CALLS, "each was done by one of them");
    assert_eq!(world.consumer().await?.delivered.consumer_sequence, CALLS as u64, "and delivered once");
    assert_eq!(world.notifications().await?.len(), CALLS);
    // What was left when it was started, less a turn that it was late by, is halved between them.
    let left = CALLS - alone;
    assert!(
        of_second.len() >= left / 4,
        "of {left} calls that were left, the one that was added did {}",
        of_second.len()
    );
    Ok(())
}

/// The calls that this processor has acknowledged, as its log tells them.
fn done(processor: &Processor) -> BTreeSet<String> {
    let logs = processor.logs();
    let lines = logs.lines().filter(|line| line.contains("driver: done "));
    lines.filter_map(|line| Some(line.split_once("key=")?.1.to_owned())).collect()
}
