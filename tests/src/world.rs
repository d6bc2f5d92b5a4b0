//! Both servers, clients of them, and what tests do with them.

use std::{net::SocketAddr, time::Duration};

use async_nats::{HeaderMap, jetstream};
use mongodb::{
    Collection, Database,
    bson::{self, Bson, Document, doc},
};
use serde_json::json;
use thiserror::Error;
use transcript_core::{
    contract::{
        CONSUMER, Notification, PROCESSED_SUBJECT, RECORDING_STREAM, RECORDING_SUBJECTS, SEGMENTS_COLLECTION,
        SESSION_ENDED_SUBJECT, SUMMARIES_COLLECTION, TRANSCRIPTION_STREAM, TRANSCRIPTION_SUBJECTS,
    },
    ids::{Key, Session},
};
use transcript_publishing::SegmentMessage;

use crate::{
    processor::ProcessorCommand,
    servers::{Mongod, NatsOptions, NatsServer, ServerError, TestDatabase},
};

/// The duplicate window of the data contract.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(24 * 60 * 60);

/// A nats-server of its own, and a database on the shared mongod or on one of its own.
#[derive(Debug)]
pub struct TestWorld {
    // Dropped in this order: the database while its server is still there.
    database: TestDatabase,
    mongod: Option<Mongod>,
    /// The NATS server.
    pub nats: NatsServer,
    /// A connection to it, which comes back when it does.
    pub client: async_nats::Client,
    /// JetStream on that connection.
    pub jetstream: jetstream::Context,
}

/// Whose mongod a world's database is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOf {
    /// The one that this process's tests share.
    AllWorlds,
    /// One that the test may kill.
    ThisWorld,
}

/// The call app: what ends calls. It can go on beside whatever a test does to its world.
#[derive(Debug, Clone)]
pub struct App {
    jetstream: jetstream::Context,
    segments: Collection<Document>,
}

/// A notification as it lies in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredNotification {
    /// Its place in the stream.
    pub sequence: u64,
    /// Its `Nats-Msg-Id`.
    pub id: Option<String>,
    /// Its payload.
    pub notification: Notification,
}

impl TestWorld {
    /// A world whose database is on the mongod that this process's tests share.
    ///
    /// # Errors
    ///
    /// A server does not start.
    pub async fn start() -> Result<Self, WorldError> {
        Self::start_as(StoreOf::AllWorlds, NatsOptions::default()).await
    }

    /// A world with a mongod that the test may kill.
    ///
    /// # Errors
    ///
    /// A server does not start.
    pub async fn start_with_own_mongod() -> Result<Self, WorldError> {
        Self::start_with(Mongod::replica_set().await?).await
    }

    /// A world with this mongod.
    ///
    /// # Errors
    ///
    /// A server does not start.
    pub async fn start_with(mongod: Mongod) -> Result<Self, WorldError> {
        let database = TestDatabase::on(&mongod).await?;
        Self::with(database, Some(mongod), NatsOptions::default()).await
    }

    /// A world with this mongod, and a nats-server that is more than the default.
    ///
    /// # Errors
    ///
    /// A server does not start.
    pub async fn start_on(mongod: Mongod, options: NatsOptions) -> Result<Self, WorldError> {
        let database = TestDatabase::on(&mongod).await?;
        Self::with(database, Some(mongod), options).await
    }

    /// A world with a nats-server that is more than the default.
    ///
    /// # Errors
    ///
    /// A server does not start.
    pub async fn start_as(store: StoreOf, options: NatsOptions) -> Result<Self, WorldError> {
        match store {
            StoreOf::AllWorlds => Self::with(TestDatabase::on(Mongod::shared().await?).await?, None, options).await,
            StoreOf::ThisWorld => {
                let mongod = Mongod::replica_set().await?;
                Self::with(TestDatabase::on(&mongod).await?, Some(mongod), options).await
            }
        }
    }

    /// A world with this nats-server, whose database is on the mongod that this process's tests share.
    ///
    /// # Errors
    ///
    /// mongod does not start, or nats-server does not let the harness in.
    pub async fn on(nats: NatsServer) -> Result<Self, WorldError> {
        Self::of(TestDatabase::on(Mongod::shared().await?).await?, None, nats).await
    }

    async fn with(database: TestDatabase, mongod: Option<Mongod>, options: NatsOptions) -> Result<Self, WorldError> {
        Self::of(database, mongod, NatsServer::start_with(options).await?).await
    }

    async fn of(database: TestDatabase, mongod: Option<Mongod>, nats: NatsServer) -> Result<Self, WorldError> {
        let client = nats.client().await.map_err(WorldError::nats)?;
        Ok(Self { database, mongod, nats, jetstream: jetstream::new(client.clone()), client })
    }

