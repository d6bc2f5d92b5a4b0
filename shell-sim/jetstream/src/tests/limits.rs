use super::*;

#[test]
fn too_many_messages_push_the_oldest_out_or_are_refused() {
    let mut bench = Bench::new(StreamConfig { max_msgs: Some(2), ..stream(1_000) }, consumer());
    bench.publish(2);
    bench.pull(1);
    bench.publish(1);
    assert_eq!(bench.told().len(), 1, "the message that was out is terminated");
    bench.call(ApiCall::UpdateStream(StreamConfig { max_msgs: Some(2), discard: Discard::New, ..stream(1_000) }));
    let refused = bench.publish_with("s.a", Headers::id("x"));
    assert!(matches!(refused, Message::PublishRefused { error: ApiError { err_code: 10_077, .. }, .. }), "{refused:?}");
    bench.call(ApiCall::DeleteMessage { stream: "S".into(), sequence: 2 });
    assert_eq!(bench.publish_id("s.a", "x"), (4, false), "a refused id is not remembered");
}

#[test]
fn old_messages_go() {
    let mut bench = Bench::new(StreamConfig { max_age: Some(millis(1_000)), ..stream(1_000) }, consumer());
    bench.publish(1);
    bench.until(100);
    bench.publish(1);
    let messages = |bench: &mut Bench| {
        let answer = bench.call(ApiCall::StreamInfo("S".into()));
        let Message::Answer { answer: Answer::Stream(info), .. } = answer else { panic!("not an info: {answer:?}") };
        (info.messages, info.first_seq)
    };
    assert_eq!(messages(&mut bench), (2, 1));
    bench.until(1_000);
    assert_eq!(messages(&mut bench), (1, 2));
    bench.until(1_249);
    assert_eq!(messages(&mut bench), (1, 2), "looked for again only after 250 ms");
    bench.until(1_250);
    assert_eq!(messages(&mut bench), (0, 3));
}

#[test]
fn streams_and_consumers_are_not_what_they_are_not() {
    let mut bench = Bench::with(consumer());
    let code = |answer: Message| {
        let Message::Refused { error, .. } = answer else { panic!("not refused: {answer:?}") };
        error.err_code
    };
    let create =
        |name: &str, config: ConsumerConfig, action| ApiCall::CreateConsumer { stream: name.into(), config, action };
    let renamed = ConsumerConfig { name: "d".into(), ..consumer() };
    let slower = ConsumerConfig { ack_wait: millis(9), ..consumer() };
    let steps = ConsumerConfig { backoff: vec![millis(1); 4], ..consumer() };
    let roomier = ConsumerConfig { max_waiting: 3, ..consumer() };
    assert_eq!(code(bench.call(create("X", consumer(), ConsumerAction::Create))), 10_059);
    assert_eq!(code(bench.call(create("S", slower, ConsumerAction::Create))), 10_148);
    assert_eq!(code(bench.call(create("S", renamed, ConsumerAction::Update))), 10_149);
    assert_eq!(code(bench.call(create("S", steps, ConsumerAction::Update))), 10_116);
    assert_eq!(code(bench.call(create("S", roomier, ConsumerAction::Update))), 10_012);
    assert_eq!(code(bench.call(ApiCall::CreateStream(stream(5_000)))), 10_058);
    assert_eq!(code(bench.call(ApiCall::CreateStream(StreamConfig::new("T", &["s.a"])))), 10_065);
    assert_eq!(code(bench.call(ApiCall::ConsumerInfo { stream: "S".into(), consumer: "d".into() })), 10_014);
    bench.publish(3);
    let delete = |sequence| ApiCall::DeleteMessage { stream: "S".into(), sequence };
    assert_eq!(bench.call(delete(2)), Message::Answer { call: ApiKind::DeleteMessage, answer: Answer::Deleted });
    assert_eq!(code(bench.call(delete(2))), 10_043);
    assert_eq!(code(bench.call(delete(4))), 10_057);
    let which = Which::Sequence(2);
    assert_eq!(code(bench.call(ApiCall::GetMessage { stream: "S".into(), which })), 10_037);
}

#[test]
fn a_deleted_consumer_tells_its_requests_and_then_nobody_answers() {
    let mut bench = Bench::with(consumer());
    bench.publish(1);
    bench.pull(2);
    assert_eq!(
        bench.call(ApiCall::DeleteConsumer { stream: "S".into(), consumer: "c".into() }),
        Message::Answer { call: ApiKind::DeleteConsumer, answer: Answer::Deleted }
    );
    assert_eq!(bench.statuses(1), [(0, 409, "Consumer Deleted".to_owned())]);
    assert!(matches!(bench.ask(0, "+ACK"), Some(Message::NoResponders { .. })));
    bench.pull_as(inbox(3), Pull::no_wait(1));
    assert!(matches!(bench.answer(3), Message::NoResponders { .. }));
    let (stream, config, action) = ("S".into(), consumer(), ConsumerAction::Create);
    bench.call(ApiCall::CreateConsumer { stream, config, action });
    assert_eq!(bench.ask(0, "+ACK"), None, "the new consumer has not delivered it yet");
    bench.pull(1);
    assert_eq!(bench.deliveries(), [(0, 1, 1), (0, 1, 1)]);
    assert_eq!(bench.ask(0, "+ACK"), Some(Message::AckConfirmed));
}

#[test]
fn a_reset_starts_the_whole_consumer_again() {
    let mut bench = Bench::with(consumer());
    bench.publish(3);
    bench.pull(3);
    for delivery in 0..3 {
        bench.say(delivery, "+ACK");
    }
    let sequence = Some(2);
    let answer = bench.call(ApiCall::ResetConsumer { stream: "S".into(), consumer: "c".into(), sequence });
    assert!(matches!(answer, Message::Answer { answer: Answer::Consumer(info), .. } if info.num_pending == 2));
    bench.pull(9);
    assert_eq!(bench.deliveries()[3..], [(0, 2, 1), (0, 3, 1)]);
    assert_eq!(bench.delivered[3].2.consumer_seq, 1);
}
