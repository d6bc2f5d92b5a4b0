//! `status`: what the page shows, as a text; and how the document is fetched from a running process.

use std::{fmt::Write as _, io, time::Duration};

use serde_json::Value;
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{secret::Secret, terminal::harmless};

/// How long a process may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// The largest answer that is read, in bytes.
const MOST_BYTES: u64 = 4 << 20;
/// How many jobs are shown.
const JOBS: usize = 10;

/// Why a process did not say how it stands.
#[derive(Debug, Error)]
pub enum FetchError {
    /// It cannot be reached.
    #[error("cannot reach a processor at {address}: is it running with --http {address}?")]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// No answer in time.
    #[error("the processor at {address} does not answer: is it stopped, or is something else listening there?")]
    Silent {
        /// Where it was looked for.
        address: String,
    },
    /// It refused the token.
    #[error("the processor at {address} wants the token of its --http-token-file: give the same file")]
    Unauthorized {
        /// Where it was looked for.
        address: String,
    },
    /// The answer is none of ours.
    #[error("what listens at {address} is not a processor of this version")]
    Unreadable {
        /// Where it was looked for.
        address: String,
    },
}

/// The status document of the process that listens at this address.
///
/// # Errors
///
/// See [`FetchError`].
pub async fn fetch(address: &str, token: Option<&Secret>) -> Result<Value, FetchError> {
    let failed = |source| FetchError::Unreachable { address: address.to_owned(), source };
    let answer = match timeout(ANSWER, get(address, token)).await {
        Ok(answer) => answer.map_err(failed)?,
        Err(_) => return Err(FetchError::Silent { address: address.to_owned() }),
    };
    let unreadable = || FetchError::Unreadable { address: address.to_owned() };
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(unreadable)?;
    match head.split_ascii_whitespace().nth(1) {
        Some("200") => serde_json::from_str(body).map_err(|_| unreadable()),
        Some("401") => Err(FetchError::Unauthorized { address: address.to_owned() }),
        Some(_) | None => Err(unreadable()),
    }
}

/// HTTP/1.0, so that the answer comes in one piece and ends with the connection.
async fn get(address: &str, token: Option<&Secret>) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let authorization = token.map(|token| format!("Authorization: Bearer {}\r\n", token.reveal())).unwrap_or_default();
    let request = format!("GET /status.json HTTP/1.0\r\nHost: {address}\r\n{authorization}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(MOST_BYTES).read_to_string(&mut answer).await?;
    Ok(answer)
}

/// The document for people.
#[must_use]
pub fn render(status: &Value) -> String {
    let mut page = String::new();
    let findings = list(status, "/findings");
    if findings.is_empty() {
        line(&mut page, "Findings", "none: calls are taken, summarised and announced");
    }
    for finding in findings {
        let word =
            if finding.pointer("/blocks").and_then(Value::as_bool) == Some(true) { "NOT READY" } else { "Warning" };
        line(&mut page, word, &text(finding, "/cause"));
        line(&mut page, "", &text(finding, "/consequence"));
        line(&mut page, "", &format!("Do: {}", text(finding, "/remedy")));
        line(&mut page, "", &format!("See {}", text(finding, "/manual")));
    }
    line(&mut page, "Behind", &seconds(status, "/secondsBehind"));
    if status.pointer("/consumer").is_some_and(Value::is_object) {
        let number = |name: &str| text(status, &format!("/consumer/{name}"));
        let pause = match status.pointer("/consumer/pausedSeconds").and_then(Value::as_f64) {
            Some(_) => format!(", paused for {}", seconds(status, "/consumer/pausedSeconds")),
            None => String::new(),
        };
        let (waiting, in_hand, most) = (number("waiting"), number("inHand"), number("maxAckPending"));
        line(&mut page, "Calls", &format!("{waiting} wait, {in_hand} in hand of at most {most}{pause}"));
    }
    line(
        &mut page,
        "MongoDB",
        &match status.pointer("/mongodbPingSeconds").and_then(Value::as_f64) {
            Some(ping) => format!("answers a ping in {:.1} ms", ping * 1000.0),
            None => "does not answer".to_owned(),
        },
    );
    let letters = |name: &str| text(status, &format!("/deadLetters/{name}"));
    let (open, redriven, settled) = (letters("open"), letters("redriven"), letters("settled"));
    line(&mut page, "Dead letters", &format!("{open} open, {redriven} redriven, {settled} settled"));
    processes(&mut page, status);
    if status.pointer("/process").is_some_and(Value::is_object) {
        process(&mut page, status);
    }
    page
}

