//! Tokens: known, unknown, expired, foreign, forged.

use std::{fs, io::Write};

use axum::http::HeaderValue;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    hmac,
    signature::{Ed25519KeyPair, KeyPair},
};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::*;

const HS256_KEY: &str = "a key of at least thirty-two bytes";
const FAR: u64 = 4_000_000_000;

fn file(text: &str) -> (NamedTempFile, SecretFile) {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let name = file.path().to_str().unwrap().parse().unwrap();
    (file, name)
}

fn signed(key: &str, audience: Option<&str>) -> Access {
    let (_file, name) = file(key);
    let settings = TranscriberAccess {
        token_key_file: Some(name),
        token_audience: audience.map(str::to_owned),
        ..TranscriberAccess::default()
    };
    Access::read(&settings).unwrap()
}

fn session() -> Session {
    Session::new("c", "s").unwrap()
}

fn token(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", part(header), part(claims));
    let signature = URL_SAFE_NO_PAD.encode(sign(message.as_bytes()));
    format!("{message}.{signature}")
}

fn hs256(key: &str, claims: &Value) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    token(&json!({ "alg": "HS256", "typ": "JWT" }), claims, |message| hmac::sign(&key, message).as_ref().to_vec())
}

fn with(name: header::HeaderName, value: &str) -> HeaderMap {
    HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
}

/// What becomes of a request of this dialect.
fn check_as(dialect: Dialect, access: &Access, headers: &HeaderMap, query: Option<&str>) -> Result<(), Refused> {
    let session = session();
    access.check(AccessRequest { headers, query, session: &session, dialect, transport: Transport::Socket })
}

fn check(access: &Access, headers: &HeaderMap, query: Option<&str>) -> Result<(), Refused> {
    check_as(Dialect::Native, access, headers, query)
}

fn checked(access: &Access, token: &str) -> Result<(), Refused> {
    check(access, &with(header::AUTHORIZATION, &format!("Bearer {token}")), None)
}

#[test]
fn a_shared_secret_comes_by_header_subprotocol_or_query() {
    let (_file, name) = file("the-old-secret-of-all\n\nthe-new-secret-of-all\n");
    let access = Access::read(&TranscriberAccess { token_file: Some(name), ..Default::default() }).unwrap();
    assert!(!access.is_open());
    for secret in ["the-old-secret-of-all", "the-new-secret-of-all"] {
        assert_eq!(checked(&access, secret), Ok(()));
        let protocols = with(header::SEC_WEBSOCKET_PROTOCOL, &format!("transcript, token.{secret}"));
        assert_eq!(check(&access, &protocols, None), Ok(()));
        assert_eq!(check(&access, &HeaderMap::new(), Some(secret)), Ok(()));
    }
    assert_eq!(checked(&access, "the-old-secret-of-al"), Err(Refused::Unknown));
    assert_eq!(check(&access, &HeaderMap::new(), None), Err(Refused::Missing));
    assert_eq!(check(&access, &HeaderMap::new(), Some("")), Err(Refused::Missing));
}

