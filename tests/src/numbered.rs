//! Many small calls that are told apart by a number.

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;
use transcript_core::ids::Session;

use crate::{
    processor::Processor,
    wait::{NotReached, wait_until},
    world::TestWorld,
};

/// The session of this number.
///
/// # Panics
///
/// Never: its ids are valid.
#[must_use]
pub fn session(number: usize) -> Session {
    Session::new("conversation", &format!("call-{number}")).expect("ids are valid")
}

/// The payload of its end, which announces no segments.
#[must_use]
pub fn end(number: usize) -> Vec<u8> {
    end_of_size(number, 0)
}

/// The same with so many more bytes, which no processor reads.
#[must_use]
pub fn end_of_size(number: usize, bytes: usize) -> Vec<u8> {
    let Session { conversation_id, session_id } = session(number);
    let more = "x".repeat(bytes);
    json!({ "conversationId": conversation_id, "sessionId": session_id, "publishedSegments": 0, "more": more })
        .to_string()
        .into()
}

/// Waits until every end is handed over and acknowledged.
///
/// # Errors
///
/// One is left after that time: the error has the processor's log.
pub async fn acknowledged(world: &TestWorld, processor: &Processor, within: Duration) -> Result<(), NotReached> {
    wait_until("every end is acknowledged", within, || async {
        let consumer = world.consumer().await.map_err(|error| error.to_string())?;
        let left = (consumer.num_pending, consumer.num_ack_pending);
        if left == (0, 0) { Ok(()) } else { Err(format!("{left:?} are left: {}", processor.logs())) }
    })
    .await
}

/// Waits until the calls below this number are announced.
///
/// # Errors
///
/// One is missing after that time: the error has the processor's log.
///
/// # Panics
///
/// One was announced twice, or another call.
pub async fn announced(
    world: &TestWorld,
    processor: &Processor,
    calls: usize,
    within: Duration,
) -> Result<(), NotReached> {
    let expected: BTreeSet<Session> = (0..calls).map(session).collect();
    let all = wait_until(format!("{calls} calls are announced"), within, || async {
        let all = world.notifications().await.map_err(|error| error.to_string())?;
        let sessions: BTreeSet<Session> = all.iter().map(|it| it.notification.session.clone()).collect();
        let missing = expected.difference(&sessions).count();
        if missing == 0 { Ok(all) } else { Err(format!("{missing} are missing: {}", processor.logs())) }
    })
    .await?;
    assert_eq!(all.len(), calls, "each call is announced once");
    Ok(())
}
