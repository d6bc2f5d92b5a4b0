//! Pictures of real runs.

mod play;
mod transcriber;

use proptest::prelude::*;

use self::{
    play::{Play, hostile, kill, many, outage, plain, seconds},
    transcriber::{Going, served},
};
use super::{
    Selection, Timeline,
    bands::{Band, BandCause, Source},
    layout::{Drawn, Layout, boxes},
    model::{Lane, Step, StepKind},
    text,
    xml::visible,
};
use transcript_trace::{
    LeftOut, Note, Reader, Server,
    cut::{Wanted, cut},
};

fn timeline(trace: &[u8]) -> Timeline {
    selected(trace, &Selection::default())
}

fn selected(trace: &[u8], selection: &Selection) -> Timeline {
    Timeline::read(Reader::new(trace), selection).expect("the trace can be read")
}

fn labels(timeline: &Timeline, of: impl Fn(&Step) -> bool) -> Vec<&str> {
    timeline.steps.iter().filter(|step| of(step)).map(|step| step.label.as_str()).collect()
}

fn bands(timeline: &Timeline) -> Vec<(BandCause, Source, String)> {
    timeline.bands.iter().map(|band: &Band| (band.what, band.source, band.short())).collect()
}

#[test]
fn a_plain_call() {
    let timeline = timeline(&plain());
    insta::assert_snapshot!(timeline.text());
    insta::assert_snapshot!("a_plain_call_in_mermaid", timeline.mermaid());
    insta::assert_snapshot!("a_plain_call_in_svg", timeline.svg());
}

#[test]
fn a_call_from_its_first_socket_to_its_notification() {
    let both = [served(Going::EndsAt(7)), plain()];
    let timeline = timeline(&both.concat());
    insta::assert_snapshot!(timeline.text());
    let names: Vec<&str> = timeline.lanes.iter().map(|lives| lives.name.as_str()).collect();
    // The segments that an observer noted in the world of the processor are nobody else's.
    assert_eq!(names, ["clients", "transcriber", "t1", "stream", "a", "store", "subscribers"]);
    assert_eq!(labels(&timeline, |step| step.label.starts_with("ended,")), ["ended, 3 segments"]);
    let [transcriber, processor] = both;
    let other_way_round = self::timeline(&[processor, transcriber].concat());
    assert_eq!(other_way_round.steps.len(), timeline.steps.len(), "{}", other_way_round.text());
}

#[test]
fn a_transcriber_that_dies_has_a_band() {
    let timeline = timeline(&served(Going::Dies));
    assert_eq!(bands(&timeline), [(BandCause::Killed, Source::Derived, "ends".to_owned())]);
    assert_eq!(timeline.calls[0].marks, ["its transcriber died"]);
    for drawing in [timeline.text(), timeline.html(), timeline.svg(), timeline.mermaid()] {
        assert!(drawing.contains("opens"), "{drawing}");
    }
}

#[test]
fn an_outage_is_a_band_and_tries_that_fail_alike_are_one_arrow() {
    let timeline = timeline(&outage());
    insta::assert_snapshot!(timeline.text());
    assert_eq!(bands(&timeline).len(), 1);
    assert_eq!(labels(&timeline, |step| step.kind == StepKind::Failed).len(), 3);
}

#[test]
fn each_run_of_a_processor_has_its_lane_and_a_kill_is_a_band() {
    let timeline = timeline(&kill());
    insta::assert_snapshot!(timeline.text());
    insta::assert_snapshot!("a_kill_in_mermaid", timeline.mermaid());
    let names: Vec<&str> = timeline.lanes.iter().map(|lives| lives.name.as_str()).collect();
    assert_eq!(names, ["transcriber", "stream", "a", "b", "a (2)", "store", "subscribers"]);
    assert_eq!(labels(&timeline, |step| step.kind == StepKind::Lost), ["publish"]);
}

#[test]
fn an_incomplete_call_is_marked_in_every_drawing() {
    let trace = include_bytes!("../../../../fixtures/traces/lost-segment.jsonl");
    let timeline = timeline(trace);
    for drawing in [timeline.text(), timeline.html(), timeline.svg(), timeline.mermaid()] {
        assert!(drawing.contains("fewer segments than its "), "{drawing}");
    }
    let complete = self::timeline(include_bytes!("../../../../fixtures/traces/plain-call.jsonl"));
    assert!(!complete.html().contains("fewer segments"), "{}", complete.text());
}

