//! A transcriber plays its call: it saves segments and publishes the end, as often as it takes.

use std::{rc::Rc, sync::Arc, time::Duration};

use jetstream_model::{Headers, Input, Request};
use transcript_core::{
    contract::{SESSION_ENDED_SUBJECT, TRANSCRIPTION_STREAM, reprocess_id},
    summary::Segment,
};

use super::{World, faults::Point, nats};
use crate::{
    observation::Observation,
    plan::{Call, EndPayload, Moment, SegmentSaved, SegmentWrites, Server, at_ms},
    store::{Command, Durability, Existing, Fate},
};

/// How long it waits before it tries a server again.
const TRIES_AGAIN_AFTER: Duration = Duration::from_millis(500);

enum Act {
    Save(usize),
    End(usize),
}

/// Plays one call to its end.
pub(super) async fn play(world: Rc<World>, number: usize) {
    let plan = Rc::clone(&world.plan);
    let call = plan.calls.get(number).expect("the plan's call");
    let saves = call.segments.iter().enumerate().map(|(place, segment)| (segment.at_ms, Act::Save(place)));
    let ends = call.ends.iter().enumerate().map(|(place, end)| (end.at_ms, Act::End(place)));
    let mut acts: Vec<(u64, Act)> = saves.chain(ends).collect();
    acts.sort_by_key(|(at, _)| *at);
    let session: Arc<str> = call.session.as_str().into();
    for (at, act) in acts {
        world.clock.sleep_until(at_ms(at)).await;
        match act {
            Act::Save(place) => save(&world, &session, call.segments.get(place).expect("the plan's segment")).await,
            Act::End(place) => end(&world, call, number, place).await,
        }
    }
    world.transcribers.set(world.transcribers.get() - 1);
    world.last_mended.set(world.last_mended.get().max(world.clock.now()));
}

async fn save(world: &Rc<World>, session: &Arc<str>, saved: &SegmentSaved) {
    let start_ms = saved.session_start_ms.or(Some(saved.index * 1_000));
    let segment = Arc::new(Segment {
        id: format!("{session}:{}", saved.index),
        index: Some(saved.index),
        speaker: saved.speaker.clone(),
        text: saved.text.clone(),
        start_ms,
        end_ms: start_ms.map(|start| start + 900),
        on_session_clock: saved.session_start_ms.is_some(),
        edits: saved.edits,
    });
    let durability = match world.plan.options.segment_writes {
        SegmentWrites::Journaled => Durability::Journal,
        SegmentWrites::Unjournaled => Durability::Memory,
    };
    loop {
        let command = Command::WriteSegments {
            session_id: Arc::clone(session),
            segments: vec![Arc::clone(&segment)],
            existing: Existing::Replaced,
            durability,
        };
        let answer = world.mongo.model.borrow_mut().perform(world.clock.now(), command, Fate::Done);
        if answer.is_ok() {
            return world.saw(&Observation::SegmentStored { session, segment: &segment });
        }
        world.clock.sleep(TRIES_AGAIN_AFTER).await;
    }
}

async fn end(world: &Rc<World>, call: &Call, number: usize, place: usize) {
    let server = Server::Broker;
    world.pass(Point::Arrival { server, moment: Moment::Before });
    broker_is_up(world).await;
    let sequence = world.nats.model.borrow().last_sequence(TRANSCRIPTION_STREAM) + 1;
    world.saw(&Observation::EndStored { call: number, end: place, sequence });
    let headers = match call.ends.get(place).map(|end| &end.payload) {
        Some(EndPayload::Claims(_)) => Headers::id(call.ids().key().to_string()),
        Some(EndPayload::AsksAgain { request, .. }) => Headers::id(reprocess_id(&call.ids().key(), *request)),
        Some(EndPayload::Announces(_) | EndPayload::Malformed(_)) | None => Headers::default(),
    };
    publish_end(world, call, place, headers);
    world.pass(Point::Arrival { server, moment: Moment::After });
}

/// Waits until the broker takes connections.
pub(super) async fn broker_is_up(world: &Rc<World>) {
    while !world.nats.model.borrow().is_up() {
        world.clock.sleep(TRIES_AGAIN_AFTER).await;
    }
}

/// Publishes one of the ends of a call.
pub(super) fn publish_end(world: &World, call: &Call, place: usize, headers: Headers) {
    let payload: Arc<[u8]> = match &call.ends.get(place).expect("the plan's end").payload {
        EndPayload::Announces(count) | EndPayload::Claims(count) => serde_json::json!({
            "conversationId": call.conversation,
            "sessionId": call.session,
            "publishedSegments": count,
        })
        .to_string()
        .into_bytes()
        .into(),
        EndPayload::AsksAgain { announces, request } => serde_json::json!({
            "conversationId": call.conversation,
            "sessionId": call.session,
            "publishedSegments": announces,
            "reprocess": request,
        })
        .to_string()
        .into_bytes()
        .into(),
        EndPayload::Malformed(bytes) => bytes.as_bytes().into(),
    };
    let request = Request::Publish { reply: None, subject: SESSION_ENDED_SUBJECT.into(), headers, payload };
    nats::handle(world, Input::Request(request), None, false);
}
