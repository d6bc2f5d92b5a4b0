//! What a simulated run writes down is a trace as production's are.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use transcript_core::{EffectKind, Input, Processor, Time};
use transcript_sim::{
    Bug, Plan, Recording,
    plan::{Action, Call, EffectPattern, Fault, Moment, Options, Server, Trigger},
};
use transcript_trace::{
    Content, Header, Line, Note, Reader, Said, Server as NotedServer,
    replay::{Problem, Replayed, replay},
};

fn lines(trace: &[u8]) -> Vec<Line> {
    Reader::new(trace).map(|line| line.expect("a line of a trace")).collect()
}

fn replayed(trace: &[u8]) -> Result<Replayed, Problem> {
    replay(Reader::new(trace), |header: &Header| Processor::new(header.settings.clone()))
}

/// The trace of a plan, after a look at whether writing it down changed the run.
fn record(name: &str, plan: &Plan) -> Vec<u8> {
    let (outcome, trace) = plan.record(Recording::On);
    let plain = plan.run(Recording::On);
    assert_eq!((outcome.digest(), outcome.stats), (plain.digest(), plain.stats), "{name}");
    trace
}

fn one_call(faults: Vec<Fault>, bug: Option<Bug>) -> Plan {
    let calls = vec![Call::short("c", "s", 1_000)];
    let options = Options::quick();
    Plan { seed: 0, processors: 1, options, calls, faults, chores: vec![], heals_at_ms: None, bug }
}

fn at(at_ms: u64, what: Action) -> Fault {
    Fault { when: Trigger::AtMs(at_ms), what }
}

/// The notes of all parts, each with its part's processor.
fn notes(trace: &[u8]) -> Vec<(Option<String>, Time, Note)> {
    let (mut notes, mut processor) = (vec![], None);
    for line in lines(trace) {
        match line {
            Line::Header(header) => processor = header.processor.map(|name| name.to_string()),
            Line::TranscriberHeader(_) | Line::TranscriberEntry(_) => {}
            Line::Entry(entry) => {
                if let Said::Note(note) = entry.said {
                    notes.push((processor.clone(), entry.at.expect("a note has a time"), note));
                }
            }
        }
    }
    notes
}

#[test]
fn every_kept_plan_and_many_drawn_ones_replay() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/seeds");
    let files = fs::read_dir(folder).expect("the fixtures are there").map(|entry| entry.expect("a directory").path());
    let read = |path: PathBuf| {
        let plan = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("a plan");
        (path.display().to_string(), plan)
    };
    let kept = files.filter(|path| path.extension().is_some_and(|it| it == "json")).map(read);
    let drawn = (0..60).map(|seed| (format!("seed {seed}"), Plan::of_seed(seed)));
    let (mut outputs, mut plans) = (0, 0);
    for (name, plan) in kept.chain(drawn) {
        let trace = record(&name, &plan);
        let replayed = replayed(&trace).unwrap_or_else(|problem| panic!("{name}: {problem}"));
        assert!(replayed.parts > plan.processors as u64, "{name}: {replayed}");
        let left_out =
            lines(&trace).iter().any(|line| matches!(line, Line::Entry(it) if matches!(it.said, Said::LeftOut(_))));
        assert!(!left_out, "{name}: the second core goes another way");
        outputs += replayed.outputs;
        plans += 1;
    }
    assert!(plans > 60 && outputs > 2_000, "{plans} {outputs}");
}

