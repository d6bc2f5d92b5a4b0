//! nats-server with JetStream.

use std::{fs, io, path::PathBuf, time::Duration};

use async_nats::{Client, ConnectOptions, jetstream};

use super::{
    Program, READY_WITHIN, ServerError,
    process::{Place, ServerProcess},
};
use crate::wait::{NotReached, wait_until};

/// A nats-server with JetStream on file storage, in a directory of its own that is gone when this is dropped.
///
/// Every test starts its own: it is ready within some 50 ms, holds less than 20 MB, and a test may kill it.
#[derive(Debug)]
pub struct NatsServer {
    process: ServerProcess,
    options: NatsOptions,
    /// Settings added to the block of JetStream.
    jetstream: String,
    /// JWT and seed, where users have these.
    credentials: Option<String>,
}

/// What a [`NatsServer`] is to be, besides the default.
#[derive(Debug, Clone, Default)]
pub struct NatsOptions {
    /// Lines added to the configuration file.
    pub config: String,
    /// Who may connect, where the configuration says that not everybody may.
    pub login: Option<Login>,
    /// The authority that signed the server's certificate, where the configuration says that it has one.
    pub authority: Option<PathBuf>,
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
        Self::start_with_jetstream(options, String::new()).await
    }

    /// The same, with settings for the block of JetStream, such as `max_file_store: 1000`.
    ///
    /// # Errors
    ///
    /// See [`Self::start_with`].
    pub async fn start_with_jetstream(options: NatsOptions, jetstream: String) -> Result<Self, ServerError> {
        ServerProcess::on_a_free_port(Program::NatsServer, async |port| {
            Self::start_on(port, options.clone(), jetstream.clone(), None).await
        })
        .await
    }

    /// The same in operator mode: the harness has these credentials.
    ///
    /// # Errors
    ///
    /// See [`Self::start_with`].
    pub async fn start_with_credentials(options: NatsOptions, credentials: &str) -> Result<Self, ServerError> {
        ServerProcess::on_a_free_port(Program::NatsServer, async |port| {
            Self::start_on(port, options.clone(), String::new(), Some(credentials.to_owned())).await
        })
        .await
    }

    async fn start_on(
        port: u16,
        options: NatsOptions,
        jetstream: String,
        credentials: Option<String>,
    ) -> Result<Self, ServerError> {
        let process = ServerProcess::start(Program::NatsServer, port, |place| {
            configure(place, &options, JetStream::Enabled(&jetstream))?;
            Ok(vec!["--config".into(), place.directory.join(CONFIG).into()])
        })
        .await?;
        let server = Self { process, options, jetstream, credentials };
        server.ready().await?;
        Ok(server)
    }

    /// Where clients reach it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://{}", self.process.address())
    }

    /// A new connection, which comes back by itself when the server does.
    ///
    /// # Errors
    ///
    /// What the client says.
    pub async fn client(&self) -> Result<Client, async_nats::ConnectError> {
        self.connect_options()?.connect(self.url()).await
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &ServerProcess {
        &self.process
    }

    /// Starts it on the same port and the same directory, and waits until it is ready. Kills it first if it runs.
    ///
    /// # Errors
    ///
    /// See [`Self::start_with`].
    pub async fn start_again(&mut self) -> Result<(), ServerError> {
        self.process.start_again().await?;
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
        self.process.start_again().await?;
        let connects = wait_until("the server takes connections", READY_WITHIN, || async {
            self.client().await.map(|_| ()).map_err(|error| error.to_string())
        });
        self.process.ready(connects).await
    }

    /// Has the running server enable JetStream, and waits until it answers.
    ///
    /// # Errors
    ///
    /// See [`Self::start_with`].
    pub async fn enable_jetstream(&self) -> Result<(), ServerError> {
        self.configure(JetStream::Enabled(&self.jetstream))?;
        self.process.reload()?;
        self.ready().await
    }

    /// Has the running server take other settings, and waits until it answers with them. Clients that these do not let in are
    /// disconnected.
    ///
    /// # Errors
    ///
    /// See [`Self::start_with`].
    pub async fn reconfigure(&mut self, options: NatsOptions) -> Result<(), ServerError> {
        self.options = options;
        self.configure(JetStream::Enabled(&self.jetstream))?;
        self.process.reload()?;
        self.ready().await
    }

    /// Has the running server read its files again, certificates among them, and waits until it has.
    ///
    /// # Errors
    ///
    /// It has ended, or its log does not say so in time.
    pub async fn read_files_again(&self) -> Result<(), ServerError> {
        let reloads = |log: String| log.matches("Reloaded server configuration").count();
        let before = reloads(self.process.log());
        self.process.reload()?;
        let reloaded = wait_until("it has read its files again", READY_WITHIN, || async {
            let log = self.process.log();
            if reloads(log.clone()) > before { Ok(()) } else { Err(log) }
        });
        self.process.ready(reloaded).await
    }

    fn configure(&self, jetstream: JetStream<'_>) -> Result<(), ServerError> {
        let configured = configure(self.process.place(), &self.options, jetstream);
        configured.map_err(|source| ServerError::Directory { server: Program::NatsServer, source })
    }

    async fn ready(&self) -> Result<(), ServerError> {
        self.process.ready(self.answers()).await
    }

    async fn answers(&self) -> Result<(), NotReached> {
        wait_until("JetStream answers", READY_WITHIN, || async {
            let client = self.client().await.map_err(|error| error.to_string())?;
            // Another process's server may have the port that ours is about to be refused.
            let name = client.server_info().server_name;
            if name != server_name(self.process.place().port) {
                return Err(format!("the server on the port is {name:?}"));
            }
            jetstream::new(client).query_account().await.map(|_| ()).map_err(|error| error.to_string())
        })
        .await
    }

    fn connect_options(&self) -> Result<ConnectOptions, async_nats::ConnectError> {
        let options = ConnectOptions::new().connection_timeout(Duration::from_secs(2));
        let options = match &self.options.authority {
            Some(authority) => options.add_root_certificates(authority.clone()).require_tls(true),
            None => options,
        };
        if let Some(credentials) = &self.credentials {
            return options.credentials(credentials).map_err(|error| {
                async_nats::ConnectError::with_source(async_nats::ConnectErrorKind::Authentication, error)
            });
        }
        Ok(match &self.options.login {
            Some(Login { user, password }) => options.user_and_password(user.clone(), password.clone()),
            None => options,
        })
    }
}

/// The configuration's file in the server's directory.
const CONFIG: &str = "nats.conf";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JetStream<'s> {
    /// With these settings besides its directory.
    Enabled(&'s str),
    Disabled,
}

fn configure(place: Place<'_>, options: &NatsOptions, jetstream: JetStream<'_>) -> io::Result<()> {
    let Place { directory, port } = place;
    let store = directory.join("store");
    let jetstream = match jetstream {
        JetStream::Enabled(settings) => {
            format!("jetstream {{\n store_dir: \"{}\"\n {settings}\n}}\n", store.display())
        }
        JetStream::Disabled => String::new(),
    };
    let name = server_name(port);
    let config = format!("host: 127.0.0.1\nport: {port}\nserver_name: \"{name}\"\n{jetstream}{}\n", options.config);
    fs::write(directory.join(CONFIG), config)
}

/// Tells this process's server on the port from any other's.
fn server_name(port: u16) -> String {
    format!("test-{}-{port}", std::process::id())
}
