//! What keeps a call from being summarised: the findings of the processor, and that it does not answer.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::{sync::watch, time::sleep};

use crate::{monitor::terminal::fetch, secret::Secret};

/// How often the processor is asked.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// What is wrong, in words for people who hold a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Fault {
    /// What it is: the name of a finding, or of what is away.
    pub(super) name: String,
    /// What it leads to, what is wrong, what to do.
    pub(super) text: String,
}

/// Asks the processor what keeps it from working, again and again, for as long as there are windows that can be told.
pub(super) async fn ask_processor(
    address: &str,
    token: Option<&Secret>,
    told: &watch::Sender<Vec<Fault>>,
    is_watched: impl Fn() -> bool,
) {
    loop {
        if is_watched() {
            let faults = match fetch(address, token).await {
                Ok(status) => findings(&status),
                Err(error) => {
                    let text = format!("The summary has to wait: {error}");
                    vec![Fault { name: "processor".to_owned(), text }]
                }
            };
            told.send_if_modified(|before| {
                let is_new = *before != faults;
                *before = faults;
                is_new
            });
        }
        sleep(ASK_EVERY).await;
    }
}

/// The findings that keep the processor from working; the others do not concern a call.
fn findings(status: &Value) -> Vec<Fault> {
    let findings = status.pointer("/findings").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let blocking = findings.iter().filter(|finding| finding.get("blocks") == Some(&Value::Bool(true)));
    blocking
        .map(|finding| {
            let word = |name: &str| finding.get(name).and_then(Value::as_str).unwrap_or_default();
            let text = format!("The summary has to wait: {}. {}", word("cause"), word("remedy"));
            Fault { name: word("name").to_owned(), text }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_blocks_the_processor_is_told_and_nothing_else() {
        let finding = |name: &str, blocks: bool| json!({ "name": name, "blocks": blocks, "cause": "it is away", "remedy": "Start it." });
        let status = json!({ "findings": [finding("nats_unreachable", true), finding("mongodb_slow", false)] });
        let text = "The summary has to wait: it is away. Start it.".to_owned();
        assert_eq!(findings(&status), [Fault { name: "nats_unreachable".to_owned(), text }]);
        assert_eq!(findings(&json!({ "findings": [] })), []);
        assert_eq!(findings(&json!([])), []);
    }

    #[tokio::test]
    async fn a_processor_that_is_not_there_is_told_and_nobody_is_asked_for_nobody() {
        // Nothing listens on the port of a listener that is gone.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address").to_string();
        drop(listener);
        let (told, mut faults) = watch::channel(vec![]);
        tokio::select! {
            () = ask_processor(&address, None, &told, || true) => unreachable!("it asks for ever"),
            changed = faults.changed() => changed.expect("the sender is there"),
        }
        let fault = faults.borrow_and_update().first().cloned().expect("there is a fault");
        assert!(fault.text.contains(&address) && fault.text.contains("has to wait"), "{fault:?}");
        tokio::select! {
            () = ask_processor(&address, None, &told, || false) => unreachable!("it asks for ever"),
            _ = faults.changed() => unreachable!("nobody was asked"),
            () = sleep(Duration::from_millis(100)) => {}
        }
    }
}
