//! mongod, and databases on one that many tests share.

use std::{
    ffi::OsString,
    fs, io,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use mongodb::{
    Client, Database,
    bson::{Document, doc},
};
use tokio::{net::TcpStream, sync::OnceCell};

use super::{
    Program, READY_WITHIN, ServerError,
    process::{Place, ServerProcess},
};
use crate::certificates::Certificate;
use crate::wait::{NotReached, wait_until};

/// How long dropping a database may take before it is left to the end of the server.
const DROP_WITHIN: Duration = Duration::from_secs(2);

/// A mongod in a directory of its own that is gone when this is dropped.
///
/// It takes some seconds and 100 MB, so tests share one ([`Self::shared`]) through databases of their own
/// ([`TestDatabase`]), unless they kill, freeze or fill it.
#[derive(Debug)]
pub struct Mongod {
    process: ServerProcess,
    kind: MongodKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MongodKind {
    ReplicaSet,
    Standalone,
    /// A replica set that lets nobody do anything without a user who may.
    Authorized,
}

/// The user of an authorized server who may do everything, and the password.
const ROOT: &str = "root";

impl Mongod {
    /// A replica set of one, which is a writable primary.
    ///
    /// # Errors
    ///
    /// There is no binary, it ends, or it is not ready in time.
    pub async fn replica_set() -> Result<Self, ServerError> {
        Self::start(MongodKind::ReplicaSet).await
    }

    /// A server that is no replica set: it has no change streams and no transactions.
    ///
    /// # Errors
    ///
    /// See [`Self::replica_set`].
    pub async fn standalone() -> Result<Self, ServerError> {
        Self::start(MongodKind::Standalone).await
    }

    /// A replica set of one that checks what users may do. Its address names the user who may do everything.
    ///
    /// # Errors
    ///
    /// See [`Self::replica_set`].
    pub async fn authorized() -> Result<Self, ServerError> {
        Self::start(MongodKind::Authorized).await
    }

    /// A replica set of one that speaks TLS with this certificate, and, with whoever does not want it, none.
    ///
    /// # Errors
    ///
    /// See [`Self::replica_set`].
    pub async fn with_tls(certificate: &Certificate) -> Result<Self, ServerError> {
        let tls = ["--tlsMode", "preferTLS", "--tlsAllowConnectionsWithoutCertificates", "--tlsCertificateKeyFile"];
        let mut arguments: Vec<OsString> = tls.map(Into::into).into();
        arguments.push(certificate.both.clone().into());
        // mongod wants an authority, or to be told that it does not check clients.
        arguments.push("--tlsCAFile".into());
        arguments.push(certificate.authority.clone().into());
        Self::start_with(MongodKind::ReplicaSet, arguments).await
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

    async fn start(kind: MongodKind) -> Result<Self, ServerError> {
        Self::start_with(kind, vec![]).await
    }

    async fn start_with(kind: MongodKind, more: Vec<OsString>) -> Result<Self, ServerError> {
        let more = &more;
        ServerProcess::on_a_free_port(Program::Mongod, |port| async move {
            let process = ServerProcess::start(Program::Mongod, port, |place| {
                let mut arguments = prepare(place, kind)?;
                arguments.extend(more.iter().cloned());
                Ok(arguments)
            })
            .await?;
            let server = Self { process, kind };
            server.ready().await?;
            Ok(server)
        })
        .await
    }

    /// Another member of this server's replica set, which has no vote: what it does not have yet, a majority can have. Returns
    /// once it has everything.
    ///
    /// # Errors
    ///
    /// See [`Self::replica_set`]; or the primary does not take it in.
    pub async fn add_secondary(&self) -> Result<Secondary, ServerError> {
        let secondary = ServerProcess::on_a_free_port(Program::Mongod, |port| async move {
            let process = ServerProcess::start(Program::Mongod, port, |place| prepare(place, MongodKind::ReplicaSet));
            let secondary = Secondary { process: process.await? };
            secondary.process.ready(secondary.accepts_connections()).await?;
            Ok(secondary)
        })
        .await?;
        let admin = Client::with_uri_str(self.direct_uri()).await?.database("admin");
        let answer = admin.run_command(doc! { "replSetGetConfig": 1 }).await?;
        let mut config = answer.get_document("config").cloned().unwrap_or_default();
        let version = config.get_i32("version").unwrap_or(1);
        config.insert("version", version + 1);
        let member = doc! { "_id": 1, "host": secondary.process.address().to_string(), "priority": 0, "votes": 0 };
        if let Ok(members) = config.get_array_mut("members") {
            members.push(member.into());
        }
        admin.run_command(doc! { "replSetReconfig": config }).await?;
        secondary.process.ready(secondary.has_everything()).await?;
        Ok(secondary)
    }

    /// Where clients reach it.
    #[must_use]
    pub fn uri(&self) -> String {
        match self.kind {
            MongodKind::ReplicaSet => format!("mongodb://{}/?replicaSet={REPLICA_SET}", self.process.address()),
            MongodKind::Authorized => {
                format!("mongodb://{ROOT}:{ROOT}@{}/?replicaSet={REPLICA_SET}", self.process.address())
            }
            MongodKind::Standalone => self.direct_uri(),
        }
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
    pub fn process(&self) -> &ServerProcess {
        &self.process
    }

    /// Starts it on the same port and the same directory, and waits until it takes writes. Kills it first if it runs.
    ///
    /// # Errors
    ///
    /// See [`Self::replica_set`].
    pub async fn start_again(&mut self) -> Result<(), ServerError> {
        self.process.start_again().await?;
        self.ready().await
    }

    fn direct_uri(&self) -> String {
        format!("mongodb://{}/?directConnection=true&serverSelectionTimeoutMS=2000", self.process.address())
    }

    async fn ready(&self) -> Result<(), ServerError> {
        let client = Client::with_uri_str(self.direct_uri()).await?;
        self.process.ready(self.takes_writes(&client)).await
    }

    async fn takes_writes(&self, client: &Client) -> Result<(), NotReached> {
        // The driver looks at a server that refused it only every half second, so it is not asked before there is one.
        wait_until("mongod accepts connections", READY_WITHIN, || async {
            TcpStream::connect(self.process.address()).await.map(|_| ()).map_err(|error| error.to_string())
        })
        .await?;
        let admin = client.database("admin");
        wait_until("mongod takes writes", READY_WITHIN, || self.look(&admin)).await
    }

    async fn look(&self, admin: &Database) -> Result<(), String> {
        let hello = admin.run_command(doc! { "hello": 1 }).await.map_err(describe)?;
        if self.kind == MongodKind::Authorized && hello.get_bool("isWritablePrimary").unwrap_or(false) {
            // Until there is a user, a local client may create one. A server that comes back has it.
            let root = doc! { "createUser": ROOT, "pwd": ROOT, "roles": [ROOT] };
            admin.run_command(root).await.ok();
            let known = Client::with_uri_str(self.uri()).await.map_err(describe)?;
            return known.database("admin").run_command(doc! { "ping": 1 }).await.map(drop).map_err(describe);
        }
        if hello.get_bool("isWritablePrimary").unwrap_or(false) {
            // Another process's server may have the port that ours is about to be refused.
            let status = admin.run_command(doc! { "serverStatus": 1 }).await.map_err(describe)?;
            return match status.get_i64("pid") {
                Ok(pid) if pid == i64::from(self.process.pid()) => Ok(()),
                other => Err(format!("the server on the port has the pid {other:?}")),
            };
        }
        if self.kind != MongodKind::Standalone && hello.get_bool("isreplicaset").unwrap_or(false) {
            let members = vec![doc! { "_id": 0, "host": self.process.address().to_string() }];
            let config = doc! { "_id": REPLICA_SET, "members": members };
            admin.run_command(doc! { "replSetInitiate": config }).await.map_err(describe)?;
        }
        Err(state(&hello))
    }
}

/// A member of a replica set that never becomes primary.
#[derive(Debug)]
pub struct Secondary {
    process: ServerProcess,
}

impl Secondary {
    /// Where clients reach it alone.
    #[must_use]
    pub fn direct_uri(&self) -> String {
        format!("mongodb://{}/?directConnection=true", self.process.address())
    }

    async fn accepts_connections(&self) -> Result<(), NotReached> {
        wait_until("mongod accepts connections", READY_WITHIN, || async {
            TcpStream::connect(self.process.address()).await.map(|_| ()).map_err(|error| error.to_string())
        })
        .await
    }

    async fn has_everything(&self) -> Result<(), NotReached> {
        wait_until("the secondary has everything", READY_WITHIN, || async {
            let client = Client::with_uri_str(self.direct_uri()).await.map_err(describe)?;
            let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.map_err(describe)?;
            if hello.get_bool("secondary").unwrap_or(false) { Ok(()) } else { Err(state(&hello)) }
        })
        .await
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
        Ok(Self {
            database: server.client().await?.database(&name),
            uri: server.uri(),
            server: server.process.address(),
        })
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

fn prepare(place: Place<'_>, kind: MongodKind) -> io::Result<Vec<OsString>> {
    let data = place.directory.join("data");
    fs::create_dir(&data)?;
    let mut arguments = vec!["--dbpath".into(), data.into(), "--port".into(), place.port.to_string().into()];
    // Small, without the samples it takes of itself once a second, and with the commands that make others fail.
    let settings = "--bind_ip 127.0.0.1 --nounixsocket --oplogSize 64 --wiredTigerCacheSizeGB 0.25 \
                    --setParameter diagnosticDataCollectionEnabled=false --setParameter enableTestCommands=1";
    arguments.extend(settings.split_whitespace().map(Into::into));
    if kind != MongodKind::Standalone {
        arguments.extend(["--replSet".into(), REPLICA_SET.into()]);
    }
    if kind == MongodKind::Authorized {
        let key = place.directory.join("key");
        fs::write(&key, "a key that the members of the set share")?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        arguments.extend(["--auth".into(), "--keyFile".into(), key.into()]);
    }
    Ok(arguments)
}

fn state(hello: &Document) -> String {
    hello.get_str("info").map_or_else(|_| format!("hello says {hello}"), str::to_owned)
}

#[expect(clippy::needless_pass_by_value, reason = "it stands where a function of an owned error is asked for")]
fn describe(error: mongodb::error::Error) -> String {
    error.to_string()
}
