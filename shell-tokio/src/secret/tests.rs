use proptest::prelude::*;

use super::*;

fn nats(text: &str) -> NatsUrls {
    text.parse().unwrap()
}

fn mongodb(text: &str) -> MongodbUri {
    text.parse().unwrap()
}

#[test]
fn a_password_is_never_shown() {
    let secret: Secret = "hunter2".parse().unwrap();
    assert_eq!(format!("{secret:?}"), "[hidden]");
    assert_eq!(secret.reveal(), "hunter2");
}

#[test]
fn nats_addresses_are_shown_without_user_and_password() {
    let urls = nats("nats://ann:hunter2@a:4222, tls://token@b,c:4223");
    assert_eq!(urls.to_string(), "nats://***@a:4222,tls://***@b,c:4223");
    assert_eq!(format!("{urls:?}"), urls.to_string());
    assert_eq!(nats("ann:hunter2@a").to_string(), "***@a");
    assert_eq!(nats("nats://ann:hun@ter2@a").to_string(), "nats://***@a");
    assert_eq!(nats("nats://[::1]:4222/").to_string(), "nats://[::1]:4222");
}

#[test]
fn of_nats_addresses_that_are_none_nothing_is_shown() {
    for (bad, reason) in [
        ("nats://ann:FIRST,SECOND@host", BadNatsUrl::Comma),
        ("nats://ann:1234,SECOND@host", BadNatsUrl::Comma),
        ("nats://ann:FIRST", BadNatsUrl::Place),
        ("nats://host?password=FIRST", BadNatsUrl::Place),
        ("nats://host/FIRST", BadNatsUrl::Place),
        ("nats://ann:FIR/ST@host", BadNatsUrl::Encoding),
        ("nats://ann:FIR%ST@host", BadNatsUrl::Encoding),
        ("wss://ann:FIRST@host", BadNatsUrl::Scheme),
        ("http://FIRST", BadNatsUrl::Scheme),
        ("nats://ann:FIRST@:x y", BadNatsUrl::Place),
        ("nats:///FIRST", BadNatsUrl::Place),
        (" ,", BadNatsUrl::Empty),
    ] {
        let urls = nats(bad);
        assert_eq!((urls.to_string().as_str(), urls.servers().unwrap_err()), ("[hidden]", reason), "{bad}");
    }
}

#[test]
fn nats_addresses_are_read_as_a_list() {
    let servers = nats("nats://a:1, b:2,").servers().unwrap();
    assert_eq!(servers.iter().map(|s| format!("{}:{}", s.host(), s.port())).collect::<Vec<_>>(), ["a:1", "b:2"]);
    let with_login = nats("nats://ann:hunter2@a").servers().unwrap();
    assert_eq!(with_login[0].as_url_str(), "nats://a");
}

#[test]
fn one_address_that_says_tls_means_all_of_them() {
    assert!(nats("nats://a,tls://b").require_tls());
    assert!(!nats("nats://a,b").require_tls());
}

#[test]
fn a_login_is_read_from_the_addresses() {
    let secret = |text: &str| text.parse::<Secret>().unwrap();
    let ann = NatsLogin::User("ann".to_owned(), secret("p@ss, word"));
    assert_eq!(nats("nats://ann:p%40ss%2C%20word@a, nats://b").login().unwrap(), Some(ann.clone()));
    assert_eq!(nats("ann:p@ss%2C%20word@a,tls://ann:p%40ss%2C%20word@b").login().unwrap(), Some(ann));
    assert_eq!(nats("nats://t0ken@a").login().unwrap(), Some(NatsLogin::Token(secret("t0ken"))));
    assert_eq!(nats("nats://a").login().unwrap(), None);
    assert_eq!(nats("nats://ann:x@a,nats://bob:y@b").login(), Err(BadNatsUrl::Users));
}

#[test]
fn a_mongodb_uri_is_shown_as_its_servers() {
    for (uri, shown) in [
        ("mongodb://ann:hunter2@a:1,b:2/db?authSource=x", "mongodb://***@a:1,b:2"),
        ("mongodb+srv://ann:hunter2@a", "mongodb+srv://***@a"),
        ("mongodb://a/?tlsCertificateKeyFilePassword=hunter2", "[hidden]"),
        ("mongodb://127.0.0.1:27017", "mongodb://127.0.0.1:27017"),
    ] {
        assert_eq!(mongodb(uri).to_string(), shown);
    }
}

#[test]
fn what_is_wrong_with_a_mongodb_uri_is_said_without_showing_it() {
    for (bad, reason) in [
        ("mongo://a", BadMongodbUri::Scheme),
        ("mongodb://ann:FIR%ST@a", BadMongodbUri::Percent),
        ("mongodb://ann:FIR@ST@a", BadMongodbUri::Encoding),
        ("mongodb://ann:FIR/ST@a", BadMongodbUri::Encoding),
        ("mongodb://ann:FIR?ST@a", BadMongodbUri::Encoding),
        ("mongodb://ann:FIRST", BadMongodbUri::Hosts),
        ("mongodb+srv://a:1", BadMongodbUri::Srv),
        ("mongodb://ann:FIRST@a/?authMechanism=GUESS", BadMongodbUri::Mechanism),
        ("mongodb://ann:FIRST@a/?connectTimeoutMS=soon", BadMongodbUri::Value("connectTimeoutMS".to_owned())),
        ("mongodb://ann:FIRST@a/?password=SECOND", BadMongodbUri::Option("password".to_owned())),
        ("mongodb://ann:FIRST@a/?SECOND", BadMongodbUri::SomeOption),
        ("mongodb://a/?w=1&w=2", BadMongodbUri::Together),
        ("mongodb://a/?authMechanism=PLAIN", BadMongodbUri::Together),
    ] {
        let uri = mongodb(bad);
        assert_eq!((uri.to_string().as_str(), uri.check()), ("[hidden]", Err(reason)), "{bad}");
    }
    assert_eq!(mongodb("mongodb://ann:x@a/?authMechanism=SCRAM-SHA-256&readPreference=nearest").check(), Ok(()));
}

