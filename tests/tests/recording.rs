//! Every trace of `fixtures/traces` can be recorded again, on real servers.

use futures::{StreamExt, TryStreamExt, stream};
use transcript_core::Processor;
use transcript_tests::{crash::CrashError, recording::Scenario};
use transcript_trace::{Reader, replay::replay};

/// Recorded at the same time.
const AT_ONCE: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_shows_what_it_is_there_for_and_replays() -> Result<(), CrashError> {
    let records = stream::iter(Scenario::ALL).map(async |scenario| {
        // That it shows what it is there for is checked where it is recorded.
        let text = scenario.record().await?.text()?;
        let replayed = replay(Reader::new(text.as_bytes()), |header| Processor::new(header.settings.clone()));
        replayed.map_err(|problem| -> CrashError { format!("{scenario}: {problem}\n{text}").into() })?;
        Ok::<_, CrashError>(())
    });
    records.buffer_unordered(AT_ONCE).try_collect().await
}