#[test]
fn a_process_is_a_part_and_what_no_core_saw_is_another() {
    let kill = Action::Kill { processor: 0, outage_ms: 5_000 };
    let before_save =
        Trigger::Effect { processor: 0, kind: EffectPattern::Of(EffectKind::Save), nth: 1, moment: Moment::Before };
    let plan = one_call(
        vec![
            at(500, Action::Freeze { processor: 0, span_ms: 200 }),
            at(1_200, Action::StopServer { server: Server::Store, outage_ms: 300 }),
            at(1_500, Action::SetMaxDeliver { max_deliver: 6 }),
            Fault { when: before_save, what: kill },
        ],
        None,
    );
    let trace = record("a kill", &plan);
    let headers: Vec<Header> = lines(&trace)
        .into_iter()
        .filter_map(|line| match line {
            Line::Header(header) => Some(*header),
            Line::Entry(_) | Line::TranscriberHeader(_) | Line::TranscriberEntry(_) => None,
        })
        .collect();
    let names: Vec<Option<&str>> = headers.iter().map(|header| header.processor.as_deref()).collect();
    assert_eq!(names, [Some("processor 0"), Some("processor 0"), None]);
    assert!(headers.iter().all(|header| header.content == Content::Kept && header.settings.max_deliver >= 5));
    let [first, second, observer] = headers.as_slice() else { panic!("three parts") };
    assert_eq!(first.started_at, observer.started_at);
    assert_eq!((first.settings.max_deliver, second.settings.max_deliver), (5, 6), "it learns at its start");

    let notes = notes(&trace);
    let killed_at = notes.iter().find(|(_, _, note)| *note == Note::Killed).map(|(_, at, _)| *at).expect("a kill");
    assert_eq!(
        second.started_at.since(first.started_at).as_millis(),
        Duration::from_micros(killed_at.as_micros()).as_millis() + 5_000
    );
    let micros = Time::from_micros;
    let zero = || Some("processor 0".to_owned());
    let stored = Note::Stored { session_id: "s".into(), segments: 1 };
    let away = Note::Away { server: NotedServer::Mongodb, until: Some(micros(2_000_000)) };
    let settings = Note::Remark("at 1500 ms: SetMaxDeliver { max_deliver: 6 }".to_owned());
    assert_eq!(
        notes,
        [
            (zero(), micros(500_000), Note::Frozen { until: micros(700_000) }),
            (zero(), killed_at, Note::Killed),
            (None, micros(0), stored),
            (None, micros(1_200_000), away),
            (None, micros(1_500_000), settings),
        ]
    );
}

#[test]
fn a_broken_promise_is_the_last_word_of_a_trace() {
    let plan = one_call(vec![], Some(Bug::AckBeforePublish));
    let trace = record("a broken promise", &plan);
    let (_, _, last) = notes(&trace).pop().expect("a note");
    assert!(
        matches!(&last, Note::Remark(what) if what.starts_with("broken: AckOnlyAfterSummaryAndNotification: ")),
        "{last:?}"
    );
}

#[test]
fn a_planted_bug_of_the_core_is_in_the_trace_and_shows_in_its_replay() {
    let plan = one_call(vec![], Some(Bug::NoSettling));
    let trace = record("no settling", &plan);
    let with_bug = |header: &Header| {
        let quiet_period = std::time::Duration::ZERO;
        Processor::new(transcript_core::Settings { settle_rounds: 1, quiet_period, ..header.settings.clone() })
    };
    let replayed_with = replay(Reader::new(trace.as_slice()), with_bug);
    assert!(replayed_with.is_ok_and(|replayed| replayed.outputs > 5));
    let problem = replayed(&trace).expect_err("a core without the bug does otherwise");
    let Problem::Difference(difference) = problem else { panic!("{problem}") };
    assert!(difference.input.contains("delivered"), "{difference}");
}

#[test]
fn a_processor_with_another_calendar_starts_by_it() {
    let mut plan = one_call(vec![], None);
    plan.options.skews_ms = vec![-750];
    let started = lines(&record("skewed", &plan)).into_iter().filter_map(|line| match line {
        Line::Header(header) => Some(header.started_at.as_millis()),
        Line::Entry(_) | Line::TranscriberHeader(_) | Line::TranscriberEntry(_) => None,
    });
    let started: Vec<i64> = started.collect();
    assert_eq!(started, [1_699_999_999_250, 1_700_000_000_000]);
}

