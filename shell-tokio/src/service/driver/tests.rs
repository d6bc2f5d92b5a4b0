use tokio::sync::mpsc;
use transcript_core::{Delivery, Payload, Settings, WallTime};

use super::*;

/// Servers that hand over a last message while they are told that no more are wanted.
struct LastMessage {
    inputs: mpsc::UnboundedSender<Input>,
    performed: mpsc::UnboundedSender<EffectKind>,
}

impl Servers for LastMessage {
    fn perform(&mut self, id: EffectId, effect: Effect) {
        self.performed.send(effect.kind()).expect("the test listens");
        let report = match effect {
            Effect::Republish { .. } => Report::Republished { stream_sequence: 2 },
            Effect::Acknowledge { .. } => Report::Acknowledged,
            Effect::Count { .. }
            | Effect::Load { .. }
            | Effect::Save { .. }
            | Effect::Check { .. }
            | Effect::Publish { .. }
            | Effect::Mark { .. }
            | Effect::DeadLetter { .. } => panic!("a call that is given back needs no {effect}"),
        };
        self.inputs.send(Input::Reported { effect: id, report }).expect("the driver listens");
    }

    fn in_progress(&mut self, _reply: Arc<str>) {}

    fn stop_deliveries(&mut self) {
        let ended = br#"{"conversationId":"c","sessionId":"s","publishedSegments":0}"#;
        let delivery = Delivery {
            stream_sequence: 1,
            attempt: 1,
            stored_at: WallTime::from_millis(0),
            received_at: WallTime::from_millis(0),
            reply: "reply".into(),
            redrive_of: None,
            payload: Payload(ended.to_vec()),
        };
        self.inputs.send(Input::Delivered(delivery)).expect("the driver listens");
        self.inputs.send(Input::DeliveriesStopped).expect("the driver listens");
    }
}

#[tokio::test]
async fn a_message_that_comes_while_the_deliveries_stop_is_given_back() {
    let (reports, inputs) = mpsc::unbounded_channel();
    let (performed, mut seen) = mpsc::unbounded_channel();
    let (signal, mut signals) = mpsc::unbounded_channel();
    signal.send(Signal::Drain).expect("the driver listens");
    let settings = Settings { max_deliver: 1, ..Settings::default() };
    let driver = Driver {
        processor: Processor::new(settings).expect("the settings can work"),
        servers: LastMessage { inputs: reports, performed },
        clock: Clock::start(),
        inputs,
        allowance: watch::Sender::new(0),
        tape: None,
    };
    assert_eq!(driver.run(&mut signals).await, Ended::Drained { abandoned: 0 });
    let mut all = vec![];
    seen.recv_many(&mut all, 10).await;
    assert_eq!(all, [EffectKind::Republish, EffectKind::Acknowledge]);
}
