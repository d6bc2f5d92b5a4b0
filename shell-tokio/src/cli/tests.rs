use std::{path::PathBuf, time::Duration};

use clap::CommandFactory;
use transcript_core::{Settings, WallTime};

use super::*;

/// Reads `line` as a command line, in an environment that holds none of the variables.
fn read(line: &str) -> Result<Cli, Refusal> {
    Cli::read(std::iter::once("transcript-processor").chain(line.split_whitespace()).map(OsString::from))
}

fn refusal(line: &str) -> String {
    let error = read(line).expect_err("settings are refused");
    assert_eq!(error.exit_code(), 2, "{error}");
    error.to_string()
}

fn command(line: &str) -> Command {
    read(line).expect("settings are good").command
}

fn run(line: &str) -> Online<RunArgs> {
    let Command::Run(run) = command(line) else { panic!("{line} is not run") };
    *run
}

fn run_args(line: &str) -> RunArgs {
    run(line).args
}

fn transcriber(line: &str) -> Online<TranscriberArgs> {
    let Command::Transcriber(transcriber) = command(line) else { panic!("{line} is not transcriber") };
    *transcriber
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn defaults_are_those_of_the_contract() {
    let args = run_args("run");
    assert_eq!(args.stream, StreamSettings::default(), "nothing is asked for that was not given");
    let values = args.stream.or(StreamValues::default());
    let expected = StreamValues {
        duplicate_window: Duration::from_secs(24 * 3600),
        replicas: 1,
        ack_wait: Duration::from_secs(6),
        max_deliver: 5,
        max_ack_pending: 65_536,
    };
    assert_eq!(values, expected);
    assert_eq!(args.jobs.quiet_period, Duration::from_secs(2));
    assert_eq!(args.jobs.settle_rounds, 5);
    assert_eq!(args.jobs.max_in_flight, 16_384);
    assert!(values.max_ack_pending >= 4 * u64::from(args.jobs.max_in_flight), "there is room for four instances");
    let run = run("run");
    assert_eq!(run.nats.url.to_string(), "nats://127.0.0.1:4222");
    assert_eq!(run.mongodb.uri.to_string(), "mongodb://127.0.0.1:27017");
    assert_eq!(run.mongodb.database, "transcripts");
}

#[test]
fn defaults_are_those_of_the_core() {
    assert_eq!(crate::service::run::core_settings(&run_args("run"), &StreamValues::default()), Settings::default());
}

/// A setting of the manual's table: its flag, its variable, and its default where that is a value.
fn settings_of_the_manual() -> Vec<(String, String, Option<String>)> {
    let code = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let readme = include_str!("../../README.md");
    let table = readme.lines().skip_while(|line| !line.starts_with("| flag | environment | default |"));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    rows.flat_map(|row| {
        let cells: Vec<_> = row.split('|').collect();
        let (flags, variables, defaults) = (code(cells[1]), code(cells[2]), code(cells[3]));
        flags.into_iter().enumerate().map(move |(place, flag)| {
            // Where a row has two flags, the variable is given as far as they have it in common.
            let variable = variables[0].clone();
            (flag, variable, defaults.get(place).cloned())
        })
    })
    .collect()
}

#[test]
fn the_manual_has_every_setting_of_the_service_and_its_default() {
    let mut command = Cli::command();
    let run = command.find_subcommand_mut("run").expect("the service is a command");
    let in_help: Vec<_> = run
        .get_arguments()
        .map(|setting| {
            let variable = setting.get_env().expect("every setting has a variable").to_string_lossy().into_owned();
            let default = setting.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
            let help = setting.get_help().expect("every setting has help").to_string();
            (format!("--{}", setting.get_long().expect("every setting has a flag")), variable, default, help)
        })
        .collect();
    assert!(in_help.len() > 20, "the settings were found: {in_help:?}");
    let mut in_readme = settings_of_the_manual();
    let mut of_streams = "run".to_owned();
    for (flag, variable, default, help) in &in_help {
        let place = in_readme.iter().position(|(listed, ..)| listed == flag);
        let (_, listed, listed_default) = in_readme.remove(place.unwrap_or_else(|| panic!("{flag} is not listed")));
        let is_listed = match listed.strip_suffix('…') {
            Some(beginning) => variable.starts_with(beginning),
            None => *variable == listed,
        };
        assert!(is_listed, "{flag} is {variable} and not {listed}");
        match (default, &listed_default) {
            // It is left as the stream or the consumer has it; the value is that of a new one.
            (None, Some(new)) => {
                assert!(help.contains(&format!(" {new} for ")), "{flag}: {help}");
                of_streams += &format!(" {flag}={new}");
            }
            // What is off unless it is asked for has no value.
            (default, listed) => {
                assert_eq!(default.as_ref().filter(|default| *default != "false"), listed.as_ref(), "{flag}");
            }
        }
    }
    let others = StreamValues {
        duplicate_window: Duration::ZERO,
        replicas: 0,
        ack_wait: Duration::ZERO,
        max_deliver: 0,
        max_ack_pending: 0,
    };
    assert_eq!(run_args(&of_streams).stream.or(others), StreamValues::default(), "{of_streams}");
    assert_eq!(in_readme, [], "the manual has settings that are not there");
}

/// Every command with what leads to it, such as `dead-letters list`.
fn leaves(command: &clap::Command, path: &str) -> Vec<(String, clap::Command)> {
    let subcommands: Vec<_> = command.get_subcommands().filter(|inner| inner.get_name() != "help").collect();
    if subcommands.is_empty() {
        return vec![(path.trim().to_owned(), command.clone())];
    }
    subcommands.into_iter().flat_map(|inner| leaves(inner, &format!("{path} {}", inner.get_name()))).collect()
}

fn help(path: &str) -> String {
    let error = read(&format!("{path} --help")).expect_err("help is asked for");
    assert_eq!(error.exit_code(), 0, "{error}");
    error.to_string()
}

#[test]
fn help_has_the_options_of_its_command_in_groups_and_examples_that_can_be_read() {
    let mut definition = definition();
    definition.build();
    for (path, _) in leaves(&definition, "") {
        let help = help(&path);
        let offline = ["convert", "replay", "trace", "timeline", "completions", "man"].contains(&path.as_str());
        let has = |option: &str| help.contains(option);
        assert_eq!(has("--nats-url"), !offline && !["show", "call-page"].contains(&path.as_str()), "{path}: {help}");
        assert_eq!(has("--mongodb-uri"), !offline && !["recording", "quiet"].contains(&&*path), "{path}: {help}");
        assert_eq!(has("Servers:"), !offline, "{path}: {help}");
        assert_eq!(has("--log-format"), !offline, "{path}: {help}");
        assert_eq!(has("--login-timeout"), ["run", "transcriber", "call-page"].contains(&&*path), "{path}: {help}");
        assert!(help.lines().all(|line| line.chars().count() <= 120), "{path}: {help}");
        let usage = help.lines().find(|line| line.starts_with("Usage: ")).unwrap_or_default();
        assert!(usage.starts_with(&format!("Usage: transcript-processor {path}")), "{usage}");
        let (_, examples) = help.split_once("Examples:\n").unwrap_or_else(|| panic!("{path} has no example: {help}"));
        for example in examples.lines().filter(|line| !line.trim().is_empty()) {
            let line = example.trim().strip_prefix("transcript-processor ");
            let line = line.unwrap_or_else(|| panic!("{example:?} is no command: {help}"));
            assert!(line.starts_with(&path), "{path}: {line}");
            read(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
    let trace = help("trace");
    assert!(trace.lines().count() < 50, "{trace}");
    for topic in ["Exit codes:", "Examples:", "Commands:"] {
        assert!(help("").contains(topic), "{topic}");
    }
}

#[test]
fn every_command_has_the_name_of_the_program_in_its_version() {
    for path in ["", "run", "trace", "dead-letters list"] {
        let version = read(&format!("{path} -V")).expect_err("the version is asked for").to_string();
        assert_eq!(version, concat!("transcript-processor ", env!("CARGO_PKG_VERSION"), "\n"));
    }
}

#[test]
fn wrong_usage_is_told_with_the_usage_of_its_command() {
    for (line, usage) in [
        ("run --max-ack-pending 1", "run [OPTIONS]"),
        ("run --ack-wait x", "run [OPTIONS]"),
        ("dead-letters redrive", "dead-letters redrive [OPTIONS] [SEQ]..."),
        ("timeline t -o a.png", "timeline [OPTIONS] <TRACE>..."),
        ("show a:b:c", "show [OPTIONS] <CALL>..."),
        ("trace --session s", "trace [OPTIONS] <TRACE>..."),
    ] {
        let message = refusal(line);
        assert!(message.contains(&format!("Usage: transcript-processor {usage}\n")), "{line}: {message}");
    }
}

#[test]
fn options_come_behind_their_command() {
    let message = refusal("--nats-url nats://a setup");
    assert!(message.contains("behind it: transcript-processor run --nats-url …"), "{message}");
    let Command::Setup(setup) = command("setup --nats-url nats://a --mongodb-database d") else { panic!("not setup") };
    assert_eq!((setup.nats.url.to_string().as_str(), setup.mongodb.database.as_str()), ("nats://a", "d"));
    for line in ["replay t --nats-url nats://a", "convert f --mongodb-uri mongodb://a", "show c s --nats-url nats://a"]
    {
        refusal(line);
    }
}

#[test]
fn what_has_no_effect_is_refused() {
    for (line, told) in [
        ("run --record-content", "--record-content has no effect without --record: give both or none"),
        ("run --record-keep 1GiB", "--record-keep has no effect without --record"),
        ("run --revise-every 1s", "--revise-every has no effect without --revise"),
        ("run --revise-within 1s", "--revise-within has no effect without --revise"),
    ] {
        assert!(refusal(line).contains(told), "{line}");
    }
    for line in ["run --record d --record-content", "run --revise --revise-every 1s", "run"] {
        assert_eq!(read(line).expect("settings are good").warnings, [] as [String; 0], "{line}");
    }
}

#[test]
fn a_database_in_the_connection_string_is_not_passed_over() {
    let message = refusal("run --mongodb-uri mongodb://ann:hunter2@h/calls");
    assert!(message.contains("names the database \"calls\"") && message.contains("--mongodb-database"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
    assert!(read("run --mongodb-uri mongodb://h/calls --mongodb-database calls").is_ok());
    assert!(read("run --mongodb-uri mongodb://h/?replicaSet=rs").is_ok());
}

#[test]
fn misspelt_variables_are_found_and_those_of_kubernetes_are_not() {
    let names = [
        "TRANSCRIPT_QUIET_PERIOD",
        "TRANSCRIPT_QUITE_PERIOD",
        "TRANSCRIPT_PROCESSOR_SERVICE_HOST",
        "TRANSCRIPT_LOG",
        "TRANSCRIPT_PROCESSOR_SERVICE_PORT_HTTP",
        "TRANSCRIPT_PROCESSOR_PORT",
        "TRANSCRIPT_PROCESSOR_PORT_80_TCP_ADDR",
        "TRANSCRIPT_TESTS_SEED",
        "HOME",
        "NATS_SOMETHING",
    ];
    assert_eq!(definition::unknown_variables(names.map(OsString::from)), ["TRANSCRIPT_QUITE_PERIOD"]);
}

#[test]
fn what_is_out_of_bounds_is_refused_with_flag_value_and_bound() {
    let cases = [
        ("--ack-wait", "299ms", "must be from 300ms to 1h"),
        ("--ack-wait", "61m", "must be from 300ms to 1h"),
        ("--ack-wait", "6", "must be a duration such as 500ms, 6s or 24h, from 300ms to 1h"),
        ("--duplicate-window", "99ms", "must be from 100ms to 365d"),
        ("--duplicate-window", "366d", "must be from 100ms to 365d"),
        ("--replicas", "2", "must be 1, 3 or 5"),
        ("--max-deliver", "0", "0 is not in 1..=1000"),
        ("--max-deliver", "1001", "1001 is not in 1..=1000"),
        ("--max-ack-pending", "0", "0 is not in 1..=10000000"),
        ("--quiet-period", "3601s", "must be from 0s to 1h"),
        ("--settle-rounds", "0", "0 is not in 1..=1000"),
        ("--max-in-flight", "0", "0 is not in 1..=1000000"),
        ("--page-size", "0", "0 is not in 1..=100000"),
        ("--retry-timeout", "25h", "must be from 0s to 24h"),
        ("--nak-delay", "61m", "must be from 0s to 1h"),
        ("--retry-base", "0s", "must be from 1ms to 1m"),
        ("--retry-cap", "0s", "must be from 1ms to 1h"),
        ("--request-timeout", "99ms", "must be from 100ms to 10m"),
        ("--grace", "601s", "must be from 0s to 10m"),
        ("--record-max-size", "1KiB", "must be from 1MiB to 1TiB"),
        ("--record-max-age", "0s", "must be from 1s to 365d"),
        ("--record-keep", "much", "must be a size such as 64MiB"),
        ("--connect-timeout", "0s", "must be from 100ms to 1h"),
        ("--log", "a=b=c", "must be a level"),
        ("--mongodb-database", "a.b", "must have 1 to 63 bytes"),
    ];
    for (flag, value, bound) in cases {
        let message = refusal(&format!("run {flag} {value}"));
        assert!(message.contains(flag) && message.contains(value) && message.contains(bound), "{message}");
    }
}

#[test]
fn bounds_themselves_are_allowed() {
    let args = run_args(
        "run --ack-wait 300ms --duplicate-window 100ms --quiet-period 0s --settle-rounds 1000 --grace 0s \
         --max-in-flight 1 --max-ack-pending 1 --replicas 5 --max-deliver 1",
    );
    assert_eq!(args.stream.ack_wait, Some(Duration::from_millis(300)));
    assert_eq!((args.jobs.quiet_period, args.jobs.grace), (Duration::ZERO, Duration::ZERO));
    assert_eq!(run_args("run --ack-wait 1h --grace 10m").stream.ack_wait, Some(Duration::from_secs(3600)));
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let message = refusal("run --max-ack-pending 100 --max-in-flight 101");
    assert!(message.contains("--max-ack-pending 100 is less than --max-in-flight 101"), "{message}");
    let message = refusal("run --retry-base 2s --retry-cap 1s");
    assert!(message.contains("--retry-base 2s is more than --retry-cap 1s"), "{message}");
    let message = refusal("run --record d --record-max-size 20MiB --record-keep 39MiB");
    assert!(message.contains("--record-keep 39.0 MiB is less than twice --record-max-size 20.0 MiB"), "{message}");
    assert!(read("run --record d --record-max-size 20MiB --record-keep 40MiB").is_ok());
    let message = refusal("setup --nats-creds a --nats-nkey b");
    assert!(message.contains("--nats-creds and --nats-nkey exclude each other"), "{message}");
    let message = refusal("setup --nats-url nats://ann:x@a --nats-creds b");
    assert!(message.contains("a user or token in --nats-url and --nats-creds exclude each other"), "{message}");
    let message = refusal("setup --nats-url nats://ann:x@a,nats://bob:x@a");
    assert!(message.contains("the addresses name different users"), "{message}");
    let message = refusal("setup --nats-user ann");
    assert!(message.contains("--nats-user is given without --nats-password"), "{message}");
    let message = refusal("setup --nats-tls-key k");
    assert!(message.contains("--nats-tls-key is given without --nats-tls-cert"), "{message}");
    assert!(read("setup --nats-tls-key k --nats-tls-cert c").is_ok());
}

#[test]
fn no_secret_is_shown() {
    let line = "run --nats-url nats://ann:hunter2@a --mongodb-uri mongodb://ann:hunter2@b";
    let shown = format!("{:?}", read(line).expect("settings are good"));
    assert!(!shown.contains("hunter2"), "{shown}");
    let shown = format!("{:?}", read("run --nats-user ann --nats-password hunter2").expect("settings are good"));
    assert!(!shown.contains("hunter2") && shown.contains("[hidden]"), "{shown}");
    for line in ["run --nats-url http://ann:hunter2@a", "run --nats-url nats://ann:hunter2@a:b:c"] {
        let message = refusal(line);
        assert!(!message.contains("hunter2") && message.contains("--nats-url"), "{message}");
    }
}

#[test]
fn play_and_show_read_their_arguments() {
    let Command::Play(play) = command("play a b --speed 1.5 --late 2 --lose 1 --repeat-end") else {
        panic!("not play")
    };
    let play = play.args;
    assert_eq!((play.source.files.len(), play.late, play.lose, play.repeat_end), (2, 2, 1, true));
    assert!((play.speed - 1.5).abs() < f64::EPSILON);
    for speed in ["-1", "NaN", "inf", "10001"] {
        assert!(refusal(&format!("play a --speed={speed}")).contains("must be a number from 0 to 10000"), "{speed}");
    }
    assert_eq!((play.cues, play.source.labels, play.source.format), (CuesArg::Join, LabelsArg::Hold, None));
    assert!(refusal("play a b --session s").contains("--session names one call"));
    assert!(refusal("convert - -").contains("can be read once only"));
    let refused = refusal("convert a --format vtt");
    assert!(refused.contains("webvtt, srt, whisper"), "{refused}");
    let Command::Offline(Offline::Convert(convert)) = command("convert a - --format srt --keep-going --labels one-cue")
    else {
        panic!("not convert")
    };
    assert_eq!((convert.cues, convert.source.format), (CuesArg::Keep, Some(transcript_formats::Format::Srt)));
    assert!(refusal(&format!("show c {}", "s".repeat(257))).contains("sessionId is longer than 256 bytes"));
    let shown = |line: &str| {
        let Command::Show(show) = command(line) else { panic!("{line} is not show") };
        show.args.call.session().expect("the check found it good")
    };
    let session = transcript_core::ids::Session::new("c:d", "s").expect("good ids");
    assert_eq!([shown("show c:d s --json"), shown("show c%3Ad:s")], [session.clone(), session]);
    assert!(refusal("show c:d:s").contains("\"c:d:s\" is no key of a call"));
}

#[test]
fn dead_letters_are_named_by_their_places_or_all() {
    let redrive = |line: &str| {
        let Command::DeadLetters(DeadLettersArgs { command: DeadLettersCommand::Redrive(redrive) }) = command(line)
        else {
            panic!("{line} is not redrive")
        };
        (redrive.args.which(), redrive.args.json)
    };
    assert_eq!(redrive("dead-letters redrive 7 9 --json"), (Which::These(vec![7, 9]), true));
    assert_eq!(redrive("dead-letters redrive --all"), (Which::AllOpen, false));
    let message = refusal("dead-letters redrive");
    assert!(message.contains("their places SEQ …, or --all that are open"), "{message}");
    for line in [
        "dead-letters",
        "dead-letters redrive",
        "dead-letters redrive 1 --all",
        "dead-letters redrive 1 2 --payload end.json",
        "dead-letters redrive --all --payload end.json",
        "dead-letters redrive 0",
        "dead-letters discard",
        "dead-letters discard --all",
        "dead-letters show",
        "dead-letters show 1 2",
        "dead-letters show x",
    ] {
        refusal(line);
    }
}

#[test]
fn audit_reads_its_arguments() {
    let Command::Audit(audit) = command("audit --since 7d --repair --json") else { panic!("not audit") };
    let audit = audit.args;
    let now = WallTime::from_millis(7 * 86_400_000 + 5);
    assert_eq!(audit.since.map(|since| since.moment(now)), Some(WallTime::from_millis(5)));
    let week = Some(Since::Ago(Duration::from_secs(7 * 86_400)));
    assert_eq!(audit, AuditArgs { since: week, repair: true, incomplete: false, json: true });
    assert!(refusal("audit --since soon").contains("must be a duration such as 90m or 7d, or a moment"));
}

#[test]
fn commands_on_traces_read_their_arguments() {
    let trace = |line: &str| {
        let Command::Offline(Offline::Trace(trace)) = command(line) else { panic!("{line} is not trace") };
        trace
    };
    let cut = trace("trace a - --session s --conversation c -o f");
    assert_eq!(cut.traces.paths, [PathBuf::from("a"), PathBuf::from("-")]);
    let wanted = cut.call.wanted().expect("ids are good").expect("a call is wanted");
    assert_eq!((wanted.session_id.as_str(), wanted.conversation_id.as_deref()), ("s", Some("c")));
    assert_eq!(trace("trace a --call c:s").call.wanted(), Ok(Some(wanted)));
    for (line, drawing) in [
        ("--mermaid", Drawing::Mermaid),
        ("-o a.html", Drawing::Html),
        ("-o a.b.svg", Drawing::Svg),
        ("-o a.mmd --session s --conversation c", Drawing::Mermaid),
        ("-o a.txt", Drawing::Text),
        ("-o A.HTML", Drawing::Html),
        ("-o a.png --format svg", Drawing::Svg),
        ("--format html --call c:s", Drawing::Html),
        ("", Drawing::Text),
    ] {
        let Command::Offline(Offline::Timeline(timeline)) = command(&format!("timeline t {line}")) else {
            panic!("not timeline")
        };
        assert_eq!(timeline.drawing(), Ok(drawing));
    }
    assert!(refusal("timeline t -o a.png").contains("--output a.png: must end in .html, .svg, .mmd or .txt"));
    assert!(read("replay a").is_ok() && read("trace a --stats").is_ok());
    for line in [
        "replay",
        "trace",
        "trace a --session s --stats",
        "trace a --conversation c",
        "trace a -o f",
        "trace a --session=",
        "trace a --call c",
        "trace a --call c:s --session s",
        "timeline a --call c:s:t",
        "timeline a --mermaid -o b.html",
        "timeline a --mermaid --conversation c",
    ] {
        refusal(line);
    }
}

#[test]
fn a_transcriber_without_tokens_listens_on_loopback_only() {
    let args = |line: &str| transcriber(line).args;
    assert_eq!(args("transcriber").listen.to_string(), "127.0.0.1:8090");
    assert_eq!(args("transcriber --listen [::1]:1").listen.port(), 1);
    assert!(args("transcriber --listen 0.0.0.0:1 --token-file t").access.token_file.is_some());
    let twilio = args("transcriber --twilio-token-file a --public-url wss://transcriber.example/calls/").access;
    assert_eq!(twilio.public_url.as_deref(), Some("wss://transcriber.example/calls"));
    let refused = refusal("transcriber --listen 0.0.0.0:1");
    assert!(refused.contains("give --token-file or --token-key-file"), "{refused}");
    for line in [
        "--token-file a --token-key-file b",
        "--token-audience a",
        "--twilio-token-file a",
        "--twilio-token-file a --public-url transcriber.example",
        "--public-url https://transcriber.example",
        "--public-url wss:///v1",
        "--public-url wss://transcriber.example?a=b",
        "--allow-origin app.example",
        "--max-frame 1MiB",
        "--max-frame-rate 0",
        "--lease 0s",
    ] {
        refusal(&format!("transcriber {line}"));
    }
}

#[test]
fn a_call_page_listens_on_loopback_only_and_speaks_with_a_transcriber() {
    let Command::CallPage(page) = command("call-page --listen [::1]:0 --transcriber wss://t.example/x") else {
        panic!("it is call-page")
    };
    assert_eq!((page.args.listen.port(), page.args.transcriber.as_str()), (0, "wss://t.example/x"));
    assert!(refusal("call-page --listen 0.0.0.0:8092").contains("must be a loopback address"));
    for address in ["http://127.0.0.1:8090", "ws://", "127.0.0.1:8090"] {
        assert!(refusal(&format!("call-page --transcriber {address}")).contains("URL of a transcriber"), "{address}");
    }
    assert!(refusal("call-page --token-file t").contains("--processor"));
}

#[test]
fn a_nats_server_is_named_by_an_option() {
    let is_named = |line: &str| transcriber(line).nats.is_named;
    assert!(is_named("transcriber --nats-url nats://a"));
    assert_eq!(is_named("transcriber"), std::env::var_os("NATS_URL").is_some());
}

#[test]
fn a_transcript_is_played_through_a_transcriber() {
    for line in ["--via http://a", "--via ws://a/path", "--via ws://", "--token-file t", "--via ws://a --late 1"] {
        refusal(&format!("play {line} file"));
    }
    read("play --via ws://127.0.0.1:8090/ --token-file t file").expect("settings are good");
}
