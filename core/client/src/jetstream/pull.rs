//! Pull requests: how many, for how much, until when, and what their end says.
//!
//! A request asks for no more messages than the core has room for, and for no more bytes than a connection can take at once.
//! It is short, so that an idle one is gone soon, and it asks for no idle heartbeat: a server whose queue of requests is full
//! then says so (`409 Exceeded MaxWaiting`), which it does not to a request with one.
//!
//! A delivery shows the subject that it was published under, and not which request it answers. So it is the requests together
//! that have so many messages left, and the status that ends one says how many of them were its own.
//!
//! A request is over when all messages have come, when the server says so, or when the connection is over. Nothing else ends
//! it: before a drain no more is asked for, and the end of each open request is waited for. So what the server has sent has
//! arrived by then, and what is given back afterwards cannot come back to this process.

use std::{io::Write as _, time::Duration};

use transcript_core::Time;

use super::{Settings, frame::Status};

/// Requests that are open at once: one that is being served and one behind it.
const REQUESTS: usize = 2;
/// The pause after a request that the server did not take.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long nothing is asked for after a request of whose end the server did not say a word, if it says nothing else either.
const MUTE: Duration = Duration::from_secs(60);

/// The pull requests of one process.
#[derive(Debug)]
pub(super) struct Pulls {
    open: Vec<Pull>,
    /// How many messages the open requests can still bring, all together.
    left: u64,
    /// How many deliveries the core has taken and wants, all together since the start.
    allowance: u64,
    /// How many were handed to it.
    received: u64,
    /// Bounds that the consumer has set on requests, as far as it has said so.
    bounds: Bounds,
    /// The next message may be larger than a request's bytes: it is asked for alone and without that bound.
    alone: bool,
    pause: Duration,
    not_before: Time,
    /// The server has not said that a request is over, nor anything since: what it has sent may be on its way, for this
    /// request and for any other that would be made.
    is_mute: bool,
    ending: Ending,
    /// Until when the server may still serve requests of a connection that is gone, where it has not noticed that.
    lingers_until: Time,
}

/// Whether more may be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    /// The last requests are waited for.
    Begun,
    Over,
}

#[derive(Debug)]
struct Pull {
    token: u64,
    batch: u64,
    /// When the server's word that it has expired is no longer waited for.
    forgotten_at: Time,
    /// The word has not come in time. Either it is lost, or the request itself is still on its way: then the server will
    /// serve it yet.
    is_late: bool,
}

#[derive(Debug, Clone, Copy)]
struct Bounds {
    batch: u64,
    bytes: u64,
    expires: Duration,
}

/// A request to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) batch: u64,
    pub(super) max_bytes: Option<u64>,
    pub(super) expires: Duration,
}

/// What the end of a request says about the consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hint {
    /// Nothing.
    None,
    /// It should be looked at: it may be gone, or changed, or moved.
    Look(String),
}

impl Pulls {
    pub(super) fn new(settings: &Settings) -> Self {
        let bounds = Bounds { batch: settings.max_batch, bytes: settings.max_bytes, expires: settings.pull_expires };
        Self {
            open: vec![],
            left: 0,
            allowance: 0,
            received: 0,
            bounds,
            alone: false,
            pause: PAUSE,
            not_before: Time::ZERO,
            is_mute: false,
            ending: Ending::No,
            lingers_until: Time::ZERO,
        }
    }

    pub(super) fn allow(&mut self, allowance: u64) {
        self.allowance = allowance;
    }

    /// Whether it has been told so before.
    pub(super) fn allows(&self, allowance: u64) -> bool {
        self.allowance == allowance
    }

    /// The next request, where one is worth its while.
    pub(super) fn wanted(&self, now: Time) -> Option<Request> {
        if self.ending != Ending::No || self.open.len() >= REQUESTS || now < self.not_before {
            return None;
        }
        if self.alone {
            let request = Request { batch: 1, max_bytes: None, expires: self.bounds.expires };
            return (self.open.is_empty() && self.allowance > self.received).then_some(request);
        }
        let wanted = self.allowance.saturating_sub(self.received.saturating_add(self.left));
        // One behind a request is worth its while when that is being served, and when it asks for as much as is left of that.
        let asked: u64 = self.open.iter().map(|pull| pull.batch).sum();
        let is_served = self.left < asked;
        let worthwhile = if self.open.is_empty() { wanted > 0 } else { is_served && wanted >= self.left.max(1) };
        worthwhile.then(|| Request {
            batch: wanted.min(self.bounds.batch),
            max_bytes: Some(self.bounds.bytes),
            expires: self.bounds.expires,
        })
    }