#[test]
fn keys_are_told_of_only_where_there_are_some() {
    let page = timeline(&plain()).html();
    let hint = parse(&page).descendants().any(|node| {
        node.attribute("class") == Some("with-keys") && node.text().is_some_and(|text| text.contains("Tab"))
    });
    assert!(hint && page.contains("(pointer: coarse) { .with-keys { display: none; } }"), "{page}");
}

#[test]
fn what_stands_above_a_drawing_is_wrapped_and_not_cut() {
    let svg = timeline(&kill()).svg();
    let document = parse(&svg);
    let said: Vec<_> = document.descendants().filter(|node| node.attribute("class") == Some("said")).collect();
    assert!(said.len() > 1 && said.iter().all(|line| !line.text().unwrap_or_default().contains('…')), "{svg}");
}

#[test]
fn heartbeats_over_a_long_wait() {
    insta::assert_snapshot!(timeline(&play::heartbeats()).text());
}

#[test]
fn ids_that_would_like_to_be_something_else() {
    let timeline = timeline(&hostile());
    insta::assert_snapshot!(timeline.text());
    insta::assert_snapshot!("hostile_ids_in_mermaid", timeline.mermaid());
    for drawing in [timeline.html(), timeline.svg()] {
        let document = parse(&drawing);
        let scripts = document.descendants().filter(|node| node.has_tag_name("script")).count();
        assert_eq!(scripts, usize::from(drawing.starts_with("<!DOCTYPE")), "only the page's own");
        assert!(document.descendants().all(|node| node.tag_name().name() != "b"
            || node.parent_element().is_some_and(|parent| parent.has_tag_name("li"))));
    }
}

#[test]
fn a_freeze_is_seen_by_the_wake_up_that_came_late() {
    let mut play = Play::new("a");
    play.deliver(7, 1, ("c", "s")).freeze(seconds(9)).sleep(seconds(9));
    assert_eq!(
        bands(&timeline(&play.trace())),
        [(BandCause::Frozen, Source::Derived, "stood still, 7.00 s".to_owned())]
    );

    let mut play = Play::new("a");
    play.deliver(7, 1, ("c", "s")).freeze(std::time::Duration::from_millis(2900)).sleep(seconds(9));
    assert_eq!(bands(&timeline(&play.trace())), [], "a busy machine is no freeze");
}

#[test]
fn a_core_that_decides_otherwise_is_not_taken_for_one_that_stood_still() {
    let mut play = Play::new("a");
    play.deliver(7, 1, ("c", "s")).sleep(seconds(1));
    let trace = String::from_utf8(play.trace()).expect("a trace is UTF-8");
    // A core of earlier days, which counted at once and had nothing to wait for.
    let counts = r#"{"n":2,"out":{"perform":{"id":{"job":1,"number":1},"effect":{"count":{"sessionId":"s"}}}}}"#;
    let much_later = r#"{"n":3,"at":60000000,"job":1,"in":{"reported":{"effect":{"job":1,"number":1},"report":{"counted":{"segments":0}}}}}"#;
    let drawn = timeline(format!("{trace}{counts}\n{much_later}\n").as_bytes());
    assert!(bands(&drawn).iter().all(|(what, ..)| *what != BandCause::Frozen), "{:?}", drawn.bands);
    assert!(drawn.remarks[0].contains("from entry 2 on"), "{:?}", drawn.remarks);
    assert_eq!(
        labels(&drawn, |step| step.kind == StepKind::Asked || step.kind == StepKind::Answered),
        ["count", "counted 0"]
    );
}

