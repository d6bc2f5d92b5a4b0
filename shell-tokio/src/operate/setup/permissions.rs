//! What the user of NATS may do, before it has to be done.
//!
//! A server refuses a message or a subscription out of band: it says so on the connection, and whoever sent it hears nothing.
//! A processor that may not acknowledge would so do every call again and again.
//!
//! The server tells a user that it has no restrictions (`$SYS.REQ.USER.INFO`). Where it has some, or may not ask that, each
//! subject is tried. A subscription is tried by subscribing. A message is tried with a reply subject that is reserved for the
//! server: the server first looks whether the subject is permitted, then refuses the reply subject, and hands the message
//! to nobody (nats-server, `client.go`, `processInboundClientMsg`). So each try is answered with one error or the other.

use std::{fmt, sync::Arc, time::Duration};

use async_nats::{Client, Request as NatsRequest};
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    sync::broadcast::{self, Receiver, error::RecvError},
    time::timeout,
};
use transcript_core::contract::{
    Announcement, CONSUMER, DEAD_LETTER_SUBJECT, PROCESSED_SUBJECT, RECORDING_STREAM, REVISED_SUBJECT,
    SESSION_ENDED_SUBJECT, TRANSCRIPTION_STREAM,
};

use super::SetupError;

/// How long the server may take to tell what the user may do.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// How long the server may take to refuse what was tried.
const TRIED_WITHIN: Duration = Duration::from_secs(5);
/// Where a user asks for what it may do (nats-server, `events.go`, `userInfoReq`).
const USER_INFO: &str = "$SYS.REQ.USER.INFO";
/// Reply subjects that begin like this are the server's own (nats-server, `client.go`, `isServiceReply`).
const RESERVED_REPLY: &str = "_R_.transcript-processor-start";
/// How many errors may wait to be looked at.
const ERRORS: usize = 256;

/// What the server has refused, as the connection hears it.
#[derive(Debug, Clone)]
pub struct Refusals {
    errors: broadcast::Sender<Arc<str>>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { errors: broadcast::Sender::new(ERRORS) }
    }
}

impl Refusals {
    /// Takes in an error of the server. Whether it is an answer that was expected, and so needs nobody's attention: to a try,
    /// or to the question what the user may do.
    pub fn heard(&self, error: &str) -> bool {
        // Where nobody tries anything, nobody listens.
        let is_awaited = self.errors.send(error.into()).is_ok() && error.contains("Permissions Violation");
        is_awaited || error.contains(RESERVED_REPLY) || error.contains(USER_INFO)
    }
}

/// Something that the user has to be allowed to do.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Need {
    direction: Direction,
    subject: String,
    consequence: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Publish,
    Subscribe,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.direction {
            Direction::Publish => "publish to",
            Direction::Subscribe => "subscribe to",
        };
        write!(f, "{what} {} ({})", self.subject, self.consequence)
    }
}

/// How it is found out what the user may do.
#[derive(Debug)]
pub struct Permissions<'a> {
    /// What the server refuses.
    pub refusals: &'a Refusals,
    /// The prefix of JetStream's API.
    pub api_prefix: String,
}

