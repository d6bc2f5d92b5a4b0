//! What the operator does by hand, whatever state the world is in.

use std::{rc::Rc, sync::Arc, time::Duration};

use jetstream_model::{ApiCall, Headers, Input, PurgeScope, Request};
use transcript_core::contract::{CONSUMER, REDRIVE_OF_HEADER, SESSION_ENDED_SUBJECT, TRANSCRIPTION_STREAM, redrive_id};

use super::{
    World, nats, operator,
    transcriber::{broker_is_up, publish_end},
};
use crate::{
    ledger::Origin,
    observation::Observation,
    plan::{Chore, Task, at_ms},
};

/// How long deliveries can come to nothing because a chore went on beside them.
const AFTERMATH: Duration = Duration::from_secs(6);

/// Waits for its time, and for the broker, and then does it.
pub(super) async fn wait_and_do(world: Rc<World>, chore: Chore) {
    world.clock.sleep_until(at_ms(chore.at_ms)).await;
    broker_is_up(&world).await;
    match chore.what {
        Task::Redrive => redrive(&world),
        Task::ResetConsumer => reset(&world),
        Task::PurgeAndRestart => purge_and_restart(&world),
        Task::PublishAgain => publish_again(&world),
    }
    world.chores_left.set(world.chores_left.get() - 1);
    world.last_mended.set(world.last_mended.get().max(world.clock.now()));
}

/// Every dead letter in the stream becomes an end again, once for as long as its id is remembered.
fn redrive(world: &World) {
    world.saw(&Observation::Chore(Task::Redrive));
    let dead_letters: Vec<(u64, Arc<[u8]>)> = {
        let watch = world.watch.borrow();
        let kept = watch.ledger.dead_letters.iter().filter(|dead_letter| !dead_letter.purged);
        kept.map(|dead_letter| (dead_letter.sequence, Arc::clone(&dead_letter.payload))).collect()
    };
    for (sequence, payload) in dead_letters {
        let headers = Headers::id(redrive_id(sequence)).with(REDRIVE_OF_HEADER, sequence.to_string());
        let request = Request::Publish { reply: None, subject: SESSION_ENDED_SUBJECT.into(), headers, payload };
        nats::handle(world, Input::Request(request), None, false);
    }
}

/// What is under way goes on beside what is delivered anew, and its belated words are taken for the new deliveries.
fn reset(world: &World) {
    operator::disturb(world, None, AFTERMATH);
    world.saw(&Observation::Chore(Task::ResetConsumer));
    let (stream, consumer) = (TRANSCRIPTION_STREAM.into(), CONSUMER.into());
    world.call(ApiCall::ResetConsumer { stream, consumer, sequence: Some(1) });
}

fn purge_and_restart(world: &World) {
    operator::disturb(world, None, AFTERMATH);
    world.saw(&Observation::Chore(Task::PurgeAndRestart));
    world.call(ApiCall::Purge { stream: TRANSCRIPTION_STREAM.into(), scope: PurgeScope::All });
    nats::handle(world, Input::Terminate, None, false);
    nats::handle(world, Input::Start, None, false);
}

fn publish_again(world: &World) {
    world.saw(&Observation::Chore(Task::PublishAgain));
    let published: Vec<(usize, usize)> = {
        let watch = world.watch.borrow();
        let ends = watch.ledger.ends.values().filter_map(|end| match end.origin {
            Origin::Transcriber { call, end } => Some((call, end)),
            Origin::Copy | Origin::Message => None,
        });
        ends.collect()
    };
    for (number, end) in published {
        let Some(call) = world.plan.calls.get(number) else { continue };
        let sequence = world.nats.model.borrow().last_sequence(TRANSCRIPTION_STREAM) + 1;
        world.saw(&Observation::EndRestored { call: number, end, sequence });
        publish_end(world, call, end, Headers::default());
    }
}
