//! The simulated broker does what nats-server does: written cases for every trap, each run against both and compared.

mod acknowledgements;
mod ids;
mod pulls;
mod restarts;

use transcript_tests::conformance::{Action, ConsumerPlan, Script, Step};

fn case(name: &str, consumer: ConsumerPlan, steps: Vec<Step>) -> Script {
    Script { name: name.to_owned(), window_ms: 0, consumer, steps, watch_ms: 300 }
}

fn windowed(name: &str, window_ms: u64, steps: Vec<Step>) -> Script {
    Script { window_ms, ..case(name, ConsumerPlan::default(), steps) }
}

fn plan() -> ConsumerPlan {
    ConsumerPlan::default()
}

fn update(plan: ConsumerPlan) -> Step {
    Step::Consumer { action: Action::Update, plan }
}

fn no_wait(client: u64, batch: u64, expires_ms: u64) -> Step {
    Step::Pull { client, batch, expires_ms, no_wait: true, heartbeat_ms: 0, max_bytes: 0 }
}

fn beating(client: u64, batch: u64, expires_ms: u64, heartbeat_ms: u64) -> Step {
    Step::Pull { client, batch, expires_ms, no_wait: false, heartbeat_ms, max_bytes: 0 }
}

fn bytes(client: u64, batch: u64, max_bytes: u64) -> Step {
    Step::Pull { client, batch, expires_ms: 20_000, no_wait: false, heartbeat_ms: 0, max_bytes }
}

fn expecting(subject: &str, id: &str, expected: u64) -> Step {
    Step::Publish { subject: subject.to_owned(), id: Some(id.to_owned()), expected: Some(expected) }
}
