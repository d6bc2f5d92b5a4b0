//! The management API.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    config::{DeliverPolicy, StreamConfig},
    message::{Answer, ApiCall, ApiError, Context},
    stream::Stream,
    subject,
};

type Streams = BTreeMap<Arc<str>, Stream>;

/// Answers a call.
pub(super) fn answer(streams: &mut Streams, call: ApiCall, ctx: &mut Context<'_>) -> Result<Answer, ApiError> {
    match call {
        ApiCall::CreateStream(config) => create_stream(streams, config),
        ApiCall::UpdateStream(config) => update_stream(streams, config, ctx),
        ApiCall::DeleteStream(name) => {
            streams.remove(&name).ok_or_else(ApiError::stream_not_found)?.deleted(ctx);
            Ok(Answer::Deleted)
        }
        ApiCall::StreamInfo(name) => Ok(Answer::Stream(find(streams, &name)?.info())),
        ApiCall::Purge { stream, scope } => Ok(find(streams, &stream)?.purge(&scope, ctx)),
        ApiCall::GetMessage { stream, which } => find(streams, &stream)?.message(&which),
        ApiCall::DeleteMessage { stream, sequence } => find(streams, &stream)?.delete_message(sequence, ctx),
        ApiCall::CreateConsumer { stream, config, action } => {
            find(streams, &stream)?.create_consumer(config, action, ctx)
        }
        ApiCall::DeleteConsumer { stream, consumer } => find(streams, &stream)?.delete_consumer(&consumer, ctx),
        ApiCall::ConsumerInfo { stream, consumer } => {
            let (consumer, log) =
                find(streams, &stream)?.consumer(&consumer).ok_or_else(ApiError::consumer_not_found)?;
            Ok(Answer::Consumer(consumer.info(log, ctx)))
        }
        ApiCall::ResetConsumer { stream, consumer, sequence } => {
            let (consumer, log) =
                find(streams, &stream)?.consumer(&consumer).ok_or_else(ApiError::consumer_not_found)?;
            if let Some(refused) = refused_reset(consumer.config.deliver, sequence) {
                return Err(ApiError::new(400, 10_204, format!("invalid reset: {refused}")));
            }
            consumer.reset(sequence, log, ctx);
            Ok(Answer::Consumer(consumer.info(log, ctx)))
        }
        ApiCall::Unreadable { error, .. } => Err(error),
    }
}

fn find<'s>(streams: &'s mut Streams, name: &str) -> Result<&'s mut Stream, ApiError> {
    streams.get_mut(name).ok_or_else(ApiError::stream_not_found)
}

fn create_stream(streams: &mut Streams, config: StreamConfig) -> Result<Answer, ApiError> {
    let config = config.checked()?;
    if let Some(existing) = streams.get(&config.name) {
        if existing.config != config {
            return Err(ApiError::new(400, 10_058, "stream name already in use with a different configuration"));
        }
        return Ok(Answer::Stream(existing.info()));
    }
    refuse_overlap(streams, &config)?;
    let stream = Stream::new(config);
    let info = stream.info();
    streams.insert(info.config.name.clone(), stream);
    Ok(Answer::Stream(info))
}

fn update_stream(streams: &mut Streams, config: StreamConfig, ctx: &mut Context<'_>) -> Result<Answer, ApiError> {
    let config = config.checked()?;
    find(streams, &config.name)?;
    refuse_overlap(streams, &config)?;
    let stream = find(streams, &config.name.clone())?;
    stream.update(config, ctx);
    Ok(Answer::Stream(stream.info()))
}

fn refuse_overlap(streams: &Streams, config: &StreamConfig) -> Result<(), ApiError> {
    let others = streams.values().filter(|stream| stream.config.name != config.name);
    let taken = others.flat_map(|stream| &stream.config.subjects);
    let clash = taken.into_iter().any(|taken| config.subjects.iter().any(|wanted| subject::overlap(taken, wanted)));
    if clash { Err(ApiError::new(400, 10_065, "subjects overlap with an existing stream")) } else { Ok(()) }
}

/// Where a reset may not go, as `resetStartingSeqLocked` of the server has it: anywhere for a consumer of everything, not
/// before its start for one that starts at a sequence, and nowhere but to the ack floor for others.
fn refused_reset(deliver: DeliverPolicy, sequence: Option<u64>) -> Option<&'static str> {
    match (deliver, sequence?) {
        (DeliverPolicy::All, _) => None,
        (DeliverPolicy::FromSequence(start), wanted) => (wanted < start).then_some("below start seq"),
        (DeliverPolicy::New | DeliverPolicy::Last, _) => Some("not allowed"),
    }
}
