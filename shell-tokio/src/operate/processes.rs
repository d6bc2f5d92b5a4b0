//! The processes that are alive, and `quiet`.
//!
//! Every processor and every transcriber answers requests on [`PROCESSES_SUBJECT`], and on [a subject of its
//! own](process_subject), with how it stands ([`Presence`]). Nothing is sent while nobody asks, and nothing is stored: the
//! subjects are none of a stream's. A process that does not answer is stopped, cut off from NATS, or stands still.
//!
//! On its own subject a processor can be told to be quiet: it takes no more calls, finishes those in hand, and goes on when
//! it is told to. Whoever may publish there can do that: let only operators publish to `transcript-processes.>`.

use std::{cmp::Reverse, collections::BTreeMap, fmt, time::Duration};

use async_nats::{Client, Message, client::RequestErrorKind};
use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use transcript_core::{
    Input, Time,
    contract::{PROCESSES_SUBJECT, process_subject},
};

use crate::service::{clock::Clock, driver::Asker};

/// How long answers of all processes are waited for, after the last one that came.
const ANSWERS: Duration = Duration::from_millis(500);
/// How long they are waited for at the most.
const ALL_ANSWERS: Duration = Duration::from_secs(2);
/// How long the answer of one process is waited for.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a driver may take to answer.
const DRIVER: Duration = Duration::from_secs(2);
/// The pause before a driver is asked again whether it has done what it was told.
const AGAIN: Duration = Duration::from_millis(20);
/// How many processes are told of at the most.
const MOST: usize = 1000;
/// How long a process that answers no more is told of.
const REMEMBERED: Duration = Duration::from_secs(600);
/// The longest answer that is read, in bytes, and the longest name that is shown.
const LONGEST: usize = 4096;

/// How a process stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Presence {
    /// Its name (`--name`).
    pub name: String,
    /// What it is.
    pub kind: ProcessKind,
    /// Its version.
    pub version: String,
    /// How long it has run.
    pub uptime_seconds: f64,
    /// Whether it takes no calls until it is told to go on.
    #[serde(default)]
    pub quiet: bool,
    /// Whether it comes to its end.
    #[serde(default)]
    pub draining: bool,
    /// How many calls a processor has in hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_hand: Option<u64>,
    /// For how long it has not answered any more; absent where it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_seconds: Option<f64>,
}

/// What a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessKind {
    /// It summarises calls.
    Processor,
    /// It takes segments.
    Transcriber,
}

impl fmt::Display for ProcessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Processor => "processor",
            Self::Transcriber => "transcriber",
        })
    }
}

/// What a process is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ask {
    /// How it stands.
    Look,
    /// To take no more calls.
    Quiet,
    /// To take calls again.
    Resume,
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    ask: Ask,
}

/// A process that answers.
#[derive(Debug)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its clock.
    pub clock: Clock,
    /// What it is.
    pub inner: Inner,
}

/// What tells how a process stands.
#[derive(Debug)]
pub enum Inner {
    /// The driver of a processor.
    Processor {
        /// Asks it.
        asker: Asker,
        /// Tells it.
        inputs: mpsc::UnboundedSender<Input>,
    },
    /// A transcriber.
    Transcriber,
}

/// Why a process did not do what it was told.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// Nobody answers to the name.
    #[error("no process answers to the name {name:?}: `transcript-processor status` names those that are alive")]
    Absent {
        /// The name.
        name: String,
    },
    /// No answer in time, or one that cannot be read.
    #[error("the process {name:?} gives no answer: is it stopped, or of another version?")]
    Silent {
        /// The name.
        name: String,
    },
    /// It is no processor.
    #[error("{name:?} is a transcriber: only processors can be quiet. To take a transcriber out of use, stop it")]
    NoProcessor {
        /// The name.
        name: String,
    },
    /// It comes to its end, or has not done it.
    #[error("the process {name:?} does not do it: it comes to its end, or its event loop is held up")]
    Refused {
        /// The name.
        name: String,
    },
}

/// Answers requests until it is dropped.
pub async fn answer(client: Client, member: Member) {
    let own = process_subject(&member.name);
    let (Ok(all), Ok(own)) = (client.subscribe(PROCESSES_SUBJECT).await, client.subscribe(own).await) else { return };
    let mut requests = stream::select(all, own);
    while let Some(message) = requests.next().await {
        let Some(reply) = message.reply.clone() else { continue };
        let Some(presence) = member.does(asked(&message)).await else { continue };
        let Ok(answer) = serde_json::to_vec(&presence) else { continue };
        if client.publish(reply, answer.into()).await.is_err() {
            return;
        }
    }
}

/// What a message asks. All processes together are asked how they stand, and nothing else.
fn asked(message: &Message) -> Ask {
    if message.subject.as_str() == PROCESSES_SUBJECT || message.payload.len() > LONGEST {
        return Ask::Look;
    }
    serde_json::from_slice(&message.payload).map_or(Ask::Look, |Request { ask }| ask)
}

