//! What an operator sees of a transcriber: each fault, caused on real servers, on `/readyz` and in the metrics.

use std::{fs, net::SocketAddr, time::Duration};

use transcript_processor::monitor::transcriber::TranscriberFinding;
use transcript_tests::{
    calls::fixture,
    http::{self, HttpAnswer},
    transcriber::RunningTranscriber,
    wait::wait_until,
    world::{StoreOf, TestWorld},
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(90);
/// Within this time an operator sees a fault.
const SEEN_WITHIN: Duration = Duration::from_secs(15);

async fn get(address: SocketAddr, path: &str) -> Result<HttpAnswer, String> {
    http::get(address, path, "").await.map_err(|error| error.to_string())
}

/// The value of a metric with these labels.
async fn metric(address: SocketAddr, metric: &str) -> Result<f64, String> {
    let metrics = get(address, "/metrics").await?.body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' ')?.parse().ok());
    line.ok_or_else(|| format!("no {metric} in {metrics}"))
}

async fn ready(address: SocketAddr) -> Outcome {
    wait_until("the transcriber is ready, and nothing is wrong", LONG, || async {
        let answer = get(address, "/readyz").await?;
        if answer.status == 200 && answer.body == "ready\n" { Ok(()) } else { Err(answer.body) }
    })
    .await?;
    Ok(())
}

/// Waits until a finding is told on both ways; gives what `/readyz` says.
async fn finds(address: SocketAddr, name: &str, status: u16) -> Result<String, Box<dyn std::error::Error>> {
    let told = wait_until(format!("{name} is found"), SEEN_WITHIN, || async {
        let answer = get(address, "/readyz").await?;
        let line = answer.body.lines().find(|line| line.starts_with(&format!("{name}: "))).map(str::to_owned);
        line.filter(|_| answer.status == status).ok_or(answer.body)
    })
    .await?;
    assert!(told.contains(&format!("#{name}")), "it names the manual's section: {told}");
    assert_eq!(metric(address, &format!("transcriber_finding{{name=\"{name}\"}}")).await?, 1.0);
    Ok(told)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transcriber_shows_its_work_and_each_fault() -> Outcome {
    let mut world = TestWorld::start_as(StoreOf::ThisWorld, Default::default()).await?;
    world.create_streams().await?;
    let directory = tempfile::tempdir()?;
    let tokens = directory.path().join("tokens");
    fs::write(&tokens, "0123456789abcdef\n")?;
    let command = world
        .processor("transcriber")
        .arguments(["--http", "127.0.0.1:0", "--request-timeout", "500ms", "--lease", "2s", "--end-after-close", "0s"])
        .argument("--token-file")
        .argument(&tokens);
    let transcriber = RunningTranscriber::start(command).await?;
    let address = transcriber.process.address("listening for HTTP", LONG).await?;
    ready(address).await?;
    assert_eq!(get(address, "/healthz").await?.status, 200);

    assert!(transcriber.connect("c", "s", "?token=another-secret-of-16").await.is_err());
    let mut client = transcriber.connect("c", "s", "?token=0123456789abcdef").await?;
    for number in 0..5 {
        client.say(&format!("u{number}"), "Shall we?").await?;
    }
    assert_eq!(client.finalize().await?, 5);
    for (name, value) in [
        ("transcriber_connections", 1.0),
        ("transcriber_sessions{state=\"serving\"}", 1.0),
        ("transcriber_segments_received_total", 5.0),
        ("transcriber_segments_stored_total", 5.0),
        ("transcriber_acknowledgement_seconds_count", 5.0),
        ("transcriber_refused_total{reason=\"token\"}", 1.0),
        ("transcriber_refused_total{reason=\"limit\"}", 0.0),
        ("transcriber_ready", 1.0),
    ] {
        assert_eq!(metric(address, name).await?, value, "{name}");
    }
    assert!(metric(address, "transcriber_acknowledgement_seconds_sum").await? > 0.0);
    let metrics = get(address, "/metrics").await?.body;
    assert!(!metrics.contains("Shall"), "{metrics}");
    for file in ["alerts.yml", "dashboard.json"] {
        let text = fs::read_to_string(fixture(&format!("monitoring/{file}")))?;
        // What leads to the manual names a finding.
        let lines = text.lines().filter(|line| !line.contains("manual: "));
        let words = lines.flat_map(|line| line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')));
        let unknown: Vec<&str> =
            words.filter(|word| word.starts_with("transcriber_") && !is_told(&metrics, word)).collect();
        assert_eq!(unknown, Vec::<&str>::new(), "{file} asks for metrics that are not there");
    }
    let (alerts, manual) = (
        fs::read_to_string(fixture("monitoring/alerts.yml"))?,
        fs::read_to_string(fixture("../shell-tokio/README.md"))?,
    );
    for name in TranscriberFinding::ALL.map(TranscriberFinding::name) {
        assert!(alerts.contains(&format!("transcriber_finding{{name=\"{name}\"}} == 1")), "no alert for {name}");
        assert!(manual.lines().any(|line| line == format!("#### {name}")), "no section for {name}");
    }

    world.mongod().process().freeze().await?;
    let told = finds(address, "segments_not_stored", 503).await?;
    assert!(told.contains("Start mongod"), "{told}");
    assert_eq!(get(address, "/healthz").await?.status, 200, "the loop runs whatever the servers do");
    world.mongod().process().thaw().await?;
    ready(address).await?;
    world.nats.process().kill().await?;
    let told = finds(address, "segments_not_published", 200).await?;
    assert!(told.contains("Start nats-server"), "{told}");
    world.nats.start_again().await?;
    ready(address).await?;

    transcriber.process.freeze().await?;
    let asked = tokio::time::timeout(Duration::from_secs(1), get(address, "/healthz")).await;
    assert!(asked.is_err(), "a process that is stopped does not answer: {asked:?}");
    transcriber.process.thaw().await?;
    client.close().await?;
    transcriber.process.terminate().await?;
    Ok(())
}

/// Whether a scrape describes a metric; parts of a histogram are told with it.
fn is_told(metrics: &str, name: &str) -> bool {
    let described = |name: &str| metrics.contains(&format!("# TYPE {name} "));
    let whole = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
    described(name) || whole.is_some_and(described) || name.strip_suffix("_total").is_some_and(described)
}