impl Permissions<'_> {
    /// Refuses a user who may not set up, and gives a warning where one may not process calls: another one may be meant to.
    ///
    /// # Errors
    ///
    /// [`SetupError::Permissions`].
    pub async fn check_setup(&self, client: &Client) -> Result<Option<String>, SetupError> {
        self.require(client, of_setup(client, &self.api_prefix)).await?;
        let lacking = self.missing(client, of_run(&self.api_prefix, &[Announcement::Processed])).await;
        Ok(lacking.map(|missing| format!("this user of NATS could not run a processor: it may not {missing}")))
    }

    /// Refuses a user who may not process calls and announce them in these ways.
    ///
    /// # Errors
    ///
    /// [`SetupError::Permissions`].
    pub async fn check_run(&self, client: &Client, announcements: &[Announcement]) -> Result<(), SetupError> {
        let mut needs = of_setup(client, &self.api_prefix);
        needs.extend(of_run(&self.api_prefix, announcements));
        self.require(client, needs).await
    }

    async fn require(&self, client: &Client, needs: Vec<Need>) -> Result<(), SetupError> {
        let missing = self.missing(client, needs).await;
        missing.map_or(Ok(()), |missing| Err(SetupError::Permissions { missing }))
    }

    async fn missing(&self, client: &Client, needs: Vec<Need>) -> Option<String> {
        let missing = missing(client, self.refusals, needs).await;
        let missing: Vec<_> = missing.iter().map(Need::to_string).collect();
        (!missing.is_empty()).then(|| missing.join(", may not "))
    }
}

/// What setting up needs.
fn of_setup(client: &Client, api_prefix: &str) -> Vec<Need> {
    let looks = "the streams and the consumer could not be looked at";
    let asks = [
        format!("STREAM.INFO.{TRANSCRIPTION_STREAM}"),
        format!("STREAM.INFO.{RECORDING_STREAM}"),
        format!("CONSUMER.INFO.{TRANSCRIPTION_STREAM}.{CONSUMER}"),
    ];
    let asks = asks.map(|subject| publish(&format!("{api_prefix}.{subject}"), looks));
    let inbox = subscribe(&format!("{}.*", client.new_inbox()), "no answer could be received");
    std::iter::once(inbox).chain(asks).collect()
}

/// What a processor needs besides. It announces in these ways.
fn of_run(api_prefix: &str, announcements: &[Announcement]) -> Vec<Need> {
    let mut needs = vec![
        subscribe(
            &format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{TRANSCRIPTION_STREAM}.{CONSUMER}"),
            "calls that used up their deliveries would not become dead letters",
        ),
        publish(&format!("{api_prefix}.CONSUMER.MSG.NEXT.{TRANSCRIPTION_STREAM}.{CONSUMER}"), "no call could be taken"),
        publish(
            &format!("{api_prefix}.STREAM.MSG.GET.{TRANSCRIPTION_STREAM}"),
            "messages of the stream could not be kept as dead letters",
        ),
        publish(
            &format!("$JS.ACK.{TRANSCRIPTION_STREAM}.{CONSUMER}.1.1.1.1.1"),
            "no call could be acknowledged or kept in hand: each would be processed again and again",
        ),
        publish(DEAD_LETTER_SUBJECT, "a call that cannot be processed could not be kept"),
        publish(SESSION_ENDED_SUBJECT, "a call could not be handed to another processor"),
    ];
    needs.extend(announcements.iter().map(|announcement| match announcement {
        Announcement::Processed => publish(PROCESSED_SUBJECT, "no call could be announced"),
        Announcement::ProcessedOnce => publish(&format!("{PROCESSED_SUBJECT}.c:s"), "no call could be announced"),
        Announcement::Revised { .. } => publish(REVISED_SUBJECT, "no revision could be announced"),
    }));
    needs
}

fn publish(subject: &str, consequence: &'static str) -> Need {
    Need { direction: Direction::Publish, subject: subject.to_owned(), consequence }
}

fn subscribe(subject: &str, consequence: &'static str) -> Need {
    Need { direction: Direction::Subscribe, subject: subject.to_owned(), consequence }
}

