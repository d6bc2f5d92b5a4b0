//! A stream: its messages, the ids it remembers, its consumers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    Tuning,
    advisory::AdvisoryKind,
    call::{ConsumerAction, PurgeScope, Which},
    config::{ConsumerConfig, Discard, StreamConfig},
    consumer::{Consumer, Share},
    duplicates::Duplicates,
    headers::Headers,
    log::{Entry, Log, size_of},
    message::{Answer, ApiError, Context, PubAck, StoredMessage, StreamInfo},
    stamp::Stamp,
    subject,
};

/// Old messages are looked for at most this often.
const SHORTEST_AGE_CHECK: Duration = Duration::from_millis(250);

/// One stream and what hangs on it.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    pub(super) config: StreamConfig,
    log: Log,
    duplicates: Duplicates,
    consumers: BTreeMap<Arc<str>, Consumer>,
    age_due: Option<Stamp>,
    /// A kill found the last message deleted: the next start finds no ids.
    ids_lost: bool,
    /// The id of the last message stored.
    last_id: Option<Arc<str>>,
    /// When the last message was stored, also if it is gone.
    last_stored: Option<Stamp>,
    created: Stamp,
}

impl Stream {
    pub(super) fn new(config: StreamConfig, now: Stamp) -> Self {
        Self {
            config,
            log: Log::default(),
            duplicates: Duplicates::default(),
            consumers: BTreeMap::new(),
            age_due: None,
            ids_lost: false,
            last_id: None,
            last_stored: None,
            created: now,
        }
    }

    /// When a timer of this stream or of its consumers fires next.
    pub(super) fn due(&self) -> Option<Stamp> {
        let consumers = self.consumers.values().filter_map(Consumer::due);
        consumers.chain(self.duplicates.due()).chain(self.age_due).min()
    }

    /// Fires what is due.
    pub(super) fn fire(&mut self, tuning: &Tuning, ctx: &mut Context<'_>) {
        if self.duplicates.due().is_some_and(|due| due <= ctx.now) {
            self.duplicates.purge(ctx.now, self.config.duplicate_window, tuning.purge_lag);
        }
        if self.age_due.is_some_and(|due| due <= ctx.now) {
            self.expire(tuning, ctx);
        }
        for consumer in self.consumers.values_mut() {
            consumer.fire(&self.log, ctx);
        }
    }

    /// Stores a message, unless its id is remembered or what it expects is not so: expectations are checked first.
    pub(super) fn publish(
        &mut self,
        subject: &Arc<str>,
        headers: Headers,
        payload: Arc<[u8]>,
        ctx: &mut Context<'_>,
    ) -> Result<PubAck, ApiError> {
        if self.config.sealed {
            return Err(ApiError::sealed());
        }
        self.refuse_if_large(&headers, &payload)?;
        self.check_expectations(subject, &headers)?;
        let stream = self.config.name.clone();
        let id = headers.message_id();
        if let Some(sequence) = id.as_ref().and_then(|id| self.duplicates.sequence_of(id)) {
            return Ok(PubAck { stream, sequence, duplicate: true });
        }
        self.check_last_id(&headers)?;
        let sequence = self.log.last() + 1;
        let message =
            StoredMessage { subject: subject.clone(), sequence, headers, payload, stored_at_nanos: ctx.now.nanos() };
        refuse_without_room(&message, ctx)?;
        self.refuse_if_full(&message)?;
        self.last_id.clone_from(&id);
        if let Some(id) = id {
            let window = self.config.duplicate_window;
            self.duplicates.remember(id, sequence, ctx.now, ctx.now, window);
        }
        self.last_stored = Some(ctx.now);
        self.log.push(Entry { message: Arc::new(message), at: ctx.now });
        if let Some(age) = self.config.max_age {
            self.age_due.get_or_insert_with(|| ctx.now.after(age));
        }
        for consumer in self.consumers.values_mut().filter(|consumer| consumer.hears(subject)) {
            consumer.stored();
        }
        self.evict(ctx);
        for consumer in self.consumers.values_mut().filter(|consumer| consumer.hears(subject)) {
            consumer.pump(&self.log, ctx);
        }
        Ok(PubAck { stream, sequence, duplicate: false })
    }

