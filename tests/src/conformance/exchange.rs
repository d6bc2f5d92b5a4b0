//! The protocol of the model held against the real server's: the same messages are sent to both, and the same bytes must come
//! back, but for times.
//!
//! An [`Exchange`] needs no clock: a step is sent when the one before it is answered. The client writes and reads the protocol
//! itself, because a client library would refuse to send what is tested, and would not show the bytes that come.

use std::{io, net::SocketAddr, time::Duration};

use jetstream_model::{
    Broker, ClientId, Event, Headers, Input, Room, Tuning,
    wire::{ClientLimits, Connection, Frame, Received, Violation},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

use crate::servers::{NatsOptions, NatsServer};

/// How long an answer may take before it counts as missing.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// The subscription to the inboxes of the steps.
const SID: u64 = 1;
/// The subscription to the advisories about consumers.
const ADVISORIES: u64 = 2;

/// Messages that are sent one after the other, on a server of their own.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Exchange {
    /// A sentence: what it shows.
    pub name: String,
    /// How the server is configured.
    #[serde(default)]
    pub server: ServerPlan,
    /// What is sent.
    pub steps: Vec<Sent>,
}

/// The limits of a server.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerPlan {
    /// `max_file_store`, in bytes.
    pub max_file_store: Option<u64>,
    /// `max_store` of the account, in bytes.
    pub account_store: Option<u64>,
    /// `max_payload`, in bytes.
    pub max_payload: Option<u64>,
}

/// A message to the server.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Sent {
    /// The subject.
    pub subject: String,
    /// In place of the subject: the step whose last message is acknowledged, from 0.
    pub acknowledges: Option<usize>,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// In place of the headers: the header block; characters stand for bytes.
    pub block: String,
    /// The payload: a string as it is, anything else as JSON.
    pub payload: Value,
    /// How many bytes follow the payload, to make it large.
    pub padding: usize,
}

impl Sent {
    fn headers(&self) -> Headers {
        if self.block.is_empty() {
            return Headers::from_pairs(self.headers.iter().map(|(name, value)| (name, value)));
        }
        let bytes = self.block.chars().map(|byte| u8::try_from(u32::from(byte)).unwrap_or(b'?'));
        Headers::raw(bytes.collect::<Vec<u8>>())
    }

    fn payload(&self) -> Vec<u8> {
        let mut payload = match &self.payload {
            Value::Null => Vec::new(),
            Value::String(text) => text.clone().into_bytes(),
            json @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                json.to_string().into_bytes()
            }
        };
        payload.resize(payload.len() + self.padding, b'x');
        payload
    }
}

/// What came back because of each step, one line a message. What differs from run to run is masked.
pub type Replies = Vec<Vec<String>>;

/// A message as the client got it.
#[derive(Debug, Clone)]
struct Got {
    sid: u64,
    subject: String,
    reply: String,
    block: Vec<u8>,
    payload: Vec<u8>,
}

impl Got {
    fn shown(&self) -> String {
        let Self { sid, subject, reply, block, payload } = self;
        let block = block.escape_ascii().to_string();
        let block = match block.split_once("Nats-Subject: ") {
            Some((before, subject)) => format!("{before}Nats-Subject: {}", masked_reply(subject)),
            None => block,
        };
        format!("{sid} {subject} {} [{block}] {}", masked_reply(reply), masked(payload))
    }
}

/// The seventh token of an acknowledgement subject is a time.
fn masked_reply(reply: &str) -> String {
    let mut tokens: Vec<&str> = reply.split('.').collect();
    if let Some(time) = tokens.get_mut(7).filter(|_| reply.starts_with("$JS.ACK.")) {
        *time = "*";
    }
    tokens.join(".")
}

/// Times, the ids of advisories, the server's name and what is left of a pause.
fn masked(payload: &[u8]) -> String {
    let text = String::from_utf8_lossy(payload);
    let mut parts: Vec<&str> = text.split('"').collect();
    for at in 2..parts.len() {
        let is_id = matches!(parts[at - 2], "id" | "leader") && parts[at - 1] == ":";
        if is_id || is_time(parts[at]) {
            parts[at] = "*";
        } else if parts[at - 1] == "pause_remaining" {
            parts[at] = parts[at].trim_matches(|c: char| c == ':' || c.is_ascii_digit());
        }
    }
    parts.join("\"")
}

fn is_time(text: &str) -> bool {
    text.len() >= 20 && text.as_bytes()[10] == b'T' && text.ends_with('Z') && !text.starts_with("0001")
}

/// Within a step, the order counts for each subscription.
fn in_order(mut got: Vec<Got>) -> Vec<Got> {
    got.sort_by_key(|got| got.sid);
    got
}

