//! Starts the transcriber, and ends it.

use std::{fmt::Write as _, io, net::SocketAddr};

use async_nats::jetstream;
use mongodb::Database;
use ring::rand::{SecureRandom, SystemRandom};
use thiserror::Error;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Duration, sleep},
};
use transcript_trace::{FORMAT, TranscriberHeader, TranscriberRecorder};
use transcript_transcriber::{Counters, Settings, SettingsError, StreamState, Transcriber};

use super::{
    access::{Access, AccessError},
    driver::Driver,
    http::{self, RefusedRequests, Service},
    hub::Hub,
    listen,
    socket::SocketLimits,
    store::Store,
    stream::Stream,
};
use crate::{
    cli::{NatsArgs, Online, TranscriberArgs},
    connect::{ConnectError, LoginRefused, Logins, NatsConnection, connect_nats},
    error_line::error_line,
    monitor::{self, http::PageContent, metrics::Broker, transcriber::Watched},
    operate::processes::{self, Inner, Member},
    operate::setup::{self, SetupError, permissions::Refusals},
    service::{
        clock::Clock,
        driver::questions,
        record::{self, RecordError, Recording, Subject, Tape, Target},
        run::{Ends, PROGRAM, RunError, content, own_name, read_token, servers},
        systemd,
    },
};

