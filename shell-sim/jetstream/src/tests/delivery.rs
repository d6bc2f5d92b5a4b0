use super::*;

fn waiting(batch: u64, expires: u64) -> Pull {
    Pull::waiting(batch, millis(expires))
}

#[test]
fn requests_take_turns_one_message_each() {
    let mut bench = Bench::with(consumer());
    bench.pull_as(inbox(1), waiting(3, 9_000));
    bench.pull_as(inbox(2), waiting(3, 9_000));
    bench.publish(7);
    let turns: Vec<(u64, u64)> = bench.delivered.iter().map(|(_, to, reply)| (to.token, reply.stream_seq)).collect();
    assert_eq!(turns, [(1, 1), (2, 2), (1, 3), (2, 4), (1, 5), (2, 6)]);
}

#[test]
fn statuses_say_why_a_request_ends() {
    let mut bench =
        Bench::with(ConsumerConfig { max_batch: Some(10), max_expires: Some(Duration::from_secs(90)), ..consumer() });
    bench.pull_as(inbox(1), Pull::no_wait(1));
    bench.pull_as(inbox(2), waiting(2, 500));
    bench.pull_as(inbox(3), Pull { when_empty: WhenEmpty::Answer, ..waiting(2, 700) });
    bench.pull_as(inbox(4), waiting(11, 500));
    bench.pull_as(inbox(5), waiting(1, 91_000));
    bench.pull_as(inbox(6), Pull { heartbeat: Some(millis(300)), ..waiting(1, 500) });
    bench.until(1_000);
    for (token, at, code, text) in [
        (1, 0, 404, "No Messages"),
        (2, 500, 408, "Request Timeout"),
        (3, 700, 408, "Request Timeout"),
        (4, 0, 409, "Exceeded MaxRequestBatch of 10"),
        (5, 0, 409, "Exceeded MaxRequestExpires of 1m30s"),
        (6, 0, 400, "Bad Request - heartbeat value too large"),
    ] {
        assert_eq!(bench.statuses(token), [(at, code, text.to_owned())], "request {token}");
    }
    let headers = |message: Message| {
        let Message::Status(status) = message else { panic!("not a status: {message:?}") };
        status.headers
    };
    assert_eq!(headers(bench.answer(2)), StatusHeaders::Pending { messages: 2, bytes: 0 });
    assert_eq!(headers(bench.answer(1)), StatusHeaders::None);
}

#[test]
fn a_request_that_does_not_wait_takes_what_is_there_and_ends() {
    let mut bench = Bench::with(consumer());
    bench.publish(2);
    bench.pull_as(inbox(1), Pull::no_wait(5));
    assert_eq!(bench.deliveries().len(), 2);
    assert_eq!(bench.statuses(1), [(0, 404, "No Messages".to_owned())]);
    bench.publish(1);
    bench.pull_as(inbox(2), Pull { when_empty: WhenEmpty::Answer, ..waiting(5, 9_000) });
    assert_eq!(bench.statuses(2), [(0, 404, "No Messages".to_owned())], "one shot also where it names an expiry");
}

#[test]
fn bytes_limit_a_request() {
    let mut bench = Bench::with(consumer());
    bench.publish(3);
    let size = |bench: &Bench, at: usize| 3 + 2 + bench.delivered[at].2.to_string().len() as u64;
    bench.pull_as(inbox(1), Pull { max_bytes: Some(1_000), ..waiting(1, 9_000) });
    let left = 1_000 - size(&bench, 0);
    assert_eq!(bench.statuses(1), [(0, 409, "Batch Completed".to_owned())]);
    let Message::Status(status) = bench.answer(1) else { panic!("no status") };
    assert_eq!(status.headers, StatusHeaders::Pending { messages: 0, bytes: left });
    bench.pull_as(inbox(2), Pull { max_bytes: Some(10), ..waiting(1, 9_000) });
    assert_eq!(bench.statuses(2), [(0, 409, "Message Size Exceeds MaxBytes".to_owned())]);
    let exact = size(&bench, 0);
    bench.pull_as(inbox(3), Pull { max_bytes: Some(exact), ..waiting(5, 9_000) });
    assert_eq!(bench.deliveries().last(), Some(&(0, 2, 1)), "the message stayed for whoever has room");
    assert_eq!(bench.statuses(3), []);
    assert_eq!(bench.info().num_waiting, 0);
}

#[test]
fn a_full_queue_answers_409_and_a_heartbeat_is_told_nothing() {
    let mut bench = Bench::with(ConsumerConfig { max_waiting: 2, ..consumer() });
    bench.pull_as(inbox(1), waiting(1, 60_000));
    bench.pull_as(inbox(2), waiting(1, 60_000));
    bench.pull_as(inbox(3), waiting(1, 60_000));
    bench.pull_as(inbox(4), Pull { heartbeat: Some(millis(500)), ..waiting(1, 60_000) });
    assert_eq!(bench.statuses(3), [(0, 409, "Exceeded MaxWaiting".to_owned())]);
    bench.until(2_000);
    assert_eq!(bench.statuses(4), []);
    bench.input(Input::Unsubscribe(inbox(1)));
    bench.pull_as(inbox(5), waiting(1, 60_000));
    assert_eq!(bench.statuses(5), [], "the queue is gone through again after a second, and one has gone");
    assert_eq!(bench.info().num_waiting, 2);
}

#[test]
fn heartbeats_come_while_nothing_is_delivered() {
    let mut bench = Bench::with(consumer());
    bench.pull_as(inbox(1), Pull { heartbeat: Some(millis(400)), ..waiting(5, 2_000) });
    bench.until(500);
    bench.publish(1);
    bench.say(0, "+ACK");
    bench.until(2_100);
    let codes: Vec<(u64, u16)> = bench.statuses(1).into_iter().map(|(at, code, _)| (at, code)).collect();
    assert_eq!(codes, [(400, 100), (900, 100), (1_300, 100), (1_700, 100), (2_000, 408)]);
}

