//! The payloads of acknowledgements and of answers to calls.

use super::{config, json::Object};
use crate::{
    call::ApiKind,
    message::{Answer, ApiError, ConsumerInfo, PubAck, SequencePair, StoredMessage, StreamInfo},
};

/// The name of the server.
const SERVER_NAME: &str = "jetstream-model";

/// `{"stream":"S","seq":1}`. Source: `server/stream.go`, `processJetStreamMsgWithBatch`.
pub(super) fn pub_ack(ack: &PubAck) -> Vec<u8> {
    let mut json = Object::new(64);
    json.text("stream", &ack.stream);
    json.number("seq", ack.sequence);
    let mut text = json.finish();
    if ack.duplicate {
        // This one is written by hand in the server, with a space.
        text.truncate(text.len() - 1);
        text.push_str(",\"duplicate\": true}");
    }
    text.into_bytes()
}

/// The server answers with the error and an acknowledgement of nothing.
pub(super) fn publish_refused(stream: &str, refused: &ApiError) -> Vec<u8> {
    let mut json = Object::new(128);
    json.object("error", error(refused));
    json.text("stream", stream);
    json.number("seq", 0);
    json.finish().into_bytes()
}

fn error(error: &ApiError) -> Object {
    let mut json = Object::new(96);
    json.number("code", error.code);
    if error.err_code > 0 {
        json.number("err_code", error.err_code);
    }
    if !error.description.is_empty() {
        json.text("description", &error.description);
    }
    json
}

fn response_type(call: ApiKind) -> &'static str {
    match call {
        ApiKind::CreateStream => "io.nats.jetstream.api.v1.stream_create_response",
        ApiKind::UpdateStream => "io.nats.jetstream.api.v1.stream_update_response",
        ApiKind::DeleteStream => "io.nats.jetstream.api.v1.stream_delete_response",
        ApiKind::StreamInfo => "io.nats.jetstream.api.v1.stream_info_response",
        ApiKind::Purge => "io.nats.jetstream.api.v1.stream_purge_response",
        ApiKind::GetMessage => "io.nats.jetstream.api.v1.stream_msg_get_response",
        ApiKind::DeleteMessage => "io.nats.jetstream.api.v1.stream_msg_delete_response",
        ApiKind::CreateConsumer => "io.nats.jetstream.api.v1.consumer_create_response",
        ApiKind::DeleteConsumer => "io.nats.jetstream.api.v1.consumer_delete_response",
        ApiKind::ConsumerInfo => "io.nats.jetstream.api.v1.consumer_info_response",
        ApiKind::ResetConsumer => "io.nats.jetstream.api.v1.consumer_reset_response",
        ApiKind::PauseConsumer => "io.nats.jetstream.api.v1.consumer_pause_response",
    }
}

pub(super) fn refused(call: ApiKind, refused: &ApiError) -> Vec<u8> {
    let mut json = Object::new(192);
    json.text("type", response_type(call));
    json.object("error", error(refused));
    match call {
        ApiKind::StreamInfo => paged(&mut json),
        ApiKind::Purge => json.number("purged", 0),
        ApiKind::ResetConsumer => json.number("reset_seq", 0),
        ApiKind::PauseConsumer => {
            json.truth("paused", false);
            json.time_or_never("pause_until", None);
        }
        ApiKind::CreateStream
        | ApiKind::UpdateStream
        | ApiKind::DeleteStream
        | ApiKind::GetMessage
        | ApiKind::DeleteMessage
        | ApiKind::CreateConsumer
        | ApiKind::DeleteConsumer
        | ApiKind::ConsumerInfo => {}
    }
    json.finish().into_bytes()
}

fn paged(json: &mut Object) {
    json.number("total", 0);
    json.number("offset", 0);
    json.number("limit", 0);
}