    /// Notes that a request has been handed to the socket.
    pub(super) fn asked(&mut self, now: Time, token: u64, request: Request, margin: Duration) {
        let forgotten_at = now.after(request.expires).after(margin);
        self.left += request.batch;
        self.open.push(Pull { token, batch: request.batch, forgotten_at, is_late: false });
    }

    /// Counts a message that is on its way to the core, whichever request it answers: one that is over does not make it less
    /// of a delivery.
    pub(super) fn received(&mut self) {
        self.received += 1;
        self.pause = PAUSE;
        self.alone = false;
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.open.clear();
        }
    }

    /// A message that was counted does not reach the core after all.
    pub(super) fn given_up(&mut self) {
        self.received = self.received.saturating_sub(1);
    }

    /// Takes the server's word on a request. Sorts the statuses that end one (nats-server, `server/consumer.go`:
    /// `processNextMsgRequest`, `processWaiting`, `loopAndGatherMsgs`).
    ///
    /// `pending` is what the status says of the messages that the request has not brought, `Nats-Pending-Messages`.
    pub(super) fn ended(&mut self, now: Time, token: u64, status: &Status, pending: Option<u64>) -> Hint {
        let Some(place) = self.place(token) else { return Hint::None };
        if status.code == 100 {
            return Hint::None;
        }
        let pull = self.open.swap_remove(place);
        let others: u64 = self.open.iter().map(|pull| pull.batch).sum();
        self.left = self.left.saturating_sub(pending.unwrap_or(0)).min(others);
        if matches!(status.code, 404 | 408) {
            return Hint::None;
        }
        let text = status.description.to_ascii_lowercase();
        if text == "batch completed" {
            return Hint::None;
        }
        if text.starts_with("message size exceeds maxbytes") {
            // Where the request had room for all of its bytes, the message is larger than any request's.
            self.alone = pending == Some(pull.batch);
            return Hint::None;
        }
        self.learn(&text);
        self.not_before = now.after(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        if text.starts_with("exceeded maxwaiting") {
            return Hint::None;
        }
        Hint::Look(format!("{} {}", status.code, status.description))
    }

    /// Bounds that the consumer sets are kept, so that messages come until somebody has mended it.
    fn learn(&mut self, text: &str) {
        let after = |prefix: &str| text.strip_prefix(prefix).map(str::trim);
        if let Some(most) = after("exceeded maxrequestbatch of").and_then(|number| number.parse().ok()) {
            self.bounds.batch = self.bounds.batch.min(most).max(1);
        } else if let Some(most) = after("exceeded maxrequestmaxbytes of").and_then(|number| number.parse().ok()) {
            self.bounds.bytes = self.bounds.bytes.min(most).max(1);
        } else if let Some(most) = after("exceeded maxrequestexpires of").and_then(duration) {
            self.bounds.expires = self.bounds.expires.min(most);
        }
    }

    /// Bounds that the consumer has now; those that are wider than the settings do not matter.
    pub(super) fn bound(
        &mut self,
        settings: &Settings,
        batch: Option<u64>,
        bytes: Option<u64>,
        expires: Option<Duration>,
    ) {
        self.bounds = Bounds {
            batch: batch.unwrap_or(u64::MAX).min(settings.max_batch),
            bytes: bytes.unwrap_or(u64::MAX).min(settings.max_bytes),
            expires: expires.unwrap_or(Duration::MAX).min(settings.pull_expires),
        };
    }

    /// Forgets the requests of a connection that is over: a new one asks anew.
    pub(super) fn forget(&mut self) {
        let expired = self.open.iter().map(|pull| pull.forgotten_at).max();
        self.lingers_until = self.lingers_until.max(expired.unwrap_or(Time::ZERO));
        self.open.clear();
        self.left = 0;
        self.not_before = Time::ZERO;
        self.is_mute = false;
    }

    /// The server has said something: a request that is late has reached it by now, and expires from now on.
    pub(super) fn heard(&mut self, now: Time, margin: Duration) {
        if std::mem::take(&mut self.is_mute) {
            self.not_before = Time::ZERO;
            let forgotten_at = now.after(self.bounds.expires).after(margin);
            self.open.iter_mut().filter(|pull| pull.is_late).for_each(|pull| pull.forgotten_at = forgotten_at);
        }
    }

    /// Looks for requests whose end the server has not told in time; whether there are any. They are forgotten the second
    /// time, when the server has said something else meanwhile.
    pub(super) fn forget_silent(&mut self, now: Time) -> bool {
        let mut any = false;
        for pull in self.open.iter_mut().filter(|pull| pull.forgotten_at <= now && !pull.is_late) {
            (pull.is_late, pull.forgotten_at) = (true, now.after(MUTE));
            any = true;
        }
        if any {
            self.is_mute = true;
            self.not_before = now.after(MUTE);
        }
        self.open.retain(|pull| pull.forgotten_at > now);
        self.left = self.left.min(self.open.iter().map(|pull| pull.batch).sum());
        any
    }

    pub(super) fn stop(&mut self) {
        if self.ending == Ending::No {
            self.ending = Ending::Begun;
        }
    }

    /// Whether the last request has just come to its end, those of earlier connections too: what is given back before that
    /// would be handed to one of them.
    pub(super) fn has_stopped(&mut self, now: Time) -> bool {
        let stops = self.ending == Ending::Begun && self.open.is_empty() && self.lingers_until <= now;
        if stops {
            self.ending = Ending::Over;
        }
        stops
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.ending != Ending::No
    }

    pub(super) fn any_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// When the requests of earlier connections have expired, where that is waited for.
    pub(super) fn lingers_until(&self) -> Option<Time> {
        (self.ending == Ending::Begun).then_some(self.lingers_until)
    }

    /// When a request is forgotten.
    pub(super) fn next_forgotten(&self) -> Option<Time> {
        self.open.iter().map(|pull| pull.forgotten_at).min()
    }

    /// When the pause ends that keeps a wanted request back.
    pub(super) fn pause_ends(&self, now: Time) -> Option<Time> {
        (now < self.not_before && self.wanted(self.not_before).is_some()).then_some(self.not_before)
    }

    fn place(&self, token: u64) -> Option<usize> {
        self.open.iter().position(|pull| pull.token == token)
    }
}

