//! Everything that a call in the browser needs: servers, a processor that records, a transcriber, the page, and chromedriver
//! to act as people.

use std::{
    env,
    error::Error,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    process_guard::{self, Exit, GuardedProcess, Launch, ProcessGuardError},
    processor::Processor,
    servers::port,
    wait::wait_until,
    world::TestWorld,
};

/// Long beside what any start takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// How often other ports are tried where another process has taken one meanwhile.
const TRIES: u32 = 5;

/// A running system that people can hold a call on, with one address to open.
#[derive(Debug)]
pub struct BrowserCall {
    /// The servers.
    pub world: TestWorld,
    _processor: Processor,
    transcriber: Processor,
    transcriber_port: u16,
    page_port: u16,
    _page: Processor,
}

impl BrowserCall {
    /// Starts all of it. The processor's traces go into the directory.
    ///
    /// # Errors
    ///
    /// A server or a process does not start.
    pub async fn start(traces: &Path) -> Result<Self, Box<dyn Error>> {
        let world = TestWorld::start_with_own_mongod().await?;
        world.processor("setup").run(LONG).await?;
        let processor =
            world.processor("run").arguments(["--quiet-period", "500ms", "--http", "127.0.0.1:0", "--record"]);
        let processor = processor.argument(traces).start().await?;
        let status = processor.address("listening for HTTP", LONG).await?;
        let mut tried = 0;
        loop {
            tried += 1;
            let (transcriber_port, page_port) = (port::probably_free(), port::probably_free());
            let started = tokio::try_join!(
                start_transcriber(&world, transcriber_port, page_port),
                start_page(&world, transcriber_port, page_port, status, traces),
            );
            match started {
                Ok((transcriber, page)) => {
                    return Ok(Self {
                        world,
                        _processor: processor,
                        transcriber,
                        transcriber_port,
                        page_port,
                        _page: page,
                    });
                }
                Err(error) if tried == TRIES => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// What to open in a browser.
    #[must_use]
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}/", self.page_port)
    }

    /// Kills the transcriber.
    ///
    /// # Errors
    ///
    /// See [`Processor::kill`].
    pub async fn kill_transcriber(&self) -> Result<Exit, ProcessGuardError> {
        self.transcriber.kill().await
    }

    /// Starts another transcriber where the first one was.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub async fn start_transcriber_again(&mut self) -> Result<(), Box<dyn Error>> {
        self.transcriber = start_transcriber(&self.world, self.transcriber_port, self.page_port).await?;
        Ok(())
    }
}

async fn start_transcriber(world: &TestWorld, port: u16, page: u16) -> Result<Processor, Box<dyn Error>> {
    let transcriber = world
        .processor("transcriber")
        .arguments([format!("--listen=127.0.0.1:{port}"), format!("--allow-origin=http://127.0.0.1:{page}")])
        .arguments(["--end-after-close=1s", "--end-after-break=5s", "--lease=2s"])
        .start()
        .await?;
    wait_until("the transcriber is ready", LONG, || async {
        let logs = transcriber.logs();
        if logs.contains("ready") { Ok(()) } else { Err(logs) }
    })
    .await?;
    Ok(transcriber)
}

async fn start_page(
    world: &TestWorld,
    transcriber: u16,
    port: u16,
    processor: SocketAddr,
    traces: &Path,
) -> Result<Processor, Box<dyn Error>> {
    let page = world
        .processor("call-page")
        .arguments([format!("--listen=127.0.0.1:{port}"), format!("--transcriber=ws://127.0.0.1:{transcriber}")])
        .arguments([format!("--processor={processor}")])
        .argument("--traces")
        .argument(traces)
        .start()
        .await?;
    wait_until("the page is served", LONG, || async {
        if page.output().contains("http://") { Ok(()) } else { Err(page.logs()) }
    })
    .await?;
    Ok(page)
}

/// The program of this name, where `PATH` has one.
#[must_use]
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file())
}

/// A running chromedriver. It is killed, with its browsers, when this is dropped or the test ends, however it ends.
#[derive(Debug)]
pub struct Chromedriver {
    url: String,
    _process: GuardedProcess,
}

impl Chromedriver {
    /// Starts the program on a free port.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub async fn start(program: PathBuf) -> Result<Self, Box<dyn Error>> {
        let directory = process_guard::directory("chromedriver")?;
        let output = directory.path().join("output");
        let process = GuardedProcess::start(Launch {
            program,
            arguments: vec!["--port=0".into()],
            environment: vec![],
            directory: directory.path().to_owned(),
            output: output.clone(),
            log: directory.path().join("log"),
        })
        .await?;
        // The guard removes it.
        let _directory = directory.keep();
        let port = wait_until("chromedriver is started", LONG, || async {
            let text = process_guard::read(&output);
            let port = text.split("started successfully on port ").nth(1).and_then(|rest| rest.split('.').next());
            port.map(str::to_owned).ok_or(text)
        })
        .await?;
        Ok(Self { url: format!("http://127.0.0.1:{port}"), _process: process })
    }

    /// Where WebDriver reaches it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}
