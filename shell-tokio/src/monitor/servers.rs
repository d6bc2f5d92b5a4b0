//! What the servers say about themselves: looked at every few seconds, whoever asks how often.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_nats::{
    Client,
    connection::State,
    jetstream::{
        Context,
        consumer::{self, AckPolicy},
        stream::{self, DiscardPolicy},
    },
};
use mongodb::{Database, bson::doc};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use transcript_core::contract::{DEAD_LETTER_SUBJECT, SESSION_ENDED_SUBJECT};

use crate::{
    error_line::error_line,
    operate::{
        dead_letters::{self, State as DeadLetterState, StoredDeadLetter},
        history::{History, HistoryError},
        processes::{self, Memory, Presence},
    },
    service::clock::Clock,
};

/// How often the servers are looked at.
const EVERY: Duration = Duration::from_secs(2);
/// How long one look at a server may take.
const ANSWER: Duration = Duration::from_secs(4);
/// How often all processes are asked how they stand.
const PROCESSES_EVERY: Duration = Duration::from_secs(5);
/// How often it is looked whether there is a new dead letter.
const DEAD_LETTERS_EVERY: Duration = Duration::from_secs(3);
/// Where there is none the dead letters are read again because of what others did about them; reading them takes no more than
/// one part in so many of the time.
const DEAD_LETTERS_PART: u32 = 20;
/// The same where there is a new one.
const NEW_DEAD_LETTERS_PART: u32 = 4;
/// How long reading them may take.
const DEAD_LETTERS_WITHIN: Duration = Duration::from_secs(120);
/// How many dead letters are kept to be shown.
const SHOWN: usize = 200;
/// How many messages that are dead letters are skipped in the search for the oldest end that is not settled.
const SKIPPED: usize = 32;

/// What the servers say; an error is its cause in one line.
#[derive(Debug, Clone)]
pub struct Servers {
    /// The connection to NATS.
    pub nats: Result<(), String>,
    /// The stream of the transcripts; `None` where there is none.
    pub stream: Result<Option<StreamState>, String>,
    /// The consumer of the processors; `None` where there is none.
    pub consumer: Result<Option<ConsumerState>, String>,
    /// How long MongoDB's primary took for a ping.
    pub mongodb: Result<Duration, String>,
    /// How many dead letters there are; `None` where that is not known.
    pub dead_letters: Option<DeadLetterCounts>,
    /// The open ones, the newest first, as far as they are shown.
    pub open: Arc<[StoredDeadLetter]>,
    /// The processes that are alive, and those that were a while ago.
    pub processes: Arc<[Presence]>,
}

/// The stream, as far as it matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamState {
    /// Messages.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
    /// The most bytes, where there is a limit.
    pub max_bytes: Option<u64>,
    /// The most messages, where there is a limit.
    pub max_messages: Option<u64>,
    /// Whether it refuses new messages where it is full, and does not remove old ones.
    pub refuses_new: bool,
    /// How many messages each replica but the leader is behind; empty without a cluster.
    pub replica_lags: Vec<(String, u64)>,
}

/// The consumer, as far as it matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsumerState {
    /// Ends that wait to be handed out.
    pub pending: u64,
    /// Ends that were handed out and are not acknowledged.
    pub ack_pending: u64,
    /// The most of those, where there is a limit.
    pub max_ack_pending: Option<u64>,
    /// Ends that were handed out more than once and are not acknowledged.
    pub redelivered: u64,
    /// Pull requests that wait.
    pub waiting: u64,
    /// The place of the last message that was handed out.
    pub delivered: u64,
    /// The place up to which everything is acknowledged.
    pub ack_floor: u64,
    /// How much longer it is paused.
    pub paused_for: Option<Duration>,
    /// What keeps it from doing its work.
    pub problem: Option<String>,
    /// How long ago the oldest end was stored that is not settled: neither done nor a dead letter. Zero where there is none.
    pub behind: Duration,
}

/// How many dead letters there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadLetterCounts {
    /// Nobody has acted on them.
    pub open: u64,
    /// Their ends were published again.
    pub redriven: u64,
    /// Their calls are summarised and announced meanwhile.
    pub settled: u64,
}

impl Servers {
    /// Before the first look.
    #[must_use]
    pub fn unknown() -> Self {
        let unknown = || "it has not been looked at yet".to_owned();
        Self {
            nats: Err(unknown()),
            stream: Err(unknown()),
            consumer: Err(unknown()),
            mongodb: Err(unknown()),
            dead_letters: None,
            open: Arc::new([]),
            processes: Arc::new([]),
        }
    }
}

/// Looks at the servers.
#[derive(Debug, Clone)]
pub struct Looker {
    client: Client,
    jetstream: Context,
    database: Database,
    clock: Clock,
}