impl Request {
    /// The payload, written in one piece: a process sends one every second.
    pub(super) fn body(self) -> Vec<u8> {
        const LONGEST: usize = r#"{"batch":,"expires":,"max_bytes":}"#.len() + 3 * "18446744073709551615".len();
        let expires = u64::try_from(self.expires.as_nanos()).unwrap_or(u64::MAX);
        let mut body = Vec::with_capacity(LONGEST);
        let written = match self.max_bytes {
            Some(bytes) => write!(body, r#"{{"batch":{},"expires":{expires},"max_bytes":{bytes}}}"#, self.batch),
            None => write!(body, r#"{{"batch":{},"expires":{expires}}}"#, self.batch),
        };
        written.expect("a vector takes any bytes");
        body
    }
}

/// A duration as Go writes it: `1m30.5s`, `250ms`.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let value: f64 = rest.get(..number)?.parse().ok()?;
        let unit_and_rest = rest.get(number..)?;
        let unit = unit_and_rest.find(|c: char| c.is_ascii_digit()).unwrap_or(unit_and_rest.len());
        let seconds = match unit_and_rest.get(..unit)? {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "µs" | "us" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total = total.saturating_add(Duration::try_from_secs_f64(value * seconds).ok()?);
        rest = unit_and_rest.get(unit..)?;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARGIN: Duration = Duration::from_secs(1);

    fn pulls(allowance: u64) -> Pulls {
        let mut pulls = Pulls::new(&Settings::default());
        pulls.allow(allowance);
        pulls
    }

    fn ask(pulls: &mut Pulls, token: u64) -> Request {
        let request = pulls.wanted(Time::ZERO).expect("a request is wanted");
        pulls.asked(Time::ZERO, token, request, MARGIN);
        request
    }

    fn status(code: u16, description: &str) -> Status {
        Status { code, description: description.to_owned().into() }
    }

    #[test]
    fn no_more_is_asked_for_than_there_is_room_for() {
        let mut pulls = pulls(10);
        assert_eq!(ask(&mut pulls, 1).batch, 10);
        assert_eq!(pulls.wanted(Time::ZERO), None);
        pulls.received();
        pulls.allow(11);
        assert_eq!(pulls.wanted(Time::ZERO), None, "one message is not worth a request behind one for nine");
        assert_eq!(pulls.ended(Time::ZERO, 1, &status(408, "Request Timeout"), Some(9)), Hint::None);
        assert_eq!(ask(&mut pulls, 2).batch, 10);
    }

    #[test]
    fn a_message_of_a_forgotten_request_takes_room_too() {
        let mut pulls = pulls(2);
        ask(&mut pulls, 1);
        pulls.forget();
        assert_eq!(ask(&mut pulls, 2).batch, 2);
        pulls.received();
        pulls.received();
        pulls.received();
        assert_eq!(pulls.ended(Time::ZERO, 2, &status(408, "Request Timeout"), Some(2)), Hint::None);
        assert_eq!(pulls.wanted(Time::ZERO), None);
    }

    #[test]
    fn a_message_larger_than_a_request_is_fetched_alone() {
        let mut pulls = pulls(5);
        ask(&mut pulls, 1);
        pulls.received();
        assert_eq!(pulls.ended(Time::ZERO, 1, &status(409, "Message Size Exceeds MaxBytes"), Some(4)), Hint::None);
        assert_eq!(ask(&mut pulls, 2).max_bytes, Some(Settings::default().max_bytes));
        assert_eq!(pulls.ended(Time::ZERO, 2, &status(409, "Message Size Exceeds MaxBytes"), Some(4)), Hint::None);
        let alone = ask(&mut pulls, 3);
        assert_eq!((alone.batch, alone.max_bytes), (1, None));
        pulls.received();
        assert!(ask(&mut pulls, 4).max_bytes.is_some());
    }

    #[test]
    fn bounds_that_the_consumer_sets_are_kept() {
        let mut pulls = pulls(500);
        for (token, text) in [
            (1, "Exceeded MaxRequestBatch of 7"),
            (2, "Exceeded MaxRequestExpires of 250ms"),
            (3, "Exceeded MaxRequestMaxBytes of 99"),
        ] {
            pulls.forget();
            ask(&mut pulls, token);
            assert_eq!(pulls.ended(Time::ZERO, token, &status(409, text), None), Hint::Look(format!("409 {text}")));
        }
        pulls.forget();
        let bounded = Request { batch: 7, max_bytes: Some(99), expires: Duration::from_millis(250) };
        assert_eq!(ask(&mut pulls, 4), bounded);
    }

    #[test]
    fn deliveries_have_stopped_once_each_request_has_ended() {
        let mut pulls = pulls(8);
        ask(&mut pulls, 1);
        pulls.stop();
        assert!(!pulls.has_stopped(Time::ZERO));
        assert_eq!(pulls.ended(Time::ZERO, 1, &status(408, "Request Timeout"), Some(8)), Hint::None);
        assert!(pulls.has_stopped(Time::ZERO));
        assert!(!pulls.has_stopped(Time::ZERO), "it is said once");
        assert_eq!(pulls.wanted(Time::ZERO), None);
    }

    #[test]
    fn a_request_of_a_connection_that_is_gone_may_still_be_served_until_it_expires() {
        let mut pulls = pulls(8);
        ask(&mut pulls, 1);
        let expired = pulls.next_forgotten().expect("a request is open");
        pulls.forget();
        pulls.stop();
        assert!(!pulls.has_stopped(Time::ZERO), "the server may not have noticed");
        assert_eq!(pulls.lingers_until(), Some(expired));
        assert!(pulls.has_stopped(expired));
    }

    #[test]
    fn of_two_requests_the_end_of_one_says_what_the_other_has_left() {
        let mut pulls = pulls(8192);
        assert_eq!(ask(&mut pulls, 1).batch, 4096);
        assert_eq!(pulls.wanted(Time::ZERO), None, "nobody serves it yet: an idle process has one request");
        pulls.received();
        assert_eq!(ask(&mut pulls, 2).batch, 4096);
        for _ in 1..1000 {
            pulls.received();
        }
        assert_eq!(pulls.ended(Time::ZERO, 1, &status(409, "Message Size Exceeds MaxBytes"), Some(3500)), Hint::None);
        assert_eq!(pulls.left, 8192 - 1000 - 3500);
        assert_eq!(pulls.wanted(Time::ZERO), None, "3500 are less than the other brings");
        for _ in 0..3692 {
            pulls.received();
        }
        assert_eq!(pulls.open.len(), 0, "all that was asked for has come");
    }

    #[test]
    fn a_mute_server_is_asked_for_no_more_until_it_says_something() {
        let mut pulls = pulls(8);
        ask(&mut pulls, 1);
        pulls.stop();
        let late = Time::ZERO.after(Duration::from_secs(5));
        assert!(pulls.forget_silent(late));
        assert_eq!(pulls.wanted(late), None);
        assert!(!pulls.has_stopped(late), "the request may not have reached the server yet");
        pulls.heard(late, MARGIN);
        assert!(!pulls.forget_silent(late.after(MARGIN)));
        assert!(!pulls.has_stopped(late.after(MARGIN)), "it has, and lasts from then on");
        assert!(!pulls.forget_silent(late.after(MARGIN * 2)));
        assert!(pulls.has_stopped(late.after(MARGIN * 2)));
    }

    #[test]
    fn durations_read_as_go_writes_them() {
        assert_eq!(duration("1m30.5s"), Some(Duration::from_millis(90_500)));
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(duration("5"), None);
        assert_eq!(duration("5 days"), None);
    }
}