#[test]
fn a_file_is_named_and_a_secret_in_its_place_is_not() {
    let shown = |text: &str| text.parse::<SecretFile>().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("volume/nkey");
    assert_eq!(shown(missing.to_str().unwrap()), missing.display().to_string());
    let seed = "SUAIO3FHUX5PNV2LQIIP7TZ3N4L7TX3W53MQGEIVYFIGA635OZCKEYHFLM";
    for secret in [seed, "hunter2", "/hunter2", "hun/ter2", "-----BEGIN USER NKEY SEED-----"] {
        assert!(!shown(secret).contains(secret), "{}", shown(secret));
    }
}

/// A password as people choose them, with a mark that is in nothing else.
fn secret() -> impl Strategy<Value = String> {
    "[ -~]{0,6}Zq9x7[ -~]{0,6}"
}

/// Where a secret can be: where it belongs, and where it does not.
fn nats_forms(secret: &str) -> Vec<String> {
    let encoded = percent_encoding::utf8_percent_encode(secret, percent_encoding::NON_ALPHANUMERIC).to_string();
    let mut forms = vec![];
    for secret in [secret, &encoded] {
        for scheme in ["nats://", "tls://", "ws://", ""] {
            forms.extend([
                format!("{scheme}ann:{secret}@host:4222"),
                format!("{scheme}{secret}@host"),
                format!("{scheme}ann:{secret}@host,{scheme}ann:{secret}@other:1"),
                format!("{scheme}other,ann:{secret}@host"),
                format!("{scheme}host:4222?password={secret}"),
            ]);
            // What looks like a host behind a comma, or behind the only @, is one.
            if !secret.contains([',', '@']) {
                forms.extend([
                    format!("{scheme}ann:{secret}"),
                    format!("{scheme}host:4222/{secret}"),
                    format!("{scheme}host:4222#{secret}"),
                ]);
            }
        }
    }
    forms
}

fn mongodb_forms(secret: &str) -> Vec<String> {
    let encoded = percent_encoding::utf8_percent_encode(secret, percent_encoding::NON_ALPHANUMERIC).to_string();
    let mut forms = vec![];
    for secret in [secret, &encoded] {
        for scheme in ["mongodb://", "mongodb+srv://", "http://"] {
            forms.extend([
                format!("{scheme}ann:{secret}@host/db?authSource=admin"),
                format!("{scheme}ann:{secret}@host/?authMechanism=GUESS"),
                format!("{scheme}ann:{secret}@a,b:1/?connectTimeoutMS=soon"),
                format!("{scheme}host/?password={secret}"),
                format!("{scheme}host?password={secret}"),
                format!("{scheme}host/?tlsCertificateKeyFilePassword={secret}"),
                format!("{scheme}ann:{secret}@host/?connectTimeoutMS={secret}"),
            ]);
            if !secret.contains([',', '@']) {
                forms.push(format!("{scheme}ann:{secret}"));
            }
        }
    }
    forms
}

/// Whether a part of the secret is in a text: its mark, or what surrounds the mark where that is long enough to tell.
fn is_in(secret: &str, text: &str) -> bool {
    let (before, after) = secret.split_once("Zq9x7").unwrap();
    text.contains("Zq9x7") || [before, after].iter().any(|part| part.len() >= 5 && text.contains(*part))
}

#[test]
fn a_raw_slash_in_a_password_is_told_without_the_password() {
    for form in ["mongodb://ann:27017/Zq9x7@host", "mongodb://ann:1/Zq9x7@host/db", "mongodb://ann/Zq9x7:x@host/"] {
        let uri = mongodb(form);
        let error = uri.check().expect_err("it is refused").to_string();
        assert!(error.contains("/ as %2F"), "{form}: {error}");
        let text = format!("{uri} {uri:?}");
        assert!(!text.contains("Zq9x7") && !text.contains("27017"), "{form} is told as {text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_000) })]

    #[test]
    fn no_text_about_nats_addresses_holds_a_part_of_their_secret(secret in secret()) {
        for form in nats_forms(&secret) {
            let urls = nats(&form);
            let mut texts = vec![urls.to_string(), format!("{urls:?}")];
            texts.extend(urls.servers().err().map(|error| format!("{error} {error:?}")));
            texts.extend(urls.servers().ok().map(|servers| format!("{servers:?}")));
            texts.push(format!("{:?}", urls.login()));
            for text in texts {
                prop_assert!(!is_in(&secret, &text), "{} is told as {}", form, text);
            }
        }
    }

    #[test]
    fn no_text_about_a_mongodb_uri_holds_a_part_of_its_secret(secret in secret()) {
        for form in mongodb_forms(&secret) {
            let uri = mongodb(&form);
            let mut texts = vec![uri.to_string(), format!("{uri:?}")];
            texts.extend(uri.check().err().map(|error| format!("{error} {error:?}")));
            for text in texts {
                prop_assert!(!is_in(&secret, &text), "{} is told as {}", form, text);
            }
        }
    }

    #[test]
    fn no_name_of_a_file_is_a_secret(secret in secret()) {
        let file: SecretFile = secret.parse().unwrap();
        let text = format!("{file} {file:?}");
        prop_assert!(!is_in(&secret, &text), "{}", text);
    }
}