impl Looker {
    /// A looker at these servers.
    #[must_use]
    pub fn new(jetstream: &Context, database: &Database, clock: Clock) -> Self {
        let (jetstream, database) = (jetstream.clone(), database.clone());
        Self { client: jetstream.client(), jetstream, database, clock }
    }

    /// Looks once at everything.
    pub async fn look(&self) -> Servers {
        let letters = timeout(DEAD_LETTERS_WITHIN, self.dead_letters()).await.unwrap_or_default();
        let processes = if self.is_connected() { processes::alive(&self.client).await } else { vec![] };
        Servers { processes: processes.into(), ..self.state(letters).await }
    }

    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Looks again and again, and says what it saw, until nobody listens any more.
    pub async fn watch(self, seen: watch::Sender<Servers>) {
        let (letters, mut read) = watch::channel(None);
        let (alive, heard) = watch::channel(Arc::from([]));
        let reader = tokio::spawn(self.clone().watch_dead_letters(letters));
        let listener = tokio::spawn(self.clone().watch_processes(alive));
        while !seen.is_closed() {
            let letters = read.borrow_and_update().clone();
            let processes = Arc::clone(&heard.borrow());
            seen.send_replace(Servers { processes, ..self.state(letters).await });
            tokio::select! {
                () = sleep(EVERY) => {}
                () = seen.closed() => {}
            }
        }
        reader.abort();
        listener.abort();
    }

    async fn watch_processes(self, alive: watch::Sender<Arc<[Presence]>>) {
        let mut memory = Memory::default();
        while !alive.is_closed() {
            let found = if self.is_connected() { processes::alive(&self.client).await } else { vec![] };
            alive.send_replace(memory.note(Instant::now(), found).into());
            sleep(PROCESSES_EVERY).await;
        }
    }

    async fn watch_dead_letters(self, letters: watch::Sender<Option<DeadLetters>>) {
        let (mut known, mut ended, mut took) = (None, Instant::now(), Duration::ZERO);
        while !letters.is_closed() {
            let last = timeout(ANSWER, self.last_dead_letter()).await.ok().flatten();
            let part = if last == known { DEAD_LETTERS_PART } else { NEW_DEAD_LETTERS_PART };
            if ended.elapsed() >= took * part {
                let begun = Instant::now();
                if let Ok(Some(read)) = timeout(DEAD_LETTERS_WITHIN, self.dead_letters()).await {
                    letters.send_replace(Some(read));
                    known = last;
                }
                (ended, took) = (Instant::now(), begun.elapsed());
            }
            sleep(DEAD_LETTERS_EVERY).await;
        }
    }

    /// What everything says, with these dead letters, where they are known.
    async fn state(&self, letters: Option<DeadLetters>) -> Servers {
        let (dead_letters, open, given_up) = match letters {
            Some(DeadLetters { counts, about, open }) => (Some(counts), open, about),
            None => (None, Arc::from([]), BTreeSet::new()),
        };
        let ((nats, stream, consumer), mongodb) = tokio::join!(self.nats(&given_up), self.mongodb());
        Servers { nats, stream, consumer, mongodb, dead_letters, open, processes: Arc::new([]) }
    }

    async fn mongodb(&self) -> Result<Duration, String> {
        let begun = Instant::now();
        match timeout(ANSWER, self.database.run_command(doc! { "ping": 1 }).into_future()).await {
            Ok(Ok(_)) => Ok(begun.elapsed()),
            Ok(Err(error)) => Err(error_line(&error)),
            Err(_) => Err(format!("no answer to a ping within {} s", ANSWER.as_secs())),
        }
    }

    async fn nats(
        &self,
        given_up: &BTreeSet<u64>,
    ) -> (Result<(), String>, Result<Option<StreamState>, String>, Result<Option<ConsumerState>, String>) {
        if !self.is_connected() {
            let away = || "it is lost, and is tried again".to_owned();
            return (Err(away()), Err(away()), Err(away()));
        }
        let silent = || format!("no answer within {} s", ANSWER.as_secs());
        let history = match timeout(ANSWER, History::open(&self.jetstream)).await {
            Ok(Ok(history)) => history,
            Ok(Err(HistoryError::NoStream)) => return (Ok(()), Ok(None), Ok(None)),
            Ok(Err(error @ (HistoryError::Request { .. } | HistoryError::Silent { .. }))) => {
                return (Ok(()), Err(error_line(&error)), Err(error_line(&error)));
            }
            Err(_) => return (Ok(()), Err(silent()), Err(silent())),
        };
        let both = async { tokio::join!(history.info(), self.consumer(&history, given_up)) };
        let Ok((stream, consumer)) = timeout(ANSWER, both).await else {
            return (Ok(()), Err(silent()), Err(silent()));
        };
        let told = |error: HistoryError| error_line(&error);
        (Ok(()), stream.map(|info| Some(stream_state(&info))).map_err(told), consumer.map_err(told))
    }

