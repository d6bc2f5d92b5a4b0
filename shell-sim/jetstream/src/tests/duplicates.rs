use super::*;

#[test]
fn an_id_is_remembered_for_the_window_and_never_refreshed() {
    let mut bench = Bench::with(consumer());
    assert_eq!(bench.publish_id("s.a", "x"), (1, false));
    bench.until(600);
    assert_eq!(bench.publish_id("s.b", "x"), (1, true), "the subject does not matter");
    bench.until(999);
    assert_eq!(bench.publish_id("s.a", "x"), (1, true));
    bench.until(1_000);
    assert_eq!(bench.publish_id("s.a", "x"), (2, false));
}

#[test]
fn later_ids_are_forgotten_up_to_50_ms_late() {
    let mut bench = Bench::with(consumer());
    bench.publish_id("s.a", "x");
    bench.until(13);
    bench.publish_id("s.a", "y");
    bench.until(1_049);
    assert_eq!(bench.publish_id("s.a", "y"), (2, true), "due at 1,013, but the purge at 1,000 pauses for 50 ms");
    bench.until(1_050);
    assert_eq!(bench.publish_id("s.a", "y"), (3, false));
}

#[test]
fn the_lag_of_the_purge_comes_on_top() {
    let mut bench = Bench::with(consumer());
    bench.broker.tune(Tuning { purge_lag: millis(20), ..Tuning::default() });
    bench.publish_id("s.a", "x");
    bench.until(500);
    bench.publish_id("s.a", "y");
    bench.until(1_519);
    assert_eq!(bench.publish_id("s.a", "y"), (2, true));
    bench.until(1_520);
    assert_eq!(bench.publish_id("s.a", "y"), (3, false));
}

#[test]
fn a_removed_message_is_remembered_until_a_restart() {
    let mut bench = Bench::new(stream(5_000), consumer());
    for id in ["deleted", "purged", "stored"] {
        bench.publish_id(&format!("s.{id}"), id);
    }
    assert_eq!(
        bench.call(ApiCall::DeleteMessage { stream: "S".into(), sequence: 1 }),
        Message::Answer { call: ApiKind::DeleteMessage, answer: Answer::Deleted }
    );
    let scope = PurgeScope::Subject("s.purged".into());
    assert_eq!(
        bench.call(ApiCall::Purge { stream: "S".into(), scope }),
        Message::Answer { call: ApiKind::Purge, answer: Answer::Purged(1) }
    );
    assert_eq!(bench.publish_id("s.a", "deleted"), (1, true));
    assert_eq!(bench.publish_id("s.a", "purged"), (2, true));
    bench.restart(Input::Kill { lag: Duration::ZERO });
    assert_eq!(bench.publish_id("s.a", "stored"), (3, true));
    assert_eq!(bench.publish_id("s.a", "deleted"), (4, false));
    assert_eq!(bench.publish_id("s.a", "purged"), (5, false));
}

#[test]
fn a_kill_loses_all_ids_where_the_last_message_was_deleted() {
    for (stop, remembered) in [(Input::Kill { lag: Duration::ZERO }, false), (Input::Terminate, true)] {
        let mut bench = Bench::new(stream(5_000), consumer());
        bench.publish_id("s.a", "x");
        bench.publish_id("s.a", "y");
        bench.call(ApiCall::DeleteMessage { stream: "S".into(), sequence: 2 });
        bench.restart(stop);
        assert_eq!(bench.publish_id("s.a", "x").1, remembered);
    }
}

#[test]
fn after_a_restart_an_id_may_outlive_its_window() {
    let mut bench = Bench::with(consumer());
    bench.publish_id("s.a", "x");
    bench.until(900);
    bench.restart(Input::Terminate);
    bench.until(1_899);
    assert_eq!(bench.publish_id("s.a", "x"), (1, true));
    bench.until(1_900);
    assert_eq!(bench.publish_id("s.a", "x"), (2, false));
}

#[test]
fn a_shorter_window_forgets_at_once_and_a_longer_one_revives_at_a_restart() {
    let mut bench = Bench::new(stream(10_000), consumer());
    bench.publish_id("s.a", "x");
    bench.until(500);
    bench.publish_id("s.a", "y");
    bench.call(ApiCall::UpdateStream(stream(200)));
    assert_eq!(bench.publish_id("s.a", "y"), (2, true));
    assert_eq!(bench.publish_id("s.a", "x"), (3, false));
    bench.until(2_000);
    bench.call(ApiCall::UpdateStream(stream(60_000)));
    assert_eq!(bench.publish_id("s.a", "y"), (4, false));
    bench.until(2_500);
    bench.call(ApiCall::DeleteMessage { stream: "S".into(), sequence: 3 });
    bench.call(ApiCall::UpdateStream(stream(100)));
    bench.until(3_000);
    bench.call(ApiCall::UpdateStream(stream(60_000)));
    bench.restart(Input::Terminate);
    assert_eq!(bench.publish_id("s.a", "x"), (1, true));
    assert_eq!(bench.publish_id("s.a", "y"), (4, true));
}

#[test]
fn a_window_is_checked_and_zero_is_two_minutes() {
    let mut bench = Bench::new(stream(0), consumer());
    let Message::Answer { answer: Answer::Stream(info), .. } = bench.call(ApiCall::StreamInfo("S".into())) else {
        panic!("no info");
    };
    assert_eq!(info.config.duplicate_window, DEFAULT_DUPLICATE_WINDOW);
    for config in [stream(99), StreamConfig { max_age: Some(millis(500)), ..stream(501) }] {
        let answer = bench.call(ApiCall::UpdateStream(config));
        assert!(matches!(answer, Message::Refused { error: ApiError { err_code: 10_052, .. }, .. }), "{answer:?}");
    }
    let short_lived = StreamConfig { max_age: Some(millis(500)), ..stream(0) };
    assert!(matches!(
        bench.call(ApiCall::UpdateStream(short_lived)),
        Message::Answer { answer: Answer::Stream(info), .. } if info.config.duplicate_window == millis(500)
    ));
}

#[test]
fn expectations_are_checked_before_the_id_and_a_refusal_is_not_remembered() {
    let mut bench = Bench::with(consumer());
    let expecting = |last: u64| Headers::id("x").with("Nats-Expected-Last-Subject-Sequence", last.to_string());
    let refused = |answer: Message, last: u64| {
        assert_eq!(answer, Message::PublishRefused { stream: "S".into(), error: ApiError::wrong_last_sequence(last) });
    };
    refused(bench.publish_with("s.a", expecting(7)), 0);
    assert_eq!(
        bench.publish_with("s.a", expecting(0)),
        Message::PubAck(PubAck { stream: "S".into(), sequence: 1, duplicate: false })
    );
    refused(bench.publish_with("s.a", expecting(0)), 1);
    refused(bench.publish_with("s.b", Headers::id("x").with("Nats-Expected-Last-Sequence", "0")), 1);
    assert_eq!(bench.publish_id("s.a", "x"), (1, true));
}

#[test]
fn a_publish_that_nobody_takes_has_no_responders() {
    let mut bench = Bench::with(consumer());
    assert_eq!(
        bench.publish_with("elsewhere", Headers::default()),
        Message::NoResponders { subject: "elsewhere".into() }
    );
}
