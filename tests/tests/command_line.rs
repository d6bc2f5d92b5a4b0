//! The command line of the real binary: what it takes from the environment, what it prints where, and what it never destroys.

use std::{
    fs::{self, File},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use transcript_processor::terminal::obeyed;
use transcript_tests::{
    by_hand,
    calls::{Call, fixture},
    cargo::{self, Version},
    process_guard::Exit,
    processor::ProcessorCommand,
    wait::wait_until,
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(90);
/// What a terminal would obey: a title, a bell, a C1 control, and a mark that turns the direction of text.
const HOSTILE: &str = "a\u{1b}]0;x\u{7}\u{9b}2J\u{202e}b";

/// A run of the processor without servers: how it ended, what it printed, what it logged.
struct Ran {
    code: Option<i32>,
    output: String,
    logs: String,
}

async fn run_with(
    arguments: &[&str],
    change: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<Ran, Box<dyn std::error::Error>> {
    let mut command = Command::new(cargo::processor(Version::Product).await?);
    command.args(arguments).env("NATS_URL", "nats://127.0.0.1:1").env("MONGODB_URI", "mongodb://127.0.0.1:1");
    command.env("TRANSCRIPT_CONNECT_TIMEOUT", "300ms").stdin(Stdio::null());
    change(&mut command);
    let done = command.output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Ran { code: done.status.code(), output: text(done.stdout), logs: text(done.stderr) })
}

async fn ran(arguments: &[&str]) -> Result<Ran, Box<dyn std::error::Error>> {
    run_with(arguments, |command| command).await
}

fn path(path: &Path) -> &str {
    path.to_str().expect("the tests' paths are UTF-8")
}

#[tokio::test]
async fn an_empty_variable_counts_as_unset() -> Outcome {
    let empty = [
        "NATS_CREDS",
        "NATS_NKEY",
        "NATS_USER",
        "NATS_PASSWORD",
        "NATS_PASSWORD_FILE",
        "NATS_TLS_CA",
        "NATS_REQUIRE_TLS",
        "NATS_JS_DOMAIN",
        "MONGODB_PASSWORD_FILE",
        "MONGODB_DATABASE",
        "TRANSCRIPT_ACK_WAIT",
        "TRANSCRIPT_RECORD",
        "TRANSCRIPT_REVISE",
        "TRANSCRIPT_LOG",
        "TRANSCRIPT_LOG_FORMAT",
        "TRANSCRIPT_NAME",
    ];
    let run = run_with(&["run"], |command| command.envs(empty.map(|name| (name, "")))).await?;
    assert_eq!(run.code, Some(1), "{}", run.logs);
    // Both are told of, and nothing else.
    let errors: Vec<_> = run.logs.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(
        matches!(errors.as_slice(), [nats, mongodb]
            if nats.contains("cannot connect to NATS") && mongodb.contains("cannot connect to MongoDB")),
        "{}",
        run.logs
    );
    let usage = ran(&["run", "--ack-wait", "x"]).await?;
    assert!(usage.logs.contains("Usage: transcript-processor run [OPTIONS]\n"), "{}", usage.logs);
    Ok(())
}

#[tokio::test]
async fn offline_commands_need_no_setting_of_a_server() -> Outcome {
    let trace = fixture("traces/plain-call.jsonl");
    for arguments in [["replay", path(&trace)], ["trace", path(&trace)], ["timeline", path(&trace)]] {
        let done = run_with(&arguments, |command| {
            command.env("NATS_URL", "http://x").env("TRANSCRIPT_ACK_WAIT", "x").env("MONGODB_URI", "x")
        })
        .await?;
        assert_eq!(done.code, Some(0), "{arguments:?}: {}", done.logs);
        assert_eq!(done.logs, "", "{arguments:?}");
    }
    Ok(())
}

#[tokio::test]
async fn what_has_no_effect_is_warned_of() -> Outcome {
    let run = run_with(&["run"], |command| {
        command.env("TRANSCRIPT_QUITE_PERIOD", "1s").env("TRANSCRIPT_RECORD_CONTENT", "true");
        command.env("TRANSCRIPT_REVISE_EVERY", "1s").env("TRANSCRIPT_PROCESSOR_SERVICE_HOST", "10.0.0.1")
    })
    .await?;
    for warning in [
        "the environment variable TRANSCRIPT_QUITE_PERIOD is not known and has no effect",
        "--record-content has no effect without --record",
        "--revise-every has no effect without --revise",
    ] {
        assert!(run.logs.contains(warning), "{warning}: {}", run.logs);
    }
    assert!(!run.logs.contains("SERVICE_HOST"), "{}", run.logs);
    Ok(())
}

#[tokio::test]
async fn everything_that_run_says_is_json_where_its_log_is() -> Outcome {
    for (arguments, code, told) in [
        (vec!["run", "--log-format", "json"], 1, "cannot connect to MongoDB"),
        (vec!["run", "--log-format=json", "--ack-wait", "x"], 2, "must be a duration"),
        (vec!["run", "--log-format=json", "--max-ack-pending", "1"], 2, "--max-ack-pending 1 is less than"),
        (vec!["run", "--log-format=json", "--no-such-option"], 2, "unexpected argument"),
        (vec!["run", "--log-format=json", "--nats-nkey", "/no/such/file"], 1, "cannot read --nats-nkey"),
        (vec!["dead-letters", "redrive", "--log-format=json"], 2, "or --all that are open"),
        (vec!["play", "--log-format=json", "/no/such/file"], 1, "cannot read /no/such/file"),
    ] {
        let done = run_with(&arguments, |command| command.env("TRANSCRIPT_QUITE", "1")).await?;
        assert_eq!(done.code, Some(code), "{arguments:?}: {}", done.logs);
        let mut messages = String::new();
        for line in done.logs.lines() {
            let value: Value = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
            assert!(value["timestamp"].is_string() && value["target"].is_string(), "{line}");
            assert!(matches!(value["level"].as_str(), Some("ERROR" | "WARN" | "INFO")), "{line}");
            messages += value["message"].as_str().unwrap_or_default();
        }
        assert!(messages.contains(told) && !messages.contains("error: "), "{arguments:?}: {messages}");
    }
    let by_variable = run_with(&["run", "--bad"], |command| command.env("TRANSCRIPT_LOG_FORMAT", "json")).await?;
    assert!(serde_json::from_str::<Value>(&by_variable.logs).is_ok(), "{}", by_variable.logs);
    Ok(())
}

fn assert_harmless(what: &str, text: &str) {
    let obeyed: String = text.chars().filter(|c| *c != '\n' && *c != '\t' && obeyed(*c)).collect();
    assert!(obeyed.is_empty(), "{what}: {obeyed:?} in {text:?}");
}

#[tokio::test]
async fn no_terminal_obeys_a_hostile_file_or_its_name() -> Outcome {
    let directory = tempfile::tempdir()?;
    let hostile = directory.path().join(format!("{HOSTILE}.jsonl"));
    let escaped = serde_json::to_string(HOSTILE)?;
    let id = escaped.trim_matches('"');
    let trace = fs::read_to_string(fixture("traces/plain-call.jsonl"))?;
    let raw = trace.replace("\"olive-oil", &format!("\"{}", HOSTILE.replace(['\u{1b}', '\u{7}'], "")));
    let call = format!(r#"{{"conversationId":"{id}","sessionId":"s","index":0,"speaker":"{id}","text":"{id}"}}"#);
    let contents = [
        HOSTILE.to_owned(),
        format!("{{\"transcriptTrace\":9,\"program\":\"{id}\"}}\n"),
        format!("{trace}{HOSTILE}\n"),
        trace.replace("\"program\":\"transcript-", &format!("\"program\":\"{id}")),
        trace.replace("\"processor\":\"a\"", &format!("\"processor\":\"{id}\"")),
        trace.replace("olive-oil", id),
        raw,
        call,
    ];
    let file = path(&hostile);
    let empty = directory.path().join("empty");
    fs::create_dir(&empty)?;
    let commands: [&[&str]; 14] = [
        &["replay", file],
        &["replay", file, "--json"],
        &["trace", file],
        &["trace", file, "--json"],
        &["trace", file, "--stats"],
        &["trace", file, "--calls"],
        &["trace", file, "--calls", "--json"],
        &["trace", file, "--session", "2024-11-05"],
        &["trace", file, "--session", HOSTILE],
        &["timeline", file],
        &["timeline", file, "--mermaid"],
        &["convert", file],
        &["play", file],
        &["run", HOSTILE],
    ];
    for content in &contents {
        fs::write(&hostile, content)?;
        for arguments in commands {
            let done = ran(arguments).await?;
            assert_harmless(&format!("the output of {arguments:?} on {content:.60}"), &done.output);
            assert_harmless(&format!("the log of {arguments:?} on {content:.60}"), &done.logs);
        }
    }
    let missing = directory.path().join(HOSTILE);
    for arguments in [&["replay", path(&missing)], &["convert", path(&missing)], &["show", HOSTILE]] {
        let done = ran(arguments).await?;
        assert_harmless(&format!("{arguments:?}"), &(done.output + &done.logs));
    }
    Ok(())
}

#[tokio::test]
async fn an_output_never_destroys_an_input() -> Outcome {
    let directory = tempfile::tempdir()?;
    let file = |name: &str| directory.path().join(name);
    let trace = fs::read(fixture("traces/plain-call.jsonl"))?;
    fs::write(file("trace.jsonl"), &trace)?;
    fs::hard_link(file("trace.jsonl"), file("hard"))?;
    symlink(file("trace.jsonl"), file("soft"))?;
    fs::create_dir(file("directory"))?;
    symlink(file("trace.jsonl"), file("directory/link.jsonl"))?;
    let (input, inputs) = (file("trace.jsonl"), file("directory"));
    let outputs = ["trace.jsonl", "hard", "soft", "directory/link.jsonl"].map(file);
    for output in &outputs {
        for from in [path(&input), path(&inputs), "-"] {
            let cut = ["trace", from, "--session", "2024-11-05", "-o", path(output)];
            let drawing = ["timeline", from, "--format", "svg", "-o", path(output)];
            for arguments in [&cut, &drawing] {
                let stdin = File::open(&input)?;
                let done = run_with(arguments, |command| command.stdin(stdin)).await?;
                assert_eq!(done.code, Some(1), "{arguments:?}: {}", done.logs);
                assert!(done.logs.contains("is one of the traces that are read"), "{arguments:?}: {}", done.logs);
                assert_eq!(fs::read(&input)?, trace, "{arguments:?}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_output_replaces_a_file_as_a_whole_and_is_for_its_owner_only() -> Outcome {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("Call.HTML");
    fs::write(&output, "before")?;
    fs::set_permissions(&output, fs::Permissions::from_mode(0o644))?;
    let trace = fixture("traces/plain-call.jsonl");
    let nobody = ran(&["timeline", path(&trace), "--session", "nobody", "-o", path(&output)]).await?;
    assert_eq!(nobody.code, Some(1), "{}", nobody.logs);
    let nobody = ran(&["trace", path(&trace), "--session", "nobody", "-o", path(&output)]).await?;
    assert_eq!((nobody.code, fs::read_to_string(&output)?.as_str()), (Some(1), "before"), "{}", nobody.logs);
    let drawn = ran(&["timeline", path(&trace), "--call", "olive-oil:2024-11-05", "-o", path(&output)]).await?;
    assert_eq!(drawn.code, Some(0), "{}", drawn.logs);
    assert!(fs::read_to_string(&output)?.starts_with("<!DOCTYPE html>"));
    assert_eq!(fs::metadata(&output)?.permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(directory.path())?.count(), 1, "nothing else is left");
    Ok(())
}

#[tokio::test]
async fn what_a_machine_reads_is_json() -> Outcome {
    let trace = fixture("traces/killed-after-notify.jsonl");
    let json =
        |done: &Ran| serde_json::from_str::<Value>(&done.output).map_err(|error| format!("{error}: {}", done.output));
    let replayed = json(&ran(&["replay", path(&trace), "--json"]).await?)?;
    assert_eq!((&replayed["replays"], &replayed["replayed"]["jobs"]), (&true.into(), &2.into()), "{replayed}");
    let listed = json(&ran(&["trace", path(&trace), "--json"]).await?)?;
    assert!(listed[1]["header"]["processor"].is_string(), "{listed}");
    let call = json(&ran(&["trace", path(&trace), "--calls", "--json"]).await?)?;
    assert_eq!((&call["key"], &call["deliveries"]), (&"conversation:killed".into(), &2.into()), "{call}");
    let stats = json(&ran(&["trace", path(&trace), "--stats", "--json"]).await?)?;
    assert!(stats["distributions"][0]["median"].is_u64() && stats["ended"][0]["jobs"].is_u64(), "{stats}");
    let directory = tempfile::tempdir()?;
    let other = directory.path().join("other.jsonl");
    fs::write(&other, fs::read_to_string(&trace)?.replace("\"quietPeriod\":", "\"quietPeriod\":1"))?;
    let differs = ran(&["replay", path(&other), "--json"]).await?;
    let value = json(&differs)?;
    assert_eq!((differs.code, &value["replays"]), (Some(1), &false.into()), "{value}");
    assert!(value["place"].is_string() && value["difference"]["core"].is_string(), "{value}");
    Ok(())
}

#[tokio::test]
async fn shells_and_man_know_the_whole_command_line() -> Outcome {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = ran(&["completions", shell]).await?;
        assert_eq!(script.code, Some(0), "{}", script.logs);
        for word in ["dead-letters", "redrive", "quiet-period", "timeline"] {
            assert!(script.output.contains(word), "{shell}: {word}");
        }
    }
    let page = ran(&["man", "dead-letters", "redrive"]).await?;
    for text in [".TH transcript-processor-dead-letters-redrive 1", "\\-\\-all", "Examples"] {
        assert!(page.output.contains(text), "{text}: {}", page.output);
    }
    assert_eq!(ran(&["man", "no-such-command"]).await?.code, Some(1));
    let directory = tempfile::tempdir()?;
    let written = ran(&["man", "--output", path(&directory.path().join("man1"))]).await?;
    assert_eq!(written.code, Some(0), "{}", written.logs);
    for name in ["transcript-processor.1", "transcript-processor-run.1", "transcript-processor-dead-letters-list.1"] {
        assert!(directory.path().join("man1").join(name).is_file() && written.output.contains(name), "{name}");
    }
    Ok(())
}

async fn quietly(command: ProcessorCommand) -> Result<String, Box<dyn std::error::Error>> {
    let command = command.start().await?;
    assert_eq!(command.wait(LONG).await?, Exit::Code(0), "{}", command.logs());
    assert_eq!(command.logs(), "", "a command that goes well says nothing about its connections");
    Ok(command.output())
}

#[tokio::test]
async fn commands_on_servers_are_quiet_and_speak_json() -> Outcome {
    let world = TestWorld::start().await?;
    let made: Value = serde_json::from_str(&quietly(world.processor("setup").argument("--json")).await?)?;
    assert!(made["changes"].as_array().is_some_and(|changes| changes.len() >= 4), "{made}");
    let revising = quietly(world.processor("setup").argument("--revise")).await?;
    assert!(revising.contains("index { \"updatedAt\": 1 } on transcriptsummaries"), "{revising}");
    assert_eq!(quietly(world.processor("setup").argument("--revise")).await?, "nothing to change\n");

    let run = world.processor("run").arguments(["--log-format", "json", "--quiet-period", "1500ms"]).start().await?;
    wait_until("the processor is ready", LONG, || async {
        if run.logs().contains("\"ready\"") { Ok(()) } else { Err(run.logs()) }
    })
    .await?;
    assert_eq!(run.terminate().await?, Exit::Code(0));
    let lines = run.logs().lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let ready = lines.iter().find(|line| line["message"] == "ready").ok_or("it is ready")?;
    let settings = (&ready["quiet_period"], &ready["max_in_flight"], &ready["ack_wait"], &ready["record_content"]);
    assert_eq!(settings, (&"1s 500ms".into(), &16_384.into(), &"6s".into(), &false.into()), "{ready}");

    let played = world.processor("play").argument("--json").argument(fixture("transcripts/olive-oil.ndjson"));
    let played: Value = serde_json::from_str(&quietly(played).await?)?;
    let expected = ("olive-oil", "2024-11-05", played["saved"].as_u64());
    let call = (played["conversationId"].as_str(), played["sessionId"].as_str(), played["announced"].as_u64());
    assert_eq!((call.0, call.1, call.2), (Some(expected.0), Some(expected.1), expected.2), "{played}");

    let end = Call::of("room", "s", 0)?;
    let dead_letter = by_hand::dead_letter(&world, 7, "it was given up", serde_json::to_vec(&end.session)?).await?;
    let place = dead_letter.to_string();
    let discard = world.processor("dead-letters").arguments(["discard", &place, &place]);
    assert_eq!(quietly(discard).await?.lines().count(), 1);
    assert_eq!(quietly(world.processor("dead-letters").argument("list")).await?, "no dead letters\n");
    Ok(())
}
