//! Signatures: those of another implementation are known, and nothing else is. The expected values were computed by Python's `hmac`.

use std::io::Write;

use axum::http::{HeaderName, HeaderValue};
use tempfile::NamedTempFile;

use super::*;

const RECALL: &str = "whsec_dHdlbnR5LWZvdXIgYnl0ZXMgb2Yga2V5";
const BODY: &str = r#"{"event":"transcript.data"}"#;
const OF_BODY: &str = "v1,azzRpzn+IPw31I194bmb1RcESITk1roCWfmIUv8METg=";
const OF_UPGRADE: &str = "v1,dyi0ADy/EoxCzIb0z4Ba5vYdsujzc8PqBJ/bv/kDTbA=";
const TIMESTAMP: i64 = 1_700_000_000;

const TWILIO: &str = "0123456789abcdef0123456789abcdef";
const TARGET: &str = "/v1/conversations/c/sessions/s?dialect=conversationrelay&speaker=Ana%20M.";
const WITH_QUERY: &str = "+by3zPfXbp5gFIwIb5AmGNFi8WM=";
const WITH_PARAMETERS: &str = "aGtfiqYdsfo8uOXtp1smvxOztyw=";
const WITHOUT_QUERY: &str = "YQ2uiy3a3UimM2rab7xlD11tKSQ=";

fn file(text: &str) -> (NamedTempFile, SecretFile) {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let name = file.path().to_str().unwrap().parse().unwrap();
    (file, name)
}

fn recall(text: &str) -> Result<Signatures, AccessError> {
    let (_file, name) = file(text);
    Signatures::read(&TranscriberAccess { recall_secret_file: Some(name), ..TranscriberAccess::default() })
}

fn twilio(text: &str) -> Result<Signatures, AccessError> {
    let (_file, name) = file(text);
    let public_url = Some("wss://transcriber.example".to_owned());
    Signatures::read(&TranscriberAccess { twilio_token_file: Some(name), public_url, ..TranscriberAccess::default() })
}

fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
    let header =
        |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    all.iter().map(header).collect()
}

/// What becomes of a request of Recall.ai, so many seconds after its signature.
fn of_recall(of: &Signatures, headers: &HeaderMap, body: &str, seconds: i64) -> Result<(), Refused> {
    let uri = Uri::from_static("/v1/conversations/c/sessions/s/segments?dialect=recall");
    let request = SignedRequest { headers, uri: &uri, body: body.as_bytes() };
    of.check(Dialect::Recall, Transport::Post, request, WallTime::from_millis((TIMESTAMP + seconds) * 1000))
}

fn recall_headers(signature: &str) -> HeaderMap {
    headers(&[("webhook-id", "msg_1"), ("webhook-timestamp", "1700000000"), ("webhook-signature", signature)])
}

#[test]
fn a_request_of_recall_is_known_by_its_signature() {
    let both = recall(&format!("whsec_{}\n\n{RECALL}\n", STANDARD.encode([7; 24]))).unwrap();
    assert_eq!(of_recall(&both, &recall_headers(OF_BODY), BODY, 0), Ok(()));
    assert_eq!(of_recall(&both, &recall_headers(OF_UPGRADE), "", 299), Ok(()));
    let several = format!("v2,{} v1,AAAA {OF_BODY}", "A".repeat(44));
    assert_eq!(of_recall(&both, &recall_headers(&several), BODY, -299), Ok(()));
    let older = [("svix-id", "msg_1"), ("svix-timestamp", "1700000000"), ("svix-signature", OF_BODY)];
    assert_eq!(of_recall(&both, &headers(&older), BODY, 0), Ok(()));
}

#[test]
fn what_recall_did_not_sign_is_refused() {
    let known = recall(RECALL).unwrap();
    let foreign = recall(&format!("whsec_{}", STANDARD.encode([7; 24]))).unwrap();
    assert_eq!(of_recall(&foreign, &recall_headers(OF_BODY), BODY, 0), Err(Refused::Forged));
    for (signature, body) in [(OF_BODY, ""), (OF_UPGRADE, BODY), ("", BODY), ("v1,", BODY), ("v1,?", BODY)] {
        assert_eq!(of_recall(&known, &recall_headers(signature), body, 0), Err(Refused::Forged), "{signature}");
    }
    for seconds in [301, -301, 100_000_000] {
        assert_eq!(of_recall(&known, &recall_headers(OF_BODY), BODY, seconds), Err(Refused::Stale), "{seconds}");
    }
    let mut other_time = recall_headers(OF_BODY);
    other_time.insert("webhook-timestamp", HeaderValue::from_static("1700000001"));
    assert_eq!(of_recall(&known, &other_time, BODY, 0), Err(Refused::Forged));
    other_time.insert("webhook-timestamp", HeaderValue::from_static("now"));
    assert_eq!(of_recall(&known, &other_time, BODY, 0), Err(Refused::Forged));
    other_time.remove("webhook-timestamp");
    assert_eq!(of_recall(&known, &other_time, BODY, 0), Err(Refused::Unsigned));
    assert_eq!(of_recall(&known, &HeaderMap::new(), BODY, 0), Err(Refused::Unsigned));
}

