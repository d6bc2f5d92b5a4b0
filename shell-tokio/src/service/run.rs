//! The service: connects, sets up, and drives the core until it is told to stop.

use std::{pin::pin, sync::Arc, time::Duration};

use async_nats::jetstream;
use mongodb::{Database, bson::doc};
use thiserror::Error;
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet, time::timeout};
use transcript_client::jetstream::JetStream;
use transcript_core::{Processor, Settings, SettingsError, contract::Announcement, summary::Limits};
use transcript_trace::{Content, FORMAT, Header, Recorder, Servers};

use crate::{
    cli::{AnnounceSettings, RecordArgs, RunArgs, RunSettings, StreamValues},
    connect::{LoginRefused, Logins, NatsConnection},
    error_line::error_line,
    monitor::{
        Monitor, Parts,
        http::{self, PageContent, Settings as HttpSettings},
        metrics::Broker,
        otlp::{LAST_SPANS, Spans},
        servers::Looker,
    },
    operate::history::{History, HistoryError},
    operate::processes::{self, Inner, Member},
    operate::setup::{self, Api, SetupError, permissions::Permissions},
    secret::{Secret, SecretFile},
    service::clock::Clock,
    service::driver::{Driver, Ended, RealServers, Signal, questions},
    service::mongodb::{BatchSizes, Store, stale::Watch},
    service::nats::{Socket, flush},
    service::record::{self, RecordError, Recording, Subject, Tape, Target},
    service::{
        systemd,
        watchdog::{self, Loop, LoopHealth, Turns, Watchdog},
    },
};

/// How long after it was missed a consumer is made anew. nats-server removes the files of a deleted one a while after it
/// has answered, and takes those of a new one along that is made too soon (seen with 2.15.1).
const MEND_AFTER: Duration = Duration::from_secs(1);
/// How much longer a stream is waited for, whose files are larger.
const MEND_STREAM_AFTER: Duration = Duration::from_secs(2);

/// What writes a trace.
pub(crate) const PROGRAM: &str = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));