#[test]
fn what_was_noted_stands_for_what_can_be_derived() {
    let mut play = Play::new("a");
    play.deliver(7, 1, ("c", "s"));
    play.note(Note::Frozen { until: transcript_core::Time::from_micros(9_000_000) });
    play.freeze(seconds(9)).sleep(seconds(9));
    assert_eq!(bands(&timeline(&play.trace())), [(BandCause::Frozen, Source::Noted, "frozen, 9.00 s".to_owned())]);

    let mut play = Play::new("a");
    let until = transcript_core::Time::from_micros(20_000_000);
    play.world().store_away_until = Some(until);
    play.note(Note::Away { server: Server::Mongodb, until: Some(until) });
    play.deliver(7, 1, ("c", "s")).sleep(seconds(40));
    assert_eq!(bands(&timeline(&play.trace())), [(BandCause::Away, Source::Noted, "away, 20.00 s".to_owned())]);
}

#[test]
fn what_is_missing_is_a_band_and_said_above() {
    let mut play = Play::new("a");
    play.deliver(7, 1, ("c", "s")).sleep(seconds(1)).lost(12);
    let timeline = timeline(&play.trace());
    assert_eq!(bands(&timeline), [(BandCause::Missing, Source::Noted, "12 inputs missing".to_owned())]);
    assert!(timeline.remarks.iter().any(|remark| remark.contains("12 inputs are missing")), "{:?}", timeline.remarks);
    assert_eq!(timeline.calls[0].marks, ["not told to its end"]);
    assert!(timeline.text().contains("the disk was full"));
}

#[test]
fn a_job_that_is_not_told_further_is_not_lost_in_a_kill() {
    let mut play = Play::new("a");
    play.deliver(7, 1, ("c", "s"));
    let job = serde_json::from_value(1.into()).expect("a job's id is a number");
    play.left_out(LeftOut { inputs: 0, jobs: vec![job], why: "too much".to_owned() });
    let drawn = timeline(&play.trace());
    assert_eq!(bands(&drawn).iter().map(|(what, ..)| *what).collect::<Vec<_>>(), [BandCause::Missing]);
}

#[test]
fn a_part_that_ends_with_jobs_under_way_is_one_that_died() {
    let mut play = Play::new("a");
    play.deliver(7, 1, ("c", "s")).deliver(8, 1, ("c", "t")).sleep(seconds(1));
    let trace = play.trace();
    let drawn = timeline(&trace);
    assert_eq!(bands(&drawn), [(BandCause::Killed, Source::Derived, "ends".to_owned())]);
    assert!(drawn.text().contains("2 jobs under way: the process was killed, or still ran"));

    let mut cut_off = trace;
    cut_off.truncate(cut_off.len() - 9);
    let drawn = timeline(&cut_off);
    assert!(drawn.remarks.iter().any(|remark| remark.contains("is cut off after")), "{:?}", drawn.remarks);
}

#[test]
fn what_an_observer_notes_stands_where_it_belongs() {
    let mut observer = play::header("", play::START - 500, transcript_core::Settings::default());
    observer.processor = None;
    observer.about = Some("a plain call, seen from outside.".to_owned());
    let header = serde_json::to_string(&observer).expect("a header is JSON");
    let notes = r#"{"n":1,"at":100000,"note":{"stored":{"sessionId":"s","segments":5}}}
{"n":2,"at":200000,"note":{"stored":{"sessionId":"another","segments":1}}}
{"n":3,"at":300000,"note":"killed"}
{"n":4,"at":400000,"note":{"away":{"server":"nats","until":2400000}}}
"#;
    let observed = format!("{header}\n{notes}").into_bytes();
    for trace in [[observed.clone(), plain()].concat(), [plain(), observed].concat()] {
        let drawn = timeline(&trace);
        assert_eq!(bands(&drawn), [(BandCause::Away, Source::Noted, "away, 2.00 s".to_owned())]);
        assert_eq!(labels(&drawn, |step| step.kind == StepKind::Stored), ["+5 segments", "+12 segments"]);
        assert_eq!(labels(&drawn, |step| step.kind == StepKind::Remark), ["a kill", "starts"]);
        assert_eq!(drawn.lanes[0].name, "transcriber");
        assert!(drawn.text().contains("\nA plain call, seen from outside.\n"), "{}", drawn.text());
    }
}