    async fn consumer(
        &self,
        history: &History,
        given_up: &BTreeSet<u64>,
    ) -> Result<Option<ConsumerState>, HistoryError> {
        let Some(info) = history.consumer().await? else { return Ok(None) };
        let behind = self.behind(history, &info, given_up).await?;
        Ok(Some(ConsumerState { behind, ..consumer_state(&info) }))
    }

    /// How long ago the oldest end was stored that is not settled.
    ///
    /// It is the first one behind the ack floor, where something is in hand. A message that used up its deliveries keeps the
    /// floor where it is (nats-server 2.15.1), and is a dead letter by then: it is skipped.
    async fn behind(
        &self,
        history: &History,
        info: &consumer::Info,
        given_up: &BTreeSet<u64>,
    ) -> Result<Duration, HistoryError> {
        let mut last = match (info.num_ack_pending, info.num_pending) {
            (0, 0) => return Ok(Duration::ZERO),
            (0, _) => info.delivered.stream_sequence,
            (_, _) => info.ack_floor.stream_sequence,
        };
        for _ in 0..SKIPPED {
            let Some(end) = history.next(last, SESSION_ENDED_SUBJECT).await? else { break };
            if !given_up.contains(&end.sequence) {
                return Ok(self.clock.wall().since(end.stored_at));
            }
            last = end.sequence;
        }
        Ok(Duration::ZERO)
    }

    /// The place of the last dead letter; `None` where there is none, or it cannot be told.
    async fn last_dead_letter(&self) -> Option<u64> {
        History::open(&self.jetstream).await.ok()?.last(DEAD_LETTER_SUBJECT).await.ok()?.map(|letter| letter.sequence)
    }

    /// The dead letters; `None` where they cannot be read.
    async fn dead_letters(&self) -> Option<DeadLetters> {
        let letters = dead_letters::list(&self.jetstream, &self.database).await.ok()?;
        let count = |is: fn(DeadLetterState) -> bool| {
            u64::try_from(letters.iter().filter(|letter| is(letter.state)).count()).unwrap_or(u64::MAX)
        };
        let counts = DeadLetterCounts {
            open: count(|state| matches!(state, DeadLetterState::Open)),
            redriven: count(|state| matches!(state, DeadLetterState::Redriven { .. })),
            settled: count(|state| matches!(state, DeadLetterState::Settled)),
        };
        let about = letters.iter().filter_map(|letter| letter.stream_sequence).collect();
        let open = letters.into_iter().rev().filter(|letter| letter.state == DeadLetterState::Open);
        Some(DeadLetters { counts, about, open: open.take(SHOWN).collect() })
    }
}

#[derive(Debug, Clone)]
struct DeadLetters {
    counts: DeadLetterCounts,
    /// The places of the ends that they are about.
    about: BTreeSet<u64>,
    open: Arc<[StoredDeadLetter]>,
}

fn stream_state(info: &stream::Info) -> StreamState {
    let limit = |most: i64| u64::try_from(most).ok().filter(|most| *most > 0);
    let replicas = info.cluster.iter().flat_map(|cluster| &cluster.replicas);
    StreamState {
        messages: info.state.messages,
        bytes: info.state.bytes,
        max_bytes: limit(info.config.max_bytes),
        max_messages: limit(info.config.max_messages),
        refuses_new: info.config.discard == DiscardPolicy::New,
        replica_lags: replicas.map(|peer| (peer.name.clone(), peer.lag.unwrap_or(0))).collect(),
    }
}

fn consumer_state(info: &consumer::Info) -> ConsumerState {
    let whole = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    ConsumerState {
        pending: info.num_pending,
        ack_pending: whole(info.num_ack_pending),
        max_ack_pending: u64::try_from(info.config.max_ack_pending).ok().filter(|most| *most > 0),
        redelivered: whole(info.num_redelivered),
        waiting: whole(info.num_waiting),
        delivered: info.delivered.stream_sequence,
        ack_floor: info.ack_floor.stream_sequence,
        paused_for: if info.paused { Some(info.pause_remaining.unwrap_or_default()) } else { None },
        problem: problem(&info.config),
        behind: Duration::ZERO,
    }
}

/// What keeps the consumer from handing out what it must; `setup` knows all of what it should be like.
fn problem(config: &consumer::Config) -> Option<String> {
    if config.filter_subject != SESSION_ENDED_SUBJECT {
        return Some(format!("the consumer's filter_subject is not {SESSION_ENDED_SUBJECT}"));
    }
    if config.ack_policy != AckPolicy::Explicit {
        return Some("the consumer's ack_policy is not explicit".to_owned());
    }
    config.deliver_subject.is_some().then(|| "the consumer is a push consumer".to_owned())
}
