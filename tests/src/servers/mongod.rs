//! mongod, and databases on one that many tests share.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use mongodb::{
    Client, Database,
    bson::{Document, doc},
};
use tokio::{net::TcpStream, sync::OnceCell};

use super::{Program, READY_WITHIN, ServerError, port, ready};
use crate::{
    leash::{self, Exit, Launch, LeashError, Leashed},
    wait::{NotReached, wait_until},
};

/// How many ports are tried.
const PORTS: u32 = 20;
/// How long dropping a database may take before it is left to the end of the server.
const DROP_WITHIN: Duration = Duration::from_secs(2);

/// A mongod in a directory of its own that is gone when this is dropped.
///
/// It takes some seconds and 100 MB, so tests share one ([`Self::shared`]) through databases of their own
/// ([`TestDatabase`]), unless they kill, freeze or fill it.
#[derive(Debug)]
pub struct Mongod {
    process: Leashed,
    directory: PathBuf,
    port: u16,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    ReplicaSet,
    Standalone,
}

impl Mongod {
    /// A replica set of one, which is a writable primary.
    ///
    /// # Errors
    ///
    /// There is no binary, it ends, or it is not ready in time.
    pub async fn replica_set() -> Result<Self, ServerError> {
        Self::start(Kind::ReplicaSet).await
    }

    /// A server that is no replica set: it has no change streams and no transactions.
    ///
    /// # Errors
    ///
    /// See [`Self::replica_set`].
    pub async fn standalone() -> Result<Self, ServerError> {
        Self::start(Kind::Standalone).await
    }

    /// The replica set that all tests of this process share; it ends with the process.
    ///
    /// # Errors
    ///
    /// See [`Self::replica_set`].
    pub async fn shared() -> Result<&'static Self, ServerError> {
        static SHARED: OnceCell<Mongod> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::replica_set).await
    }

    async fn start(kind: Kind) -> Result<Self, ServerError> {
        for _ in 0..PORTS {
            match Self::start_on(port::probably_free(), kind).await {
                Err(error) if error.is_port_in_use() => {}
                other => return other,
            }
        }
        Err(ServerError::NoPort { server: Program::Mongod, tried: PORTS })
    }

    async fn start_on(port: u16, kind: Kind) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Directory { server: Program::Mongod, source };
        let temporary = leash::directory("mongod").map_err(failed)?;
        fs::create_dir(temporary.path().join("data")).map_err(failed)?;
        let process = Leashed::start(launch(temporary.path(), port, kind).await?).await?;
        let server = Self { process, directory: temporary.keep(), port, kind };
        server.ready().await?;
        Ok(server)
    }

    /// Where clients reach it.
    #[must_use]
    pub fn uri(&self) -> String {
        match self.kind {
            Kind::ReplicaSet => format!("mongodb://127.0.0.1:{}/?replicaSet={REPLICA_SET}", self.port),
            Kind::Standalone => self.direct_uri(),
        }
    }

    /// Its address, for a proxy before it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// A new client. It belongs to the runtime it was made in: tests that share the server do not share one.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub async fn client(&self) -> mongodb::error::Result<Client> {
        Client::with_uri_str(self.uri()).await
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Leashed {
        &self.process
    }

    /// Kills it (`SIGKILL`) and waits until it is gone.
    ///
    /// # Errors
    ///
    /// See [`Leashed::kill`].
    pub async fn kill(&self) -> Result<Exit, LeashError> {
        self.process.kill().await
    }

    /// Asks it to end (`SIGTERM`) and waits until it is gone.
    ///
    /// # Errors
    ///
    /// See [`Leashed::terminate`].
    pub async fn terminate(&self) -> Result<Exit, LeashError> {
        self.process.terminate().await
    }

    /// Starts it on the same port and the same directory, and waits until it takes writes. Kills it first if it runs.
    ///
    /// # Errors
    ///
    /// See [`Self::replica_set`].
    pub async fn start_again(&mut self) -> Result<(), ServerError> {
        self.process.kill().await?;
        let next = Leashed::start(launch(&self.directory, self.port, self.kind).await?).await?;
        std::mem::replace(&mut self.process, next).hand_over();
        self.ready().await
    }

    /// Stops it where it stands (`SIGSTOP`): connections stay open and nothing answers.
    ///
    /// # Errors
    ///
    /// See [`Leashed::freeze`].
    pub async fn freeze(&self) -> Result<(), LeashError> {
        self.process.freeze().await
    }

    /// Lets it go on.
    ///
    /// # Errors
    ///
    /// See [`Leashed::thaw`].
    pub async fn thaw(&self) -> Result<(), LeashError> {
        self.process.thaw().await
    }

    /// The process id of the server itself.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Where its log and data are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn direct_uri(&self) -> String {
        format!("mongodb://127.0.0.1:{}/?directConnection=true&serverSelectionTimeoutMS=2000", self.port)
    }

    async fn ready(&self) -> Result<(), ServerError> {
        let client = Client::with_uri_str(self.direct_uri()).await?;
        ready(Program::Mongod, &self.process, self.takes_writes(&client)).await
    }

    async fn takes_writes(&self, client: &Client) -> Result<(), NotReached> {
        // The driver looks at a server that refused it only every half second, so it is not asked before there is one.
        wait_until("mongod accepts connections", READY_WITHIN, || async {
            TcpStream::connect(self.address()).await.map(|_| ()).map_err(|error| error.to_string())
        })
        .await?;
        let admin = client.database("admin");
        wait_until("mongod takes writes", READY_WITHIN, || self.look(&admin)).await
    }

    async fn look(&self, admin: &Database) -> Result<(), String> {
        let hello = admin.run_command(doc! { "hello": 1 }).await.map_err(describe)?;
        if hello.get_bool("isWritablePrimary").unwrap_or(false) {
            // Another process's server may have the port that ours is about to be refused.
            let status = admin.run_command(doc! { "serverStatus": 1 }).await.map_err(describe)?;
            return match status.get_i64("pid") {
                Ok(pid) if pid == i64::from(self.pid()) => Ok(()),
                other => Err(format!("the server on the port has the pid {other:?}")),
            };
        }
        if self.kind == Kind::ReplicaSet && hello.get_bool("isreplicaset").unwrap_or(false) {
            let members = vec![doc! { "_id": 0, "host": format!("127.0.0.1:{}", self.port) }];
            let config = doc! { "_id": REPLICA_SET, "members": members };
            admin.run_command(doc! { "replSetInitiate": config }).await.map_err(describe)?;
        }
        Err(state(&hello))
    }
}