/// The random bytes that make one start different from every other one.
const NONCE: usize = 8;
/// Between two attempts to reach a NATS server that could not be reached at the start.
const RETRY: Duration = Duration::from_secs(1);
/// How long the last answers to clients may take.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Why the transcriber did not start, or how it ended where it should not have.
#[derive(Debug, Error)]
pub enum TranscriberError {
    /// The files of tokens cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The indexes are not as they must be.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// NATS does not let us in, and will not.
    #[error(transparent)]
    Nats(#[from] ConnectError),
    /// Settings that cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address} (--listen)")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The trace cannot be begun.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes")]
    Random,
    /// It cannot be looked at as it was asked for.
    #[error(transparent)]
    Http(#[from] RunError),
    /// A login stayed refused.
    #[error(transparent)]
    Login(#[from] LoginRefused),
}

/// Runs until a signal comes or a login stays refused; then it takes no more, stores what was received, and hands its sessions
/// over.
///
/// # Errors
///
/// What keeps it from starting, and a login that stayed refused.
pub async fn run(
    online: &Online<TranscriberArgs>,
    database: &Database,
    refusals: &Refusals,
    ends: Ends<'_>,
) -> Result<(), TranscriberError> {
    let args = &online.args;
    let access = Access::read(&args.access)?;
    args.record.directory.as_deref().map_or(Ok(()), record::prepare)?;
    let stream = stream(online, refusals, ends.logins).await?;
    let mut report = setup::Report::default();
    setup::ensure_transcriber(database, &mut report).await?;
    for change in &report.changes {
        tracing::info!("set up: {change}");
    }
    let settings = settings(args, *stream.state().borrow())?;
    let machine = Transcriber::new(settings.clone())?;
    let failed = |source| TranscriberError::Listen { address: args.listen, source };
    let listener = TcpListener::bind(args.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    if access.is_open() {
        tracing::warn!(
            "anybody on this machine can deliver segments: no tokens are required (--token-file, --token-key-file)"
        );
    }
    let (hub, mut events) = Hub::new();
    let limits = SocketLimits {
        max_frame: usize::try_from(args.limits.max_frame.as_u64()).unwrap_or(usize::MAX),
        max_frame_rate: args.limits.max_frame_rate,
        silence_timeout: args.limits.silence_timeout,
    };
    let refused = RefusedRequests::default();
    let (asker, questions) = questions();
    let monitoring = watch_over(args, Watched { asker, refused: refused.clone() }).await?;
    let router = http::router(Service::new(access, hub, limits, refused));
    let (stop, stopped) = watch::channel(false);
    let (max, header) = (args.limits.max_connections, args.limits.header_timeout);
    let listening = tokio::spawn(listen::serve(listener, router, max, header, stopped));
    tracing::info!(name = &*settings.name, %address, "ready");
    systemd::tell(systemd::State::Ready);
    let store = Store::new(database, args.limits.request_timeout);
    let clock = Clock::start();
    let mut helpers = JoinSet::new();
    let member = Member { name: settings.name.to_string(), clock, inner: Inner::Transcriber };
    let connected = stream.clone();
    helpers.spawn(async move { processes::answer(connected.client_once_connected().await, member).await });
    let (tape, recording) = record(online, database, &stream, &settings, clock).await?.unzip();
    let driver = Driver::new(machine, &settings, clock, store, stream.clone(), questions, tape);
    let (drain, mut drained) = mpsc::unbounded_channel();
    let ended = async {
        let (signal, refused) = ends.first().await;
        stop.send_replace(true);
        drain.send(signal).ok();
        refused
    };
    let (counters, refused) = tokio::join!(driver.run(&mut events, &mut drained), ended);
    drop(monitoring);
    if let Ok(places) = listening.await {
        places.all_free(LAST_ANSWERS).await;
    }
    drop(helpers);
    stream.flush().await;
    if let Some(recording) = recording {
        recording.finish().await;
    }
    log_ended(&counters);
    refused.map_or(Ok(()), |refused| Err(refused.into()))
}

/// Serves health, readiness and metrics until what it gives is dropped, where that is asked for.
async fn watch_over(args: &TranscriberArgs, watched: Watched) -> Result<JoinSet<()>, RunError> {
    let mut monitoring = JoinSet::new();
    if let Some(address) = args.http.address {
        let token = args.http.token_file.as_ref().map(read_token).transpose()?;
        let settings = monitor::http::Settings { token, broker: Broker::Left, content: PageContent::Hidden };
        let listener =
            monitor::http::bind(address, &settings).await.map_err(|source| RunError::Http { address, source })?;
        monitoring.spawn(monitor::transcriber::serve(listener, watched, settings.token));
    }
    Ok(monitoring)
}

/// Starts to record, where that is asked for.
async fn record(
    online: &Online<TranscriberArgs>,
    database: &Database,
    stream: &Stream,
    settings: &Settings,
    clock: Clock,
) -> Result<Option<(Tape<Transcriber>, Recording)>, TranscriberError> {
    let args = &online.args.record;
    let Some(target) = Target::of(args) else { return Ok(None) };
    let (started_at, content) = (clock.started_at(), content(args));
    let header = TranscriberHeader {
        format: FORMAT,
        program: PROGRAM.to_owned(),
        servers: servers(stream.client().as_ref(), database).await,
        transcriber: settings.name.clone(),
        started_at,
        content,
        settings: settings.clone(),
        continues: None,
        about: None,
    };
    let failed = |source| RecordError::Directory { directory: target.directory.clone(), source };
    let recorder = TranscriberRecorder::new(vec![], header, &nonce()?).map_err(failed)?;
    Ok(Some(record::start(&target, Subject { name: &settings.name, started_at, content }, recorder, clock)?))
}

fn log_ended(Counters { unstored, unpublished, .. }: &Counters) {
    if *unstored == 0 {
        tracing::info!(unpublished, "ended: what was received is stored, and sessions are left to other transcribers");
    } else {
        tracing::warn!(
            unstored,
            unpublished,
            "the grace time (--grace) was over before everything was stored: what was not stored was not acknowledged, and \
             clients that are told to go elsewhere send it again there"
        );
    }
}

/// The stream: absent where no server is named, and away where it cannot be reached yet.
async fn stream(
    online: &Online<TranscriberArgs>,
    refusals: &Refusals,
    logins: &Logins,
) -> Result<Stream, TranscriberError> {
    let (nats, within) = (&online.nats, online.connect.timeout);
    if !nats.is_named {
        return Ok(Stream::new(StreamState::Absent));
    }
    match connect_nats(nats, within, refusals, logins).await {
        Ok(connection) => {
            let stream = Stream::new(StreamState::Available);
            stream.connected(&connection, context(nats, &connection));
            Ok(stream)
        }
        Err(error @ ConnectError::Nats { fault, .. }) if !fault.is_lasting() => {
            let error = error_line(&error);
            tracing::warn!(error, "segments are stored, and published once NATS can be reached");
            let stream = Stream::new(StreamState::Away);
            tokio::spawn(connect_later(nats.clone(), within, refusals.clone(), logins.clone(), stream.clone()));
            Ok(stream)
        }
        Err(error) => Err(error.into()),
    }
}

async fn connect_later(args: NatsArgs, within: Duration, refusals: Refusals, logins: Logins, stream: Stream) {
    loop {
        match connect_nats(&args, within, &refusals, &logins).await {
            Ok(connection) => return stream.connected(&connection, context(&args, &connection)),
            Err(error) => tracing::debug!(error = error_line(&error), "NATS cannot be reached yet"),
        }
        sleep(RETRY).await;
    }
}

/// The JetStream that publishes; the API's prefix matters to requests only.
fn context(args: &NatsArgs, connection: &NatsConnection) -> jetstream::Context {
    jetstream::with_prefix(connection.client.clone(), &args.js_api_prefix())
}

/// What makes one start different from every other one.
///
/// # Errors
///
/// The system gives no random bytes.
pub(crate) fn nonce() -> Result<String, TranscriberError> {
    let mut random = [0; NONCE];
    SystemRandom::new().fill(&mut random).map_err(|_| TranscriberError::Random)?;
    Ok(random.iter().fold(String::new(), |mut nonce, byte| {
        write!(nonce, "{byte:02x}").ok();
        nonce
    }))
}

fn settings(args: &TranscriberArgs, stream: StreamState) -> Result<Settings, TranscriberError> {
    let name = args.name.clone().unwrap_or_else(own_name);
    let nonce = nonce()?;
    let (limits, ends) = (&args.limits, &args.ends);
    let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    Ok(Settings {
        end_after_close: ends.end_after_close,
        end_after_break: ends.end_after_break,
        end_after_silence: ends.end_after_silence,
        end_after_idle: ends.end_after_idle,
        lease: ends.lease,
        orphans_interval: ends.lease / 2,
        max_connections: size(limits.max_connections),
        max_sessions: size(limits.max_sessions),
        max_session_connections: size(limits.max_session_connections),
        max_session_segments: limits.max_segments,
        max_segment_bytes: usize::try_from(limits.max_frame.as_u64()).unwrap_or(usize::MAX),
        request_timeout: limits.request_timeout,
        grace: limits.grace,
        ..Settings::new(&name, &nonce, stream)
    })
}