#[test]
fn what_is_written_after_a_kill_was_noted_is_not_lost() {
    let mut play = Play::new("a");
    play.deliver(7, 1, ("c", "s")).note(Note::Killed).deliver(8, 1, ("c", "t"));
    let drawn = timeline(&play.trace());
    assert_eq!(bands(&drawn), [(BandCause::Killed, Source::Noted, "killed".to_owned())]);
    assert_eq!(labels(&drawn, |step| step.label == "delivery").len(), 2);
}

#[test]
fn one_session_is_drawn_whole_and_alone() {
    let trace = many(300);
    let selection = Selection { session_id: Some("s299".to_owned()), ..Selection::default() };
    let timeline = selected(&trace, &selection);
    assert_eq!(timeline.calls.iter().map(|call| call.name.to_string()).collect::<Vec<_>>(), ["c:s299"]);
    assert_eq!(timeline.remarks, [] as [&str; 0]);
    assert_eq!(labels(&timeline, |step| step.kind == StepKind::Answered).last(), Some(&"confirmed"));

    let other = Selection { conversation_id: Some("d".to_owned()), ..selection };
    let nobody = selected(&trace, &other);
    assert_eq!(nobody.steps, []);
    assert!(nobody.text().contains("There is nothing to draw."), "{}", nobody.text());
    parse(&nobody.svg());
    parse(&nobody.html());
}

#[test]
fn a_session_that_was_cut_out_is_drawn_as_in_the_whole_run() {
    let trace = many(100);
    for session in ["s0", "s50", "s99"] {
        let wanted = Wanted { session_id: session.to_owned(), conversation_id: None };
        let mut alone = vec![];
        cut(Reader::new(trace.as_slice()), &wanted, &mut alone).expect("it can be cut out");
        let selection = Selection { session_id: Some(session.to_owned()), ..Selection::default() };
        let (alone, whole) = (selected(&alone, &selection), selected(&trace, &selection));
        assert_eq!(alone.bands, []);
        let calls = |timeline: &Timeline| -> Vec<String> {
            let of_calls = timeline.steps.iter().filter(|step| step.call.is_some());
            of_calls.map(|step| text::sentence(timeline, step)).collect()
        };
        assert_eq!(calls(&alone), calls(&whole));
        assert!(calls(&alone).len() > 15);
    }
}

#[test]
fn of_a_whole_run_the_most_telling_calls_are_drawn_and_the_rest_is_said() {
    let timeline = timeline(&many(1000));
    assert_eq!(timeline.calls.len(), 4, "one that was refused, three to which nothing happened");
    let (troubled, marks): (Vec<String>, Vec<_>) = timeline
        .calls
        .iter()
        .filter(|call| !call.marks.is_empty())
        .map(|call| (call.name.to_string(), call.marks.clone()))
        .unzip();
    assert!(marks.iter().all(|marks| *marks == ["given up", "failures"]), "{marks:?}");
    assert!(!troubled.is_empty());
    assert_eq!(timeline.calls[0].name.to_string(), "c:s0", "then the earliest");
    assert_eq!(
        timeline.remarks,
        [
            "1,000 calls of 18,997 steps, 996 of them not drawn; the 73 steps drawn are of those calls to which most has \
             happened, and of a few ordinary ones"
        ]
    );
    assert!(timeline.steps.len() <= 400 + 256);
    assert!(timeline.html().contains("deliveries: 1,000; troubles: 1; done: 1,000;"));
}

#[test]
fn a_call_of_too_many_steps_says_what_is_not_drawn() {
    let mut play = Play::new("a");
    play.world().unanswered = Some("count");
    play.deliver(7, 1, ("c", "s")).sleep(seconds(4000));
    let selection = Selection { session_id: Some("s".to_owned()), max_steps: 40, ..Selection::default() };
    let drawn = selected(&play.trace(), &selection);
    let said: Vec<&str> = drawn.remarks.iter().map(String::as_str).collect();
    assert!(
        matches!(said.as_slice(), [one] if one.ends_with("steps in the middle of call #1 are not drawn")),
        "{said:?}"
    );
    assert_eq!(labels(&drawn, |step| step.kind == StepKind::Remark && step.label.ends_with("not drawn")).len(), 1);
}