pub(super) fn answered(call: ApiKind, answer: &Answer) -> Vec<u8> {
    let mut json = Object::new(match answer {
        Answer::Stream(_) | Answer::Created(_) | Answer::Consumer(_) => 1_024,
        Answer::Message(message) => 192 + message.payload.len() * 4 / 3 + message.headers.wire_len() * 4 / 3,
        Answer::Purged(_) | Answer::Deleted | Answer::Paused(_) => 192,
    });
    json.text("type", response_type(call));
    match answer {
        Answer::Stream(info) if call == ApiKind::StreamInfo => {
            paged(&mut json);
            stream(&mut json, info, Asked::ForInfo);
        }
        Answer::Stream(info) => stream(&mut json, info, Asked::Otherwise),
        Answer::Created(info) => {
            stream(&mut json, info, Asked::Otherwise);
            json.truth("did_create", true);
        }
        Answer::Consumer(info) => {
            consumer(&mut json, info);
            if call == ApiKind::ResetConsumer {
                json.number("reset_seq", info.delivered.stream + 1);
            }
        }
        Answer::Message(stored) => json.object("message", message(stored)),
        Answer::Purged(count) => {
            json.truth("success", true);
            json.number("purged", *count);
        }
        Answer::Deleted => json.truth("success", true),
        Answer::Paused(pause) => {
            json.truth("paused", pause.left.is_some());
            json.time_or_never("pause_until", pause.until_nanos);
            if let Some(left) = pause.left {
                json.number("pause_remaining", left.as_nanos());
            }
        }
    }
    json.finish().into_bytes()
}

fn message(stored: &StoredMessage) -> Object {
    let mut json = Object::new(128 + stored.payload.len() * 4 / 3);
    json.text("subject", &stored.subject);
    json.number("seq", stored.sequence);
    if !stored.headers.is_empty() {
        json.bytes("hdrs", &stored.headers.to_bytes());
    }
    if !stored.payload.is_empty() {
        json.bytes("data", &stored.payload);
    }
    json.time("time", stored.stored_at_nanos);
    json
}

fn consumer(json: &mut Object, info: &ConsumerInfo) {
    json.text("stream_name", &info.stream);
    json.text("name", &info.config.name);
    json.time("created", info.created_nanos);
    json.object("config", config::consumer(&info.config));
    json.object("delivered", sequences(info.delivered, info.last_delivered_nanos));
    json.object("ack_floor", sequences(info.ack_floor, info.last_acked_nanos));
    json.number("num_ack_pending", info.num_ack_pending);
    json.number("num_redelivered", info.num_redelivered);
    json.number("num_waiting", info.num_waiting);
    json.number("num_pending", info.num_pending);
    if let Some(left) = info.pause_left {
        json.truth("paused", true);
        json.number("pause_remaining", left.as_nanos());
    }
    json.time("ts", info.now_nanos);
    // The server shows the first group only. Nobody is ever pinned here.
    if let Some(group) = info.config.priority.as_ref().and_then(|priority| priority.groups.first()) {
        let mut state = Object::new(64);
        state.text("group", group);
        state.time_or_never("pinned_ts", None);
        json.list_of("priority_groups", state);
    }
}

fn sequences(pair: SequencePair, last: Option<i64>) -> Object {
    let mut json = Object::new(96);
    json.number("consumer_seq", pair.consumer);
    json.number("stream_seq", pair.stream);
    if let Some(last) = last {
        json.time("last_active", last);
    }
    json
}

/// What a stream was asked; only an answer about it names the leader, which is the server itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    ForInfo,
    Otherwise,
}

fn stream(json: &mut Object, info: &StreamInfo, asked: Asked) {
    json.object("config", config::stream(&info.config));
    json.time("created", info.created_nanos);
    let mut state = Object::new(256);
    state.number("messages", info.messages);
    state.number("bytes", info.bytes);
    state.number("first_seq", info.first_seq);
    state.time_or_never("first_ts", info.first_nanos);
    state.number("last_seq", info.last_seq);
    state.time_or_never("last_ts", info.last_nanos);
    if info.num_subjects > 0 {
        state.number("num_subjects", info.num_subjects);
    }
    if info.num_deleted > 0 {
        state.number("num_deleted", info.num_deleted);
    }
    state.number("consumer_count", info.consumers);
    json.object("state", state);
    if asked == Asked::ForInfo {
        let mut cluster = Object::new(40);
        cluster.text("leader", SERVER_NAME);
        json.object("cluster", cluster);
    }
    json.time("ts", info.now_nanos);
}
