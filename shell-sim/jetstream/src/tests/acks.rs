use super::*;

#[test]
fn the_ack_wait_runs_from_hand_over_and_the_first_check_is_1_ms_late() {
    let mut bench = Bench::with(consumer());
    bench.publish(2);
    bench.until(300);
    bench.pull(1);
    bench.until(700);
    bench.pull(5);
    bench.until(1_705);
    assert_eq!(bench.deliveries(), [(300, 1, 1), (700, 2, 1), (1_301, 1, 2), (1_700, 2, 2)]);
}

#[test]
fn progress_starts_the_wait_again_whichever_delivery_it_names() {
    let mut bench = Bench::with(consumer());
    bench.publish(1);
    bench.pull(5);
    bench.until(1_001);
    for at in [1_500, 2_200, 3_000] {
        bench.until(at);
        bench.say(0, "+WPI");
    }
    bench.until(4_100);
    assert_eq!(bench.deliveries(), [(0, 1, 1), (1_001, 1, 2), (4_000, 1, 3)]);
}

#[test]
fn progress_takes_nothing_out_of_the_queue_but_an_ack_does() {
    let mut bench = Bench::with(consumer());
    bench.publish(2);
    bench.pull(2);
    bench.until(1_500);
    bench.say(0, "+WPI");
    bench.say(1, "+ACK");
    bench.pull(5);
    assert_eq!(bench.deliveries(), [(0, 1, 1), (0, 2, 1), (1_500, 1, 2)]);
}

#[test]
fn an_ack_of_any_delivery_settles_and_is_answered_however_often() {
    let mut bench = Bench::with(consumer());
    bench.publish(1);
    bench.pull(5);
    bench.until(1_500);
    assert_eq!(bench.deliveries().len(), 2);
    assert_eq!(bench.ask(0, "+ACK"), Some(Message::AckConfirmed));
    for body in ["", "-NAK", "+WPI", "garbage", "+TERM late"] {
        assert_eq!(bench.ask(1, body), Some(Message::AckConfirmed), "{body}");
    }
    assert_eq!(bench.told(), [(1_500, AdvisoryKind::Terminated { consumer_seq: 2, reason: "late".into() }, 1, 2)]);
    bench.until(5_000);
    assert_eq!(bench.deliveries().len(), 2);
    assert_eq!(bench.info().ack_floor, SequencePair { consumer: 2, stream: 1 });
}

#[test]
fn naks_redeliver_at_once_in_their_order_and_before_anything_new() {
    let mut bench = Bench::with(ConsumerConfig { max_ack_pending: Some(3), ..consumer() });
    bench.publish(5);
    bench.pull(3);
    bench.say(2, "-NAK");
    bench.say(0, "-NAK");
    bench.say(0, "-NAK");
    bench.pull(9);
    let order: Vec<u64> = bench.deliveries().iter().map(|(_, sequence, _)| *sequence).collect();
    assert_eq!(order, [1, 2, 3, 3, 1], "the limit holds back only new messages");
    assert_eq!(bench.info().num_ack_pending, 3);
}

#[test]
fn a_stale_nak_redelivers_again() {
    let mut bench = Bench::with(consumer());
    bench.publish(1);
    bench.pull(5);
    bench.until(1_400);
    bench.say(0, "-NAK");
    assert_eq!(bench.deliveries(), [(0, 1, 1), (1_001, 1, 2), (1_400, 1, 3)]);
}

#[test]
fn a_nak_with_a_delay_waits_it_out_and_keeps_its_place() {
    let mut bench = Bench::with(ConsumerConfig { max_ack_pending: Some(2), ..consumer() });
    bench.publish(3);
    bench.pull(9);
    bench.say(0, "-NAK 300ms");
    bench.say(1, "-NAK 3s");
    bench.until(290);
    assert_eq!(bench.info().num_ack_pending, 2);
    bench.until(350);
    bench.say(2, "+ACK");
    bench.until(3_100);
    assert_eq!(
        bench.deliveries(),
        [(0, 1, 1), (0, 2, 1), (300, 1, 2), (350, 3, 1), (1_350, 3, 2), (2_351, 3, 3), (3_000, 2, 2)]
    );
}

#[test]
fn a_nak_with_no_delay_in_json_waits_for_the_check() {
    let mut bench = Bench::with(consumer());
    bench.publish(1);
    bench.pull(9);
    bench.say(0, "-NAK {\"delay\": 0}");
    bench.until(100);
    assert_eq!(bench.deliveries(), [(0, 1, 1), (10, 1, 2)]);
}

#[test]
fn progress_overrides_the_delay_of_a_nak() {
    let mut bench = Bench::with(consumer());
    bench.publish(1);
    bench.pull(9);
    bench.say(0, "-NAK 500ms");
    bench.until(300);
    bench.say(0, "+WPI");
    bench.until(1_400);
    assert_eq!(bench.deliveries(), [(0, 1, 1), (1_300, 1, 2)]);
}

#[test]
fn a_term_settles_and_tells_its_reason() {
    let mut bench = Bench::with(consumer());
    bench.input(Input::Subscribe { to: inbox(50), subject: Some("$JS.EVENT.ADVISORY.>".into()), group: None });
    bench.publish(1);
    bench.pull(9);
    bench.say(0, "+TERM no such call");
    bench.until(3_000);
    assert_eq!(bench.deliveries().len(), 1);
    let reason: Arc<str> = "no such call".into();
    assert_eq!(bench.told(), [(0, AdvisoryKind::Terminated { consumer_seq: 1, reason }, 1, 1)]);
    let Message::Core { subject, payload, .. } = bench.answer(50) else {
        panic!("no message for the subscriber");
    };
    assert_eq!(&*subject, "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.S.c");
    let fields: serde_json::Value = serde_json::from_slice(&payload).expect("JSON");
    assert_eq!((fields["reason"].as_str(), fields["stream_seq"].as_u64()), (Some("no such call"), Some(1)));
}

