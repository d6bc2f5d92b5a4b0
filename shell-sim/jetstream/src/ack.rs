//! Reply subjects of deliveries, and what is sent to them.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use serde_json::Value;

use super::pull::Pull;

/// The reply subject of a delivery, `$JS.ACK.<stream>.<consumer>.<deliveries>.<sseq>.<cseq>.<ts>.<pending>`: the form with nine tokens, which nats-server 2.15.1 uses unless told otherwise.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AckSubject {
    /// The stream.
    pub stream: Arc<str>,
    /// The consumer.
    pub consumer: Arc<str>,
    /// Which attempt this is, from 1.
    pub deliveries: u64,
    /// The sequence in the stream.
    pub stream_seq: u64,
    /// The sequence among the consumer's deliveries.
    pub consumer_seq: u64,
    /// When the message was stored, in nanoseconds since the Unix epoch.
    pub stored_at_nanos: i64,
    /// Messages the consumer has still to deliver.
    pub pending: u64,
}

impl fmt::Display for AckSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, consumer, deliveries, stream_seq, consumer_seq, stored_at_nanos, pending } = self;
        write!(f, "$JS.ACK.{stream}.{consumer}.{deliveries}.{stream_seq}.{consumer_seq}.{stored_at_nanos}.{pending}")
    }
}

impl AckSubject {
    /// The sequence in the stream that such a subject names, without a look at the rest of it.
    #[must_use]
    pub fn stream_seq_of(subject: &str) -> Option<u64> {
        subject.strip_prefix("$JS.ACK.")?.split('.').nth(3)?.parse().ok()
    }
}

/// Not the reply subject of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAnAckSubject;

impl FromStr for AckSubject {
    type Err = NotAnAckSubject;

    fn from_str(subject: &str) -> Result<Self, Self::Err> {
        let mut rest = subject.strip_prefix("$JS.ACK.").ok_or(NotAnAckSubject)?.split('.');
        let mut token = || rest.next().ok_or(NotAnAckSubject);
        let (stream, consumer) = (token()?, token()?);
        let mut number = || token()?.parse().map_err(|_| NotAnAckSubject);
        let (deliveries, stream_seq, consumer_seq) = (number()?, number()?, number()?);
        let stored_at_nanos = token()?.parse().map_err(|_| NotAnAckSubject)?;
        let pending = token()?.parse().map_err(|_| NotAnAckSubject)?;
        let (stream, consumer) = (stream.into(), consumer.into());
        let subject = Self { stream, consumer, deliveries, stream_seq, consumer_seq, stored_at_nanos, pending };
        rest.next().is_none().then_some(subject).ok_or(NotAnAckSubject)
    }
}

/// What is said to the reply subject of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AckBody {
    /// `+ACK`, `+OK` or nothing: the message is done.
    Ack,
    /// `+NXT`: the message is done, and the reply inbox pulls, unless the request cannot be read.
    Next(Result<Pull, Arc<str>>),
    /// `-NAK`: deliver it again, now or after the delay.
    Nak(Option<Duration>),
    /// `+WPI`: work goes on, the ack wait starts again.
    Progress,
    /// `+TERM`: never deliver it again, with the reason where one is given.
    Term(Option<Arc<str>>),
    /// Anything else: answered, and otherwise ignored.
    Unknown,
}

impl AckBody {
    /// Reads the bytes of the protocol. A nak whose delay cannot be read is a plain nak, as on the server.
    #[must_use]
    pub fn parse(body: &[u8]) -> Self {
        match body {
            b"" | b"+ACK" | b"+OK" => return Self::Ack,
            b"+WPI" => return Self::Progress,
            _ => {}
        }
        if let Some(rest) = body.strip_prefix(b"+NXT") {
            return Self::Next(Pull::parse(rest));
        }
        if let Some(rest) = body.strip_prefix(b"-NAK") {
            return Self::Nak(parse_delay(rest.trim_ascii()));
        }
        if let Some(rest) = body.strip_prefix(b"+TERM") {
            let reason = String::from_utf8_lossy(rest.trim_ascii());
            return Self::Term((!reason.is_empty()).then(|| reason.as_ref().into()));
        }
        Self::Unknown
    }
}

/// A delay as JSON (`{"delay": ns}`) or as Go writes durations (`500ms`, `1m30s`).
fn parse_delay(argument: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(argument).ok()?;
    if text.starts_with('{') {
        let fields: Value = serde_json::from_str(text).ok()?;
        return Some(Duration::from_nanos(fields.get("delay").and_then(Value::as_u64).unwrap_or(0)));
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let value: f64 = rest[..digits].parse().ok()?;
        let unit_len = rest[digits..].find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len() - digits);
        let (unit, tail) = rest[digits..].split_at(unit_len);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return None,
        };
        total += Duration::try_from_secs_f64(value * seconds).ok()?;
        rest = tail;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_subject_is_read_as_it_is_written() {
        let written = "$JS.ACK.S.c.2.7.9.1700000000000000000.3";
        let subject: AckSubject = written.parse().expect("nine tokens");
        assert_eq!((subject.deliveries, subject.stream_seq, subject.consumer_seq, subject.pending), (2, 7, 9, 3));
        assert_eq!(subject.to_string(), written);
        assert_eq!("$JS.ACK.S.c.2.7.9.1".parse::<AckSubject>(), Err(NotAnAckSubject));
    }

    #[test]
    fn bodies_are_read_as_the_server_reads_them() {
        for (body, expected) in [
            ("", AckBody::Ack),
            ("+OK", AckBody::Ack),
            ("+WPI", AckBody::Progress),
            ("+WPI ", AckBody::Unknown),
            ("-NAK", AckBody::Nak(None)),
            ("-NAK 500ms", AckBody::Nak(Some(Duration::from_millis(500)))),
            ("-NAK 1m0.5s", AckBody::Nak(Some(Duration::from_millis(60_500)))),
            ("-NAK {\"delay\": 1000000}", AckBody::Nak(Some(Duration::from_millis(1)))),
            ("-NAK soon", AckBody::Nak(None)),
            ("+TERM  no such call ", AckBody::Term(Some("no such call".into()))),
            ("+TERM", AckBody::Term(None)),
            ("hello", AckBody::Unknown),
        ] {
            assert_eq!(AckBody::parse(body.as_bytes()), expected, "{body}");
        }
        assert!(matches!(AckBody::parse(b"+NXT {\"batch\": 3}"), AckBody::Next(Ok(Pull { batch: 3, .. }))));
    }
}