impl Member {
    /// Does what is asked, and says how it stands then; `None` where it does not know.
    async fn does(&self, ask: Ask) -> Option<Presence> {
        let mut presence = Presence {
            name: self.name.clone(),
            kind: ProcessKind::Transcriber,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.clock.now().since(Time::ZERO).as_secs_f64(),
            quiet: false,
            draining: false,
            in_hand: None,
            silent_seconds: None,
        };
        let Inner::Processor { asker, inputs } = &self.inner else { return Some(presence) };
        let wanted = match ask {
            Ask::Look => None,
            Ask::Quiet => Some((Input::Quiet, true)),
            Ask::Resume => Some((Input::Resume, false)),
        };
        let is_quiet = wanted.as_ref().map(|(_, quiet)| *quiet);
        if let Some((input, _)) = wanted {
            inputs.send(input).ok()?;
        }
        let until = Instant::now() + DRIVER;
        // The driver takes its inputs and its questions in any order.
        let seen = loop {
            let seen = asker.ask(DRIVER).await?;
            if is_quiet.is_none_or(|quiet| seen.is_quiet == quiet) || seen.is_draining || Instant::now() >= until {
                break seen;
            }
            sleep(AGAIN).await;
        };
        presence.kind = ProcessKind::Processor;
        (presence.quiet, presence.draining) = (seen.is_quiet, seen.is_draining);
        presence.in_hand = Some(seen.states.values().map(|jobs| u64::try_from(*jobs).unwrap_or(u64::MAX)).sum());
        Some(presence)
    }
}

/// The processes that answer, processors first, by name; 1000 at the most.
pub async fn alive(client: &Client) -> Vec<Presence> {
    let mut found = vec![];
    let inbox = client.new_inbox();
    let Ok(mut answers) = client.subscribe(inbox.clone()).await else { return found };
    if client.publish_with_reply(PROCESSES_SUBJECT, inbox, body(Ask::Look).into()).await.is_err() {
        return found;
    }
    let until = Instant::now() + ALL_ANSWERS;
    while found.len() < MOST {
        let left = until.saturating_duration_since(Instant::now()).min(ANSWERS);
        let Ok(Some(message)) = timeout(left, answers.next()).await else { break };
        // A server that knows nobody who listens says so.
        if message.status.is_some() {
            break;
        }
        found.extend(read(&message.payload));
    }
    found.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
    found
}

/// Tells a processor to be quiet, or to go on; gives how it stands then.
///
/// # Errors
///
/// See [`ProcessError`].
pub async fn tell(client: &Client, name: &str, ask: Ask) -> Result<Presence, ProcessError> {
    let named = || name.to_owned();
    let request = client.request(process_subject(name), body(ask).into());
    let answer = match timeout(ANSWER, request).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => {
            return Err(ProcessError::Absent { name: named() });
        }
        Ok(Err(_)) | Err(_) => return Err(ProcessError::Silent { name: named() }),
    };
    let presence = read(&answer.payload).ok_or_else(|| ProcessError::Silent { name: named() })?;
    if presence.kind == ProcessKind::Transcriber {
        return Err(ProcessError::NoProcessor { name: named() });
    }
    let is_done = match ask {
        Ask::Look => true,
        Ask::Quiet => presence.quiet,
        Ask::Resume => !presence.quiet && !presence.draining,
    };
    if is_done { Ok(presence) } else { Err(ProcessError::Refused { name: named() }) }
}

fn body(ask: Ask) -> Vec<u8> {
    serde_json::to_vec(&Request { ask }).unwrap_or_default()
}

/// An answer, where it is one: anybody may publish to an inbox.
fn read(payload: &[u8]) -> Option<Presence> {
    let presence: Presence = if payload.len() > LONGEST { None } else { serde_json::from_slice(payload).ok() }?;
    Some(Presence { silent_seconds: None, ..presence })
}

/// Processes that were seen, with those that answer no more.
#[derive(Debug, Default)]
pub struct Memory {
    seen: BTreeMap<(ProcessKind, String), (Presence, Instant)>,
}

impl Memory {
    /// Takes what answered now, and gives everything that is known: what answers, and for ten minutes what did.
    pub fn note(&mut self, now: Instant, alive: Vec<Presence>) -> Vec<Presence> {
        for presence in alive {
            self.seen.insert((presence.kind, presence.name.clone()), (presence, now));
        }
        self.seen.retain(|_, (_, at)| now.duration_since(*at) < REMEMBERED);
        while self.seen.len() > MOST {
            let oldest = self.seen.iter().max_by_key(|(_, (_, at))| Reverse(*at)).map(|(key, _)| key.clone());
            oldest.and_then(|key| self.seen.remove(&key));
        }
        let told = |(presence, at): &(Presence, Instant)| {
            let silent = now.duration_since(*at);
            let silent_seconds = (!silent.is_zero()).then_some(silent.as_secs_f64());
            Presence { silent_seconds, ..presence.clone() }
        };
        self.seen.values().map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(name: &str) -> Presence {
        Presence {
            name: name.to_owned(),
            kind: ProcessKind::Processor,
            version: "1".to_owned(),
            uptime_seconds: 1.0,
            quiet: false,
            draining: false,
            in_hand: Some(0),
            silent_seconds: None,
        }
    }

    #[test]
    fn a_process_that_answers_no_more_is_told_of_for_ten_minutes() {
        let (mut memory, start) = (Memory::default(), Instant::now());
        assert_eq!(memory.note(start, vec![presence("b"), presence("a")]), [presence("a"), presence("b")]);
        let later = memory.note(start + Duration::from_secs(60), vec![presence("b")]);
        assert_eq!(later, [Presence { silent_seconds: Some(60.0), ..presence("a") }, presence("b")]);
        assert_eq!(memory.note(start + Duration::from_secs(601), vec![presence("b")]), [presence("b")]);
        let many = (0..2000).map(|number| presence(&number.to_string())).collect();
        assert_eq!(memory.note(start + Duration::from_secs(602), many).len(), MOST);
    }

    #[test]
    fn what_is_no_answer_is_left_out() {
        let answer = serde_json::to_vec(&presence("a")).expect("JSON");
        assert_eq!(read(&answer), Some(presence("a")));
        for other in [&b""[..], b"{}", b"[1]", &[b' '; LONGEST + 1]] {
            assert_eq!(read(other), None);
        }
    }
}
