//! Spans of jobs and their steps, as a collector gets them from the real binary on real servers.

use std::time::Duration;

use async_nats::HeaderMap;
use serde_json::{Value, json};
use transcript_core::contract::{
    DEAD_LETTER_SUBJECT, PROCESSED_SUBJECT, SESSION_ENDED_SUBJECT, TRANSCRIPTION_STREAM, trace_context::TraceContext,
};
use transcript_tests::{
    calls::Call,
    collector::{CollectorMood, TestCollector, attribute},
    http,
    processor::Processor,
    wait::wait_until,
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(90);
const SHORT: [&str; 4] = ["--quiet-period", "100ms", "--ack-wait", "3s"];
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

async fn start(
    world: &TestWorld,
    collector: &TestCollector,
    arguments: &[&str],
) -> Result<Processor, Box<dyn std::error::Error>> {
    let command = world
        .processor("run")
        .arguments(SHORT)
        .arguments(arguments)
        .environment("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint())
        .environment("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3%20cret")
        .environment("OTEL_EXPORTER_OTLP_TIMEOUT", "500")
        .environment("OTEL_SERVICE_NAME", "summaries")
        .environment("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test");
    Ok(command.start_ready(LONG).await?)
}

/// Stores a call of a few segments and ends it with these headers.
async fn end(world: &TestWorld, session: &str, published: u64, headers: &[(&str, String)]) -> Outcome {
    let call = Call::of("conversation", session, 3)?;
    world.insert_segments(&call.segments).await?;
    let payload = json!({ "conversationId": "conversation", "sessionId": session, "publishedSegments": published });
    publish(world, payload.to_string(), headers).await
}

async fn publish(world: &TestWorld, payload: String, headers: &[(&str, String)]) -> Outcome {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(*name, value.as_str());
    }
    world.jetstream.publish_with_headers(SESSION_ENDED_SUBJECT, map, payload.into()).await?.await?;
    Ok(())
}

/// The trace context of the last message of a subject, once there are so many of it.
async fn context(world: &TestWorld, subject: &'static str) -> Result<Option<TraceContext>, Box<dyn std::error::Error>> {
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let message = wait_until(format!("there is a message of {subject}"), LONG, || async {
        stream.get_last_raw_message_by_subject(subject).await.map_err(|error| error.to_string())
    })
    .await?;
    let headers = message
        .headers
        .iter()
        .flat_map(|(name, values)| values.iter().map(move |value| (AsRef::<str>::as_ref(name), value.as_str())));
    Ok(TraceContext::of_headers(headers))
}

/// The spans of the job about this call, the job's own first, once they have come.
async fn spans_of(collector: &TestCollector, key: &str) -> Result<(Value, Vec<Value>), Box<dyn std::error::Error>> {
    let job = wait_until(format!("the span of {key} comes"), LONG, || async {
        let spans = collector.spans();
        let job = spans.into_iter().find(|span| attribute(span, "transcript.key").as_deref() == Some(key));
        job.ok_or_else(|| format!("{:?}", collector.requests()))
    })
    .await?;
    let steps = collector.spans().into_iter().filter(|span| span["parentSpanId"] == job["spanId"]).collect();
    Ok((job, steps))
}

fn nanos(span: &Value, name: &str) -> u64 {
    span[name].as_str().and_then(|nanos| nanos.parse().ok()).unwrap_or_default()
}

fn named<'a>(steps: &'a [Value], name: &str) -> Result<&'a Value, String> {
    steps.iter().find(|step| step["name"] == name).ok_or_else(|| format!("no step {name} in {steps:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_and_its_steps_are_spans_of_the_trace_of_the_end_and_of_its_notification() -> Outcome {
    let (world, collector) = (TestWorld::start().await?, TestCollector::start().await?);
    let processor = start(&world, &collector, &[]).await?;
    // Go's libraries write names of headers like this.
    let of_trace = |flags: &str| ("Traceparent", format!("00-{TRACE}-{PARENT}-{flags}"));
    let began = wall_nanos();
    end(&world, "traced", 4, &[of_trace("01"), ("tracestate", "vendor=1".to_owned())]).await?;
    let (job, steps) = spans_of(&collector, "conversation:traced").await?;

    assert_eq!(
        (&job["traceId"], &job["parentSpanId"], &job["traceState"]),
        (&TRACE.into(), &PARENT.into(), &"vendor=1".into())
    );
    assert_eq!((&job["name"], &job["kind"]), (&"process transcription.session-ended".into(), &5.into()));
    for (name, value) in [
        ("messaging.system", "nats"),
        ("messaging.operation.type", "process"),
        ("messaging.destination.name", SESSION_ENDED_SUBJECT),
        ("messaging.consumer.group.name", "transcript-processor"),
        ("messaging.message.id", "1"),
        ("transcript.attempt", "1"),
        ("transcript.outcome", "incomplete"),
        ("transcript.segments", "3"),
        ("transcript.published_segments", "4"),
    ] {
        assert_eq!(attribute(&job, name).as_deref(), Some(value), "{name} of {job}");
    }
    let names: Vec<&str> = steps.iter().filter_map(|step| step["name"].as_str()).collect();
    assert_eq!(
        names,
        [
            "queue",
            "quiet period",
            "count transcriptsegments",
            "quiet period",
            "count transcriptsegments",
            "load transcriptsegments",
            "save transcriptsummaries",
            "send transcript.processed",
            "mark transcriptsummaries",
            "ack transcription.session-ended",
        ]
    );
    let mut last = nanos(&job, "startTimeUnixNano");
    assert!(last.abs_diff(began) < 60_000_000_000, "{last} is far from {began}");
    for step in &steps {
        assert_eq!(step["traceId"], TRACE);
        assert_eq!(nanos(step, "startTimeUnixNano"), last, "a step begins where the one before it ended: {steps:?}");
        last = nanos(step, "endTimeUnixNano");
    }
    assert_eq!(last, nanos(&job, "endTimeUnixNano"), "{job}");
    let quiet = named(&steps, "quiet period")?;
    assert!(nanos(&steps[3], "endTimeUnixNano") - nanos(&steps[3], "startTimeUnixNano") >= 99_000_000, "{quiet}");
    let sent = named(&steps, "send transcript.processed")?;
    assert_eq!(sent["kind"], 4);
    assert_eq!(attribute(sent, "messaging.operation.type").as_deref(), Some("send"));
    assert_eq!(attribute(sent, "messaging.message.id").as_deref(), Some("conversation:traced"));
    assert_eq!(attribute(named(&steps, "save transcriptsummaries")?, "db.system.name").as_deref(), Some("mongodb"));
    let announced = context(&world, PROCESSED_SUBJECT).await?.ok_or("the notification is of a trace")?;
    let span = sent["spanId"].as_str().ok_or("an id is a text")?;
    assert_eq!(
        announced.to_string(),
        format!("00-{TRACE}-{span}-01"),
        "whoever reads it goes on from the span that sent it"
    );
    assert_eq!(announced.state.as_deref(), Some("vendor=1"));

    // Without a trace a new one begins; of one that is not kept nothing is sent, and it goes on as it came.
    end(&world, "alone", 3, &[]).await?;
    let (alone, _) = spans_of(&collector, "conversation:alone").await?;
    assert!(alone.get("parentSpanId").is_none() && alone["traceId"] != TRACE, "{alone}");
    assert_eq!(attribute(&alone, "transcript.outcome").as_deref(), Some("complete"));
    end(&world, "unsampled", 3, &[of_trace("00")]).await?;
    wait_until("it is announced", LONG, || async {
        let context = context(&world, PROCESSED_SUBJECT).await.map_err(|error| error.to_string())?;
        let expected = format!("00-{TRACE}-{PARENT}-00");
        context.filter(|context| context.to_string() == expected).ok_or("not yet".to_owned())
    })
    .await?;

    // What can never be processed is a failed span, and its dead letter is of the same trace.
    publish(&world, "no JSON".to_owned(), &[of_trace("01")]).await?;
    let letter = context(&world, DEAD_LETTER_SUBJECT).await?.ok_or("the dead letter is of a trace")?;
    assert_eq!(letter.to_string(), format!("00-{TRACE}-{PARENT}-01"));
    let sequence = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let sequence = sequence.get_last_raw_message_by_subject(DEAD_LETTER_SUBJECT).await?.sequence.to_string();
    world.processor("dead-letters").arguments(["redrive", &sequence]).run(LONG).await?;
    let redriven = context(&world, SESSION_ENDED_SUBJECT).await?.ok_or("what is redriven is of a trace")?;
    assert_eq!(redriven, letter);
    let failed = wait_until("its span comes", LONG, || async {
        let failed = |span: &Value| attribute(span, "transcript.outcome").as_deref() == Some("dead_letter");
        collector.spans().into_iter().find(failed).ok_or_else(|| format!("{:?}", collector.requests()))
    })
    .await?;
    assert_eq!((&failed["status"]["code"], &failed["traceId"]), (&2.into(), &TRACE.into()));

    processor.terminate().await?;
    let requests = collector.requests();
    let request = requests.first().ok_or("there is a request")?;
    assert!(request.head.starts_with("post /v1/traces http/1.1\r\n"), "{}", request.head);
    assert!(request.head.contains("api-key: s3 cret") && request.head.contains("content-type: application/json"));
    let resource = &request.body["resourceSpans"][0]["resource"];
    assert_eq!(attribute(resource, "service.name").as_deref(), Some("summaries"));
    assert_eq!(attribute(resource, "deployment.environment.name").as_deref(), Some("test"));
    let all: String = requests.iter().map(|request| request.body.to_string()).collect();
    assert!(!all.contains("unsampled"), "{all}");
    for segment in Call::of("conversation", "traced", 3)?.segments {
        assert!(!all.contains(&segment.text), "no word of a call is in a span");
    }
    assert!(!processor.logs().contains("cret"), "{}", processor.logs());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_refuses_or_says_nothing_costs_nothing_but_spans() -> Outcome {
    let (world, collector) = (TestWorld::start().await?, TestCollector::start().await?);
    let processor = start(&world, &collector, &["--http", "127.0.0.1:0"]).await?;
    let address = processor.address("listening for HTTP", LONG).await?;
    let counted = |name: &'static str| async move {
        let metrics = http::get(address, "/metrics", "").await.map_err(|error| error.to_string())?.body;
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok());
        line.ok_or(metrics)
    };
    let announced = |calls: usize| {
        let world = &world;
        wait_until(format!("{calls} calls are announced"), LONG, move || async move {
            let announced = world.notifications().await.map_err(|error| error.to_string())?.len();
            if announced == calls { Ok(()) } else { Err(announced.to_string()) }
        })
    };
    let some = |name: &'static str| {
        wait_until(format!("{name} is counted"), LONG, move || async move {
            let spans = counted(name).await?;
            if spans >= 11.0 { Ok(()) } else { Err(spans.to_string()) }
        })
    };
    collector.be(CollectorMood::Refuses(400));
    end(&world, "refused", 3, &[]).await?;
    announced(1).await?;
    some("transcript_spans_dropped_total").await?;
    end(&world, "refused-too", 3, &[]).await?;
    announced(2).await?;
    wait_until("the second refusal has come", LONG, || async {
        let requests = collector.requests();
        if requests.len() >= 2 { Ok(()) } else { Err(format!("{requests:?}")) }
    })
    .await?;
    collector.be(CollectorMood::Takes);
    end(&world, "taken", 3, &[]).await?;
    some("transcript_spans_exported_total").await?;
    processor.logged("spans reach the collector again", LONG).await?;
    assert_eq!(processor.logs().matches("spans do not reach the collector").count(), 1, "{}", processor.logs());

    collector.be(CollectorMood::IsSilent);
    end(&world, "unheard", 3, &[]).await?;
    announced(4).await?;
    // Its last spans are not waited for longer than is said.
    processor.terminate().await?;
    Ok(())
}

fn wall_nanos() -> u64 {
    let now = transcript_processor::service::clock::Clock::start().wall().as_millis();
    u64::try_from(now).unwrap_or_default() * 1_000_000
}
