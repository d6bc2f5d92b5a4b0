use super::*;

#[test]
fn a_graceful_stop_tells_waiting_requests_and_keeps_everything() {
    let mut bench = Bench::with(consumer());
    bench.publish(3);
    bench.pull(2);
    bench.say(0, "+ACK");
    bench.pull_as(inbox(2), Pull::waiting(7, Duration::from_secs(60)));
    bench.restart(Input::Terminate);
    assert_eq!(bench.statuses(2), [(0, 409, "Server Shutdown".to_owned())]);
    let info = bench.info();
    assert_eq!((info.ack_floor.stream, info.num_ack_pending, info.num_waiting), (1, 2, 0));
}

#[test]
fn a_kill_forgets_confirmed_acks_of_the_last_moments() {
    let mut bench = Bench::with(consumer());
    bench.publish(3);
    bench.until(100);
    bench.pull(2);
    bench.until(300);
    assert_eq!(bench.ask(0, "+ACK"), Some(Message::AckConfirmed));
    bench.until(350);
    assert_eq!(bench.ask(1, "+ACK"), Some(Message::AckConfirmed));
    bench.pull(1);
    bench.until(390);
    bench.restart(Input::Kill { lag: millis(80) });
    let info = bench.info();
    assert_eq!((info.ack_floor.stream, info.num_ack_pending, info.delivered.stream), (1, 1, 2));
    assert_eq!(bench.statuses(1), [], "a kill tells nothing");
    assert_eq!(bench.ask(2, "+ACK"), None, "the forgotten delivery is acknowledged in vain");
    bench.pull(1);
    assert_eq!(bench.deliveries().last(), Some(&(390, 3, 1)), "and comes again at once, as the first");
    assert_eq!(bench.ask(2, "+ACK"), Some(Message::AckConfirmed));
}

#[test]
fn a_kill_loses_nothing_that_is_older_than_100_ms() {
    let mut bench = Bench::with(consumer());
    bench.publish(1);
    bench.pull(1);
    bench.say(0, "+ACK");
    bench.until(200);
    bench.restart(Input::Kill { lag: millis(100) });
    assert_eq!(bench.info().ack_floor, SequencePair { consumer: 1, stream: 1 });
}

#[test]
fn a_restart_dates_deliveries_in_whole_seconds() {
    let mut bench = Bench::with(ConsumerConfig { ack_wait: millis(3_000), ..consumer() });
    bench.until(1_900);
    bench.publish(1);
    bench.pull(1);
    bench.until(2_500);
    bench.restart(Input::Terminate);
    bench.pull(5);
    bench.until(4_100);
    assert_eq!(bench.deliveries(), [(1_900, 1, 1), (4_000, 1, 2)], "0.9 s early");
}

#[test]
fn a_restart_dates_a_delivery_by_its_message_unless_progress_was_reported() {
    let mut bench = Bench::with(ConsumerConfig { ack_wait: millis(3_000), ..consumer() });
    bench.publish(2);
    bench.until(10_000);
    bench.pull(2);
    bench.until(10_500);
    bench.say(1, "+WPI");
    bench.restart(Input::Terminate);
    bench.pull(5);
    assert_eq!(bench.deliveries().last(), Some(&(10_500, 1, 2)), "as old as its message: due at once");
    bench.until(13_100);
    assert_eq!(bench.deliveries()[3..], [(13_000, 2, 2)]);
}

#[test]
fn a_restart_forgets_the_queue_of_redeliveries() {
    let mut bench = Bench::with(ConsumerConfig { ack_wait: millis(3_000), ..consumer() });
    bench.publish(1);
    bench.pull(1);
    bench.until(300);
    bench.say(0, "-NAK");
    bench.restart(Input::Terminate);
    bench.pull(5);
    bench.until(3_100);
    assert_eq!(bench.deliveries(), [(0, 1, 1), (3_000, 1, 2)]);
}

#[test]
fn a_delayed_nak_survives_a_restart() {
    let mut bench = Bench::with(consumer());
    bench.publish(1);
    bench.pull(1);
    bench.say(0, "-NAK 5s");
    bench.restart(Input::Kill { lag: Duration::ZERO });
    bench.pull(5);
    bench.until(5_500);
    assert_eq!(bench.deliveries(), [(0, 1, 1), (5_000, 1, 2)]);
}

#[test]
fn what_was_due_while_the_server_was_down_comes_with_the_first_pull() {
    let mut bench = Bench::with(consumer());
    bench.publish(1);
    bench.pull(1);
    bench.until(200);
    bench.input(Input::Terminate);
    bench.until(5_000);
    bench.input(Input::Request(Request::Publish {
        reply: None,
        subject: "s.a".into(),
        headers: Headers::default(),
        payload: b""[..].into(),
    }));
    bench.input(Input::Start);
    bench.input(Input::Connect(CLIENT));
    bench.pull(5);
    assert_eq!(bench.deliveries(), [(0, 1, 1), (5_000, 1, 2)], "and what was sent meanwhile is lost");
}

#[test]
fn what_was_given_up_stays_so() {
    let mut bench = Bench::with(ConsumerConfig { max_deliver: Some(2), ..consumer() });
    bench.publish(1);
    bench.pull(9);
    bench.until(2_500);
    assert_eq!(bench.told().len(), 1);
    bench.restart(Input::Terminate);
    bench.update(ConsumerConfig { max_deliver: Some(9), ..consumer() });
    bench.pull(9);
    bench.until(9_000);
    assert_eq!(bench.deliveries().len(), 2);
    assert_eq!(bench.info().num_redelivered, 1);
}

#[test]
fn the_first_update_after_a_restart_is_answered_with_what_was() {
    let mut bench = Bench::with(consumer());
    bench.restart(Input::Terminate);
    let config = ConsumerConfig { ack_wait: millis(5_000), ..consumer() };
    let mut answered = |action| {
        let (stream, config) = ("S".into(), config.clone());
        let answer = bench.call(ApiCall::CreateConsumer { stream, config, action });
        let Message::Answer { answer: Answer::Consumer(info), .. } = answer else { panic!("not an info: {answer:?}") };
        info.config.ack_wait
    };
    assert_eq!(answered(ConsumerAction::CreateOrUpdate), millis(1_000));
    assert_eq!(answered(ConsumerAction::CreateOrUpdate), millis(5_000));
    assert_eq!(bench.info().config.ack_wait, millis(5_000));
}

#[test]
fn a_clone_goes_its_own_way() {
    let mut bench = Bench::with(consumer());
    bench.publish(1);
    let before = bench.broker.clone();
    bench.pull(1);
    assert_eq!(bench.info().num_pending, 0);
    bench.broker = before;
    assert_eq!(bench.info().num_pending, 1);
}
