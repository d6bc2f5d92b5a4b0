//! What a trace tells is counted: phases, rounds, attempts, ends.

mod world;

use std::time::Duration;

use transcript_core::{Input, Payload, Settings, Time};
use transcript_trace::{
    Content, Reader, Recorder,
    stats::{End, Measure, Stats},
};
use world::{Call, RecordedInput, TracedWorld, call, core, header, ms, play, record};

fn stats(told: &[RecordedInput]) -> Stats {
    let settings = Settings::default();
    Stats::read(Reader::new(&*record(Content::Redacted, &settings, told))).expect("the trace is whole")
}

fn calls(many: u64) -> Vec<Call> {
    (0..many).map(|n| call(&format!("s{n}"), ms(10 + 20 * n))).collect()
}

/// The least, the median and the most.
fn spread(stats: &Stats, what: Measure) -> [u64; 3] {
    let values = stats.distribution(what).unwrap_or_else(|| panic!("nothing about {what:?}"));
    [values.min(), values.value_at_quantile(0.5), values.max()]
}

/// To the digits that are kept.
fn is_about(micros: u64, value: u64) -> bool {
    micros.abs_diff(value) <= value / 500
}

#[test]
fn the_phases_of_calls_are_timed() {
    let stats = stats(&play(&Settings::default(), &calls(10)));
    assert_eq!((stats.jobs(), stats.ended(End::Acknowledged)), (10, 10));
    for (what, value) in [
        (Measure::Attempts, 1),
        // The last of four segments is stored after the first count.
        (Measure::SettleRounds, 3),
        (Measure::LateSegments, 1),
        (Measure::Segments, 4),
        (Measure::Failures, 0),
        (Measure::Waiting, 0),
    ] {
        assert_eq!(spread(&stats, what), [value; 3], "{what:?}");
    }
    for (what, millis) in [
        (Measure::Settling, 6_009),
        (Measure::Loading, 3),
        (Measure::Saving, 3),
        (Measure::Publishing, 3),
        (Measure::Marking, 3),
        (Measure::Acknowledging, 3),
        (Measure::Whole, 6_024),
    ] {
        let spread = spread(&stats, what);
        assert!(spread.iter().all(|micros| is_about(*micros, millis * 1_000)), "{what:?}: {spread:?}");
    }
    let table = stats.to_string();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    insta::assert_snapshot!(table);
}

#[test]
fn a_second_job_of_a_call_waits_for_the_first() {
    let again = Call { ends_at: ms(1_010), ..call("s", ms(10)) };
    let stats = stats(&play(&Settings::default(), &[call("s", ms(10)), again]));
    assert_eq!(stats.ended(End::Acknowledged), 2);
    let [least, _, most] = spread(&stats, Measure::Waiting);
    // The first one asks to be acknowledged six seconds after its delivery, a second before that of the other.
    assert!(least == 0 && is_about(most, 5_021_000), "{least} {most}");
    // Then nothing is left to do for the other but its acknowledgement: the call is announced.
    assert!(is_about(spread(&stats, Measure::Whole)[0], 5_021_000 + 3_000), "{stats}");
}

#[test]
fn failures_are_counted_and_belong_to_their_phase() {
    let mut world = TracedWorld::new(core(&Settings::default()), &[call("s", ms(10))]);
    world.store_away = Some((ms(6_019), ms(30_000)));
    world.run();
    let stats = stats(&world.told);
    assert_eq!(stats.ended(End::Acknowledged), 1);
    let failures = spread(&stats, Measure::Failures)[2];
    assert!(failures > 5, "{failures}");
    let loading = spread(&stats, Measure::Loading)[2];
    assert!((24_000_000..30_000_000).contains(&loading), "{loading}");
    assert_eq!(spread(&stats, Measure::SettleRounds)[2], 3);
}

#[test]
fn every_job_has_an_end() {
    let mut told = play(&Settings::default(), &calls(3));
    let Some((_, _, Input::Delivered(refused))) = told.first() else { panic!("the end comes first") };
    let mut refused = refused.clone();
    (refused.payload, refused.stream_sequence) = (Payload(b"no JSON".to_vec()), 99);
    let first_done = told
        .iter()
        .position(|(_, _, input)| format!("{input:?}").contains("Acknowledged"))
        .expect("a call is acknowledged");
    told.truncate(first_done + 1);
    let now = told[first_done].0;

    let settings = Settings::default();
    let mut live = core(&settings);
    let mut recorder = Recorder::new(vec![], header(Content::Redacted, &settings), core(&settings)).expect("a vector");
    let mut tell = |at: Time, input: Input, recorder: &mut Recorder<Vec<u8>>| {
        let job = live.handle(at, input.clone());
        while let transcript_core::Output::Perform { .. }
        | transcript_core::Output::InProgress { .. }
        | transcript_core::Output::Notice(_) = live.poll_output()
        {}
        recorder.record(at, job, input).expect("a vector");
    };
    for (at, _, input) in told {
        tell(at, input, &mut recorder);
    }
    let reported = |report: &str| serde_json::from_str(report).expect("it is an input");
    tell(now, Input::Delivered(refused), &mut recorder);
    let kept = r#"{"reported":{"effect":{"job":4,"number":1},"report":{"deadLettered":{"streamSequence":100}}}}"#;
    tell(now.after(Duration::from_millis(3)), reported(kept), &mut recorder);
    let acknowledged = r#"{"reported":{"effect":{"job":4,"number":2},"report":"acknowledged"}}"#;
    tell(now.after(Duration::from_millis(6)), reported(acknowledged), &mut recorder);
    let trace = recorder.get_mut().clone();
    let stats = Stats::read(Reader::new(&*trace)).expect("it is whole");
    let ends =
        |stats: &Stats| [End::Acknowledged, End::DeadLetter, End::UnderWay, End::LeftOut].map(|end| stats.ended(end));
    assert_eq!((stats.jobs(), ends(&stats)), (4, [1, 1, 2, 0]), "{stats}");

    recorder.lost(now.after(Duration::from_millis(6)), 7, "the disk was full").expect("a vector");
    let lost = Stats::read(Reader::new(&**recorder.get_mut())).expect("it is whole");
    assert_eq!(ends(&lost), [1, 1, 0, 2], "{lost}");
    assert!(lost.to_string().contains("; 7 inputs left out"), "{lost}");

    let cut_off = Stats::read(Reader::new(&trace[..trace.len() - 5])).expect("it can be read");
    assert_eq!(cut_off.jobs(), 4);
}