#[test]
fn several_deliveries_are_given_up_only_when_somebody_pulls() {
    let mut bench = Bench::with(ConsumerConfig { max_deliver: Some(2), ..consumer() });
    bench.publish(1);
    bench.pull(2);
    bench.until(5_000);
    assert_eq!(bench.deliveries(), [(0, 1, 1), (1_001, 1, 2)]);
    assert_eq!(bench.told(), []);
    assert_eq!(bench.info().num_ack_pending, 1);
    bench.pull(1);
    assert_eq!(bench.told(), [(5_000, AdvisoryKind::MaxDeliveries, 1, 2)]);
    let info = bench.info();
    assert_eq!((info.num_ack_pending, info.num_redelivered, info.ack_floor), (0, 1, SequencePair::default()));
    bench.publish(1);
    bench.say(2, "+ACK");
    let info = bench.info();
    assert_eq!(info.ack_floor, SequencePair { consumer: 3, stream: 2 }, "the next ack moves the reported floor");
    assert_eq!(bench.ask(0, "+ACK"), Some(Message::AckConfirmed));
    assert_eq!(bench.info().num_redelivered, 0);
}

#[test]
fn a_single_delivery_is_given_up_by_the_timer() {
    let mut bench = Bench::with(ConsumerConfig { max_deliver: Some(1), ..consumer() });
    bench.publish(1);
    bench.pull(1);
    bench.until(3_000);
    assert_eq!(bench.told(), [(1_001, AdvisoryKind::MaxDeliveries, 1, 1)]);
    let info = bench.info();
    assert_eq!((info.num_ack_pending, info.num_redelivered), (0, 0));
}

#[test]
fn a_nak_of_the_last_delivery_gives_up_at_once_where_a_pull_waits() {
    let mut bench = Bench::with(ConsumerConfig { max_deliver: Some(2), ..consumer() });
    bench.publish(1);
    bench.pull(9);
    bench.say(0, "-NAK");
    bench.say(1, "-NAK");
    let given_up: Vec<_> = bench.told().into_iter().filter(|told| told.1 == AdvisoryKind::MaxDeliveries).collect();
    assert_eq!(given_up, [(0, AdvisoryKind::MaxDeliveries, 1, 2)]);
    assert_eq!(bench.ask(1, "-NAK"), Some(Message::AckConfirmed));
    assert_eq!(bench.deliveries().len(), 2);
}

#[test]
fn a_raised_limit_revives_nothing_and_a_lowered_one_tells() {
    let mut bench = Bench::with(ConsumerConfig { max_deliver: Some(2), ..consumer() });
    bench.publish(2);
    bench.pull(1);
    bench.until(1_100);
    bench.pull(1);
    bench.until(2_500);
    bench.pull(9);
    assert_eq!(bench.told(), [(2_500, AdvisoryKind::MaxDeliveries, 1, 2)]);
    bench.update(ConsumerConfig { max_deliver: Some(9), ..consumer() });
    bench.until(6_000);
    assert!(bench.deliveries().iter().filter(|(_, sequence, _)| *sequence == 1).count() == 2);
    bench.update(ConsumerConfig { max_deliver: Some(2), ..consumer() });
    let last = bench.deliveries().len() - 1;
    let attempt = bench.deliveries()[last].2;
    assert!(attempt > 2, "{:?}", bench.deliveries());
    bench.say(last, "-NAK");
    assert_eq!(bench.told().last(), Some(&(6_000, AdvisoryKind::MaxDeliveries, 2, attempt)));
}

#[test]
fn a_limit_lowered_below_the_count_is_noticed_by_the_timer() {
    let mut bench = Bench::with(ConsumerConfig { max_deliver: Some(9), ..consumer() });
    bench.publish(1);
    bench.pull(4);
    for delivery in 0..3 {
        bench.say(delivery, "-NAK");
    }
    bench.update(ConsumerConfig { max_deliver: Some(2), ..consumer() });
    bench.until(2_000);
    assert_eq!(bench.told().last(), Some(&(1_001, AdvisoryKind::MaxDeliveries, 1, 4)));
    assert_eq!(bench.info().num_ack_pending, 0);
}

#[test]
fn a_backoff_replaces_the_ack_wait_and_bends_the_delay_of_a_nak() {
    let backoff = vec![millis(500), millis(1_000), millis(2_000)];
    let mut bench = Bench::with(ConsumerConfig { backoff, max_deliver: None, ..consumer() });
    assert_eq!(bench.info().config.ack_wait, millis(500));
    bench.publish(1);
    bench.pull(20);
    bench.until(6_000);
    let deliveries = bench.deliveries();
    let gaps: Vec<u64> = deliveries.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert_eq!(gaps, [501, 1_000, 2_000, 2_000]);
    bench.say(4, "-NAK 300ms");
    bench.until(8_000);
    assert_eq!(bench.deliveries().last(), Some(&(7_800, 1, 6)), "0.3 s and 2 s less 0.5 s");
}

#[test]
fn a_changed_ack_wait_counts_for_what_is_out() {
    let mut bench = Bench::with(ConsumerConfig { ack_wait: millis(20_000), ..consumer() });
    bench.publish(1);
    bench.pull(9);
    bench.until(300);
    bench.update(consumer());
    bench.until(1_100);
    assert_eq!(bench.deliveries(), [(0, 1, 1), (1_000, 1, 2)]);
}