/// Which of these the user may not do. Nothing is known of what the server does not answer in time, and that is warned of.
async fn missing(client: &Client, refusals: &Refusals, needs: Vec<Need>) -> Vec<Need> {
    let mut errors = refusals.errors.subscribe();
    if is_unrestricted(client, &mut errors).await {
        return vec![];
    }
    let mut subscriptions = vec![];
    for need in needs.iter().filter(|need| need.direction == Direction::Subscribe) {
        subscriptions.push(client.subscribe(need.subject.clone()).await);
    }
    let mut open = vec![];
    for (place, need) in needs.iter().enumerate().filter(|(_, need)| need.direction == Direction::Publish) {
        // Behind the subscriptions: when these are answered, those are.
        if client.publish_with_reply(need.subject.clone(), reply(place), "".into()).await.is_ok() {
            open.push(place);
        }
    }
    let mut refused = vec![];
    let answers = hear_answers(&mut errors, &needs, &mut open, &mut refused);
    if timeout(TRIED_WITHIN, answers).await.is_err() {
        tracing::warn!("the NATS server does not tell all that this user may do: go on without knowing");
    }
    let is_refused = |place: usize| refused.contains(&place);
    needs.into_iter().enumerate().filter(|(place, _)| is_refused(*place)).map(|(_, need)| need).collect()
}

/// Whether the server says that it restricts the user in nothing.
async fn is_unrestricted(client: &Client, errors: &mut Receiver<Arc<str>>) -> bool {
    #[derive(Deserialize)]
    struct Answer {
        data: Option<User>,
    }
    #[derive(Deserialize)]
    struct User {
        permissions: Option<Value>,
    }
    let request = NatsRequest::new().timeout(Some(TOLD_WITHIN));
    let answer = tokio::select! {
        answer = client.send_request(USER_INFO, request) => answer,
        () = refused(errors) => return false,
    };
    let Ok(answer) = answer else { return false };
    let user = serde_json::from_slice::<Answer>(&answer.payload).ok().and_then(|answer| answer.data);
    user.is_some_and(|user| user.permissions.is_none())
}

/// Waits until the server refuses the question what the user may do.
async fn refused(errors: &mut Receiver<Arc<str>>) {
    loop {
        match errors.recv().await {
            Ok(error) if error.contains(USER_INFO) => return,
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// Takes errors until each message that was tried has one.
async fn hear_answers(
    errors: &mut Receiver<Arc<str>>,
    needs: &[Need],
    open: &mut Vec<usize>,
    refused: &mut Vec<usize>,
) {
    while !open.is_empty() {
        let error = match errors.recv().await {
            Ok(error) => error,
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return,
        };
        if let Some(place) = needs.iter().position(|need| need.is_refused_by(&error)) {
            refused.push(place);
            open.retain(|open| *open != place);
        }
        open.retain(|place| !error.contains(&format!("\"{}\"", reply(*place))));
    }
}

fn reply(place: usize) -> String {
    format!("{RESERVED_REPLY}.{place}")
}

impl Need {
    /// The forms are those of nats-server's `client.go`: `pubPermissionViolation` and `subPermissionViolation`.
    fn is_refused_by(&self, error: &str) -> bool {
        let what = match self.direction {
            Direction::Publish => "Publish to",
            Direction::Subscribe => "Subscription to",
        };
        error.contains(&format!("Permissions Violation for {what} \"{}\"", self.subject))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_try_is_answered_by_one_error_or_the_other() {
        let needs = vec![subscribe("events", "a"), publish("acks", "b"), publish("calls", "c")];
        let refusals = Refusals::default();
        let mut errors = refusals.errors.subscribe();
        let told = [
            ("Permissions Violation for Subscription to \"events\"", true),
            ("Permissions Violation for Publish to \"acks\"", true),
            ("Stale Connection", false),
            ("Permissions Violation for Publish with Reply of \"_R_.transcript-processor-start.2\"", true),
        ];
        for (error, is_answer) in told {
            assert_eq!(refusals.heard(error), is_answer, "{error}");
        }
        let (mut open, mut refused) = (vec![1, 2], vec![]);
        hear_answers(&mut errors, &needs, &mut open, &mut refused).await;
        assert_eq!((open, refused), (vec![], vec![0, 1]));
        assert_eq!(needs[1].to_string(), "publish to acks (b)");
        drop(errors);
        assert!(!refusals.heard(told[1].0), "nobody has tried it");
    }
}