fn of_twilio(of: &Signatures, target: &'static str, signature: Option<&str>) -> Result<(), Refused> {
    let headers =
        headers(&signature.map(|signature| ("x-twilio-signature", signature)).into_iter().collect::<Vec<_>>());
    let uri = Uri::from_static(target);
    let request = SignedRequest { headers: &headers, uri: &uri, body: b"" };
    of.check(Dialect::ConversationRelay, Transport::Socket, request, WallTime::from_millis(0))
}

#[test]
fn an_upgrade_of_twilio_is_known_by_its_signature_of_the_public_url() {
    let known = twilio(&format!("{}\n{TWILIO}", "f".repeat(32))).unwrap();
    assert_eq!(of_twilio(&known, TARGET, Some(WITH_QUERY)), Ok(()));
    assert_eq!(of_twilio(&known, TARGET, Some(WITH_PARAMETERS)), Ok(()));
    let path = "/v1/conversations/c/sessions/s";
    assert_eq!(of_twilio(&known, path, Some(WITHOUT_QUERY)), Ok(()));
    assert_eq!(of_twilio(&known, path, Some(WITH_QUERY)), Err(Refused::Forged));
    // The parameters are signed too: another speaker, or none, is another text.
    assert_eq!(of_twilio(&known, TARGET, Some(WITHOUT_QUERY)), Err(Refused::Forged));
    let other = "/v1/conversations/c/sessions/t?dialect=conversationrelay&speaker=Ana%20M.";
    assert_eq!(of_twilio(&known, other, Some(WITH_QUERY)), Err(Refused::Forged));
    assert_eq!(of_twilio(&known, TARGET, Some("?")), Err(Refused::Forged));
    assert_eq!(of_twilio(&known, TARGET, None), Err(Refused::Unsigned));
    let foreign = twilio(&"f".repeat(32)).unwrap();
    assert_eq!(of_twilio(&foreign, TARGET, Some(WITH_QUERY)), Err(Refused::Forged));
}

#[test]
fn parameters_are_sorted_and_decoded() {
    assert_eq!(sorted(""), "");
    assert_eq!(sorted("b=2&a=1&c&&a=0"), "a0a1b2c");
    assert_eq!(sorted("n%C3%A4me=a+b%2B"), "n\u{e4}mea b+");
}

#[test]
fn a_signature_is_required_of_the_dialect_whose_secret_is_there() {
    let (recall, twilio, none) = (recall(RECALL).unwrap(), twilio(TWILIO).unwrap(), Signatures::default());
    for transport in [Transport::Post, Transport::Socket] {
        for dialect in [Dialect::Native, Dialect::Deepgram, Dialect::AssemblyAi, Dialect::LiveKit, Dialect::Jigasi] {
            assert!(
                !recall.are_required(dialect, transport) && !twilio.are_required(dialect, transport),
                "{dialect:?}"
            );
        }
        assert!(recall.are_required(Dialect::Recall, transport));
        assert!(!twilio.are_required(Dialect::Recall, transport) && !none.are_required(Dialect::Recall, transport));
    }
    assert!(twilio.are_required(Dialect::ConversationRelay, Transport::Socket));
    assert!(!twilio.are_required(Dialect::ConversationRelay, Transport::Post));
    assert!(!recall.are_required(Dialect::ConversationRelay, Transport::Socket));
    let unsigned = HeaderMap::new();
    let uri = Uri::from_static("/");
    let request = SignedRequest { headers: &unsigned, uri: &uri, body: b"" };
    let now = WallTime::from_millis(0);
    assert_eq!(none.check(Dialect::Recall, Transport::Socket, request, now), Ok(()));
    assert_eq!(recall.check(Dialect::Native, Transport::Socket, request, now), Ok(()));
}

#[test]
fn a_file_without_a_good_secret_is_refused() {
    let short = format!("whsec_{}", STANDARD.encode([7; 23]));
    for text in ["", "\n", "dHdlbnR5LWZvdXIgYnl0ZXMgb2Yga2V5", "whsec_?", &short] {
        let error = recall(text).unwrap_err().to_string();
        assert!(error.contains("--recall-secret-file") && !error.contains("whsec_?"), "{error}");
    }
    for text in ["", "0123456789abcdef"] {
        let error = twilio(text).unwrap_err().to_string();
        assert!(error.contains("--twilio-token-file"), "{error}");
    }
}