#[test]
fn a_request_without_interest_is_dropped_and_the_message_stays() {
    let mut bench = Bench::with(consumer());
    bench.pull_as(inbox(1), waiting(5, 60_000));
    bench.input(Input::Unsubscribe(inbox(1)));
    bench.publish(1);
    assert_eq!(bench.deliveries(), []);
    bench.pull_as(inbox(2), waiting(5, 60_000));
    assert_eq!(bench.deliveries(), [(0, 1, 1)]);
    bench.input(Input::Disconnect(CLIENT));
    bench.input(Input::Connect(CLIENT));
    bench.publish(1);
    assert_eq!(bench.deliveries(), [(0, 1, 1), (0, 2, 1)], "a quick reconnect is not noticed");
}

#[test]
fn the_limit_of_unacknowledged_messages_holds_new_ones_back() {
    let mut bench = Bench::with(ConsumerConfig { max_ack_pending: Some(2), ..consumer() });
    bench.publish(4);
    bench.pull(20);
    bench.until(1_100);
    assert_eq!(bench.deliveries(), [(0, 1, 1), (0, 2, 1), (1_001, 1, 2), (1_001, 2, 2)]);
    bench.say(0, "+ACK");
    assert_eq!(bench.deliveries().last(), Some(&(1_100, 3, 1)));
    assert_eq!(bench.info().num_pending, 1);
}

#[test]
fn a_filter_skips_and_counts() {
    let filters = vec!["s.wanted.*".into()];
    let mut bench = Bench::with(ConsumerConfig { filters, ..consumer() });
    for subject in ["s.other", "s.wanted.a", "s.other", "s.wanted.b"] {
        bench.publish_with(subject, Headers::default());
    }
    assert_eq!(bench.info().num_pending, 2);
    bench.pull(1);
    assert_eq!(bench.delivered[0].2.pending, 1);
    assert_eq!(bench.deliveries(), [(0, 2, 1)]);
}

#[test]
fn a_removed_message_is_terminated_where_it_is_out() {
    let mut bench = Bench::with(consumer());
    bench.publish(3);
    bench.pull(2);
    for sequence in [1, 3] {
        bench.call(ApiCall::DeleteMessage { stream: "S".into(), sequence });
    }
    let reason: Arc<str> = "Unacknowledged message was deleted".into();
    assert_eq!(bench.told(), [(0, AdvisoryKind::Terminated { consumer_seq: 1, reason }, 1, 1)]);
    let info = bench.info();
    assert_eq!((info.num_ack_pending, info.num_pending), (1, 0));
    assert_eq!(bench.ask(0, "+ACK"), Some(Message::AckConfirmed));
}

#[test]
fn a_purge_settles_what_is_out() {
    let mut bench = Bench::with(consumer());
    bench.publish(3);
    bench.pull(2);
    bench.call(ApiCall::Purge { stream: "S".into(), scope: PurgeScope::All });
    let info = bench.info();
    assert_eq!((info.num_ack_pending, info.num_pending, info.ack_floor.stream), (0, 0, 3));
    bench.publish(1);
    bench.pull(1);
    assert_eq!(bench.deliveries().last(), Some(&(0, 4, 1)));
}

#[test]
fn next_acks_and_pulls() {
    let mut bench = Bench::with(consumer());
    bench.publish(3);
    bench.pull(1);
    let subject = bench.delivered[0].2.clone();
    let body = AckBody::parse(b"+NXT {\"batch\": 2, \"no_wait\": true}");
    bench.input(Input::Request(Request::Ack { subject, body, reply: Some(inbox(7)) }));
    assert_eq!(bench.deliveries(), [(0, 1, 1), (0, 2, 1), (0, 3, 1)]);
    assert_eq!(bench.info().num_ack_pending, 2);
}

#[test]
fn a_pause_ends_by_itself_and_ack_waits_go_on_in_it() {
    let mut bench = Bench::with(consumer());
    bench.publish(2);
    bench.pull(1);
    bench.update(ConsumerConfig { pause_until_nanos: Some(1_700_000_002_500_000_000), ..consumer() });
    bench.pull_as(inbox(3), Pull::no_wait(1));
    assert_eq!(bench.statuses(3), [(0, 404, "No Messages".to_owned())]);
    bench.pull_as(inbox(2), Pull { heartbeat: Some(millis(900)), ..Pull::waiting(2, millis(5_000)) });
    assert_eq!(bench.info().pause_left, Some(millis(2_500)));
    bench.until(2_400);
    assert_eq!(bench.statuses(2).len(), 2, "heartbeats go on");
    assert_eq!(bench.deliveries(), [(0, 1, 1)]);
    bench.until(2_500);
    assert_eq!(bench.deliveries(), [(0, 1, 1), (2_500, 1, 2), (2_500, 2, 1)], "the ack wait ended in the pause");
    let paused: Vec<(u64, bool)> = bench
        .advisories
        .iter()
        .filter_map(|(at, told)| match &told.kind {
            AdvisoryKind::Pause(pause) => Some((as_millis(*at), pause.left.is_some())),
            AdvisoryKind::MaxDeliveries
            | AdvisoryKind::Naked { .. }
            | AdvisoryKind::Terminated { .. }
            | AdvisoryKind::Created
            | AdvisoryKind::Deleted => None,
        })
        .collect();
    assert_eq!(paused, [(0, true), (2_500, false)]);
}
