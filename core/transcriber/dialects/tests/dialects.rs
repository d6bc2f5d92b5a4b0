//! What the dialects make of the example frames, and of anything else.

use std::{fs, path::Path};

use proptest::{collection, prelude::*};
use serde_json::{Map, Value, json};
use transcript_dialects::{Dialect, Frame, MAX_ID_BYTES, Problem};

fn examples(dialect: Dialect) -> Vec<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/dialects");
    let text = fs::read_to_string(directory.join(format!("{dialect}.jsonl"))).expect("each dialect has examples");
    text.lines().map(str::to_owned).collect()
}

fn shown(read: &Result<Frame, Problem>) -> String {
    match read {
        Ok(Frame::Final(utterances)) => {
            let utterances = utterances.iter().map(|said| {
                format!("{:?} {:?} {:?}..{:?} {:?}", said.id, said.speaker, said.start_ms, said.end_ms, said.text)
            });
            format!("final: {}", utterances.collect::<Vec<_>>().join("\n       "))
        }
        Ok(frame @ (Frame::Interim | Frame::KeepAlive | Frame::Finalize | Frame::End | Frame::Ignored)) => {
            format!("{frame:?}").to_lowercase()
        }
        Err(problem) => format!("problem: {problem}"),
    }
}

#[test]
fn example_frames_say_what_their_engines_mean() {
    for dialect in Dialect::ALL {
        let lines: Vec<String> = examples(dialect).iter().map(|frame| shown(&dialect.read(frame))).collect();
        insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!(dialect.name(), lines.join("\n"));
        });
    }
}

#[test]
fn a_dialect_has_one_name() {
    for dialect in Dialect::ALL {
        assert_eq!(dialect.name().parse(), Ok(dialect));
    }
    assert!("Native".parse::<Dialect>().is_err());
}

#[test]
fn a_body_is_one_frame_or_a_list_of_which_each_is_judged_alone() {
    let read = Dialect::Native.read_all(r#"[{"text":"a"},{"text":1},{"type":"Finalize"}]"#).unwrap();
    assert!(matches!(&read[..], [Ok(Frame::Final(_)), Err(Problem::Kind { .. }), Ok(Frame::Finalize)]), "{read:?}");
    assert_eq!(Dialect::Native.read_all(r#"{"type":"KeepAlive"}"#), Ok(vec![Ok(Frame::KeepAlive)]));
    assert_eq!(Dialect::Native.read_all("[]"), Ok(vec![]));
    assert!(Dialect::Native.read_all("{").is_err());
}

#[test]
fn an_id_has_a_limit_and_nesting_too() {
    let frame = |id: &str| json!({ "id": id, "text": "a" }).to_string();
    assert!(Dialect::Native.read(&frame(&"x".repeat(MAX_ID_BYTES))).is_ok());
    let long = Dialect::Native.read(&frame(&"x".repeat(MAX_ID_BYTES + 1)));
    assert_eq!(long, Err(Problem::TooLong { field: "id", most: MAX_ID_BYTES }));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for dialect in Dialect::ALL {
        assert!(matches!(dialect.read(&deep), Err(Problem::Json { .. })), "{dialect}");
        assert!(dialect.read(r#"{"text":1e999}"#).is_err(), "{dialect}");
    }
}

/// Any JSON, with the fields of the dialects among its keys.
fn any_json() -> impl Strategy<Value = Value> {
    let keys = "type|event|text|id|final|channel|alternatives|words|speaker|start|is_final|data|participant|transcript|attributes|last";
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        Just(Value::from("SPEECH")),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            collection::vec((keys, inner), 0..6).prop_map(|all| Value::Object(all.into_iter().collect())),
        ]
    })
}

/// An example in which one value, anywhere, is another one.
fn with_another_value(frame: &mut Value, mut at: usize, other: Value) {
    fn walk(value: &mut Value, at: &mut usize, other: &mut Option<Value>) {
        if *at == 0 {
            if let Some(other) = other.take() {
                *value = other;
            }
            return;
        }
        *at -= 1;
        match value {
            Value::Array(all) => all.iter_mut().for_each(|value| walk(value, at, other)),
            Value::Object(all) => all.values_mut().for_each(|value| walk(value, at, other)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    walk(frame, &mut at, &mut Some(other));
}

/// Whatever was read is within its bounds, and a reason holds no word of the frame.
fn check(dialect: Dialect, text: &str) {
    match dialect.read(text) {
        Ok(Frame::Final(utterances)) => {
            assert!(!utterances.is_empty());
            for said in utterances {
                assert!(said.id.is_none_or(|id| !id.is_empty() && id.len() <= MAX_ID_BYTES));
            }
        }
        Ok(_) => {}
        Err(problem) => assert!(!problem.to_string().contains("SECRET"), "{problem}"),
    }
}

proptest! {
    #[test]
    fn any_json_is_read_or_refused(frame in any_json()) {
        for dialect in Dialect::ALL {
            check(dialect, &frame.to_string());
        }
    }

    #[test]
    fn any_text_is_read_or_refused(frame in ".{0,200}") {
        for dialect in Dialect::ALL {
            check(dialect, &frame);
        }
    }

    #[test]
    fn an_example_with_a_wrong_value_anywhere_is_read_or_refused(
        which in any::<prop::sample::Index>(), at in 0..60_usize,
        other in prop_oneof![any_json(), Just(json!("SECRET")), Just(Value::Object(Map::new()))],
    ) {
        for dialect in Dialect::ALL {
            let examples = examples(dialect);
            let Ok(mut frame) = serde_json::from_str::<Value>(&examples[which.index(examples.len())]) else { continue };
            with_another_value(&mut frame, at, other.clone());
            check(dialect, &frame.to_string());
        }
    }
}
