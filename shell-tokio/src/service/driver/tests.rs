use tokio::sync::mpsc;
use transcript_client::jetstream::{Address, Message, Settings as ClientSettings, Status};
use transcript_core::{Settings, WallTime};

use super::*;

/// A server that answers whatever it is asked.
struct Answers {
    received: mpsc::UnboundedSender<jetstream::Input>,
    sent: mpsc::UnboundedSender<String>,
}

impl Servers for Answers {
    fn perform(&mut self, _id: EffectId, effect: Effect) {
        panic!("a call that is given back needs no {effect}");
    }

    fn send(&mut self, frame: Frame) {
        let payload = String::from_utf8_lossy(&frame.payload).into_owned();
        let Some(token) = frame.reply else { return };
        let answer: &[u8] = if frame.subject.contains("MSG.GET") {
            br#"{"error":{"code":404,"err_code":10037}}"#
        } else {
            self.sent.send(format!("{} {payload}", frame.subject)).expect("the test listens");
            br#"{"stream":"TRANSCRIPTION","seq":2}"#
        };
        self.received.send(received(token, None, None, answer)).expect("the driver listens");
    }

    fn set_up(&mut self, problem: String) {
        panic!("{problem}");
    }
}

fn received(token: u64, reply: Option<&str>, status: Option<u16>, payload: &[u8]) -> jetstream::Input {
    jetstream::Input::Received(Message {
        to: Address::Inbox(token),
        reply: reply.map(Into::into),
        status: status.map(|code| Status { code, description: "".into() }),
        headers: vec![],
        payload: payload.to_vec(),
        received_at: WallTime::from_millis(0),
    })
}

/// A client that is connected and has asked for one message.
fn client_with_an_open_pull(clock: Clock) -> (JetStream, u64) {
    let mut client = JetStream::new(ClientSettings::default());
    client.handle(clock.now(), jetstream::Input::Connected { max_payload: 1 << 20, failed_attempts: 0 });
    client.handle(clock.now(), jetstream::Input::Allow { deliveries: 1 });
    let mut pull = None;
    while let jetstream::Output::Send(frame) = client.poll_output() {
        pull = if frame.subject.contains("MSG.NEXT") { frame.reply } else { pull };
    }
    (client, pull.expect("a message is asked for"))
}

#[tokio::test]
async fn a_message_that_comes_while_the_deliveries_stop_is_given_back() {
    let (_reports, inputs) = mpsc::unbounded_channel();
    let (messages, nats) = mpsc::unbounded_channel();
    let (sent, mut seen) = mpsc::unbounded_channel();
    let (_signal, mut signals) = mpsc::unbounded_channel();
    let clock = Clock::start();
    let (mut client, pull) = client_with_an_open_pull(clock);
    client.handle(clock.now(), jetstream::Input::StopDeliveries);
    let (reply, ended) = ("$JS.ACK.TRANSCRIPTION.transcript-processor.1.1.1.0.0", ENDED.as_bytes());
    messages.send(received(pull, Some(reply), None, ended)).expect("the driver listens");
    let settings = Settings { max_deliver: 1, ..Settings::default() };
    let driver = Driver {
        processor: Processor::new(settings).expect("the settings can work"),
        client,
        servers: Answers { received: messages, sent },
        clock,
        inputs,
        nats,
        tape: None,
        turns: Turns::default(),
        questions: questions().1,
        spans: None,
        pulls_restarted: 0,
    };
    assert_eq!(driver.run(&mut signals).await, Ended::Drained { abandoned: 0 });
    let mut all = vec![];
    seen.recv_many(&mut all, 10).await;
    assert_eq!(all, [format!("transcription.session-ended {ENDED}"), format!("{reply} +ACK")]);
}

const ENDED: &str = r#"{"conversationId":"c","sessionId":"s","publishedSegments":0}"#;
