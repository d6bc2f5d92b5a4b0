//! The model speaks the protocol as nats-server does: the exchanges of `fixtures/conformance/exchanges`, byte for byte.

use transcript_tests::conformance::exchange::{self, Exchange};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exchanges_give_the_same_bytes() {
    let mut disagreeing = vec![];
    let exchanges: Vec<Exchange> = transcript_tests::conformance::fixtures::read("exchanges");
    assert!(!exchanges.is_empty(), "no exchange was read");
    for exchange in &exchanges {
        let expected = exchange::model(exchange);
        let seen = exchange::real(exchange, &expected).await.expect("a server");
        for (number, (model, server)) in expected.iter().zip(&seen).enumerate() {
            if model != server {
                let sent = &exchange.steps.get(number);
                disagreeing.push(format!(
                    "{}, step {number} {sent:?}\n model  {model:#?}\n server {server:#?}",
                    exchange.name
                ));
            }
        }
        assert_eq!(expected.len(), seen.len(), "{}", exchange.name);
    }
    assert!(disagreeing.is_empty(), "{} steps disagree\n{}", disagreeing.len(), disagreeing.join("\n"));
}