/// A database of its own on a server that others use too; dropped with this handle.
#[derive(Debug)]
pub struct TestDatabase {
    database: Database,
    uri: String,
    server: SocketAddr,
}

impl TestDatabase {
    /// An empty database on `server`, with a client of the current runtime.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub async fn on(server: &Mongod) -> Result<Self, ServerError> {
        static DATABASES: AtomicU64 = AtomicU64::new(1);
        let name = format!("test-{}-{}", std::process::id(), DATABASES.fetch_add(1, Ordering::Relaxed));
        Ok(Self { database: server.client().await?.database(&name), uri: server.uri(), server: server.address() })
    }

    /// The database.
    #[must_use]
    pub fn handle(&self) -> &Database {
        &self.database
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.database.name()
    }

    /// Where clients reach the server.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The server's address.
    #[must_use]
    pub fn server(&self) -> SocketAddr {
        self.server
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // The runtime of the test may be at its end, so a thread with its own does it. What fails is left to the end of the
        // server, which removes everything.
        let (uri, name) = (self.uri.clone(), self.name().to_owned());
        let dropped = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            let drop = async { Client::with_uri_str(uri).await.ok()?.database(&name).drop().await.ok() };
            runtime.block_on(async { tokio::time::timeout(DROP_WITHIN, drop).await.ok().flatten() })
        });
        dropped.join().ok();
    }
}

const REPLICA_SET: &str = "rs";

async fn launch(directory: &Path, port: u16, kind: Kind) -> Result<Launch, ServerError> {
    let log = directory.join("log");
    let mut arguments =
        vec!["--dbpath".into(), directory.join("data").into(), "--port".into(), port.to_string().into()];
    // Small, and without the samples it takes of itself once a second.
    let settings = "--bind_ip 127.0.0.1 --nounixsocket --oplogSize 64 --wiredTigerCacheSizeGB 0.25 \
                    --setParameter diagnosticDataCollectionEnabled=false";
    arguments.extend(settings.split_whitespace().map(Into::into));
    if kind == Kind::ReplicaSet {
        arguments.extend(["--replSet".into(), REPLICA_SET.into()]);
    }
    Ok(Launch {
        program: Program::Mongod.binary().await?,
        arguments,
        environment: Vec::new(),
        directory: directory.to_owned(),
        output: log.clone(),
        log,
    })
}

fn state(hello: &Document) -> String {
    hello.get_str("info").map_or_else(|_| format!("hello says {hello}"), str::to_owned)
}

#[expect(clippy::needless_pass_by_value, reason = "it stands where a function of an owned error is asked for")]
fn describe(error: mongodb::error::Error) -> String {
    error.to_string()
}
