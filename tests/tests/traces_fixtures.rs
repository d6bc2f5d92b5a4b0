//! The traces of `fixtures/traces` are what `fixtures/README.md` says, replay, and show what they are there for.
//!
//! `cargo record-traces` records them again. What is drawn of them then differs in its times:
//! `INSTA_UPDATE=always cargo test --package transcript-tests --test traces_fixtures` takes it over.

use std::{
    collections::BTreeSet,
    error::Error,
    fs::{self, File},
    io::BufReader,
};

use transcript_core::{Input, Processor, Settings, SettingsError, event::SessionEnded, ids::Session};
use transcript_sim::crashes;
use transcript_tests::{
    calls::{Call, fixture},
    crash::StopPoint,
    recording::{Scenario, Trace, fixtures},
};
use transcript_timeline::{Selection, Timeline};
use transcript_trace::{
    Content, Header, Reader, Said,
    cut::{Wanted, cut},
    replay::{Difference, Problem, Replayed, replay},
};

type Outcome = Result<(), Box<dyn Error>>;

/// More is not read by anybody, nor by a review.
const MOST_BYTES: u64 = 60_000;

/// Cores that decide otherwise, each with a trace that shows it.
const OTHER_CORES: [(&str, OtherCore, Scenario); 5] = [
    ("one count is enough", |it| Settings { settle_rounds: 1, ..it }, Scenario::PlainCall),
    ("a longer quiet period", |it| Settings { quiet_period: it.quiet_period * 2, ..it }, Scenario::MongodbAway),
    ("longer pauses", |it| Settings { retry_base: it.retry_base * 8, ..it }, Scenario::MongodbAway),
    ("smaller pages", |it| Settings { page_size: 1, ..it }, Scenario::LateSegments),
    ("own subjects", |it| Settings { announce_once: !it.announce_once, ..it }, Scenario::PlainCall),
];
type OtherCore = fn(Settings) -> Settings;

/// Those that have something to look at that the others have not.
const DRAWN: [Scenario; 4] =
    [Scenario::PlainCall, Scenario::Killed(StopPoint::AfterStore), Scenario::MongodbAway, Scenario::FrozenProcessor];
#[test]
fn the_readme_names_every_trace_and_there_is_no_other() -> Outcome {
    let readme = fs::read_to_string(fixture("README.md"))?;
    for scenario in Scenario::ALL {
        let row = format!("| `{scenario}.jsonl` | {} | `cargo record-traces {scenario}` |", scenario.about());
        assert!(readme.lines().any(|line| line == row), "fixtures/README.md lacks\n{row}");
    }
    let named: BTreeSet<_> = Scenario::ALL.map(Scenario::file).into();
    let entries = fs::read_dir(fixtures())?.map(|entry| entry.map(|entry| entry.path()));
    assert_eq!(entries.collect::<Result<BTreeSet<_>, _>>()?, named);
    assert_eq!(readme.matches("`cargo record-traces ").count(), named.len(), "the README names one that is not there");
    Ok(())
}

#[test]
fn every_trace_is_small_without_words_and_does_not_tell_where_it_was_recorded() -> Outcome {
    for scenario in Scenario::ALL {
        let text = fs::read_to_string(scenario.file())?;
        assert!(fs::metadata(scenario.file())?.len() < MOST_BYTES, "{scenario}");
        let absolute = ["/home", "/root", "/tmp", "/usr", "/var", "/work", "/Users", "C:\\"];
        assert_eq!(absolute.iter().find(|path| text.contains(**path)), None, "{scenario}");
        for part in Trace::read(&scenario.file())?.parts {
            assert_eq!(part.header.content, Content::Redacted, "{scenario}");
            assert!(part.header.servers.nats.is_some() && part.header.servers.mongodb.is_some(), "{scenario}");
        }
    }
    Ok(())
}

#[test]
fn no_text_or_label_of_a_transcript_is_in_its_trace() -> Outcome {
    for (scenario, name) in [
        (Scenario::PlainCall, "olive-oil"),
        (Scenario::LostSegment, "olive-oil"),
        (Scenario::LateSegments, "festival-lineup"),
    ] {
        let trace = fs::read_to_string(scenario.file())?;
        let call = Call::read(&fixture("transcripts").join(name).with_extension("ndjson"))?;
        assert!(trace.contains(&*call.session.session_id), "{scenario} is of that call");
        let texts = call.segments.iter().flat_map(|segment| [Some(&segment.text), segment.speaker.as_ref()]).flatten();
        let lines = texts.flat_map(|text| text.lines()).map(str::trim).filter(|line| line.chars().count() > 3);
        for line in lines {
            assert!(!trace.contains(line), "{scenario}: {line}");
        }
    }
    Ok(())
}