/// Runs the exchange against the model.
#[must_use]
pub fn model(exchange: &Exchange) -> Replies {
    let mut bench = ModelBench::new(&exchange.server);
    let mut steps: Vec<Vec<Got>> = vec![];
    for (number, sent) in exchange.steps.iter().enumerate() {
        let subject = subject_of(sent, &steps);
        let Some(got) = bench.send(number, &subject, sent) else {
            return shown(&steps, Some("the server closes the connection"));
        };
        steps.push(in_order(got));
    }
    shown(&steps, None)
}

fn shown(steps: &[Vec<Got>], end: Option<&str>) -> Replies {
    let lines = steps.iter().map(|step| step.iter().map(Got::shown).collect());
    lines.chain(end.map(|end| vec![end.to_owned()])).collect()
}

fn subject_of(sent: &Sent, steps: &[Vec<Got>]) -> String {
    let acknowledged = sent.acknowledges.and_then(|step| steps.get(step)?.iter().rfind(|got| got.sid == SID));
    acknowledged.map_or_else(|| sent.subject.clone(), |got| got.reply.clone())
}

struct ModelBench {
    broker: Broker,
    connection: Connection,
}

const CLIENT: ClientId = ClientId(1);

impl ModelBench {
    fn new(plan: &ServerPlan) -> Self {
        let mut broker = Broker::new(1_700_000_000_000, Tuning::default());
        broker.handle(Duration::ZERO, Input::Connect(CLIENT));
        let room = Room { server_bytes: plan.max_file_store, account_bytes: plan.account_store };
        broker.handle(Duration::ZERO, Input::Limit(room));
        let defaults = ClientLimits::default();
        let limits = ClientLimits { max_payload: plan.max_payload.unwrap_or(defaults.max_payload), ..defaults };
        let mut bench = Self { broker, connection: Connection::new(CLIENT, limits) };
        for (sid, subject) in SUBSCRIPTIONS {
            let frame = Frame::Subscribe { sid, subject: subject.into(), group: None };
            bench.frame(frame).expect("a subscription is no violation");
        }
        bench
    }

    /// What comes; `None` where the server closes the connection.
    fn send(&mut self, number: usize, subject: &str, sent: &Sent) -> Option<Vec<Got>> {
        let frame = Frame::Publish {
            subject: subject.into(),
            reply: Some(inbox(number).into()),
            headers: sent.headers(),
            payload: sent.payload().into(),
        };
        let received = self.frame(frame).ok()?;
        Some(received.into_iter().map(|(sid, message)| got(sid, &message)).collect())
    }

    fn frame(&mut self, frame: Frame) -> Result<Vec<(u64, Received)>, Violation> {
        let (mut inputs, mut received) = (vec![], vec![]);
        self.connection.send(frame, &mut inputs)?;
        for input in inputs {
            self.broker.handle(Duration::ZERO, input);
            while let Some(event) = self.broker.poll(Duration::ZERO) {
                if let Event::Send { to, message } = event {
                    self.connection.receive(to, message, &mut received)?;
                }
            }
        }
        Ok(received)
    }
}

const SUBSCRIPTIONS: [(u64, &str); 2] = [(SID, "_INBOX.step.*"), (ADVISORIES, "$JS.EVENT.ADVISORY.CONSUMER.>")];

fn inbox(number: usize) -> String {
    format!("_INBOX.step.{number}")
}

fn got(sid: u64, message: &Received) -> Got {
    Got {
        sid,
        subject: message.subject.as_deref().unwrap_or_default().to_owned(),
        reply: message.reply.as_deref().unwrap_or_default().to_owned(),
        block: message.header_block(),
        payload: message.payload.to_vec(),
    }
}

/// Runs the exchange against a nats-server of its own; `expected` says for how many messages to wait.
///
/// # Errors
///
/// The server is not there, or the connection fails.
pub async fn real(exchange: &Exchange, expected: &Replies) -> io::Result<Replies> {
    let store = exchange.server.max_file_store.map(|most| format!("max_file_store: {most}")).unwrap_or_default();
    let server = NatsServer::start_with_jetstream(options(&exchange.server), store).await.map_err(io::Error::other)?;
    let mut client = RawClient::connect(server.process().address()).await?;
    let mut steps: Vec<Vec<Got>> = vec![];
    for (number, sent) in exchange.steps.iter().enumerate() {
        let subject = subject_of(sent, &steps);
        let wanted = expected.get(number).map_or(0, Vec::len);
        client.publish(&subject, &inbox(number), sent).await?;
        let mut got = vec![];
        while got.len() < wanted {
            match timeout(ANSWERED_WITHIN, client.next()).await {
                Ok(Ok(Some(message))) => got.push(message),
                Ok(Ok(None)) => return Ok(shown(&steps, Some("the server closes the connection"))),
                Ok(Err(error)) => return Err(error),
                Err(_) => break,
            }
        }
        got.extend(client.flushed().await?);
        steps.push(in_order(got));
    }
    Ok(shown(&steps, None))
}

