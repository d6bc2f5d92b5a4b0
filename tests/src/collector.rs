//! A collector of OpenTelemetry: takes spans by OTLP over HTTP in JSON, and keeps them.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// What a collector does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectorMood {
    /// Takes it.
    Takes,
    /// Answers with this status.
    Refuses(u16),
    /// Reads it and answers nothing.
    IsSilent,
}

/// A running collector. It ends when this is dropped.
#[derive(Debug)]
pub struct TestCollector {
    address: SocketAddr,
    kept: Arc<Mutex<Kept>>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Kept {
    mood: CollectorMood,
    requests: Vec<CollectedRequest>,
}

/// A request that a collector got.
#[derive(Debug, Clone)]
pub struct CollectedRequest {
    /// The request line and the headers, in lower case.
    pub head: String,
    /// The body.
    pub body: Value,
}

impl TestCollector {
    /// A collector on a free port.
    ///
    /// # Errors
    ///
    /// The system gives no port.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let kept = Arc::new(Mutex::new(Kept { mood: CollectorMood::Takes, requests: vec![] }));
        let task = tokio::spawn(serve(listener, Arc::clone(&kept)));
        Ok(Self { address, kept, task })
    }

    /// Its address, for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it does from now on.
    pub fn be(&self, mood: CollectorMood) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).mood = mood;
    }

    /// The requests that it got, whatever it answered.
    #[must_use]
    pub fn requests(&self) -> Vec<CollectedRequest> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).requests.clone()
    }

    /// The spans of all requests.
    #[must_use]
    pub fn spans(&self) -> Vec<Value> {
        let requests = self.requests();
        let spans =
            requests.iter().filter_map(|request| request.body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array());
        spans.flatten().cloned().collect()
    }
}

impl Drop for TestCollector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The value of an attribute of a span or a resource, as a text.
#[must_use]
pub fn attribute(of: &Value, name: &str) -> Option<String> {
    let attribute = of["attributes"].as_array()?.iter().find(|attribute| attribute["key"] == name)?;
    let (_, value) = attribute["value"].as_object()?.iter().next()?;
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

async fn serve(listener: TcpListener, kept: Arc<Mutex<Kept>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(take(stream, Arc::clone(&kept)));
    }
}

/// Takes one request after another. A client that breaks off is its own business.
async fn take(stream: TcpStream, kept: Arc<Mutex<Kept>>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        stream.read_exact(&mut body).await?;
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let mood = {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.requests.push(CollectedRequest { head, body });
            kept.mood
        };
        let (status, answer) = match mood {
            CollectorMood::Takes => (200, r#"{"partialSuccess":{}}"#),
            CollectorMood::Refuses(status) => (status, "{}"),
            CollectorMood::IsSilent => return std::future::pending().await,
        };
        let length = answer.len();
        let answer = format!(
            "HTTP/1.1 {status} Answer\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{answer}"
        );
        stream.write_all(answer.as_bytes()).await?;
    }
}