#[test]
fn every_call_can_be_cut_out_of_its_trace_and_replays() -> Outcome {
    for scenario in Scenario::ALL {
        let whole = replayed(scenario, new_core)?.map_err(|difference| format!("{scenario}: {difference}"))?;
        let sessions = sessions(scenario)?;
        let is_all = sessions.len() == 1 && scenario != Scenario::PoisonedPayload;
        for session in sessions {
            let wanted = Wanted {
                session_id: session.session_id.to_string(),
                conversation_id: Some(session.conversation_id.to_string()),
            };
            let (lines, mut of_call) = (Reader::new(BufReader::new(File::open(scenario.file())?)), vec![]);
            let cut = cut(lines, &wanted, &mut of_call)?;
            assert!(cut.jobs > 0 && cut.mismatches == 0, "{scenario}: {session:?}: {cut:?}");
            let replayed = replay(Reader::new(&*of_call), new_core);
            let replayed = replayed.map_err(|problem| format!("{scenario}: {session:?}: {problem}"))?;
            assert_eq!(replayed.jobs, cut.jobs, "{scenario}: {session:?}");
            assert!(!is_all || cut.jobs == whole.jobs, "{scenario}: {session:?}: {cut:?} of {whole}");
        }
    }
    Ok(())
}

/// As a core of other days would.
#[test]
fn a_trace_on_which_this_core_decides_otherwise_is_drawn_all_the_same() -> Outcome {
    for scenario in Scenario::ALL {
        let text = fs::read_to_string(scenario.file())?;
        let quiet =
            text.split_once("\"quietPeriod\":").and_then(|(_, rest)| rest.split_once(',')).ok_or("no setting")?.0;
        let (before, after) = (format!("\"quietPeriod\":{quiet}"), format!("\"quietPeriod\":{}1", quiet));
        let changed = text.replace(&before, &after);
        let drawn = Timeline::read(Reader::new(changed.as_bytes()), &Selection::default())?;
        let own = timeline(scenario)?;
        let heads = |text: &str| text.matches("delivery of message").count();
        assert_eq!(heads(&drawn.text()), heads(&own.text()), "{scenario}");
        assert!(drawn.svg().ends_with("</svg>\n") || drawn.svg().ends_with("</svg>"), "{scenario}");
    }
    Ok(())
}

#[test]
fn of_a_session_that_is_not_there_nothing_is_cut_out() -> Outcome {
    for scenario in Scenario::ALL {
        let wanted = Wanted { session_id: "nobody's".to_owned(), conversation_id: None };
        let (lines, mut nothing) = (Reader::new(BufReader::new(File::open(scenario.file())?)), vec![]);
        let cut = cut(lines, &wanted, &mut nothing)?;
        assert_eq!((cut.jobs, cut.parts, nothing.len()), (0, 0, 0), "{scenario}");
    }
    Ok(())
}

/// What would have happened to these very calls, had their processes been killed at any other point.
#[test]
fn a_kill_at_any_point_of_a_trace_keeps_every_promise() -> Outcome {
    for scenario in Scenario::ALL {
        for session in sessions(scenario)? {
            let wanted = Wanted {
                session_id: session.session_id.to_string(),
                conversation_id: Some(session.conversation_id.to_string()),
            };
            let lines = Reader::new(BufReader::new(File::open(scenario.file())?));
            let report = crashes::everywhere(lines, Some(&wanted))?;
            let tried = report.crashes.iter().filter(|crash| crash.came.is_some()).count();
            assert!(tried > 5, "{scenario}: {session:?}: only {tried} points\n{report}");
            assert!(report.is_kept(), "{scenario}: {session:?}\n{report}");
        }
    }
    Ok(())
}

#[test]
fn every_trace_replays() -> Outcome {
    for scenario in Scenario::ALL {
        let replayed = replayed(scenario, new_core)?.map_err(|difference| format!("{scenario}: {difference}"))?;
        assert_eq!((replayed.left_out, &replayed.cut_off, replayed.partial.len()), (0, &None, 0), "{scenario}");
        // Of an observer, and of a processor.
        assert!(replayed.parts >= 2 && replayed.outputs > 0, "{scenario}: {replayed}");
    }
    Ok(())
}