    fn check_expectations(&self, subject: &str, headers: &Headers) -> Result<(), ApiError> {
        if headers.is_empty() {
            return Ok(());
        }
        let expected_stream = headers.get("Nats-Expected-Stream").filter(|expected| !expected.is_empty());
        if expected_stream.is_some_and(|expected| *expected != *self.config.name) {
            return Err(ApiError::new(400, 10_060, "expected stream does not match"));
        }
        if let Some(expected) = headers.number("Nats-Expected-Last-Subject-Sequence") {
            let other =
                headers.get("Nats-Expected-Last-Subject-Sequence-Subject").filter(|subject| !subject.is_empty());
            let last = self.log.last_of(other.as_deref().unwrap_or(subject));
            if last != expected {
                return Err(ApiError::wrong_last_sequence(last));
            }
        }
        match headers.number("Nats-Expected-Last-Sequence") {
            Some(expected) if expected != self.log.last() => Err(ApiError::wrong_last_sequence(self.log.last())),
            Some(_) | None => Ok(()),
        }
    }

    /// The id of the last message stored is looked at after the duplicates.
    fn check_last_id(&self, headers: &Headers) -> Result<(), ApiError> {
        let last = self.last_id.as_deref().unwrap_or_default();
        match headers.get("Nats-Expected-Last-Msg-Id").filter(|expected| !expected.is_empty()) {
            Some(expected) if *expected != *last => {
                Err(ApiError::new(400, 10_070, format!("wrong last msg ID: {last}")))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Before ids and expectations are looked at: seen on 2.15.1.
    fn refuse_if_large(&self, headers: &Headers, payload: &[u8]) -> Result<(), ApiError> {
        let headers = headers.wire_len();
        let bytes = (headers + payload.len()) as u64;
        if self.config.max_msg_size.is_some_and(|most| bytes > most) {
            return Err(ApiError::new(400, 10_054, "message size exceeds maximum allowed"));
        }
        if headers > usize::from(u16::MAX) {
            return Err(ApiError::new(400, 10_097, "header size exceeds maximum allowed of 64k"));
        }
        Ok(())
    }

    fn refuse_if_full(&self, message: &StoredMessage) -> Result<(), ApiError> {
        if self.config.discard == Discard::Old {
            return Ok(());
        }
        if self.config.max_msgs.is_some_and(|most| self.log.messages() >= most) {
            return Err(ApiError::new(503, 10_077, "maximum messages exceeded"));
        }
        let bytes = self.log.bytes() + size_of(message);
        if self.config.max_bytes.is_some_and(|most| bytes > most) {
            return Err(ApiError::new(503, 10_077, "maximum bytes exceeded"));
        }
        Ok(())
    }

    fn evict(&mut self, ctx: &mut Context<'_>) {
        while self.config.max_msgs.is_some_and(|most| self.log.messages() > most)
            || self.config.max_bytes.is_some_and(|most| self.log.bytes() > most && self.log.messages() > 0)
        {
            self.remove(self.log.first(), ctx);
        }
    }

    fn expire(&mut self, tuning: &Tuning, ctx: &mut Context<'_>) {
        let Some(age) = self.config.max_age else {
            self.age_due = None;
            return;
        };
        while self.log.oldest().is_some_and(|at| ctx.now.since(at) >= age) {
            self.remove(self.log.first(), ctx);
        }
        self.age_due = self.log.oldest().map(|at| {
            let pause = age.saturating_sub(ctx.now.since(at)).max(SHORTEST_AGE_CHECK);
            ctx.now.after(pause + tuning.age_lag)
        });
    }

    fn remove(&mut self, sequence: u64, ctx: &mut Context<'_>) -> bool {
        let Some(entry) = self.log.remove(sequence) else {
            return false;
        };
        let subject = &entry.message.subject;
        for consumer in self.consumers.values_mut().filter(|consumer| consumer.hears(subject)) {
            if let Some((consumer_seq, deliveries)) = consumer.removed(sequence, ctx.now) {
                consumer.terminate_removed(sequence, consumer_seq, deliveries, ctx);
                consumer.pump_if_awake(&self.log, ctx);
            }
        }
        true
    }

    pub(super) fn delete_message(&mut self, sequence: u64, ctx: &mut Context<'_>) -> Result<Answer, ApiError> {
        if self.config.sealed {
            return Err(ApiError::sealed());
        }
        if self.remove(sequence, ctx) {
            return Ok(Answer::Deleted);
        }
        // A gap is told from what never was, or is before the first.
        if (self.log.first()..=self.log.last()).contains(&sequence) {
            return Err(ApiError::new(400, 10_043, format!("sequence {sequence} not found")));
        }
        let why = if sequence > self.log.last() { "stream store EOF" } else { "no message found" };
        Err(ApiError::new(500, 10_057, why))
    }

    pub(super) fn message(&self, which: &Which) -> Result<Answer, ApiError> {
        let found = match which {
            Which::Sequence(sequence) => self.log.get(*sequence),
            Which::LastOf(subject) => self.log.get(self.log.last_of(subject)),
            Which::NextOf(from, pattern) => {
                self.log.from(*from).find(|entry| subject::matches(pattern, &entry.message.subject))
            }
        };
        found.map(|entry| Answer::Message(entry.message.clone())).ok_or_else(ApiError::no_message)
    }

    pub(super) fn purge(&mut self, scope: &PurgeScope, ctx: &mut Context<'_>) -> Result<Answer, ApiError> {
        if self.config.sealed {
            return Err(ApiError::sealed());
        }
        let purged = match scope {
            PurgeScope::All => self.log.purge(u64::MAX, ">"),
            PurgeScope::Subject(pattern) => self.log.purge(u64::MAX, pattern),
            PurgeScope::Before(sequence) => self.log.purge(*sequence, ">"),
        };
        for consumer in self.consumers.values_mut() {
            // One message purged by its subject is told like one that was deleted, and then again like a purge.
            let terminated = match (&purged[..], scope) {
                ([sequence], PurgeScope::Subject(pattern)) if consumer.hears(pattern) => {
                    consumer.removed(*sequence, ctx.now).map(|told| (*sequence, told))
                }
                ([], _) | ([_], PurgeScope::Subject(_)) => None,
                (_, _) => {
                    consumer.recount(&self.log, ctx.now);
                    None
                }
            };
            if let Some((first, share)) = purged_up_to(&self.log, &consumer.config, scope) {
                consumer.purged(first, share, &self.log, ctx);
            }
            if let Some((sequence, (consumer_seq, deliveries))) = terminated {
                consumer.terminate_removed(sequence, consumer_seq, deliveries, ctx);
                consumer.pump_if_awake(&self.log, ctx);
            }
        }
        Ok(Answer::Purged(purged.len() as u64))
    }

    pub(super) fn update(&mut self, config: StreamConfig, ctx: &mut Context<'_>) {
        let window_changed = config.duplicate_window != self.config.duplicate_window;
        self.config = config;
        if window_changed {
            self.duplicates.window_changed(ctx.now);
        }
        self.age_due = self.config.max_age.and(self.log.oldest()).map(|_| ctx.now);
        self.evict(ctx);
    }

    pub(super) fn info(&self, now: Stamp) -> StreamInfo {
        StreamInfo {
            config: self.config.clone(),
            messages: self.log.messages(),
            bytes: self.log.bytes(),
            first_seq: if self.log.last() == 0 { 0 } else { self.log.first() },
            last_seq: self.log.last(),
            num_deleted: self.log.last() + 1 - self.log.first() - self.log.messages(),
            num_subjects: self.log.subjects(),
            consumers: self.consumers.len(),
            created_nanos: self.created.nanos(),
            first_nanos: self.log.oldest().map(Stamp::nanos),
            last_nanos: self.last_stored.map(Stamp::nanos),
            now_nanos: now.nanos(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.log.bytes()
    }

    pub(super) fn last_sequence(&self) -> u64 {
        self.log.last()
    }

    pub(super) fn unsettled(&self, consumer: &str) -> u64 {
        let consumer = self.consumers.get(consumer);
        consumer.map_or(0, |it| it.pending.len() as u64 + self.log.count_for(it.next_stream, &it.config))
    }

    pub(super) fn has_consumer(&self, name: &str) -> bool {
        self.consumers.contains_key(name)
    }

    /// The consumer and the messages it reads.
    pub(super) fn consumer(&mut self, name: &str) -> Option<(&mut Consumer, &Log)> {
        self.consumers.get_mut(name).map(|consumer| (consumer, &self.log))
    }

    pub(super) fn create_consumer(
        &mut self,
        config: ConsumerConfig,
        action: ConsumerAction,
        ctx: &mut Context<'_>,
    ) -> Result<Answer, ApiError> {
        let config = config.checked()?;
        let name = config.name.clone();
        if let Some(existing) = self.consumers.get_mut(&name) {
            if action == ConsumerAction::Create && existing.config != config {
                return Err(ApiError::new(400, 10_148, "consumer already exists"));
            }
            if let Some(error) = existing.config.refuses(&config) {
                return Err(error);
            }
            return Ok(Answer::Consumer(Box::new(existing.update(config, &self.log, ctx))));
        }
        if action == ConsumerAction::Update {
            return Err(ApiError::new(400, 10_149, "consumer does not exist"));
        }
        let consumer = Consumer::new(self.config.name.clone(), config, &self.log, ctx.now);
        let consumer = self.consumers.entry(name).or_insert(consumer);
        consumer.advise_of_itself(AdvisoryKind::Created, ctx);
        if consumer.pause_left(ctx.now).is_some() {
            consumer.advise_pause(ctx);
        }
        Ok(Answer::Consumer(Box::new(consumer.info(&self.log, ctx))))
    }

    pub(super) fn delete_consumer(&mut self, name: &str, ctx: &mut Context<'_>) -> Result<Answer, ApiError> {
        let mut consumer = self.consumers.remove(name).ok_or_else(ApiError::consumer_not_found)?;
        consumer.deleted(ctx);
        consumer.advise_of_itself(AdvisoryKind::Deleted, ctx);
        Ok(Answer::Deleted)
    }

    pub(super) fn deleted(&mut self, ctx: &mut Context<'_>) {
        for consumer in self.consumers.values_mut() {
            consumer.deleted(ctx);
        }
    }

    pub(super) fn stopped(&mut self, ctx: &mut Context<'_>) {
        for consumer in self.consumers.values_mut() {
            consumer.stopped(ctx);
        }
    }

    /// The server was killed: consumers keep what was written until `until`.
    pub(super) fn killed(&mut self, until: Stamp) {
        self.ids_lost = self.log.last_is_deleted();
        for consumer in self.consumers.values_mut() {
            consumer.saved.kill(until);
        }
    }

    /// The server starts again. Ids are those of the messages that are still stored and no older than the window; their timer
    /// starts with a whole window.
    pub(super) fn recover(&mut self, tuning: &Tuning, ctx: &mut Context<'_>) {
        self.expire(tuning, ctx);
        let window = self.config.duplicate_window;
        self.duplicates = Duplicates::default();
        let ids_lost = std::mem::take(&mut self.ids_lost);
        let remembered = self.log.from(0).filter(|entry| !ids_lost && ctx.now.since(entry.at) <= window);
        self.last_id = None;
        for entry in remembered {
            let id = entry.message.headers.message_id();
            if entry.message.sequence == self.log.last() {
                self.last_id.clone_from(&id);
            }
            if let Some(id) = id {
                self.duplicates.remember(id, entry.message.sequence, entry.at, ctx.now, window);
            }
        }
        for consumer in self.consumers.values_mut() {
            consumer.recover(&self.log, ctx);
        }
    }
}

/// What the server and the account have room for. Source: `server/jetstream.go`, `wouldExceedLimits`: the server looks at what
/// is stored already, the account at what would be.
fn refuse_without_room(message: &StoredMessage, ctx: &Context<'_>) -> Result<(), ApiError> {
    if ctx.room.server_bytes.is_some_and(|most| ctx.stored_bytes > most) {
        return Err(ApiError::new(503, 10_023, "insufficient resources"));
    }
    let needed = ctx.stored_bytes + size_of(message);
    if ctx.room.account_bytes.is_some_and(|most| needed > most) {
        return Err(ApiError::new(400, 10_002, "resource limits exceeded for account"));
    }
    Ok(())
}

/// Up to where a purge moves a consumer, and how much of what the consumer gets was purged; `None` where nothing was.
fn purged_up_to(log: &Log, config: &ConsumerConfig, scope: &PurgeScope) -> Option<(u64, Share)> {
    let first = log.first();
    let PurgeScope::Subject(pattern) = scope else {
        return Some((first, Share::All));
    };
    let filters = &config.filters;
    if filters.iter().any(|filter| subject::covers(pattern, filter)) {
        let next = log.from(first).find(|entry| subject::matches(pattern, &entry.message.subject));
        return Some((next.map_or(log.last() + 1, |entry| entry.message.sequence), Share::All));
    }
    let wider = filters.is_empty() || filters.iter().any(|filter| subject::covers(filter, pattern));
    wider.then_some((first, Share::Part))
}