fn transcript_sim(args: &[&str], file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_transcript-sim")).args(args).arg(file).output().expect("the program runs")
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    (output.status.code(), String::from_utf8(text).expect("text"))
}

#[test]
fn the_commands_tell_traces_from_plans() {
    let dir = tempfile::tempdir().expect("a directory");
    let trace = dir.path().join("trace.jsonl");
    let (code, text) = said(&transcript_sim(&["run", "--seed", "1", "--trace"], &trace));
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(fs::read(&trace).expect("the trace"), Plan::of_seed(1).record(Recording::Off).1);

    let (code, text) = said(&transcript_sim(&["replay"], &trace));
    assert!(code == Some(0) && text.starts_with("replays: "), "{text}");
    let (code, text) = said(&transcript_sim(&["run", "--plan"], &trace));
    assert!(code == Some(2) && text.contains("this is a trace: `transcript-sim replay` reads it"), "{text}");

    let plan = dir.path().join("plan.json");
    fs::write(&plan, serde_json::to_vec_pretty(&Plan::of_seed(1)).expect("JSON")).expect("a file");
    let (code, text) = said(&transcript_sim(&["replay"], &plan));
    assert!(code == Some(0) && text.contains("digest of the trace: "), "{text}");
}

#[test]
fn a_trace_that_differs_or_cannot_be_read_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("trace.jsonl");
    let (_, trace) = one_call(vec![], Some(Bug::NoSettling)).record(Recording::Off);
    fs::write(&file, &trace).expect("a file");
    let (code, text) = said(&transcript_sim(&["replay"], &file));
    assert!(code == Some(1) && text.contains("the trace: ") && text.contains("the core:  "), "{text}");

    let newer = String::from_utf8(trace).expect("text").replacen("\"transcriptTrace\":2", "\"transcriptTrace\":9", 1);
    fs::write(&file, newer).expect("a file");
    for command in ["replay", "crash-everywhere"] {
        let (code, text) = said(&transcript_sim(&[command], &file));
        assert!(code == Some(2) && text.contains("a trace of format 9, written by transcript-sim"), "{text}");
    }
}

#[test]
fn the_files_of_a_directory_are_one_trace() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_, trace) = one_call(vec![], None).record(Recording::Off);
    let file = dir.path().join("trace.jsonl");
    fs::write(&file, &trace).expect("a file");
    let (code, of_file) = said(&transcript_sim(&["crash-everywhere"], &file));
    assert_eq!(code, Some(0), "{of_file}");

    // The last part is the observer's: its file is read last, because the processor started before it.
    let text = String::from_utf8(trace).expect("text");
    let last = text.rfind("{\"transcriptTrace\"").expect("it has a part");
    assert!(last > 0, "it has two");
    fs::write(&file, &text[..last]).expect("a file");
    fs::write(dir.path().join("z.jsonl"), &text[last..]).expect("a file");
    let (code, of_directory) = said(&transcript_sim(&["crash-everywhere"], dir.path()));
    assert_eq!((code, of_directory), (Some(0), of_file));

    fs::write(dir.path().join("zz.jsonl"), "{\"transcriptTrace\":2").expect("a file");
    let (code, warned) = said(&transcript_sim(&["crash-everywhere"], dir.path()));
    assert!(code == Some(0) && warned.contains("zz.jsonl: line 1 is cut off"), "{warned}");
    let (code, text) = said(&transcript_sim(&["crash-everywhere"], &dir.path().join("absent.jsonl")));
    assert!(code == Some(2) && text.contains("absent.jsonl: No such file"), "{text}");
}

/// Time that only passes is told to a core as well, and costs the trace a line.
#[test]
fn wake_ups_are_inputs_too() {
    let trace = record("a call", &one_call(vec![], None));
    let woken = |line: &Line| matches!(line, Line::Entry(entry) if entry.said == Said::In(Input::Woken));
    assert!(lines(&trace).iter().filter(|line| woken(line)).count() >= 2);
}