/// Who is alive, one a line.
fn processes(page: &mut String, status: &Value) {
    for (place, process) in list(status, "/processes").iter().enumerate() {
        let head = if place == 0 { "Alive" } else { "" };
        let is = |name: &str| process.pointer(name).and_then(Value::as_bool) == Some(true);
        let stands = match process.pointer("/silentSeconds").and_then(Value::as_f64) {
            Some(_) => format!("NO ANSWER for {}", seconds(process, "/silentSeconds")),
            None if is("/draining") => "comes to its end".to_owned(),
            None if is("/quiet") => format!("QUIET, {} in hand", text(process, "/inHand")),
            None if process.pointer("/inHand").is_some() => format!("{} in hand", text(process, "/inHand")),
            None => "takes segments".to_owned(),
        };
        let (kind, name, up) = (text(process, "/kind"), text(process, "/name"), seconds(process, "/uptimeSeconds"));
        line(page, head, &format!("{kind} {name}, version {}, up {up}: {stands}", text(process, "/version")));
    }
}

fn process(page: &mut String, status: &Value) {
    let of = |name: &str| text(status, &format!("/process/{name}"));
    let up = seconds(status, "/process/uptimeSeconds");
    line(page, "Process", &format!("{}, version {}, up {up}", of("name"), of("version")));
    if status.pointer("/process/standsStill").and_then(Value::as_bool) == Some(true) {
        line(page, "", "its event loop stands still: restart it");
    }
    let phases = status.pointer("/process/phases").and_then(Value::as_object);
    let phases: Vec<String> =
        phases.into_iter().flatten().map(|(phase, jobs)| format!("{jobs} {}", harmless(phase))).collect();
    line(page, "In hand here", &if phases.is_empty() { "nothing".to_owned() } else { phases.join(", ") });
    let since = |name: &str| text(status, &format!("/process/sinceStart/{name}"));
    let done = format!(
        "{} complete, {} incomplete, {} dead letters, {} announced before",
        since("complete"),
        since("incomplete"),
        since("deadLettered"),
        since("announcedBefore")
    );
    line(page, "Since start", &done);
    line(page, "To announce", &seconds(status, "/process/sinceStart/notificationSeconds"));
    for (place, job) in list(status, "/process/jobs").iter().take(JOBS).enumerate() {
        let head = if place == 0 { "Oldest" } else { "" };
        let (age, phase, attempt) = (seconds(job, "/ageSeconds"), text(job, "/phase"), text(job, "/attempt"));
        line(page, head, &format!("{age}  {phase}, attempt {attempt}  {}", text(job, "/key")));
    }
}

fn line(page: &mut String, head: &str, value: &str) {
    writeln!(page, "{head:<14}{value}").expect("a String takes everything");
}

fn list<'a>(value: &'a Value, place: &str) -> &'a [Value] {
    value.pointer(place).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// A text or a number, without what a terminal would obey.
fn text(value: &Value, place: &str) -> String {
    match value.pointer(place) {
        Some(Value::String(text)) => harmless(text),
        Some(other @ (Value::Number(_) | Value::Bool(_))) => other.to_string(),
        Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => "-".to_owned(),
    }
}

fn seconds(value: &Value, place: &str) -> String {
    let Some(seconds) = value.pointer(place).and_then(Value::as_f64) else { return "not known".to_owned() };
    match Duration::try_from_secs_f64(seconds) {
        Ok(span) if span < Duration::from_secs(60) => format!("{:.1} s", span.as_secs_f64()),
        Ok(span) => humantime::format_duration(Duration::from_secs(span.as_secs())).to_string(),
        Err(_) => "not known".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_is_told_and_what_a_terminal_would_obey_is_not() {
        let status = json!({
            "findings": [{
                "name": "consumer_paused", "blocks": true, "cause": "the consumer is paused for another 5m",
                "consequence": "No call is handed out.", "remedy": "Resume it.", "manual": "m#consumer_paused",
            }],
            "secondsBehind": 61.5,
            "consumer": { "waiting": 3, "inHand": 0, "maxAckPending": 65536, "pausedSeconds": 300.0 },
            "mongodbPingSeconds": null,
            "deadLetters": { "open": 1, "redriven": 0, "settled": 0 },
            "process": {
                "name": "a\u{1b}[2Jb", "version": "0.1.0", "uptimeSeconds": 5.0, "standsStill": false,
                "phases": { "quiet": 1 }, "jobs": [{ "key": "c:\u{202e}s", "phase": "quiet", "ageSeconds": 2.0, "attempt": 1 }],
                "sinceStart": { "complete": 7, "incomplete": 1, "deadLettered": 0, "announcedBefore": 0 },
            },
        });
        let page = render(&status);
        for told in [
            "NOT READY     the consumer is paused",
            "Do: Resume it.",
            "1m 1s",
            "3 wait",
            "does not answer",
            "7 complete",
        ] {
            assert!(page.contains(told), "{told} is not in:\n{page}");
        }
        assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}'), "{page:?}");
    }
}