fn options(plan: &ServerPlan) -> NatsOptions {
    let account = plan.account_store.map(|most| {
        let users = "users: [ { user: tester, password: tester } ]";
        format!("accounts {{ TEST: {{ jetstream: {{ max_store: {most} }}, {users} }} }}\nno_auth_user: tester\n")
    });
    let payload = plan.max_payload.map(|most| format!("max_payload: {most}\n"));
    NatsOptions { config: [account, payload].into_iter().flatten().collect(), ..NatsOptions::default() }
}

/// A client that reads and writes the protocol as it is.
struct RawClient {
    stream: BufReader<TcpStream>,
}

/// What the server says.
enum FromServer {
    Message(Got),
    Pong,
    Other,
    Closed,
}

impl RawClient {
    async fn connect(address: SocketAddr) -> io::Result<Self> {
        let mut client = Self { stream: BufReader::new(TcpStream::connect(address).await?) };
        let hello = r#"CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}"#;
        let subscribe = SUBSCRIPTIONS.map(|(sid, subject)| format!("SUB {subject} {sid}\r\n"));
        client.stream.write_all(format!("{hello}\r\n{}", subscribe.concat()).as_bytes()).await?;
        client.flushed().await?;
        Ok(client)
    }

    async fn publish(&mut self, subject: &str, reply: &str, sent: &Sent) -> io::Result<()> {
        let (headers, payload) = (sent.headers(), sent.payload());
        let block = headers.to_bytes();
        let line = if block.is_empty() {
            format!("PUB {subject} {reply} {}\r\n", payload.len())
        } else {
            format!("HPUB {subject} {reply} {} {}\r\n", block.len(), block.len() + payload.len())
        };
        self.stream.write_all(&[line.as_bytes(), &block, &payload, b"\r\n"].concat()).await
    }

    /// The next message; `None` where the connection ends.
    async fn next(&mut self) -> io::Result<Option<Got>> {
        loop {
            match self.read().await? {
                FromServer::Message(got) => return Ok(Some(got)),
                FromServer::Closed => return Ok(None),
                FromServer::Pong | FromServer::Other => {}
            }
        }
    }

    /// What comes until the server has handled everything that was sent, twice: what it does in the background comes between.
    async fn flushed(&mut self) -> io::Result<Vec<Got>> {
        let mut got = vec![];
        for _ in 0..2 {
            self.stream.write_all(b"PING\r\n").await?;
            loop {
                match self.read().await? {
                    FromServer::Message(message) => got.push(message),
                    FromServer::Pong | FromServer::Closed => break,
                    FromServer::Other => {}
                }
            }
        }
        Ok(got)
    }

    async fn read(&mut self) -> io::Result<FromServer> {
        let mut line = String::new();
        match self.stream.read_line(&mut line).await {
            Ok(0) => return Ok(FromServer::Closed),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(FromServer::Closed),
            Ok(_) => {}
            Err(error) => return Err(error),
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let (subject, sid, rest) = match words[..] {
            ["PONG"] => return Ok(FromServer::Pong),
            ["PING"] => {
                self.stream.write_all(b"PONG\r\n").await?;
                return Ok(FromServer::Other);
            }
            ["MSG" | "HMSG", subject, sid, ref rest @ ..] => (subject.to_owned(), sid, rest),
            _ => return Ok(FromServer::Other),
        };
        let number = |word: &str| word.parse::<usize>().map_err(io::Error::other);
        let (reply, header_len, total) = match (words[0], rest) {
            ("MSG", [total]) => ("", 0, number(total)?),
            ("MSG", [reply, total]) => (*reply, 0, number(total)?),
            (_, [header_len, total]) => ("", number(header_len)?, number(total)?),
            (_, [reply, header_len, total]) => (*reply, number(header_len)?, number(total)?),
            (_, _) => return Err(io::Error::other(format!("not understood: {line}"))),
        };
        let (sid, reply) = (sid.parse().map_err(io::Error::other)?, reply.to_owned());
        let mut block = vec![0; total + 2];
        self.stream.read_exact(&mut block).await?;
        block.truncate(total);
        let payload = block.split_off(header_len);
        Ok(FromServer::Message(Got { sid, subject, reply, block, payload }))
    }
}
