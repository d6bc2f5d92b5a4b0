//! nats-server with JetStream.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use async_nats::{Client, ConnectOptions, jetstream};

use super::{Program, READY_WITHIN, ServerError, port, ready};
use crate::{
    leash::{self, Exit, Launch, LeashError, Leashed},
    wait::{NotReached, wait_until},
};

/// How many ports are tried.
const PORTS: u32 = 20;

/// A nats-server with JetStream on file storage, in a directory of its own that is gone when this is dropped.
///
/// Every test starts its own: it is ready within some 50 ms, holds less than 20 MB, and a test may kill it.
#[derive(Debug)]
pub struct NatsServer {
    process: Leashed,
    directory: PathBuf,
    port: u16,
    options: NatsOptions,
}

/// What a [`NatsServer`] is to be, besides the default.
#[derive(Debug, Clone, Default)]
pub struct NatsOptions {
    /// Lines added to the configuration file.
    pub config: String,
    /// Who may connect, where the configuration says that not everybody may.
    pub login: Option<Login>,
}

/// A user of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The name.
    pub user: String,
    /// The password.
    pub password: String,
}

impl NatsServer {
    /// A server without more configuration than it needs.
    ///
    /// # Errors
    ///
    /// See [`Self::start_with`].
    pub async fn start() -> Result<Self, ServerError> {
        Self::start_with(NatsOptions::default()).await
    }

    /// A server that is ready: JetStream answers.
    ///
    /// # Errors
    ///
    /// There is no binary, it ends (a mistake in the configuration is shown), or it is not ready in time.
    pub async fn start_with(options: NatsOptions) -> Result<Self, ServerError> {
        for _ in 0..PORTS {
            match Self::start_on(port::probably_free(), options.clone()).await {
                Err(error) if error.is_port_in_use() => {}
                other => return other,
            }
        }
        Err(ServerError::NoPort { server: Program::NatsServer, tried: PORTS })
    }

    async fn start_on(port: u16, options: NatsOptions) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Directory { server: Program::NatsServer, source };
        let temporary = leash::directory("nats").map_err(failed)?;
        let directory = temporary.path().to_owned();
        configure(&directory, port, &options, JetStream::Enabled).map_err(failed)?;
        let process = Leashed::start(launch(&directory).await?).await?;
        let directory = temporary.keep();
        let server = Self { process, directory, port, options };
        server.ready().await?;
        Ok(server)
    }

    /// Where clients reach it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Its address, for a proxy before it.
    #[must_use]
    pub fn address(&self) -> std::net::SocketAddr {
        (std::net::Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// A new connection, which comes back by itself when the server does.
    ///
    /// # Errors
    ///
    /// What the client says.
    pub async fn client(&self) -> Result<Client, async_nats::ConnectError> {
        self.connect_options().connect(self.url()).await
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

    /// Starts it on the same port and the same directory, and waits until it is ready. Kills it first if it runs.
    ///
    /// # Errors
    ///
    /// See [`Self::start_with`].
    pub async fn start_again(&mut self) -> Result<(), ServerError> {
        self.process.kill().await?;
        let next = Leashed::start(launch(&self.directory).await?).await?;
        std::mem::replace(&mut self.process, next).hand_over();
        self.ready().await
    }

    /// Kills it and starts it on the same port and the same directory without JetStream, as a server is that takes connections
    /// while its streams are not there yet. Waits until it takes them; [`Self::enable_jetstream`] brings the streams back.
    ///
    /// # Errors
    ///
    /// See [`Self::start_with`].
    pub async fn start_again_without_jetstream(&mut self) -> Result<(), ServerError> {
        self.process.kill().await?;
        self.configure(JetStream::Disabled)?;
        let next = Leashed::start(launch(&self.directory).await?).await?;
        std::mem::replace(&mut self.process, next).hand_over();
        let connects = wait_until("the server takes connections", READY_WITHIN, || async {
            self.client().await.map(|_| ()).map_err(|error| error.to_string())
        });
        ready(Program::NatsServer, &self.process, connects).await
    }

    /// Has the running server enable JetStream, and waits until it answers.
    ///
    /// # Errors
    ///
    /// See [`Self::start_with`].
    pub async fn enable_jetstream(&self) -> Result<(), ServerError> {
        self.configure(JetStream::Enabled)?;
        self.process.reload()?;
        self.ready().await
    }

    fn configure(&self, jetstream: JetStream) -> Result<(), ServerError> {
        let configured = configure(&self.directory, self.port, &self.options, jetstream);
        configured.map_err(|source| ServerError::Directory { server: Program::NatsServer, source })
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

    /// Where its configuration, log and store are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    async fn ready(&self) -> Result<(), ServerError> {
        ready(Program::NatsServer, &self.process, self.answers()).await
    }

    async fn answers(&self) -> Result<(), NotReached> {
        wait_until("JetStream answers", READY_WITHIN, || async {
            let client = self.client().await.map_err(|error| error.to_string())?;
            // Another process's server may have the port that ours is about to be refused.
            let name = client.server_info().server_name;
            if name != server_name(self.port) {
                return Err(format!("the server on the port is {name:?}"));
            }
            jetstream::new(client).query_account().await.map(|_| ()).map_err(|error| error.to_string())
        })
        .await
    }

    fn connect_options(&self) -> ConnectOptions {
        let options = ConnectOptions::new().connection_timeout(Duration::from_secs(2));
        match &self.options.login {
            Some(Login { user, password }) => options.user_and_password(user.clone(), password.clone()),
            None => options,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JetStream {
    Enabled,
    Disabled,
}

fn configure(directory: &Path, port: u16, options: &NatsOptions, jetstream: JetStream) -> io::Result<()> {
    let store = directory.join("store");
    let jetstream = match jetstream {
        JetStream::Enabled => format!("jetstream {{ store_dir: \"{}\" }}\n", store.display()),
        JetStream::Disabled => String::new(),
    };
    let name = server_name(port);
    let config = format!("host: 127.0.0.1\nport: {port}\nserver_name: \"{name}\"\n{jetstream}{}\n", options.config);
    fs::write(directory.join("nats.conf"), config)
}

/// Tells this process's server on the port from any other's.
fn server_name(port: u16) -> String {
    format!("test-{}-{port}", std::process::id())
}

async fn launch(directory: &Path) -> Result<Launch, ServerError> {
    let log = directory.join("log");
    Ok(Launch {
        program: Program::NatsServer.binary().await?,
        arguments: vec!["--config".into(), directory.join("nats.conf").into()],
        environment: Vec::new(),
        directory: directory.to_owned(),
        output: log.clone(),
        log,
    })
}