    /// Takes a new connection to NATS, where the server has new settings that do not let the old one in.
    ///
    /// # Errors
    ///
    /// The server does not let it in.
    pub async fn connect_again(&mut self) -> Result<(), WorldError> {
        self.client = self.nats.client().await.map_err(WorldError::nats)?;
        self.jetstream = jetstream::new(self.client.clone());
        Ok(())
    }

    /// The world's own mongod.
    ///
    /// # Panics
    ///
    /// In a world that shares one: nobody may kill that.
    pub fn mongod(&mut self) -> &mut Mongod {
        self.mongod.as_mut().expect("this world was started with a mongod of its own")
    }

    /// Kills both servers at once and starts them again on the same ports and directories; returns when both are ready.
    ///
    /// # Errors
    ///
    /// One does not start.
    ///
    /// # Panics
    ///
    /// In a world that shares its mongod.
    pub async fn start_servers_again(&mut self) -> Result<(), ServerError> {
        let mongod = self.mongod.as_mut().expect("this world was started with a mongod of its own");
        tokio::try_join!(self.nats.start_again(), mongod.start_again()).map(|_| ())
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &Database {
        self.database.handle()
    }

    /// Where the database's server is reached.
    #[must_use]
    pub fn mongodb_uri(&self) -> &str {
        self.database.uri()
    }

    /// The address of the database's server, for a proxy before it.
    #[must_use]
    pub fn mongod_address(&self) -> SocketAddr {
        self.database.server()
    }

    /// A subcommand of the processor, told where this world's servers are.
    #[must_use]
    pub fn processor(&self, subcommand: &str) -> ProcessorCommand {
        let servers = self.environment();
        servers
            .into_iter()
            .fold(ProcessorCommand::new(subcommand), |command, (name, value)| command.environment(name, value))
    }

    /// The variables that say where the servers are.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 3] {
        [
            ("NATS_URL", self.nats.url()),
            ("MONGODB_URI", self.database.uri().to_owned()),
            ("MONGODB_DATABASE", self.database.name().to_owned()),
        ]
    }

    /// Makes the streams of the data contract, for tests that do not have the processor set them up.
    ///
    /// # Errors
    ///
    /// The server refuses them.
    pub async fn create_streams(&self) -> Result<(), WorldError> {
        let streams =
            [(TRANSCRIPTION_STREAM, &TRANSCRIPTION_SUBJECTS[..]), (RECORDING_STREAM, &RECORDING_SUBJECTS[..])];
        for (name, subjects) in streams {
            let config = jetstream::stream::Config {
                name: name.to_owned(),
                subjects: subjects.iter().map(|&subject| subject.to_owned()).collect(),
                duplicate_window: DUPLICATE_WINDOW,
                ..Default::default()
            };
            self.jetstream.create_or_update_stream(config).await.map_err(WorldError::nats)?;
        }
        Ok(())
    }

    /// The call app.
    #[must_use]
    pub fn app(&self) -> App {
        App { jetstream: self.jetstream.clone(), segments: self.segments() }
    }

    /// See [`App::insert_segments`].
    ///
    /// # Errors
    ///
    /// See [`App::insert_segments`].
    pub async fn insert_segments(&self, segments: &[SegmentMessage]) -> Result<(), WorldError> {
        self.app().insert_segments(segments).await
    }

    /// See [`App::publish_session_end`].
    ///
    /// # Errors
    ///
    /// See [`App::publish_session_end`].
    pub async fn publish_session_end(&self, session: &Session, published_segments: u64) -> Result<u64, WorldError> {
        self.app().publish_session_end(session, published_segments).await
    }

    /// See [`App::publish`].
    ///
    /// # Errors
    ///
    /// See [`App::publish`].
    pub async fn publish(&self, subject: &'static str, payload: Vec<u8>) -> Result<u64, WorldError> {
        self.app().publish(subject, payload).await
    }

