//! What finds work elsewhere than at the broker: the watch over stored summaries.

use std::{rc::Rc, sync::Arc, time::Duration};

use transcript_core::{Input, StaleSummary, TranscriptVersion, WallTime};

use super::shell::{Event, Shared};
use crate::{
    bug::Bug,
    store::{Answer, Command},
};

/// How often summaries are looked at.
const LOOKS_EVERY: Duration = Duration::from_secs(10);
/// How long after its last change a summary is looked at, in milliseconds.
const REACH_MS: i64 = 3_600_000;

/// Tells again and again of every announced summary that its session has made stale, or that was replaced and nobody knows.
/// To find them takes no time here; to count their segments and changes is a command as any other.
pub(super) async fn watch(shared: Rc<Shared>) {
    while !shared.drains() {
        look(&shared).await;
        shared.world.clock.sleep(LOOKS_EVERY).await;
    }
}

async fn look(shared: &Rc<Shared>) {
    let now = shared.calendar();
    let watched = shared.world.mongo.watched(WallTime::from_millis(now.as_millis() - REACH_MS));
    if watched.is_empty() {
        return;
    }
    let sessions = watched.iter().map(|document| Arc::clone(&document.summary.session.session_id)).collect();
    let Ok(Answer::Versions(versions)) = shared.run(Command::Count { sessions }, None).await else { return };
    for (document, version) in watched.iter().zip(versions) {
        let stored = document.stored();
        let edits = if shared.world.has_bug(Bug::EditNotNoticed) { 0 } else { version.edits };
        let version = TranscriptVersion { edits, ..version };
        if !shared.drains() && (stored.is_stale_with(version) || stored.unannounced_revision().is_some()) {
            shared.events.push(Event::Core(Input::Stale(StaleSummary {
                session: document.summary.session.clone(),
                published_segments: document.summary.published_segments,
                received_at: now,
            })));
        }
    }
}
