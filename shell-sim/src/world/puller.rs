//! Deliveries, as the real shell pulls them: explicit requests for no more messages than the core has room for.

use std::{collections::VecDeque, rc::Rc, sync::Arc, time::Duration};

use jetstream_model::{self as broker, Message, Pull, Status};
use smol::future;
use transcript_core::{Delivery, Input, Payload, Time, WallTime, contract::REDRIVE_OF_HEADER};

use super::{nats::Frame, shell::Shared};
use crate::{bug::Bug, observation::Observation};

/// The shortest and the longest time for which the broker keeps a request; between them it is the ack wait.
const EXPIRES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));
const IDLE_HEARTBEAT: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_millis(2500);
const REQUESTS: usize = 2;
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// What the planted bug of the client's buffer asks for, whatever there is room for.
const PREFETCH: u64 = 200;

/// Pulls deliveries and hands them to the driver.
pub(super) struct Puller {
    shared: Rc<Shared>,
    requests: Vec<PullRequest>,
    received: u64,
    connects: u64,
    pause: Duration,
    not_before: Time,
    /// Messages that wait for room; for the planted bug of the client's buffer only.
    held: VecDeque<broker::Delivery>,
}

struct PullRequest {
    inbox: u64,
    left: u64,
    last_heard: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Served,
    Refused,
}

/// How long the broker keeps a request of a processor that knows of this ack wait.
fn expires(ack_wait: Duration) -> Duration {
    ack_wait.clamp(EXPIRES.0, EXPIRES.1)
}

impl Puller {
    pub(super) fn new(shared: &Rc<Shared>) -> Self {
        Self {
            shared: Rc::clone(shared),
            requests: vec![],
            received: 0,
            connects: 0,
            pause: PAUSE,
            not_before: Time::ZERO,
            held: VecDeque::new(),
        }
    }

    pub(super) async fn run(mut self) {
        let shared = Rc::clone(&self.shared);
        shared.nats.connected.take().await;
        self.connects = shared.nats.connects();
        loop {
            self.ask_for_more();
            let now = shared.world.clock.now();
            let silent = self.requests.iter().map(|request| request.last_heard.after(SILENCE)).min();
            let pause_over = if self.not_before > now { self.not_before } else { now.after(SILENCE) };
            let wake_up = silent.unwrap_or(now.after(SILENCE)).min(pause_over);
            let message = async { Some(shared.nats.pulled.take().await) };
            let other = async {
                future::or(shared.allowed.take(), shared.world.clock.sleep_until(wake_up)).await;
                None
            };
            if let Some((inbox, message)) = future::or(message, other).await {
                self.take(inbox, message);
            }
            self.hand_over_held();
            self.forget_silent();
        }
    }

    fn ask_for_more(&mut self) {
        let open: u64 = self.requests.iter().map(|request| request.left).sum();
        let allowance = self.shared.allowance.get();
        let prefetches = self.shared.world.has_bug(Bug::ClientBuffer);
        let wanted = if prefetches { PREFETCH } else { allowance.saturating_sub(self.received + open) };
        let worthwhile = if self.requests.is_empty() { wanted > 0 } else { wanted >= open.max(1) };
        let now = self.shared.world.clock.now();
        let nats = &self.shared.nats;
        // What is asked for offline would be sent after the next connect, to inboxes that are dropped by then.
        if !worthwhile || self.requests.len() >= REQUESTS || now < self.not_before || !nats.is_connected() {
            return;
        }
        let inbox = nats.new_inbox();
        match &mut *self.shared.open_pulls.borrow_mut() {
            Some(open) => open.push(inbox),
            None => return,
        }
        let pull = Pull { heartbeat: Some(IDLE_HEARTBEAT), ..Pull::waiting(wanted, expires(self.shared.ack_wait)) };
        nats.send(Frame::Pull { inbox, pull });
        self.requests.push(PullRequest { inbox, left: wanted, last_heard: now });
    }

    fn take(&mut self, inbox: u64, message: Message) {
        // What comes to an inbox that was dropped is lost.
        let Some(place) = self.requests.iter().position(|request| request.inbox == inbox) else { return };
        let Some(request) = self.requests.get_mut(place) else { return };
        request.last_heard = self.shared.world.clock.now();
        let over = match message {
            Message::Delivery(delivery) => {
                request.left = request.left.saturating_sub(1);
                let served = request.left == 0;
                self.received += 1;
                self.pause = PAUSE;
                self.deliver(delivery);
                served.then_some(Over::Served)
            }
            Message::Status(Status { code: 100, .. }) => None,
            Message::Status(Status { code: 404 | 408, .. }) => Some(Over::Served),
            Message::Status(Status { text, .. }) if text.eq_ignore_ascii_case("Batch Completed") => Some(Over::Served),
            Message::Status(_)
            | Message::NoResponders { .. }
            | Message::PublishRefused { .. }
            | Message::Refused { .. }
            | Message::PubAck(_)
            | Message::AckConfirmed
            | Message::Answer { .. }
            | Message::Core { .. } => Some(Over::Refused),
        };
        if let Some(over) = over {
            let request = self.requests.swap_remove(place);
            self.drop_inbox(request.inbox);
            if over == Over::Refused {
                self.not_before = self.shared.world.clock.now().after(self.pause);
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    fn deliver(&mut self, delivery: broker::Delivery) {
        let processor = self.shared.processor;
        let reply: Arc<str> = delivery.reply.to_string().into();
        self.shared.world.saw(&Observation::Arrived { processor, reply: &reply });
        if self.shared.world.has_bug(Bug::ClientBuffer) {
            self.held.push_back(delivery);
        } else {
            self.hand_over(&delivery, reply);
        }
    }

    fn hand_over(&self, delivery: &broker::Delivery, reply: Arc<str>) {
        self.shared.inputs.push(Input::Delivered(Delivery {
            stream_sequence: delivery.message.sequence,
            attempt: delivery.reply.deliveries,
            stored_at: WallTime::from_millis(delivery.message.stored_at_nanos.div_euclid(1_000_000)),
            received_at: self.shared.calendar(),
            reply,
            redrive_of: redrive_of(&delivery.message.headers),
            payload: Payload(delivery.message.payload.to_vec()),
        }));
    }

    /// Takes as many of the held messages as there is room for.
    fn hand_over_held(&mut self) {
        let before = u64::try_from(self.held.len()).unwrap_or(u64::MAX);
        let mut room = self.shared.allowance.get().saturating_sub(self.received.saturating_sub(before));
        while room > 0
            && let Some(delivery) = self.held.pop_front()
        {
            let reply = delivery.reply.to_string().into();
            self.hand_over(&delivery, reply);
            room -= 1;
        }
    }

    fn forget_silent(&mut self) {
        let now = self.shared.world.clock.now();
        let connects = self.shared.nats.connects();
        let anew = connects != self.connects;
        if anew {
            self.connects = connects;
            self.not_before = now;
        }
        let forgotten = self.requests.extract_if(.., |request| anew || now >= request.last_heard.after(SILENCE));
        let forgotten: Vec<u64> = forgotten.map(|request| request.inbox).collect();
        for inbox in forgotten {
            self.drop_inbox(inbox);
        }
    }

    fn drop_inbox(&self, inbox: u64) {
        if let Some(open) = &mut *self.shared.open_pulls.borrow_mut() {
            open.retain(|it| *it != inbox);
            self.shared.nats.drop_inbox(inbox);
        }
    }
}

/// The message that this one was made from.
fn redrive_of(headers: &broker::Headers) -> Option<u64> {
    headers.get(REDRIVE_OF_HEADER)?.parse().ok()
}