    /// All summaries, by key.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn summaries(&self) -> Result<Vec<Document>, WorldError> {
        let mut cursor = self.collection(SUMMARIES_COLLECTION).find(doc! {}).sort(doc! { "_id": 1 }).await?;
        let mut summaries = Vec::new();
        while cursor.advance().await? {
            summaries.push(cursor.deserialize_current()?);
        }
        Ok(summaries)
    }

    /// The summary of one session, if there is one.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn summary(&self, key: &Key) -> Result<Option<Document>, WorldError> {
        let id = Bson::String(key.as_str().to_owned());
        Ok(self.collection(SUMMARIES_COLLECTION).find_one(doc! { "_id": id }).await?)
    }

    /// All notifications in the stream, in its order.
    ///
    /// # Errors
    ///
    /// The server does not answer, or a payload is no notification.
    pub async fn notifications(&self) -> Result<Vec<StoredNotification>, WorldError> {
        let stream = self.jetstream.get_stream(TRANSCRIPTION_STREAM).await.map_err(WorldError::nats)?;
        let last = stream.cached_info().state.last_sequence;
        let mut notifications = Vec::new();
        let mut from = 1;
        while from <= last {
            match stream.get_first_raw_message_by_subject(PROCESSED_SUBJECT, from).await {
                Ok(message) => {
                    from = message.sequence + 1;
                    notifications.push(StoredNotification {
                        sequence: message.sequence,
                        id: message_id(&message.headers),
                        notification: serde_json::from_slice(&message.payload)?,
                    });
                }
                Err(error) if is_no_message_found(&error) => break,
                Err(error) => return Err(WorldError::nats(error)),
            }
        }
        Ok(notifications)
    }

    /// How far the processors' durable consumer is: what is pending, what is unacknowledged, how many deliveries there were.
    ///
    /// # Errors
    ///
    /// The server does not answer, or the consumer is not there yet.
    pub async fn consumer(&self) -> Result<jetstream::consumer::Info, WorldError> {
        let stream = self.jetstream.get_stream(TRANSCRIPTION_STREAM).await.map_err(WorldError::nats)?;
        stream.consumer_info(CONSUMER).await.map_err(WorldError::nats)
    }

    /// The collection of segments.
    #[must_use]
    pub fn segments(&self) -> Collection<Document> {
        self.collection(SEGMENTS_COLLECTION)
    }

    fn collection(&self, name: &str) -> Collection<Document> {
        self.database().collection(name)
    }
}

impl App {
    /// Stores segments; `_id` is `<sessionId>:<index>`.
    ///
    /// # Errors
    ///
    /// The store refuses one.
    pub async fn insert_segments(&self, segments: &[SegmentMessage]) -> Result<(), WorldError> {
        let documents = segments.iter().map(|segment| {
            let mut document = bson::serialize_to_document(segment)?;
            document.insert("_id", segment.id());
            Ok(document)
        });
        let documents: Vec<Document> = documents.collect::<Result<_, bson::error::Error>>()?;
        if !documents.is_empty() {
            self.segments.insert_many(documents).ordered(false).await?;
        }
        Ok(())
    }

    /// How many segments of a session are stored.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn count_segments(&self, session: &Session) -> Result<u64, WorldError> {
        Ok(self.segments.count_documents(doc! { "sessionId": &*session.session_id }).await?)
    }

    /// Publishes the end of a session and returns its place in the stream.
    ///
    /// # Errors
    ///
    /// The server did not store it.
    pub async fn publish_session_end(&self, session: &Session, published_segments: u64) -> Result<u64, WorldError> {
        let payload = json!({
            "conversationId": session.conversation_id,
            "sessionId": session.session_id,
            "publishedSegments": published_segments,
        });
        self.publish(SESSION_ENDED_SUBJECT, payload.to_string().into_bytes()).await
    }

    /// Publishes any bytes to a subject of a stream and returns their place in it.
    ///
    /// # Errors
    ///
    /// The server did not store them.
    pub async fn publish(&self, subject: &'static str, payload: Vec<u8>) -> Result<u64, WorldError> {
        let stored = self.jetstream.publish(subject, payload.into()).await.map_err(WorldError::nats)?;
        Ok(stored.await.map_err(WorldError::nats)?.sequence)
    }
}

fn message_id(headers: &HeaderMap) -> Option<String> {
    headers.get(async_nats::header::NATS_MESSAGE_ID).map(|id| id.as_str().to_owned())
}

/// The client sorts only some of the server's "no message found" answers as such.
fn is_no_message_found(error: &jetstream::stream::RawMessageError) -> bool {
    use jetstream::{ErrorCode, stream::LastRawMessageErrorKind as Kind};
    match error.kind() {
        Kind::NoMessageFound => true,
        Kind::JetStream(error) => error.error_code() == ErrorCode::NO_MESSAGE_FOUND,
        Kind::InvalidSubject | Kind::Other => false,
    }
}

/// Why something could not be done in the world.
#[derive(Debug, Error)]
pub enum WorldError {
    /// A server is not there.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// What the NATS client says.
    #[error("NATS: {0}")]
    Nats(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// What the MongoDB driver says.
    #[error("MongoDB: {0}")]
    Mongo(#[from] mongodb::error::Error),
    /// A document that cannot be written as BSON.
    #[error("BSON: {0}")]
    Bson(#[from] bson::error::Error),
    /// A payload that is no JSON of its kind.
    #[error("a payload: {0}")]
    Payload(#[from] serde_json::Error),
}

impl WorldError {
    fn nats(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Nats(Box::new(error))
    }
}