#[test]
fn a_file_without_a_good_secret_is_refused() {
    for (text, expected) in [("\n \n", "holds no secret"), ("a-good-long-secret\nshort", "less than 16 bytes")] {
        let (_file, name) = file(text);
        let error = Access::read(&TranscriberAccess { token_file: Some(name), ..Default::default() }).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let (file, name) = file("a-good-long-secret");
    fs::remove_file(file.path()).unwrap();
    let error = Access::read(&TranscriberAccess { token_file: Some(name), ..Default::default() }).unwrap_err();
    assert!(error.to_string().contains("cannot read"), "{error}");
}

#[test]
fn a_token_of_hs256_must_be_signed_unexpired_and_for_this_session() {
    let access = signed(HS256_KEY, None);
    let sign = |claims: Value| hs256(HS256_KEY, &claims);
    assert_eq!(checked(&access, &sign(json!({ "exp": FAR }))), Ok(()));
    assert_eq!(checked(&access, &sign(json!({ "exp": FAR, "conversationId": "c", "sessionId": "s" }))), Ok(()));
    for (claims, refused) in [
        (json!({ "exp": 1_000_000_000 }), Refused::Expired),
        (json!({}), Refused::NoExpiry),
        (json!({ "exp": FAR, "nbf": FAR - 1 }), Refused::TooEarly),
        (json!({ "exp": FAR, "aud": "another" }), Refused::Audience),
        (json!({ "exp": FAR, "conversationId": "d" }), Refused::OtherSession),
        (json!({ "exp": FAR, "conversationId": "c", "sessionId": "t" }), Refused::OtherSession),
        (json!({ "exp": FAR, "sessionId": 7 }), Refused::Signature),
    ] {
        assert_eq!(checked(&access, &sign(claims.clone())), Err(refused), "{claims}");
    }
    let foreign = hs256("another key of thirty-two bytes or more", &json!({ "exp": FAR }));
    assert_eq!(checked(&access, &foreign), Err(Refused::Signature));
    for garbage in ["", "a", "a.b.c", "....", "eyJhbGciOiJIUzI1NiJ9..", "ä"] {
        let refused = checked_bytes(&access, garbage);
        assert!(matches!(refused, Err(Refused::Signature | Refused::Missing)), "{garbage}: {refused:?}");
    }
}

fn checked_bytes(access: &Access, token: &str) -> Result<(), Refused> {
    check(access, &HeaderMap::new(), Some(token))
}

#[test]
fn no_other_algorithm_is_taken() {
    let access = signed(HS256_KEY, None);
    let claims = json!({ "exp": FAR });
    let key = hmac::Key::new(hmac::HMAC_SHA256, HS256_KEY.as_bytes());
    for algorithm in ["none", "HS384", "RS256", "EdDSA", "hs256", ""] {
        let forged =
            token(&json!({ "alg": algorithm }), &claims, |message| hmac::sign(&key, message).as_ref().to_vec());
        assert_eq!(checked(&access, &forged), Err(Refused::Signature), "{algorithm}");
    }
}

/// A public key must not be taken for the secret of HS256: it is known to everybody.
#[test]
fn a_token_of_eddsa_is_checked_by_the_public_key_and_by_nothing_else() {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let mut der = vec![0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
    der.extend_from_slice(pair.public_key().as_ref());
    let body = base64::engine::general_purpose::STANDARD.encode(&der);
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n");
    let access = signed(&pem, None);
    let claims = json!({ "exp": FAR });
    let sign = |message: &[u8]| pair.sign(message).as_ref().to_vec();
    assert_eq!(checked(&access, &token(&json!({ "alg": "EdDSA" }), &claims, sign)), Ok(()));
    assert_eq!(checked(&access, &token(&json!({ "alg": "EdDSA" }), &claims, |_| vec![0; 64])), Err(Refused::Signature));
    for secret in [pem.as_str(), std::str::from_utf8(&[7; 32]).unwrap()] {
        assert_eq!(checked(&access, &hs256(secret, &claims)), Err(Refused::Signature));
    }
}

#[test]
fn an_audience_is_required_where_the_service_has_one() {
    let access = signed(HS256_KEY, Some("transcriber"));
    let sign = |claims: Value| hs256(HS256_KEY, &claims);
    assert_eq!(checked(&access, &sign(json!({ "exp": FAR, "aud": "transcriber" }))), Ok(()));
    for claims in [json!({ "exp": FAR }), json!({ "exp": FAR, "aud": ["other"] })] {
        assert_eq!(checked(&access, &sign(claims)), Err(Refused::Audience));
    }
}

#[test]
fn a_page_of_a_foreign_origin_is_refused_and_what_is_no_page_is_not() {
    let allow_origin = vec!["https://App.example".parse().unwrap(), "http://localhost:3000".parse().unwrap()];
    let access = Access::read(&TranscriberAccess { allow_origin, ..Default::default() }).unwrap();
    let of_page = |access: &Access, origin: &str| check(access, &with(header::ORIGIN, origin), None);
    assert_eq!(of_page(&access, "https://app.example"), Ok(()));
    assert_eq!(of_page(&access, "http://localhost:3000"), Ok(()));
    for origin in ["https://app.example.evil", "http://app.example", "null", "http://localhost"] {
        assert_eq!(of_page(&access, origin), Err(Refused::Origin), "{origin}");
    }
    assert_eq!(check(&access, &HeaderMap::new(), None), Ok(()));
    let none = Access::read(&TranscriberAccess::default()).unwrap();
    assert_eq!(of_page(&none, "https://app.example"), Err(Refused::Origin));
    for text in ["", "app.example", "https://", "https://a/b", "ftp://a", "https://a,https://b"] {
        assert!(text.parse::<Origin>().is_err(), "{text}");
    }
}

#[test]
fn an_engine_that_must_sign_needs_no_token_and_one_that_it_brings_is_checked() {
    let (_tokens, tokens) = file("the-secret-of-everybody-else");
    let (_recall, recall) = file("whsec_dHdlbnR5LWZvdXIgYnl0ZXMgb2Yga2V5");
    let settings = TranscriberAccess {
        token_file: Some(tokens),
        recall_secret_file: Some(recall),
        ..TranscriberAccess::default()
    };
    let access = Access::read(&settings).unwrap();
    let none = HeaderMap::new();
    assert_eq!(check_as(Dialect::Recall, &access, &none, None), Ok(()));
    assert_eq!(check_as(Dialect::Recall, &access, &none, Some("the-secret-of-everybody-else")), Ok(()));
    assert_eq!(check_as(Dialect::Recall, &access, &none, Some("another")), Err(Refused::Unknown));
    assert_eq!(check_as(Dialect::Native, &access, &none, None), Err(Refused::Missing));
    assert_eq!(check_as(Dialect::ConversationRelay, &access, &none, None), Err(Refused::Missing));
    let uri = axum::http::Uri::from_static("/");
    let unsigned = SignedRequest { headers: &none, uri: &uri, body: b"" };
    let signature = |dialect| access.check_signature(dialect, Transport::Socket, unsigned);
    assert_eq!(signature(Dialect::Recall), Err(Refused::Unsigned));
    assert_eq!(signature(Dialect::Native), Ok(()));
}