/// Why the service did not start, or how it ended where it should not have.
#[derive(Debug, Error)]
pub enum RunError {
    /// The streams, the consumer or the indexes are not as they must be.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Settings that cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The connection to NATS is closed.
    #[error("cannot listen to JetStream")]
    Subscribe(#[from] async_nats::SubscribeError),
    /// The trace cannot be begun.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A login stayed refused.
    #[error(transparent)]
    Login(#[from] LoginRefused),
    /// The address of --http cannot be had.
    #[error("cannot listen for HTTP at {address} (--http): another process may have that port")]
    Http {
        /// The address.
        address: std::net::SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The token cannot be read.
    #[error("cannot read a token from --http-token-file {file}")]
    HttpToken {
        /// The file.
        file: SecretFile,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system has no thread left for the watchdog.
    #[error("cannot start the watchdog")]
    Watchdog(#[source] std::io::Error),
}

/// What ends the service.
#[derive(Debug)]
pub struct Ends<'a> {
    /// A login that stays refused.
    pub logins: &'a Logins,
    /// The first signal.
    pub signals: &'a mut mpsc::UnboundedReceiver<Signal>,
}

impl Ends<'_> {
    /// Waits for the first of them: the signal that is to be handed on, and the login where it is one that stays refused.
    pub async fn first(self) -> (Signal, Option<LoginRefused>) {
        tokio::select! {
            Some(signal) = self.signals.recv() => (signal, None),
            refused = self.logins.refused_for_too_long() => {
                tracing::error!("{refused}");
                (Signal::Drain, Some(refused))
            }
        }
    }
}

/// Runs until a signal comes or a login stays refused, then finishes what has begun to save within the grace time.
///
/// # Errors
///
/// What keeps the service from starting, and a login that stayed refused.
pub async fn run(
    connection: NatsConnection,
    jetstream: jetstream::Context,
    api: Api,
    permissions: Permissions<'_>,
    database: Database,
    args: &RunArgs,
    ends: Ends<'_>,
) -> Result<(), RunError> {
    // A start that must fail changes nothing on the servers.
    let http = listen(args).await?;
    args.record.directory.as_deref().map_or(Ok(()), record::prepare)?;
    let mut request = setup::Request { settings: args.stream.clone(), api, ..setup::Request::default() };
    let report = tokio::select! {
        report = async {
            permissions.check_run(&connection.client, &announcements(args)).await?;
            set_up(&jetstream, &database, args, &request).await
        } => report?,
        _ = ends.signals.recv() => {
            tracing::info!("stopped before it had begun");
            return Ok(());
        }
    };
    for change in &report.changes {
        tracing::info!("set up: {change}");
    }
    for kept in &report.kept {
        tracing::info!("set up: {kept}");
    }
    for warning in &report.warnings {
        tracing::warn!("{warning}");
    }
    // What is lost while it runs is made as it was.
    (request.defaults, request.api) = (report.values, Api::Known);
    let (drain, mut drained) = mpsc::unbounded_channel();
    let processor = Processor::new(core_settings(args, &report.values))?;
    let mut driven = pin!(drive(
        connection,
        &jetstream,
        &database,
        args,
        &request,
        processor,
        Control { http, signals: &mut drained }
    ));
    let refused = tokio::select! {
        ended = &mut driven => return ended,
        (signal, refused) = ends.first() => {
            drain.send(signal).ok();
            refused
        }
    };
    driven.await?;
    refused.map_or(Ok(()), |refused| Err(refused.into()))
}

/// What looks at a processor and ends it.
#[derive(Debug)]
pub struct Control<'a> {
    /// Where it is looked at over HTTP, where that is asked for.
    pub http: Option<(TcpListener, HttpSettings)>,
    /// What ends it.
    pub signals: &'a mut mpsc::UnboundedReceiver<Signal>,
}

/// Drives this core, on servers that are set up as `request` says, until it has drained.
///
/// # Errors
///
/// The connection to NATS is closed.
pub async fn drive(
    connection: NatsConnection,
    jetstream: &jetstream::Context,
    database: &Database,
    args: &RunArgs,
    request: &setup::Request,
    mut processor: Processor,
    Control { http, signals }: Control<'_>,
) -> Result<(), RunError> {
    let NatsConnection { client, events, api_prefix } = connection;
    let values = request.settings.or(request.defaults);
    let (reports, inputs) = mpsc::unbounded_channel();
    let (received, nats) = mpsc::unbounded_channel();
    let clock = Clock::start();
    let (repair, problems) = mpsc::channel(1);
    tokio::spawn(mend(problems, jetstream.clone(), request.clone()));
    let request_timeout = args.jobs.request_timeout;
    let name: Arc<str> = args.name.clone().unwrap_or_else(own_name).into();
    let (tape, recording) = record(&client, database, args, &values, &name, clock).await?.unzip();
    let spans = Spans::of_environment(&name, clock);
    if spans.is_some() {
        processor.keep_journal();
    }
    let settings = transcript_client::jetstream::Settings {
        name: Arc::clone(&name),
        api_prefix: api_prefix.into(),
        spans: spans.as_ref().map(|spans| spans.ids),
        ..transcript_client::jetstream::Settings::with_request_timeout(request_timeout)
    };
    // Before anything is pulled it listens to advisories: it is a pull that makes JetStream notice.
    let socket = Socket::open(&client, &settings, clock, events, &received).await?;
    let mut finders = JoinSet::new();
    if args.announce.revise {
        let AnnounceSettings { revise_every, revise_within, .. } = args.announce;
        let watch = Watch::new(database, reports.clone(), request_timeout, clock, revise_every, revise_within);
        finders.spawn(watch.run());
    }
    let batches = BatchSizes::default();
    let store = Store::start(database, &reports, clock, request_timeout, batches.clone());
    let servers = RealServers { store, nats: socket, repair };
    log_ready(&name, args, &values);
    systemd::tell(systemd::State::Ready);
    let turns = Turns::default();
    let health = LoopHealth::default();
    let watched = health.clone();
    let is_watched = systemd::watches();
    let report = move |seen| {
        watched.saw(seen);
        watchdog::log(seen);
        if is_watched && !matches!(seen, Loop::StandsStill { .. }) {
            systemd::tell(systemd::State::Watchdog);
        }
    };
    let watchdog = Watchdog::start(turns.clone(), report).map_err(RunError::Watchdog)?;
    let (asker, questions) = questions();
    let inner = Inner::Processor { asker: asker.clone(), inputs: reports };
    finders.spawn(processes::answer(client.clone(), Member { name: name.to_string(), clock, inner }));
    let (spans, counts, exporter) = match spans {
        Some(Spans { recorder, counts, exporter, .. }) => (Some(recorder), Some(counts), Some(exporter)),
        None => (None, None, None),
    };
    if let Some((listener, settings)) = http {
        let recorder = recording.as_ref().map(Recording::health);
        let (jetstream, database) = (jetstream.clone(), database.clone());
        let parts = Parts { name, clock, asker, health, batches, spans: counts, recorder, jetstream, database };
        let looker = Looker::new(&parts.jetstream, &parts.database, clock);
        let monitor = Monitor::start(parts, looker, &mut finders);
        finders.spawn(http::serve(listener, monitor, settings));
    }
    let driver = Driver {
        processor,
        client: JetStream::new(settings),
        servers,
        clock,
        inputs,
        nats,
        tape,
        spans,
        turns,
        questions,
        pulls_restarted: 0,
    };
    let ended = driver.run(signals).await;
    drop(watchdog);
    drop(finders);
    flush(&client).await;
    if let Some(recording) = recording {
        recording.finish().await;
    }
    if let Some(exporter) = exporter {
        timeout(LAST_SPANS, exporter).await.ok();
    }
    match ended {
        Ended::Drained { abandoned: 0 } => tracing::info!("drained: every job was finished or given back"),
        Ended::Drained { abandoned } => {
            tracing::warn!(abandoned, "the grace time is over: the jobs that are left will be delivered again");
        }
        Ended::Stopped => tracing::warn!("stopped at once: the jobs under way will be delivered again"),
    }
    Ok(())
}

/// Takes the address of `--http`, where one is given.
async fn listen(args: &RunArgs) -> Result<Option<(TcpListener, HttpSettings)>, RunError> {
    let Some(address) = args.http.address else { return Ok(None) };
    let token = args.http.token_file.as_ref().map(read_token).transpose()?;
    let broker = if args.http.broker { Broker::Told } else { Broker::Left };
    let content = if args.http.content { PageContent::Shown } else { PageContent::Hidden };
    let settings = HttpSettings { token, broker, content };
    let listener = http::bind(address, &settings).await.map_err(|source| RunError::Http { address, source })?;
    Ok(Some((listener, settings)))
}

/// The token in a file, without the white space around it.
///
/// # Errors
///
/// The file cannot be read, or is empty.
pub fn read_token(file: &SecretFile) -> Result<Secret, RunError> {
    let failed = |source| RunError::HttpToken { file: file.clone(), source };
    let text = std::fs::read_to_string(file.path()).map_err(failed)?;
    let token = text.trim();
    if token.is_empty() {
        return Err(failed(std::io::Error::new(std::io::ErrorKind::InvalidData, "it is empty")));
    }
    Ok(Secret::from(token.to_owned()))
}

/// Says that calls are taken from now on, with every setting that decides what becomes of them as a field.
fn log_ready(name: &str, args: &RunArgs, values: &StreamValues) {
    let span = humantime::format_duration;
    let RunSettings { settle_rounds, max_in_flight, page_size, max_bytes_in_flight, .. } = &args.jobs;
    let AnnounceSettings { announce_once, revise, .. } = &args.announce;
    tracing::info!(
        name,
        quiet_period = %span(args.jobs.quiet_period),
        settle_rounds,
        max_in_flight,
        page_size,
        %max_bytes_in_flight,
        retry_timeout = %span(args.jobs.retry_timeout),
        nak_delay = %span(args.jobs.nak_delay),
        retry_base = %span(args.jobs.retry_base),
        retry_cap = %span(args.jobs.retry_cap),
        request_timeout = %span(args.jobs.request_timeout),
        grace = %span(args.jobs.grace),
        login_timeout = %span(args.login_timeout),
        announce_once,
        revise,
        revise_every = revise.then(|| span(args.announce.revise_every).to_string()),
        revise_within = revise.then(|| span(args.announce.revise_within).to_string()),
        duplicate_window = %span(values.duplicate_window),
        replicas = values.replicas,
        ack_wait = %span(values.ack_wait),
        max_deliver = values.max_deliver,
        max_ack_pending = values.max_ack_pending,
        record = args.record.directory.as_ref().map(|directory| directory.display().to_string()),
        record_content = args.record.content,
        "ready"
    );
}

/// Starts to record, where that is asked for.
async fn record(
    client: &async_nats::Client,
    database: &Database,
    args: &RunArgs,
    values: &StreamValues,
    name: &Arc<str>,
    clock: Clock,
) -> Result<Option<(Tape, Recording)>, RunError> {
    let Some(target) = Target::of(&args.record) else { return Ok(None) };
    let settings = core_settings(args, values);
    let (started_at, content) = (clock.started_at(), content(&args.record));
    let header = Header {
        format: FORMAT,
        program: PROGRAM.to_owned(),
        servers: servers(Some(client), database).await,
        processor: Some(Arc::clone(name)),
        started_at,
        content,
        settings: settings.clone(),
        pull_expires: Some(transcript_client::jetstream::Settings::default().pull_expires),
        continues: None,
        session: None,
        about: None,
    };
    let failed = |source| RecordError::Directory { directory: target.directory.clone(), source };
    let recorder = Recorder::new(vec![], header, Processor::new(settings)?).map_err(failed)?;
    Ok(Some(record::start(&target, Subject { name, started_at, content }, recorder, clock)?))
}

/// Whether the words of the calls are kept in a trace.
pub(crate) fn content(args: &RecordArgs) -> Content {
    if args.content { Content::Kept } else { Content::Redacted }
}

/// The versions of the servers, as far as they tell.
pub(crate) async fn servers(nats: Option<&async_nats::Client>, database: &Database) -> Servers {
    let mongodb = database.run_command(doc! { "buildInfo": 1 }).await.ok();
    Servers {
        nats: nats.map(|client| client.server_info().version).filter(|version| !version.is_empty()),
        mongodb: mongodb.and_then(|info| info.get_str("version").ok().map(str::to_owned)),
    }
}

/// The ways in which calls are announced.
fn announcements(args: &RunArgs) -> Vec<Announcement> {
    let AnnounceSettings { announce_once, revise, .. } = args.announce;
    let first = if announce_once { Announcement::ProcessedOnce } else { Announcement::Processed };
    std::iter::once(first).chain(revise.then_some(Announcement::Revised { revision: 2 })).collect()
}

async fn set_up(
    jetstream: &jetstream::Context,
    database: &Database,
    args: &RunArgs,
    request: &setup::Request,
) -> Result<setup::Report, SetupError> {
    let mut report = setup::ensure(jetstream, database, request).await?;
    if args.announce.revise {
        setup::ensure_watched(database, &mut report).await?;
    }
    report.warnings.extend(too_little_for_all(jetstream, args, report.values.max_ack_pending).await);
    Ok(report)
}

/// Whether the consumer hands out less than all processors together have room for. Each one that has room keeps a pull
/// request open. It is only a look: where it fails, nothing is said.
async fn too_little_for_all(jetstream: &jetstream::Context, args: &RunArgs, most: u64) -> Option<String> {
    let consumer = History::open(jetstream).await.ok()?.consumer().await.ok()??;
    let others = u64::try_from(consumer.num_waiting).ok()?;
    let room = (others + 1).saturating_mul(args.jobs.max_in_flight.into());
    (room > most).then(|| {
        format!(
            "{others} other processors ask for messages: together with this one they have room for {room} calls, but the \
             consumer hands out no more than max_ack_pending {most} at a time: raise it with --max-ack-pending, or lower \
             --max-in-flight"
        )
    })
}

/// The machine's name and the process's number, which tell processors apart where nobody named them.
pub(crate) fn own_name() -> String {
    let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
    format!("{}-{}", host.as_deref().unwrap_or("unknown"), std::process::id())
}

/// Sets the streams and the consumer up when somebody has deleted or changed them, or a server has come back without them.
/// The client says so, and again for as long as it finds them like that; a problem that stays is logged once.
async fn mend(mut problems: mpsc::Receiver<String>, jetstream: jetstream::Context, request: setup::Request) {
    let mut last = None;
    while let Some(problem) = problems.recv().await {
        if last.as_ref() != Some(&problem) {
            tracing::warn!("{problem}");
        }
        tokio::time::sleep(MEND_AFTER).await;
        if matches!(History::open(&jetstream).await, Err(HistoryError::NoStream)) {
            tokio::time::sleep(MEND_STREAM_AFTER).await;
        }
        match setup::ensure_jetstream(&jetstream, &request).await {
            Ok(report) => {
                for change in &report.changes {
                    tracing::error!("JetStream had lost something that this service needs. {change}");
                }
                last = report.changes.is_empty().then_some(problem);
            }
            Err(error) => {
                let error = error_line(&error);
                tracing::error!(error, "JetStream cannot be used, and cannot be set up again");
                last = Some(problem);
            }
        }
    }
}

/// The core's settings of a run with a stream and a consumer that have these `values`.
#[must_use]
pub fn core_settings(args: &RunArgs, values: &StreamValues) -> Settings {
    let RunSettings {
        quiet_period,
        settle_rounds,
        max_in_flight,
        page_size,
        max_bytes_in_flight,
        retry_timeout,
        nak_delay,
        retry_base,
        retry_cap,
        request_timeout,
        grace,
    } = args.jobs;
    Settings {
        quiet_period,
        settle_rounds,
        ack_wait: values.ack_wait,
        max_in_flight: usize::try_from(max_in_flight).unwrap_or(usize::MAX),
        page_size,
        max_bytes_in_flight: max_bytes_in_flight.as_u64(),
        max_deliver: values.max_deliver,
        retry_timeout,
        nak_delay,
        retry_base,
        retry_cap,
        request_timeout,
        duplicate_window: values.duplicate_window,
        grace,
        announce_once: args.announce.announce_once,
        revise: args.announce.revise,
        limits: Limits::default(),
        ..Settings::default()
    }
}