#[test]
fn every_step_can_be_reached_and_read() {
    for trace in [plain(), outage(), kill(), hostile(), play::heartbeats(), many(50)] {
        let timeline = timeline(&trace);
        let (html, svg) = (timeline.html(), timeline.svg());
        for drawing in [parse(&html), parse(&svg)] {
            let steps: Vec<_> = drawing.descendants().filter(|node| node.has_attribute("tabindex")).collect();
            let mut said: Vec<String> = timeline.steps.iter().map(|step| text::sentence(&timeline, step)).collect();
            said.extend(timeline.bands.iter().map(|band| text::band_sentence(&timeline, band)));
            let mut said: Vec<String> = said.iter().map(|sentence| visible(sentence)).collect();
            let mut found: Vec<String> =
                steps.iter().filter_map(|node| node.attribute("aria-label").map(str::to_owned)).collect();
            assert_eq!(steps.len(), timeline.steps.len() + timeline.bands.len());
            said.sort();
            found.sort();
            assert_eq!(found, said);
            for step in steps {
                let title = step.children().find(|child| {
                    child.has_tag_name(("http://www.w3.org/2000/svg", "title")) || child.has_tag_name("title")
                });
                assert_eq!(title.and_then(|title| title.text()), step.attribute("aria-label"));
            }
        }
        let page = parse(&html);
        let items = page.descendants().filter(|node| node.has_tag_name("li") && node.has_attribute("dir"));
        assert_eq!(items.count(), timeline.steps.len() + timeline.bands.len());
        let ids: Vec<&str> = page.descendants().filter_map(|node| node.attribute("id")).collect();
        let mut unique = ids.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), ids.len(), "ids are there once");
    }
}

#[test]
fn a_part_that_goes_on_in_another_file_is_one_lane() {
    let header = |part: Option<u64>| {
        let mut header = play::header("a", play::START, transcript_core::Settings::default());
        header.continues =
            part.map(|entries| transcript_trace::Continues { file: "a.1".to_owned(), entries, last_job: None });
        serde_json::to_string(&header).expect("a header is JSON") + "\n"
    };
    let woken = |n: u64| format!("{{\"n\":{n},\"at\":{n},\"in\":\"woken\"}}\n");
    let trace = header(None) + &woken(1) + &header(Some(1)) + &woken(2);
    let together = timeline(trace.as_bytes());
    assert_eq!(together.lanes.iter().filter(|lives| matches!(lives.lane, Lane::Processor(_))).count(), 1);
    assert_eq!(together.remarks, [] as [&str; 0]);

    let alone = timeline((header(Some(1)) + &woken(2)).as_bytes());
    assert_eq!(alone.remarks, ["a part of a begins in the middle: what is in a.1 is not here"]);
}

/// What somebody does to a processor.
#[derive(Debug, Clone)]
enum Move {
    Deliver { session: u8, attempt: u64 },
    Store(u8),
    Sleep(u64),
    Freeze(u64),
    Outage(u64),
    Unanswered(bool),
    Refused(bool),
    Lost,
    Killed,
    Drain,
    Remark,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => (0..20u8, 1..4u64).prop_map(|(session, attempt)| Move::Deliver { session, attempt }),
        2 => (0..20u8).prop_map(Move::Store),
        6 => (1..20_000u64).prop_map(Move::Sleep),
        1 => (1..20_000u64).prop_map(Move::Freeze),
        1 => (1..40_000u64).prop_map(Move::Outage),
        1 => any::<bool>().prop_map(Move::Unanswered),
        1 => any::<bool>().prop_map(Move::Refused),
        1 => Just(Move::Lost),
        1 => Just(Move::Killed),
        1 => Just(Move::Drain),
        1 => Just(Move::Remark),
    ];
    proptest::collection::vec(one, 1..40)
}

