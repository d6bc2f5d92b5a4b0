//! The management API.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    call::ApiCall,
    config::{ConsumerConfig, DeliverPolicy, Discard, StreamConfig},
    message::{Answer, ApiError, Context, Pause},
    stream::Stream,
    subject,
};

type Streams = BTreeMap<Arc<str>, Stream>;

/// Answers a call.
pub(super) fn answer(streams: &mut Streams, call: ApiCall, ctx: &mut Context<'_>) -> Result<Answer, ApiError> {
    match call {
        ApiCall::CreateStream(config) => create_stream(streams, config, ctx),
        ApiCall::UpdateStream(config) => update_stream(streams, config, ctx),
        ApiCall::DeleteStream(name) => {
            streams.remove(&name).ok_or_else(ApiError::stream_not_found)?.deleted(ctx);
            Ok(Answer::Deleted)
        }
        ApiCall::StreamInfo(name) => Ok(Answer::Stream(Box::new(find(streams, &name)?.info(ctx.now)))),
        ApiCall::Purge { stream, scope } => find(streams, &stream)?.purge(&scope, ctx),
        ApiCall::GetMessage { stream, which } => find(streams, &stream)?.message(&which),
        ApiCall::DeleteMessage { stream, sequence } => find(streams, &stream)?.delete_message(sequence, ctx),
        ApiCall::CreateConsumer { stream, config, action } => {
            find(streams, &stream)?.create_consumer(config, action, ctx)
        }
        ApiCall::DeleteConsumer { stream, consumer } => find(streams, &stream)?.delete_consumer(&consumer, ctx),
        ApiCall::ConsumerInfo { stream, consumer } => {
            let (consumer, log) =
                find(streams, &stream)?.consumer(&consumer).ok_or_else(ApiError::consumer_not_found)?;
            Ok(Answer::Consumer(Box::new(consumer.info(log, ctx))))
        }
        ApiCall::ResetConsumer { stream, consumer, sequence } => {
            let (consumer, log) =
                find(streams, &stream)?.consumer(&consumer).ok_or_else(ApiError::consumer_not_found)?;
            if let Some(refused) = refused_reset(consumer.config.deliver, sequence) {
                return Err(ApiError::new(400, 10_204, format!("invalid reset: {refused}")));
            }
            consumer.reset(sequence, log, ctx);
            Ok(Answer::Consumer(Box::new(consumer.info(log, ctx))))
        }
        ApiCall::PauseConsumer { stream, consumer, until_nanos } => {
            let (consumer, log) =
                find(streams, &stream)?.consumer(&consumer).ok_or_else(ApiError::consumer_not_found)?;
            let config = ConsumerConfig { pause_until_nanos: until_nanos, ..consumer.config.clone() };
            consumer.update(config, log, ctx);
            Ok(Answer::Paused(Pause { until_nanos, left: consumer.pause_left(ctx.now) }))
        }
        ApiCall::Unreadable { error, .. } => Err(error),
    }
}

fn find<'s>(streams: &'s mut Streams, name: &str) -> Result<&'s mut Stream, ApiError> {
    streams.get_mut(name).ok_or_else(ApiError::stream_not_found)
}

fn create_stream(streams: &mut Streams, config: StreamConfig, ctx: &Context<'_>) -> Result<Answer, ApiError> {
    let config = config.checked()?;
    if let Some(existing) = streams.get(&config.name) {
        if existing.config != config {
            return Err(ApiError::new(400, 10_058, "stream name already in use with a different configuration"));
        }
        return Ok(Answer::Stream(Box::new(existing.info(ctx.now))));
    }
    refuse_overlap(streams, &config)?;
    if config.sealed {
        return Err(ApiError::invalid_stream("stream configuration for create can not be sealed"));
    }
    refuse_reservation(streams, &config, ctx)?;
    let stream = Stream::new(config, ctx.now);
    let info = stream.info(ctx.now);
    streams.insert(info.config.name.clone(), stream);
    Ok(Answer::Created(Box::new(info)))
}

fn update_stream(streams: &mut Streams, config: StreamConfig, ctx: &mut Context<'_>) -> Result<Answer, ApiError> {
    let mut config = config.checked()?;
    let old = &find(streams, &config.name)?.config;
    if old.sealed && !config.sealed {
        return Err(ApiError::invalid_stream("stream configuration update can not unseal a sealed stream"));
    }
    let reserves_more = config.max_bytes.unwrap_or(0) > old.max_bytes.unwrap_or(0);
    if config.sealed {
        (config.max_age, config.discard) = (None, Discard::New);
    }
    refuse_overlap(streams, &config)?;
    if reserves_more {
        refuse_reservation(streams, &config, ctx)?;
    }
    let stream = find(streams, &config.name.clone())?;
    stream.update(config, ctx);
    Ok(Answer::Stream(Box::new(stream.info(ctx.now))))
}

fn refuse_overlap(streams: &Streams, config: &StreamConfig) -> Result<(), ApiError> {
    let others = streams.values().filter(|stream| stream.config.name != config.name);
    let taken = others.flat_map(|stream| &stream.config.subjects);
    let clash = taken.into_iter().any(|taken| config.subjects.iter().any(|wanted| subject::overlap(taken, wanted)));
    if clash { Err(ApiError::new(400, 10_065, "subjects overlap with an existing stream")) } else { Ok(()) }
}

/// A stream with a limit of bytes reserves them. Source: `server/jetstream.go`, `checkBytesLimits`.
fn refuse_reservation(streams: &Streams, config: &StreamConfig, ctx: &Context<'_>) -> Result<(), ApiError> {
    let others = streams.values().filter(|stream| stream.config.name != config.name);
    let reserved: u64 = others.filter_map(|stream| stream.config.max_bytes).sum();
    let needed = reserved + config.max_bytes.unwrap_or(1);
    let room = [ctx.room.server_bytes, ctx.room.account_bytes];
    if room.into_iter().flatten().any(|most| needed > most) {
        return Err(ApiError::new(500, 10_047, "insufficient storage resources available"));
    }
    Ok(())
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