/// And none shows what another one is there for.
#[test]
fn every_trace_shows_what_it_says() -> Outcome {
    for scenario in Scenario::ALL {
        let mut trace = Trace::read(&scenario.file())?;
        scenario.check(&trace).map_err(|error| format!("{scenario}: {error}"))?;
        for other in Scenario::ALL.into_iter().filter(|other| *other != scenario) {
            trace.parts[0].header.about = Some(other.about().to_owned());
            assert!(other.check(&trace).is_err(), "{scenario} is taken for {other}");
        }
    }
    Ok(())
}

#[test]
fn a_core_that_decides_otherwise_makes_the_replay_fail_where_it_shows() -> Outcome {
    let mut told = String::new();
    for (what, other, best) in OTHER_CORES {
        let difference = with_other(best, other)?.expect_err("it shows");
        assert!(difference.line > 1 && !difference.led.is_empty(), "{difference}");
        let mut shown = vec![];
        for scenario in Scenario::ALL {
            shown.extend(with_other(scenario, other)?.err().map(|_| scenario.name()));
        }
        told.push_str(&format!("{what}: shows in {}\n{best}.jsonl, {difference}\n\n", shown.join(", ")));
    }
    insta::assert_snapshot!(told);
    Ok(())
}

/// As a list of sentences, and as a diagram.
#[test]
fn every_trace_tells_its_story() -> Outcome {
    for scenario in Scenario::ALL {
        let timeline = timeline(scenario)?;
        insta::with_settings!({ description => scenario.about(), omit_expression => true }, {
            insta::assert_snapshot!(format!("{scenario}.txt"), timeline.text());
            insta::assert_snapshot!(format!("{scenario}.mmd"), timeline.mermaid());
        });
    }
    Ok(())
}

/// As a drawing, which is to be looked at: the `.svg` files beside the other snapshots.
#[test]
fn some_traces_are_drawn() -> Outcome {
    for scenario in DRAWN {
        let drawing = timeline(scenario)?.svg();
        insta::with_settings!({ description => scenario.about(), omit_expression => true }, {
            insta::assert_binary_snapshot!(&format!("{scenario}.svg"), drawing.into_bytes());
        });
    }
    Ok(())
}

/// The sessions of a trace's deliveries.
fn sessions(scenario: Scenario) -> Result<BTreeSet<Session>, Box<dyn Error>> {
    let trace = Trace::read(&scenario.file())?;
    let said = trace.parts.iter().flat_map(|part| &part.entries).map(|entry| &entry.said);
    let ended = said.filter_map(|said| match said {
        Said::In(Input::Delivered(delivery)) => SessionEnded::parse(&delivery.payload.0).ok(),
        Said::In(_) | Said::Out(_) | Said::LeftOut(_) | Said::Note(_) => None,
    });
    Ok(ended.map(|ended| ended.session).collect())
}

fn timeline(scenario: Scenario) -> Result<Timeline, Box<dyn Error>> {
    let lines = Reader::new(BufReader::new(File::open(scenario.file())?));
    Ok(Timeline::read(lines, &Selection::default())?)
}

fn new_core(header: &Header) -> Result<Processor, SettingsError> {
    Processor::new(header.settings.clone())
}

fn with_other(scenario: Scenario, other: OtherCore) -> Result<Result<Replayed, Box<Difference>>, Box<dyn Error>> {
    replayed(scenario, |header| Processor::new(other(header.settings.clone())))
}

/// The outcome of the replay, where the trace could be read.
fn replayed(
    scenario: Scenario,
    new_core: impl FnMut(&Header) -> Result<Processor, SettingsError>,
) -> Result<Result<Replayed, Box<Difference>>, Box<dyn Error>> {
    match replay(Reader::new(BufReader::new(File::open(scenario.file())?)), new_core) {
        Ok(replayed) => Ok(Ok(replayed)),
        Err(Problem::Difference(difference)) => Ok(Err(difference)),
        Err(error @ (Problem::Read(_) | Problem::Settings { .. } | Problem::TranscriberSettings { .. })) => {
            Err(error.into())
        }
    }
}