fn played(moves: Vec<Move>) -> Vec<u8> {
    let mut play = Play::new("a");
    let mut now = transcript_core::Time::ZERO;
    for (number, one) in moves.into_iter().enumerate() {
        let millis = std::time::Duration::from_millis;
        match one {
            Move::Deliver { session, attempt } => {
                let sequence = u64::from(session) + 1;
                _ = play.deliver(sequence, attempt, ("conversation", &format!("session {session}")));
            }
            Move::Store(session) => _ = play.store(&format!("session {session}"), 3),
            Move::Sleep(span) => {
                now = now.after(millis(span));
                play.sleep(millis(span));
            }
            Move::Freeze(span) => {
                now = now.after(millis(span));
                play.freeze(millis(span));
            }
            Move::Outage(span) => play.world().store_away_until = Some(now.after(millis(span))),
            Move::Unanswered(on) => play.world().unanswered = on.then_some("publish"),
            Move::Refused(on) => play.world().refused = on.then_some("save"),
            Move::Lost => _ = play.lost(3),
            Move::Killed => {
                now = transcript_core::Time::ZERO;
                play = play.killed(["a", "b", "<i>"][number % 3], millis(700));
            }
            Move::Remark => _ = play.note(Note::Remark("WWWW at 1500 ms: 会議".repeat(9))),
            Move::Drain => _ = play.handle(transcript_core::Input::Drain),
        }
    }
    play.trace()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_two_labels_meet_at_any_width(moves in moves(), session in proptest::option::of(0..20u8)) {
        let session_id = session.map(|session| format!("session {session}"));
        let drawn = selected(&played(moves), &Selection { session_id, ..Selection::default() });
        let layout = Layout::new(&drawn);
        // A phone, a phone that scrolls sideways because there are many lanes, a desk.
        let narrow = if drawn.lanes.len() < 8 { 344.0 } else { (drawn.lanes.len() * 56 + 64) as f64 };
        for width in [narrow, 374.0_f64.max(narrow), 960.0, 1056.0] {
            let areas = boxes::areas(&layout, width);
            for (place, (one, area)) in areas.iter().enumerate() {
                prop_assert!(area.left >= 0.0 && area.right <= width, "{one:?} leaves a drawing of {width}: {area:?}");
                prop_assert!(area.top >= 0.0 && area.bottom <= f64::from(layout.height), "{one:?}: {area:?}");
                for (other, at) in &areas[place + 1..] {
                    prop_assert!(!area.meets(at), "{one:?} and {other:?} meet at a width of {width}: {area:?} {at:?}");
                }
            }
        }
        for row in &layout.rows {
            if let Drawn::Band { bottom, .. } = row.what {
                prop_assert!(bottom > row.y && bottom <= layout.height + 10);
            }
        }
    }

    #[test]
    fn every_drawing_is_well_formed(moves in moves()) {
        let drawn = timeline(&played(moves));
        parse(&drawn.svg());
        parse(&drawn.html());
        let mermaid = drawn.mermaid();
        prop_assert!(mermaid.lines().all(|line| line == "sequenceDiagram" || line.starts_with("    ")));
        prop_assert!(drawn.steps.is_sorted_by_key(|step| (step.at, step.order)));
    }
}

fn parse(text: &str) -> roxmltree::Document<'_> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..roxmltree::ParsingOptions::default() };
    roxmltree::Document::parse_with_options(text, options).expect("it is XML")
}

#[test]
#[ignore = "draws the traces in the directory that TIMELINE_DRAWINGS names, with those of these tests, to be looked at"]
fn drawings() {
    let Some(directory) = std::env::var_os("TIMELINE_DRAWINGS").map(std::path::PathBuf::from) else { return };
    let traces = [
        ("plain", plain()),
        ("outage", outage()),
        ("kill", kill()),
        ("heartbeats", play::heartbeats()),
        ("hostile", hostile()),
        ("restarts", play::restarts()),
        ("many", many(2_000)),
    ];
    for (name, trace) in traces {
        std::fs::write(directory.join(name).with_extension("jsonl"), trace).expect("the directory can be written");
    }
    for file in std::fs::read_dir(directory).expect("the directory can be read") {
        let file = file.expect("the directory can be read").path();
        if file.extension().is_some_and(|extension| extension == "jsonl") {
            let timeline = timeline(&std::fs::read(&file).expect("the trace can be read"));
            for (extension, drawing) in [
                ("html", timeline.html()),
                ("svg", timeline.svg()),
                ("mmd", timeline.mermaid()),
                ("txt", timeline.text()),
            ] {
                std::fs::write(file.with_extension(extension), drawing).expect("the directory can be written");
            }
        }
    }
}
