//! Many large calls at once.

use std::time::Duration;

use transcript_core::Settings;
use transcript_tests::{calls::Call, load::Usage, processor::Processor, wait::wait_until, world::TestWorld};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(180);

/// Waits until so many calls are announced and acknowledged, each after one delivery, and gives the most memory that this took,
/// in KiB.
async fn all_are_done(
    world: &TestWorld,
    processor: &Processor,
    calls: usize,
) -> Result<u64, Box<dyn std::error::Error>> {
    wait_until("all are announced and acknowledged", LONG, || async {
        let consumer = world.consumer().await.map_err(|error| error.to_string())?;
        let announced = world.notifications().await.map_err(|error| error.to_string())?.len();
        let state = (announced, consumer.num_pending, consumer.num_ack_pending);
        if state == (calls, 0, 0) { Ok(()) } else { Err(format!("{state:?}")) }
    })
    .await?;
    let delivered = world.consumer().await?.delivered.consumer_sequence;
    assert_eq!(delivered, u64::try_from(calls)?, "each was delivered once");
    Ok(Usage::of(processor.pid())?.peak >> 10)
}

/// 80 calls of 3.6 MB: 300 MB of text, of which only a part may be in memory at a time.
#[tokio::test(flavor = "multi_thread")]
async fn many_large_calls_at_once_fit_into_256_mib() -> Outcome {
    let world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    for number in 0..80 {
        let mut call = Call::of("conversation", &format!("large {number}"), 900)?;
        for segment in &mut call.segments {
            segment.text = "so much was said, and was it true? ".repeat(115);
        }
        world.insert_segments(&call.segments).await?;
        world.publish_session_end(&call.session, 900).await?;
    }
    let processor = world.processor("run").arguments(["--quiet-period=0s", "--ack-wait=30s"]).start().await?;
    let kib = all_are_done(&world, &processor, 80).await?;
    assert!(kib < 256 * 1024, "{kib} KiB at the peak");
    processor.terminate().await?;
    Ok(())
}

/// As many bytes in segments of 1 MiB: fewer than a page may have, and each of them more than is reserved for a segment. They
/// are blank, so that it is what is read at a time that counts, and not what a summary keeps of it.
#[tokio::test(flavor = "multi_thread")]
async fn many_calls_of_large_segments_at_once_take_no_more_than_is_documented() -> Outcome {
    const CALLS: usize = 60;
    let world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    for number in 0..CALLS {
        let mut call = Call::of("conversation", &format!("large {number}"), 4)?;
        call.segments.iter_mut().for_each(|segment| segment.text = " ".repeat(1 << 20));
        world.insert_segments(&call.segments).await?;
        world.publish_session_end(&call.session, 4).await?;
    }
    let processor = world.processor("run").arguments(["--quiet-period=0s", "--ack-wait=30s"]).start().await?;
    let peak = all_are_done(&world, &processor, CALLS).await?;
    // The formula of `Settings::max_bytes_in_flight`.
    let most = (160 << 10) + 2 * (Settings::default().max_bytes_in_flight >> 10) + 2 * u64::try_from(CALLS)?;
    assert!(peak <= most, "{peak} KiB at the peak, {most} are documented");
    processor.terminate().await?;
    Ok(())
}
